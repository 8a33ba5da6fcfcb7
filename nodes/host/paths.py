"""Which text encoders ComfyUI can see, and the file or folder that a saved widget value means.

Contract: values are the relative names that CLIPLoader saves (its folders, legacy `clip/`, extra_model_paths), plus
folders in the released layout as relative names ending in "/", plus `.gguf`. Recognised H3 encoders come first.
Headers are read once per file state (path, time, size); nothing else is opened. A file that moved to another
subfolder is found by its name. A GGUF file's vision part may be a second file, named or beside it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import folder_paths

from ...encoder import CheckpointReport, inspect_checkpoint

logger = logging.getLogger(__name__)

WHO = "Load MiniMax H3 Text Encoder (H3TE)"
CATEGORY = "text_encoders"
OPTIONS = "MiniMax H3 Encoder Options (H3TE)"
NOTHING = "(none found: put qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors, 15.7 GB, into models/text_encoders)"
_NOTHING_EVER = "(none found: "  # how the entry began in every release
BESIDE = "(beside the encoder)"
HEADERS = (".safetensors", ".sft", ".gguf")  # files whose header can be read alone
_GET = (
    "Put one of these into one of these folders and reload the page: "
    "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors (15.7 GB: for most people, with 16 GB or more of RAM and VRAM "
    "together), qwen3vl_32b_minimax_h3_int8_convrot.safetensors (27.1 GB: closer to the original), "
    "qwen3vl_32b_minimax_h3_bf16.safetensors (51.5 GB: the original numbers, best with 64 GB), all three from "
    "Comfy-Org's MiniMax H3 repackage; the released text_encoder folder with its config.json and shards (66.7 GB on "
    "disk, of which 51.5 GB are read); or a GGUF file of the encoder with its vision file (mmproj) beside it"
)

# (name, mtime in ns, size, inode, device) of each file that decides what a checkpoint is
State = tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True)
class Found:
    """One entry of the combo: its saved value and where it lies."""

    value: str
    path: Path


class _Listing:
    """All files below the text encoder folders, walked again only when a folder changed."""

    def __init__(self):
        self.roots: tuple[str, ...] = ()
        self.folders: dict[str, float] = {}
        self.entries: tuple[Found, ...] = ()

    def current(self) -> tuple[Found, ...]:
        roots = tuple(folder_paths.get_folder_paths(CATEGORY))
        if roots != self.roots or not self._fresh():
            self._walk(roots)
        return self.entries

    def _fresh(self) -> bool:
        if any(root not in self.folders and Path(root).is_dir() for root in self.roots):
            return False  # a folder that was not there
        try:
            return all(Path(folder).stat().st_mtime == time for folder, time in self.folders.items())
        except OSError:
            return False

    def _walk(self, roots: tuple[str, ...]) -> None:
        self.roots, self.folders, found = roots, {}, {}
        for root in roots:
            names, folders = folder_paths.recursive_search(root, excluded_dir_names=[".git"])
            self.folders.update(folders)
            for value in [*_files(names), *_released_folders(names)]:
                found.setdefault(value, Found(value, Path(root, value)))  # as ComfyUI: the first root wins
        self.entries = tuple(found.values())


_listing = _Listing()
_reports: dict[tuple[str, str | None], tuple[State, CheckpointReport]] = {}


def _files(names: list[str]) -> list[str]:
    known = {*folder_paths.folder_names_and_paths[CATEGORY][1], ".gguf"}
    return [name for name in names if Path(name).suffix.lower() in known]


def _released_folders(names: list[str]) -> list[str]:
    """Folders with config.json and shards, as relative names ending in "/"."""
    shards = {Path(name).parent for name in names if name.endswith(".safetensors")}
    configs = {Path(name).parent for name in names if Path(name).name == "config.json"}
    return [f"{folder.as_posix()}/" for folder in sorted(shards & configs) if folder.parts]


def combo_values() -> list[str]:
    """The widget's values, recognised H3 encoders first; one explaining entry when there is none."""
    entries = _listing.current()
    recognised = {entry.value for entry in entries if is_h3(entry.path)}
    return sorted((entry.value for entry in entries), key=lambda v: (v not in recognised, v)) or [NOTHING]


