"""The token-level contract: what `encode_ids` accepts and refuses, progress and Stop, precision and memory rules."""

from __future__ import annotations

import pytest
import torch
from h3te.encoder import Encoder, EncoderConfig, ImageReference, build_encoder, load_encoder
from h3te.encoder.tokens import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START
from h3te_tests.golden_cases import pattern
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VISION_DEPTH = 6


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint, tokenizer_folder) -> Encoder:
    return load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)


@pytest.fixture(scope="module")
def bf16(tiny_checkpoint) -> Encoder:
    return load_encoder(tiny_checkpoint, tap_layer=TAP_LAYER)


def block(pads: int, pad: int = IMAGE_PAD) -> list[int]:
    return [VISION_START, *[pad] * pads, VISION_END]


def ids(*parts: int | list[int]) -> torch.Tensor:
    return torch.tensor([i for part in parts for i in (part if isinstance(part, list) else [part])])


def patches(rows: int, columns: int, times: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.rand(times * rows * columns, 1536, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return values, torch.tensor([[times, rows, columns]])


def picture(rows: int = 4, columns: int = 8) -> dict[str, torch.Tensor]:
    values, grid = patches(rows, columns)
    return {"pixel_values": values, "image_grid_thw": grid}


# what is accepted


def test_forward_is_encode_ids(encoder):
    tokens = ids(1, block(8), 2)
    assert torch.equal(encoder(tokens, **picture()), encoder.encode_ids(tokens, **picture()))


def test_text_alone_gives_one_row_per_token(encoder):
    hidden = encoder.encode_ids(ids(9, 8, 7))
    assert hidden.shape == (3, 64)
    assert hidden.dtype == torch.float32
    assert not hidden.requires_grad


def test_text_does_not_depend_on_what_follows(encoder):
    short, long = encoder.encode_ids(ids(9, 8, 7)), encoder.encode_ids(ids(9, 8, 7, 6, 5))
    torch.testing.assert_close(long[:3], short, rtol=1e-5, atol=1e-5)


def test_pictures_and_videos_may_alternate(encoder):
    first, second = patches(4, 4, seed=1), patches(4, 8, seed=2)
    values, grids = torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])
    video, video_grid = patches(4, 4, times=2, seed=3)
    tokens = ids(5, block(4), block(4, VIDEO_PAD), 6, block(8), block(4, VIDEO_PAD), 7)
    given = {"pixel_values_videos": video, "video_grid_thw": video_grid}
    hidden = encoder.encode_ids(tokens, pixel_values=values, image_grid_thw=grids, **given)
    other = encoder.encode_ids(tokens, pixel_values=values.flip(0), image_grid_thw=grids, **given)
    assert torch.equal(hidden[:2], other[:2])  # before the first picture
    assert not torch.equal(hidden[2:], other[2:])


