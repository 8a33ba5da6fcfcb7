"""Random requests against the official path: ids, tags, grids, pixels, positions, and hidden states to the last bit.

The examples are the same on every run. Pictures are small; sizes, counts, order, sounds, times and text are free.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("transformers.models.qwen3_vl")
pytest.importorskip("torchvision")

from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te.encoder.tokens import ADDED_TOKENS
from h3te_tests.oracle_pair import DTYPES, Pair, Tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

REPEATABLE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
RESERVED = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PIECES = [token for token in ADDED_TOKENS if token not in RESERVED]
PIECES += [
    "<Picture 1>",
    "<Picture 4>",
    "<Video 1>: ",
    "(fox:1.2)",
    "\\(",
    " a",
    "狐",
    "\n",
    "e\u0301",
    "7",
    "<0.2 seconds>",
]

sides = st.integers(1, 96)
seeds = st.integers(0, 2**16)
prompts = st.one_of(
    st.just(""),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.text(max_size=30).filter(lambda text: not any(token in text for token in RESERVED)),
)


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(0, 256, shape, dtype=np.uint8)


@st.composite
def images(draw) -> ImageReference:
    return ImageReference(noise(draw(seeds), draw(sides), draw(sides), 3))


@st.composite
def clips(draw) -> VideoReference:
    """24 fps frames that are sampled here."""
    frames = noise(draw(seeds), draw(st.integers(13, 80)), draw(sides), draw(sides), 3)
    return VideoReference(frames, has_audio=draw(st.booleans()))


@st.composite
def samples(draw) -> VideoReference:
    """Frames with times of their own, in any order."""
    times = draw(st.lists(st.floats(0, 1e4).map(lambda t: round(t, 3)), min_size=2, max_size=7))
    frames = noise(draw(seeds), len(times), draw(sides), draw(sides), 3)
    return VideoReference(frames, has_audio=draw(st.booleans()), timestamps=tuple(times))


references = st.lists(st.one_of(images(), clips(), samples(), st.just(AudioReference())), max_size=5)


@pytest.fixture(scope="module")
def tokenizers(tokenizer_folder, tmp_path_factory) -> Tokenizers:
    return Tokenizers(tokenizer_folder, tmp_path_factory.mktemp("official") / "tokenizer")


@pytest.fixture(scope="module", params=DTYPES, ids=["float32", "bfloat16"])
def pair(request, tokenizers) -> Pair:
    return Pair(request.param, tokenizers)


@pytest.fixture(scope="module")
def layout(tokenizers) -> Pair:
    return Pair(torch.float32, tokenizers)


def is_empty(prompt: str, given_references: list) -> bool:
    """The official path has nothing to say to no tokens at all; test_tokens.py has our rule."""
    return not prompt and not given_references


@settings(REPEATABLE, max_examples=80)
@given(prompt=prompts, given_references=references)
def test_any_request_is_laid_out_as_released(layout, prompt, given_references):
    if not is_empty(prompt, given_references):
        layout.same_request(prompt, given_references)


@settings(REPEATABLE, max_examples=25)
@given(prompt=prompts, given_references=references)
def test_any_request_has_the_released_hidden_states(pair, prompt, given_references):
    if not is_empty(prompt, given_references):
        pair.same_states(prompt, given_references)
