"""The memory figures of the READMEs are those of the pack's own plan, from the headers of files of the released sizes.

Nothing is measured here: the files are sparse and hold 3 layers; layers are alike, so that 50 of them are counted. The
request is that of the READMEs' table: two references of 864 x 480 and a prompt of 312 tokens, the options' defaults.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from h3te.encoder import load_encoder
from h3te.encoder.pixels import PATCH_WIDTH, Patches
from h3te.nodes.host.memory import plan_requests, weights_in_use
from h3te_tests.checkpoint_files import released_config
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.gguf_files import TINY, write_sparse_gguf
from h3te_tests.packed_headers import PACKED, write_packed

ROOT = Path(__file__).resolve().parents[1]
READMES = ("README.md", "README_CN.md")
META = torch.device("meta")
LAYERS, HELD = 50, 3
PROMPT, WIDTH, HEIGHT, LABEL_AND_MARKERS = 312, 864, 480, 8  # tokens, pixels, tokens of a picture beside its pads
ROWS = {
    "nvfp4_awq.safetensors": "nvfp4_awq", "int8_convrot.safetensors": "int8_convrot", "bf16.safetensors": "bf16",
    "text_encoder/": "bf16", "Q8_0": "gguf",
}  # fmt: skip


def request(pictures: int) -> tuple[Patches, int]:
    """Patches and tokens of `pictures` references and the prompt."""
    rows, columns = HEIGHT // 16, WIDTH // 16
    pixels = torch.empty(pictures * rows * columns, PATCH_WIDTH, device=META)
    patches = Patches(pixels, torch.tensor([(1, rows, columns)] * pictures))
    return patches, PROMPT + pictures * (rows * columns // 4 + LABEL_AND_MARKERS)


@pytest.fixture(scope="module")
def tree(comfy, tmp_path_factory):  # noqa: F811
    """Opens a sparse file of a format as ComfyUI's patcher sees it, for a device where nothing is resident."""
    from h3te.nodes.host.leaf import HostOps
    from h3te.nodes.host.tree import HostTree

    @cache
    def open_file(kind: str):
        folder = tmp_path_factory.mktemp(kind)
        path, config = folder / ("h3.gguf" if kind == "gguf" else "h3.safetensors"), released_config(layers=HELD)
        if kind == "gguf":
            write_sparse_gguf(path, "A", config, replace(TINY, vision="F16"))
        else:
            write_packed(path, PACKED[kind](config))
        encoder = load_encoder(path, device=META, tap_layer=HELD, ops=HostOps, reader="mmap")
        encoder.materialise()
        return HostTree(encoder)

    return open_file


def needed(tree, pictures: int = 2) -> tuple[float, float]:
    """GB on a GPU with all weights there, and with none: the plan, or for mapped weights one layer beside it."""
    config, nbytes = tree.encoder.config, lambda module: sum(p.nbytes for p in module.parameters())
    layer = nbytes(tree.encoder.model.language_model.layers[0])
    weights = nbytes(tree) + (LAYERS - HELD) * layer
    patches, tokens = request(pictures)
    seen = type("Seen", (), {"image": patches, "video": None})

    def plan(resident: bool):
        cast = weights_in_use(tree, META, resident=resident)
        return plan_requests(config, [seen], [tokens], torch.bfloat16, cast, "per_reference")

    whole, least = plan(resident=True), plan(resident=False)
    return (weights + whole.activations) / 1e9, max(least.activations, least.bare + layer) / 1e9


def rows(readme: str) -> dict[str, tuple[str, str]]:
    """{what the first cell names: its two memory cells} of the table of files."""
    lines = [line for line in (ROOT / readme).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {mark: (row[2], row[3]) for mark in ROWS for row in table if mark in row[0] and len(row) == 6}


@pytest.mark.parametrize("mark", ROWS)
def test_file_table_says_what_the_plan_says(tree, mark):
    whole, least = (f"{size:.1f} GB" for size in needed(tree(ROWS[mark])))
    assert [rows(readme)[mark] for readme in READMES] == [(whole, least)] * len(READMES)


def test_request_of_the_table_and_what_nine_references_add(tree):
    opened = tree("nvfp4_awq")
    _, tokens = request(2)
    more = needed(opened, pictures=9)[0] - needed(opened)[0]
    for readme in READMES:
        text = (ROOT / readme).read_text(encoding="utf-8")
        assert f"{tokens:,}" in text and f"{more:.1f} GB" in text
        assert re.search(rf"{request(9)[1]:,}\D+{more:.1f} GB", text)
