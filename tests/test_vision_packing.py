"""The two ways to call the vision tower: all references of a modality at once, as released, or one by one."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import ImageReference, load_encoder
from h3te.encoder.pixels import image_patches
from h3te_tests.golden_cases import CASES, pattern, references, relative_error
from h3te_tests.tiny_weights import TAP_LAYER

SEEN = [name for name, case in CASES.items() if case.get("references")]


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint, tokenizer_folder):
    return load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)


def per_reference(encoder, prompt, given) -> torch.Tensor:
    return encoder.encode(prompt, given, vision_packing="per_reference").hidden


@pytest.mark.parametrize("name", SEEN)
def test_one_by_one_equals_together_but_for_the_last_bits(encoder, name):
    case = CASES[name]
    together = encoder.encode(case["prompt"], references(case)).hidden
    assert relative_error(per_reference(encoder, case["prompt"], references(case)), together) < 1e-5


def test_neighbours_never_change_the_features_of_a_reference(encoder):
    encoder.materialise()
    tower = encoder.model.visual
    seen = [image_patches(torch.from_numpy(pattern(h, w, h))) for h, w in ((96, 128), (64, 160), (160, 64))]
    grids = [tuple(patches.grid_thw[0].tolist()) for patches in seen]
    calls = [(patches.pixel_values, [grid]) for patches, grid in zip(seen, grids, strict=True)]
    for features, call in zip(tower.see(list(calls)), calls, strict=True):
        alone = tower(*call)
        assert torch.equal(features.merged, alone.merged)
        assert all(map(torch.equal, features.deepstack, alone.deepstack))


def test_all_references_share_one_pass_over_the_blocks(encoder):
    calls = []
    given = [ImageReference(pattern(64, 64, seed)) for seed in range(3)]
    encoder.encode("a", given, vision_packing="per_reference", progress=lambda *call: calls.append(call))
    depth = encoder.config.vision.depth
    assert [done for done, _, _ in calls] == list(range(1, depth + TAP_LAYER + 1))
    assert {total for _, total, _ in calls} == {depth + TAP_LAYER}


def test_unknown_packing_is_refused(encoder):
    with pytest.raises(ValueError, match="expected vision_packing to be one of official, per_reference, got 'both'"):
        encoder.encode("a", vision_packing="both")
