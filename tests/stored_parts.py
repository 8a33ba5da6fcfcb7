"""One weight in a file of its own, packed in any format, as a checkpoint's reader sees it.

Contract: `stored_as(path, format, weight)` -> (StoredWeight, CheckpointFiles, the whole matrix in float32); FORMATS
lists the formats: plain types, those of scripts/quantise.py, and GGUF's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from h3te.encoder.checkpoint.files import STORED_TYPES, CheckpointFiles, shaped
from h3te.encoder.checkpoint.header import TensorEntry
from h3te.encoder.checkpoint.stored_weight import StoredWeight
from h3te.encoder.packing import Packing, unpack
from h3te.encoder.packing.ggml import Ggml, block_size
from h3te_tests.gguf_files import random_blocks
from h3te_tests.test_packing import ROUNDING, packing_of
from quantise import quantise

PLAIN = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
GGUF = ("Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q6_K")
FORMATS = (*PLAIN, *ROUNDING, *GGUF)
SPELLED = {dtype: name for name, dtype in STORED_TYPES.items()}
ODD, ALIGNED = 3, 8  # bytes before the first part: nothing is aligned by chance, but in a GGUF, which sees to it


def stored_as(path: Path, format: str, weight: torch.Tensor) -> tuple[StoredWeight, CheckpointFiles, torch.Tensor]:
    packing, parts = _packed(format, weight)
    entries, at = {}, ALIGNED if format in GGUF else ODD
    with path.open("wb") as file:
        file.write(bytes(at))
        for name, part in parts.items():
            file.write(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
            dtype = format if format in GGUF else SPELLED[part.dtype]
            shape = tuple(weight.shape) if format in GGUF else tuple(part.shape)
            entries[name] = TensorEntry(path, name, dtype, shape, part.nbytes, at)
            at += part.nbytes
    stored = StoredWeight(format, packing, entries)
    whole = parts["weight"].float() if packing is None else unpack(packing, stored.fit(parts), torch.float32)
    return stored, CheckpointFiles([path]), whole


def _packed(format: str, weight: torch.Tensor) -> tuple[Packing | None, dict[str, torch.Tensor]]:
    if format in PLAIN:
        return None, {"weight": weight.to(PLAIN[format])}
    if format in GGUF:
        packing = Ggml(tuple(weight.shape), format)
        blocks = random_blocks(format, weight.numel() // block_size(format)[0])
        return packing, {"weight": torch.from_numpy(blocks).flatten()}
    packing = packing_of(format, tuple(weight.shape))
    parts = quantise(format, weight)
    return packing, {name: parts[name] for name in packing.parts}


def matrix_of(stored: StoredWeight, files: CheckpointFiles, mapped: bool = False) -> torch.Tensor:
    """float32, from the bytes of these parts alone; mapped: those that can be are views of the mapped file."""
    parts = {}
    for name, entry in stored.parts.items():
        if mapped and entry.runs == 1:
            parts[name] = shaped(files.map(entry.file)[entry.offset : entry.offset + entry.nbytes], entry)
        else:
            parts[name] = files.read(entry)
    parts = stored.fit(parts)
    return parts["weight"].float() if stored.packing is None else unpack(stored.packing, parts, torch.float32)
