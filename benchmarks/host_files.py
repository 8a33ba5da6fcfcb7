"""Single files under ComfyUI's names, made from the bf16 folder of the real width: what both encoders of `host` open.

Contract: `single_file(kind)` writes it once and leaves a finished one alone: 4 layers, 6.7 GB (bf16), 3.1 GB
(nvfp4_awq) or 4.7 GB (int8_convrot).
"""

from __future__ import annotations

from pathlib import Path

from disk_space import require_space
from packed_files import write_packed
from wide_files import WIDE, bf16_folder

KINDS = {"bf16": 6.7e9, "nvfp4_awq": 3.2e9, "int8_convrot": 4.8e9}  # bytes, a little more than it takes


def single_file(kind: str) -> Path:
    """Raises RuntimeError when the disk is too full, with both numbers."""
    file = WIDE / "single" / f"wide_{kind}.safetensors"
    if file.is_file():
        return file
    folder = bf16_folder()
    require_space(folder, KINDS[kind], "bench host", "file")
    print(f"  writing {file.name}, minutes for a packed one", flush=True)
    return write_packed(folder, file, kind)
