"""What several GPUs and a network cost, computed: bytes and operations of a request at the released sizes, and seconds.

Contract: `Work(tokens, frames)` counts operations of a request (frames: patches of each picture or pair of video
frames), `reduced_bytes(tokens)` what ranks add up. `Machine` is what is assumed of GPUs and links; its methods give
seconds. Nothing here is measured; scaling_page.py writes the tables of docs/scaling.md from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pack import h3te_module
from shapes import KEYFRAME, PROMPT, REFERENCE

LAYERS, PATCH, MERGED = 50, 16, 4
FLOAT32 = 4  # bytes
CLEARLY, MOST_TOKENS = 0.1, 65_536
LABEL_AND_MARKERS = 8  # tokens of a picture beside its pads


def released():
    """The EncoderConfig of the released model."""
    return h3te_module("encoder.parallel.cut_table").RELEASED


@dataclass(frozen=True)
class Work:
    """tokens: of the sequence, pads of pictures included."""

    tokens: int
    frames: tuple[int, ...] = ()

    @property
    def patches(self) -> int:
        return sum(self.frames)

    def decoder(self) -> float:
        """Floating-point operations of the layers: products, and attention over the causal half."""
        text = released().text
        query, key = (heads * text.head_dim for heads in (text.num_attention_heads, text.num_key_value_heads))
        weights = text.hidden_size * (2 * query + 2 * key + 3 * text.intermediate_size)
        return LAYERS * (2.0 * self.tokens * weights + 2.0 * self.tokens**2 * query)

    def vision(self) -> float:
        """Of the tower and its mergers, which every rank computes whole; each picture attends to itself."""
        of = released().vision
        width, merged = of.hidden_size, MERGED * of.hidden_size
        block = 2.0 * self.patches * (4 * width**2 + 2 * width * of.intermediate_size)
        attention = sum(4.0 * patches**2 * width for patches in self.frames)
        mergers = (1 + len(of.deepstack_visual_indexes)) * merged * (merged + of.out_hidden_size)
        return of.depth * (block + attention) + 2.0 * self.patches / MERGED * mergers


def pictures(size: tuple[int, int], count: int) -> Work:
    """A prompt of PROMPT tokens behind `count` pictures of this width and height."""
    patches = math.prod(side // PATCH for side in size)
    return Work(PROMPT + count * (patches // MERGED + LABEL_AND_MARKERS), (patches,) * count)


TASKS = {"prompt": Work(PROMPT), "two keyframes": pictures(KEYFRAME, 2), "nine references": pictures(REFERENCE, 9)}


def reduced_bytes(tokens: int, layers: int = LAYERS, width: int | None = None) -> int:
    """Float32 bytes that each rank gives into sums in one encode: two of [S, D] a layer, the embeddings', and one value
    at the end (is a result not finite on some rank?)."""
    return (2 * layers + 1) * sum_bytes(tokens, width) + FLOAT32


def sum_bytes(tokens: int, width: int | None = None) -> int:
    """Of one sum."""
    return tokens * (width or released().text.hidden_size) * FLOAT32


@dataclass(frozen=True)
class Link:
    """gbytes: GB/s that a ring of all-reduce keeps up in each direction; step: seconds of each of 2 (N - 1) steps."""

    name: str
    gbytes: float
    step: float

    def reduce(self, nbytes: int, ranks: int) -> float:
        """Seconds of one all-reduce: a ring sends 2 (N - 1) / N of the bytes over each link."""
        steps = 2 * (ranks - 1)
        return steps / ranks * nbytes / (self.gbytes * 1e9) + steps * self.step


@dataclass(frozen=True)
class Machine:
    """tflops: bf16 products as achieved, of each GPU; memory: GB/s of its own memory; stream: GB/s from pinned RAM to
    it; agree: seconds in which the ranks of the worker agree before each step and each sum."""

    tflops: float = 150.0
    memory: float = 900.0
    stream: float = 25.0
    agree: float = 1e-4
    links: tuple[Link, ...] = (Link("PCIe 4.0 x16", 12.0, 2e-5), Link("NVLink", 200.0, 5e-6))

    def vision(self, work: Work) -> float:
        return work.vision() / (self.tflops * 1e12)

    def decoder(self, work: Work, weights: float, ranks: int = 1) -> float:
        """The products of one rank, or reading its weights once a layer, whatever takes longer."""
        return max(work.decoder() / (self.tflops * 1e12), weights / (self.memory * 1e9)) / ranks

    def sums(self, work: Work, link: Link, ranks: int) -> float:
        each = link.reduce(sum_bytes(work.tokens), ranks) + self.agree
        return (2 * LAYERS + 1) * each + LAYERS * self.agree

    def whole(self, work: Work, weights: float) -> float:
        """One GPU that holds all of them."""
        return self.vision(work) + self.decoder(work, weights)

    def parallel(self, work: Work, weights: float, link: Link, ranks: int) -> float:
        """N GPUs that share them; nothing overlaps."""
        return self.vision(work) + self.decoder(work, weights, ranks) + self.sums(work, link, ranks)

    def streamed(self, work: Work, weights: float, resident: float = 0.0) -> float:
        """One GPU that holds `resident` of the bytes and copies the rest while it computes."""
        copying = max(0.0, weights - resident) / (self.stream * 1e9)
        return self.vision(work) + max(self.decoder(work, weights), copying)


def first_false(is_true: Callable[[int], bool], least: int = 16, most: int = MOST_TOKENS) -> int:
    """The smallest number of tokens, in steps of 2 %, at which it does not hold; `most` where it always does."""
    tokens = least
    while tokens < most and is_true(tokens):
        tokens += max(1, tokens // 50)
    return min(tokens, most)


def pays_until(machine: Machine, weights: float, link: Link, ranks: int) -> int:
    """Up to this many tokens of text, `ranks` GPUs are faster by CLEARLY than one to which weights are streamed."""
    return first_false(
        lambda tokens: (
            machine.parallel(Work(tokens), weights, link, ranks)
            <= (1 - CLEARLY) * machine.streamed(Work(tokens), weights)
        )
    )
