"""One file that cannot be read takes nothing away from the others; what a checkpoint's state is made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, demo_folder, place, text_encoders  # noqa: F401 (fixtures)
from safetensors.torch import save_file


@pytest.fixture
def paths(text_encoders):  # noqa: F811
    from h3te.nodes.host import paths

    return paths


@pytest.mark.parametrize("name", ["config.json", "tokenizer/vocab.json", "tokenizer/merges.txt"])
@pytest.mark.parametrize("place_of", ["file", "folder"])
def test_file_state_changes_with_what_is_read_beside(paths, text_encoders, demo_file, demo_folder, place_of, name):  # noqa: F811
    """A refusal because of another model's config.json ends when that is deleted."""
    whole = {"file": "h3.safetensors", "folder": "h3"}[place_of]
    checkpoint = place(demo_file if place_of == "file" else demo_folder, text_encoders / whole)
    folder = text_encoders if place_of == "file" or name.startswith("tokenizer") else checkpoint
    (folder / "tokenizer").mkdir(exist_ok=True)
    for file in ("vocab.json", "merges.txt"):
        (folder / "tokenizer" / file).write_text("{}")
    (folder / name).unlink(missing_ok=True)
    states = [paths.file_state(checkpoint)]
    (folder / name).write_text("{}")
    states.append(paths.file_state(checkpoint))
    os.utime(folder / name, ns=(3, 3))
    states.append(paths.file_state(checkpoint))
    assert len(set(states)) == 3
    assert paths.file_state(checkpoint) == states[-1]


# one bad file takes nothing away from the others


@pytest.fixture
def locked(paths, text_encoders, demo_file, monkeypatch):  # noqa: F811
    """A link to a file in a folder of another user: it is listed, and may not be looked at."""
    place(demo_file, text_encoders / "h3.safetensors")
    save_file({"text_model.encoder.layers.0.mlp.fc1.weight": torch.zeros(2, 2)}, text_encoders / "z.safetensors")
    link, look = text_encoders / "a_locked.safetensors", os.stat
    link.symlink_to(text_encoders.parent / "secret" / "x.safetensors")

    def refuse(path, *args, **kwargs):
        if str(path) == str(link) and kwargs.get("follow_symlinks", True):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    return link


def test_file_that_may_not_be_looked_at_stands_last_and_is_refused_by_name(paths, locked):
    from h3te.nodes.checkpoint_doctor import CheckpointDoctor
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    assert paths.combo_values() == ["h3.safetensors", "z.safetensors", locked.name]
    assert not paths.is_h3(locked) and paths.file_state(locked) == ()
    for node in (LoadTextEncoder, CheckpointDoctor, EncoderOptionsNode):
        assert node.GET_SCHEMA()
    assert f"expected to read {locked}, got Permission denied" in LoadTextEncoder.validate_inputs(locked.name)
    assert LoadTextEncoder.fingerprint_inputs(text_encoder=locked.name) == ()
    assert CheckpointDoctor.validate_inputs(locked.name) is True
    assert "Permission denied" in CheckpointDoctor.execute(locked.name).args[0]


def test_what_makes_the_inspection_itself_fail_is_logged_once_and_stands_last(paths, locked, monkeypatch, caplog):
    from h3te.nodes.checkpoint_doctor import CheckpointDoctor
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    inspect = paths.inspect_checkpoint

    def fail(path):
        return inspect(path) if path.name != "h3.safetensors" else [].missing

    monkeypatch.setattr(paths, "inspect_checkpoint", fail)
    for _ in range(2):
        assert paths.combo_values() == ["z.safetensors", locked.name, "h3.safetensors"]
    assert caplog.text.count("h3.safetensors could not be inspected") == 1
    told = "expected headers that can be inspected, got AttributeError: 'list' object has no attribute 'missing'. Repl"
    assert f"h3.safetensors: {told}" in LoadTextEncoder.validate_inputs("h3.safetensors")
    assert "AttributeError" in CheckpointDoctor.execute("h3.safetensors").args[0]


def test_folder_that_may_not_be_searched_is_left_out(paths, text_encoders, demo_file, monkeypatch, caplog):  # noqa: F811
    import folder_paths

    place(demo_file, text_encoders / "h3.safetensors")
    search = folder_paths.recursive_search

    def refuse(root, **kwargs):
        if Path(root).name == "clip":
            raise PermissionError(13, "Permission denied", root)
        return search(root, **kwargs)

    monkeypatch.setattr(folder_paths, "recursive_search", refuse)
    assert paths.combo_values() == ["h3.safetensors"]
    assert "cannot be searched and is left out" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are files here alone")
@pytest.mark.parametrize("suffix", [".gguf", ".safetensors", ".pt"])
def test_pipe_is_listed_and_never_opened(paths, text_encoders, demo_file, suffix):  # noqa: F811
    os.mkfifo(text_encoders / f"pipe{suffix}")
    place(demo_file, text_encoders / "h3.safetensors")
    assert paths.combo_values()[0] == "h3.safetensors"
    assert paths.file_state(text_encoders / f"pipe{suffix}") == ()
    if suffix != ".pt":
        assert "got a" in paths.cached_report(text_encoders / f"pipe{suffix}").problems[0]
