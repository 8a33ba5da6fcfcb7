"""The nodes Save Conditioning, Load Conditioning and Clear Caches, called as ComfyUI calls them."""

from __future__ import annotations

import math
import os
from types import SimpleNamespace

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.conditioning_files import assert_same, conditioning, folders  # noqa: F401 (fixture)


@pytest.fixture
def save(folders):  # noqa: F811
    from h3te.nodes.save_conditioning import SaveConditioning

    return SaveConditioning


@pytest.fixture
def load(folders):  # noqa: F811
    from h3te.nodes.load_conditioning import LoadConditioning

    return LoadConditioning


def test_loaded_is_what_was_saved_and_passed_on(save, load):
    given = conditioning()
    passed, value = save.execute(given, "conditioning/h3").args
    assert passed is given
    assert value == "conditioning/h3_00001_.safetensors [output]"
    assert load.validate_inputs(value) is True
    loaded, presentation = load.execute(value).args
    assert_same(loaded, given)
    assert presentation == "<Picture 1>: a fox"


def test_encoded_keyframes_come_back_to_the_bit(save, load, tiny_clip):  # noqa: F811
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    request = {"prompt": "a fox", "width": 64, "height": 64, "length": 22, "first_frame": picture(1)}
    (positive,), *_ = EncodeKeyframes.execute(clip=tiny_clip, vae=StandInVAE(), **request).args
    _, value = save.execute(positive).args
    assert_same(load.execute(value).args[0], positive)


def test_text_of_the_nodes_says_file_size_and_contents(save, load, folders):  # noqa: F811
    saved = save.execute(conditioning())
    (path,) = folders.output.rglob("*.safetensors")
    lines = saved.ui["text"][0].splitlines()
    assert lines[0] == "saved conditioning/h3_00001_.safetensors [output]"
    assert lines[1] == f"7 tokens, {path.stat().st_size / 1e6:.2f} MB"
    loaded = load.execute(saved.args[1]).ui["text"][0].splitlines()
    assert loaded == [*lines[1:], "h3_00001_.safetensors"]


def test_disable_metadata_keeps_the_prompt_out_of_the_file(save, load, folders, monkeypatch):  # noqa: F811
    from comfy.cli_args import args

    monkeypatch.setattr(args, "disable_metadata", True)
    saved = save.execute(conditioning())
    assert "--disable-metadata" in saved.ui["text"][0]
    (path,) = folders.output.rglob("*.safetensors")
    assert b"a fox" not in path.read_bytes()
    loaded, presentation = load.execute(saved.args[1]).args
    assert presentation == "" and "h3te" not in loaded[0][1]


def test_save_refuses_before_the_folder_is_touched_by_name(save, folders):  # noqa: F811
    with pytest.raises(ValueError, match="Save MiniMax H3 Conditioning"):
        save.execute(conditioning(), "../h3")
    given = conditioning()
    given[0][1]["control"] = object()
    with pytest.raises(ValueError, match="key 'control'"):
        save.execute(given)
    assert [p for p in folders.output.rglob("*") if p.is_file()] == []


def test_load_says_before_the_run_what_is_wrong(load, folders):  # noqa: F811
    from h3te.nodes.host.conditioning_list import NOTHING

    assert load.validate_inputs(None) is True  # over a link
    assert "got no such file" in load.validate_inputs("nothing.safetensors")
    assert "expected a conditioning file" in load.validate_inputs(NOTHING)
    (folders.input / "x.safetensors").write_bytes(b"<html>")
    assert "expected a safetensors file" in load.validate_inputs("x.safetensors")
    (folders.input / "x.pt").write_bytes(b"\x80\x02")
    assert "never opened" in load.validate_inputs("x.pt")


def test_validation_reads_no_tensors(save, load, monkeypatch):
    from h3te.nodes.host import conditioning_file

    _, value = save.execute(conditioning()).args
    monkeypatch.setattr(conditioning_file, "_tensors", lambda *a: pytest.fail("read"))
    assert load.validate_inputs(value) is True


def test_fingerprint_follows_the_file(save, load, folders):  # noqa: F811
    _, value = save.execute(conditioning()).args
    first = load.fingerprint_inputs(file=value)
    assert load.fingerprint_inputs(file=value) == first
    (path,) = folders.output.rglob("*.safetensors")
    os.utime(path, (5, 5))
    assert load.fingerprint_inputs(file=value) != first
    path.unlink()
    assert "no such file" in load.fingerprint_inputs(file=value)
    assert load.fingerprint_inputs(file=None) == ()


def test_tensors_come_to_the_intermediate_device(save, load, comfy, monkeypatch):  # noqa: F811
    _, value = save.execute(conditioning()).args
    monkeypatch.setattr(comfy.model_management, "intermediate_device", lambda: torch.device("meta"))
    hidden, extras = load.execute(value).args[0][0]
    assert {hidden.device.type, extras["minimax_token_tags"].device.type} == {"meta"}


# caches


@pytest.fixture
def caches(comfy, monkeypatch):  # noqa: F811
    from h3te.nodes.host import caches

    held: dict = {}
    monkeypatch.setattr(caches, "_clearers", lambda: {name: held.get(name, lambda: 0) for name in caches.CHOICES[1:]})
    return SimpleNamespace(clear=caches.clear, held=held)


@pytest.fixture
def clear(caches):
    from h3te.nodes.clear_caches import ClearCaches

    return ClearCaches


def test_clear_calls_what_is_meant_and_says_the_bytes(clear, caches):
    sizes = {"prefixes": 2_000_000_000, "conditioning in RAM": 3_500_000, "conditioning on disk": 40_000}
    for name, size in sizes.items():
        caches.held[name] = lambda size=size: size
    for name, size in sizes.items():
        assert clear.execute(name).args == (None, size)
    output = clear.execute("all", anything=given_anything())
    assert output.args == (given_anything(), 2_003_540_000)
    assert output.ui["text"][0] == "freed 2.00 GB (all)"


def given_anything() -> list:
    return [1, {"a": "b"}]


def test_clear_of_nothing_says_so(clear):
    assert clear.execute("prefixes").ui["text"][0] == "freed 0.00 MB (prefixes): nothing was kept"


def test_clear_runs_every_time(clear):
    assert math.isnan(clear.fingerprint_inputs(what="all"))
    assert clear.GET_SCHEMA().is_output_node


def test_clear_refuses_a_choice_that_is_none(clear, caches):
    with pytest.raises(ValueError, match=r"Clear MiniMax H3 Caches \(H3TE\), what: expected all or prefixes"):
        clear.execute("everything")
    with pytest.raises(ValueError, match="caches: expected"):
        caches.clear("everything")
