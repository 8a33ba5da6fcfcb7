"""What a client and a worker say to each other over HTTP.

Contract: frozen dataclasses with `to_bytes` (or `pieces`, without a copy) and `from_bytes`, which checks all that it
reads; its errors are ValueErrors, and `OtherProtocol` for a body of another version. Nothing here opens a connection.
  GET  /health            -> Health (JSON)
  POST /encode            EncodeRequest -> EncodeReply (safetensors), with the header `JOB_HEADER: <id of the client>`
  GET  /jobs/<id>         -> JobState (JSON)
  POST /jobs/<id>/cancel  -> JobState         POST /unload -> Health
With a token every call has `Authorization: Bearer <token>`. Whatever is refused answers JSON {"error": text}: 400 a bad
body, 401 the token, 404 an unknown job, 409 another checkpoint, dtype, tap, version or number of ranks, 410 cancelled,
413 too large, 500 the encode failed, 503 the queue is full, the worker ends, or a rank died.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..cache.content import NUMERICS_VERSION
from ..cache.identity import EncoderIdentity
from ..encode_pass import VISION_PACKINGS
from .framing import MAX_HEADER_BYTES, Body, framed, unframed
from .received import (
    PROTOCOL_VERSION,
    OtherProtocol,
    as_json,
    check_protocol,
    count,
    json_object,
    matching,
    of_fields,
    one_of,
    plain,
    seconds,
    texts,
)

__all__ = [
    "JOB_HEADER",
    "PROTOCOL_VERSION",
    "EncodeReply",
    "EncodeRequest",
    "Health",
    "JobState",
    "OtherProtocol",
    "dtype_name",
    "error_body",
    "error_text",
]

JOB_HEADER = "X-H3TE-Job"
JOB_ID = re.compile(r"[0-9a-f]{8,64}")
MEDIA_TYPE = "application/x-safetensors"
STATES = ("waiting", "running", "done", "failed", "cancelled")
_DIGEST = re.compile(r"[0-9a-f]{64}")
DTYPES = ("bfloat16", "float32")
_FLOATS = ("BF16", "F32")
_SENT = {"input_ids": (("I64",), 1), "pixel_values": (_FLOATS, 2), "image_grid_thw": (("I64",), 2),
         "pixel_values_videos": (_FLOATS, 2), "video_grid_thw": (("I64",), 2)}  # fmt: skip
_ANSWERED = {"hidden": (_FLOATS, 2), "token_tags": (("I64",), 1)}
_REQUEST, _REPLY = "encode request", "encode reply"


def dtype_name(dtype: torch.dtype) -> str:
    """As requests, Health and identities name it: "bfloat16" or "float32"."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, eq=False)
class EncodeRequest:
    """One sequence. input_ids int64 [S]; pixels [N, 1536] with grids int64 [n, 3], of a modality both or neither, best
    in the worker's dtype, to which it casts them. checkpoint, dtype, tap_layer, numerics, tp_size: what the client
    expects, as Health says; tp_size 0: any number of ranks will do. reuse: the worker may use and keep prefixes, for
    which references are seen one by one."""

    input_ids: torch.Tensor
    checkpoint: str
    dtype: str
    tap_layer: int
    vision_packing: str = "official"
    reuse: bool = False
    pixel_values: torch.Tensor | None = None
    image_grid_thw: torch.Tensor | None = None
    pixel_values_videos: torch.Tensor | None = None
    video_grid_thw: torch.Tensor | None = None
    numerics: int = NUMERICS_VERSION
    tp_size: int = 0

    def pieces(self) -> list[memoryview]:
        """The body in order; tensors on the CPU are not copied."""
        told = {"protocol": PROTOCOL_VERSION, "checkpoint": self.checkpoint, "dtype": self.dtype,
                "tap_layer": self.tap_layer, "vision_packing": self.vision_packing, "reuse": int(self.reuse),
                "numerics": self.numerics, "tp_size": self.tp_size}  # fmt: skip
        given = {name: getattr(self, name) for name in _SENT}
        return framed({name: t for name, t in given.items() if t is not None}, texts(told))

    def to_bytes(self) -> bytes:
        return b"".join(self.pieces())

    @classmethod
    def from_bytes(cls, body: Body) -> EncodeRequest:
        """Tensors share the memory of `body`. Whether ids and pictures fit the model is the encoder's to check."""
        tensors, told = unframed(body, _SENT, _REQUEST)
        check_protocol(told, _REQUEST)
        if not len(tensors.get("input_ids", ())):
            raise ValueError(f"{_REQUEST}: expected input_ids of at least one token, got none. Send the ids.")
        return cls(
            **tensors,
            checkpoint=matching(told, "checkpoint", _DIGEST, "64 hex digits", _REQUEST),
            dtype=one_of(told, "dtype", DTYPES, _REQUEST),
            tap_layer=count(told, "tap_layer", _REQUEST),
            vision_packing=one_of(told, "vision_packing", VISION_PACKINGS, _REQUEST),
            reuse=one_of(told, "reuse", ("0", "1"), _REQUEST) == "1",
            numerics=count(told, "numerics", _REQUEST),
            tp_size=count(told, "tp_size", _REQUEST),
        )