def test_the_input_is_left_as_it_is(encoder):
    tokens, given = ids(1, block(8), 2), picture()
    copies = tokens.clone(), {name: value.clone() for name, value in given.items()}
    encoder.encode_ids(tokens, **given)
    assert torch.equal(tokens, copies[0])
    assert all(torch.equal(given[name], copies[1][name]) for name in given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_patches_may_come_in_any_float_type(bf16, dtype):
    given = picture()
    given["pixel_values"] = given["pixel_values"].to(torch.bfloat16).to(dtype)
    assert bf16.encode_ids(ids(1, block(8)), **given).dtype == torch.bfloat16


def test_works_inside_inference_mode_and_outside_afterwards(tiny_checkpoint):
    encoder = load_encoder(tiny_checkpoint, tap_layer=TAP_LAYER)
    with torch.inference_mode():
        inside = encoder.encode_ids(ids(1, block(8), 2), **picture())
    assert torch.equal(encoder.encode_ids(ids(1, block(8), 2), **picture()), inside)


# what is refused

BAD_IDS = {
    "a batch": (torch.ones(1, 4, dtype=torch.int64), r"shape \[S\].*\[1, 4\]"),
    "int32": (torch.ones(4, dtype=torch.int32), r"int64 ids.*torch\.int32"),
    "floats": (torch.ones(4), r"int64 ids.*torch\.float32"),
    "none": (torch.ones(0, dtype=torch.int64), r"S >= 1.*\[0\]"),
    "a list": ([1, 2, 3], "int64 ids.*list"),
    "past the vocabulary": (torch.tensor([1, 151_936]), "0 to 151935, got 1 to 151936"),
    "below zero": (torch.tensor([-1, 5]), "0 to 151935, got -1 to 5"),
}


@pytest.mark.parametrize("name", BAD_IDS)
def test_bad_ids_are_refused(encoder, name):
    given, message = BAD_IDS[name]
    with pytest.raises(ValueError, match=f"encode_ids: expected .*{message}"):
        encoder.encode_ids(given)


VALUES, GRID = patches(4, 8)
BAD_PICTURES = {
    "pixels alone": ({"pixel_values": VALUES}, "got pixel_values alone. Pass image_grid_thw"),
    "grid alone": ({"image_grid_thw": GRID}, "got image_grid_thw alone. Pass pixel_values"),
    "video pixels alone": ({"pixel_values_videos": VALUES}, "Pass video_grid_thw"),
    "video grid alone": ({"video_grid_thw": GRID}, "Pass pixel_values_videos"),
    "too few patches": ({"pixel_values": VALUES[:30], "image_grid_thw": GRID}, r"32, 1536.*\[30, 1536\]"),
    "narrow patches": ({"pixel_values": VALUES[:, :99], "image_grid_thw": GRID}, r"32, 1536.*\[32, 99\]"),
    "integer patches": ({"pixel_values": VALUES.byte(), "image_grid_thw": GRID}, "as floats.*torch.uint8"),
    "a flat grid": ({"pixel_values": VALUES, "image_grid_thw": GRID[0]}, r"int64 \[n, 3\].*\[3\]"),
    "a float grid": ({"pixel_values": VALUES, "image_grid_thw": GRID.float()}, "float32"),
    "an odd grid": ({"pixel_values": VALUES[:20], "image_grid_thw": torch.tensor([[1, 4, 5]])}, r"got \[1, 4, 5\]"),
    "an empty grid": ({"pixel_values": VALUES[:0], "image_grid_thw": GRID[:0]}, "at least one grid"),
    "a product beyond int64": (
        {"pixel_values": VALUES, "image_grid_thw": torch.tensor([[1 << 62, 2, 2], *GRID.tolist()])},
        r"\[18446744073709551648, 1536\]",
    ),
    "more grids than patches": (
        {"pixel_values": VALUES, "image_grid_thw": torch.tensor([[1, 2, 2]] * 33)},
        "one grid for each of 32 patches, got 33",
    ),
    "a zero grid": ({"pixel_values": VALUES[:0], "image_grid_thw": torch.tensor([[0, 4, 8]])}, r"\[0, 4, 8\]"),
}


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_bad_pictures_are_refused(encoder, name):
    given, message = BAD_PICTURES[name]
    with pytest.raises(ValueError, match=f"encode_ids: expected .*{message}"):
        encoder.encode_ids(ids(1, block(8)), **given)


@pytest.mark.parametrize(("pads", "given"), [(7, picture()), (9, picture()), (0, picture()), (3, {})])
def test_pads_that_do_not_match_the_features_are_refused_with_both_numbers(encoder, pads, given):
    features = 8 if given else 0
    with pytest.raises(ValueError, match=f"image pads as features, got {pads} pads and {features} features"):
        encoder.encode_ids(ids(1, block(pads), 2), **given)


def test_video_pads_without_a_video_are_refused_with_both_numbers(encoder):
    with pytest.raises(ValueError, match="video pads as features, got 8 pads and 0 features"):
        encoder.encode_ids(ids(1, block(8, VIDEO_PAD)))
    with pytest.raises(ValueError, match="image pads as features, got 0 pads and 8 features"):
        encoder.encode_ids(ids(1, block(8, VIDEO_PAD)), **picture())


def test_pads_not_in_one_run_are_refused(encoder):
    with pytest.raises(ValueError, match=r"8 image pads in one run from index 2 .* got 3"):
        encoder.encode_ids(ids(1, block(3), block(5)), **picture())


def test_two_blocks_whose_pads_touch_are_refused(encoder):
    values, grid = patches(4, 4)
    given = {"pixel_values": values.repeat(2, 1), "image_grid_thw": grid.repeat(2, 1)}
    with pytest.raises(ValueError, match=r"4 image pads in one run from index 1 .* got 8"):
        encoder.encode_ids(ids(block(8)), **given)


def test_grids_in_another_order_than_the_blocks_are_refused(encoder):
    small, large = patches(4, 4), patches(4, 8)
    given = {"pixel_values": torch.cat([large[0], small[0]]), "image_grid_thw": torch.cat([large[1], small[1]])}
    with pytest.raises(ValueError, match=r"8 image pads in one run .*grid 2 x 4.* got 4"):
        encoder.encode_ids(ids(block(4), block(8)), **given)


def test_pictures_for_an_encoder_without_vision_are_refused(tokenizer_folder):
    config = EncoderConfig(EncoderConfig.from_dict(tiny_config()).text, None)
    encoder = build_encoder(config, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    with pytest.raises(ValueError, match=r"no vision tower \(visual\.\*\)\. Load a file that holds it"):
        encoder.encode_ids(ids(1, block(8)), **picture())
    with pytest.raises(ValueError, match="no vision tower"):
        encoder.encode("", [ImageReference(pattern(64, 64, 0))])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8])
