"""A CLIP over a worker in ComfyUI: the same states, caches, Stop and texts as a local one; what it refuses."""

from __future__ import annotations

import time

import pytest
import torch
from h3te_tests.cache_host import encode
from h3te_tests.comfy_host import picture
from h3te_tests.demo_host import place
from h3te_tests.remote_host import (  # noqa: F401 (fixtures)
    WIDTH,
    comfy,
    demo_file,
    demo_reply,
    demo_told,
    fake_worker,
    load,
    load_local,
    serve,
    text_encoders,
    user,
)

WEIGHT = "qwen3vl_32b.transformer.model.layers.0.mlp.down_proj.weight"


def expected(clip, prompt: str, *pictures) -> torch.Tensor:
    """What the fake worker answers."""
    (batch,) = clip.tokenize(prompt, images=list(pictures)).values()
    return (batch.sequence.ids % 97).float()[None, :, None].expand(1, -1, WIDTH).bfloat16().float()


# one real worker


def test_states_of_a_worker_are_those_of_a_local_encoder_to_the_bit(load, load_local, text_encoders):  # noqa: F811
    from h3te.encoder.parallel.worker.settings import Settings
    from h3te.nodes.host import caches
    from h3te_tests.cache_host import NAME
    from h3te_tests.local_worker import LocalWorker

    def texts_and_pictures(clip) -> list[torch.Tensor]:
        return [
            encode(clip, "a fox <d>hi</d>", expect="miss"),
            encode(clip, "a wolf near <Picture 2>", picture(1, 64, 64), picture(2, 160, 96), expect="miss"),
        ]

    with LocalWorker(Settings(text_encoders / NAME, port=0, device="cpu")) as worker:
        at = f"127.0.0.1:{worker.address[1]}"
        for options in ({}, {"exact": True}):
            there = texts_and_pictures(load(at, NAME, **options).args[0])
            caches.clear("all")
            here = texts_and_pictures(load_local(**options).args[0])
            caches.clear("all")
            assert all(torch.equal(*pair) for pair in zip(there, here, strict=True))


# what is asked


def test_loader_opens_nothing_and_says_who_computes(load, serve):  # noqa: F811
    worker = serve(tp_size=2, device="cuda:0", waiting=1)
    output = load(worker)
    said = output.ui["text"][0].splitlines()
    assert said[0] == worker.health.label
    assert said[1] == f"computed by {worker.at}, 2 ranks on cuda:0 in bfloat16; no checkpoint is opened here"
    assert said[2] == "takes up to 100,000 tokens and 1.00 GB a request; 1 of at most 8 requests wait"
    assert said[3] == "caches: prefixes as the worker keeps them; conditioning in RAM"
    assert worker.paths() == ["/health"]
    assert output.args[0].load_model() is output.args[0].patcher
    assert not output.args[0].encoder.is_loaded


def test_request_is_asked_once_and_then_answered_from_the_cache(load, serve):  # noqa: F811
    worker = serve()
    clip = load(worker).args[0]
    first = encode(clip, "a fox", picture(1), expect="miss")
    assert torch.equal(first, expected(clip, "a fox", picture(1)))
    (got,) = worker.requests
    assert (got.vision_packing, got.reuse, got.pixel_values.dtype) == ("per_reference", True, torch.bfloat16)
    worker.stop()
    assert torch.equal(first, encode(clip, "a fox", picture(1), expect="hit (RAM)"))
    with pytest.raises(RuntimeError, match="expected a worker that answers, got none"):
        encode(clip, "a wolf", expect="miss")


@pytest.mark.parametrize("options", [{"exact": True}, {"prefix_cache_gb": 0}])
def test_without_prefixes_pictures_are_seen_as_released(load, serve, options):  # noqa: F811
    worker = serve()
    encode(load(worker, **options).args[0], "a fox", picture(1), expect="miss")
    assert (worker.requests[0].vision_packing, worker.requests[0].reuse) == ("official", False)


def test_local_and_remote_answer_for_each_other_at_one_rank_alone(load, load_local, serve):  # noqa: F811
    clip = load_local().args[0]
    first = encode(clip, "a fox", expect="miss")
    assert torch.equal(first, encode(load(serve()).args[0], "a fox", expect="hit (RAM)"))
    two = serve(tp_size=2)
    assert not torch.equal(first, encode(load(two).args[0], "a fox", expect="miss"))
    encode(load(two).args[0], "a fox", expect="hit (RAM)")
    encode(load(serve(tp_size=4)).args[0], "a fox", expect="miss")


def test_request_names_the_ranks_that_its_key_is_of(load, serve):  # noqa: F811
    """A worker that was started again with others must not answer: its states would be kept under a false key."""
    worker = serve(tp_size=2)
    encode(load(worker).args[0], "a fox", expect="miss")
    assert [request.tp_size for request in worker.requests] == [2]


