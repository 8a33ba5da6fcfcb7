"""The fuzz targets (tests/fuzz) on every system, with a few hundred drawn inputs: no atheris, the same every time.

`make fuzz` runs them by coverage for minutes.
"""

from __future__ import annotations

import importlib
import json
from random import Random

import pytest
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)

TARGETS = ("safetensors_header", "gguf_header", "conditioning_file", "worker_protocol")
ROUNDS = 150


@pytest.fixture(scope="module", params=TARGETS)
def target(request, comfy, tmp_path_factory):  # noqa: F811
    found = importlib.import_module(f"h3te_tests.fuzz.{request.param}")
    found.prepare()
    return found


def test_valid_inputs_are_taken(target):
    for seed in target.seeds().values():
        target.one(seed)


def test_changed_inputs_get_only_errors_of_ours(target):
    chance = Random(11)
    seeds = list(target.seeds().values())
    seen = set()
    for _ in range(ROUNDS):
        data = target.mutated(chance.choice(seeds), chance)
        if chance.random() < 0.2:
            at = chance.randrange(len(data) + 1)
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + chance.choice((0, 1, 50)) :]
        target.one(data)
        seen.add(data)
    assert len(seen) > ROUNDS // 3


def test_a_seed_of_each_file_is_read_without_refusal(comfy, tmp_path):  # noqa: F811
    """Else everything behind the first check would go untried."""
    from h3te_tests.fuzz import conditioning_file, gguf_header, safetensors_header

    for each in (conditioning_file, gguf_header, safetensors_header):
        each.prepare()
    from h3te.encoder.checkpoint.gguf_file import read_gguf
    from h3te.encoder.checkpoint.header import read_header
    from h3te.nodes.host.conditioning_file import read

    readers = ((conditioning_file, read, ".safetensors"), (gguf_header, read_gguf, ".gguf"),
               (safetensors_header, read_header, ".safetensors"))  # fmt: skip
    for each, reader, suffix in readers:
        for name, seed in each.seeds().items():
            path = tmp_path / f"{name}{suffix}"
            path.write_bytes(seed)
            reader(path)


def test_digest_is_made_true_for_changed_trees(comfy):  # noqa: F811
    from h3te_tests.fuzz import conditioning_file, json_frames

    conditioning_file.prepare()
    seed = conditioning_file.seeds()["saved0"]
    header = json.loads(json_frames.split(seed)[0])
    again = json.loads(json_frames.split(conditioning_file._true_digest(seed))[0])
    assert again["__metadata__"]["digest"] == header["__metadata__"]["digest"]


def test_a_finding_is_told_apart_from_a_refusal():
    from h3te_tests.fuzz.accepted import refusal

    def fail(error):
        def call():
            raise error

        return call

    assert refusal(fail(ValueError("x: expected a, got b. Do c."))) == "x: expected a, got b. Do c."
    assert refusal(lambda: None) is None
    with pytest.raises(KeyError):
        refusal(fail(KeyError("x")))
    for text in ("no advice", "x: expected a, got \x1b[2J.", f"x: expected a, got {'b' * 2000}."):
        with pytest.raises(AssertionError, match="message of ours"):
            refusal(fail(ValueError(text)))
