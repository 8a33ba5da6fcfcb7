"""The formats of docs/formats.md: how each file is written, what the doctor must say of it, and how far its hidden
states may be from those of the bf16 file.

Bounds are for the generated weights and about a third above what was measured: a wrong scale, a forgotten rotation or a
swapped nibble moves the error to 0.5 and more. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "bf16 folder"


@dataclass(frozen=True)
class Format:
    """`name`: of its row. One of `kind` (packed_files), `plain` (the bf16 file cast) and `family` (gguf_files, with
    `types`: linear, down_proj, embedding, vision) says how it is written; none: it is the source folder.

    `linears`, `embedding`: what the doctor calls them. `bound`: relative L2 of the hidden states. `refusal`: words of
    the message, for a format that is not served. `marked`: whether the file can carry the demo mark, without which the
    doctor must say that its width is not H3's.
    """

    name: str
    linears: tuple[str, ...]
    embedding: str = "bf16"
    bound: float = 0.0
    kind: str = ""
    plain: str = ""
    family: str = ""
    types: tuple[str, ...] = ()
    refusal: str = ""
    marked: bool = True
    awq: bool = False


def _gguf(family: str, linear: str, down: str, embedding: str, vision: str, bound: float) -> Format:
    linears = tuple(dict.fromkeys((linear, down)))
    plain = {"BF16": "bf16", "F16": "fp16"}
    name = f"GGUF {family}{' + mmproj' if family == 'C' else ''}, {'/'.join(linears)}"
    return Format(
        name,
        tuple(plain.get(type, type) for type in linears),
        plain.get(embedding, embedding),
        bound,
        family=family,
        types=(linear, down, embedding, vision),
        marked=family != "A",
    )


FORMATS = (
    Format(SOURCE, ("bf16",)),
    Format("bf16", ("bf16",), kind="bf16"),
    Format("fp16", ("fp16",), "fp16", 1e-5, plain="float16"),
    Format("fp32", ("fp32",), "fp32", plain="float32"),
    Format("nvfp4_awq", ("nvfp4",), "int8 per row", 0.11, kind="nvfp4_awq", awq=True),
    Format("nvfp4", ("nvfp4",), bound=0.11, kind="nvfp4"),
    Format("int8_convrot", ("int8 convrot",), bound=0.008, kind="int8_convrot"),
    Format("int8_row", ("int8 per row",), bound=0.005, kind="int8_row"),
    Format("int8_tensor", ("int8 per tensor",), bound=0.005, kind="int8_tensor"),
    Format("fp8 (marker)", ("fp8 per tensor",), bound=0.03, kind="fp8"),
    Format("fp8 (header metadata)", ("fp8 per tensor",), bound=0.03, kind="fp8_header"),
    Format("fp8 (legacy scaled_fp8)", ("fp8 per tensor",), bound=0.03, kind="fp8_legacy"),
    Format("fp8 e5m2", ("fp8 e5m2 per tensor",), bound=0.055, kind="fp8_e5m2"),
    Format("HF block fp8 folder", ("fp8 by blocks of 128 x 128",), bound=0.03, kind="hf_block_fp8"),
    _gguf("A", "Q4_K", "Q4_K", "Q6_K", "F16", 0.07),
    _gguf("B", "Q8_0", "Q8_0", "Q8_0", "Q6_K", 0.04),
    _gguf("C", "BF16", "BF16", "BF16", "F16", 1e-5),
    _gguf("C", "Q8_0", "Q8_0", "Q8_0", "F16", 0.005),
    _gguf("C", "Q6_K", "Q6_K", "Q6_K", "F16", 0.018),
    _gguf("C", "Q5_0", "Q5_0", "Q5_0", "Q8_0", 0.04),
    _gguf("C", "Q4_K", "Q6_K", "Q6_K", "F16", 0.06),
    _gguf("C", "Q4_0", "Q4_0", "Q4_0", "Q8_0", 0.08),
    Format("mxfp8", (), kind="mxfp8", refusal="got mxfp8"),
    Format("int4_convrot", (), kind="int4_convrot", refusal="got int4 convrot (convrot_w4a4)"),
    Format("w4a8", (), kind="w4a8", refusal="got w4a8 (asym_w4a8_int8)"),
    Format("lightx2v_fp8", (), kind="lightx2v_fp8", refusal="LightX2V's fp8"),
)
