"""The conditioning files in ComfyUI's input and output folders: the list to choose from, the file that a value means.

Contract: values are names relative to the input folder, or to the output folder with " [output]" behind, as ComfyUI's
own loaders save them. Files with our mark come first, the newest before all; then other .safetensors, by name. Looking
is bounded: a folder is walked again only when it changed, the first bytes of a file are read once per state of it, and
a listing reads and walks no more than the limits below. Links out of the two folders are neither listed nor opened.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import folder_paths

from ...encoder.regular import is_regular
from .conditioning_file import MARK, SUFFIX, WHO

logger = logging.getLogger(__name__)

NOTHING = "(none found: save one with Save MiniMax H3 Conditioning (H3TE))"
_NOTHING_EVER = "(none found: "
_CHOOSE = "Choose a file of the list; reload the page (R) if it is new."
OUTPUT, INPUT = " [output]", " [input]"
MAX_ENTRIES = 50_000  # of folders, looked at in one walk of a root
MAX_PEEKS = 1_000  # files whose first bytes are read in one listing, newest first
MAX_OTHERS = 1_000  # files without our mark that are offered
_PEEKED = 256  # bytes: the mark stands first in our headers
_SETTLED = 2.0  # seconds after which a change of a folder shows in its time, on every file system

Place = tuple[str, int, int]  # path, mtime in ns, size


@dataclass(frozen=True)
class _Entry:
    value: str
    path: str
    mtime: int
    size: int


class _Listing:
    """Files below one root, walked again when a folder changed."""

    def __init__(self, annotation: str):
        self.annotation, self.root = annotation, ""
        self.folders: dict[str, int] = {}
        self.entries: list[_Entry] = []

    def current(self, root: str) -> list[_Entry]:
        if root != self.root or not self.folders or not self._fresh():
            self.root, self.folders, self.entries = root, {}, []
            started = time.time_ns()
            self.entries = list(self._walk(root))
            if any(started - changed < _SETTLED * 1e9 for changed in self.folders.values()):
                self.root = ""  # what comes in the same tick would not show
        return self.entries

    def _fresh(self) -> bool:
        try:
            return all(Path(folder).stat().st_mtime_ns == time for folder, time in self.folders.items())
        except OSError:
            return False

    def _walk(self, root: str) -> Iterator[_Entry]:
        waiting, seen = [root], 0
        real_root = os.path.realpath(root)
        while waiting:
            folder = waiting.pop()
            for entry in self._scan(folder):
                seen += 1
                if seen > MAX_ENTRIES:
                    logger.warning("%s: %s holds over %d entries, the rest is not listed.", WHO, root, MAX_ENTRIES)
                    return
                if _is_folder(entry):
                    waiting.append(entry.path)
                elif entry.name.lower().endswith(SUFFIX):
                    yield from self._entry(entry, root, real_root)

    def _scan(self, folder: str) -> Iterator[os.DirEntry]:
        try:
            self.folders[folder] = Path(folder).stat().st_mtime_ns
            with os.scandir(folder) as found:
                yield from found
        except OSError as error:
            logger.debug("%s: %s is left out of the list: %s", WHO, folder, error)

    def _entry(self, entry: os.DirEntry, root: str, real_root: str) -> Iterator[_Entry]:
        name = os.path.relpath(entry.path, root).replace(os.sep, "/")
        try:
            name.encode()  # a name that is no text cannot go into a workflow
            inside = not entry.is_symlink() or _is_inside(entry.path, real_root)
            if inside and entry.is_file():
                found = entry.stat()
                yield _Entry(name + self.annotation, entry.path, found.st_mtime_ns, found.st_size)
        except (OSError, ValueError) as error:
            logger.debug("%s: %r is left out of the list: %s", WHO, entry.path, error)


_input, _output = _Listing(""), _Listing(OUTPUT)
_listing = threading.Lock()  # the server lists while a prompt runs
_marks: dict[Place, bool] = {}


def _is_folder(entry: os.DirEntry) -> bool:
    """Links to folders are not followed: they lead out, or around."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_inside(path: str | Path, real_root: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(real_root)


