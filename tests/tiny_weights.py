"""The tiny checkpoint of the goldens: released layout, six decoder layers, weights derived from tensor names.

Contract: `tiny_config()`, `tiny_weights()` and `write_tiny_checkpoint(folder)`. The recipe is deterministic on every
machine: u = PCG64(crc32(name)).random_raw >> 40, over 2**24, then scaled by the first rule that fits, rounded to
bfloat16.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

TAP_LAYER = 5
PICTURES = ("image", "video")


def tiny_config(**text_changes) -> dict:
    """config.json of the goldens: tap with TAP_LAYER. Keyword arguments replace keys of text_config."""
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
        "intermediate_size": 160, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
        "num_attention_heads": 4, "num_hidden_layers": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000, "use_cache": True, "vocab_size": 151936,
    }  # fmt: skip
    vision = {
        "deepstack_visual_indexes": [1, 3, 5], "depth": 6, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 144,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 256, "model_type": "qwen3_vl", "num_heads": 2,
        "num_position_embeddings": 2304, "out_hidden_size": 64, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
        "text_config": {**text, **text_changes}, "tie_word_embeddings": False, "video_token_id": 151656,
        "vision_config": vision, "vision_end_token_id": 151653, "vision_start_token_id": 151652,
    }  # fmt: skip


def divisible_config(width: int = 64, **text_changes) -> dict:
    """One that 2 and 4 ranks can share: 8 heads, 4 key-value heads, 512 values in the MLP."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512}
    config = tiny_config(hidden_size=width, **{**sizes, **text_changes})
    config["vision_config"]["out_hidden_size"] = width
    return config


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Every released tensor name of this config, with its shape, lm_head and the final norm included."""
    text, vision = config["text_config"], config["vision_config"]
    width, mlp, vocab = text["hidden_size"], text["intermediate_size"], text["vocab_size"]
    query, key = (text[n] * text["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    found = {"lm_head.weight": (vocab, width), "model.language_model.embed_tokens.weight": (vocab, width)}
    for i in range(text["num_hidden_layers"]):
        layer = {
            "input_layernorm": (width,), "post_attention_layernorm": (width,), "mlp.gate_proj": (mlp, width),
            "mlp.up_proj": (mlp, width), "mlp.down_proj": (width, mlp), "self_attn.q_proj": (query, width),
            "self_attn.k_proj": (key, width), "self_attn.v_proj": (key, width), "self_attn.o_proj": (width, query),
            "self_attn.q_norm": (text["head_dim"],), "self_attn.k_norm": (text["head_dim"],),
        }  # fmt: skip
        found |= {f"model.language_model.layers.{i}.{n}.weight": shape for n, shape in layer.items()}
    found["model.language_model.norm.weight"] = (width,)
    return found | {f"model.visual.{n}": shape for n, shape in _vision_shapes(vision).items()}


def _vision_shapes(vision: dict) -> dict[str, tuple[int, ...]]:
    width, mlp, merged = vision["hidden_size"], vision["intermediate_size"], 4 * vision["hidden_size"]
    kernel = (vision["in_channels"], vision["temporal_patch_size"], vision["patch_size"], vision["patch_size"])
    found = {"pos_embed.weight": (vision["num_position_embeddings"], width)}
    pairs = {"patch_embed.proj": (width, *kernel)}
    for i in range(vision["depth"]):
        block = {
            "attn.qkv": (3 * width, width), "attn.proj": (width, width), "mlp.linear_fc1": (mlp, width),
            "mlp.linear_fc2": (width, mlp), "norm1": (width,), "norm2": (width,),
        }  # fmt: skip
        pairs |= {f"blocks.{i}.{n}": shape for n, shape in block.items()}
    mergers = {f"deepstack_merger_list.{i}": merged for i in range(len(vision["deepstack_visual_indexes"]))}
    for merger, norm in {"merger": width, **mergers}.items():
        pairs[f"{merger}.norm"] = (norm,)
        pairs[f"{merger}.linear_fc1"] = (merged, merged)
        pairs[f"{merger}.linear_fc2"] = (vision["out_hidden_size"], merged)
    for name, shape in pairs.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found


def tiny_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """One bfloat16 tensor of the recipe."""
    count = int(np.prod(shape))
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count) >> np.uint64(40)
    u = (raw.astype(np.float32) / np.float32(2**24)).reshape(shape)
    if name.endswith(("norm.weight", "layernorm.weight")) or ".norm1." in name or ".norm2." in name:
        value = (u - 0.5) * np.float32(0.1) if name.endswith("bias") else 1 + (u - 0.5) * np.float32(0.2)
    elif name.endswith("bias"):
        value = (u - 0.5) * np.float32(0.1)
    elif "embed" in name and "patch" not in name:
        value = (u - 0.5) * np.float32(2)
    else:
        value = (u - 0.5) * np.float32(2) * np.float32(np.sqrt(3 / np.prod(shape[1:])))
    return torch.from_numpy(value.astype(np.float32)).to(torch.bfloat16)


def tiny_weights(config: dict | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """(released name, tensor) pairs of the whole checkpoint."""
    for name, shape in shapes(config or tiny_config()).items():
        yield name, tiny_weight(name, shape)


def write_tiny_checkpoint(folder: Path, config: dict | None = None, shards: int = 3) -> Path:
    """Write the official layout: config.json, index and `shards` files, lm_head and the final norm in the last one."""
    config = config or tiny_config()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    files: dict[str, dict[str, torch.Tensor]] = {}
    weight_map = {}
    weights = dict(tiny_weights(config))
    unneeded = [n for n in weights if n == "lm_head.weight" or n.endswith("language_model.norm.weight")]
    needed = [n for n in weights if n not in unneeded]
    for i, name in enumerate([*needed, *unneeded]):
        number = shards if name in unneeded else 1 + i * (shards - 1) // len(needed)
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        files.setdefault(file, {})[name] = weights[name]
        weight_map[name] = file
    for file, tensors in files.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(t.nbytes for t in weights.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder
