"""Lists of prompts at Encode Prompt + Reference Image: lists out, references shared, what the node says of them."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.test_encode_references import SIZE, encode, refs  # noqa: F401 (fixture)


@pytest.fixture
def encode_list(comfy, tiny_clip):  # noqa: F811
    """The node called as ComfyUI calls it, with lists: its outputs and the node text."""
    from h3te.nodes.encode_references import EncodeReferences

    def run(**inputs):
        output = EncodeReferences.execute(**{"clip": [tiny_clip], **{k: [v] for k, v in SIZE.items()}, **inputs})
        return output.args, output.ui["text"][0]

    return run


def test_list_of_prompts_gives_a_list_of_everything(encode, encode_list):  # noqa: F811
    prompts = ["a fox", "a <Picture 1>", ""]
    images = {"ref_image_0": [picture(1)]}
    (positive, latents, shown, _), said = encode_list(prompt=prompts, vae=[StandInVAE()], ref_images=images)
    assert len(positive) == len(latents) == len(shown) == 3
    for prompt, conditioning, text in zip(prompts, positive, shown, strict=True):
        alone, _, alone_text, _ = encode(prompt, vae=StandInVAE(), ref_images={"ref_image_0": picture(1)})
        assert torch.equal(conditioning[0][0], alone[0][0])
        assert text == alone_text
        assert refs(conditioning)[0]["latent"] is refs(positive[0])[0]["latent"]  # encoded once
    assert said.startswith("3 prompts")
    assert said.count("Picture 1 = ref_image_0") == 1


def test_list_of_chains_gives_each_prompt_its_own(encode_list):
    from h3te.nodes.chains import ImageItem

    chains = [(ImageItem(picture(1)),), (ImageItem(picture(2)), ImageItem(picture(3)))]
    (positive, *_), said = encode_list(prompt=["a fox"], vae=[StandInVAE()], references=chains)
    assert [len(refs(conditioning)) for conditioning in positive] == [1, 2]
    assert "2: Picture 2 = reference image" in said


def test_warnings_of_every_prompt_come_before_what_is_only_said(encode_list):
    lengths = [22, 23]
    _, said = encode_list(prompt=["a fox"], length=lengths, ref_images={"ref_image_0": [picture(1)]})
    lines = said.splitlines()
    assert lines[:3] == [
        "2 prompts",
        "no VAE: references condition the text only",
        "2: length 23 became 39: 17k + 5 frames",
    ]
    assert lines.count("no VAE: references condition the text only") == 1


def test_of_list_numbers_what_differs_and_says_the_rest_once(comfy):  # noqa: F811
    from h3te.nodes.host.report import of_list

    assert of_list([["a", "b"]], [["w"]]) == ["w", "a", "b"]
    assert of_list([["a"]]) == ["a"]
    assert of_list([["a", "b"], ["a", "c"]], [["w"], []]) == ["2 prompts", "1: w", "a", "1: b", "2: c"]
