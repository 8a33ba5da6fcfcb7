"""Odd pictures on every socket: flat, tiny, grey, huge, broken, or no pictures at all; defined, or refused by name."""

from __future__ import annotations

import math

import pytest
import torch
from h3te_tests.comfy_host import StandInVAE, comfy, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.test_reference_limits import encode, items, prepared  # noqa: F401 (fixtures)


@pytest.mark.parametrize("mode", ["match", "max", "official", "none"])
@pytest.mark.parametrize(("height", "width"), [(100, 8000), (8000, 100), (100, 401)])
def test_flat_picture_is_refused_in_every_size_mode(encode, mode, height, width):  # noqa: F811
    flat = torch.zeros(1, height, width, 3)
    with pytest.raises(
        ValueError, match=rf"ref_image_3: expected sides within 1:4 and 4:1, got {width}x{height}\. Crop"
    ):
        encode(ref_images={"ref_image_3": flat}, ref_image_size=mode)


def test_flat_video_is_refused_by_its_socket(encode):  # noqa: F811
    with pytest.raises(ValueError, match=r"ref_video_0: expected sides within 1:4 and 4:1, got 96x16"):
        encode(ref_videos={"ref_video_0": torch.zeros(48, 16, 96, 3)})


def test_four_to_one_is_taken(prepared, items):  # noqa: F811
    assert len(prepared(items.ImageItem(torch.zeros(1, 32, 128, 3)), items.ImageItem(torch.zeros(1, 128, 32, 3)))) == 2


@pytest.mark.parametrize("mode", ["match", "max", "none"])
def test_picture_of_one_pixel_is_taken(encode, mode):  # noqa: F811
    conditioning, said = encode(
        ref_images={"ref_image_0": torch.ones(1, 1, 1, 3)}, vae=StandInVAE(), ref_image_size=mode
    )
    (block,) = conditioning[0][1]["minimax_refs"]
    assert (block["latent_h"], block["latent_w"]) == (2, 2)
    assert float(block["latent"].mean()) == 1
    assert "Picture 1: 72 tokens, seen at 256x256" in said
    assert ("1x1 as it is" if mode == "none" else "1x1 enlarged to 32x32") in said


def test_grey_and_byte_pictures_are_what_their_rgb_floats_are(encode):  # noqa: F811
    grey = (torch.arange(64 * 96).view(1, 64, 96, 1) % 256).to(torch.uint8)
    rgb = grey.expand(-1, -1, -1, 3)
    found = [
        encode(ref_images={"ref_image_0": image})[0][0][0]
        for image in (rgb.float() / 255, rgb, grey, grey.float() / 255, rgb.double() / 255)
    ]
    assert all(torch.equal(found[0], other) for other in found[1:])


NOT_PICTURES = {
    "mask": (torch.zeros(1, 64, 64), r"expected an IMAGE .* got shape \[1, 64, 64\]\. For a mask"),
    "five dimensions": (torch.zeros(1, 1, 64, 64, 3), r"expected an IMAGE .* got shape \[1, 1, 64, 64, 3\]"),
    "empty batch": (torch.zeros(0, 64, 64, 3), r"expected an IMAGE .* no pixels"),
    "no rows": (torch.zeros(48, 0, 64, 3), r"expected an IMAGE .* no pixels"),
    "two channels": (torch.zeros(48, 64, 64, 2), r"expected an IMAGE .* got shape \[[0-9]+, 64, 64, 2\]"),
    "latent": ({"samples": torch.zeros(1)}, r"expected an IMAGE .* got (NoneType|dict)"),
    "text": ("picture.png", r"expected an IMAGE .* got str"),
    "integers": (torch.zeros(48, 64, 64, 3, dtype=torch.int64), "expected uint8 or float 0..1 pixels, got torch.int64"),
    "0..255 floats": (torch.full((48, 64, 64, 3), 200.0), r"expected floats 0\.\.1, got 200\.\.200"),
    "NaN": (torch.full((48, 64, 64, 3), math.nan), "expected finite pixels, got NaN or infinity"),
    "infinity": (torch.full((48, 64, 64, 3), -math.inf), "expected finite pixels, got NaN or infinity"),
}


@pytest.mark.parametrize("name", NOT_PICTURES)
@pytest.mark.parametrize("where", ["ref_image_0", "ref_video_0", "Reference Image", "Reference Video"])
def test_what_is_no_picture_is_refused_by_its_socket(encode, items, name, where):  # noqa: F811
    wrong, got = NOT_PICTURES[name]
    pictures = wrong[:1] if isinstance(wrong, torch.Tensor) else wrong  # 48 pictures would be too many
    inputs = {
        "ref_image_0": {"ref_images": {where: pictures}},
        "ref_video_0": {"ref_videos": {where: wrong}},
        "Reference Image": {"references": (items.ImageItem(pictures, where=where),)},
        "Reference Video": {"references": (items.VideoItem(wrong, where=where),)},
    }[where]
    with pytest.raises(ValueError, match=f"{where}: {got}"):
        encode(**inputs)


def test_huge_picture_needs_little_more_than_itself(comfy):  # noqa: F811
    """12000 x 12000 in float is 1.7 GB; the copy that rounding makes is one of those, and no more."""
    import subprocess
    import sys
    from pathlib import Path

    root = Path(__file__).resolve().parents[1]
    code = f"""
import resource, sys
sys.path.insert(0, r"{comfy.folder}")
from comfy.cli_args import args
args.cpu = True
import importlib.util, torch
root = r"{root}"
spec = importlib.util.spec_from_file_location("x", root + "/__init__.py", submodule_search_locations=[root])
module = importlib.util.module_from_spec(spec); sys.modules["x"] = module; spec.loader.exec_module(module)
from x.nodes.chains import ImageItem
from x.nodes.host.references import prepare, resolve_target
image = torch.ones(1, 1, 1, 3).expand(1, 12000, 12000, 3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(reference,) = prepare([ImageItem(image)], resolve_target(1344, 768, 124), "match")
print(tuple(reference.pixels.shape), int(reference.pixels.min()), end=" ")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / image.numel())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    *found, per_value = done.stdout.split()
    assert " ".join(found) == "(1024, 1024, 3) 255"
    assert float(per_value) < 8, f"{float(per_value):.1f} bytes for each of {3 * 12000**2} values"
