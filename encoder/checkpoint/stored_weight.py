"""One needed weight as the files hold it: its format, and where its parts lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..packing import Packing
from .header import TensorEntry


@dataclass(frozen=True)
class StoredWeight:
    """`format` for people ("bf16", "nvfp4", "Q4_K"); `packing` None: stored as it is used, its one part is "weight".

    `input_scale`: a vector [K] that multiplies the input of a linear before the product (AWQ's `pre_quant_scale`).
    """

    format: str
    packing: Packing | None
    parts: Mapping[str, TensorEntry]
    input_scale: TensorEntry | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the files."""
        scale = 0 if self.input_scale is None else self.input_scale.nbytes
        return scale + sum(entry.nbytes for entry in self.parts.values())
