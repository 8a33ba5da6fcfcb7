"""The loader node: what it says, what it refuses, and that it opens headers alone."""

from __future__ import annotations

import os

import pytest
import torch
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, demo_folder, place, text_encoders  # noqa: F401 (fixtures)
from safetensors.torch import save_file

VALUE = "h3/text_encoder/"


@pytest.fixture
def loader(text_encoders, demo_folder):  # noqa: F811
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    place(demo_folder, text_encoders / "h3" / "text_encoder")
    return LoadTextEncoder


def said(output) -> str:
    return output.ui["text"][0]


def test_loader_says_format_size_device_and_demo_without_reading_weights(loader, caplog):
    caplog.set_level("INFO")
    output = loader.execute(VALUE)
    clip = output.args[0]
    assert not clip.encoder.is_loaded
    assert "bf16, 64 layers" in said(output)
    assert "GB needed" in said(output)
    assert "bfloat16 on cpu" in said(output)
    assert "demo weights: output is meaningless" in said(output)
    assert "demo weights: output is meaningless" in caplog.text


def test_loaded_clip_encodes_as_the_public_encoder(loader, demo_folder):  # noqa: F811
    from h3te.encoder import load_encoder

    clip = loader.execute(VALUE).args[0]
    cond = clip.encode("a fox <d>hi</d>")
    assert torch.equal(cond, load_encoder(demo_folder).encode("a fox <d>hi</d>").hidden.float())


def test_single_file_uses_the_tokenizer_that_comfyui_bundles(text_encoders, demo_file, tokenizer_folder):  # noqa: F811
    from h3te.encoder import load_encoder
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    place(demo_file, text_encoders / "h3.safetensors")
    clip = LoadTextEncoder.execute("h3.safetensors").args[0]
    direct = load_encoder(demo_file, tokenizer=tokenizer_folder).encode("a fox <d>hi</d>")
    assert torch.equal(clip.encode("a fox <d>hi</d>"), direct.hidden.float())


def test_released_parent_folder_loads(text_encoders, demo_folder):  # noqa: F811
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    place(demo_folder, text_encoders / "H3" / "Ref2VA" / "text_encoder")
    assert LoadTextEncoder.execute("H3/").args[0].encode("a fox").shape == (1, 2, 64)


def test_options_choose_the_dtype(loader):
    from h3te.nodes.encoder_options import EncoderOptionsNode

    options = EncoderOptionsNode.execute("float32").args[0]
    output = loader.execute(VALUE, "cpu", options)
    assert output.args[0].encoder.dtype == torch.float32
    assert "float32 on cpu" in said(output)


def test_wrong_options_are_refused(loader):
    from h3te.nodes.encoder_options import EncoderOptions

    with pytest.raises(ValueError, match="expected options from MiniMax H3 Encoder Options"):
        loader.execute(VALUE, "auto", {"dtype": "float32"})
    with pytest.raises(ValueError, match="expected dtype to be one of auto, bfloat16, float32, got 'float16'"):
        EncoderOptions("float16")


def test_device_that_is_not_there_is_refused(loader):
    with pytest.raises(ValueError, match=r"expected device to be one of auto, cpu.*got 'cuda:99'"):
        loader.execute(VALUE, "cuda:99")


def test_devices_are_those_torch_reports(comfy, monkeypatch):  # noqa: F811
    from h3te.nodes.host import devices

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.device_options()[:4] == ["auto", "cpu", "cuda:0", "cuda:1"]
    load, offload = devices.pick_devices("cuda:1")
    assert (str(load), str(offload)) == ("cuda:1", "cpu")


def test_dtype_falls_back_to_float32_where_bfloat16_is_missing(comfy, monkeypatch, caplog):  # noqa: F811
    from h3te.nodes.host import devices

    monkeypatch.setattr(devices, "_multiplies_bfloat16", lambda device: False)
    assert devices.pick_dtype("auto", torch.device("cpu")) == torch.float32
    assert "cannot multiply bfloat16" in caplog.text
    assert devices.pick_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16


def test_validation_names_the_missing_file(loader):
    assert loader.validate_inputs(VALUE) is True
    assert loader.validate_inputs(None) is True  # over a link: checked when it runs
    said = loader.validate_inputs("gone.pt")
    assert "expected a text encoder file or folder, got 'gone.pt'" in said
    assert said.endswith("Where a worker computes (remote of the options), choose (remote: as the options say).")


def test_another_model_is_refused_before_and_during_the_run(loader, text_encoders):  # noqa: F811
    save_file({"text_model.encoder.layers.0.mlp.fc1.weight": torch.zeros(2, 2)}, text_encoders / "clip_l.safetensors")
    assert "Load MiniMax H3 Text Encoder (H3TE)" in loader.validate_inputs("clip_l.safetensors")
    with pytest.raises(ValueError, match=r"Load MiniMax H3 Text Encoder \(H3TE\): .*names of one layout"):
        loader.execute("clip_l.safetensors")


def test_fingerprint_follows_the_files(loader, text_encoders):  # noqa: F811
    before = loader.fingerprint_inputs(text_encoder=VALUE, device="auto")
    assert before == loader.fingerprint_inputs(text_encoder=VALUE, device="auto")
    config = text_encoders / "h3" / "text_encoder" / "config.json"
    content = config.read_text()
    config.unlink()
    config.write_text(content)
    os.utime(config, ns=(3, 3))
    assert before != loader.fingerprint_inputs(text_encoder=VALUE, device="auto")
    assert "got 'gone'" in loader.fingerprint_inputs(text_encoder="gone")
    assert loader.fingerprint_inputs(text_encoder=None) == ()


def test_patcher_factory_makes_an_independent_copy(loader):
    clip = loader.execute(VALUE).args[0]
    factory, arguments = clip.patcher.cached_patcher_init
    copy = factory(*arguments)
    assert copy.model.encoder is not clip.encoder
    assert type(clip)(copy).encode("a fox").equal(clip.encode("a fox"))
