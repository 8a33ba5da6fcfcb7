"""The loader with caches over the demo checkpoint, in a user directory and with stores of its own.

Contract: `load(name, **options)` runs the loader node; `encode` encodes as ComfyUI's nodes do, and asserts what became
of the request.
"""

from __future__ import annotations

import pytest

from .comfy_host import comfy  # noqa: F401 (fixture)
from .demo_host import demo_file, place, text_encoders  # noqa: F401 (fixtures)

NAME = "h3.safetensors"
LONG = "A red fox runs through deep snow at dawn while the old city sleeps below the hills and nobody sees it pass "


@pytest.fixture
def user(comfy, tmp_path, monkeypatch):  # noqa: F811
    """An own user directory, and stores of its own."""
    from h3te.nodes.host import caches

    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setattr(comfy.folder_paths, "get_user_directory", lambda: str(folder))
    for made in (caches.prefix_store, caches._store_in):
        made.cache_clear()
    return folder


@pytest.fixture
def load(user, text_encoders, demo_file):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptions
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    place(demo_file, text_encoders / NAME)

    def loaded(name: str = NAME, **options):
        return LoadTextEncoder.execute(name, "cpu", EncoderOptions(**options) if options else None)

    return loaded


def encode(clip, prompt: str, *pictures, expect: str):
    """CONDITIONING's tensor; the batch must say `expect` of the caches."""
    tokens = clip.tokenize(prompt, images=list(pictures))
    ((hidden, extras),) = clip.encode_from_tokens_scheduled(tokens)
    (batch,) = tokens.values()
    said = "none" if batch.status is None else batch.status.text()
    assert said == expect
    assert extras["minimax_token_tags"].shape == (hidden.shape[1],)
    return hidden
