"""A conditioning file: safetensors whose metadata say how its tensors make a CONDITIONING, and what that came from.

Contract: `write(target, conditioning)` never leaves a half-written file and never touches one that is there;
`read(path)` gives what was written, to the bit. Nothing is unpickled or run, other files are told by what they are, and
no encoder is needed. Metadata: `h3te_conditioning` (version of the format), `tree`, `digest` (of all tensor bytes),
`about` (JSON, see `about`), and where the encode node left them `presentation` (text) and `provenance` (JSON).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comfy.model_management
import torch

from ...encoder.checkpoint.header import Header, TensorEntry, read_header
from ...encoder.checkpoint.plain_json import MOST_VALUES
from ...encoder.checkpoint.wording import printable
from ...encoder.regular import regular_stat
from .conditioning_tree import DTYPES, Packed, dtype_name, pack
from .conditioning_untree import NotPacked, unpack
from .saving import SaveTarget, placed

WHO = "Load MiniMax H3 Conditioning (H3TE)"
KEY = "h3te"  # of CONDITIONING's dict: what the encode node knows, as a JSON object; its "presentation" is a text
MARK = "h3te_conditioning"
VERSION = 1
SUFFIX = ".safetensors"
MAX_HEADER_BYTES = 16_000_000  # ours have some kilobytes; the prompt is the longest part
_NOT_OURS = "Choose a file that Save MiniMax H3 Conditioning (H3TE) wrote."


@dataclass(frozen=True)
class Written:
    """nbytes: of the whole file."""

    path: Path
    metadata: dict[str, str]
    nbytes: int


@dataclass(frozen=True, eq=False)
class Loaded:
    """presentation: empty where the file has none. nbytes: of the whole file."""

    conditioning: list
    metadata: dict[str, str]
    nbytes: int

    @property
    def presentation(self) -> str:
        return self.metadata.get("presentation", "")


# write


def write(target: SaveTarget, conditioning: Any, with_prompt: bool = True) -> Written:
    """To the first free number. with_prompt: False leaves `KEY` and all it says out of the file.
    Raises ValueError before anything is written for what a file cannot hold, RuntimeError where the disk refuses."""
    packed = pack(conditioning if with_prompt else _without_prompt(conditioning))
    metadata = _metadata(packed, conditioning, with_prompt)
    path = placed(target, SUFFIX, _chunks(packed.tensors, metadata))
    return Written(path, metadata, path.stat().st_size)


def _without_prompt(conditioning: Any) -> Any:
    if not isinstance(conditioning, (list, tuple)):
        return conditioning
    return [
        [entry[0], {key: value for key, value in entry[1].items() if key != KEY}]
        if isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[1], dict)
        else entry
        for entry in conditioning
    ]


def _metadata(packed: Packed, conditioning: list, with_prompt: bool) -> dict[str, str]:
    """The mark first: the list of files looks no further than the first bytes."""
    given = conditioning[0][1].get(KEY) if with_prompt else None
    facts = dict(given) if isinstance(given, dict) else {}
    presentation = facts.pop("presentation", None)
    metadata = {MARK: str(VERSION), "format": "pt", "about": json.dumps(about(conditioning))}
    metadata |= {"presentation": presentation} if isinstance(presentation, str) else {}
    metadata |= {"provenance": json.dumps(facts, default=str)} if facts else {}
    return {**metadata, "digest": _digest(packed.tensors), "tree": json.dumps(packed.tree, allow_nan=False)}


def about(conditioning: list) -> dict[str, Any]:
    """entries, tokens of each, kinds of references, number of keyframes of the first, time of saving (UTC)."""
    extras = conditioning[0][1]
    kinds = [ref.get("kind") for ref in _listed(extras, "minimax_refs") if isinstance(ref, dict)]
    return {
        "tokens": [hidden.shape[-2] if hidden.dim() > 1 else 0 for hidden, _ in conditioning],
        "references": [kind for kind in kinds if isinstance(kind, str)],
        "keyframes": len(_listed(extras, "minimax_keyframes")),
        "tags": "minimax_token_tags" in extras,
        "saved": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _listed(extras: Mapping[str, Any], key: str) -> list | tuple:
    found = extras.get(key)
    return found if isinstance(found, (list, tuple)) else ()


def _chunks(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> Iterable[bytes | memoryview]:
    """The file's bytes: length of the header, header, tensors. Wide dtypes first, so that every tensor is aligned."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {"__metadata__": dict(metadata)}, 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": dtype_name(tensor), "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    _check_length(text)
    yield len(text).to_bytes(8, "little")
    yield text
    for _, tensor in ordered:
        yield _bytes_of(tensor)


