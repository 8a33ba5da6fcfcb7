"""Finished conditioning by request key, in memory and, with a folder, on disk.

Contract: `get(key)` never needs weights and never raises for the state of the disk; what it returns was verified to the
byte. `put` keeps finite conditioning alone. A damaged or foreign file under an entry's name is ignored, reported once
and replaced by the next `put`; a disk that is full or may not be written to is reported once, and the store goes on in
memory. Several processes may share the folder. Hand-outs are shared: copy before you modify.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch

from ..diagnosis import is_finite
from .disk_folder import DiskFolder
from .entry_file import (
    KEY,
    OtherVersion,
    StoredConditioning,
    check_stored,
    pack,
    read_entry,
    read_record,
)
from .entry_memory import EntryMemory, HeldEntry
from .identity import EncoderIdentity
from .identity_records import IdentityRecords, KnownIdentity

logger = logging.getLogger(__name__)

__all__ = ["ConditioningStore", "StoredConditioning"]

Budget = Callable[[], int] | int


class ConditioningStore:
    """ram_budget, disk_budget: bytes, or what gives them now; 0 keeps nothing. folder: None keeps nothing on disk; it
    is made when something is stored."""

    def __init__(self, *, ram_budget: Budget, folder: Path | None = None, disk_budget: Budget = 0):
        self._budgets = {"ram": ram_budget, "disk": disk_budget}
        self._memory = EntryMemory()
        self._known: dict[str, tuple[EncoderIdentity, Mapping[str, Any]]] = {}  # as the records, of this process
        self._disk = DiskFolder(Path(folder)) if folder is not None else None
        self._records = IdentityRecords(Path(folder) / "identities") if folder is not None else None
        self._said: set[str] = set()

    def get(self, key: str, *, disk: bool = True) -> tuple[StoredConditioning, Literal["ram", "disk"]] | None:
        """What is stored for a request, and where it was found. disk: False looks into memory alone."""
        _check_key(key)
        held = self._memory.get(key, time.time_ns(), self._budget("ram"))
        if self._disk is None or not disk:
            return held and (held, "ram")
        if held is not None:
            self._disk.touch(key)  # the copy on disk is as much in use
            return held, "ram"
        found = self._read(key)
        if found is None:
            return None
        stored, identity_key = found
        self._disk.touch(key)
        self._memory.put(key, HeldEntry(stored, identity_key, time.time_ns()), self._budget("ram"))
        return stored, "disk"

    def holds(self, key: str, *, disk: bool = True) -> Literal["ram", "disk"] | None:
        """Where `get` would look first; nothing is read, and nothing counts as used by it."""
        _check_key(key)
        if key in self._memory.entries():
            return "ram"
        return "disk" if disk and self._disk is not None and self._disk.holds(key) else None

    def put(
        self,
        key: str,
        stored: StoredConditioning,
        identity: EncoderIdentity,
        config: Mapping[str, Any],
        *,
        disk: bool = True,
    ) -> bool:
        """Keep a copy of `stored` as the answer to `key`. Returns whether it is kept anywhere. config: values of
        config.json, enough to build this encoder without weights (`identity_records.config_values`). Raises ValueError
        for what is no conditioning; non-finite ones are refused and logged. disk: False keeps it in memory alone."""
        _check_key(key)
        check_stored(stored)
        if not is_finite(stored.hidden):
            logger.warning("conditioning store: NaN or infinity in the hidden states, not stored.")
            return False
        own = StoredConditioning(*map(_own, (stored.hidden, stored.token_tags, stored.token_ids)), dict(stored.facts))
        entry = HeldEntry(own, identity.key, time.time_ns())
        self._known[identity.key] = (identity, dict(config))
        held = self._memory.put(key, entry, self._budget("ram"))
        return (disk and self._write(key, own, identity, config)) or held

    def put_on_disk(
        self, key: str, stored: StoredConditioning, identity: EncoderIdentity, config: Mapping[str, Any]
    ) -> bool:
        """Write what `get` found in memory, unless it lies on disk already. Returns whether it does now."""
        return self._disk is not None and (self._disk.holds(key) or self._write(key, stored, identity, config))

    def clear(self, *, ram: bool = True, disk: bool = True) -> int:
        """Forget everything there; returns the bytes that were freed. On disk only files of this store are deleted."""
        freed = 0
        if ram:
            freed += self._memory.clear()
            self._known.clear()
        if disk and self._disk is not None:
            freed += self._disk.clear() + self._records.clear()
        return freed

    @property
    def ram_bytes(self) -> int:
        return self._memory.nbytes

    def disk_bytes(self) -> int:
        """Bytes of this store's files in the folder, of every process."""
        return self._disk.nbytes() + self._records.nbytes() if self._disk is not None else 0

    def identities(self) -> list[KnownIdentity]:
        """Encoders that something was stored of, by label: those that this process knows and those in the folder."""
        found = self._encoders()
        counts = [identity_key for identity_key, _, _ in self._stored().values()]
        known = [KnownIdentity(identity, config, counts.count(key)) for key, (identity, config) in found.items()]
        return sorted(known, key=lambda one: (one.identity.label, one.identity.key))

    def encoders(self) -> list[KnownIdentity]:
        """As `identities`, without looking into every file: entries are not counted, and 0."""
        known = [KnownIdentity(identity, config, 0) for identity, config in self._encoders().values()]
        return sorted(known, key=lambda one: (one.identity.label, one.identity.key))

    def _encoders(self) -> dict[str, tuple[EncoderIdentity, Mapping[str, Any]]]:
        return {**(self._records.read() if self._records is not None else {}), **self._known}

    def requests(self, identity_key: str) -> list[Mapping[str, Any]]:
        """The facts of what is stored of one encoder, most recently used first: what it can answer without weights."""
        own = [(used, facts) for identity, used, facts in self._stored().values() if identity == identity_key]
        return [facts for _, facts in sorted(own, key=lambda found: found[0], reverse=True)]

    def _stored(self) -> dict[str, tuple[str, int, Mapping[str, Any]]]:
        """Identity key, last use and facts of every entry, by key; tensors are not read."""
        found = {}
        for file in self._disk.entries() if self._disk is not None else ():
            record = self._record(file.key)
            if record is not None:
                found[file.key] = (record["identity"], file.used, record["facts"])
        for key, held in self._memory.entries().items():
            found[key] = (held.identity_key, held.used, held.stored.facts)
        return found

    def _record(self, key: str) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            file = self._disk.open(key)
            if file is not None:
                with file:
                    return read_record(file, key)
        return None

    def _budget(self, where: str) -> int:
        budget = self._budgets[where]
        return budget() if callable(budget) else budget

    def _read(self, key: str) -> tuple[StoredConditioning, str] | None:
        path = self._disk.path(key)
        try:
            file = self._disk.open(key)
            if file is None:
                return None
            with file:
                stored, record = read_entry(file, key)
            return stored, record["identity"]
        except OtherVersion as other:
            logger.info("conditioning store: %s is of another release (%s) and not used.", path.name, other)
        except ValueError as damage:
            self._say_once(
                f"damaged {key}",
                f"conditioning store: expected {path.name} as this store wrote it, got {damage}. It is ignored and "
                f"replaced when the request is encoded again; if that repeats, check the disk of {path.parent}.",
            )
        except OSError as error:
            self._say_once(
                f"unreadable {error.errno}",
                f"conditioning store: expected to read {path}, got {error.strerror or error}. Allow reading of that "
                "folder, or choose another one; requests are encoded again meanwhile.",
            )
        return None

    def _write(
        self, key: str, stored: StoredConditioning, identity: EncoderIdentity, config: Mapping[str, Any]
    ) -> bool:
        budget = self._budget("disk") if self._disk is not None else 0
        if budget <= 0:
            return False
        pieces = pack(key, identity.key, stored)
        size = sum(len(piece) for piece in pieces)
        if size > budget:
            self._say_once(
                "large",
                f"conditioning store: expected entries within the disk budget of {budget:,} bytes, got one of "
                f"{size:,}, which is kept in memory alone. Raise the budget to keep such on disk.",
            )
            return False
        try:
            self._records.write(identity, config)
            self._disk.write(key, pieces)
        except OSError as error:
            self._say_once(
                f"unwritable {error.errno}",
                f"conditioning store: expected to write into {self._disk.folder}, got {error.strerror or error}. Free "
                "some space there, allow writing, or choose another folder; conditioning is kept in memory meanwhile.",
            )
            return False
        self._said.discard(f"damaged {key}")
        self._disk.keep_within(budget, key)
        return True

    def _say_once(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning("%s", message)


def _check_key(key: str) -> None:
    if not (isinstance(key, str) and KEY.fullmatch(key)):
        raise ValueError(f"conditioning store: expected a key of 64 hex digits, got {key!r:.80}. Use request_key.")


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU that nobody else modifies and that holds no larger tensor alive."""
    return tensor.detach().to("cpu", copy=True).contiguous()
