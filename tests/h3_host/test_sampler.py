"""ComfyUI's own H3 diffusion model, shrunken and with random weights, samples on CONDITIONING of our nodes.

Two steps of euler with fixed noise, loaded and run by the host's own functions. Where the geometry of both rules agrees
the latents are bit-equal to those of the host's own nodes with the same CLIP; whatever changes the request changes
them.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.h3_host.located_vaes import LocatedAudioVAE, LocatedVAE
from h3te_tests.h3_host.requests import CASES, CLIP, LARGE, SMALL, VIDEO, frame, images, noise, ours, theirs
from h3te_tests.h3_host.tiny_dit import tiny_dit_weights
from h3te_tests.tiny_weights import tiny_config
from safetensors.torch import save_file

STEPS = 2
TEXT_DIM = tiny_config()["text_config"]["hidden_size"]


@pytest.fixture(scope="session")
def dit(h3, comfy, tmp_path_factory):  # noqa: F811
    """The shrunken model as the host's own loader opens its file."""
    file = tmp_path_factory.mktemp("dit") / "minimax_h3_tiny.safetensors"
    save_file(tiny_dit_weights(TEXT_DIM), file)
    return comfy.sd.load_diffusion_model(str(file))


@pytest.fixture
def sample(h3, dit):
    """(CONDITIONING, LATENT) -> the two sampled latents, video and audio."""
    from comfy_extras import nodes_custom_sampler as nodes

    def run(positive: list, latent: dict) -> SimpleNamespace:
        chosen = [
            nodes.RandomNoise.execute(7),
            nodes.BasicGuider.execute(dit, positive),
            nodes.KSamplerSelect.execute("euler"),
            nodes.BasicScheduler.execute(dit, "simple", STEPS, 1.0),
        ]
        output = nodes.SamplerCustomAdvanced.execute(*(each.args[0] for each in chosen), latent).args[0]
        video, audio = output["samples"].unbind()
        assert video.isfinite().all()
        assert audio.isfinite().all()
        return SimpleNamespace(video=video, audio=audio)

    return run


def equal(a: SimpleNamespace, b: SimpleNamespace) -> bool:
    return torch.equal(a.video, b.video) and torch.equal(a.audio, b.audio)


def differ(a: SimpleNamespace, b: SimpleNamespace) -> bool:
    """In both streams, by more than the last bits that another order of sums can move."""
    return all((x - y).norm() > 1e-4 * y.norm() for x, y in ((a.video, b.video), (a.audio, b.audio)))


def test_loader_takes_every_weight_and_infers_the_sizes(comfy, dit):  # noqa: F811
    model = dit.model.diffusion_model
    assert set(model.state_dict()) == set(tiny_dit_weights(TEXT_DIM))
    assert model.condition_proj.weight.shape[1] == TEXT_DIM
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in tiny_dit_weights(TEXT_DIM).items())


@pytest.mark.parametrize("name", CASES)
def test_latents_are_those_of_the_hosts_node(sample, h3, tiny_clip, name):  # noqa: F811
    assert equal(sample(*ours(name, tiny_clip)), sample(*theirs(h3, name, tiny_clip)))


