"""The loader over a worker, in ComfyUI: a user directory of its own, and fake workers that serve the demo checkpoint.

Contract: `serve(**changes)` starts one without weights, whose states tell the tokens; `load(worker, ...)` runs the
loader node with its address.
"""

from __future__ import annotations

import pytest
import torch

from .cache_host import load as load_local  # noqa: F401 (fixture)
from .cache_host import user  # noqa: F401 (fixture)
from .comfy_host import comfy  # noqa: F401 (fixture)
from .demo_host import demo_file, text_encoders  # noqa: F401 (fixtures)
from .fake_worker import fake_worker  # noqa: F401 (fixture)

WIDTH = 64  # of the demo checkpoint


def demo_reply(request):
    """States that tell the token; tags as every worker makes them of ids."""
    from h3te.encoder.parallel.protocol import EncodeReply
    from h3te.encoder.tokens import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START

    marks = torch.tensor([VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD])
    states = (request.input_ids[:, None] % 97).expand(-1, WIDTH).to(getattr(torch, request.dtype)).contiguous()
    return EncodeReply(states, (~torch.isin(request.input_ids, marks)).long(), seconds=0.5)


@pytest.fixture(scope="session")
def demo_told(demo_file):  # noqa: F811
    """What a worker of the demo checkpoint says it is."""
    from h3te.encoder import inspect_checkpoint, load_encoder
    from h3te.encoder.cache.identity import encoder_identity
    from h3te.encoder.cache.identity_records import config_values

    encoder = load_encoder(demo_file)
    known = encoder_identity(encoder, inspect_checkpoint(demo_file))
    return {"weights": known.weights, "format": known.format, "label": known.label, "dtype": known.dtype,
            "tap_layer": known.tap_layer, "config": config_values(encoder.config)}  # fmt: skip


@pytest.fixture
def serve(fake_worker, demo_told):  # noqa: F811
    return lambda answer=demo_reply, **changes: fake_worker(answer, **{**demo_told, **changes})


@pytest.fixture
def load(user, text_encoders, monkeypatch):  # noqa: F811
    """`load(worker, text_encoder, **options)` -> the loader's output; no list and no token in the environment."""
    from h3te.nodes.encoder_options import EncoderOptions
    from h3te.nodes.host import paths
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    for name in ("H3TE_WORKERS", "H3TE_WORKER_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def loaded(worker, text_encoder: str = paths.REMOTE, **options):
        at = worker if isinstance(worker, str) else worker.at
        return LoadTextEncoder.execute(text_encoder, "cpu", EncoderOptions(remote=at, **options))

    return loaded
