"""Encode Video Keyframes with stand-in VAEs: what it emits, in the shapes that ComfyUI's H3 sampler reads."""

from __future__ import annotations

import logging

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, comfy, picture, tiny_clip  # noqa: F401 (fixtures)

SIZE = {"width": 256, "height": 192, "length": 22}
NODE = "Encode Video Keyframes (H3TE)"
BLOCK = "<|vision_start|>[image, 20x14 patches, 70 tokens]<|vision_end|>"


class SeeingVAE(StandInVAE):
    """Remembers the pixels it was given, as bytes [H, W, 3]."""

    def __init__(self):
        self.seen = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen.append((pixels[0] * 255).round().to(torch.uint8))
        return super().encode(pixels)


@pytest.fixture
def encode(comfy, tiny_clip):  # noqa: F811
    """The node called with plain values: (extras with the hidden states as "cond", outputs, node text)."""
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    def run(prompt="", clip=tiny_clip, **inputs):
        output = EncodeKeyframes.execute(clip=clip, prompt=prompt, **{**SIZE, **inputs})
        outputs = [value for (value,) in output.args[:6]]
        ((cond, extras),) = outputs[0]
        return {"cond": cond, **extras}, outputs, output.ui["text"][0]

    return run


@pytest.fixture
def encode_list(comfy, tiny_clip):  # noqa: F811
    """The node called as ComfyUI calls it, with lists: its outputs and the node text."""
    from h3te.nodes.encode_keyframes import EncodeKeyframes

    def run(**inputs):
        output = EncodeKeyframes.execute(**{"clip": [tiny_clip], **{k: [v] for k, v in SIZE.items()}, **inputs})
        return output.args, output.ui["text"][0]

    return run


@pytest.fixture
def item(comfy):  # noqa: F811
    from h3te.nodes.chains import KeyframeItem

    return KeyframeItem


def frames(extras: dict) -> list[int]:
    return [block["resolved_frame_index"] for block in extras.get("minimax_keyframes", [])]


# what is emitted


@pytest.mark.parametrize("given", [(), ("first",), ("last",), ("first", "last")])
def test_keyframes_are_fitted_as_released(encode, tiny_clip, given):  # noqa: F811
    """The first one given is the anchor: last_frame alone is stretched, not cropped."""
    from h3te.encoder import ImageReference, geometry

    images = {"first": picture(1, 100, 100), "last": picture(2, 300, 100)}
    vae = SeeingVAE()
    extras, outputs, _ = encode("a fox", vae=vae, **{f"{name}_frame": images[name] for name in given})
    fits = (geometry.resize, geometry.cover_crop)
    fitted = [fit(images[name][0], 256, 192) for fit, name in zip(fits, given, strict=False)]
    direct = tiny_clip.encoder.encode("a fox", [ImageReference(p) for p in fitted])
    assert torch.equal(extras["cond"], direct.hidden.float())
    assert all(torch.equal(a, b) for a, b in zip(vae.seen, fitted, strict=True))
    assert frames(extras) == [{"first": 0, "last": 21}[name] for name in given]
    blocks = extras.get("minimax_keyframes", [])
    assert all(set(block) == {"resolved_frame_index", "latent"} for block in blocks)
    assert all(block["latent"].shape == (1, 24, 1, 12, 16) for block in blocks)
    assert outputs[3:] == [256, 192, 22]
    assert outputs[2] == "".join(f"<Picture {i}>: {BLOCK}" for i in range(1, len(given) + 1)) + "a fox"


def test_latent_is_video_and_audio_on_the_models_grid(encode):
    _, outputs, _ = encode()
    assert [tuple(t.shape) for t in outputs[1]["samples"].tensors] == [(1, 24, 7, 12, 16), (1, 32, 2, 37)]


def test_size_and_length_off_the_grid_are_snapped_and_said(encode):
    _, outputs, text = encode(width=250, height=200, length=23)
    assert outputs[3:] == [256, 192, 39]
    assert "size 250x200 became 256x192" in text
    assert "length 23 became 39" in text


def test_without_vae_keyframes_do_not_pin_and_the_node_says_so(encode):
    extras, _, text = encode(first_frame=picture(1))
    assert "minimax_keyframes" not in extras
    assert text.startswith("no VAE: keyframes will not pin frames\n")
    assert "no VAE" not in encode()[2]
    assert "no VAE" not in encode(first_frame=picture(1), vae=StandInVAE())[2]


# where


