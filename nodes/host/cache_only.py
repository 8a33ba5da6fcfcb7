"""Encoders without a checkpoint: the store of finished conditioning answers for them, and says what it cannot answer.

Contract: `choices()` are the encoders that conditioning on disk was stored of, by name; `recorded(choice)` is one of
them; `CacheOnly` stands where others compute (computing.py). What is missing is a RuntimeError that lists what there
is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...encoder.cache.identity import EncoderIdentity
from ...encoder.cache.identity_records import KnownIdentity
from ...encoder.prompt_notes import prompt_of
from . import caches
from .report_conditioning import shortened
from .tokens import TokenBatch

OFF = "off"
WHO = "MiniMax H3 text encoder (H3TE), cache only"
SHOWN = 8  # prompts in a message
KEY_DIGITS = 8
_KEY = re.compile(rf"\([0-9a-f]{{{KEY_DIGITS}}}\)$")


def choices() -> list[str]:
    """The options' values; nothing but files of the store's own records is looked into."""
    return [OFF, *(_name(known.identity) for known in caches.conditioning_store().encoders())]


def recorded(choice: str) -> KnownIdentity:
    """By name, or by the key in it: a file that was renamed is the same encoder. Raises ValueError that lists the
    encoders there are."""
    found = {_name(known.identity): known for known in caches.conditioning_store().encoders()}
    renamed = [name for name in found if _KEY.search(choice) and name.endswith(choice[-KEY_DIGITS - 2 :])]
    choice = choice if choice in found or len(renamed) != 1 else renamed[0]
    if choice not in found:
        listed = "; ".join(found) or f"none in {caches.conditioning_folder()}"
        raise ValueError(
            f"{WHO}: expected an encoder that conditioning was stored of, got {choice!r:.200}. There are: {listed}. "
            "Choose one, or choose off and load a checkpoint; conditioning is stored on disk where conditioning_cache "
            'is "ram and disk".'
        )
    return found[choice]


def lines() -> list[str]:
    """For the loader's text; memory and disk answer, whatever the options keep."""
    used, folder = caches.conditioning_store().disk_bytes() / caches.GB, caches.conditioning_folder()
    return ["answers what is stored; no checkpoint is opened", f"stored: {used:.2f} GB of conditioning in {folder}"]


def _name(identity: EncoderIdentity) -> str:
    """Long enough to tell apart encoders of one file: they compute otherwise, or have LoRAs."""
    how = [identity.dtype, *([identity.vision_packing] if identity.vision_packing == "official" else [])]
    how += [identity.backend] if identity.backend != "encoder" else []  # official, or several ranks of a worker
    how += ["with LoRA"] if identity.lora else []
    return f"{identity.label.split(':')[0]}, {', '.join(how)} ({identity.key[:KEY_DIGITS]})"


def _not_stored(identity: EncoderIdentity | None, batches: Sequence[TokenBatch]) -> str:
    """The message for requests that the store does not have."""
    wanted = ", ".join(_request(prompt_of(b.presentation), len(b.sequence)) for b in batches)
    stored = caches.conditioning_store().requests(identity.key) if identity is not None else []
    there = [_request(str(facts.get("prompt", "")), facts.get("tokens", "?")) for facts in stored]
    more = [f"and {len(there) - SHOWN} more"] if len(there) > SHOWN else []
    return (
        f"{WHO}: expected a prompt with pictures that was encoded before, got one that was not: {wanted}. Stored are "
        f"{len(there)}: {'; '.join([*there[:SHOWN], *more]) or 'none'}. Use one of them unchanged, or set cache_only "
        "to off in the options and load the checkpoint."
    )


def _request(prompt: str, tokens: object) -> str:
    return f'"{shortened(prompt)}" ({tokens} tokens)'


class CacheOnly:
    """A Computing that computes nothing. identity: of the encoder with what was put on it."""

    run = None

    def __init__(self, identity: EncoderIdentity | None):
        self._identity = identity

    def load(self, batches: Sequence[TokenBatch]) -> None:
        """Raises RuntimeError."""
        raise RuntimeError(_not_stored(self._identity, batches))

    @contextmanager
    def loaded(self, batches: Sequence[TokenBatch]) -> Iterator[None]:
        self.load(batches)
        yield

    def encode(self, batches: Sequence[TokenBatch], cache: object, show: bool = True) -> list[dict[str, Any]]:
        self.load(batches)
        return []