@dataclass(frozen=True, eq=False)
class EncodeReply:
    """hidden [S, D] in the worker's dtype, token_tags int64 [S] (0 for every token of a vision block, 1 for text).
    reused, seen_before: as `Conditioning` counts them. seconds: of computing, waiting not included."""

    hidden: torch.Tensor
    token_tags: torch.Tensor
    reused: int = 0
    seen_before: int = 0
    seconds: float = 0.0

    def pieces(self) -> list[memoryview]:
        """The body in order; tensors on the CPU are not copied."""
        told = {"protocol": PROTOCOL_VERSION, "reused": self.reused, "seen_before": self.seen_before,
                "seconds": f"{self.seconds:.6f}"}  # fmt: skip
        return framed({"hidden": self.hidden, "token_tags": self.token_tags}, texts(told))

    def to_bytes(self) -> bytes:
        return b"".join(self.pieces())

    @classmethod
    def from_bytes(cls, body: Body) -> EncodeReply:
        """Tensors share the memory of `body`."""
        tensors, told = unframed(body, _ANSWERED, _REPLY)
        check_protocol(told, _REPLY)
        tokens = [len(tensors[name]) if name in tensors else 0 for name in _ANSWERED]
        if not tokens[0] or tokens[0] != tokens[1] or not tensors["hidden"].shape[1]:
            raise ValueError(
                f"{_REPLY}: expected hidden states and tags of the same tokens, got {tokens[0]} and {tokens[1]}. "
                "Update the worker."
            )
        counts = {name: count(told, name, _REPLY) for name in ("reused", "seen_before")}
        return cls(**tensors, **counts, seconds=seconds(told, _REPLY))

    @staticmethod
    def most_bytes(tokens: int, width: int, dtype: str) -> int:
        """No reply for that many tokens is longer."""
        return 8 + MAX_HEADER_BYTES + tokens * (8 + width * getattr(torch, dtype).itemsize)


@dataclass(frozen=True)
class Health:
    """What a worker is and can take now. weights: the digest that requests name as `checkpoint`, computed as for a
    local encoder of these files. config: values of config.json. queue_limit: jobs that may wait. device: "cuda:0"."""

    weights: str
    format: str
    label: str
    dtype: str
    tap_layer: int
    config: Mapping = field(repr=False)
    tp_size: int
    device: str
    loaded: bool
    weight_bytes: int
    vision: bool
    waiting: int
    queue_limit: int
    body_limit: int
    token_limit: int
    pack: str
    numerics: int = NUMERICS_VERSION
    protocol: int = PROTOCOL_VERSION

    @property
    def identity(self) -> EncoderIdentity:
        """vision_packing, backend and lora are each request's own."""
        told = (self.weights, self.format, self.dtype, self.tap_layer)
        return EncoderIdentity(*told, "", "", label=self.label, numerics=self.numerics)

    def to_bytes(self) -> bytes:
        return as_json(self)

    @classmethod
    def from_bytes(cls, body: bytes) -> Health:
        told = json_object(body, "health")
        check_protocol({"protocol": str(told.get("protocol"))}, "health")
        health = of_fields(cls, told, "health")
        if not _DIGEST.fullmatch(health.weights) or health.dtype not in DTYPES:
            raise ValueError(
                f"health: expected a digest of the weights and a compute dtype, got {health.weights!r:.80} and "
                f"{health.dtype!r:.40}. Update the worker."
            )
        return health


@dataclass(frozen=True)
class JobState:
    """state: one of STATES. position: jobs before it while it waits. done of total steps, `what`: the last of them."""

    state: str
    position: int = 0
    done: int = 0
    total: int = 0
    what: str = ""

    def to_bytes(self) -> bytes:
        return as_json(self)

    @classmethod
    def from_bytes(cls, body: bytes) -> JobState:
        found = of_fields(cls, json_object(body, "job state"), "job state")
        if found.state not in STATES:
            raise ValueError(
                f"job state: expected one of {', '.join(STATES)}, got {found.state!r:.40}. Update both sides."
            )
        return found


def error_body(text: str) -> bytes:
    return json.dumps({"error": text}).encode()


def error_text(body: bytes) -> str:
    """The text of an `error_body`; of another body its beginning, in printable characters."""
    try:
        text = json_object(body, "error")["error"]
    except (ValueError, KeyError):
        text = body[:200].decode("utf-8", "replace")
    return plain(str(text), 4000)