def test_chained_keyframes_follow_the_sockets_in_the_order_given(encode, item):
    """Order is meaning: neither the frames nor the pictures are sorted."""
    chain = (item(picture(2), -2, where="second"), item(picture(3), 8, fit="pad", where="third"))
    extras, outputs, text = encode(vae=StandInVAE(), keyframes=chain, first_frame=picture(1))
    assert frames(extras) == [0, 20, 8]
    assert [f"<Picture {i}>" in outputs[2] for i in (1, 2, 3, 4)] == [True, True, True, False]
    assert (
        "keyframes: first_frame at frame 0 (0.00 s), <Picture 1>; second at frame 20 (0.83 s), <Picture 2>; "
        "third at frame 8 (0.33 s), <Picture 3>"
    ) in text


def test_reordered_keyframes_are_another_request(encode, item):
    chain = item(picture(2, 192, 256), 4), item(picture(3, 192, 256), 8)
    there, back = (encode(vae=StandInVAE(), keyframes=c)[0] for c in (chain, chain[::-1]))
    assert frames(there) == [4, 8]
    assert frames(back) == [8, 4]
    assert not torch.equal(there["cond"], back["cond"])


def test_keyframe_of_a_chain_on_a_sockets_frame_is_refused_by_both_names(encode, item):
    with pytest.raises(ValueError, match="first_frame and one: expected keyframes at different frames, got frame 0"):
        encode(first_frame=picture(1), keyframes=(item(picture(2), -22, where="one"),))
    with pytest.raises(ValueError, match="last_frame and one: expected keyframes at different frames, got frame 21"):
        encode(last_frame=picture(1), keyframes=(item(picture(2), second=22 / 24, where="one"),))


# fits


def test_each_keyframe_of_a_chain_has_its_own_fit_and_pad_colour(encode, item):
    from h3te.encoder import geometry

    source = picture(2, 300, 100)
    fits = ("crop", "stretch", "released", "pad")
    chain = tuple(item(source, i, fit, pad_colour=(1, 2, 3)) for i, fit in enumerate(fits))
    vae = SeeingVAE()
    encode(vae=vae, keyframes=chain)
    cropped, stretched, follower, padded = vae.seen
    assert torch.equal(cropped, geometry.cover_crop(source[0], 256, 192))
    assert torch.equal(stretched, geometry.resize(source[0], 256, 192))
    assert torch.equal(follower, cropped)
    assert padded[0, 0].tolist() == [1, 2, 3]
    assert torch.equal(padded, geometry.contain(source[0], 256, 192, colour=(1, 2, 3)))


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_fit_applies_to_both_sockets(encode, fit):
    from h3te.encoder.geometry import fit_keyframe

    vae, first, last = SeeingVAE(), picture(1, 100, 300), picture(2, 300, 100)
    encode(vae=vae, first_frame=first, last_frame=last, fit=fit)
    assert all(torch.equal(s, fit_keyframe(p[0], 256, 192, fit)) for s, p in zip(vae.seen, (first, last), strict=True))


def test_unknown_fit_and_canvas_are_refused(encode):
    told = (
        r"^Encode Video Keyframes \(H3TE\), fit: expected released or stretch or crop or pad, got 'zoom'\. Choose one"
    )
    for sockets in ({}, {"last_frame": picture(1)}, {"keyframes": (1,)}):
        with pytest.raises(ValueError, match=told):
            encode(fit="zoom", **sockets)
    with pytest.raises(ValueError, match=r"canvas: expected given or first image, got 'mine'\. Choose one"):
        encode(last_frame=picture(1), canvas="mine")


# shown or not


def test_keyframe_that_is_not_shown_pins_its_frame_alone(encode, item, tiny_clip):  # noqa: F811
    chain = (item(picture(1), 3, show=False, where="hidden"), item(picture(2), 9))
    extras, outputs, text = encode("a fox", vae=StandInVAE(), keyframes=chain)
    assert frames(extras) == [3, 9]
    assert outputs[2] == f"<Picture 1>: {BLOCK}a fox"
    assert "hidden at frame 3 (0.12 s), not shown; keyframe at frame 9 (0.38 s), <Picture 1>" in text
    alone, _, _ = encode("a fox", vae=StandInVAE(), keyframes=(item(picture(1), 3, show=False),))
    assert torch.equal(alone["cond"], tiny_clip.encoder.encode("a fox").hidden.float())


def test_first_keyframe_is_the_anchor_whether_shown_or_not(encode, item):
    """Showing changes what is read, never the pixels that pin."""
    seen = []
    for shown in (True, False):
        vae = SeeingVAE()
        encode(vae=vae, keyframes=(item(picture(1, 100, 300), 3, show=shown), item(picture(2, 300, 100), 9)))
        seen.append(vae.seen)
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_keyframe_neither_pinned_nor_shown_is_named(encode, item):
    chain = (item(picture(1), 3, show=False, where="idle"), item(picture(2), 9))
    assert "neither pinned nor shown to the encoder: idle" in encode(keyframes=chain)[2]
    assert "neither pinned" not in encode(keyframes=chain, vae=StandInVAE())[2]


