"""Which release of the pack this is: pyproject.toml is the only place where it stands.

Contract: `pack_version()`, read at the first call.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@lru_cache(maxsize=1)
def pack_version() -> str:
    """As in "0.1.0"; "unknown" where the file lacks it."""
    for line in PROJECT.read_text(encoding="utf-8").splitlines():
        if line.startswith("version = "):
            return line.split('"')[1]
    return "unknown"
