"""Files that would run code if they were believed: pickles, zips and code beside a checkpoint, under every name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
import torch
from h3te.encoder import inspect_checkpoint, load_encoder
from h3te_tests.audited import PROGRAMS, UNPICKLING, Forbidden, forbidden
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import text_encoders  # noqa: F401 (fixture)
from h3te_tests.tiny_weights import TAP_LAYER

SUFFIXES = (".safetensors", ".sft", ".gguf", ".pt", ".pth", ".ckpt", ".bin", ".pkl", ".zip", "")


class Bomb:
    """Makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("bomb",)


def zipped() -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
        archive.writestr("archive/version", "3")
    return made.getvalue()


def tarred() -> bytes:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("pickle"), BytesIO())
    return made.getvalue()


def saved(**options) -> bytes:
    made = BytesIO()
    torch.save({"model.embed_tokens.weight": torch.zeros(2, 2), "x": Bomb()}, made, **options)
    return made.getvalue()


HOSTILE = {
    **{f"pickle {n}": pickle.dumps([Bomb(), bytes(1000)], protocol=n) for n in range(6)},
    "zip": zipped(), "tar": tarred(), "torch file": saved(),
    "torch file of before 1.6": saved(_use_new_zipfile_serialization=False),
}  # fmt: skip


def test_the_bomb_works(tmp_path, monkeypatch):
    """Else nothing below means anything."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["pickle 4"])
    assert (tmp_path / "bomb").is_dir()
    with pytest.raises(Forbidden, match=r"pickle\.find_class"), forbidden(*UNPICKLING):
        pickle.loads(HOSTILE["pickle 4"])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", HOSTILE)
def test_checkpoint_that_could_run_code_is_refused_unread(tmp_path, monkeypatch, name, suffix):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"qwen3vl_32b_minimax_h3{suffix}"
    path.write_bytes(HOSTILE[name])
    with forbidden(*UNPICKLING, *PROGRAMS):
        report = inspect_checkpoint(path)
        with pytest.raises(ValueError, match=r"expected .* got ") as raised:
            load_encoder(path, tap_layer=TAP_LAYER)
    assert report.problems and not report.is_h3
    assert str(raised.value).isprintable()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_folder_of_pickles_is_refused_unread(tmp_path, tiny_checkpoint, monkeypatch):
    """As older releases of other models came: pytorch_model.bin and its index."""
    folder = tmp_path / "text_encoder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copy(tiny_checkpoint / "config.json", folder)
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for name in names:
        (folder / name).write_bytes(HOSTILE["torch file"])
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    with forbidden(*UNPICKLING, *PROGRAMS), pytest.raises(FileNotFoundError, match=r"expected .*, got none"):
        load_encoder(folder, tap_layer=TAP_LAYER)
    assert not (folder / "bomb").exists()


@pytest.mark.parametrize("name", ["torch file", "pickle 2"])
def test_pickle_as_a_shard_of_an_index_is_refused_unread(tmp_path, tiny_checkpoint, monkeypatch, name):
    folder = tmp_path / "text_encoder"
    shutil.copytree(tiny_checkpoint, folder)
    monkeypatch.chdir(folder)
    (folder / "evil.bin").write_bytes(HOSTILE[name])
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for tensor in list(index["weight_map"])[:3]:
        index["weight_map"][tensor] = "evil.bin"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with forbidden(*UNPICKLING, *PROGRAMS), pytest.raises(ValueError, match=r"evil\.bin.*which is never opened"):
        load_encoder(folder, tap_layer=TAP_LAYER)
    assert not (folder / "bomb").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ".pt", ".ckpt", ".bin"])
def test_loader_node_refuses_it_before_the_run_and_in_it(text_encoders, monkeypatch, suffix):  # noqa: F811
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    name = f"h3{suffix}"
    (text_encoders / name).write_bytes(HOSTILE["torch file"])
    monkeypatch.chdir(text_encoders)
    with forbidden(*UNPICKLING, *PROGRAMS):
        LoadTextEncoder.define_schema()
        assert "expected" in str(LoadTextEncoder.validate_inputs(text_encoder=name))
        with pytest.raises(ValueError, match=r"expected .* got "):
            LoadTextEncoder.execute(text_encoder=name)
    assert [each.name for each in text_encoders.iterdir()] == [name]


def test_code_beside_a_checkpoint_is_never_run(tmp_path, tiny_checkpoint, load_small, monkeypatch):
    """What transformers would run with trust_remote_code: classes that config.json names."""
    folder = tmp_path / "text_encoder"
    shutil.copytree(tiny_checkpoint, folder)
    evil = "import os\nos.mkdir('bomb')\nclass Model: pass\n"
    for module in ("modeling_evil.py", "tokenization_evil.py", "configuration_evil.py", "__init__.py", "setup.py"):
        (folder / module).write_text(evil)
    config = json.loads((folder / "config.json").read_text())
    auto = {"AutoModel": "modeling_evil.Model", "AutoConfig": "configuration_evil.Model",
            "AutoTokenizer": ["tokenization_evil.Model", None]}  # fmt: skip
    for name in ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json"):
        own = config if name == "config.json" else {}
        (folder / name).write_text(json.dumps({**own, "auto_map": auto, "trust_remote_code": True}))
    monkeypatch.chdir(tmp_path)
    with forbidden(*PROGRAMS):
        evil_states = load_small(folder).encode("a fox").hidden
    assert torch.equal(evil_states, load_small(tiny_checkpoint).encode("a fox").hidden)
    assert not list(tmp_path.rglob("bomb"))
    assert not [name for name in sys.modules if "evil" in name]


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
def test_pickle_as_a_tokenizer_is_refused_unread(tmp_path, tiny_checkpoint, tokenizer_folder, load_small, file):
    tokenizer = Path(shutil.copytree(tokenizer_folder, tmp_path / "tokenizer"))
    (tokenizer / file).write_bytes(HOSTILE["pickle 4"])
    with forbidden(*UNPICKLING, *PROGRAMS), pytest.raises(Exception, match=r".") as raised:
        load_small(tiny_checkpoint, tokenizer=tokenizer).encode("a fox")
    assert not isinstance(raised.value, Forbidden)
    assert not (tmp_path / "bomb").exists()