# canvas


def test_canvas_of_the_first_image_is_taken_and_said(encode):
    _, outputs, text = encode(canvas="first image", last_frame=picture(1, 60, 80), length=23, width=999, height=4)
    assert outputs[3:] == [1024, 768, 39]
    assert outputs[1]["samples"].tensors[0].shape[-2:] == (48, 64)
    assert "canvas 1024x768 from last_frame (80x60); width and height are not read" in text
    assert "became 39" in text
    assert "size " not in text


def test_canvas_is_that_of_the_first_keyframe_given(encode, item):
    chain = (item(picture(1, 64, 64), 3, show=False, where="first"), item(picture(2, 64, 128), 9))
    _, outputs, text = encode(canvas="first image", keyframes=chain)
    assert outputs[3:5] == [768, 768]
    assert "canvas 768x768 from first (64x64)" in text


def test_canvas_of_the_first_image_needs_one(encode):
    with pytest.raises(ValueError, match=r"canvas: expected a keyframe for 'first image', got none\. Connect one"):
        encode(canvas="first image")


def test_canvas_beyond_comfyuis_sizes_is_refused(encode):
    with pytest.raises(ValueError, match=r"first_frame: expected a picture whose canvas is at most 16384 .* 4000x2"):
        encode(canvas="first image", first_frame=torch.zeros(1, 2, 4000, 3))


def test_given_canvas_says_nothing_about_pictures(encode):
    assert "canvas" not in encode(first_frame=picture(1))[2]


@pytest.mark.parametrize("sides", [(8192, 32), (32, 8192)])
def test_canvas_that_the_encoder_cannot_see_is_refused_by_the_pictures_shown(encode, item, sides):
    size, vae = dict(zip(("width", "height"), sides, strict=True)), StandInVAE()
    chain = (item(picture(1), 3, where="shown"), item(picture(2), 4, show=False, where="pinned"))
    told = rf"first_frame, shown: expected a canvas of at most 200:1 .* got {sides[0]}x{sides[1]}\. Change width"
    with pytest.raises(ValueError, match=told):
        encode(first_frame=picture(1), keyframes=chain, **size)
    assert frames(encode(keyframes=chain[1:], vae=vae, **size)[0]) == [4]


# lists


def test_list_of_prompts_shares_keyframes_and_their_latents(encode, encode_list):
    vae, first = SeeingVAE(), picture(1)
    outputs, text = encode_list(prompt=["a fox", "a hen", "an owl"], vae=[vae], first_frame=[first])
    assert [len(output) for output in outputs] == [3] * 7
    assert len(vae.seen) == 1
    for prompt, conditioning in zip(("a fox", "a hen", "an owl"), outputs[0], strict=True):
        alone, _, _ = encode(prompt, vae=StandInVAE(), first_frame=first)
        assert torch.equal(conditioning[0][0], alone["cond"])
        assert frames(conditioning[0][1]) == [0]
    assert text.startswith("3 prompts")
    assert text.count("keyframes: first_frame at frame 0") == 1


def test_list_of_pictures_is_prepared_apart(encode, encode_list):
    vae, pictures = SeeingVAE(), [picture(1), picture(2)]
    outputs, _ = encode_list(prompt=["a fox"], vae=[vae], last_frame=pictures, length=[22, 39])
    assert len(vae.seen) == 2
    for image, length, conditioning in zip(pictures, (22, 39), outputs[0], strict=True):
        alone, _, _ = encode("a fox", vae=StandInVAE(), last_frame=image, length=length)
        assert torch.equal(conditioning[0][0], alone["cond"])
        assert frames(conditioning[0][1]) == [length - 1]
    assert outputs[5] == [22, 39]


def test_prompts_of_the_same_keyframes_ask_with_the_very_same_pictures(encode_list, monkeypatch):
    """By that they are presented, and seen by the vision tower, once."""
    from h3te.nodes import encode_list as both_nodes

    asked, encode_all = [], both_nodes.encode_all
    monkeypatch.setattr(both_nodes, "encode_all", lambda asks, node: asked.extend(asks) or encode_all(asks, node))
    first, other = picture(1), picture(2)
    encode_list(prompt=["a fox", "a hen", "an owl"], first_frame=[first, first, other])
    assert [ask.references is asked[0].references for ask in asked] == [True, True, False]


def test_list_of_chains_gives_each_prompt_its_own(encode_list, item):
    one, two = (item(picture(1), 3),), (item(picture(2), 9), item(picture(3), 4))
    outputs, _ = encode_list(prompt=["a fox", "a hen"], vae=[StandInVAE()], keyframes=[one, two])
    assert [frames(conditioning[0][1]) for conditioning in outputs[0]] == [[3], [9, 4]]


