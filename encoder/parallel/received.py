"""Reading what the other side says: values of metadata and of JSON objects, each checked.

Contract: every function takes what was received and `who`, which begins its message; a ValueError says what was
expected. `OtherProtocol` for another version of the protocol, before anything else is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields

PROTOCOL_VERSION = 1
MAX_JSON_BYTES = 1_000_000  # of a Health, a JobState or an error
MOST_TEXT = 1000  # characters of a value of them
_KINDS = {"str": str, "int": int, "bool": bool, "Mapping": dict}


class OtherProtocol(ValueError):
    """The other side speaks another version of this protocol."""


def texts(told: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in told.items()}


def check_protocol(told: Mapping[str, str], who: str) -> None:
    version = told.get("protocol")
    if version != str(PROTOCOL_VERSION):
        raise OtherProtocol(
            f"{who}: expected protocol {PROTOCOL_VERSION}, got {version!r:.20}. Use the same release of the node pack "
            "on both machines."
        )


def one_of(told: Mapping[str, str], name: str, allowed: tuple[str, ...], who: str) -> str:
    if told.get(name) not in allowed:
        raise ValueError(f"{who}: expected {name} {' or '.join(allowed)}, got {told.get(name)!r:.80}. Correct it.")
    return told[name]


def matching(told: Mapping[str, str], name: str, pattern: re.Pattern, what: str, who: str) -> str:
    if not pattern.fullmatch(told.get(name, "")):
        raise ValueError(f"{who}: expected {name} as {what}, got {told.get(name)!r:.80}. Send what /health says.")
    return told[name]


def count(told: Mapping[str, str], name: str, who: str) -> int:
    text = told.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{who}: expected {name} as a whole number, got {text!r:.80}. Correct it.")
    return int(text)


def seconds(told: Mapping[str, str], who: str) -> float:
    text = told.get("seconds", "")
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise ValueError(f"{who}: expected seconds as a number, got {text!r:.80}. Update the worker.")
    return float(text)


def as_json(told: object) -> bytes:
    return json.dumps(asdict(told), allow_nan=False).encode()


def json_object(body: bytes, who: str) -> dict:
    try:
        found = json.loads(body) if len(body) <= MAX_JSON_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{who}: expected a JSON object, got {bytes(body[:80])!r}. This is not a worker of this pack.")
    return found


def plain(text: str, most: int = MOST_TEXT) -> str:
    """What another machine says, fit for a log, a node or a file: printable characters on one line, not many."""
    return "".join(c if c.isprintable() else " " for c in text[:most])


def of_fields(cls: type, told: Mapping, who: str):
    """Texts made `plain`. Fields that are not known are passed over: a newer worker may say more."""
    for each in fields(cls):
        value = told.get(each.name)
        if type(value) is not _KINDS[each.type] or (each.type == "int" and not 0 <= value < 1 << 63):
            raise ValueError(
                f"{who}: expected {each.name} as {each.type}, got {value!r:.80}. Use the same release of the node pack "
                "on both machines."
            )
    found = {each.name: told[each.name] for each in fields(cls)}
    return cls(**{name: plain(value) if isinstance(value, str) else value for name, value in found.items()})
