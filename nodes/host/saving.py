"""Where a node may write: ComfyUI's output folder, under the next free number, whole or not at all.

Contract: `save_target(prefix)` understands what ComfyUI's own save nodes do (subfolders, %year% and its like, a number)
and refuses every prefix that leads out of the output folder. `placed(target, ...)` writes to a temporary file beside
the goal, flushes it to the disk and only then gives it its name; a name that is taken is never written over, also not
when two nodes save at once. Whenever ComfyUI dies, a file under a save node's name is whole; the temporary file that it
leaves then goes at a later save into that folder.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import folder_paths
from comfy.cli_args import args

from ...encoder.cache.disk_folder import sweep, write_flushed

WHO = "Save MiniMax H3 Conditioning (H3TE)"
_EXAMPLE = "Use a name such as conditioning/h3."
_TEMPORARY = re.compile(r"\.h3te-[0-9a-f]{16}\.tmp")
_UNFIT = re.compile('[\x00-\x1f\x7f:*?"<>|\ud800-\udfff]')  # what one of the systems does not take in a name


@dataclass(frozen=True)
class SaveTarget:
    """folder: below the output folder. The file becomes `<name>_<counter>_<suffix>`, counter or the next free one."""

    folder: Path
    name: str
    counter: int


def prompts_may_be_saved() -> bool:
    """False where ComfyUI was started with --disable-metadata."""
    return not args.disable_metadata


def save_target(prefix: str) -> SaveTarget:
    """Makes the folder. Raises ValueError for a prefix that leads out of the output folder or is no name, RuntimeError
    where the folder cannot be made."""
    wanted = _checked(prefix)
    root = Path(folder_paths.get_output_directory())
    _check_inside(root, root / Path(wanted).parent, prefix)
    try:
        folder, name, counter, *_ = folder_paths.get_save_image_path(wanted, str(root))
    except OSError as error:
        raise _refused_by_disk(root / Path(wanted).parent, error) from error
    except Exception as error:
        if type(error) is not Exception:  # the host's own word for a folder outside, on newer releases
            raise
        raise _led_out(root, prefix) from error
    _check_inside(root, Path(folder), prefix)  # a filled-in %year% may have led through a link
    return SaveTarget(Path(folder), name, counter)


def _checked(prefix: str) -> str:
    expected = f"{WHO}: expected filename_prefix to be a name inside ComfyUI's output folder"
    if not isinstance(prefix, str):
        raise ValueError(f"{expected}, got {type(prefix).__name__}. {_EXAMPLE}")
    plain = prefix.strip().replace("\\", "/")
    if plain.startswith("/") or re.match("[A-Za-z]:", plain):
        raise ValueError(f"{expected}, got the absolute path {prefix!r:.100}. {_EXAMPLE}")
    if ".." in plain.split("/"):
        raise ValueError(f"{expected}, got {prefix!r:.100}, which leads out of it. {_EXAMPLE}")
    if found := _UNFIT.search(plain):
        raise ValueError(f"{expected}, got {prefix!r:.100} with the character {found[0]!r}. {_EXAMPLE}")
    parts = [part for part in plain.split("/") if part not in ("", ".")]
    if not parts or plain.endswith("/"):
        raise ValueError(f"{expected}, got {prefix!r:.100} without a file name at its end. {_EXAMPLE}")
    return "/".join(parts)


def _check_inside(root: Path, folder: Path, prefix: str) -> None:
    """Links followed."""
    if not folder.resolve().is_relative_to(root.resolve()):
        raise _led_out(root, prefix)


def _led_out(root: Path, prefix: str) -> ValueError:
    return ValueError(
        f"{WHO}: expected filename_prefix to be a name inside ComfyUI's output folder {root}, got {prefix!r:.100}, "
        f"which a link leads out of it. {_EXAMPLE}"
    )


def placed(target: SaveTarget, suffix: str, chunks: Iterable[bytes | memoryview]) -> Path:
    """The path of the new file. Raises RuntimeError where the disk refuses; then nothing is left behind."""
    temporary = target.folder / f".h3te-{secrets.token_hex(8)}.tmp"
    sweep(target.folder, unfinished=_TEMPORARY)
    try:
        write_flushed(temporary, chunks)
        return _named(target, suffix, temporary)
    except OSError as error:
        raise _refused_by_disk(target.folder / f"{target.name}_{target.counter:05}_{suffix}", error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _named(target: SaveTarget, suffix: str, temporary: Path) -> Path:
    """The first name from the target's on that is free: two processes never get the same."""
    counter = target.counter
    while True:
        goal = target.folder / f"{target.name}_{counter:05}_{suffix}"
        try:
            return _given(goal, temporary)
        except FileExistsError:
            counter += 1


def _given(goal: Path, temporary: Path) -> Path:
    """A second name for the whole file, which replaces nothing. Disks without such links (FAT) are given the name empty
    first, which one process alone can do, and then the file. Raises FileExistsError for a name that is taken."""
    try:
        os.link(temporary, goal)
        return goal
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        goal.open("xb").close()
    try:
        return temporary.replace(goal)
    except OSError:
        goal.unlink(missing_ok=True)
        raise


def _refused_by_disk(path: Path, error: OSError) -> RuntimeError:
    return RuntimeError(
        f"{WHO}: expected to write {path}, got {type(error).__name__}: {error.strerror or error}. Free space, shorten "
        "the name, or allow writing there."
    )
