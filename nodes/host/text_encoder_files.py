"""The files and released folders below ComfyUI's text encoder folders, by the names that are saved in workflows.

Contract: `listed()` walks again only when a folder changed. The first folder that has a name wins, as in ComfyUI; one
that cannot be searched is left out, and the log says so. Nothing is opened.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from pathlib import Path

import folder_paths

from ...encoder.regular import is_folder

logger = logging.getLogger(__name__)

WHO = "Load MiniMax H3 Text Encoder (H3TE)"
CATEGORY = "text_encoders"


@dataclass(frozen=True)
class Found:
    """One entry: its saved value and where it lies."""

    value: str
    path: Path


class _Listing:
    """All files below the text encoder folders, walked again only when a folder changed."""

    def __init__(self):
        self.roots: tuple[str, ...] = ()
        self.folders: dict[str, float] = {}
        self.entries: tuple[Found, ...] = ()

    def current(self) -> tuple[Found, ...]:
        found = tuple(roots())
        if found != self.roots or not self._fresh():
            self._walk(found)
        return self.entries

    def _fresh(self) -> bool:
        if any(root not in self.folders and is_folder(Path(root)) for root in self.roots):
            return False  # a folder that was not there
        try:
            return all(Path(folder).stat().st_mtime == time for folder, time in self.folders.items())
        except OSError:
            return False

    def _walk(self, roots: tuple[str, ...]) -> None:
        self.roots, self.folders, found = roots, {}, {}
        for root in roots:
            names, folders = _search(root)
            self.folders.update(folders)
            for value in [*_files(names), *_released_folders(names)]:
                found.setdefault(value, Found(value, Path(root, value)))  # as ComfyUI: the first root wins
        self.entries = tuple(found.values())


def _search(root: str) -> tuple[list[str], dict[str, float]]:
    """(relative file names, times of folders) below `root`."""
    try:
        return folder_paths.recursive_search(root, excluded_dir_names=[".git"])
    except OSError as error:
        logger.warning("%s: %s cannot be searched and is left out: %s", WHO, root, error)
        return [], {}


_listing = _Listing()


def listed() -> tuple[Found, ...]:
    """Everything there is, whatever it holds; folders in the released layout as relative names ending in "/"."""
    return _listing.current()


def roots() -> list[str]:
    return folder_paths.get_folder_paths(CATEGORY)


def _files(names: list[str]) -> list[str]:
    known = {*folder_paths.folder_names_and_paths[CATEGORY][1], ".gguf"}
    return [name for name in names if Path(name).suffix.lower() in known]


def _released_folders(names: list[str]) -> list[str]:
    """Folders with config.json and shards, as relative names ending in "/"."""
    shards = {Path(name).parent for name in names if name.endswith(".safetensors")}
    configs = {Path(name).parent for name in names if Path(name).name == "config.json"}
    return [f"{folder.as_posix()}/" for folder in sorted(shards & configs) if folder.parts]


def bundled_tokenizer() -> Path:
    """ComfyUI's own Qwen tokenizer folder, for checkpoints that come without one."""
    import comfy.sd

    return Path(inspect.getfile(comfy.sd)).parent / "text_encoders" / "qwen25_tokenizer"
