"""IMAGE tensors as ComfyUI and other packs hand them over -> uint8 RGB, or an error that names the socket."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from h3te.nodes.host import images
from h3te_tests.comfy_host import picture

DEVICES = [name for name in ("cuda", "mps") if getattr(torch, name).is_available()] or ["cpu"]


def exact(batch: int = 1, height: int = 5, width: int = 7, channels: int = 3) -> torch.Tensor:
    """Every byte once at least, as uint8 [B, H, W, C]."""
    count = batch * height * width * channels
    return torch.arange(count).mul(37).remainder(256).to(torch.uint8).reshape(batch, height, width, channels)


# kinds of tensors


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_every_dtype_gives_the_same_bytes(dtype):
    expected = exact(2)
    given = expected if dtype == torch.uint8 else (expected.double() / 255).to(dtype)
    got = images.to_rgb(given, "image")
    assert (got.dtype, got.device.type) == (torch.uint8, "cpu")
    assert torch.equal(got, expected)


def test_bfloat16_is_read_as_the_values_it_holds():
    """It has too few digits for bytes: 1/255 apart at most, and not rounded a second time."""
    given = (exact(2).float() / 255).bfloat16()
    assert torch.equal(images.to_rgb(given, "image"), (given.float() * 255).round().to(torch.uint8))


@pytest.mark.parametrize("device", DEVICES)
def test_pictures_on_any_device_are_brought_to_the_cpu(device):
    for channels in (1, 3, 4):
        given = (exact(channels=channels).float() / 255).to(device)
        got = images.to_rgb(given, "image")
        assert got.device.type == "cpu"
        assert torch.equal(got, images.to_rgb(given.cpu(), "image"))


def test_strides_and_gradients_do_not_matter():
    given = exact(1, 6, 8).float() / 255
    turned = given.permute(0, 2, 1, 3)
    assert not turned.is_contiguous()
    assert torch.equal(images.to_rgb(turned, "image"), images.to_rgb(turned.contiguous(), "image"))
    learned = given.clone().requires_grad_()
    got = images.to_rgb(learned, "image")
    assert not got.requires_grad
    assert torch.equal(got, images.to_rgb(given, "image"))
    bytes_ = exact(1, 6, 8)[:, ::2, ::2]
    assert torch.equal(images.to_rgb(bytes_, "image"), bytes_.contiguous())


def test_the_given_tensor_is_left_as_it_is():
    for given in (picture(1, channels=4), picture(1), exact(channels=4)):
        before = given.clone()
        images.to_rgb(given, "image")
        assert torch.equal(given, before)


# values


def test_values_outside_0_to_1_are_clamped():
    given = torch.tensor([-7.0, -0.001, 0.0, 1.0, 1.001, 1.9]).reshape(1, 1, 2, 3)
    assert images.to_rgb(given, "image").flatten().tolist() == [0, 0, 0, 255, 255, 255]


def test_values_far_outside_are_clamped_with_a_warning(caplog):
    given = torch.full((1, 4, 4, 3), 0.5)
    given[0, 0, 0, 0] = 9.0  # a highlight
    with caplog.at_level(logging.WARNING):
        assert images.to_rgb(given, "first_frame")[0, 0, 0, 0] == 255
    assert "first_frame: pixels of 0.5..9 were clamped to 0..1." in caplog.text


def test_floats_of_0_to_255_are_refused_by_their_socket():
    with pytest.raises(ValueError, match=r"first_frame: expected floats 0\.\.1, got 0\.\.255"):
        images.to_rgb(exact(2, 8, 16).float(), "first_frame")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("channels", "channel"), [(1, 0), (3, 2), (4, 0), (4, 3)])
def test_non_finite_pixels_are_refused_by_their_socket(value, channels, channel):
    given = torch.full((1, 3, 3, channels), 0.5)
    given[0, 1, 1, channel] = value
    if channel == 3 and value == value:  # infinite alpha is clamped, as any other outside 0..1
        assert images.to_rgb(given, "last_frame").shape == (1, 3, 3, 3)
        return
    with pytest.raises(ValueError, match="last_frame: expected finite pixels, got NaN or infinity"):
        images.to_rgb(given, "last_frame")


# sizes and channels


def test_grey_is_repeated_over_the_channels():
    grey = exact(2, channels=1)
    for given in (grey, grey.float() / 255):
        got = images.to_rgb(given, "image")
        assert torch.equal(got, grey.expand(2, 5, 7, 3))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_one_pixel_is_a_picture(channels):
    assert images.single(torch.ones(1, 1, 1, channels), "image").tolist() == [[[255, 255, 255]]]


def test_huge_picture_is_a_picture():
    given = torch.zeros(1, 6000, 4000, 4, dtype=torch.uint8)
    got = images.single(given, "image", (1, 2, 3))
    assert got.shape == (6000, 4000, 3)
    assert got[-1, -1].tolist() == [1, 2, 3]


SHAPES = [
    ((0, 4, 4, 3), "got shape [0, 4, 4, 3], which has no pixels. Check the node"),
    ((1, 0, 4, 3), "got shape [1, 0, 4, 3], which has no pixels. Check the node"),
    ((1, 4, 4), "got shape [1, 4, 4]. For a mask, put Convert Mask to Image"),
    ((4, 4, 3), "got shape [4, 4, 3]. For a mask, put Convert Mask to Image"),
    ((4, 4), "got shape [4, 4]. Connect an image output."),
    ((1, 2, 4, 4, 3), "got shape [1, 2, 4, 4, 3]. Connect an image output."),
    ((1, 4, 4, 2), "got shape [1, 4, 4, 2]. Connect an image output."),
    ((1, 3, 4, 4, 5), "got shape [1, 3, 4, 4, 5]. Connect"),
    ((), "got shape []. Connect"),
]


@pytest.mark.parametrize(("shape", "told"), SHAPES, ids=[str(shape) for shape, _ in SHAPES])
@pytest.mark.parametrize("reader", ["to_rgb", "each", "single", "size_of"])
def test_other_shapes_are_refused_by_their_socket(reader, shape, told):
    with pytest.raises(ValueError, match=r"ref_image_0: expected an IMAGE \[B, H, W, 3 or 4\], " + re.escape(told)):
        getattr(images, reader)(torch.zeros(shape), "ref_image_0")


@pytest.mark.parametrize("value", [None, "image.png", 3, {"samples": 1}])
def test_what_is_no_tensor_is_refused_by_its_socket(value):
    with pytest.raises(ValueError, match=f"expected an IMAGE .* got {type(value).__name__}. Connect an image output"):
        images.to_rgb(value, "ref_image_0")


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.complex64])
def test_other_dtypes_are_refused_by_their_socket(dtype):
    with pytest.raises(ValueError, match="ref_image_0: expected uint8 or float"):
        images.to_rgb(torch.zeros(1, 2, 2, 3, dtype=dtype), "ref_image_0")


def test_each_picture_of_a_batch_is_one_and_single_takes_no_batch():
    batch = exact(3)
    assert all(torch.equal(a, b) for a, b in zip(images.each(batch, "image"), batch, strict=True))
    assert images.size_of(batch[:1], "image") == (7, 5)
    for reader in (images.single, images.size_of):
        with pytest.raises(ValueError, match=r"last_frame: expected one picture, got a batch of 3\. Pick one"):
            reader(batch, "last_frame")


def test_bytes_survive_the_way_through_floats():
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(1, 16, 16, 3)
    assert torch.equal(images.to_rgb(images.to_image(every), "image"), every)


# alpha


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_alpha_is_composited_straight_on_the_colour(dtype):
    given = torch.tensor([[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]], dtype=torch.uint8)[None, None]
    given = given if dtype == torch.uint8 else (given.double() / 255).to(dtype)
    got = images.to_rgb(given, "image", (10, 20, 250))
    assert got.tolist() == [[[[200, 100, 0], [10, 20, 250], [48, 36, 200]]]]


def test_alpha_is_put_on_white_unless_told_otherwise():
    assert images.to_rgb(torch.zeros(1, 1, 1, 4), "image").tolist() == [[[[255, 255, 255]]]]


def test_alpha_outside_0_to_1_is_clamped():
    given = torch.tensor([[0.2, 0.2, 0.2, 3.0], [0.2, 0.2, 0.2, -1.0]])[None, None]
    assert images.to_rgb(given, "image", (0, 0, 0)).tolist() == [[[[51, 51, 51], [0, 0, 0]]]]


def item(where: str, image: object, name: str = "pixels") -> SimpleNamespace:
    return SimpleNamespace(where=where, **{name: image})


def test_every_transparent_item_is_named_once_with_the_colour():
    clear, opaque = torch.zeros(2, 2, 2, 4), torch.ones(1, 2, 2, 4)
    items = [item("first_frame", clear), item("ref_image_0", opaque), item("ref_image_0", clear),
             item("ref_image_0", clear), item("ref_video_0", clear, "frames"), item("ref_audio_0", {}, "audio"),
             item("grey", torch.zeros(1, 2, 2, 1)), item("missing", None),
             item("bytes", torch.full((1, 1, 1, 4), 254, dtype=torch.uint8)),
             item("whole", torch.full((1, 1, 1, 4), 255, dtype=torch.uint8))]  # fmt: skip
    line = "alpha of first_frame, ref_image_0, ref_video_0, bytes composited on #0a141e"
    assert images.about_alpha(items, " #0a141e ") == [line]
    assert images.about_alpha(items[1:2], "white") == images.about_alpha([], "white") == []


def test_a_line_is_logged_once_for_all_prompts(caplog):
    with caplog.at_level(logging.INFO):
        images.log_once("Node", ["one", "two", "one"])
    assert [record.getMessage() for record in caplog.records] == ["Node: one", "Node: two"]


def test_alpha_from_nodes_of_others_is_logged(caplog):
    with caplog.at_level(logging.INFO):
        assert images.to_rgb_logged(torch.zeros(1, 1, 1, 4), "clip").tolist() == [[[[255, 255, 255]]]]
        images.to_rgb_logged(torch.ones(1, 1, 1, 4), "opaque")
    assert [record.getMessage() for record in caplog.records] == ["clip: alpha composited on white"]