def test_worker_tells_what_it_reused(load, serve):  # noqa: F811
    from dataclasses import replace

    worker = serve(lambda request: replace(demo_reply(request), reused=1))
    encode(load(worker).args[0], "a fox", expect="prefix 1 of 2 tokens")


def test_prompts_of_one_call_are_jobs_of_their_own(load, serve):  # noqa: F811
    worker = serve()
    clip = load(worker).args[0]
    assert not clip.shares_pass()
    tokens = clip.tokenize_each(["a fox", "a wolf in the snow"], images=[picture(1)])
    done = [entry[0][0] for entry in clip.encode_each(tokens)]
    assert all(
        torch.equal(one, expected(clip, prompt, picture(1)))
        for one, prompt in zip(done, ["a fox", "a wolf in the snow"], strict=True)
    )
    assert len(worker.requests) == 2


def test_node_says_where_it_was_encoded(load, serve):  # noqa: F811
    from h3te.nodes.host.any_clip import Ask, encode_all

    worker = serve()
    clip = load(worker).args[0]
    (done,) = encode_all([Ask(clip, "a fox", {"images": [picture(1)]})], "node")
    assert done.details[0] == clip.label
    assert done.details[1] == f"encoded by {worker.at}, 1 rank"
    assert done.details[2].startswith("0.5 s of computing, ")
    assert "cache: miss" in done.summary and not done.notes
    assert (done.facts["encoder"], done.facts["dtype"]) == (worker.health.label, "bfloat16")
    (again,) = encode_all([Ask(clip, "a fox", {"images": [picture(1)]})], "node")
    assert "answered from the cache: no weight was read" in again.details


def test_weights_are_unloaded_after_the_encode_when_the_options_say_so(load, serve):  # noqa: F811
    from h3te_tests.fake_worker import FakeWorker

    worker = serve()
    clip = load(worker, unload_after_encode=True).args[0]
    clip.encode_from_tokens(clip.tokenize("a fox"))
    assert worker.paths() == ["/health", "/encode", "/unload"]
    assert "weights unloaded after the encode, as the options say" in clip.run.lines()

    async def refuses(request):
        return FakeWorker._error(503, "worker: busy")

    worker.instead["/unload"] = refuses
    assert clip.encode_from_tokens(clip.tokenize("a wolf")).shape == (1, 2, WIDTH)
    assert clip.run.lines()[-1].startswith("the worker keeps its weights: ")


def test_stop_cancels_the_job_and_leaves_within_a_second(load, serve, comfy):  # noqa: F811
    worker, management = serve(), comfy.model_management
    clip = load(worker).args[0]
    worker.hold.set()

    def stop(self, *step) -> None:
        if step[1]:
            management.interrupt_current_processing(True)
        real(self, *step)

    from h3te.nodes.host import remote_computing

    real = remote_computing.HostProgress.__call__
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(management.InterruptProcessingException):
        patch.setattr(remote_computing.HostProgress, "__call__", stop)
        encode(clip, "a fox", expect="miss")
    assert time.monotonic() - began < 2
    worker.hold.clear()
    assert torch.equal(encode(clip, "a fox", expect="miss"), expected(clip, "a fox"))


def test_cache_only_asks_no_worker(load, load_local, serve):  # noqa: F811
    from h3te.nodes.host import cache_only

    first = encode(load_local(conditioning_cache="ram and disk").args[0], "a fox", expect="miss")
    worker = serve()
    clip = load(worker, cache_only=cache_only.choices()[1]).args[0]
    assert torch.equal(first, encode(clip, "a fox", expect="hit (RAM)"))
    assert not worker.asked


# what is refused


def test_checkpoint_that_is_chosen_and_there_must_be_the_workers(load, serve, text_encoders, demo_file):  # noqa: F811
    place(demo_file, text_encoders / "mine.safetensors")
    worker = serve()
    assert "serves the very weights of mine.safetensors" in load(worker, "mine.safetensors").ui["text"][0]
    load(worker, "gone.safetensors")  # nothing to compare with
    other = serve(weights="b" * 64, label="other.safetensors: nvfp4")
    with pytest.raises(ValueError, match=r"to serve what is chosen here \(mine\.safetensors: .*\), got other\.s"):
        load(other, "mine.safetensors")
    load(other)


@pytest.mark.parametrize(
    ("told", "options", "message"),
    [
        ({}, {"dtype": "float32"}, "expected dtype auto or bfloat16, in which the worker at .* got float32"),
        ({}, {"backend": "official"}, "expected backend encoder with remote '127.*, got official"),
        ({"numerics": 99}, {}, r"expected results of numerics 1, got 99 \(its pack is 0\.1\.0\)"),
        ({"tap_layer": 20}, {}, "expected hidden states after layer 50, got layer 20"),
    ],
)
def test_worker_that_computes_otherwise_is_refused_at_the_loader(load, serve, told, options, message):  # noqa: F811
    with pytest.raises((ValueError, RuntimeError), match=message):
        load(serve(**told), **options)