def test_float16_and_other_compute_types_are_refused(tiny_checkpoint, dtype):
    for make in (lambda: build_encoder(tiny_config(), dtype=dtype, tap_layer=5),
                 lambda: load_encoder(tiny_checkpoint, dtype=dtype, tap_layer=5)):  # fmt: skip
        with pytest.raises(ValueError, match=f"compute dtype torch.bfloat16 or torch.float32, got {dtype}"):
            make()


@pytest.mark.parametrize("tap_layer", [0, -1, 7, 50])
def test_a_tap_outside_the_layers_is_refused(tap_layer):
    with pytest.raises(ValueError, match=f"expected .*{tap_layer}" if tap_layer > 0 else f"got {tap_layer}"):
        build_encoder(tiny_config(), tap_layer=tap_layer)


def test_encode_without_a_tokenizer_says_what_to_do(bf16):
    with pytest.raises(RuntimeError, match=r"expected a tokenizer .* pass tokenizer="):
        bf16.encode("A fox.")


# progress and Stop


def test_progress_counts_every_vision_block_and_layer(encoder):
    calls = []
    video, video_grid = patches(4, 4)
    given = {**picture(), "pixel_values_videos": video, "video_grid_thw": video_grid}
    tokens = ids(1, block(8), block(4, VIDEO_PAD))
    encoder.encode_ids(tokens, **given, progress=lambda *call: calls.append(call))
    total = VISION_DEPTH + TAP_LAYER  # pictures and videos pass through the tower together
    assert [(done, of) for done, of, _ in calls] == [(i + 1, total) for i in range(total)]
    what = [f"vision block {i + 1} of {VISION_DEPTH}" for i in range(VISION_DEPTH)]
    assert [w for _, _, w in calls] == what + [f"layer {i + 1} of {TAP_LAYER}" for i in range(TAP_LAYER)]


def test_progress_of_text_counts_layers_alone(encoder):
    calls = []
    encoder.encode("A fox.", progress=lambda *call: calls.append(call))
    assert [call[:2] for call in calls] == [(i + 1, TAP_LAYER) for i in range(TAP_LAYER)]


class Stopped(Exception):
    pass


@pytest.mark.parametrize("step", range(1, VISION_DEPTH + TAP_LAYER + 1))
def test_an_exception_in_progress_stops_and_the_next_encode_is_right(encoder, step):
    def stop(done: int, total: int, what: str) -> None:
        if done == step:
            raise Stopped

    tokens = ids(1, block(8), 2)
    before = encoder.encode_ids(tokens, **picture())
    with pytest.raises(Stopped):
        encoder.encode_ids(ids(1, block(8), 3), **picture(), progress=stop)
    assert torch.equal(encoder.encode_ids(tokens, **picture()), before)


# precision and memory


class Watch(TorchDispatchMode):
    """Shape and dtype of everything that any operation outside attention returns."""

    def __init__(self):
        super().__init__()
        self.seen: set[tuple[tuple[int, ...], torch.dtype]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen |= {(tuple(t.shape), t.dtype) for t in tree_leaves(out) if isinstance(t, torch.Tensor)}
        return out


@pytest.fixture(scope="module")
def watched(bf16) -> tuple[set, int, int]:
    """What a bfloat16 encode makes, its tokens S and patches N; no width of the model equals either."""
    rows, columns = 6, 50
    tokens = ids(list(range(200)), block(rows * columns // 4), 7)
    bf16.materialise()
    with Watch() as watch:
        bf16.encode_ids(tokens, **picture(rows, columns))
    return watch.seen, len(tokens), rows * columns


def test_no_mask_of_all_pairs_is_made(watched):
    seen, tokens, patch_count = watched
    for shape, _ in seen:
        for length in (tokens, patch_count):
            assert list(shape).count(length) < 2, shape


def test_no_weight_is_widened_to_float32(bf16, watched):
    seen, *_ = watched
    weights = {tuple(bf16.slots.get(name).shape) for name in bf16.slots.names}
    matrices = {shape for shape in weights if len(shape) > 1}
    matrices |= {shape[::-1] for shape in matrices}
    wide = {shape for shape, dtype in seen if dtype == torch.float32}
    assert wide  # norms and rotary tables are computed so
    assert not wide & matrices


def test_nothing_is_computed_in_float16_or_float64(watched):
    assert not {dtype for _, dtype in watched[0]} & {torch.float16, torch.float64}
