"""A packed checkpoint of the released width: ComfyUI's nvfp4_awq single file, cut to LAYERS decoder layers.

Contract: `make_packed_checkpoint(file)` writes 6.4 GB once and leaves a finished file alone; opened with a lower tap,
it is the file with fewer layers. Names, types and markers are those of the real file. Codes are random bits, drawn by
the tensor's name (to quantise real numbers would take many minutes), with scales that keep activations of order one;
one tensor is in memory at a time.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from demo_weights import single_file_name, tensor_shapes
from h3te_tests.checkpoint_files import BYTES, released_config
from h3te_tests.wide.wide_weights import wide_weight
from quantise import marker

LAYERS = 16
RECIPE = "1"
SPARE_BYTES = 2e9  # disk that stays free
_LINEAR = re.compile(r"model\.language_model\.layers\.\d+\..*_proj\.weight$")
_NO_NORM_BEFORE = ("o_proj.weight", "down_proj.weight")  # their AWQ scale has no norm to be folded into
_E2M1_RMS = math.sqrt(68.5 / 8)  # of the 16 codes, all equally frequent
_BLOCK_SCALES = 0x70  # float8 e4m3: 128, and with the low three bits drawn up to 240
_MEAN_BLOCK_SCALE = 184.0


@dataclass(frozen=True)
class Stored:
    """One tensor of the file; `make()` gives its values, in any type of the same bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor | np.ndarray]

    @property
    def nbytes(self) -> int:
        return BYTES[self.dtype] * math.prod(self.shape)


def make_packed_checkpoint(file: Path) -> Path:
    """Raises RuntimeError when the disk is too full, with both numbers."""
    tensors = sorted(stored_tensors(), key=lambda t: (-BYTES[t.dtype], t.name))
    header = _header(tensors)
    size = len(header) + sum(tensor.nbytes for tensor in tensors)
    if file.is_file() and file.stat().st_size == size and _begins_with(file, header):
        return file
    _require_space(file, size)
    print(f"  writing {file.name}, {size / 1e9:.2f} GB", flush=True)
    partial = file.with_name(f".{file.name}.partial")
    with partial.open("wb") as opened:
        opened.write(header)
        for tensor in tensors:
            opened.write(_bytes(tensor.make()))
    partial.replace(file)
    return file


def stored_tensors() -> Iterator[Stored]:
    """Every tensor of the file."""
    for released, shape in tensor_shapes(released_config(layers=LAYERS)).items():
        name = single_file_name(released, LAYERS)
        if name is None:
            continue
        if _LINEAR.match(released):
            yield from _nvfp4(name, shape)
        elif name.endswith("embed_tokens.weight"):
            yield from _int8_table(name, shape)
        else:
            yield Stored(name, "BF16", shape, lambda r=released, s=shape: wide_weight(r, s))


def _nvfp4(name: str, shape: tuple[int, ...]) -> Iterator[Stored]:
    layer, (rows, columns) = name.removesuffix(".weight"), shape
    tiled = (-(-rows // 128) * 128, -(-columns // 64) * 4)
    gain = 0.3 if name.endswith(_NO_NORM_BEFORE) else 1.0  # what is added to the residual stream is small
    scale = torch.tensor(gain / math.sqrt(columns) / _E2M1_RMS / _MEAN_BLOCK_SCALE)
    codes = (rows, columns // 2)
    yield Stored(name, "U8", codes, lambda: _random(name, codes))
    yield Stored(f"{layer}.weight_scale", "F8_E4M3", tiled, lambda: _random(layer, tiled) & 7 | _BLOCK_SCALES)
    yield Stored(f"{layer}.weight_scale_2", "F32", (), lambda: scale)
    yield _marker(layer, "nvfp4")
    if name.endswith(_NO_NORM_BEFORE):
        yield Stored(
            f"{layer}.pre_quant_scale", "BF16", (columns,), lambda: wide_weight(f"{layer}.norm.weight", (columns,))
        )


def _int8_table(name: str, shape: tuple[int, ...]) -> Iterator[Stored]:
    layer, scales = name.removesuffix(".weight"), (shape[0], 1)
    yield Stored(name, "I8", shape, lambda: _random(name, shape))
    yield Stored(f"{layer}.weight_scale", "F32", scales, lambda: torch.full(scales, 1 / 128))
    yield _marker(layer, "int8_tensorwise")


def _marker(layer: str, format: str) -> Stored:
    text = marker(format=format)
    return Stored(f"{layer}.comfy_quant", "U8", tuple(text.shape), lambda: text)


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 of this shape."""
    count = math.prod(shape)
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(-(-count // 8))
    return raw.view(np.uint8)[:count].reshape(shape)


def _bytes(values: torch.Tensor | np.ndarray) -> memoryview:
    flat = values if isinstance(values, np.ndarray) else values.contiguous().view(-1).view(torch.uint8).numpy()
    return memoryview(np.ascontiguousarray(flat).reshape(-1))


def _header(tensors: list[Stored]) -> bytes:
    """Its metadata names the recipe: an older file is made again."""
    header: dict = {"__metadata__": {"h3te_wide_recipe": RECIPE}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _begins_with(file: Path, content: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(content)) == content


def _require_space(file: Path, needed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(file.parent).free
    if free < needed + SPARE_BYTES:
        raise RuntimeError(
            f"test-wide: expected {(needed + SPARE_BYTES) / 1e9:.1f} GB of free disk for the packed checkpoint "
            f"({needed / 1e9:.1f} GB, kept for later runs; make clean deletes it), got {free / 1e9:.1f} GB. "
            "Free some space and run it again."
        )
