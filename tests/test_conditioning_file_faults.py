"""Files that are not ours, damaged or made to harm: each is told by what it is, none is run or believed."""

from __future__ import annotations

import json
import os
import pickle
import zipfile

import pytest
import torch
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.conditioning_files import conditioning, folders, tensor  # noqa: F401 (fixture)
from safetensors.torch import save_file


@pytest.fixture
def file(folders):  # noqa: F811
    from h3te.nodes.host import conditioning_file

    return conditioning_file


@pytest.fixture
def good(file):
    """A sound file's path."""
    from h3te.nodes.host.saving import save_target

    return file.write(save_target("good"), conditioning()).path


def said(file, path) -> str:
    with pytest.raises(ValueError, match=r"^Load MiniMax H3 Conditioning") as caught:
        file.read(path)
    return str(caught.value)


def changed(path, **metadata) -> None:
    """The file with other metadata; None takes one away."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] = {k: v for k, v in {**header["__metadata__"], **metadata}.items() if v is not None}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("bomb",)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".bin", ".pkl", ".gguf", ""])
def test_other_kinds_are_refused_unread(file, folders, monkeypatch, suffix):  # noqa: F811
    path = folders.input / f"x{suffix}"
    path.write_bytes(pickle.dumps(Bomb()))
    monkeypatch.setattr(type(path), "open", lambda *a, **k: pytest.fail("opened"))
    assert "which is never opened" in said(file, path)


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_under_our_suffix_is_never_run(file, folders, monkeypatch, protocol):  # noqa: F811
    monkeypatch.chdir(folders.outside)
    path = folders.input / "x.safetensors"
    path.write_bytes(pickle.dumps([Bomb(), bytes(1000)], protocol=protocol))
    assert "expected a safetensors file" in said(file, path)
    assert list(folders.outside.iterdir()) == []


def test_zip_and_torch_file_under_our_suffix_are_told(file, folders):  # noqa: F811
    path = folders.input / "x.safetensors"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Bomb()))
    assert "a zip or PyTorch pickle, which is never opened" in said(file, path)
    torch.save(conditioning(), path)
    assert "a zip or PyTorch pickle, which is never opened" in said(file, path)


def test_other_safetensors_are_told_by_their_missing_mark(file, folders):  # noqa: F811
    path = folders.input / "lora.safetensors"
    save_file({"a": torch.zeros(2)}, path)
    assert "got lora.safetensors, a safetensors file without its mark" in said(file, path)


def test_newer_version_says_update(file, good):
    changed(good, h3te_conditioning="2")
    message = said(file, good)
    assert "expected format version 1, got '2'" in message and "Update this node pack" in message


@pytest.mark.parametrize("kept", [0, 5, 9, 100, -1])
def test_truncated_file_is_told(file, good, kept):
    raw = good.read_bytes()
    good.write_bytes(raw[:kept])
    assert "expected" in said(file, good)


def test_more_bytes_than_the_header_says_are_told(file, good):
    good.write_bytes(good.read_bytes() + b"x")
    assert "The file is damaged" in said(file, good)


def test_one_flipped_bit_of_a_tensor_is_found(file, good):
    raw = bytearray(good.read_bytes())
    raw[-100] ^= 1
    good.write_bytes(raw)
    assert "tensors that differ from what was saved" in said(file, good)


def test_header_beyond_the_limit_is_not_read(file, folders):  # noqa: F811
    path = folders.input / "x.safetensors"
    with path.open("wb") as made:
        made.write((50_000_000).to_bytes(8, "little") + b"{")
        made.truncate(60_000_000)
    assert "with a header of 50,000,000 bytes" in said(file, path)


HIDDEN = {"tensor": "0.hidden", "widen": "F32"}
OTHERS = ["0.minimax_token_tags", "0.minimax_keyframes.0.latent", "0.minimax_refs.0.latent", "0.minimax_refs.1.latent",
          "0.minimax_refs.2.audio_latent"]  # fmt: skip
REST = [[name, {"tensor": name}] for name in OTHERS]


def tree_of(hidden=HIDDEN, items=REST) -> str:
    return json.dumps([[hidden, {"dict": items}]])


def deep(levels: int) -> list:
    made: list = []
    for _ in range(levels):
        made = [made]
    return made


TREES = {
    "none": None,
    "no JSON": "[[",
    "deep beyond Python": "[" * 100_000,
    "deep": tree_of(items=[*REST, ["x", deep(80)]]),
    "a number": "3",
    "empty": "[]",
    "an entry of three": json.dumps([[HIDDEN, {"dict": REST}, 1]]),
    "hidden is a text": tree_of(hidden="0.hidden"),
    "a name that is not there": tree_of(hidden={"tensor": "1.hidden"}),
    "a name that is a list": tree_of(hidden={"tensor": ["0.hidden"]}),
    "widened to something else": tree_of(hidden={"tensor": "0.hidden", "widen": "F64"}),
    "widened from float32": tree_of(items=[*REST, ["x", {"tensor": "0.minimax_refs.0.latent", "widen": "F32"}]]),
    "named in two ways": tree_of(items=[*REST, ["x", {"tensor": "0.hidden"}]]),
    "a tensor that nothing names": tree_of(items=REST[1:]),
    "an unknown kind": tree_of(items=[*REST, ["x", {"pickle": "x"}]]),
    "two kinds": tree_of(items=[*REST, ["x", {"tuple": [], "dict": []}]]),
    "a plain object": tree_of(items=[*REST, ["x", {}]]),
    "dict of no pairs": tree_of(items=[*REST, ["x"]]),
    "dict with a list as key": tree_of(items=[*REST, [[1], 2]]),
    "dict with a tensor as key": tree_of(items=[*REST, [{"tensor": OTHERS[0]}, 2]]),
    "dict that is a text": json.dumps([[HIDDEN, {"dict": "ab"}]]),
    "tuple of a text": tree_of(items=[*REST, ["x", {"tuple": "ab"}]]),
    "nested texts": tree_of(items=[*REST, ["x", {"nested": ["a"]}]]),
    "a float that is code": tree_of(items=[*REST, ["x", {"float": "1_0"}]]),
    "a number of 5000 digits": tree_of().replace('"0.minimax_token_tags", {', "9" * 5000 + ", {", 1),
}


def test_tree_written_by_hand_is_read(file, good):
    changed(good, tree=tree_of())
    assert list(file.read(good).conditioning[0][1]) == OTHERS


@pytest.mark.parametrize("name", TREES)
def test_tree_that_we_do_not_write_is_damage(file, good, name):
    changed(good, tree=TREES[name])
    message = said(file, good)
    assert "as it was saved, got" in message and "The file is damaged" in message
    assert len(message) < 600


def written_by_hand(path, entries: dict, data: bytes, file) -> None:
    tensors = {name: torch.tensor(list(data), dtype=torch.uint8) for name in entries}
    metadata = {"h3te_conditioning": "1", "digest": file._digest(tensors), "tree": "[]"}
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_unknown_dtype_is_damage(file, folders):  # noqa: F811
    path = folders.input / "x.safetensors"
    written_by_hand(path, {"a": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}, bytes(4), file)
    assert "a tensor of dtype F8_E8M0" in said(file, path)


def test_shape_of_giant_empty_axes_is_damage(file, folders):  # noqa: F811
    path = folders.input / "x.safetensors"
    shape = [0, 2**62, 2**62]
    written_by_hand(path, {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}, b"", file)
    said(file, path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFO on this system")
def test_fifo_under_our_suffix_is_not_waited_for(file, folders):  # noqa: F811
    path = folders.input / "x.safetensors"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="got a FIFO"):
        file.read(path)


def test_huge_claims_cost_no_memory(file, folders):  # noqa: F811
    """Sizes are held against the file before a byte is allocated."""
    path = folders.input / "x.safetensors"
    written_by_hand(path, {"a": {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}}, b"", file)
    assert "expected" in said(file, path)


def test_bytes_that_went_away_after_the_header_are_told(file, good, monkeypatch):
    header = file.read_metadata(good)
    raw = good.read_bytes()
    good.write_bytes(raw[:-50])
    monkeypatch.setattr(file, "read_metadata", lambda path: header)
    assert "fewer bytes than its header says" in said(file, good)


def test_mark_alone_is_not_enough(file, folders):  # noqa: F811
    path = folders.input / "x.safetensors"
    save_file({"0.hidden": tensor(1, 2, 3)}, path, metadata={"h3te_conditioning": "1"})
    assert "The file is damaged" in said(file, path)
