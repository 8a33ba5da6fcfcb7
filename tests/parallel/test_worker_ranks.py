"""Workers of 2 and 4 ranks, started as people start them: the same answers, the same refusals, no rank left waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from h3te.encoder import load_encoder
from h3te_tests.parallel.requests import REQUESTS
from h3te_tests.parallel.workers import StartedWorker
from h3te_tests.tiny_weights import TAP_LAYER
from h3te_tests.worker_calls import (
    Encoding,
    begin,
    call,
    encode,
    health,
    job_state,
    new_id,
    received,
    sent,
    text_request,
    until,
)

SIZES = (2, 4)
LONG = 12_000  # tokens: seconds of work, so that something can happen meanwhile


@pytest.fixture(scope="module", params=SIZES)
def worker(request, shared_checkpoint):
    options = ("--dtype", "float32", "--prefix-gb", "0.1", "--body-limit", "10")
    with StartedWorker(shared_checkpoint, request.param, *options) as running:
        yield running


@pytest.fixture(scope="module")
def local(shared_checkpoint, tokenizer_folder):
    options = {"dtype": torch.float32, "tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder}
    return load_encoder(shared_checkpoint, **options)


def largest_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def works(worker) -> None:
    status, reply = encode(worker.address, text_request(health(worker.address)))
    assert status == 200, reply


def test_every_modality_is_that_of_one_process(worker, local):
    errors = {}
    for name, request in REQUESTS.items():
        done = local.encode(*request)
        status, reply = encode(worker.address, sent(done, health(worker.address)))
        assert status == 200, reply
        assert torch.equal(reply.token_tags, done.token_tags)
        errors[name] = largest_error(reply.hidden, done.hidden[0])
    print(worker.size, errors)
    assert max(errors.values()) <= 1e-5


def test_prefixes_are_reused_on_all_ranks_alike(worker, local):
    told = health(worker.address)
    for more, least in (("", 0), (" and more of it", 100), (" and less", 100)):
        done = local.encode(REQUESTS["pictures"][0] + more, REQUESTS["pictures"][1], vision_packing="per_reference")
        request = sent(done, told, vision_packing="per_reference", reuse=True)
        status, reply = encode(worker.address, request)
        assert (status, reply.reused >= least) == (200, True)
        assert largest_error(reply.hidden, done.hidden[0]) <= 1e-5


def test_health_names_the_ranks_and_the_same_checkpoint(worker, shared_checkpoint):
    told = health(worker.address)
    assert told.tp_size == worker.size
    with StartedWorker(shared_checkpoint, 1, "--dtype", "float32") as one:
        alone = health(one.address)
        assert (alone.weights, alone.identity, alone.config) == (told.weights, told.identity, told.config)
        assert alone.weight_bytes > told.weight_bytes


def test_nothing_listens_where_other_machines_reach_it(worker):
    """Neither the worker, nor what its ranks meet and sum over: only the first asks for a token."""
    family = [worker.launcher, *worker.ranks]
    listening = [each.laddr.ip for process in family for each in process.net_connections("inet") if not each.raddr]
    assert listening and all(ip in ("127.0.0.1", "::1") for ip in listening), listening


def test_a_cancelled_job_ends_on_all_ranks(worker):
    running = Encoding(worker.address, text_request(health(worker.address), LONG))
    until(lambda: job_state(worker.address, running.job).done >= 1)
    call(worker.address, "POST", f"/jobs/{running.job}/cancel")
    assert running.outcome()[0] == 410
    works(worker)


def test_a_client_that_is_gone_ends_its_job_on_all_ranks(worker):
    job = new_id()
    sock = begin(worker.address, text_request(health(worker.address), LONG), job)
    until(lambda: job_state(worker.address, job).state == "running")
    sock.close()
    until(lambda: job_state(worker.address, job).state == "cancelled")
    works(worker)


def test_what_is_refused_does_not_reach_the_ranks(worker):
    told = health(worker.address)
    request = text_request(told)
    assert encode(worker.address, replace(request, checkpoint="0" * 64))[0] == 409
    assert encode(worker.address, replace(request, input_ids=torch.tensor([10**7])))[0] == 400
    large = torch.zeros(1800, 1536), torch.tensor([[1, 30, 60]])
    assert encode(worker.address, replace(request, pixel_values=large[0], image_grid_thw=large[1]))[0] == 413
    works(worker)


def test_slow_readers_and_senders_hold_nobody(worker):
    reader = begin(worker.address, text_request(health(worker.address), LONG), new_id())
    sender_job = new_id()
    sender = begin(worker.address, text_request(health(worker.address), 2000), sender_job, most=5000)
    until(lambda: job_state(worker.address, sender_job).what == "receiving")
    works(worker)
    works(worker)
    assert received(sender).startswith(b"HTTP/1.1 408")
    reader.close()
    works(worker)


def test_weights_are_dropped_on_all_ranks_and_loaded_again(worker):
    works(worker)
    assert call(worker.address, "POST", "/unload")[0] == 200
    assert not health(worker.address).loaded
    works(worker)
    assert health(worker.address).loaded


def test_a_token_is_wanted_by_several_ranks_too(shared_checkpoint):
    token = "0123456789abcdef"
    with StartedWorker(shared_checkpoint, 2, H3TE_WORKER_TOKEN=token) as worker:
        assert call(worker.address, "GET", "/health")[0] == 401
        assert call(worker.address, "GET", "/health", Authorization=f"Bearer {token}")[0] == 200
        assert token not in worker.said()
