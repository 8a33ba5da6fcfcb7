"""Identities and keys: equal for equal content, different for anything that may change a bit of the result."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te.encoder.cache import identity
from h3te.encoder.cache.identity import EncoderIdentity, request_key, weights_identity
from h3te.encoder.pixels import Patches
from h3te.encoder.presentation import PixelInputs, Presentation, present
from h3te.encoder.tokens import H3Tokenizer, tokenize

IDENTITY = EncoderIdentity("ab", "bf16", "bfloat16", 50, "official", "ours", label="the file")
LARGE = 12_000_000  # beyond what is read whole


def checkpoint(path, size: int = LARGE, seed: int = 0, **metadata):
    """A safetensors file of one tensor."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}, **metadata}).encode()
    header += b" " * (-len(header) % 8)
    data = np.random.default_rng(seed).bytes(size)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def edited(path, place: int, length: int = 1):
    with path.open("r+b") as file:
        file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
        old = file.read(length)
        file.seek(-length, os.SEEK_CUR)
        file.write((~np.frombuffer(old, np.uint8)).tobytes())
    return path


@pytest.mark.parametrize("size", [100, LARGE])
def test_weights_that_were_moved_renamed_touched_or_copied_are_the_same(size, tmp_path):
    first = checkpoint(tmp_path / "model.safetensors", size)
    found = weights_identity([first])
    copy = checkpoint(tmp_path / "elsewhere" / "renamed.sft", size)
    os.utime(first, (1, 1))
    assert weights_identity([first]) == weights_identity([str(copy)]) == found
    assert len(found) == 64 and int(found, 16)


def test_shards_are_the_same_in_any_order_and_under_any_name(tmp_path):
    shards = [checkpoint(tmp_path / f"{name}.safetensors", 100, seed) for seed, name in enumerate("abc")]
    found = weights_identity(shards)
    swapped = [checkpoint(tmp_path / "x" / f"{name}.safetensors", 100, seed) for seed, name in enumerate("cab")]
    assert weights_identity(shards[::-1]) == weights_identity(swapped) == found
    others = [weights_identity(some) for some in (shards[:2], [*shards, shards[0]], [shards[0]] * 3, [])]
    assert len({found, *others}) == 5


@pytest.mark.parametrize("size", [100, LARGE])
def test_weights_with_another_size_header_or_content_are_others(size, tmp_path):
    found = [
        weights_identity([checkpoint(tmp_path / "a", size)]),
        weights_identity([checkpoint(tmp_path / "a", size + 1)]),
        weights_identity([checkpoint(tmp_path / "a", size, seed=1)]),
        weights_identity([checkpoint(tmp_path / "a", size, __metadata__={"format": "pt"})]),
        weights_identity([checkpoint(tmp_path / "a", size, __metadata__={"format": "np"})]),
        weights_identity([edited(checkpoint(tmp_path / "a", size), -1)]),
    ]
    assert len(set(found)) == len(found)


def test_every_byte_of_a_small_file_counts(tmp_path):
    whole = weights_identity([checkpoint(tmp_path / "a", 50)])
    size = (tmp_path / "a").stat().st_size
    found = {weights_identity([edited(checkpoint(tmp_path / "a", 50), place)]) for place in range(size)}
    assert len(found) == size and whole not in found


def test_change_in_one_piece_longer_than_two_stretches_is_always_seen(tmp_path):
    path = checkpoint(tmp_path / "a")
    whole, stretch = weights_identity([path]), LARGE // identity.LEAST_BLOCKS + 1
    for start in range(100, LARGE - 2 * stretch, stretch * 3 // 4):
        edited(path, start, 2 * stretch)
        assert weights_identity([path]) != whole
        edited(path, start, 2 * stretch)
    assert weights_identity([path]) == whole


def test_small_edit_between_the_blocks_is_not_seen_as_the_docstring_says(tmp_path):
    path = checkpoint(tmp_path / "a")
    start = path.stat().st_size - LARGE
    read = [range(place, place + length) for place, length in identity._sample(start, path.stat().st_size)]
    gap = next(place for place in range(start, LARGE) if not any(place in block for block in read))
    whole = weights_identity([path])
    assert weights_identity([edited(path, gap)]) == whole
    assert weights_identity([edited(path, read[5][0])]) != whole


def test_blocks_lie_in_the_data_one_in_each_stretch():
    size = 15_000_000_000
    blocks = list(identity._sample(1000, size))
    assert len(blocks) == size // identity.STRIDE_BYTES + 2
    places = [place for place, _ in blocks]
    assert places[0] == 1000 and places[-1] + identity.BLOCK_BYTES == size and places == sorted(places)
    assert max(b - a for a, b in pairwise(places)) < 3 * identity.STRIDE_BYTES


def test_gguf_and_other_files_are_told_by_their_opening_and_their_sample(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + np.random.default_rng(0).bytes(LARGE))
    whole = weights_identity([path])
    for place in (10, identity.OPENING_BYTES - 1, -1):
        assert weights_identity([edited(path, place)]) != whole
        assert weights_identity([edited(path, place)]) == whole


def test_header_that_announces_too_much_is_read_as_another_kind(tmp_path):
    path = tmp_path / "a"
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{" + bytes(LARGE))
    assert len(weights_identity([path])) == 64


def test_what_is_no_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="expected a file, got a folder"):
        weights_identity([tmp_path])
    with pytest.raises(OSError, match="No such file"):
        weights_identity([tmp_path / "absent"])


def test_only_header_and_sample_of_a_file_are_read(tmp_path):
    path = checkpoint(tmp_path / "a", 200_000)
    with path.open("r+b") as file:
        file.truncate(40_000_000_000)  # sparse
    assert len(weights_identity([path])) == 64  # reading it whole would take half a minute


def test_every_field_but_the_label_is_part_of_the_key():
    keys = {IDENTITY.key}
    for field in fields(EncoderIdentity):
        value = getattr(IDENTITY, field.name)
        changed = replace(IDENTITY, **{field.name: value + 1 if isinstance(value, int) else value + "x"})
        assert (changed.key == IDENTITY.key) == (field.name == "label"), field.name
        keys.add(changed.key)
    assert len(keys) == len(fields(EncoderIdentity)) and all(len(key) == 64 for key in keys)


def test_fields_do_not_run_into_each_other():
    assert replace(IDENTITY, format="a", dtype="bc").key != replace(IDENTITY, format="ab", dtype="c").key


def test_key_is_the_same_in_every_process_and_release():
    found = replace(IDENTITY, numerics=1).key
    assert (
        found == "d67cd234a7ac6f1930be361224857201f2141d73f18558185f8b0a11bc6926e4"
    )  # else all that is stored is lost


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder) -> H3Tokenizer:
    return H3Tokenizer.from_folder(tokenizer_folder)