CHANGES = {
    "another prompt": ("prompt", {}, {"prompt": "a fox says <d>ho</d> near <Picture 1>"}),
    "a dropped image": ("two images", {}, images(SMALL)),
    "images in another order": ("two images", {}, images(LARGE, SMALL)),
    "another size mode": ("two images", {}, {"ref_image_size": "max"}),
    "a dropped soundtrack": ("video with soundtrack", {}, {"ref_video_audios": {}}),
    "another soundtrack": ("video with soundtrack", {}, {"ref_video_audios": {"ref_video_audio_0": noise(9, 1.0)}}),
    "a dropped sound": ("image and sound", {}, {"ref_audios": {}}),
    "frames of the video backwards": ("silent video", {}, {"ref_videos": {"ref_video_0": CLIP.flip(0)}}),
    "no VAE": ("image", {}, {"vae": None}),
    "a dropped last frame": ("first and last frame", {}, {"last_frame": None}),
    "frames exchanged": ("first and last frame", {}, {"first_frame": frame(2), "last_frame": frame(1)}),
    "another fit": ("first frame, stretched", {}, {"fit": "crop"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_latents_follow_the_request(sample, tiny_clip, change):  # noqa: F811
    name, before, after = CHANGES[change]
    assert differ(sample(*ours(name, tiny_clip, **after)), sample(*ours(name, tiny_clip, **before)))


def chain(*items) -> dict:
    return {"references": tuple(items)}


def test_order_across_modalities_reaches_the_sampler(sample, tiny_clip):  # noqa: F811
    from h3te.nodes.chains import AudioItem, ImageItem, VideoItem

    image, video, sound = ImageItem(SMALL), VideoItem(CLIP, soundtrack=noise(4, 1.0)), AudioItem(noise(5, 0.5))
    given = {"ref_videos": {}, "width": 64, "height": 96, "length": 56}
    by_sockets = sample(*ours("image, video with soundtrack, sound", tiny_clip))
    no_sockets = {**given, "ref_images": {}, "ref_video_audios": {}, "ref_audios": {}}
    same_order = ours("image, video with soundtrack, sound", tiny_clip, **no_sockets, **chain(image, video, sound))
    assert equal(sample(*same_order), by_sockets)
    other_order = ours("image, video with soundtrack, sound", tiny_clip, **no_sockets, **chain(sound, video, image))
    assert differ(sample(*other_order), by_sockets)


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_vision_only_reference_is_not_given_to_the_sampler(sample, tiny_clip, kind):  # noqa: F811
    from h3te.nodes.chains import AudioItem, ImageItem, VideoItem

    make = {
        "image": lambda only: ImageItem(SMALL, only),
        "video": lambda only: VideoItem(CLIP, vision_only=only),
        "audio": lambda only: AudioItem(noise(5, 0.5), only),
    }[kind]
    full = ours("image", tiny_clip, **{**VIDEO, "ref_videos": {}}, **chain(make(False)))
    seen = ours("image", tiny_clip, **{**VIDEO, "ref_videos": {}}, **chain(make(True)))
    assert torch.equal(full[0][0][0], seen[0][0][0])  # the text encoder's part is the same
    assert len(full[0][0][1]["minimax_refs"]) == len(seen[0][0][1]["minimax_refs"]) + 1
    assert differ(sample(*full), sample(*seen))


def test_moved_and_hidden_keyframes_reach_the_sampler(sample, tiny_clip):  # noqa: F811
    from h3te.nodes.chains import KeyframeItem

    def with_keyframe(**changes):
        return sample(*ours("first frame", tiny_clip, keyframes=(KeyframeItem(frame(5), **changes),)))

    middle = with_keyframe(frame=10)
    assert differ(with_keyframe(frame=14), middle)
    assert equal(with_keyframe(frame=-12), middle)  # 22 frames
    assert equal(with_keyframe(second=10 / 24), middle)
    assert differ(with_keyframe(frame=10, show=False), middle)


def test_chained_keyframe_is_what_the_hosts_add_guide_adds(sample, h3, tiny_clip):  # noqa: F811
    """Hidden from the encoder, as a guide is: the latents are bit-equal to MiniMaxH3AddGuide after the host's node."""
    from h3te.nodes.chains import KeyframeItem

    positive, latent = theirs(h3, "first frame", tiny_clip)
    guided = h3.MiniMaxH3AddGuide.execute(positive, latent, 10, vae=LocatedVAE(), image=frame(5)).args[0]
    chained = ours("first frame", tiny_clip, keyframes=(KeyframeItem(frame(5), 10, show=False),))
    assert equal(sample(*chained), sample(guided, latent))


@pytest.mark.parametrize("name", ["first frame", "two images", "prompt"])
def test_add_guide_after_ours_is_add_guide_after_theirs(sample, h3, tiny_clip, name):  # noqa: F811
    given = {"vae": LocatedVAE(), "audio_vae": LocatedAudioVAE(), "image": picture(6, 96, 64), "audio": noise(7, 0.3)}
    before = [ours(name, tiny_clip), theirs(h3, name, tiny_clip)]
    guided = [
        (h3.MiniMaxH3AddGuide.execute(positive, latent, 8, **given).args[0], latent) for positive, latent in before
    ]
    after = [sample(*each) for each in guided]
    assert equal(*after)
    assert differ(after[0], sample(*before[0]))
