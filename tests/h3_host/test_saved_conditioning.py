"""The host's own H3 model samples to the bit alike on conditioning that was saved and loaded."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.conditioning_files import assert_same, folders  # noqa: F401 (fixture)
from h3te_tests.h3_host.located_vaes import LocatedAudioVAE, LocatedVAE
from h3te_tests.h3_host.requests import CASES, noise, ours, theirs
from h3te_tests.h3_host.test_sampler import differ, dit, equal, sample  # noqa: F401 (fixtures)


@pytest.fixture
def through_a_file(folders):  # noqa: F811
    from h3te.nodes.load_conditioning import LoadConditioning
    from h3te.nodes.save_conditioning import SaveConditioning

    return lambda positive: LoadConditioning.execute(SaveConditioning.execute(positive).args[1]).args[0]


@pytest.mark.parametrize("name", CASES)
def test_loaded_conditioning_samples_as_the_saved_one(sample, tiny_clip, through_a_file, name):  # noqa: F811
    positive, latent = ours(name, tiny_clip)
    again = through_a_file(positive)
    assert_same(again, positive)
    assert equal(sample(again, latent), sample(positive, latent))


def test_the_models_inputs_are_the_same_to_the_bit(dit, tiny_clip, through_a_file):  # noqa: F811
    """What the host makes of CONDITIONING before the first step."""
    positive, latent = ours("image, video with soundtrack, sound", tiny_clip)
    made = []
    for given in (positive, through_a_file(positive)):
        hidden, extras = given[0]
        made.append(
            dit.model.extra_conds(
                cross_attn=hidden, noise=latent["samples"], device=torch.device("cpu"), **{**extras, "hooks": None}
            )
        )
    assert made[0].keys() == made[1].keys()
    for key, first in made[0].items():
        assert_same_cond(first.cond, made[1][key].cond)


def assert_same_cond(a, b) -> None:
    if isinstance(a, (torch.Tensor, list, tuple, dict)):
        assert_same(a, b)
    else:
        assert repr(a) == repr(b)


def test_hosts_own_conditioning_with_a_guide_comes_back(sample, h3, tiny_clip, through_a_file):  # noqa: F811
    positive, latent = theirs(h3, "first frame", tiny_clip)
    given = {"vae": LocatedVAE(), "audio_vae": LocatedAudioVAE(), "image": picture(6, 96, 64), "audio": noise(7, 0.3)}
    guided = h3.MiniMaxH3AddGuide.execute(positive, latent, 8, **given).args[0]
    again = through_a_file(guided)
    assert_same(again, guided)
    assert equal(sample(again, latent), sample(guided, latent))
    assert differ(sample(again, latent), sample(positive, latent))


def test_guide_is_added_to_loaded_conditioning(sample, h3, tiny_clip, through_a_file):  # noqa: F811
    positive, latent = ours("prompt", tiny_clip)
    after = [
        h3.MiniMaxH3AddGuide.execute(each, latent, 8, vae=LocatedVAE(), image=picture(6, 96, 64)).args[0]
        for each in (positive, through_a_file(positive))
    ]
    assert equal(sample(after[0], latent), sample(after[1], latent))
