"""The config of a checkpoint: its folder's config.json, one inside a file's header, or one that lies beside the file.

Contract: `own_config(folder)` is the checkpoint's own and must be readable. `config_in(header)` and
`config_beside(path, shapes)` give None rather than a config that cannot be this encoder's: many models may lie in one
folder, and the last one that was put there left its config.json.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from ..config import EncoderConfig
from ..regular import regular_stat
from ..weights import Shape
from .header import Header
from .plain_json import MOST_BYTES, parsed
from .wording import printable

logger = logging.getLogger(__name__)

CONFIG = "config.json"


def own_config(folder: Path) -> Mapping | None:
    """What config.json of a checkpoint's folder holds; None without one. Raises ValueError or OSError."""
    path = folder / CONFIG
    return read_json(path) if path.exists() else None


def config_in(header: Header) -> Mapping | None:
    """The config that was written into the header of a file."""
    text = header.metadata.get("config")
    if not text:
        return None
    try:
        config = parsed(text) if len(text) <= MOST_BYTES else None
    except ValueError:
        return None
    return config if isinstance(config, dict) and "text_config" in config else None


def config_beside(path: Path, shapes: Mapping[str, Shape]) -> Mapping | None:
    """config.json in the folder of the single file `path`, if the encoder that it describes has these shapes."""
    beside = path.parent / CONFIG
    try:
        if not beside.is_file():
            return None
        config = read_json(beside)
        problem = EncoderConfig.from_dict(config).misfit(shapes)
    except (ValueError, OSError) as error:
        problem = str(error)
    if problem is None:
        return config
    said = printable(problem)
    logger.warning("%s: the config.json beside it is another model's and is not used. %s", path.name, said)
    return None


def read_json(path: Path) -> dict:
    """The JSON object in a file. Raises ValueError for anything else, OSError where it cannot be read."""
    size = regular_stat(path).st_size
    if size > MOST_BYTES:
        raise ValueError(
            f"{path.name}: expected JSON of at most {MOST_BYTES:,} bytes, got {size:,}. Download the file again."
        )
    try:
        value = parsed(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path.name}: expected JSON, got unreadable text ({error}). Download the file again."
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: expected a JSON object, got {type(value).__name__}. Download the file again.")
    return value
