"""The token table in every stored form: rows are looked up where they lie, and only those."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder.checkpoint.files import CheckpointFiles
from h3te.encoder.checkpoint.header import read_header
from h3te.encoder.checkpoint.rest import Kept, Streamed
from h3te.encoder.checkpoint.stored_weight import StoredWeight
from h3te.encoder.packing import unpack
from h3te.encoder.token_table import TokenTable
from h3te_tests.test_packing import packing_of, random_weight
from quantise import quantise
from safetensors.torch import save_file

SHAPE = (300, 208)
IDS = torch.tensor([299, 3, 3, 0, 128])
FORMATS = ("int8_row", "int8_tensor", "int8_convrot", "fp8", "fp8_row", "fp8_e5m2")


def stored_table(
    tmp_path, format: str, scale: tuple[int, ...] | None
) -> tuple[StoredWeight, CheckpointFiles, torch.Tensor]:
    packing, parts = packing_of(format, SHAPE), quantise(format, random_weight(SHAPE))
    if scale is not None:
        parts["weight_scale"] = parts["weight_scale"].reshape(scale)
    path = tmp_path / "table.safetensors"
    save_file({name: parts[name] for name in packing.parts}, path)
    stored = StoredWeight(format, packing, dict(read_header(path).tensors))
    return stored, CheckpointFiles([path]), unpack(packing, stored.fit(parts), torch.float32)


@pytest.mark.parametrize("scale", [None, (1, -1), (-1,), (1, -1, 1)])
@pytest.mark.parametrize("rest", ["kept", "streamed"])
@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_those_of_the_unpacked_table_however_its_scale_is_shaped(tmp_path, format, rest, scale):
    stored, files, whole = stored_table(tmp_path, format, scale)
    table = TokenTable(*SHAPE, torch.bfloat16)
    table.announce(stored.packing)
    if rest == "kept":
        table.store(Kept(stored, {name: files.read(entry) for name, entry in stored.parts.items()}))
    else:
        table.store(Streamed(stored, files, lambda: pytest.fail("the whole table was asked for")))
    assert torch.equal(table(IDS, torch.device("cpu"), torch.float32), whole[IDS])
    assert torch.equal(table(IDS, torch.device("cpu"), torch.bfloat16), whole[IDS].bfloat16())
