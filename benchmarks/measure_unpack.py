"""One format of a 5120 x 25600 matrix unpacked to bfloat16, by us or by the other side. Prints one line of JSON.

    measure_unpack.py ours|theirs FORMAT [--repeats 3]

The other side is comfy-kitchen's CPU path, as ComfyUI calls it, or the numpy of the `gguf` package. The codes are
random but the same on both sides. The first of the repeats is left out; `seconds` is the best of the others, for what
else the machine does can only add. `peak` is the most memory above the start of one unpacking, its result included
(Linux only, else null).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from memory_peak import peak, resident
from pack import h3te_module

SHAPE = (5120, 25600)
DTYPE = torch.bfloat16
GGML_SCALES = {"Q8_0": slice(0, 2), "Q4_K": slice(0, 4), "Q6_K": slice(208, 210)}  # float16s in a block
FORMATS = ("nvfp4", "int8_convrot", "int8", "fp8", *GGML_SCALES)


def packing(name: str):
    if name == "nvfp4":
        return h3te_module("encoder.packing.nvfp4").Nvfp4(SHAPE)
    if name == "fp8":
        return h3te_module("encoder.packing.fp8").Fp8(SHAPE)
    if name in GGML_SCALES:
        return h3te_module("encoder.packing.ggml").Ggml(SHAPE, name)
    return h3te_module("encoder.packing.int8").Int8(SHAPE, group=256 if name == "int8_convrot" else 0)


def parts(name: str) -> dict[str, torch.Tensor]:
    """Random codes with scales that are plain numbers."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for part, kind in packing(name).parts.items():
        if kind.dtype.itemsize == 4:
            found[part] = torch.rand(kind.shape, generator=generator) * 0.01 + 1e-3
            continue
        codes = torch.randint(0, 256, kind.shape, dtype=torch.uint8, generator=generator)
        if kind.dtype == torch.float8_e4m3fn:
            codes = codes & 0x77 if part == "weight" else codes & 7 | 0x38  # no NaN; block scales from 1 to 2
        found[part] = codes.view(kind.dtype)
    if name in GGML_SCALES:
        found["weight"] = _with_scales(found["weight"], name)
    return found


def _with_scales(codes: torch.Tensor, name: str) -> torch.Tensor:
    """Every block's own float16 scales set to 2 ** -8."""
    blocks = codes.view(-1, h3te_module("encoder.packing.ggml").block_size(name)[1])
    where = GGML_SCALES[name]
    scales = torch.full((1, (where.stop - where.start) // 2), 2.0**-8, dtype=torch.float16)
    blocks[:, where] = scales.view(torch.uint8)
    return codes


def ours(name: str, stored: dict) -> Callable[[], torch.Tensor]:
    kind, unpack = packing(name), h3te_module("encoder.packing").unpack
    return lambda: unpack(kind, stored, DTYPE)


def theirs(name: str, stored: dict) -> Callable[[], torch.Tensor]:
    weight, scale = stored["weight"], stored.get("weight_scale")
    if name in GGML_SCALES:
        import gguf

        kind = gguf.GGMLQuantizationType[name]
        return lambda: torch.from_numpy(gguf.quants.dequantize(weight.numpy(), kind)).to(DTYPE)
    import comfy_kitchen as kitchen

    if name == "nvfp4":
        return lambda: kitchen.dequantize_nvfp4(weight, stored["weight_scale_2"], scale, DTYPE)
    if name == "fp8":
        return lambda: kitchen.dequantize_per_tensor_fp8(weight, scale, DTYPE)
    if name == "int8_convrot":
        code = kitchen.DTYPE_TO_CODE[DTYPE]
        return lambda: torch.ops.comfy_kitchen.dequantize_int8_convrot_weight_dtype(weight, scale, 256, code)
    return lambda: kitchen.dequantize_int8_simple(weight, scale).to(DTYPE)


def above_start(unpack: Callable[[], torch.Tensor]) -> int | None:
    """Bytes at the peak of one call above those before it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak counts from now on
    except OSError:
        return None
    before = resident()
    unpack()
    return peak() - before


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one unpacking.")
    parser.add_argument("side", choices=("ours", "theirs"))
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("--repeats", type=int, default=3)
    parsed = parser.parse_args()
    unpack = {"ours": ours, "theirs": theirs}[parsed.side](parsed.format, parts(parsed.format))
    seconds = []
    for _ in range(1 + parsed.repeats):
        started = time.perf_counter()
        matrix = unpack()
        seconds.append(time.perf_counter() - started)
    norm = float(torch.linalg.vector_norm(matrix.float()))
    del matrix
    print(json.dumps({"seconds": min(seconds[1:]), "peak": above_start(unpack), "norm": norm}))


if __name__ == "__main__":
    main()
