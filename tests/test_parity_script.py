"""The parity walk: exact where the encoder is, and a planted error is found where it was planted."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers.models.qwen3_vl")
pytest.importorskip("torchvision")

import demo_tokenizer
from h3te.encoder import ImageReference, VideoReference
from h3te_tests.demo_host import demo_folder  # noqa: F401 (fixture)
from h3te_tests.golden_cases import clip, pattern
from h3te_tests.tiny_weights import TAP_LAYER, write_tiny_checkpoint
from memory_peak import MemoryPeak
from official_path import OfficialPath
from parity_official import OfficialParts
from parity_ours import OurParts
from parity_parts import States
from parity_walk import PATCH_LIMIT, Row, compare_checkpoints, compare_with_official, difference
from safetensors.torch import load_file, save_file

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
TEXT = ("A red fox runs through snow. <d>Come!</d>", ())
MIXED = ("All of it.", (ImageReference(pattern(90, 300, 2)), VideoReference(clip(27, 64, 96, 3), has_audio=True)))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(scope="module")
def official_tokenizer(tokenizer_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("official") / "tokenizer"
    folder.mkdir()
    for name, content in demo_tokenizer.tokenizer_files(tokenizer_folder).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def walk(tiny_checkpoint, tokenizer_folder, official_tokenizer, tmp_path):
    """rows of the tiny checkpoint; `states` and `ours` are kept for further comparisons."""

    def run(request: tuple, dtype=torch.bfloat16, convolution=False) -> list[Row]:
        official = OfficialPath(tiny_checkpoint, tap_layer=TAP_LAYER, dtype=dtype, tokenizer=official_tokenizer)
        run.ours = OurParts(
            tiny_checkpoint, tokenizer=tokenizer_folder, dtype=dtype, layers=TAP_LAYER, convolution=convolution
        )
        run.prepared, run.states = official.prepare(*request), States(tmp_path / "states")
        run.ours.record(run.prepared, run.states, lambda part: None)
        rows = compare_with_official(run.ours, OfficialParts(official), run.prepared, run.states, lambda row: None)
        assert all(run.ours.compare_inputs(run.prepared, *request).values())
        return rows

    return run


def plant(monkeypatch, name: str) -> None:
    """transformers' side reads one changed weight."""
    read = OfficialPath.read

    def changed(self, wanted: str) -> torch.Tensor:
        tensor = read(self, wanted)
        return tensor * 1.01 if wanted == name else tensor

    monkeypatch.setattr(OfficialPath, "read", changed)


def names(rows: list[Row]) -> list[str]:
    return [row.part.name for row in rows]


@DTYPES
def test_every_part_alone_is_bit_equal_but_the_patch_embedding(walk, dtype):
    rows = walk(MIXED, dtype)
    alone = {row.part.name: row.same_input for row in rows if row.same_input is not None}
    assert {name for name, error in alone.items() if error.relative} <= {
        "images: patch embedding", "videos: patch embedding"
    }  # fmt: skip
    for stage in ("images", "videos"):
        assert alone[f"{stage}: patch embedding"].relative <= PATCH_LIMIT[dtype]
        assert alone[f"{stage}: patch embedding"].limit == PATCH_LIMIT[dtype]
    assert all(row.passed for row in rows)


@DTYPES
def test_chained_states_are_bit_equal_with_the_released_convolution(walk, dtype):
    rows = walk(MIXED, dtype, convolution=True)
    assert [(row.chained.max_abs, row.chained.relative, row.chained.limit) for row in rows] == [(0, 0, 0)] * len(rows)


def test_text_walks_the_decoder_only_and_is_bit_equal(walk):
    rows = walk(TEXT)
    assert names(rows) == ["decoder input", *(f"layer {i}" for i in range(TAP_LAYER))]
    assert all(row.chained.relative == 0 == row.chained.limit for row in rows)


def test_parts_come_in_the_order_of_the_forward_pass(walk):
    rows = [name for name in names(walk(MIXED)) if name.startswith("videos")]
    blocks = [f"vision block {i}" for i in range(6)]
    for after, merger in ((5, "DeepStack merger 2"), (3, "DeepStack merger 1"), (1, "DeepStack merger 0")):
        blocks.insert(after + 1, merger)
    assert rows == [f"videos: {n}" for n in ("patch embedding", "position embedding", *blocks, "merger")]


