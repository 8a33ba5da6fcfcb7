"""ComfyUI's lists -> one mapping of plain values for each run, and what runs share is made once."""

from __future__ import annotations

import gc

import pytest
import torch
from h3te.nodes import prompt_lists as lists

NODE = "Encode (H3TE)"


# rows


def test_there_are_as_many_rows_as_the_longest_list_has_values():
    rows = lists.rows({"prompt": ["a", "b", "c"], "width": [256, 512], "clip": ["clip"]}, NODE)
    assert rows == [
        {"prompt": "a", "width": 256, "clip": "clip"},
        {"prompt": "b", "width": 512, "clip": "clip"},
        {"prompt": "c", "width": 512, "clip": "clip"},  # the last value is repeated, as ComfyUI does
    ]


def test_plain_values_count_for_every_row():
    chain, sound = ("keyframe",), {"waveform": torch.zeros(1), "sample_rate": 8000}
    rows = lists.rows({"prompt": ["a", "b"], "keyframes": chain, "audio": sound, "width": 256, "vae": None}, NODE)
    assert len(rows) == 2
    for row in rows:
        assert row["keyframes"] is chain
        assert row["audio"] is sound
        assert (row["width"], row["vae"]) == (256, None)


def test_no_inputs_are_one_row():
    assert lists.rows({}, NODE) == [{}]


def test_lists_within_a_growing_input_count_and_are_taken_apart():
    images = {"ref_image_0": ["x", "y"], "ref_image_1": ["z"], "ref_image_2": None}
    rows = lists.rows({"prompt": ["a"], "ref_images": images, "ref_videos": {}}, NODE)
    assert [row["ref_images"] for row in rows] == [
        {"ref_image_0": "x", "ref_image_1": "z", "ref_image_2": None},
        {"ref_image_0": "y", "ref_image_1": "z", "ref_image_2": None},
    ]
    assert [row["ref_videos"] for row in rows] == [{}, {}]


def test_flat_sockets_of_older_releases_count_alike():
    rows = lists.rows({"prompt": ["a"], "ref_images.ref_image_0": ["x", "y"]}, NODE)
    assert [row["ref_images.ref_image_0"] for row in rows] == ["x", "y"]


def test_mapping_values_in_a_list_are_values():
    """AUDIO and marked pictures are mappings, and may hold lists of their own."""
    sound, marked = {"waveform": torch.zeros(1), "sample_rate": 8000, "tags": ["a", "b"]}, {"image": torch.zeros(1)}
    (row,) = lists.rows({"ref_audios": {"ref_audio_0": [sound]}, "ref_images": {"ref_image_0": [marked]}}, NODE)
    assert row["ref_audios"]["ref_audio_0"] is sound
    assert row["ref_images"]["ref_image_0"] is marked
    (row,) = lists.rows({"audio": sound}, NODE)
    assert row["audio"] is sound


def test_list_of_lists_gives_each_row_one():
    assert [row["values"] for row in lists.rows({"values": [[1, 2], [3]]}, NODE)] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"], "clip": []}, "clip"),
        ({"ref_images": {"ref_image_0": ["x"], "ref_image_1": []}}, "ref_images.ref_image_1"),
        ({"ref_images.ref_image_1": []}, "ref_images.ref_image_1"),
    ],
)
def test_empty_list_is_refused_by_its_input(inputs, name):
    told = rf"Encode \(H3TE\): expected at least one value on {name}, got an empty list\. Check the node"
    with pytest.raises(ValueError, match=told):
        lists.rows(inputs, NODE)


# told_which


def test_error_is_numbered_among_several_prompts_and_stays_for_one():
    with (
        pytest.raises(ValueError, match=r"^prompt 2 of 3: width: expected 5, got 4\. Raise it\.$"),
        lists.told_which(1, 3),
    ):
        raise ValueError("width: expected 5, got 4. Raise it.")
    with pytest.raises(ValueError, match=r"^width$"), lists.told_which(0, 1):
        raise ValueError("width")
    with pytest.raises(RuntimeError, match=r"^memory$"), lists.told_which(1, 3):
        raise RuntimeError("memory")


# once_each


class Counted:
    """Makes a new object each time, and remembers of what."""

    def __init__(self):
        self.rows = []

    def __call__(self, row):
        self.rows.append(row)
        return object()


def test_rows_of_the_same_objects_are_made_once():
    make, image, chain = Counted(), torch.zeros(2), ("item",)
    of = lists.once_each(make, "image", "chain", "width")
    rows = [{"prompt": p, "image": image, "chain": chain, "width": 256} for p in "abc"]
    assert len({id(of(row)) for row in rows}) == len(make.rows) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"image": torch.zeros(2)},  # equal, but another object
        {"chain": tuple(["item"])},  # noqa: C409 (a new tuple)
        {"width": 512},
        {"width": 256.0},
        {"width": None},
        {"grown": {"ref_image_0": torch.zeros(2)}},
        {"grown": {}},
    ],
    ids=["image", "chain", "width", "type", "none", "grown", "unlinked"],
)
def test_rows_that_differ_are_made_apart(other):
    make, image = Counted(), torch.zeros(2)
    row = {"image": image, "chain": tuple(["item", "x"][:1]), "width": 256, "grown": {"ref_image_0": image}}
    of = lists.once_each(make, *row)
    assert of(row) is not of({**row, **other})
    assert len(make.rows) == 2


def test_truth_is_not_one():
    make = Counted()
    of = lists.once_each(make, "value")
    assert len({id(of({"value": value})) for value in (1, True, 1.0, "1", 0, False)}) == len(make.rows) == 6


def test_mappings_are_the_same_when_they_hold_the_same():
    """Growing inputs are taken apart anew for each row."""
    make, image, wave = Counted(), torch.zeros(2), torch.zeros(3)
    inputs = {"prompt": ["a", "b"], "ref_images": {"ref_image_0": [image]},
              "ref_audios": {"ref_audio_0": [{"waveform": wave, "sample_rate": 8000}]}}  # fmt: skip
    first, second = lists.rows(inputs, NODE)
    assert first["ref_images"] is not second["ref_images"]
    of = lists.once_each(make, "ref_images", "ref_audios")
    assert of(first) is of(second)
    assert of({**first, "ref_images": {"ref_image_1": image}}) is not of(first)  # another socket, another place
    resampled = {"ref_audio_0": {"waveform": wave, "sample_rate": 16000}}
    assert of({**first, "ref_audios": resampled}) is not of(first)


def test_objects_that_are_gone_do_not_lend_their_id_to_others():
    """CPython gives a new object the id of one that was freed."""
    calls = []
    of = lists.once_each(lambda row: calls.append(1) or object(), "chain")
    for number in range(200):
        of({"chain": (number, "item")})
        gc.collect(0)
    assert len(calls) == 200


def test_no_number_is_taken_for_an_object():
    make, value = Counted(), torch.zeros(1)
    of = lists.once_each(make, "value")
    assert of({"value": value}) is not of({"value": id(value)})


def test_a_failed_row_is_tried_again():
    answers = iter([ValueError("no"), "yes"])

    def make(row):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    of = lists.once_each(make, "prompt")
    with pytest.raises(ValueError, match="no"):
        of({"prompt": "a"})
    assert of({"prompt": "a"}) == "yes"


def test_falsy_results_are_kept():
    calls = []
    of = lists.once_each(lambda row: calls.append(row), "prompt")
    assert of({"prompt": "a"}) is of({"prompt": "a"}) is None
    assert len(calls) == 1
