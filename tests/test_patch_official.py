"""transformers' model over the encoder's own weights: equal, nothing twice, under the same management."""

from __future__ import annotations

import gc
import sys
from importlib import metadata

import pytest
import torch

pytest.importorskip("transformers.models.qwen3_vl")

from h3te.encoder import build_encoder, load_encoder
from h3te.nodes.official import model as official_module
from h3te.nodes.official.model import official_model
from h3te.patches import qwen3_vl
from h3te.patches.method_patch import RECORDS
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.one_device import CPU, META, OneDevice, without_autocast
from h3te_tests.patch_official import differences, pair, request
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config
from h3te_tests.version_cases import weights

TEXT = torch.tensor([9707, 11, 1879])


def owners() -> int:
    """How many have the tower's patch installed."""
    records = vars(qwen3_vl.families()[0].tower).get(RECORDS, {})
    return len(records["tower_device"]["owners"]) if records else 0


@pytest.fixture(scope="module")
def both():
    encoder, official = pair(torch.bfloat16)
    yield encoder, official
    official.close()


def test_every_bit_agrees_but_for_the_patch_embedding():
    found = differences()
    assert [found[dtype]["convolution"] for dtype in found] == [0, 0]
    assert 0 < found["float32"]["delivered"] < 1e-4


def test_text_alone_agrees_in_every_bit(both):
    encoder, official = both
    assert torch.equal(official.encode_ids(TEXT), encoder.encode_ids(TEXT))


def test_nothing_is_in_memory_twice(both):
    _, official = both
    tensors = [*official.model.parameters(), *official.model.buffers()]
    assert sum(tensor.nbytes for tensor in tensors if not tensor.is_meta) < 2048
    assert {tensor.numel() for tensor in official.model.parameters()} == {0}


def test_what_happens_to_the_encoders_weights_happens_here(both):
    encoder, official = both
    before = official.encode_ids(TEXT)
    weight = encoder.model.language_model.layers[1].mlp.down_proj.weight
    kept = weight.data.clone()
    weight.data.mul_(1.5)
    try:
        after = official.encode_ids(TEXT)
        assert not torch.equal(after, before)
        assert torch.equal(after, encoder.encode_ids(TEXT))
    finally:
        weight.data.copy_(kept)


@pytest.mark.parametrize("kind", ["int8_convrot", "nvfp4_awq", "hf_block_fp8"])
def test_packed_weights_agree_in_every_bit(tiny_checkpoint, tmp_path, kind):
    from packed_files import write_packed

    target = tmp_path / ("text_encoder" if kind == "hf_block_fp8" else f"{kind}.safetensors")
    encoder = load_encoder(write_packed(tiny_checkpoint, target, kind, tap=TAP_LAYER), tap_layer=TAP_LAYER)
    official = official_model(encoder)
    assert torch.equal(official.encode_ids(TEXT), encoder.encode_ids(TEXT))
    official.close()


def test_a_request_of_the_nodes_agrees(tiny_clip):  # noqa: F811
    items = [{"type": "image", "data": picture(1)}]
    presentation = tiny_clip.tokenize("a fox", minimax_ref_items=items)["qwen3vl_32b"].presentation
    wanted, official = tiny_clip.encoder.encode_presentation(presentation), official_model(tiny_clip.encoder)
    got = official.encode_presentation(presentation)
    assert torch.equal(got.token_ids, wanted.token_ids)
    assert torch.equal(got.token_tags, wanted.token_tags)
    assert got.hidden.shape == wanted.hidden.shape
    error = (got.hidden.float() - wanted.hidden.float()).norm() / wanted.hidden.float().norm()
    assert error < 2e-2
    official.close()


@pytest.mark.parametrize("share", [0.0, 0.3, 3.0])
def test_partial_loading_gives_the_same_bits(tiny_clip, share):  # noqa: F811
    official, patcher = official_model(tiny_clip.encoder), tiny_clip.patcher
    wanted = official.encode_ids(**request())
    patcher.partially_load(CPU, int(share * patcher.model_size()) or 1)
    try:
        assert torch.equal(official.encode_ids(**request()), wanted)
    finally:
        patcher.detach()
        official.close()


@pytest.mark.parametrize("share", [0.0, 0.3, 3.0])
def test_every_op_runs_on_the_compute_device(tiny_clip, share):  # noqa: F811
    tiny_clip.encoder.materialise()
    official, patcher = official_model(tiny_clip.encoder), tiny_clip.patcher
    patcher.load_device = META
    patcher.partially_load(META, int(share * patcher.model_size()) or 1)
    given = request()
    pixels = given["pixel_values"].to(device=META, dtype=torch.bfloat16)
    hidden, positions = torch.empty(1, 5, 64, dtype=torch.bfloat16, device=META), torch.zeros(3, 1, 5).long().to(META)
    with OneDevice(), without_autocast(), torch.no_grad():
        official.model.visual(pixels, grid_thw=given["image_grid_thw"])
        out = official.model.language_model(inputs_embeds=hidden, position_ids=positions, use_cache=False)
    assert out.last_hidden_state.device == META
    patcher.detach()
    official.close()


