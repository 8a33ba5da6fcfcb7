"""A worker of one process over HTTP: what it answers is what the encoder gives, to the bit."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
import torch
from h3te.encoder import EncoderConfig, load_encoder
from h3te.encoder.cache.identity import encoder_identity
from h3te.encoder.cache.prefixes import PrefixStore, PrefixUse
from h3te.encoder.checkpoint import inspect_checkpoint
from h3te.encoder.pack_version import pack_version
from h3te.encoder.parallel.worker.settings import Settings
from h3te_tests.local_worker import LocalWorker
from h3te_tests.parallel.requests import REQUESTS
from h3te_tests.tiny_weights import TAP_LAYER
from h3te_tests.worker_calls import call, encode, health, job_state, message, new_id, sent, text_request


def settings(checkpoint, **changes) -> Settings:
    given = {"tap_layer": TAP_LAYER, "port": 0, "device": "cpu", "prefix_bytes": 10_000_000}
    return Settings(checkpoint, **{**given, **changes})


@pytest.fixture(scope="module")
def worker(tiny_checkpoint):
    with LocalWorker(settings(tiny_checkpoint)) as running:
        yield running


@pytest.fixture(scope="module")
def local(tiny_checkpoint, tokenizer_folder):
    return load_encoder(tiny_checkpoint, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)


@pytest.mark.parametrize("packing", ["official", "per_reference"])
@pytest.mark.parametrize("name", REQUESTS)
def test_states_and_tags_are_those_of_a_local_encoder_to_the_bit(worker, local, name, packing):
    done = local.encode(*REQUESTS[name], vision_packing=packing)
    status, reply = encode(worker.address, sent(done, health(worker.address), vision_packing=packing))
    assert status == 200, reply
    assert torch.equal(reply.hidden, done.hidden[0])
    assert torch.equal(reply.token_tags, done.token_tags)
    assert reply.reused == reply.seen_before == 0
    assert reply.seconds > 0


def test_prefixes_are_reused_where_the_request_says_so(worker, local):
    store = PrefixStore(lambda: 10_000_000)
    prompt, given = REQUESTS["pictures"]
    for more in ("", " and more of it"):
        done = local.encode(prompt + more, given, prefixes=PrefixUse(store, "local"))
        request = sent(done, health(worker.address), vision_packing="per_reference", reuse=True)
        status, reply = encode(worker.address, request)
        assert (status, reply.reused, reply.seen_before) == (200, done.reused, done.seen_before)
        assert torch.equal(reply.hidden, done.hidden[0])
    assert reply.reused > 100
    assert encode(worker.address, replace(request, vision_packing="official"))[1].reused == 0


def test_health_says_what_a_local_encoder_is(worker, local, tiny_checkpoint):
    told = health(worker.address)
    identity = encoder_identity(local, inspect_checkpoint(tiny_checkpoint, TAP_LAYER))
    assert told.identity == identity
    assert EncoderConfig.from_dict(told.config) == local.config
    assert (told.tp_size, told.device, told.vision, told.pack) == (1, "cpu", True, pack_version())
    assert (told.dtype, told.tap_layer, told.weight_bytes) == ("bfloat16", TAP_LAYER, local.weight_bytes)
    limits = worker.settings.limits
    assert (told.queue_limit, told.body_limit, told.token_limit) == (limits.queue, limits.body_bytes, limits.tokens)


def test_unload_drops_the_weights_and_the_next_request_loads_them_again(worker):
    request = text_request(health(worker.address))
    first = encode(worker.address, request)[1]
    assert health(worker.address).loaded
    assert call(worker.address, "POST", "/unload")[0] == 200
    assert not health(worker.address).loaded
    assert not worker.engine.encoder.is_loaded
    assert torch.equal(encode(worker.address, request)[1].hidden, first.hidden)


@pytest.mark.parametrize("reader", ["read", "stream"])
def test_other_readers_give_the_same(tiny_checkpoint, worker, reader):
    request = text_request(health(worker.address))
    with LocalWorker(settings(tiny_checkpoint, reader=reader)) as other:
        assert torch.equal(encode(other.address, request)[1].hidden, encode(worker.address, request)[1].hidden)
        assert call(other.address, "POST", "/unload")[0] == 200
        assert torch.equal(encode(other.address, request)[1].hidden, encode(worker.address, request)[1].hidden)


def test_a_job_can_be_asked_for_when_it_is_done(worker):
    job = new_id()
    assert encode(worker.address, text_request(health(worker.address)), job)[0] == 200
    assert job_state(worker.address, job).state == "done"
    assert call(worker.address, "GET", f"/jobs/{new_id()}")[0] == 404
    assert call(worker.address, "POST", f"/jobs/{new_id()}/cancel")[0] == 404


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"checkpoint": "0" * 64}, 409, "expected checkpoint"),
        ({"dtype": "float32"}, 409, "expected dtype bfloat16"),
        ({"tap_layer": 50}, 409, f"expected tap_layer {TAP_LAYER}"),
        ({"numerics": 99}, 409, "expected numerics"),
        ({"tp_size": 2}, 409, "expected tp_size 1"),
        ({"input_ids": torch.tensor([10**7])}, 400, "encode_ids: expected ids from 0"),
        ({"pixel_values": torch.zeros(4, 1536)}, 400, "expected pixel_values and image_grid_thw together"),
        ({"vision_packing": "some"}, 400, "expected vision_packing"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_waits(worker, changes, status, said):
    found, text = encode(worker.address, text_request(health(worker.address), **changes))
    assert (found, said in text) == (status, True), text


def test_pads_without_pictures_are_refused_with_both_numbers(worker, local):
    request = replace(sent(local.encode(*REQUESTS["pictures"]), health(worker.address)), pixel_values=None)
    status, text = encode(worker.address, replace(request, image_grid_thw=None))
    assert status == 400
    assert "expected" in text and "pads" in text


def test_a_body_that_is_no_request_is_refused(worker):
    assert encode(worker.address, b"nonsense that is long enough") == (
        400,
        "encode request: expected a safetensors body with a header of at most 65,536 bytes, got 28 bytes whose first 8 "
        "announce 7,310,308,002,159,816,558. Send one body in the safetensors format.",
    )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/encode", 405), ("POST", "/health", 405), ("OPTIONS", "/encode", 405)],
)
def test_other_routes_answer_in_json(worker, method, path, status):
    found, body = call(worker.address, method, path)
    assert found == status
    assert "expected a route of this protocol" in message(body)


def test_a_job_id_is_needed_and_used_once(worker):
    request, job = text_request(health(worker.address)), new_id()
    assert encode(worker.address, request, "no hex digits")[0] == 400
    assert encode(worker.address, request, job)[0] == 200
    status, text = encode(worker.address, request, job)
    assert (status, "expected a new job id" in text) == (400, True)


def test_a_packed_body_is_refused_unpacked(worker):
    """Its Content-Length bounds what is read; unpacked it could be of any size."""
    body = zlib.compress(text_request(health(worker.address)).to_bytes())
    for encoding in ("deflate", "gzip"):
        status, text = encode(worker.address, body, Content_Encoding=encoding)
        assert (status, f"expected a body as it is, got Content-Encoding '{encoding}'" in text) == (400, True), text


def test_a_body_of_unknown_length_is_refused(worker):
    status, body = call(worker.address, "POST", "/encode", iter([b"12"]), X_H3TE_Job=new_id())
    assert (status, "expected a Content-Length" in message(body)) == (400, True)
