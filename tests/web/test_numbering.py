"""Which references a request will have, read off the canvas: every modality, chains, switches, what cannot be told."""

from __future__ import annotations

import pytest
from web_page import ComfyPage

FREE, NAMED, LACKING, UNSURE = "free", "named", "lacking", "unsure"
MUTED, BYPASSED = 2, 4  # modes of nodes


@pytest.fixture
def page(open_page) -> ComfyPage:
    """One mode: the rules do not ask how nodes are drawn."""
    opened = open_page()
    opened.clear()
    return opened


@pytest.fixture
def node(page: ComfyPage) -> int:
    return page.add("H3TEEncodeReferences", (900, 80))


def labels(page: ComfyPage, node: int) -> list[str]:
    page.settle(500)
    return [chip["label"] for chip in page.chips(node)]


def image(page: ComfyPage, file: str = "rubber_duck.jpg") -> int:
    return page.add("LoadImage", (60, 80), image=file)


def batch(page: ComfyPage) -> int:
    return page.add("EmptyImage", (60, 80))


def sound(page: ComfyPage) -> int:
    return page.add("EmptyAudio", (60, 500))


def test_soundtracks_are_numbered_with_their_videos_and_before_sounds(page, node):
    page.link(batch(page), node, "ref_videos.ref_video_0")
    page.settle(300)
    page.link(batch(page), node, "ref_videos.ref_video_1")
    voice = sound(page)
    page.link(voice, node, "ref_audios.ref_audio_0")
    assert labels(page, node) == ["<Video 1>", "<Video 2>", "<Audio 1>"]
    page.link(voice, node, "ref_video_audios.ref_video_audio_0")
    assert labels(page, node) == ["<Video 1>", "<Video 2>", "<Audio 1>", "<Audio 2>"]
    told = {chip["label"]: chip["told"] for chip in page.chips(node)}
    assert "ref_video_audio_0" in told["<Audio 1>"]
    assert "ref_audio_0" in told["<Audio 2>"]


def test_a_batch_is_at_least_one_picture_and_no_claim_is_made_beyond(page, node):
    page.link(batch(page), node, "ref_images.ref_image_0")
    page.type(node, "<Picture 1> <Picture 2> <Picture 0> <Video 1>")
    page.wait_for_chips(
        node, [("<Picture 1>", NAMED), ("<Picture 2>", UNSURE), ("<Picture 0>", LACKING), ("<Video 1>", LACKING)]
    )


def test_muted_nodes_give_nothing_and_bypassed_ones_what_they_take(page, node):
    loaded, scaled = image(page), page.add("ImageScale", (400, 80))
    page.link(loaded, scaled, "image")
    page.link(scaled, node, "ref_images.ref_image_0")
    assert labels(page, node) == ["<Picture 1>"]
    page.set_mode(scaled, BYPASSED)
    page.settle(500)
    assert "rubber_duck.jpg" in page.chips(node)[0]["told"]
    page.set_mode(loaded, MUTED)
    assert labels(page, node) == []


def test_reroutes_are_followed(page, node):
    loaded, reroute = image(page), page.add("Reroute", (500, 80))
    page.link(loaded, reroute, "")
    page.link(reroute, node, "ref_images.ref_image_0")
    page.settle(500)
    assert "rubber_duck.jpg" in page.chips(node)[0]["told"]


def test_a_chain_comes_after_the_sockets_in_its_own_order(page, node):
    first = page.add("H3TEReferenceVideo", (300, 80), with_sound=True)
    second = page.add("H3TEReferenceImage", (500, 80))
    third = page.add("H3TEReferenceAudio", (700, 80))
    page.link(batch(page), first, "frames")
    page.link(sound(page), first, "soundtrack")
    page.link(image(page), second, "image")
    page.link(sound(page), third, "audio")
    page.link(first, second, "references")
    page.link(second, third, "references")
    page.link(third, node, "references")
    page.link(image(page, "lighthouse.jpg"), node, "ref_images.ref_image_0")
    assert labels(page, node) == ["<Picture 1>", "<Picture 2>", "<Video 1>", "<Audio 1>", "<Audio 2>"]
    told = {chip["label"]: chip["told"] for chip in page.chips(node)}
    assert "lighthouse.jpg" in told["<Picture 1>"]
    assert "rubber_duck.jpg" in told["<Picture 2>"]
    page.set(first, "with_sound", False)
    assert labels(page, node) == ["<Picture 1>", "<Picture 2>", "<Video 1>", "<Audio 1>"]


def test_the_sound_of_a_video_file_is_not_claimed(page, node):
    video = page.add("H3TEReferenceVideo", (300, 80))
    page.link(page.add("LoadVideo", (60, 80)), video, "video")
    page.link(video, node, "references")
    page.type(node, "<Video 1> <Audio 1> <Picture 1>")
    page.wait_for_chips(node, [("<Video 1>", NAMED), ("<Audio 1>", UNSURE), ("<Picture 1>", LACKING)])


def test_a_chain_of_other_nodes_may_bring_anything(page, node):
    reroute = page.add("Reroute", (500, 80))
    page.link(reroute, node, "references")
    page.type(node, "<Picture 1>")
    page.wait_for_chips(node, [("<Picture 1>", LACKING)])  # nothing at its other end


def test_keyframes_are_first_last_and_those_of_the_chain_that_are_shown(page):
    node = page.add("H3TEEncodeKeyframes", (900, 80))
    shown, hidden = page.add("H3TEKeyframe", (300, 80)), page.add("H3TEKeyframe", (600, 80), show_to_encoder=False)
    page.link(image(page), shown, "image")
    page.link(image(page), hidden, "image")
    page.link(shown, hidden, "keyframes")
    page.link(hidden, node, "keyframes")
    page.link(image(page, "harbour_day.jpg"), node, "last_frame")
    assert labels(page, node) == ["<Picture 1>", "<Picture 2>"]
    assert "last_frame" in page.chips(node)[0]["told"]
    page.link(image(page, "harbour_dawn.jpg"), node, "first_frame")
    assert labels(page, node) == ["<Picture 1>", "<Picture 2>", "<Picture 3>"]
    assert "first_frame" in page.chips(node)[0]["told"]


def test_a_keyframe_whose_switch_is_linked_is_not_claimed(page):
    node, keyframe = page.add("H3TEEncodeKeyframes", (900, 80)), page.add("H3TEKeyframe", (300, 80))
    page.link(image(page), keyframe, "image")
    page.link(keyframe, node, "keyframes")
    page.type(node, "<Picture 1>")
    page.wait_for_chips(node, [("<Picture 1>", NAMED)])
    page.link(page.add("PrimitiveBoolean", (60, 600)), keyframe, "show_to_encoder")
    page.wait_for_chips(node, [("<Picture 1>", UNSURE)])
