"""preview_only of the encode nodes: the presentation is given, what follows on conditioning and latent is blocked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from h3te_tests.cache_host import load, user  # noqa: F401 (fixtures)
from h3te_tests.comfy_host import StandInVAE, comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.demo_host import demo_file, text_encoders  # noqa: F401 (fixtures)

SIZE = {"width": 256, "height": 192, "length": 22}


class Node:
    """One of the encode nodes, called with plain values and a picture of its kind."""

    def __init__(self, kind: str):
        from h3te.nodes.encode_keyframes import EncodeKeyframes
        from h3te.nodes.encode_references import EncodeReferences

        self.kind = kind
        self.node = EncodeReferences if kind == "references" else EncodeKeyframes

    def __call__(self, image=None, **inputs):
        image = picture(1) if image is None else image
        given = {"ref_images": {"ref_image_0": image}} if self.kind == "references" else {"first_frame": image}
        return self.node.execute(**{"prompt": "a fox", **SIZE, **given, **inputs})


@pytest.fixture(params=["references", "keyframes"])
def run(comfy, request, monkeypatch, tmp_path):  # noqa: F811
    import folder_paths

    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path))
    return Node(request.param)


def is_blocked(values) -> list[bool]:
    from comfy_execution.graph_utils import ExecutionBlocker

    return [isinstance(value, ExecutionBlocker) and value.message is None for value in values]


def test_nothing_is_encoded_and_nothing_after_it_runs(run, tiny_clip, monkeypatch):  # noqa: F811
    vae = StandInVAE()
    monkeypatch.setattr(vae, "encode", lambda _: pytest.fail("a preview encodes no picture"))
    output = run(clip=tiny_clip, vae=vae, preview_only=True)
    assert is_blocked(output.args[0]) == is_blocked(output.args[1]) == [True]
    assert not tiny_clip.encoder.is_loaded
    assert output.ui["text"][0].startswith("preview, nothing encoded: ")
    assert len(output.ui["images"]) == 1


def test_it_shows_what_the_encode_reads(run, tiny_clip):  # noqa: F811
    preview, encoded = run(clip=tiny_clip, preview_only=True), run(clip=tiny_clip)
    assert preview.args[2:-1] == encoded.args[2:-1]  # presentation; width, height and length where they exist
    assert is_blocked(encoded.args[0]) == [False]
    assert "images" not in encoded.ui  # on an encode the picture is an output
    assert encoded.args[-1][0].shape[-1] == preview.args[-1][0].shape[-1] == 3
    total = encoded.ui["text"][0].split(" tokens in all")[0].split()[-1]
    assert f"nothing encoded: {total} tokens in all" in preview.ui["text"][0]


def test_thumbnails_of_the_preview_are_those_of_the_encode(run, tiny_clip):  # noqa: F811
    """Given a picture that has the size at which it is seen, to the pixel; the rest of the page may differ."""
    from h3te.nodes.chains import ImageItem
    from h3te.nodes.host import pictures
    from h3te.nodes.host.references import Target, prepare

    items = [ImageItem(picture(1, 192, 256))]
    (real,), (outline,) = (prepare(items, Target(256, 192, 22), "match", outlines=o) for o in (False, True))
    (one,), (other,) = pictures.thumbnails(real), pictures.thumbnails(outline)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("value", ["false", 1, None])
def test_switch_takes_true_and_false_alone(run, tiny_clip, value):  # noqa: F811
    with pytest.raises(ValueError, match=r"^Encode .* \(H3TE\), preview_only: expected True or False, got"):
        run(clip=tiny_clip, preview_only=value)


def test_list_of_switches_previews_some_and_encodes_others(run, tiny_clip):  # noqa: F811
    asked = {"clip": [tiny_clip], "prompt": ["a fox", "a hen", "an owl"], "vae": [StandInVAE()]}
    output = run(**asked, preview_only=[True, False, True])
    assert is_blocked(output.args[0]) == is_blocked(output.args[1]) == [True, False, True]
    alone = run(clip=tiny_clip, prompt="a hen")
    assert torch.equal(output.args[0][1][0][0], alone.args[0][0][0][0])
    assert [text.endswith(p) for text, p in zip(output.args[2], asked["prompt"], strict=True)] == [True] * 3


def test_a_list_has_at_most_sixteen_pictures_and_the_node_says_so(run, tiny_clip):  # noqa: F811
    output = run(clip=[tiny_clip], prompt=[f"fox {i}" for i in range(18)], preview_only=[True])
    assert len(output.args[-1]) == 16
    assert len(output.args[0]) == 18
    assert "pictures of the first 16 prompts" in output.ui["text"][0]


# what the caches would make of it


def expected(run, clip, **inputs) -> str:
    text = run(clip=clip, preview_only=True, **inputs).ui["text"][0]
    return next(line for line in text.splitlines() if "nothing encoded" in line).split("cache: ")[1]


def status(run, clip, **inputs) -> str:
    text = run(clip=clip, **inputs).ui["text"][0]
    return next(line for line in text.splitlines() if "tokens in all" in line).split("cache: ")[1]


def test_preview_says_what_the_encode_then_says(run, load):  # noqa: F811
    clip, image = load().args[0], picture(7, 192, 256)
    assert expected(run, clip, image=image) == "would be: miss"
    assert status(run, clip, image=image) == "miss"
    assert expected(run, clip, image=image) == "would be: hit (RAM)"
    assert status(run, clip, image=image) == "hit (RAM)"
    longer = {"image": image, "prompt": "a fox, and then a long way through the snow " * 4}
    told = expected(run, clip, **longer)
    assert told.startswith("would be: prefix ")
    assert f"would be: {status(run, clip, **longer)}".startswith(told)


def test_pictures_that_were_not_encoded_are_not_guessed(run, load):  # noqa: F811
    """Equal pixels in another tensor are not compared, and a change in place is another picture."""
    clip, image = load().args[0], picture(7, 192, 256)
    status(run, clip, image=image)
    new = "told at the encode: these pictures were not encoded in this session"
    assert expected(run, clip, image=image.clone()) == new
    image[0, 0, 0, 0] = 1 - image[0, 0, 0, 0]
    assert expected(run, clip, image=image) == new


def test_nothing_kept_is_a_miss_without_a_look_at_the_checkpoint(run, load, monkeypatch):  # noqa: F811
    from h3te.nodes.host.tree import HostTree

    clip = load().args[0]
    monkeypatch.setattr(HostTree, "identity", lambda _: pytest.fail("the checkpoint is not read to find that out"))
    assert expected(run, clip) == "would be: miss"


def test_prefixes_of_a_worker_are_not_guessed(run, load):  # noqa: F811
    clip, image = load().args[0], picture(7, 192, 256)
    status(run, clip, image=image)
    clip.patcher.model.remote = SimpleNamespace(backend="encoder")
    assert expected(run, clip, image=image) == "would be: hit (RAM)"
    assert expected(run, clip, image=image, prompt="other") == "would be: no hit; prefixes are the worker's"


def test_a_clip_without_caches_says_none(run, tiny_clip):  # noqa: F811
    assert expected(run, tiny_clip) == "none"


def test_a_preview_touches_nothing_that_is_kept(run, load):  # noqa: F811
    from h3te.nodes.host import caches

    clip = load().args[0]
    status(run, clip)
    before = {key: held.used for key, held in caches.conditioning_store()._memory.entries().items()}
    clock = next(caches.prefix_store()._clock)
    expected(run, clip)
    assert {key: held.used for key, held in caches.conditioning_store()._memory.entries().items()} == before
    assert next(caches.prefix_store()._clock) == clock + 1


def test_pictures_for_a_checkpoint_without_vision_are_said_before_the_encode(run, tiny_clip, monkeypatch):  # noqa: F811
    from dataclasses import replace

    monkeypatch.setattr(tiny_clip.encoder, "config", replace(tiny_clip.encoder.config, vision=None))
    assert "this checkpoint has no vision tower" in run(clip=tiny_clip, preview_only=True).ui["text"][0]
    with pytest.raises(ValueError, match="has no vision tower"):
        run(clip=tiny_clip)
    without = {"ref_images": None} if run.kind == "references" else {"first_frame": None}
    assert "vision tower" not in run(clip=tiny_clip, preview_only=True, **without).ui["text"][0]