def vision_values() -> list[str]:
    """The options' values for a vision file: beside the encoder, then every GGUF file, vision files first."""
    files = (entry.value for entry in _listing.current() if entry.path.suffix.lower() == ".gguf")
    return [BESIDE, *sorted(files, key=lambda v: ("mmproj" not in v.lower(), v))]


def is_h3(path: Path) -> bool:
    if path.is_file() and path.suffix.lower() not in HEADERS:
        return False
    return cached_report(path).is_h3


def cached_report(path: Path, vision: Path | None = None) -> CheckpointReport:
    """The header report of a file or folder, read again only when it changed. vision: a named second file."""
    key = (str(path), None if vision is None else str(vision))
    state = file_state(path) + (() if vision is None else file_state(vision))
    if key not in _reports or _reports[key][0] != state:
        _reports[key] = (state, inspect_checkpoint(path, vision=vision) if vision else inspect_checkpoint(path))
    return _reports[key][1]


def file_state(path: Path) -> State:
    """(name, time, size, identity) of a file, or of a folder's configs and shards: changes when the checkpoint does.

    With a GGUF file go the others beside it: one of them may be its vision part.
    """
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in (".json", ".safetensors") and p.is_file())
    elif path.suffix.lower() == ".gguf":
        files = sorted(p for p in path.parent.glob("*.gguf") if p != path and p.is_file())
        files = [path, *files] if path.is_file() else []
    else:
        files = [path] if path.is_file() else []
    stats = [(file.name, file.stat()) for file in files]
    return tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev) for name, stat in stats)


def resolve(value: str) -> Path:
    """The file or folder that a saved value means. Raises ValueError that says what to put where or to choose."""
    if not isinstance(value, str):
        raise ValueError(
            f"{WHO}: expected text_encoder as a name, got {type(value).__name__}. Connect a STRING, or choose a file."
        )
    found = _find(value, f"{WHO}: expected text_encoder {value}", WHO)
    if found is None:
        raise ValueError(f"{WHO}: expected a text encoder file or folder, got {value!r} in none of {_roots()}. {_GET}.")
    return found


def resolve_vision(value: str) -> Path | None:
    """The second file that the options name; None for the one beside the encoder. Raises ValueError."""
    if value == BESIDE:
        return None
    found = _find(value, f"{OPTIONS}: expected vision_file {value}", OPTIONS) if isinstance(value, str) else None
    if found is None:
        raise ValueError(
            f"{OPTIONS}: expected vision_file to be a file, got {value!r} in none of {_roots()}. Choose {BESIDE}, or "
            "put the mmproj file that belongs to the GGUF file there and reload the page."
        )
    return found


def _find(value: str, expected: str, who: str) -> Path | None:
    """The entry of that name, a folder below a root, or the one file of that base name elsewhere."""
    entries = _listing.current()
    exact = [e.path for e in entries if _plain(e.value) == _plain(value)]
    inside = exact[0] if exact else _parent_folder(value)
    if inside is not None or value.startswith(_NOTHING_EVER):
        return inside
    moved = [e for e in entries if _base(e.value) == _base(value)]
    if len(moved) > 1:
        raise ValueError(
            f"{expected}, got {len(moved)} files of that name elsewhere: {', '.join(e.value for e in moved)}. "
            "Choose one of them."
        )
    if not moved:
        return None
    logger.warning("%s: %s is not there any more, using %s.", who, value, moved[0].value)
    return moved[0].path


def _parent_folder(value: str) -> Path | None:
    """A folder below a root that is not listed itself, such as the parent of `text_encoder/`."""
    if not value.endswith(("/", "\\")):
        return None
    relative = Path(value)
    if relative.is_absolute() or ".." in relative.parts:
        return None
    places = (Path(root, value) for root in folder_paths.get_folder_paths(CATEGORY))
    return next((place for place in places if place.is_dir()), None)


def _plain(value: str) -> str:
    """A value without what differs between systems and typists: backslashes, and the slash after a folder."""
    return value.replace("\\", "/").rstrip("/")


def _base(value: str) -> str:
    return value.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] + ("/" if value.endswith(("/", "\\")) else "")


def _roots() -> str:
    return ", ".join(folder_paths.get_folder_paths(CATEGORY))


def bundled_tokenizer() -> Path:
    """ComfyUI's own Qwen tokenizer folder, for checkpoints that come without one."""
    import comfy.sd

    return Path(comfy.sd.__file__).parent / "text_encoders" / "qwen25_tokenizer"
