"""Parity with transformers, bottom-up: tables, one block, one layer, the stack, the whole conditioning.

Every comparison is to the last bit, in float32 and in bfloat16, with one named exception: our patch embedding is a
matrix product where the released model has a Conv3d. `PATCH_BOUND` states what that costs; with the released
convolution in its place, everything behind it is equal to the last bit too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers.models.qwen3_vl")
pytest.importorskip("torchvision")

from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te.encoder.placement import find_blocks, position_ids
from h3te.encoder.rope import RotaryTable, interpolation_taps, patch_positions, text_rotary, vision_rotary
from h3te_tests.golden_cases import clip, pattern, relative_error
from h3te_tests.oracle import Inputs, Oracle, official_inputs, official_tokenizer
from h3te_tests.oracle_pair import DTYPES, WHOLE_BOUND, equal, make_ours, released_convolution
from h3te_tests.tiny_weights import TAP_LAYER

# Relative L2 of one patch embedding, measured 6.3e-7 and up to 4.6e-5 (0.02 % of the elements).
PATCH_BOUND = {torch.float32: 1e-6, torch.bfloat16: 1e-4}
GRIDS = [[(1, 16, 16)], [(1, 2, 2)], [(1, 48, 48)], [(1, 100, 6)], [(3, 8, 14)], [(1, 16, 28), (1, 6, 10), (2, 4, 18)]]


@pytest.fixture(scope="module", params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(scope="module")
def theirs(dtype) -> Oracle:
    return Oracle(dtype)


@pytest.fixture(scope="module")
def ours(dtype):
    return make_ours(dtype, TAP_LAYER)


@pytest.fixture
def convolution(ours) -> Iterator[None]:
    """The released Conv3d in the place of our matrix product."""
    with released_convolution(ours):
        yield


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder, tmp_path_factory):
    return official_tokenizer(tokenizer_folder, tmp_path_factory.mktemp("official") / "tokenizer")


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rotary_of(ours, grids) -> RotaryTable:
    return vision_rotary(patch_positions(grids, 2), ours.config.vision, torch.device("cpu"))


# tables


@pytest.mark.parametrize("grids", GRIDS, ids=str)
def test_vision_rotary_equals_transformers(ours, theirs, grids):
    positions = patch_positions(grids, 2)
    tables = theirs.model.visual.rotary_pos_emb(torch.empty(0), positions)
    mine = rotary_of(ours, grids)
    equal(mine.cos, tables[0])
    equal(mine.sin, tables[1])


@pytest.mark.parametrize("grids", GRIDS, ids=str)
def test_position_interpolation_equals_transformers(ours, theirs, grids):
    vision_utils = pytest.importorskip("transformers.vision_utils")
    grid_thw = torch.tensor(grids)
    equal(patch_positions(grids, 2), vision_utils.get_vision_position_ids(grid_thw, 2))
    indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
        grid_thw, num_grid_per_side=48, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    taps, tap_weights = interpolation_taps(grids, 2, 48)
    equal(taps, indices)
    equal(tap_weights, weights)
    added = (theirs.model.visual.pos_embed(indices) * weights[:, :, None]).sum(1)
    assert added.dtype == torch.float32
    equal(ours.model.visual.pos_embed(torch.empty(0), taps, tap_weights), added)


def test_position_interpolation_equals_transformers_at_every_size():
    vision_utils = pytest.importorskip("transformers.vision_utils")
    for size in range(2, 200, 2):
        theirs = vision_utils.get_vision_interpolation_indices_and_weights(
            torch.tensor([[1, size, 200 - size]]), 48, align_corners=True, spatial_merge_size=2
        )
        for mine, wanted in zip(interpolation_taps([(1, size, 200 - size)], 2, 48), theirs, strict=True):
            equal(mine, wanted)


def test_text_rotary_equals_transformers_with_vision_positions(ours, theirs, dtype):
    positions = torch.randint(0, 262_144, (3, 400), generator=torch.Generator().manual_seed(1))
    positions[:, :100] = torch.arange(100)
    like = torch.empty(0, dtype=dtype)
    cos, sin = theirs.model.language_model.rotary_emb(like, positions[:, None])
    mine = text_rotary(positions, ours.config.text, torch.device("cpu"), dtype)
    equal(mine.cos, cos[0])
    equal(mine.sin, sin[0])


# one of each


def test_patch_embedding_is_within_its_bound(ours, theirs, dtype):
    patches = noise(512, 1536, dtype=dtype).clamp(-1, 1)
    mine, wanted = ours.model.visual.patch_embed(patches), theirs.model.visual.patch_embed(patches)
    assert 0 <= relative_error(mine, wanted) <= PATCH_BOUND[dtype]


def test_patch_embedding_equals_transformers_as_a_convolution(ours, theirs, dtype, convolution):
    patches = noise(512, 1536, dtype=dtype).clamp(-1, 1)
    equal(ours.model.visual.patch_embed(patches), theirs.model.visual.patch_embed(patches))


@pytest.mark.parametrize("grids", GRIDS, ids=str)
def test_vision_block_equals_transformers(ours, theirs, dtype, grids):
    frames = [h * w for t, h, w in grids for _ in range(t)]
    x = noise(sum(frames), 144, dtype=dtype)
    rotary = rotary_of(ours, grids)
    cumulative = F.pad(torch.tensor(frames, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
    wanted = theirs.model.visual.blocks[2](x, cu_seqlens=cumulative, position_embeddings=(rotary.cos, rotary.sin))
    equal(ours.model.visual.blocks[2](x, rotary, frames), wanted)


def test_mergers_equal_transformers(ours, theirs, dtype):
    x = noise(256, 144, dtype=dtype)
    equal(ours.model.visual.merger(x), theirs.model.visual.merger(x))
    pairs = zip(ours.model.visual.deepstack_merger_list, theirs.model.visual.deepstack_merger_list, strict=True)
    for mine, wanted in pairs:
        equal(mine(x), wanted(x))


@pytest.mark.parametrize("length", [1, 2, 33, 260])
def test_decoder_layer_equals_transformers(ours, theirs, dtype, length):
    x = noise(length, 64, dtype=dtype)
    rotary = text_rotary(torch.arange(length).expand(3, -1), ours.config.text, torch.device("cpu"), dtype)
    tables = (rotary.cos[None], rotary.sin[None])
    wanted = theirs.model.language_model.layers[3](x[None], position_embeddings=tables)
    equal(ours.model.language_model.layers[3](x, rotary), wanted[0])


# together


@pytest.mark.parametrize("grids", GRIDS[:1] + GRIDS[-2:], ids=str)
def test_vision_tower_equals_transformers(ours, theirs, dtype, grids, convolution):
    patches = noise(sum(t * h * w for t, h, w in grids), 1536, dtype=dtype).clamp(-1, 1)
    mine = ours.model.visual(patches, grids)
    wanted = theirs.model.visual(patches, grid_thw=torch.tensor(grids))
    equal(mine.merged, wanted.pooler_output)
    for level, feature in zip(mine.deepstack, wanted.deepstack_features, strict=True):
        equal(level, feature)


def test_stack_equals_transformers_for_every_tap(theirs, dtype, tokenizer):
    inputs = official_inputs("A fox.", [ImageReference(pattern(256, 256, 5))], tokenizer)
    states = Oracle(dtype, tap_layer=6).states(inputs)
    equal(theirs.hidden(inputs), states[TAP_LAYER])
    for tap_layer in range(1, TAP_LAYER + 1):
        encoder = make_ours(dtype, tap_layer)
        with released_convolution(encoder):
            equal(encoder.encode_ids(inputs.ids, **inputs.pictures), states[tap_layer])


IMAGE, WIDE = ImageReference(pattern(256, 448, 1)), ImageReference(pattern(90, 300, 2))
VIDEO = VideoReference(clip(27, 64, 96, 3))
SOUND_VIDEO = VideoReference(clip(14, 96, 64, 4), has_audio=True)
SAMPLED = VideoReference(clip(3, 64, 64, 6), timestamps=(0.0, 0.7, 1.3))
REQUESTS = {
    "text": ("A red fox runs through snow.", ()),
    "one token": ("A", ()),
    "long text": ("The quick brown fox jumps over the lazy dog. " * 40, ()),
    "special tokens": ("She says <d>Come.</d> (quietly:1.2) <think> <|cutoff|>", ()),
    "image": ("What <Picture 1> shows.", (IMAGE,)),
    "image alone": ("", (WIDE,)),
    "two images": ("From <Picture 1> to <Picture 2>.", (IMAGE, WIDE)),
    "video": ("As in <Video 1>.", (VIDEO,)),
    "sampled video": ("As in <Video 1>.", (SAMPLED,)),
    "mixed": ("All of it.", (WIDE, SOUND_VIDEO, AudioReference(), IMAGE)),
    "video before image": ("All of it.", (VIDEO, IMAGE, SAMPLED, WIDE)),
    "sound first": ("All of it.", (AudioReference(), SOUND_VIDEO, WIDE, VIDEO)),
}


@pytest.fixture(scope="module")
def requests(tokenizer) -> dict[str, Inputs]:
    return {name: official_inputs(*request, tokenizer) for name, request in REQUESTS.items()}


@pytest.mark.parametrize("name", REQUESTS)
def test_position_ids_equal_transformers(theirs, requests, name):
    inputs = requests[name]
    grids = [[] if g is None else g.tolist() for g in (inputs.image_grid_thw, inputs.video_grid_thw)]
    equal(position_ids(len(inputs.ids), find_blocks(inputs.ids, *grids, 2)), theirs.position_ids(inputs))


@pytest.mark.parametrize("name", REQUESTS)
def test_conditioning_equals_transformers(ours, theirs, dtype, requests, name):
    inputs = requests[name]
    wanted = theirs.hidden(inputs)
    assert relative_error(ours.encode_ids(inputs.ids, **inputs.pictures), wanted) <= WHOLE_BOUND[dtype]
    with released_convolution(ours):
        equal(ours.encode_ids(inputs.ids, **inputs.pictures), wanted)


@pytest.mark.parametrize("name", REQUESTS)
def test_prompt_and_references_become_the_official_ids_and_pixels(requests, name, tokenizer_folder):
    from h3te.encoder.presentation import present
    from h3te.encoder.tokens import H3Tokenizer, tokenize

    presentation = present(*REQUESTS[name])
    inputs = requests[name]
    equal(tokenize(presentation, H3Tokenizer.from_folder(tokenizer_folder)).ids, inputs.ids)
    for mine, pixels, grids in (
        (presentation.image, inputs.pixel_values, inputs.image_grid_thw),
        (presentation.video, inputs.pixel_values_videos, inputs.video_grid_thw),
    ):
        assert (mine is None) == (pixels is None)
        if mine is not None:
            equal(mine.pixel_values, pixels)
            equal(mine.grid_thw, grids)