def _check_length(text: bytes) -> None:
    """What is written can be read."""
    values = text.count(b",")
    if len(text) > MAX_HEADER_BYTES or values > MOST_VALUES:
        raise ValueError(
            f"{WHO.replace('Load', 'Save')}: expected texts and containers of at most {MAX_HEADER_BYTES:,} bytes and "
            f"{MOST_VALUES:,} values, got {len(text):,} and {values:,}. Save the conditioning before the node that "
            "adds them."
        )


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of names and bytes, whatever their order in the file."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name}\n".encode())
        digest.update(_bytes_of(tensors[name]))
    return digest.hexdigest()


# read


def read_metadata(path: Path) -> Header:
    """Header of one of our files, tensors unread. Raises ValueError that says what the file is instead, OSError where
    it cannot be opened."""
    size = regular_stat(path).st_size
    if path.suffix.lower() != SUFFIX:
        raise _refused(
            f"expected a {SUFFIX} file, got {path.name}, which is never opened: other kinds can run code. {_NOT_OURS}"
        )
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if MAX_HEADER_BYTES < length < size:
        raise _refused(f"expected a conditioning file, got {path.name} with a header of {length:,} bytes. {_NOT_OURS}")
    try:
        header = read_header(path)
    except ValueError as error:
        raise _refused(f"{error}") from error
    _check_version(path, header.metadata.get(MARK))
    return header


def _check_version(path: Path, version: str | None) -> None:
    if version is None:
        raise _refused(
            f"expected a conditioning file, got {path.name}, a safetensors file without its mark (a model, or "
            f"another program's). {_NOT_OURS}"
        )
    if version != str(VERSION):
        raise _refused(
            f"expected format version {VERSION}, got {version!r:.20} in {path.name}. Update this node pack, or "
            "encode and save again."
        )


def read(path: Path) -> Loaded:
    """Tensors come to where ComfyUI keeps conditioning. Raises ValueError as `read_metadata` does, and for a file that
    was damaged; OSError where it cannot be read."""
    header = read_metadata(path)
    tensors = _tensors(path, header)
    if _digest(tensors) != header.metadata.get("digest"):
        raise _damaged(path, "tensors that differ from what was saved")
    try:
        device = comfy.model_management.intermediate_device()
        tree = json.loads(header.metadata.get("tree", ""))
        conditioning = unpack(tree, {name: tensor.to(device) for name, tensor in tensors.items()})
    except (NotPacked, RecursionError, ValueError, TypeError) as error:
        raise _damaged(path, str(error)) from error
    return Loaded(conditioning, header.metadata, regular_stat(path).st_size)


def _tensors(path: Path, header: Header) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        return {name: _tensor(file, path, entry) for name, entry in header.tensors.items()}


def _tensor(file: Any, path: Path, entry: TensorEntry) -> torch.Tensor:
    """Copied, never mapped: a mapped file that is cut short ends the process."""
    if entry.dtype not in DTYPES:
        raise _damaged(path, f"a tensor of dtype {entry.dtype}")
    raw = torch.empty(entry.nbytes, dtype=torch.uint8)
    file.seek(entry.offset)
    if entry.nbytes and file.readinto(memoryview(raw.numpy())) != entry.nbytes:
        raise _damaged(path, "fewer bytes than its header says")
    try:
        return raw.view(DTYPES[entry.dtype]).reshape(entry.shape)
    except RuntimeError as error:
        raise _damaged(path, f"a tensor of shape {list(entry.shape)}") from error


def _damaged(path: Path, got: str) -> ValueError:
    return _refused(
        f"expected {path.name} as it was saved, got {got}. The file is damaged: take it from a backup, or "
        "encode and save again."
    )


def _refused(text: str) -> ValueError:
    """Names of files and what stands in them are other people's."""
    return ValueError(printable(f"{WHO}: {text}"))
