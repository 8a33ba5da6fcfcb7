"""Which encoder, and which request: the keys of what is kept.

Contract: equal keys mean equal conditioning. `weights_identity(files)` names weights by content, wherever they lie and
whatever they are called; `encoder_identity` adds their config, `EncoderIdentity.key` how they compute, `request_key`
tokens and pixels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch

from ..checkpoint.header import MAX_HEADER_BYTES
from ..presentation import Presentation
from ..regular import regular_stat
from .content import NUMERICS_VERSION, block_digests

if TYPE_CHECKING:
    from ..checkpoint import CheckpointReport
    from ..model import Encoder

WHOLE_BYTES = 8_000_000  # a file up to this size is read whole
OPENING_BYTES = 8_000_000  # of a file of another kind than safetensors; a GGUF's vocabulary and tensor list fit
BLOCK_BYTES, STRIDE_BYTES, LEAST_BLOCKS = 4096, 1 << 25, 64


def weights_identity(files: Sequence[Path]) -> str:
    """Hex digest of checkpoint files: of each its size, its header and a sample of its tensor bytes. Names, folders,
    order and times do not count, so a checkpoint that was moved, renamed or copied is the same one.

    The sample is one block of 4 KB in every 32 MiB (at least 64), the first and the last one; a file of up to 8 MB is
    read whole. What it sees: any change of size, names, shapes or types, and any change of more than 64 MiB in one
    piece. What it cannot see for certain: a change of fewer bytes than that which keeps size and header, such as one
    small matrix edited in place; of a change that is spread over the share p of the data, (1 - p) ** blocks is missed.
    Raises OSError for a file that cannot be read, ValueError for what is no file."""
    return _digest(sorted(_file_digest(Path(file)) for file in files)).hexdigest()


def _digest(pieces: Sequence[bytes]) -> hashlib._Hash:
    return hashlib.sha256(b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces))


def _file_digest(path: Path) -> bytes:
    size = regular_stat(path).st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb", buffering=0) as file:
        if size <= WHOLE_BYTES:
            digest.update(file.read())
            return digest.digest()
        start = _data_start(file, size)
        for offset, length in [(0, start), *_sample(start, size)]:
            file.seek(offset)
            digest.update(file.read(length))
    return digest.digest()


def _data_start(file: BinaryIO, size: int) -> int:
    """Where the tensors of a safetensors file begin; else how much of a file is read from its start."""
    opening = file.read(9)
    length = int.from_bytes(opening[:8], "little")
    if opening[8:] == b"{" and length <= min(size - 8, MAX_HEADER_BYTES):
        return 8 + length
    return min(OPENING_BYTES, size)


def _sample(start: int, size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of the blocks: one at a place of its own in each of equal stretches, the same for every file of
    this size, so that no regular layout hides between them."""
    data = size - start
    count = max(LEAST_BLOCKS, data // STRIDE_BYTES)
    yield start, BLOCK_BYTES
    for i in range(count):
        first, last = start + data * i // count, start + data * (i + 1) // count - BLOCK_BYTES
        place = int.from_bytes(hashlib.sha256(f"{size} {i}".encode()).digest()[:8], "little")
        yield first + place % max(1, last - first), BLOCK_BYTES
    yield max(start, size - BLOCK_BYTES), BLOCK_BYTES


@dataclass(frozen=True)
class EncoderIdentity:
    """weights: `weights_identity`; format, dtype, vision_packing, backend: as reports name them; lora: of the patches
    on it, "" without any; label: for people. Whatever may change a bit of the result is in here."""

    weights: str
    format: str
    dtype: str
    tap_layer: int
    vision_packing: str
    backend: str
    lora: str = ""
    label: str = ""
    numerics: int = NUMERICS_VERSION

    @property
    def key(self) -> str:
        """64 hex digits, of everything but the label."""
        fields = {name: value for name, value in asdict(self).items() if name != "label"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def encoder_identity(encoder: Encoder, report: CheckpointReport | None = None) -> EncoderIdentity:
    """Of an encoder over a checkpoint, by content; the report gives format and label. vision_packing, backend and lora
    are left empty: each request has its own. Raises OSError, RuntimeError or ValueError where the files cannot be read
    or are not those any more that were opened."""
    source, config = encoder.source, encoder.config
    for file in source.catalog.files_needed:
        source.files.check(file)
    content = weights_identity(source.catalog.files_needed)
    weights = hashlib.sha256(f"{content} {config!r}".encode()).hexdigest()
    stored = "" if report is None else report.format or ""
    label = source.catalog.name if report is None else f"{source.catalog.name}: {report.describe()}"
    dtype = str(encoder.dtype).removeprefix("torch.")
    return EncoderIdentity(weights, stored, dtype, encoder.tap_layer, "", "", label=label)


def request_key(identity: EncoderIdentity, ids: torch.Tensor, presentation: Presentation) -> str:
    """64 hex digits. ids int64 [S] of `presentation`; they settle the tags, as text never holds a vision marker."""
    pieces = [identity.key.encode(), ids.to("cpu", torch.int64).contiguous().numpy().tobytes()]
    for modality, patches in (("image", presentation.image), ("video", presentation.video)):
        if patches is not None:
            grids = patches.grid_thw.to("cpu", torch.int64).contiguous().numpy().tobytes()
            pieces += [modality.encode(), grids, *block_digests(patches)]
    return _digest(pieces).hexdigest()
