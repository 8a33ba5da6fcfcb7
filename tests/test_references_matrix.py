"""Modalities x order x VAE present or absent x size mode: CONDITIONING key by key against the rules of reference_rules.

Contract: over 200 requests: all orders of up to two references, a fifth of those of three, each with one of the sixteen
settings, and three mixed requests (chain, sockets, both) with all sixteen.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from h3te_tests import reference_rules as rules
from h3te_tests.comfy_host import StandInAudioVAE, comfy, make_tiny_clip, picture, sound  # noqa: F401 (fixture)
from h3te_tests.reference_rules import Given

MODES = ("match", "max", "official", "none")
PRESENT = tuple(itertools.product((True, False), repeat=2))  # VAE, audio VAE
WIDTH, HEIGHT = 128, 96
PROMPT = "a fox"


def pixels(seed: int, width: int, height: int, frames: int = 1) -> torch.Tensor:
    return (picture(seed, height, width, batch=frames) * 255).round().to(torch.uint8)


GIVEN = {
    "P": Given("picture", pixels(1, 320, 200)),  # larger than the target, off the grid
    "p": Given("picture", pixels(2, 70, 90), vision_only=True),
    "S": Given("picture", pixels(3, 33, 41)),
    "T": Given("picture", pixels(7, 96, 64), second=2.5),
    "V": Given("video", pixels(4, 160, 100, 60)),
    "W": Given("video", pixels(5, 48, 40, 40), fps=12, sound=sound(0.5, rate=16000)),
    "w": Given("video", pixels(6, 64, 64, 50), sound=sound(0.2), vision_only=True),
    "A": Given("sound", sound=sound(1.0)),
    "a": Given("sound", sound=sound(0.1), vision_only=True),
}
ORDERS = [
    "".join(order)
    for length in (1, 2, 3)
    for order in itertools.permutations(GIVEN, length)
    if not set(order) <= set("Aa") and (length < 3 or sum(map(ord, order)) % 5 == 0)
]
CHAINED = [("", order, MODES[i % 4], *PRESENT[i // 4 % 4]) for i, order in enumerate(ORDERS)]
CROSSED = [
    (sockets, chain, mode, *present)
    for sockets, chain in (("", "AWPpV"), ("PSWA", ""), ("PVA", "aSTwP"))
    for mode in MODES
    for present in PRESENT
]
CASES = CHAINED + CROSSED


@pytest.fixture(scope="module")
def tiny_clip(comfy, tiny_checkpoint, tokenizer_folder):  # noqa: F811
    """One for all requests: none of them may change it."""
    return make_tiny_clip(tiny_checkpoint, tokenizer_folder)


@pytest.fixture(autouse=True)
def quick(comfy, monkeypatch):  # noqa: F811
    """The released edges are too large for hundreds of cases; the rules are the same with small ones."""
    from h3te.encoder import geometry

    monkeypatch.setattr(geometry, "REFERENCE_SHORT_EDGE", rules.SHORT_EDGE)
    monkeypatch.setattr(geometry, "CANVAS_SHORT_EDGE", rules.CANVAS_EDGE)
    monkeypatch.setattr(geometry, "CANVAS_MAX_PIXELS", rules.CANVAS_PIXELS)


def on_sockets(names: str) -> dict:
    """The named references on sockets of the encode node, whose order they then have: pictures, videos, sounds."""
    groups = {group: {} for group in ("ref_images", "ref_videos", "ref_video_audios", "ref_audios")}
    for given in (GIVEN[name] for name in names):
        group = {"picture": "ref_image", "video": "ref_video", "sound": "ref_audio"}[given.kind]
        number = len(groups[group + "s"])
        groups[group + "s"][f"{group}_{number}"] = given.sound if given.kind == "sound" else at_24(given)
        if given.kind == "video" and given.sound is not None:
            groups["ref_video_audios"][f"ref_video_audio_{number}"] = given.sound
    return {group: dict(reversed(sockets.items())) for group, sockets in groups.items()}


def at_24(given: Given) -> torch.Tensor:
    return given.pixels.repeat_interleave(24 // given.fps, dim=0)


def on_chain(names: str) -> tuple:
    from h3te.nodes.reference_audio import ReferenceAudio
    from h3te.nodes.reference_image import ReferenceImage
    from h3te.nodes.reference_video import ReferenceVideo

    chain = None
    for given in (GIVEN[name] for name in names):
        common = {"vision_only": given.vision_only, "references": chain}
        if given.kind == "sound":
            output = ReferenceAudio.execute(audio=given.sound, **common)
        elif given.kind == "picture":
            timed = {"timed": given.second is not None, "second": given.second or 0.0}
            output = ReferenceImage.execute(image=given.pixels, **timed, **common)
        else:
            parts = {"frames": given.pixels, "fps": float(given.fps), "soundtrack": given.sound, "with_sound": True}
            output = ReferenceVideo.execute(**parts, **common)
        (chain,) = output.args
    return {} if chain is None else {"references": chain}


def encode(clip, prompt, sockets: str, chain: str, mode: str, vae: bool, audio_vae: bool, length: int, **more):
    from h3te.nodes.encode_references import EncodeReferences

    return EncodeReferences.execute(
        clip=clip, prompt=prompt, width=WIDTH, height=HEIGHT, length=length, ref_image_size=mode,
        vae=rules.CellVAE() if vae else None, audio_vae=StandInAudioVAE() if audio_vae else None,
        **on_sockets(sockets), **on_chain(chain), **more,
    )  # fmt: skip


def same_blocks(ours: list[dict], expected: list[dict]) -> None:
    assert [block["kind"] for block in ours] == [block["kind"] for block in expected]
    for found, wanted in zip(ours, expected, strict=True):
        assert set(found) == set(wanted)
        for key, value in wanted.items():
            if not isinstance(value, torch.Tensor):
                assert found[key] == value, key
                continue
            assert (found[key].shape, found[key].dtype) == (value.shape, value.dtype), key
            assert torch.allclose(found[key], value, rtol=0, atol=1e-3 if key == "audio_latent" else 0), key


@pytest.mark.parametrize(("sockets", "chain", "mode", "vae", "audio_vae"), CASES)
def test_conditioning_is_what_the_rules_say(tiny_clip, sockets, chain, mode, vae, audio_vae):
    from h3te import encoder

    length = 39 if "V" in chain else 22
    output = encode(tiny_clip, PROMPT, sockets, chain, mode, vae, audio_vae, length)
    request = [GIVEN[name] for name in sockets + chain]
    ((hidden, extras),) = output.args[0][0]
    direct = tiny_clip.encoder.encode(
        PROMPT, rules.expected_references(request, encoder, mode, (WIDTH, HEIGHT), length)
    )
    assert torch.equal(hidden, direct.hidden.float())
    assert torch.equal(extras["minimax_token_tags"], direct.token_tags)
    assert extras["pooled_output"] is None
    blocks = rules.expected_blocks(request, mode, (WIDTH, HEIGHT), length, vae, audio_vae)
    assert set(extras) == {"pooled_output", "minimax_token_tags", "h3te"} | ({"minimax_refs"} if blocks else set())
    same_blocks(extras.get("minimax_refs", []), blocks)
    steps, sounding = (length - 5) // 17 * 5 + 2, round(length / 24 * 40)
    shapes = [tuple(part.shape) for part in output.args[1][0]["samples"].tensors]
    assert shapes == [(1, 24, steps, HEIGHT // 16, WIDTH // 16), (1, 32, 2, sounding)]
    assert labels_of(output.args[2][0]) == rules.expected_labels(request, length) + PROMPT
    preview = encode(tiny_clip, PROMPT, sockets, chain, mode, vae, audio_vae, length, preview_only=True)
    assert preview.args[2] == output.args[2]
    assert f"{len(direct.token_ids)} tokens in all" in preview.ui["text"][0]


def labels_of(presentation: str) -> str:
    """The presentation without its vision blocks."""
    parts = presentation.split("<|vision_start|>")
    return parts[0] + "".join(part.split("<|vision_end|>")[1] for part in parts[1:])


def test_there_are_enough_cases_and_every_pair_of_kinds_in_both_orders():
    assert len(CASES) >= 200
    pairs = {pair for _, chain, *_ in CASES for pair in itertools.pairwise(chain)}
    assert pairs >= {pair for pair in itertools.permutations(GIVEN, 2) if set(pair) != set("Aa")}
    assert {case[2:] for case in CASES} == {(mode, *present) for mode in MODES for present in PRESENT}


@pytest.mark.parametrize("chain", ["P", "AWPpV", "pA", "wS"])
def test_prompts_of_a_list_give_what_each_gives_alone(tiny_clip, chain):
    prompts = ["", "a fox", "a fox <d>hi</d> <Picture 1>"]
    asked = {"mode": "match", "vae": True, "audio_vae": True, "length": 39}
    together = encode([tiny_clip], prompts, "", chain, **asked).args[:3]
    assert [len(values) for values in together] == [3, 3, 3]
    for prompt, conditioning, latent, text in zip(prompts, *together, strict=True):
        alone = encode(tiny_clip, prompt, "", chain, **asked).args
        ((hidden, extras),) = conditioning
        ((alone_hidden, alone_extras),) = alone[0][0]
        assert torch.equal(hidden, alone_hidden)
        assert set(extras) == set(alone_extras)
        assert torch.equal(extras["minimax_token_tags"], alone_extras["minimax_token_tags"])
        same_blocks(extras.get("minimax_refs", []), alone_extras.get("minimax_refs", []))
        assert text == alone[2][0]
        assert [part.shape for part in latent["samples"].tensors] == [
            part.shape for part in alone[1][0]["samples"].tensors
        ]


def test_order_changes_what_the_encoder_reads(tiny_clip):
    asked = {"mode": "match", "vae": True, "audio_vae": True, "length": 22}
    first, second = (encode(tiny_clip, PROMPT, "", chain, **asked).args[0][0][0][0] for chain in ("PS", "SP"))
    assert first.shape == second.shape
    assert not torch.equal(first, second)
