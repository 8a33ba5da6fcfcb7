"""Which encoders a store has conditioning of, so that it can be asked without their checkpoints.

Contract: one `identities/<key>.json` each, written whole, with the values of config.json from which an encoder without
weights is built. They outlive the entries. A damaged or foreign file is ignored, reported once and replaced when that
encoder stores something again; records of other numerics are passed over, as their entries are never asked for.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config import EncoderConfig
from ..regular import regular_stat
from .content import NUMERICS_VERSION
from .disk_folder import FoundFile, files_of, sweep, unlinked, write_whole
from .entry_file import KEY
from .identity import EncoderIdentity

logger = logging.getLogger(__name__)

VERSION = 1
MAX_BYTES = 1_000_000
_RECORD = re.compile(KEY.pattern + r"\.json")


@dataclass(frozen=True)
class KnownIdentity:
    """config: values of config.json, enough for `EncoderConfig.from_dict`. entries: how many requests are stored."""

    identity: EncoderIdentity
    config: Mapping[str, Any]
    entries: int


def config_values(config: EncoderConfig) -> dict[str, Any]:
    """The values of a config.json from which `EncoderConfig.from_dict` reads `config` again."""
    text = asdict(config.text)
    rope = {"mrope_interleaved": True, "rope_type": "default", "rope_theta": text.pop("rope_theta"),
            "mrope_section": list(text.pop("mrope_section"))}  # fmt: skip
    values = {"text_config": {**text, "rope_parameters": rope}}
    if config.vision is not None:
        vision = asdict(config.vision)
        values["vision_config"] = {**vision, "deepstack_visual_indexes": list(vision["deepstack_visual_indexes"])}
    return values


class IdentityRecords:
    """The records in `folder`, which is made at the first write."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._said: set[str] = set()

    def write(self, identity: EncoderIdentity, config: Mapping[str, Any]) -> None:
        """Nothing is written where the same record is there already. Raises OSError."""
        path, body = self.folder / f"{identity.key}.json", _body(identity, config)
        if path.is_symlink() or _read(path) != json.loads(body):
            text = json.dumps({"version": VERSION, "crc32": _checksum(body), "body": body})
            write_whole(path, [text.encode()])

    def read(self) -> dict[str, tuple[EncoderIdentity, dict[str, Any]]]:
        """The identity and the config of every record, by key."""
        found = {record.key: self._told(record.path) for record in self._files()}
        known = {key: (_identity(body), body["config"]) for key, body in found.items() if body is not None}
        return {key: (identity, config) for key, (identity, config) in known.items() if _is_current(key, identity)}

    def nbytes(self) -> int:
        return sum(found.nbytes for found in self._files())

    def clear(self) -> int:
        """Delete the records, and what dead processes left of some; returns the bytes."""
        own = [found for found in self._files() if _read(found.path) is not None]
        return sweep(self.folder) + sum(unlinked(found) for found in own)

    def _told(self, path: Path) -> dict[str, Any] | None:
        body = _read(path)
        if body is None and path.name not in self._said:
            self._said.add(path.name)
            logger.warning(
                "conditioning store: expected %s as this store wrote it, got another file. It is ignored and replaced "
                "when that encoder stores something again.",
                path.name,
            )
        return body

    def _files(self) -> list[FoundFile]:
        return list(files_of(self.folder, _RECORD))


def _body(identity: EncoderIdentity, config: Mapping[str, Any]) -> str:
    try:
        return json.dumps({"identity": asdict(identity), "config": dict(config)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"conditioning store: expected the values of config.json, got others ({error}). Pass config_values(config)."
        ) from error


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _read(path: Path) -> dict[str, Any] | None:
    """identity and config of a record that is as it was written; else None."""
    try:
        if regular_stat(path).st_size > MAX_BYTES:
            return None
        record = json.loads(path.read_bytes())
        body = json.loads(record["body"]) if record["version"] == VERSION else None
        whole = body is not None and record["crc32"] == _checksum(record["body"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return body if whole else None


def _identity(body: Mapping[str, Any]) -> EncoderIdentity | None:
    try:
        return EncoderIdentity(**body["identity"])
    except (TypeError, KeyError):  # fields of another release
        return None


def _is_current(key: str, identity: EncoderIdentity | None) -> bool:
    return identity is not None and identity.key == key and identity.numerics == NUMERICS_VERSION
