"""The official backend behind the CLIP socket: transformers' own model, same weights, same management."""

from __future__ import annotations

import gc
import sys

import pytest
import torch
from h3te_tests.comfy_host import CPU, comfy, make_tiny_clip, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.demo_host import demo_folder, place, text_encoders  # noqa: F401 (fixtures)
from h3te_tests.packed_host import open_as, stored_as  # noqa: F401 (fixtures)

pytest.importorskip("transformers.models.qwen3_vl")

from h3te_tests.version_steps import use_released_convolution

PICTURES = [
    {"type": "image", "data": picture(1, 64, 96)},
    {"type": "video", "data": picture(2, 64, 64, batch=2), "timestamps": [0.0, 0.5]},
]
KINDS = ["bf16", "int8_convrot", "nvfp4_awq streamed", "gguf"]


def encode(clip, items=()) -> torch.Tensor:
    return clip.encode_from_tokens(clip.tokenize("a fox <d>hi</d>", minimax_ref_items=list(items)))


def officially(clip):
    twin = clip.clone()
    twin.backend = "official"
    twin.prepare()
    return twin


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_equal_in_every_bit(open_as, kind):  # noqa: F811
    clip = open_as(kind)
    official = officially(clip)
    assert official.encoder is clip.encoder
    assert torch.equal(encode(official), encode(clip))


def test_pictures_are_equal_but_for_the_patch_embedding(open_as):  # noqa: F811
    clip = open_as("bf16")
    official = officially(clip)
    delivered, theirs = encode(clip, PICTURES), encode(official, PICTURES)
    error = (delivered - theirs).norm() / theirs.norm()
    assert 0 < error < 2e-2
    use_released_convolution(clip.encoder)
    assert torch.equal(encode(clip, PICTURES), theirs)


def test_timed_pictures_and_lists_of_prompts_are_those_of_the_encoder(open_as):  # noqa: F811
    clip = open_as("bf16")
    use_released_convolution(clip.encoder)
    official, items = officially(clip), [{**PICTURES[0], "timestamp": 3.5}, PICTURES[1]]
    tokens = clip.tokenize_each(["a fox", "an owl"], minimax_ref_items=items)
    assert not official.shares_pass()
    presentation = tokens[0]["qwen3vl_32b"].presentation
    theirs = official.patcher.model.official().encode_presentation(presentation)
    assert torch.equal(theirs.token_ids, clip.encoder.encode_presentation(presentation).token_ids)
    for ours, other in zip(clip.encode_each(tokens), official.encode_each(tokens), strict=True):
        assert torch.equal(ours[0][0], other[0][0])
        assert torch.equal(ours[0][1]["minimax_token_tags"], other[0][1]["minimax_token_tags"])


def test_tags_and_shape_are_those_of_the_encoder(tiny_clip):  # noqa: F811
    tokens = tiny_clip.tokenize("a fox", minimax_ref_items=PICTURES)
    ours = tiny_clip.encode_from_tokens(tokens, return_dict=True)
    theirs = officially(tiny_clip).encode_from_tokens(tokens, return_dict=True)
    assert torch.equal(ours["minimax_token_tags"], theirs["minimax_token_tags"])
    assert ours["cond"].shape == theirs["cond"].shape
    assert theirs["cond"].dtype == torch.float32


@pytest.mark.parametrize("share", [0, 0.4])
@pytest.mark.parametrize("kind", ["bf16", "int8_convrot"])
def test_partly_loaded_and_evicted_is_the_same(comfy, open_as, kind, share):  # noqa: F811
    official = officially(open_as(kind))
    expected, patcher = encode(official, PICTURES), official.patcher
    patcher.partially_unload(patcher.offload_device, (1 - share) * patcher.model_size())
    presentation = official.tokenize("a fox <d>hi</d>", minimax_ref_items=PICTURES)["qwen3vl_32b"].presentation
    done = patcher.model.official().encode_presentation(presentation)
    assert torch.equal(done.hidden.float(), expected)
    comfy.model_management.unload_all_models()
    assert torch.equal(encode(official, PICTURES), expected)