def test_error_in_one_layer_is_found_in_that_layer(walk, monkeypatch):
    plant(monkeypatch, "model.language_model.layers.3.mlp.up_proj.weight")
    rows = walk(TEXT)
    assert [row.part.name for row in rows if row.same_input and row.same_input.relative] == ["layer 3"]
    assert [row.part.name for row in rows if not row.passed] == ["layer 3", "layer 4"]
    assert [row.part.name for row in rows if row.chained.relative] == ["layer 3", "layer 4"]


@pytest.mark.parametrize(
    ("weight", "part"),
    [
        ("patch_embed.proj.weight", "patch embedding"),
        ("pos_embed.weight", "position embedding"),
        ("blocks.2.attn.qkv.weight", "vision block 2"),
        ("deepstack_merger_list.1.linear_fc1.bias", "DeepStack merger 1"),
        ("merger.norm.weight", "merger"),
    ],
)
def test_error_in_the_tower_is_found_in_its_part(walk, monkeypatch, weight, part):
    plant(monkeypatch, f"model.visual.{weight}")
    wrong = [row.part.name for row in walk(MIXED) if row.same_input and not row.same_input.passed]
    assert wrong == [f"images: {part}", f"videos: {part}"]


def test_error_of_the_token_table_is_found_in_the_decoder_input(walk, monkeypatch):
    plant(monkeypatch, "model.language_model.embed_tokens.weight")
    assert next(row.part.name for row in walk(TEXT) if not row.passed) == "decoder input"


def test_one_part_is_in_memory_at_a_time(walk):
    walk(TEXT)
    slots = walk.ours.encoder.slots
    assert set(slots.missing()) == set(slots.names)
    layer = [n for n in slots.names if ".layers.0." in n]
    held = sum(walk.ours.encoder.source.catalog.entries[name].nbytes for name in layer)
    assert walk.ours.largest >= held > 0


@pytest.fixture
def rounded(tmp_path) -> Path:
    """The tiny checkpoint with the weights of layer 2 rounded to 8 bits, the others as they are."""
    folder = write_tiny_checkpoint(tmp_path / "rounded")
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if ".layers.2." in name and tensor.dim() == 2:
                tensors[name] = tensor.to(torch.float8_e4m3fn).to(tensor.dtype)
        save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_against_another_checkpoint_errors_begin_where_it_differs(walk, rounded, tokenizer_folder, tmp_path):
    rows = walk(TEXT)
    other = OurParts(rounded, tokenizer=tokenizer_folder, dtype=torch.bfloat16, layers=TAP_LAYER)
    states = States(tmp_path / "other")
    other.record(walk.prepared, states, lambda part: None)
    errors = {part.name: error.relative for part, error in compare_checkpoints(rows, walk.states, states)}
    assert [errors[name] for name in ("decoder input", "layer 0", "layer 1")] == [0, 0, 0]
    assert 1e-4 < errors["layer 2"] < 0.2 and errors["layer 4"] > 0
    expected = difference(states.load(rows[-1].part).float(), walk.states.load(rows[-1].part).float())
    assert errors["layer 4"] == pytest.approx(expected.relative)


def test_difference_is_relative_to_the_reference():
    error = difference(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]))
    assert (error.max_abs, error.relative) == (0.5, pytest.approx(0.1))
    assert difference(torch.ones(2), torch.zeros(2)).relative == float("inf")
    assert not difference(torch.tensor([float("nan")]), torch.ones(1), limit=1.0).passed


def test_shapes_that_differ_are_an_error_of_the_encoder():
    with pytest.raises(
        RuntimeError, match=r"expected both sides to compute the same shape, got \[2\] and \[3\]\. This"
    ):
        difference(torch.ones(2), torch.ones(3))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="private memory is told on Linux only")
@pytest.mark.skipif(sys.platform != "linux", reason="private memory is told by Linux alone")
def test_memory_peak_counts_what_was_taken_and_given_back():
    with MemoryPeak() as peak:
        # pages of its own: an allocator may have some left over
        held = mmap.mmap(-1, 64_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for start in range(0, len(held), mmap.PAGESIZE):
            held[start] = 1
        time.sleep(0.1)
        held.close()
    assert 60e6 < peak.private < 200e6 and peak.resident >= 60e6


@pytest.mark.skipif(sys.platform != "linux", reason="private memory is told by Linux alone")
def test_peak_of_a_process_is_its_own_and_not_that_of_the_one_that_started_it():
    held = mmap.mmap(-1, 600_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, len(held), mmap.PAGESIZE):
        held[start] = 1
    code = "import memory_peak; print(memory_peak.peak())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    held.close()
    assert int(told.stdout) < 200e6
