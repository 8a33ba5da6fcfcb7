"""One method of one foreign class, wrapped: once in the process, reversibly, above or below other people's patches.

Contract: `apply()` puts the wrapper around whatever the class has at that moment; `remove()` takes it away, or leaves
it as a mere passage when somebody has wrapped it since. The record of what is installed lies on the class itself,
under a name that every copy of this pack knows, so that a second copy (or a second call) joins the first instead of
wrapping again, and the wrapper stays until the last of them has left. A record is a plain dict: the copies may be of
different versions.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

RECORDS = "_h3te_patches"
_LOCK = threading.Lock()

Method = Callable[..., Any]
# Owner -> what it asks for. The wrapped method reads it at every call; without owners the original is called.
Owners = Mapping[object, str]


@dataclass(frozen=True, eq=False)
class MethodPatch:
    """`wrap(original, owners)` returns the method that stands for `target.symbol`; `setting`: what this owner asks
    for."""

    name: str
    target: type
    symbol: str
    wrap: Callable[[Method, Owners], Method]
    setting: str = ""

    def apply(self) -> None:
        with _LOCK:
            records = self.target.__dict__.get(RECORDS)
            if records is None:
                records = {}
                setattr(self.target, RECORDS, records)
            record = records.get(self.name)
            if record is None or not self._is_reached(record["wrapper"]):
                record = records[self.name] = self._install(record)
            record["owners"][self] = self.setting

    def remove(self) -> None:
        with _LOCK:
            records = self.target.__dict__.get(RECORDS, {})
            record = records.get(self.name)
            if record is None or record["owners"].pop(self, None) is None or record["owners"]:
                return
            self._unwind(records)
            if not records:
                delattr(self.target, RECORDS)

    def _unwind(self, records: dict[str, Any]) -> None:
        """Take away our wrappers from the top as long as nobody wants them."""
        idle = {id(record["wrapper"]): name for name, record in records.items() if not record["owners"]}
        while (name := idle.get(id(self.target.__dict__[self.symbol]))) in records:
            setattr(self.target, self.symbol, records.pop(name)["original"])

    def _is_reached(self, wrapper: Method) -> bool:
        """Whether a call of the method comes to that wrapper, as far as wrappers name what they wrap."""
        method = self.target.__dict__[self.symbol]
        while method is not None and method is not wrapper:
            method = getattr(method, "__wrapped__", None)
        return method is wrapper

    def _install(self, lost: dict[str, Any] | None) -> dict[str, Any]:
        """Wrap what the class has now. A wrapper that cannot be seen any more becomes a passage; its owners move."""
        original: Method = self.target.__dict__[self.symbol]
        owners: dict[object, str] = {}
        if lost is not None:
            owners.update(lost["owners"])
            lost["owners"].clear()
        changed = self.wrap(original, owners)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any):
            return (changed if owners else original)(*args, **kwargs)

        setattr(self.target, self.symbol, wrapper)
        return {"wrapper": wrapper, "original": original, "owners": owners}
