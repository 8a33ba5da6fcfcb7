"""Whatever goes wrong during an encode, and wherever Stop is pressed: the next request gives the very same bits."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from h3te_tests.comfy_host import comfy, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.packed_host import leaves, open_as, stored_as  # noqa: F401 (fixtures)

PICTURES = [
    {"type": "image", "data": torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(1))},
    {
        "type": "video",
        "data": torch.rand(2, 64, 64, 3, generator=torch.Generator().manual_seed(2)),
        "timestamps": [0, 1],
    },
]
SAMPLED = ["int8_convrot", "nvfp4_awq streamed", "bf16 streamed"]


class Fault(Exception):
    pass


def encode(clip) -> torch.Tensor:
    return clip.encode_from_tokens(clip.tokenize("a fox", minimax_ref_items=PICTURES))


@pytest.fixture
def fault(comfy, monkeypatch):  # noqa: F811
    """`with fault(index) as count:` the borrow of that index raises; count[0]: how many there were."""
    from h3te.nodes.host.leaf import HostLeaf

    real = HostLeaf.borrow

    @contextmanager
    def planted(index: int, after: bool = False):
        count = [0]

        @contextmanager
        def borrow(leaf, x):
            count[0] += 1
            if count[0] - 1 == index and not after:
                raise Fault(index)
            with real(leaf, x) as lent:
                yield lent
            if count[0] - 1 == index:
                raise Fault(index)

        with monkeypatch.context() as patch:
            patch.setattr(HostLeaf, "borrow", borrow)
            yield count

    return planted


def borrows(clip, fault) -> int:
    with fault(-1) as count:
        encode(clip)
    return count[0]


def test_a_fault_at_every_borrow_leaves_the_next_request_right(tiny_clip, fault):  # noqa: F811
    expected, count = encode(tiny_clip), borrows(tiny_clip, fault)
    assert count > 150
    for index in range(count):
        with fault(index, after=bool(index % 2)), pytest.raises(Fault):
            encode(tiny_clip)
        assert torch.equal(encode(tiny_clip), expected), index


@pytest.mark.parametrize("kind", SAMPLED)
def test_a_fault_at_a_borrow_of_packed_and_streamed_weights(open_as, fault, kind):  # noqa: F811
    clip = open_as(kind)
    expected, count = encode(clip), borrows(clip, fault)
    for index in range(0, count, 11):
        with fault(index), pytest.raises(Fault):
            encode(clip)
        assert not any(leaf.staged for leaf in leaves(clip)), index
        assert torch.equal(encode(clip), expected), index


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_fault_while_partly_loaded(tiny_clip, fault, share):  # noqa: F811
    expected, patcher = encode(tiny_clip), tiny_clip.patcher
    for index in (0, 40, 100, 150):
        patcher.partially_unload(patcher.offload_device, (1 - share) * patcher.model_size())
        presentation = tiny_clip.tokenize("a fox", minimax_ref_items=PICTURES)["qwen3vl_32b"].presentation
        with fault(index), pytest.raises(Fault):
            tiny_clip.encoder.encode_presentation(presentation)
        assert torch.equal(encode(tiny_clip), expected), index
        assert patcher.loaded_size() == patcher.model_size()


def test_a_fault_on_the_thread_that_fetches_ahead(open_as, monkeypatch):  # noqa: F811
    from h3te.encoder.checkpoint.rest import Streamed

    clip = open_as("bf16 streamed")
    expected, real, calls = encode(clip), Streamed.parts, [0]

    def parts(self):
        calls[0] += 1
        if calls[0] == 60:
            raise Fault
        return real(self)

    monkeypatch.setattr(Streamed, "parts", parts)
    with pytest.raises(Fault):
        encode(clip)
    assert torch.equal(encode(clip), expected)


@pytest.mark.parametrize("kind", ["bf16", *SAMPLED])
def test_stop_at_every_step_leaves_the_next_request_right(comfy, open_as, monkeypatch, kind):  # noqa: F811
    from h3te.nodes.host import local_computing as module

    clip, management = open_as(kind), comfy.model_management
    expected, real = encode(clip), module.HostProgress.__call__

    def stopped_at(step: int):
        def call(self, done, total, what):
            if what != "weights" and done == step:
                management.interrupt_current_processing(True)
            real(self, done, total, what)

        return call

    for step in range(1, 12):  # six vision blocks, five layers
        monkeypatch.setattr(module.HostProgress, "__call__", stopped_at(step))
        with pytest.raises(management.InterruptProcessingException):
            encode(clip)
        monkeypatch.setattr(module.HostProgress, "__call__", real)
        assert torch.equal(encode(clip), expected), step
