"""A folder of entries that several processes share: whole files only, the least recently used go first.

Contract: a file is written under another name, flushed to the disk and renamed, so a reader sees all of it or none,
whoever dies when. Last use is the modification time, set on every hit. Deleted is only what this store wrote: by the
form of its name and its first bytes, in this folder itself; links are neither followed nor deleted. What another
process deletes or holds open meanwhile (Windows then refuses) is passed over. Nothing here raises for the state of the
disk but `write` (OSError).
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .entry_file import KEY, is_marked

PARTIAL_SECONDS = 600  # an unfinished file that nobody has written to for so long belongs to a dead process
RENAME_TRIES = 5
_ENTRY = re.compile(KEY.pattern + r"\.safetensors")
_PARTIAL = re.compile(KEY.pattern + r"\.(safetensors|json)\.[0-9a-f]{16}\.partial")


@dataclass(frozen=True)
class FoundFile:
    path: Path
    nbytes: int
    used: int  # nanoseconds

    @property
    def key(self) -> str:
        return self.path.name.partition(".")[0]


class DiskFolder:
    """Entries `<key>.safetensors` in `folder`, which is made at the first write."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._last_use = 0

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"

    def open(self, key: str) -> BinaryIO | None:
        """None where there is no such entry. Raises OSError where it cannot be read, ValueError for what is no file."""
        path = self.path(key)
        try:
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode):
                raise ValueError("a link, a folder or a device")
            return path.open("rb", buffering=0)
        except FileNotFoundError:
            return None

    def holds(self, key: str) -> bool:
        """Whether there is anything under the entry's name."""
        return os.path.lexists(self.path(key))

    def touch(self, key: str) -> None:
        """Note that the entry was used now, after all that this process has used before: clocks may stand still."""
        now = self._last_use = max(time.time_ns(), self._last_use + 1000)
        with suppress(OSError):
            os.utime(self.path(key), ns=(now, now), **_NO_FOLLOW)

    def write(self, key: str, pieces: Iterable[bytes | memoryview]) -> None:
        write_whole(self.path(key), pieces)
        self.touch(key)

    def entries(self) -> list[FoundFile]:
        """Most recently used first."""
        return sorted(filter(_is_own, files_of(self.folder, _ENTRY)), key=lambda found: found.used, reverse=True)

    def nbytes(self) -> int:
        """All of this store that lies here, unfinished files too."""
        return sum(found.nbytes for found in [*self.entries(), *files_of(self.folder, _PARTIAL)])

    def keep_within(self, budget: int, newest: str) -> None:
        """Delete the least recently used entries until the rest has at most `budget` bytes; never the entry `newest`.
        Unfinished files of dead processes go too."""
        sweep(self.folder)
        if sum(found.nbytes for found in files_of(self.folder, _ENTRY)) <= budget:
            return  # files of others under such names are told apart only where it matters: each has to be opened
        found = self.entries()
        total = sum(entry.nbytes for entry in found)
        for entry in reversed(found):
            if total <= budget:
                return
            if entry.key != newest:
                total -= unlinked(entry)

    def clear(self) -> int:
        """Delete every entry and every old unfinished file; returns the bytes."""
        return sweep(self.folder) + sum(unlinked(entry) for entry in self.entries())


def _is_own(found: FoundFile) -> bool:
    return is_marked(found.path)


_NO_FOLLOW = {"follow_symlinks": False} if os.utime in os.supports_follow_symlinks else {}


def files_of(folder: Path, pattern: re.Pattern) -> Iterator[FoundFile]:
    """Regular files right in `folder` whose whole name matches; none where the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            found = (folder / name).lstat()
            if stat.S_ISREG(found.st_mode):
                yield FoundFile(folder / name, found.st_size, found.st_mtime_ns)


def sweep(folder: Path, older_than: float = PARTIAL_SECONDS, unfinished: re.Pattern = _PARTIAL) -> int:
    """Delete unfinished files (by their whole name) that nobody has written to for so many seconds; returns their
    bytes."""
    limit = time.time_ns() - int(older_than * 1e9)
    return sum(unlinked(found) for found in files_of(folder, unfinished) if found.used < limit)


def unlinked(found: FoundFile) -> int:
    """Delete a file; returns its bytes, 0 where the system refuses."""
    try:
        found.path.unlink(missing_ok=True)  # another process may have been first
    except OSError:
        return 0
    return found.nbytes


def write_whole(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """The file is there with all its bytes, or as it was before. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        write_flushed(partial, pieces)
        _rename(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_flushed(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """A new file, on the disk when this returns. Raises OSError, also for a name that is taken."""
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _rename(partial: Path, path: Path) -> None:
    """Windows refuses while another process reads the file that is replaced: that takes milliseconds."""
    for _ in range(RENAME_TRIES - 1):
        try:
            partial.replace(path)
            return
        except PermissionError:
            if os.name != "nt":
                raise
            time.sleep(0.05)
    partial.replace(path)
