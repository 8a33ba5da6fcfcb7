"""Rename tables: llama.cpp's tensor names -> the released names.

Contract: `text_names(names)` for the model's file, `vision_names(names)` for its vision file (mmproj); both give
{stored name: released name} and leave what they do not know unchanged. What stands behind a table's key ("weight",
"bias", "weight.1") is kept. Vision blocks with a DeepStack merger are numbered there; the released list counts the
mergers. Queries and keys are not permuted in this family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TEXT = {"token_embd": "embed_tokens", "output_norm": "norm"}
_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_VISION = {
    "v.patch_embd": "patch_embed.proj", "v.position_embd": "pos_embed", "v.post_ln": "merger.norm",
    "mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2",
}  # fmt: skip
_BLOCK = {
    "ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj", "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.linear_fc2",
}  # fmt: skip
_MERGER = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_DEEPSTACK = re.compile(r"v\.deepstack\.(\d+)\.")


def is_llama_cpp(names: Iterable[str]) -> bool:
    return any(name.startswith(("token_embd.", "blk.")) for name in names)


def is_vision_file(names: Iterable[str]) -> bool:
    """A Qwen3-VL vision file: others have no DeepStack mergers."""
    return bool(deepstack_indexes(names))


def deepstack_indexes(names: Iterable[str]) -> tuple[int, ...]:
    """Vision blocks with a merger, in order: (8, 16, 24) as released."""
    return tuple(sorted({int(match[1]) for name in names if (match := _DEEPSTACK.match(name))}))


def text_names(names: Iterable[str]) -> dict[str, str]:
    return {name: _text_name(name) for name in names}


def _text_name(name: str) -> str:
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(.+)", name)
    if match:
        return f"model.language_model.layers.{match[1]}.{_LAYER.get(match[2], match[2])}.{match[3]}"
    key, _, rest = name.partition(".")
    if key == "output":
        return f"lm_head.{rest}"
    return f"model.language_model.{_TEXT[key]}.{rest}" if key in _TEXT else name


def vision_names(names: Iterable[str]) -> dict[str, str]:
    names = list(names)
    mergers = {block: i for i, block in enumerate(deepstack_indexes(names))}
    return {name: _vision_name(name, mergers) for name in names}


def _vision_name(name: str, mergers: dict[int, int]) -> str:
    match = re.fullmatch(r"v\.(blk|deepstack)\.(\d+)\.(\w+)\.(.+)", name)
    if match is None:
        key = next((key for key in _VISION if name.startswith(key + ".")), None)
        return name if key is None else f"model.visual.{_VISION[key]}{name[len(key) :]}"
    part, number, key, rest = match.groups()
    if part == "blk":
        return f"model.visual.blocks.{number}.{_BLOCK.get(key, key)}.{rest}"
    return f"model.visual.deepstack_merger_list.{mergers[int(number)]}.{_MERGER.get(key, key)}.{rest}"