def picture(seed: int, height: int = 256, width: int = 256) -> ImageReference:
    return ImageReference(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def video(seed: int, count: int = 2, **options) -> VideoReference:
    frames = np.random.default_rng(seed).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    return VideoReference(frames, timestamps=tuple(i / 2 for i in range(count)), **options)


@pytest.fixture
def key_of(tokenizer):
    def key_of(prompt: str, *references, of: EncoderIdentity = IDENTITY) -> str:
        presentation = present(prompt, references)
        return request_key(of, tokenize(presentation, tokenizer).ids, presentation)

    return key_of


def test_equal_requests_have_one_key(key_of):
    assert key_of("a fox", picture(1), video(2)) == key_of("a fox", picture(1), video(2))
    pixels = picture(1).pixels
    assert key_of("a fox", ImageReference(torch.from_numpy(pixels).float() / 255)) == key_of("a fox", picture(1))


def test_requests_of_other_words_pixels_order_or_encoder_have_other_keys(key_of):
    one, two = picture(1), picture(2)
    still = np.repeat(picture(3, 64, 64).pixels[None], 2, axis=0)
    one_bit = one.pixels.copy()
    one_bit[255, 255, 2] ^= 1
    keys = [
        key_of(""), key_of("a fox"), key_of("a  fox"), key_of("a fox", one), key_of("a fox", two),
        key_of("a fox", ImageReference(one_bit)), key_of("a fox", one, two), key_of("a fox", two, one),
        key_of("a fox", one, one), key_of("a fox", ImageReference(one.pixels, timestamp=0.0)),
        key_of("a fox", picture(1, 256, 512)), key_of("a fox", picture(1, 512, 256)),
        key_of("a fox", video(1)), key_of("a fox", video(2)), key_of("a fox", video(1, has_audio=True)),
        key_of("a fox", video(1, 4)), key_of("a fox", VideoReference(still, timestamps=(0.0, 0.5))),
        key_of("a fox", one, video(1)), key_of("a fox", video(1), one), key_of("a fox", AudioReference(), one),
        key_of("a fox", one, of=replace(IDENTITY, vision_packing="per_reference")),
        key_of("a fox", one, of=replace(IDENTITY, lora="abc")),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys) and all(len(key) == 64 for key in keys)


def with_patches(image: Patches | None, video_: Patches | None = None) -> str:
    return request_key(IDENTITY, torch.tensor([1, 2, 3]), Presentation((), PixelInputs(image, video_)))


def test_equal_ids_with_other_pixels_grids_or_modality_differ_with_and_without_digests():
    rows = torch.arange(8 * 6, dtype=torch.float32).view(8, 6)
    changed = rows.clone()
    changed[7, 5] += 1
    grids = [torch.tensor([grid]) for grid in ([1, 2, 4], [1, 4, 2], [2, 2, 2])]
    digest, other = (bytes([value]) * 16 for value in (1, 2))
    keys = [
        with_patches(Patches(rows, grids[0])), with_patches(Patches(changed, grids[0])),
        with_patches(Patches(rows, grids[1])), with_patches(Patches(rows, grids[2])),
        with_patches(None, Patches(rows, grids[0])), with_patches(None),
        with_patches(Patches(rows, grids[0], (digest,))), with_patches(Patches(rows, grids[0], (other,))),
        with_patches(Patches(rows, grids[2], (digest, other))), with_patches(Patches(rows, grids[2], (other, digest))),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)


def test_ids_of_another_integer_type_have_the_key_of_int64():
    ids, presentation = torch.tensor([1, 2, 151655]), Presentation((), PixelInputs())
    assert request_key(IDENTITY, ids, presentation) == request_key(IDENTITY, ids.int(), presentation)
    assert request_key(IDENTITY, ids[:2], presentation) != request_key(IDENTITY, ids, presentation)