def combo_values() -> list[str]:
    """The widget's values; one explaining entry when there is no file."""
    with _listing:
        entries = [*_input.current(folder_paths.get_input_directory())]
        entries += _output.current(folder_paths.get_output_directory())
        newest = sorted(entries, key=lambda entry: (-entry.mtime, entry.value))
        ours = _ours(newest)
    others = sorted(entry.value for entry in newest if entry.path not in ours)
    return [*(e.value for e in newest if e.path in ours), *others[:MAX_OTHERS]] or [NOTHING]


def _ours(newest: list[_Entry]) -> set[str]:
    """Paths of files with our mark, as far as the limit allows to look; the rest is looked at by later listings."""
    peeks, found = 0, set()
    for entry in newest:
        place = (entry.path, entry.mtime, entry.size)
        if place not in _marks:
            if peeks == MAX_PEEKS:
                continue
            peeks += 1
            _marks[place] = _has_mark(entry.path)
        if _marks[place]:
            found.add(entry.path)
    for gone in set(_marks) - {(e.path, e.mtime, e.size) for e in newest}:
        del _marks[gone]
    return found


def _has_mark(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return f'"{MARK}"'.encode() in file.read(_PEEKED)
    except OSError:
        return False


def resolve(value: str) -> Path:
    """The file that a saved value means. Raises ValueError that says where was looked and what to do."""
    if not isinstance(value, str):
        raise ValueError(f"{WHO}: expected file as a name, got {type(value).__name__}. Choose a file.")
    if value.startswith(_NOTHING_EVER) or not value.strip():
        raise ValueError(
            f"{WHO}: expected a conditioning file, got {value!r:.100}. Save one with Save MiniMax H3 Conditioning "
            "(H3TE), or put one into ComfyUI's input folder, and reload the page (R)."
        )
    name, root = _parts(value)
    path = Path(root, name)
    if not _is_inside(path, os.path.realpath(root)):
        raise ValueError(f"{_expected(value)}, got one that a link leads out of {root}. {_CHOOSE}")
    if not is_regular(path):
        raise ValueError(f"{_expected(value)}, got no such file in {root}.{_elsewhere(name, root)} {_CHOOSE}")
    return path


def _is_text(name: str) -> bool:
    """Half a letter, which JSON can hold, is no name for any system."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _expected(value: str) -> str:
    return f"{WHO}: expected {value!r:.200} to be a file in ComfyUI's input or output folder"


def _parts(value: str) -> tuple[str, str]:
    """(relative name, folder)."""
    root = folder_paths.get_output_directory() if value.endswith(OUTPUT) else folder_paths.get_input_directory()
    name = value.removesuffix(OUTPUT).removesuffix(INPUT).replace("\\", "/")
    outside = name.startswith("/") or ":" in name.split("/")[0] or ".." in name.split("/") or "\0" in name
    outside = outside or not _is_text(name)
    if outside or name.endswith("[temp]"):
        raise ValueError(f"{_expected(value)}, got a path that leads elsewhere. {_CHOOSE}")
    return name, root


def _elsewhere(name: str, root: str) -> str:
    """The same name in the other folder, if it is there."""
    folders = {folder_paths.get_input_directory(): "", folder_paths.get_output_directory(): OUTPUT}
    found = [f" {name + mark!r:.200} is there." for folder, mark in folders.items()
             if folder != root and is_regular(Path(folder, name))]  # fmt: skip
    return "".join(found)


def value_of(path: Path) -> str:
    """What the list calls a file in the output folder."""
    name = os.path.relpath(path, folder_paths.get_output_directory()).replace(os.sep, "/")
    return name + OUTPUT


def state_of(value: str) -> tuple:
    """Changes when the file does. Raises ValueError as `resolve`, OSError where it went away meanwhile."""
    path = resolve(value)
    found = path.stat()
    return str(path), found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