def test_lora_is_refused_by_name_and_strength_0_is_none(load, serve, comfy):  # noqa: F811
    clip = load(serve()).args[0].clone()
    rows, columns = clip.patcher.model.state_dict()[WEIGHT].shape
    file = {"x.lora_up.weight": torch.ones(rows, 1), "x.lora_down.weight": torch.ones(1, columns)}
    lora = comfy.lora.load_lora(file, {"x": WEIGHT})
    message = "expected a remote text encoder as the worker loaded it, got a LoRA on 1 of its weights"
    with pytest.raises(ValueError, match=message):
        clip.add_patches(lora, 0.5)
    clip.add_patches(lora, 0.0)
    hook = comfy.hooks.WeightHook()
    with pytest.raises(ValueError, match="got a LoRA hook on 1 of its weights"):
        clip.patcher.add_hook_patches(hook, lora, 0.5)
    assert clip.patcher.add_hook_patches(hook, lora, 0.0) == set()
    encode(clip, "a fox", expect="miss")
    clip.patcher.object_patches["x"] = object()
    with pytest.raises(ValueError, match="got patches that run code"):
        encode(clip, "a wolf", expect="none")


def test_schedule_of_hooks_without_a_lora_for_the_encoder_is_served(load, serve, comfy):  # noqa: F811
    clip = load(serve()).args[0].clone()
    hooks = comfy.hooks.create_hook_lora({}, strength_model=1.0, strength_clip=0.0)
    clip.patcher.forced_hooks, clip.use_clip_schedule = hooks.clone(), True
    clip.patcher.register_all_hook_patches(hooks, comfy.hooks.create_target_dict(comfy.hooks.EnumWeightTarget.Clip))
    entries = clip.encode_from_tokens_scheduled(clip.tokenize("a fox"))
    assert entries and all(torch.equal(cond, expected(clip, "a fox")) for cond, _ in entries)


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"token_limit": 50}, r"expected at most 50 tokens for 127\..*, got 8"),
     ({"body_limit": 10_000}, r"expected a request of at most 0 MB for 127\..*, got")],
)  # fmt: skip
def test_request_beyond_the_workers_limits_is_not_sent(load, serve, limits, message):  # noqa: F811
    worker = serve(**limits)
    clip = load(worker).args[0]
    with pytest.raises(ValueError, match=message):
        encode(clip, "a fox", picture(1), expect="miss")
    assert worker.paths() == ["/health"]


@pytest.mark.parametrize("fault", ["tags", "length", "width", "dtype", "nan", "counts"])
def test_answer_to_something_else_is_neither_used_nor_kept(load, serve, fault):  # noqa: F811
    from h3te.encoder.parallel.protocol import EncodeReply

    def answer(request):
        reply = demo_reply(request)
        states, tags = reply.hidden.clone(), reply.token_tags.clone()
        if fault == "tags":
            tags[0] = 0
        elif fault == "length":
            states, tags = states[:1], tags[:1]
        elif fault == "width":
            states = states[:, :32].contiguous()
        elif fault == "dtype":
            states = states.float()
        elif fault == "nan":
            states[0, 0] = float("nan")
        return EncodeReply(states, tags, reused=999_999_999 if fault == "counts" else 0)

    worker = serve(answer)
    clip = load(worker).args[0]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"expected finite torch\.bfloat16 states \[2, 64\] with the tags"):
            encode(clip, "a fox", expect="miss")
    assert len(worker.requests) == 2


def test_worker_that_serves_another_checkpoint_by_now_is_one_clear_error(load, serve):  # noqa: F811
    from h3te_tests.fake_worker import FakeWorker

    worker = serve()
    clip = load(worker).args[0]

    async def mismatch(request):
        return FakeWorker._error(409, "worker: expected checkpoint aa, got bb. Load it")

    worker.instead["/encode"] = mismatch
    with pytest.raises(RuntimeError, match=r"expected checkpoint aa, got bb\. Load it \(HTTP 409\)\. Load the"):
        encode(clip, "a fox", expect="miss")


def test_what_has_no_bar_is_said_once_and_nothing_is_not_said(caplog):
    from h3te.nodes.host.remote_computing import _Progress

    progress = _Progress("127.0.0.1:8189")
    with caplog.at_level("INFO"):
        for step in (
            (0, 0, "sent to the worker"),
            (0, 0, "waiting, 1 before you"),
            (0, 0, "waiting, 1 before you"),
            (0, 0, ""),
        ):
            progress(*step)
    assert [said.rpartition(": ")[2] for said in caplog.messages] == ["sent to the worker", "waiting, 1 before you"]
