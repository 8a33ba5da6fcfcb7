"""Show Presentation: what the encoder would read, from sizes alone, with any CLIP or none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from h3te_tests.comfy_host import comfy, picture, sound, tiny_clip  # noqa: F401 (fixtures)
from PIL import Image

SIZE = {"width": 256, "height": 192, "length": 22}


@pytest.fixture
def show(comfy, monkeypatch, tmp_path):  # noqa: F811
    """The node called with plain values: its outputs and node text."""
    import folder_paths
    from h3te.nodes.show_presentation import ShowPresentation

    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path))

    def run(prompt="a fox", **inputs):
        output = ShowPresentation.execute(prompt=prompt, **{**SIZE, **inputs})
        return output.args, output.ui

    return run


@pytest.fixture
def no_weights(monkeypatch):
    """Weights are neither mapped nor placed, and nothing is resized to be seen."""
    from h3te.encoder import Encoder, pixels
    from h3te.nodes.host import local_computing

    def refused(*_, **__):
        raise AssertionError("a preview needs no weights and no patches")

    for owner, name in ((Encoder, "materialise"), (pixels, "_patchify"), (local_computing.LocalComputing, "load")):
        monkeypatch.setattr(owner, name, refused)


def test_without_a_clip_it_reads_as_the_encoder_does(show, no_weights, tokenizer_folder):
    from h3te.encoder import ImageReference
    from h3te.encoder.presentation_layout import lay_out
    from h3te.encoder.tokens import H3Tokenizer, tokenize

    (pictures, texts, tokens), ui = show(ref_images={"ref_image_0": picture(1, 96, 128)})
    layout = lay_out("a fox", [ImageReference(torch.zeros(96, 128, 3))])
    assert tokens == [len(tokenize(layout, H3Tokenizer.from_folder(tokenizer_folder)))]
    assert texts == ["<Picture 1>: <|vision_start|>[image, 20x14 patches, 70 tokens]<|vision_end|>a fox"]
    assert f"preview, nothing encoded: {tokens[0]} tokens in all: Picture 1 " in ui["text"][0]
    assert "cache: told when a text encoder is connected" in ui["text"][0]
    assert pictures[0].shape[0] == 1 and pictures[0].shape[-1] == 3 and pictures[0].dtype == torch.float32


def test_picture_is_shown_on_the_node_as_it_is_given(show, tmp_path):
    (pictures, *_), ui = show()
    (shown,) = ui["images"]
    assert shown["type"] == "temp"
    saved = np.asarray(Image.open(tmp_path / shown["subfolder"] / shown["filename"]))
    assert torch.allclose(torch.from_numpy(saved.copy()).float() / 255, pictures[0][0], atol=1.01 / 255)


def test_thumbnail_is_the_picture_that_was_given(show):
    plain = torch.tensor([0.0, 1.0, 0.0]).expand(1, 900, 1200, 3)
    (pictures, *_), _ = show(ref_images={"ref_image_0": plain})
    green = (pictures[0][0] == torch.tensor([0.0, 1.0, 0.0])).all(-1)
    assert int(green.sum()) > 5000


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_thumbnail_of_a_keyframe_is_fitted_as_the_keyframe_is(comfy, fit):  # noqa: F811
    from h3te.nodes.chains import KeyframeItem
    from h3te.nodes.host.keyframes import fit_keyframes
    from h3te.nodes.host.references import Target

    halves = torch.zeros(1, 600, 200, 3)
    halves[:, :300] = 1.0
    items, target = [KeyframeItem(halves, 0, fit, pad_colour=(9, 9, 9))], Target(512, 256, 22)
    (real,), (outline,) = fit_keyframes(items, target), fit_keyframes(items, target, outlines=True)
    small = outline.small[0].permute(2, 0, 1)[None].float()
    wanted = torch.nn.functional.interpolate(
        real.pixels.permute(2, 0, 1)[None].float(), small.shape[-2:], mode="bilinear", antialias=True
    )
    assert outline.pixels.shape == real.pixels.shape
    assert float((small - wanted).abs().mean()) < 3


def test_keyframes_read_as_the_keyframe_node_does(show, no_weights, comfy, tiny_clip):  # noqa: F811
    (_, texts, _), ui = show(first_frame=picture(1), last_frame=picture(2), clip=tiny_clip)
    block = "<|vision_start|>[image, 20x14 patches, 70 tokens]<|vision_end|>"
    assert texts == [f"<Picture 1>: {block}<Picture 2>: {block}a fox"]
    assert "keyframes: first_frame at frame 0 (0.00 s), <Picture 1>; last_frame at frame 21" in ui["text"][0]


def test_canvas_of_the_first_image_is_taken(show):
    (_, texts, _), ui = show(first_frame=picture(1, 60, 80), canvas="first image")
    assert "64x48 patches" in texts[0]
    assert "canvas 1024x768 from first_frame (80x60)" in ui["text"][0]


@pytest.mark.parametrize(
    ("references", "named"),
    [
        ({"ref_images": {"ref_image_0": picture(1)}}, "ref_images.ref_image_0"),
        ({"ref_audios": {"ref_audio_2": sound()}}, "ref_audios.ref_audio_2"),
        ({"references": ()}, "references"),
    ],
)
@pytest.mark.parametrize("keyframes", [{"first_frame": picture(2)}, {"keyframes": ()}])
def test_references_with_keyframes_are_refused_by_name(show, references, named, keyframes):
    told = rf"^Show Presentation \(H3TE\): expected references or keyframes, got {named} and {next(iter(keyframes))}\. "
    with pytest.raises(ValueError, match=told + "Unlink one kind"):
        show(**references, **keyframes)


def test_errors_of_inputs_are_those_of_the_encode_nodes(show):
    with pytest.raises(ValueError, match=r"^Show Presentation \(H3TE\), ref_image_size: expected match or max"):
        show(ref_image_size="huge")
    with pytest.raises(ValueError, match=r"^MiniMax H3 CLIP: expected one string as the prompt, got int"):
        show(prompt=3)
    with pytest.raises(ValueError, match=r"^prompt 2 of 2: MiniMax H3 CLIP: expected one string as the prompt"):
        show(prompt=["a", 3])
    with pytest.raises(ValueError, match=r"^ref_image_0: expected finite pixels, got NaN or infinity"):
        show(ref_images={"ref_image_0": torch.full((1, 64, 64, 3), float("nan"))})
    with pytest.raises(ValueError, match=r"^Show Presentation \(H3TE\): expected a MiniMax H3 text encoder on clip"):
        show(clip=object())


def test_costs_are_those_with_vaes(show):
    _, ui = show(ref_images={"ref_image_0": picture(1, 128, 96)}, ref_audios={"ref_audio_0": sound(2.0)})
    assert "12 tokens in every sampling step" in ui["text"][0]
    assert "160 tokens in every sampling step" in ui["text"][0]
    assert "no VAE" not in ui["text"][0]


def test_warnings_come_first(show):
    _, ui = show("((fox)) <Picture 4> <d>", width=250, length=600)
    lines = ui["text"][0].splitlines()
    told = (
        "size 250x192 became 256x192",
        "length 600 is beyond the trained 362 frames",
        "((fox))",
        "<Picture 4>",
        "<d>",
    )
    assert [line.startswith(start) for line, start in zip(lines, told, strict=False)] == [True] * 5


def test_what_is_seen_much_smaller_or_larger_is_said_by_how_much(comfy):  # noqa: F811
    from h3te.nodes.chains import ImageItem
    from h3te.nodes.host.references import Target, prepare
    from h3te.nodes.host.report_references import about_sizes

    sides = ((1000, 1000), (100, 100), (250, 260))
    items = [ImageItem(torch.zeros(1, h, w, 3), where=f"{w}") for h, w in sides]
    assert about_sizes(prepare(items, Target(512, 512, 22), "match", outlines=True)) == [
        "seen smaller than it arrived: Picture 1 at 26 % of its pixels",
        "seen larger than it arrived: Picture 2 at 6.6 times its pixels",
    ]


def test_lists_give_one_value_a_prompt_and_at_most_sixteen_pictures(show):
    prompts = [f"fox {i}" for i in range(20)]
    (pictures, texts, tokens), ui = show(prompt=prompts, ref_images={"ref_image_0": [picture(1)]})
    assert (len(pictures), len(texts), len(tokens)) == (16, 20, 20)
    assert all(text.endswith(prompt) for text, prompt in zip(texts, prompts, strict=True))
    assert "pictures of the first 16 prompts" in ui["text"][0]
    assert len(ui["images"]) == 16


def test_large_pictures_are_looked_at_and_not_converted(comfy):  # noqa: F811
    """One byte stands for all pixels of an outline; the largest of what is made is a thumbnail."""
    from h3te.nodes.chains import ImageItem, VideoItem
    from h3te.nodes.host.outline import LITTLE
    from h3te.nodes.host.references import Target, prepare

    image = torch.zeros(1, dtype=torch.float32).expand(2, 3000, 4000, 3)
    frames = torch.zeros(1, dtype=torch.float32).expand(100, 1080, 1920, 3)
    made = prepare([ImageItem(image), VideoItem(frames)], Target(1344, 768, 90), "official", outlines=True)
    assert [tuple(each.pixels.shape) for each in made] == [(2048, 2720, 3)] * 2 + [(90, 768, 1344, 3)]
    assert all(each.pixels.untyped_storage().nbytes() == 1 for each in made)
    assert [len(each.small) for each in made] == [1, 1, 4]
    assert all(max(each.small.shape[1:3]) <= LITTLE for each in made)


def test_page_and_node_say_that_comfyuis_own_clip_reads_by_its_rule(comfy):  # noqa: F811
    from h3te.nodes.host.any_clip import HOSTS_RULE
    from h3te.nodes.host.preview import Ask, laid_out, preview_all

    class Hosts:
        class tokenizer:
            qwen3vl_32b = object()

    given = {"images": [picture(1, 64, 64)]}
    (done,) = preview_all([Ask(Hosts(), "a fox", given)], "Node")
    assert HOSTS_RULE in done.details
    assert done.shown.cache == "ComfyUI's"
    after = laid_out(Ask(Hosts(), "a fox", given), cache="ComfyUI's", seconds=2.0)
    assert after.presentation.segments == done.shown.presentation.segments


def test_the_node_is_in_the_menu_as_an_output(comfy):  # noqa: F811
    from h3te.nodes.show_presentation import ShowPresentation

    assert ShowPresentation.GET_NODE_INFO_V1()["output_node"] is True