def test_list_of_clips_encodes_each_prompt_with_its_own(encode_list, tiny_clip, comfy):  # noqa: F811
    other = tiny_clip.clone()
    outputs, _ = encode_list(clip=[tiny_clip, other], prompt=["a fox"], first_frame=[picture(1)])
    assert len(outputs[0]) == 2
    assert torch.equal(outputs[0][0][0][0], outputs[0][1][0][0])


def test_empty_list_is_refused_by_its_input(encode_list):
    with pytest.raises(ValueError, match="expected at least one value on prompt, got an empty list"):
        encode_list(prompt=[])


def test_error_of_a_list_says_which_prompt_and_of_one_prompt_does_not(encode_list):
    with pytest.raises(ValueError, match=r"^prompt 2 of 3: last_frame: expected one picture, got a batch of 2"):
        encode_list(prompt=["a", "b", "c"], last_frame=[picture(1), picture(2, batch=2), picture(3)])
    with pytest.raises(ValueError, match=r"^last_frame: expected one picture, got a batch of 2"):
        encode_list(prompt=["a"], last_frame=[picture(2, batch=2)])


# pictures


def rgba(seed: int, alpha: float = 0.5) -> torch.Tensor:
    image = picture(seed, channels=4)
    image[..., 3] = alpha
    return image


def test_alpha_is_composited_on_the_chosen_colour(encode):
    vae = SeeingVAE()
    encode(vae=vae, first_frame=rgba(1, alpha=0.0), alpha_colour="#0a141e")
    assert torch.equal(vae.seen[0], torch.tensor([10, 20, 30], dtype=torch.uint8).expand(192, 256, 3))


def test_alpha_is_said_once_on_the_node_and_once_in_the_log(encode_list, item, caplog):
    chain = (item(rgba(3), 5, where="middle"), item(rgba(4, alpha=1.0), 6, where="opaque"))
    with caplog.at_level(logging.INFO):
        _, text = encode_list(
            prompt=["a fox", "a hen", "an owl"], length=[22, 39, 22], alpha_colour=["grey "],
            first_frame=[rgba(1)], last_frame=[picture(2)], keyframes=[chain],
        )  # fmt: skip
    line = "alpha of first_frame, middle composited on grey"
    assert text.count("alpha") == text.count(line) == 1
    assert [record.getMessage() for record in caplog.records if "alpha" in record.getMessage()] == [f"{NODE}: {line}"]


def test_unknown_alpha_colour_is_refused_by_its_input(encode):
    with pytest.raises(ValueError, match=r"alpha_colour: expected a colour such as .* got 'mist'"):
        encode(first_frame=picture(1), alpha_colour="mist")


def test_batch_on_a_keyframe_socket_is_refused_by_name(encode, item):
    with pytest.raises(ValueError, match="first_frame: expected one picture, got a batch of 2"):
        encode(first_frame=picture(1, batch=2))
    with pytest.raises(ValueError, match="middle: expected one picture, got a batch of 3"):
        encode(keyframes=(item(picture(1, batch=3), 3, where="middle"),))


def test_non_finite_picture_is_refused_by_its_socket(encode):
    broken = picture(1)
    broken[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="last_frame: expected finite pixels"):
        encode(last_frame=broken)


# what is refused


def test_chain_of_something_else_is_refused(encode):
    with pytest.raises(
        ValueError, match=r"expected keyframes to be a chain of keyframes, got a tuple of int\. Connect Key"
    ):
        encode(keyframes=(1,))


def test_other_clips_are_refused_by_name(encode):
    class Flux:
        tokenizer = None
        cond_stage_model = torch.nn.Linear(1, 1)

    with pytest.raises(ValueError, match=r"\(H3TE\): expected a MiniMax H3 text encoder on clip, got Linear"):
        encode(clip=Flux())


def test_own_h3_clip_of_the_host_is_called_by_its_two_methods_alone(encode):
    class HostClip:
        """Answers nothing but what ComfyUI's H3 CLIP is documented to answer."""

        class tokenizer:
            qwen3vl_32b = None

        def tokenize(self, text, **kwargs):
            return {"qwen3vl_32b": [[(text, {name: len(value) for name, value in kwargs.items()})]]}

        def encode_from_tokens_scheduled(self, tokens):
            return [[torch.zeros(1, 1, 8), {"tokens": tokens}]]

    extras, outputs, text = encode("a fox", clip=HostClip(), first_frame=picture(1))
    assert extras["tokens"] == {"qwen3vl_32b": [[("a fox", {"images": 1})]]}
    assert outputs[2] == ""
    assert "ComfyUI's own H3 text encoder" in text