def test_lora_reaches_it(comfy, open_as):  # noqa: F811
    clip = open_as("int8_convrot")
    file = {"x.lora_up.weight": torch.ones(64, 4) / 8, "x.lora_down.weight": torch.ones(4, 160) / 8}
    plain = encode(officially(clip))
    key = "qwen3vl_32b.transformer.model.layers.1.mlp.down_proj.weight"
    clip.patcher.add_patches(comfy.lora.load_lora(file, {"x": key}), 0.5)
    official = officially(clip)
    assert not torch.equal(encode(official), plain)
    assert torch.equal(encode(official), encode(clip))


def test_stop_memory_and_unload_are_the_same_as_ours(comfy, tiny_clip, monkeypatch):  # noqa: F811
    from h3te.nodes.official.model import OfficialModel

    official = officially(tiny_clip)
    expected, real, calls = encode(official, PICTURES), OfficialModel.encode_presentation, []
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        encode(official, PICTURES)

    def fails_once(self, *args, **kwargs):
        calls.append(official.patcher.loaded_size())
        if len(calls) == 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(OfficialModel, "encode_presentation", fails_once)
    official.unload = True
    assert torch.equal(encode(official, PICTURES), expected)
    assert calls == [official.patcher.model_size(), 0]
    assert official.run.repeated == "ran out of memory, repeated with all weights offloaded"
    assert not official.encoder.is_loaded
    assert torch.equal(encode(official, PICTURES), expected)


def test_option_at_the_loader_says_official_path(text_encoders, demo_folder):  # noqa: F811
    from h3te.nodes.encode_references import EncodeReferences
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    place(demo_folder, text_encoders / "h3" / "text_encoder")
    options = EncoderOptionsNode.execute(backend="official").args[0]
    loaded = LoadTextEncoder.execute("h3/text_encoder/", options=options)
    assert "official path" in loaded.ui["text"][0]
    official, ours = loaded.args[0], LoadTextEncoder.execute("h3/text_encoder/").args[0]
    assert official.encoder is ours.encoder
    asked = {"prompt": "a fox", "width": 64, "height": 64, "length": 5}
    shown = EncodeReferences.execute(clip=official, **asked)
    assert "official path: computed by the transformers package" in shown.ui["text"][0]
    other = EncodeReferences.execute(clip=ours, **asked)
    assert "official path" not in other.ui["text"][0]
    assert torch.equal(shown.args[0][0][0][0], other.args[0][0][0][0])


def test_missing_transformers_is_said_at_the_loader(text_encoders, demo_folder, monkeypatch):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    place(demo_folder, text_encoders / "h3" / "text_encoder")
    options = EncoderOptionsNode.execute(backend="official").args[0]
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(RuntimeError, match=r"Official backend: expected the package transformers, 4\.57 or newer"):
        LoadTextEncoder.execute("h3/text_encoder/", options=options)
    assert LoadTextEncoder.execute("h3/text_encoder/").args[0].encode("a fox").isfinite().all()


def test_patches_are_gone_with_the_last_handle(tiny_clip):  # noqa: F811
    from h3te.patches import qwen3_vl
    from h3te.patches.method_patch import RECORDS

    def owners() -> int:
        records = vars(qwen3_vl.families()[0].tower).get(RECORDS, {})
        return len(records["tower_device"]["owners"]) if records else 0

    gc.collect()
    before = owners()
    official = officially(tiny_clip)
    assert owners() == before + 1
    official.patcher.model._official = None
    gc.collect()
    assert owners() == before


def test_backend_is_one_of_two(comfy):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptions

    with pytest.raises(
        ValueError, match=r"expected backend to be one of encoder, official, got 'fast'\. Choose encoder"
    ):
        EncoderOptions(backend="fast")
    with pytest.raises(
        ValueError, match=r"expected unload_after_encode to be true or false, got 'yes'\. Connect a BOOL"
    ):
        EncoderOptions(unload_after_encode="yes")
