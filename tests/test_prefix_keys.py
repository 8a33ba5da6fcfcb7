"""What decides that two beginnings are the same: tokens and pixels, one key a token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from h3te.encoder.cache.content import block_digests, token_keys
from h3te.encoder.cache.digest import DIGEST_BYTES, frames_digests
from h3te.encoder.pixels import Patches, concatenate, image_patches, video_patches
from h3te.encoder.placement import find_blocks
from h3te.encoder.tokens import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START
from h3te_tests.golden_cases import clip, pattern


def test_every_step_of_every_reference_has_a_digest():
    both = concatenate([video_patches(clip(5, 64, 64, 1)), video_patches(clip(2, 64, 96, 1))])
    assert [len(digest) for digest in both.digests] == [DIGEST_BYTES] * 4
    assert len(set(both.digests)) == 4
    assert both.digests == block_digests(both)


def test_equal_pixels_have_equal_digests_whatever_they_came_as():
    as_bytes = pattern(96, 64, 1)
    as_floats = torch.from_numpy(as_bytes.astype(np.float32) / 255)
    assert image_patches(as_bytes).digests == image_patches(as_floats).digests
    assert image_patches(as_bytes).digests != image_patches(as_bytes ^ 1).digests


def test_one_changed_pixel_changes_the_digest_of_its_step_alone():
    frames = clip(6, 64, 64, 1)
    before = video_patches(frames).digests
    frames[3, 63, 63, 2] ^= 1
    after = video_patches(frames).digests
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_same_bytes_of_another_grid_differ():
    frames = torch.zeros(2, 3, 64, 32, dtype=torch.uint8)
    assert frames_digests(frames, 2, 4, 2) != frames_digests(frames.view(2, 3, 32, 64), 2, 2, 4)


def test_a_still_is_the_same_as_picture_and_as_pair_of_frames():
    frame = pattern(256, 256, 3)
    still, moving = np.stack([frame, frame]), np.stack([frame, frame ^ 1])
    assert image_patches(frame).digests == video_patches(still).digests != video_patches(moving).digests


def test_rows_without_digests_are_told_apart_by_their_numbers_type_and_grid():
    values = torch.rand(16, 1536)

    def digests(rows, grid):
        return block_digests(Patches(rows, torch.tensor([grid])))

    plain = digests(values, [1, 4, 4])
    changed = values.clone()
    changed[15, 1535] += 1e-3
    others = [digests(changed, [1, 4, 4]), digests(values.double(), [1, 4, 4]), digests(values, [1, 2, 8])]
    assert digests(values.clone(), [1, 4, 4]) == plain and plain not in others
    assert len(digests(values, [2, 2, 4])) == 2
    assert len(digests(values.bfloat16(), [1, 4, 4])[0]) == DIGEST_BYTES


def test_one_unknown_digest_makes_all_unknown():
    known = image_patches(pattern(64, 64, 1))
    assert concatenate([known, Patches(known.pixel_values, known.grid_thw)]).digests is None


def keys(*parts, digests: dict, grids: dict) -> torch.Tensor:
    ids = torch.tensor([id_ for part in parts for id_ in (part if isinstance(part, list) else [part])])
    blocks = find_blocks(ids, grids.get("image", []), grids.get("video", []), 2)
    return token_keys(ids, blocks, digests)


def block(pads: int, pad: int = IMAGE_PAD) -> list[int]:
    return [VISION_START, *[pad] * pads, VISION_END]


def test_pads_have_the_digest_of_their_block_and_text_its_id():
    one, two, three = (bytes([n]) * 16 for n in (1, 2, 255))
    grids = {"image": [(1, 4, 4), (1, 2, 4)], "video": [(2, 2, 2)]}
    digests = {"image": [one, two], "video": [three, one]}
    parts = [7, block(4), block(1, VIDEO_PAD), 8, block(2), block(1, VIDEO_PAD), 9]
    found = keys(*parts, digests=digests, grids=grids)
    assert found.shape == (21 - 2, 2) and found.dtype == torch.int64
    assert found[0].tolist() == [7, 0] and found[-1].tolist() == [9, 0] and found[1].tolist() == [VISION_START, 0]
    assert (found[2:6] == found[2]).all() and found[2].tolist() == [0x0101010101010101] * 2
    assert found[8].tolist() == [-1, -1]
    assert torch.equal(found[16], found[2])  # the same picture


@pytest.mark.parametrize("change", ["none", "pixels", "grid"])
def test_keys_are_equal_up_to_the_first_block_that_differs(change):
    first, other = bytes(range(16)), bytes(range(1, 17))
    digest = first if change == "none" else other
    grid = (1, 2, 8) if change == "grid" else (1, 4, 4)
    before = keys(7, block(4), 9, digests={"image": [first]}, grids={"image": [(1, 4, 4)]})
    after = keys(7, block(4), 9, digests={"image": [digest]}, grids={"image": [grid]})
    assert (before == after).all(dim=1).tolist() == [change == "none" or not 2 <= i < 6 for i in range(8)]
