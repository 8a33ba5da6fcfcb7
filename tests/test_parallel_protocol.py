"""Bodies of requests and replies: what was sent is what is read, and everything else is refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from h3te.encoder.parallel.framing import MAX_HEADER_BYTES
from h3te.encoder.parallel.protocol import (
    EncodeReply,
    EncodeRequest,
    Health,
    JobState,
    OtherProtocol,
    error_body,
    error_text,
)
from safetensors.torch import load, save

DIGEST = "ab" * 32


def request(**changes) -> EncodeRequest:
    told = {"input_ids": torch.arange(5), "checkpoint": DIGEST, "dtype": "bfloat16", "tap_layer": 50}
    return EncodeRequest(**{**told, **changes})


def pictured(**changes) -> EncodeRequest:
    given = {"pixel_values": torch.randn(4, 1536).bfloat16(), "image_grid_thw": torch.tensor([[1, 2, 2]])}
    return request(**{**given, **changes})


def reply(**changes) -> EncodeReply:
    told = {"hidden": torch.randn(5, 64).bfloat16(), "token_tags": torch.ones(5, dtype=torch.int64)}
    return EncodeReply(**{**told, "reused": 3, "seen_before": 1, "seconds": 1.5, **changes})


def health(**changes) -> Health:
    told = {
        "weights": DIGEST, "format": "bf16", "label": "a: b", "dtype": "bfloat16", "tap_layer": 50, "config": {"a": 1},
        "tp_size": 2, "device": "cpu", "loaded": True, "weight_bytes": 7, "vision": True, "waiting": 0,
        "queue_limit": 8, "body_limit": 1000, "token_limit": 100, "pack": "0.1.0",
    }  # fmt: skip
    return Health(**{**told, **changes})


def body_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, torch.Tensor])
def test_request_comes_back_as_it_was_from_every_kind_of_buffer(kind):
    sent = pictured(reuse=True, vision_packing="per_reference")
    body = sent.to_bytes()
    given = torch.frombuffer(bytearray(body), dtype=torch.uint8) if kind is torch.Tensor else kind(body)
    found = EncodeRequest.from_bytes(given)
    assert torch.equal(found.input_ids, sent.input_ids)
    assert torch.equal(found.pixel_values, sent.pixel_values)
    assert torch.equal(found.image_grid_thw, sent.image_grid_thw)
    assert found.pixel_values_videos is None
    for name in ("checkpoint", "dtype", "tap_layer", "vision_packing", "reuse", "numerics", "tp_size"):
        assert getattr(found, name) == getattr(sent, name)


def test_request_read_from_a_tensor_shares_its_memory():
    raw = torch.frombuffer(bytearray(pictured().to_bytes()), dtype=torch.uint8)
    found = EncodeRequest.from_bytes(raw)
    assert found.pixel_values.untyped_storage().data_ptr() == raw.untyped_storage().data_ptr()


def test_pieces_are_views_of_the_tensors():
    sent = reply()
    sent.hidden.fill_(1)
    pieces = sent.pieces()
    sent.hidden.fill_(2)
    assert torch.equal(EncodeReply.from_bytes(b"".join(pieces)).hidden, sent.hidden)


def test_reply_comes_back_as_it_was():
    sent = reply()
    found = EncodeReply.from_bytes(sent.to_bytes())
    assert torch.equal(found.hidden, sent.hidden)
    assert torch.equal(found.token_tags, sent.token_tags)
    assert (found.reused, found.seen_before, found.seconds) == (3, 1, 1.5)
    assert len(sent.to_bytes()) <= EncodeReply.most_bytes(5, 64, "bfloat16")


def test_the_safetensors_package_reads_bodies_and_its_own_are_read():
    sent = pictured()
    assert torch.equal(load(sent.to_bytes())["pixel_values"], sent.pixel_values)
    told = {"protocol": "1", "checkpoint": DIGEST, "dtype": "float32", "tap_layer": "50", "reuse": "0"}
    told |= {"vision_packing": "official", "numerics": "1", "tp_size": "0"}
    tensors = {"pixel_values": torch.randn(4, 1536), "image_grid_thw": torch.tensor([[1, 2, 2]])}
    body = save({**tensors, "input_ids": torch.arange(3)}, metadata=told)
    assert torch.equal(EncodeRequest.from_bytes(body).input_ids, torch.arange(3))


def test_tensors_that_are_not_aligned_are_copied():
    header = json.loads(request().pieces()[0][8:].tobytes())
    header["input_ids"]["data_offsets"], header["image_grid_thw"] = [0, 40], {
        "dtype": "I64", "shape": [0, 3], "data_offsets": [40, 40]
    }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (1 + -len(text) % 8)
    body = body_of(text, torch.arange(5).numpy().tobytes())
    assert torch.equal(EncodeRequest.from_bytes(body).input_ids, torch.arange(5))


REFUSED = {
    "nothing": (b"", "0 bytes whose first 8 announce 0"),
    "a header beyond the body": ((1 << 40).to_bytes(8, "little") + b"{}", "announce 1,099,511,627,776"),
    "a header beyond its bound": (body_of(b" " * (MAX_HEADER_BYTES + 1)), "announce 65,537"),
    "no JSON": (body_of(b"{nonsense}"), "header in JSON"),
    "deep JSON": (body_of(b"[" * 60_000), "header in JSON"),
    "a long number": (body_of(b'{"a":' + b"1" * 60_000 + b"}"), "header in JSON"),
    "a list": (body_of([]), "header object, got list"),
    "metadata of numbers": (body_of({"__metadata__": {"protocol": 1}}), "__metadata__ as texts"),
    "metadata as a list": (body_of({"__metadata__": []}), "__metadata__ as texts"),
    "an unknown tensor": (body_of({"weights": {}}), "got 'weights'"),
    "fields of another kind": (body_of({"input_ids": [1]}), "input_ids as I64"),
    "another dtype": (
        body_of({"input_ids": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        "input_ids as I64",
    ),
    "another rank": (
        body_of({"input_ids": {"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]}}, b"12345678"),
        "with 1 axis",
    ),
    "negative sizes": (
        body_of({"input_ids": {"dtype": "I64", "shape": [-1], "data_offsets": [0, 8]}}, b"12345678"),
        "input_ids as I64",
    ),
    "huge sizes": (
        body_of({"pixel_values": {"dtype": "F32", "shape": [1 << 39, 1 << 39], "data_offsets": [0, 8]}}, b"12345678"),
        "bytes of pixel_values",
    ),
    "other offsets": (
        body_of({"input_ids": {"dtype": "I64", "shape": [2], "data_offsets": [0, 8]}}, b"12345678"),
        "16 bytes of input_ids",
    ),
    "a gap": (
        body_of({"input_ids": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]}}, b"12345678" * 2),
        "fill 16 bytes",
    ),
    "bytes left over": (
        body_of({"input_ids": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}, b"12345678" * 2),
        "fill 16 bytes",
    ),
    "cut short": (request().to_bytes()[:-1], "fill 39 bytes"),
}


@pytest.mark.parametrize(("body", "said"), REFUSED.values(), ids=REFUSED)
def test_a_body_that_is_not_one_of_ours_is_refused_with_a_reason(body, said):
    with pytest.raises(ValueError, match="encode request: expected") as caught:
        EncodeRequest.from_bytes(body)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": "abc"}, {"checkpoint": DIGEST.upper()}, {"dtype": "float16"}, {"vision_packing": "all"},
        {"tap_layer": -1}, {"tap_layer": 10**10}, {"numerics": "x"}, {"tp_size": -1},
        {"input_ids": torch.arange(0)},
    ],
)  # fmt: skip
def test_a_value_that_no_request_has_is_refused(changes):
    with pytest.raises(ValueError, match="encode request: expected"):
        EncodeRequest.from_bytes(request(**changes).to_bytes())


def test_an_overlap_is_refused():
    entry = {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}
    body = body_of({"input_ids": entry, "token_tags": entry}, b"12345678")
    with pytest.raises(ValueError, match="got 'token_tags'"):
        EncodeRequest.from_bytes(body)
    overlapping = {"hidden": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}, "token_tags": entry}
    with pytest.raises(ValueError, match="fill 8 bytes"):
        EncodeReply.from_bytes(body_of(overlapping, b"12345678"))


def test_another_version_is_told_apart_from_a_damaged_body(monkeypatch):
    monkeypatch.setattr("h3te.encoder.parallel.protocol.PROTOCOL_VERSION", 2)
    body, state = request().to_bytes(), health(protocol=2).to_bytes()
    for read, given in ((EncodeRequest.from_bytes, body), (Health.from_bytes, state)):
        with pytest.raises(OtherProtocol, match=r"expected protocol 1, got '2'\. Use the same release"):
            read(given)


@pytest.mark.parametrize("changes", [{"token_tags": torch.ones(4, dtype=torch.int64)}, {"hidden": torch.ones(5, 0)}])
def test_a_reply_whose_tensors_do_not_belong_together_is_refused(changes):
    with pytest.raises(ValueError, match="encode reply: expected hidden states and tags of the same tokens"):
        EncodeReply.from_bytes(reply(**changes).to_bytes())


def test_a_reply_of_tags_alone_is_refused():
    body = save({"token_tags": torch.ones(5, dtype=torch.int64)}, metadata={"protocol": "1"})
    with pytest.raises(ValueError, match="got 0 and 5"):
        EncodeReply.from_bytes(body)


def test_health_and_job_states_come_back_as_they_were():
    assert Health.from_bytes(health().to_bytes()) == health()
    assert health().identity.weights == DIGEST
    state = JobState("running", 0, 3, 56, "layer 3 of 50")
    assert JobState.from_bytes(state.to_bytes()) == state


def test_texts_of_the_other_side_are_one_short_line():
    """They reach logs, nodes and files, which take no half characters."""
    told = json.loads(health().to_bytes()) | {"label": "h3: \n\x1b[31mbf16\ud800" + "x" * 10_000}
    label = Health.from_bytes(json.dumps(told).encode()).label
    assert label.startswith("h3:   [31mbf16 xx") and len(label) == 1000
    label.encode()
    assert JobState.from_bytes(JobState("running", what="layer\r\n1").to_bytes()).what == "layer  1"


def test_a_newer_worker_may_say_more():
    told = json.loads(health().to_bytes()) | {"more": 1}
    assert Health.from_bytes(json.dumps(told).encode()) == health()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": "abc"}, "expected a digest"), ({"dtype": "int8"}, "a compute dtype"),
        ({"tap_layer": "50"}, "tap_layer as int"), ({"loaded": 1}, "loaded as bool"), ({"config": []}, "config as"),
        ({"waiting": -1}, "waiting as int"), ({"tp_size": True}, "tp_size as int"),
    ],
)  # fmt: skip
def test_health_with_other_values_is_refused(changes, said):
    with pytest.raises(ValueError, match="health: expected") as caught:
        Health.from_bytes(json.dumps(json.loads(health().to_bytes()) | changes).encode())
    assert said in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"[" * 100_000, b" " * 2_000_000])
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(ValueError, match="This is not a worker of this pack"):
        Health.from_bytes(body)


def test_an_unknown_state_is_refused():
    with pytest.raises(ValueError, match="job state: expected one of waiting, running"):
        JobState.from_bytes(replace(JobState("done"), state="lost").to_bytes())


def test_errors_are_read_whatever_answered():
    assert error_text(error_body("a text")) == "a text"
    assert error_text(b"<html>Bad gateway\n\x1b[31m") == "<html>Bad gateway  [31m"
