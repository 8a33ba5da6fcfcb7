"""Which of the text encoder files are H3's, and the file or folder that a saved widget value means.

Contract: values are the relative names that CLIPLoader saves (its folders, legacy `clip/`, extra_model_paths), plus
folders in the released layout as relative names ending in "/", plus `.gguf`: text_encoder_files.py. Recognised H3
encoders come first.
Headers are read once per file state (states.py): for the list by a look that only tells encoders from others, for a
report whole; nothing else is opened. A file that moved to another subfolder is found by its name. A GGUF file's vision
part may be a second file, named or beside it. No file keeps the list from being made: one that cannot be read stands
last, and the log says why.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from ...encoder import CheckpointReport, inspect_checkpoint
from ...encoder.checkpoint.glance import glance
from ...encoder.checkpoint.wording import printable
from ...encoder.regular import is_folder
from .states import State, file_state, header_state
from .text_encoder_files import WHO, listed, roots

logger = logging.getLogger(__name__)

OPTIONS = "MiniMax H3 Encoder Options (H3TE)"
NOTHING = "(none found: put qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors, 15.7 GB, into models/text_encoders)"
_NOTHING_EVER = "(none found: "  # how the entry began in every release
CACHE_ONLY, REMOTE = "(cache only: as the options say)", "(remote: as the options say)"
_NONE_HERE = {  # values without a checkpoint, and what the options must say then
    CACHE_ONLY: "cache_only of the options to name an encoder, got off",
    REMOTE: "remote of the options to be a worker's address, got nothing",
}
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


@dataclass(frozen=True)
class _Inspection:
    """What a file was found to be in a state. inspected: False where the inspection itself failed."""

    state: State
    report: CheckpointReport
    inspected: bool = True


_reports: dict[tuple[str, str | None], _Inspection] = {}
_glances: dict[Path, tuple[State, bool | None]] = {}


def combo_values() -> list[str]:
    """The widget's values, recognised H3 encoders first; one explaining entry when there is none."""
    ranked = sorted((_rank(entry.path), entry.value) for entry in listed())
    return [value for _, value in ranked] or [NOTHING]


def _rank(path: Path) -> int:
    """0: an H3 encoder, 1: anything else, 2: what cannot be read."""
    if not _has_header(path):
        return 1
    verdict = _glanced(path)
    if verdict is not None:
        return 0 if verdict else 1
    found = _cached(path, None)
    return 0 if found.report.is_h3 else 1 if found.state and found.inspected else 2


def _glanced(path: Path) -> bool | None:
    """Whether it is an H3 encoder, told from a look at its header; None where only the whole inspection can tell."""
    state = header_state(path)
    if path not in _glances or _glances[path][0] != state:
        _glances[path] = (state, _glance(path) if state else None)
    return _glances[path][1]


def _glance(path: Path) -> bool | None:
    try:
        return glance(path)
    except Exception:
        logger.exception("%s: a look at %s failed: it is inspected whole.", WHO, path)
        return None


def vision_values() -> list[str]:
    """The options' values for a vision file: beside the encoder, then every GGUF file, vision files first."""
    files = (entry.value for entry in listed() if entry.path.suffix.lower() == ".gguf")
    return [BESIDE, *sorted(files, key=lambda v: ("mmproj" not in v.lower(), v))]


def is_h3(path: Path) -> bool:
    return _has_header(path) and cached_report(path).is_h3


def _has_header(path: Path) -> bool:
    return path.suffix.lower() in HEADERS or is_folder(path)


def cached_report(path: Path, vision: Path | None = None) -> CheckpointReport:
    """The header report of a file or folder, read again only when it changed. vision: a named second file."""
    return _cached(path, vision).report


def _cached(path: Path, vision: Path | None) -> _Inspection:
    key = (str(path), None if vision is None else str(vision))
    state = file_state(path) + (() if vision is None else file_state(vision))
    if key not in _reports or _reports[key].state != state:
        _reports[key] = _inspect(state, path, vision)
    return _reports[key]


def _inspect(state: State, path: Path, vision: Path | None) -> _Inspection:
    """The last guard: what one file can make the inspection raise must not take a node away from everybody."""
    try:
        return _Inspection(state, inspect_checkpoint(path, vision=vision) if vision else inspect_checkpoint(path))
    except Exception as error:
        logger.exception("%s: %s could not be inspected.", WHO, path)
        got = f"{type(error).__name__}: {error}"
        problem = f"{path.name}: expected headers that can be inspected, got {got}. Replace the file, or report this."
        return _Inspection(state, CheckpointReport(path, problems=(problem,)), inspected=False)


def none_here(value: object) -> str | None:
    """What the options must say for a value that stands for no checkpoint; None for every other value."""
    return _NONE_HERE.get(value) if isinstance(value, str) else None


def resolve(value: str) -> Path:
    """The file or folder that a saved value means. Raises ValueError that says what to put where or to choose."""
    if not isinstance(value, str):
        raise ValueError(
            f"{WHO}: expected text_encoder as a name, got {type(value).__name__}. Connect a STRING, or choose a file."
        )
    found = _find(value, f"{WHO}: expected text_encoder {printable(value)}", WHO)
    if found is None:
        raise ValueError(
            f"{WHO}: expected a text encoder file or folder, got {value!r} in none of {_searched()}. {_GET}. Where a "
            f"worker computes (remote of the options), choose {REMOTE}."
        )
    return found


def resolve_vision(value: str) -> Path | None:
    """The second file that the options name; None for the one beside the encoder. Raises ValueError."""
    if value == BESIDE:
        return None
    expected = f"{OPTIONS}: expected vision_file {printable(str(value))}"
    found = _find(value, expected, OPTIONS) if isinstance(value, str) else None
    if found is None:
        raise ValueError(
            f"{OPTIONS}: expected vision_file to be a file, got {value!r} in none of {_searched()}. Choose {BESIDE}, "
            "or put the mmproj file that belongs to the GGUF file there and reload the page."
        )
    return found


def _find(value: str, expected: str, who: str) -> Path | None:
    """The entry of that name, a folder below a root, or the one file of that base name elsewhere."""
    entries = listed()
    exact = [e.path for e in entries if _plain(e.value) == _plain(value)]
    inside = exact[0] if exact else _parent_folder(value)
    if inside is not None or value.startswith(_NOTHING_EVER):
        return inside
    moved = [e for e in entries if _base(e.value) == _base(value)]
    if len(moved) > 1:
        raise ValueError(
            f"{expected}, got {len(moved)} files of that name elsewhere: "
            f"{printable(', '.join(e.value for e in moved))}. Choose one of them."
        )
    if not moved:
        return None
    logger.warning("%s: %s is not there any more, using %s.", who, printable(value), printable(moved[0].value))
    return moved[0].path


def _parent_folder(value: str) -> Path | None:
    """A folder below a root that is not listed itself, such as the parent of `text_encoder/`."""
    if not value.endswith(("/", "\\")):
        return None
    relative = Path(value)
    if PureWindowsPath(value).anchor or relative.is_absolute() or ".." in _plain(value).split("/"):
        return None  # also "C:" and "\\\\server", which join to no root there
    places = (Path(root, value) for root in roots())
    return next((place for place in places if is_folder(place)), None)


def _plain(value: str) -> str:
    """A value without what differs between systems and typists: backslashes, and the slash after a folder."""
    return value.replace("\\", "/").rstrip("/")


def _base(value: str) -> str:
    return value.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] + ("/" if value.endswith(("/", "\\")) else "")


def _searched() -> str:
    return ", ".join(roots())