def test_progress_counts_and_stop_leaves_the_model_usable(both):
    _, official = both
    wanted, said = official.encode_ids(**request()), []
    official.encode_ids(**request(), progress=lambda *step: said.append(step))
    assert said[0] == (1, 11, "vision block 1 of 6")
    assert said[-1] == (11, 11, "layer 5 of 5")
    assert [done for done, *_ in said] == sorted(done for done, *_ in said)

    def stop(done, total, what):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        official.encode_ids(**request(), progress=stop)
    assert torch.equal(official.encode_ids(**request()), wanted)
    assert not any(module._forward_hooks for module in official.model.modules())


def test_patches_are_installed_as_long_as_a_model_lives():
    gc.collect()
    before = owners()
    _, first = pair(torch.float32)
    _, second = pair(torch.float32)
    assert owners() == before + 2
    del first
    gc.collect()
    assert owners() == before + 1
    second.close()
    assert owners() == before


def test_vision_of_a_text_only_checkpoint_is_refused():
    config = {key: value for key, value in tiny_config().items() if key != "vision_config"}
    encoder = build_encoder(config, tap_layer=TAP_LAYER)
    encoder.load_weights((n, w) for n, w in weights().items() if ".visual." not in n)
    official = official_model(encoder)
    assert torch.equal(official.encode_ids(TEXT), encoder.encode_ids(TEXT))
    with pytest.raises(ValueError, match="Official backend: expected a text-only request, got pictures"):
        official.encode_ids(**request())
    official.close()


def test_bad_requests_are_refused_as_by_the_encoder(both):
    _, official = both
    with pytest.raises(ValueError, match="encode_ids: expected int64 ids of shape"):
        official.encode_ids(TEXT[None])
    with pytest.raises(ValueError, match=r"expected pixel values and grids, got \['pixels'\]"):
        official.encode_ids(TEXT, pixels=TEXT)
    given = request()
    del given["image_grid_thw"]
    with pytest.raises(ValueError, match="expected pixel_values and image_grid_thw together"):
        official.encode_ids(**given)
    given = {**request(), "input_ids": TEXT}
    with pytest.raises(ValueError, match="pads"):
        official.encode_ids(**given)


def test_values_that_are_not_finite_are_an_error():
    encoder, official = pair(torch.float32)
    down = encoder.model.language_model.layers[0].mlp.down_proj
    down.weight.data = torch.full_like(down.weight, torch.nan)  # others hold the tensor that was there
    with pytest.raises(
        RuntimeError, match=r"expected finite hidden states, got NaN or infinity in torch\.float32 on cpu"
    ):
        official.encode_ids(TEXT)
    official.close()


def test_missing_transformers_is_explained(both, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        RuntimeError, match=r"expected the package transformers, 4.57 or newer, got none that imports"
    ) as e:
        official_model(both[0])
    assert "pip install transformers" in str(e.value)
    assert "the backend of the pack" in str(e.value)

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(official_module.metadata, "version", absent)
    with pytest.raises(RuntimeError, match="got none that imports"):
        official_model(both[0])


def test_an_old_or_unknown_transformers_is_explained(both, monkeypatch):
    monkeypatch.setattr(official_module, "families", tuple)
    monkeypatch.setattr(official_module.metadata, "version", lambda name: "4.56.2")
    with pytest.raises(
        RuntimeError, match=r"expected transformers 4\.57 to 5\.x with its Qwen3-VL, got 4\.56\.2\. Install"
    ):
        official_model(both[0])


def test_encoders_that_cannot_be_compared_are_refused(both, monkeypatch):
    with pytest.raises(ValueError, match="expected a tap above layer 3, got 3"):
        official_model(build_encoder(tiny_config(), tap_layer=3))
    monkeypatch.setattr(type(both[0]), "tp_size", 2)
    with pytest.raises(ValueError, match="expected an encoder on one device, got one shared by 2"):
        official_model(both[0])


def test_a_model_with_other_weights_is_refused_and_the_patches_are_taken_away():
    before = owners()
    encoder = build_encoder(tiny_config(), tap_layer=TAP_LAYER)
    del encoder.model.language_model.layers[0].mlp.up_proj
    with pytest.raises(
        RuntimeError, match="expected every weight of transformers' model in the encoder, got none for 1"
    ):
        official_model(encoder)
    assert owners() == before
