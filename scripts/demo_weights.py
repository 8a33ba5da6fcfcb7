"""The weights of the demo checkpoint: the released tensor names and shards at a tiny width, values from a name.

Every tensor is a function of its released name and shape, so two machines hold the same bytes: raw 64-bit draws of
numpy's PCG64 seeded with the CRC-32 of the name give u in [0, 1) in steps of 2**-24, and `_scaled` turns u into a
weight. Branches that write to a residual stream (attention output, last MLP projection) are divided by
sqrt(2 * depth): 50 random decoder layers then neither blow up nor drown the prompt in rounding noise.

Depths, vocabulary, head width, patch size and DeepStack taps are the released ones; widths are not, and the output
means nothing. numpy only: making the files needs neither torch nor safetensors.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

RECIPE_VERSION = 1  # raise it whenever a byte of any file changes: kept checkpoints are then made again
TAP_LAYER = 50  # decoder layers an encoder needs; the later ones are there to be left unread
SHARDS = 14

Shape = tuple[int, ...]
TensorSource = tuple[str, str, Shape]  # (name in the file, name the values come from, shape)


def demo_config() -> dict:
    """Return config.json of the demo checkpoint: the released keys, tiny widths and an explicit demo mark."""
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
        "intermediate_size": 160, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
        "num_attention_heads": 4, "num_hidden_layers": 64, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000, "use_cache": True, "vocab_size": 151936,
    }  # fmt: skip
    vision = {
        "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 144,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 256, "model_type": "qwen3_vl",
        "num_heads": 2, "num_position_embeddings": 2304, "out_hidden_size": 64, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    return {
        "h3te_demo": True,
        "h3te_demo_note": "Demo weights: random numbers at a tiny width. The output is meaningless.",
        "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
        "text_config": text, "tie_word_embeddings": False, "video_token_id": 151656, "vision_config": vision,
        "vision_end_token_id": 151653, "vision_start_token_id": 151652,
    }  # fmt: skip


def tensor_shapes(config: dict) -> dict[str, Shape]:
    """Return {released tensor name: shape} for all tensors of `config`, sorted by name as in the released index."""
    text = config["text_config"]
    shapes = {
        "lm_head.weight": (text["vocab_size"], text["hidden_size"]),
        "model.language_model.embed_tokens.weight": (text["vocab_size"], text["hidden_size"]),
        "model.language_model.norm.weight": (text["hidden_size"],),
    }
    for layer in range(text["num_hidden_layers"]):
        prefix = f"model.language_model.layers.{layer}."
        shapes.update({prefix + name: shape for name, shape in _decoder_layer(text).items()})
    shapes.update({f"model.visual.{name}": shape for name, shape in _vision(config["vision_config"]).items()})
    return dict(sorted(shapes.items()))


def _decoder_layer(text: dict) -> dict[str, Shape]:
    width, inner, head = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    query, key_value = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    return {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "self_attn.q_proj.weight": (query, width),
        "self_attn.k_proj.weight": (key_value, width),
        "self_attn.v_proj.weight": (key_value, width),
        "self_attn.o_proj.weight": (width, query),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }


def _vision(vision: dict) -> dict[str, Shape]:
    width, inner, out = vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]
    patch = (vision["in_channels"], vision["temporal_patch_size"], vision["patch_size"], vision["patch_size"])
    merged = width * vision["spatial_merge_size"] ** 2
    weights = {"patch_embed.proj": (width, *patch)}
    for block in range(vision["depth"]):
        prefix = f"blocks.{block}."
        weights |= {prefix + "attn.qkv": (3 * width, width), prefix + "attn.proj": (width, width)}
        weights |= {prefix + "mlp.linear_fc1": (inner, width), prefix + "mlp.linear_fc2": (width, inner)}
        weights |= {prefix + "norm1": (width,), prefix + "norm2": (width,)}
    taps = range(len(vision["deepstack_visual_indexes"]))
    mergers = {"merger": width} | {f"deepstack_merger_list.{tap}": merged for tap in taps}
    for merger, normalised in mergers.items():
        weights |= {f"{merger}.norm": (normalised,), f"{merger}.linear_fc1": (merged, merged)}
        weights |= {f"{merger}.linear_fc2": (out, merged)}
    shapes = {f"{name}.weight": shape for name, shape in weights.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in weights.items()}
    return shapes | {"pos_embed.weight": (vision["num_position_embeddings"], width)}


def shard_of(name: str) -> str:
    """Return the shard file that holds tensor `name`, by the rule the released index follows.

    Layers 3, 8, 13, ... are split: their up and down projections open the next shard. The vision tower, the final
    norm and lm_head stand in the last shard; shards 12 and 13 hold nothing that 50 layers need.
    """
    number = SHARDS
    if name.endswith("embed_tokens.weight"):
        number = 1
    elif match := re.match(r"model\.language_model\.layers\.(\d+)\.", name):
        layer = int(match.group(1))
        moved = layer % 5 == 3 and name.endswith(("up_proj.weight", "down_proj.weight"))
        number = (layer + 1) // 5 + 1 + moved
    return f"model-{number:05d}-of-{SHARDS:05d}.safetensors"


def single_file_name(name: str, layers: int = TAP_LAYER) -> str | None:
    """Return the name a ComfyUI single file gives the released tensor `name`, None for what it leaves out."""
    if name.startswith("model.visual."):
        return name.removeprefix("model.")
    layer = re.match(r"model\.language_model\.layers\.(\d+)\.", name)
    if name.endswith("embed_tokens.weight") or (layer and int(layer.group(1)) < layers):
        return name.replace("model.language_model.", "model.", 1)
    return None


def weight(name: str, shape: Shape, config: dict) -> np.ndarray:
    """Return tensor `name` as the uint16 bit patterns of bfloat16, shaped `shape`."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(math.prod(shape))
    uniform = (raw >> np.uint64(40)).astype(np.float32) / np.float32(2**24)  # exact: 24 bits fit a float32
    return _bfloat16(_scaled(name, uniform.reshape(shape), config))


def _scaled(name: str, uniform: np.ndarray, config: dict) -> np.ndarray:
    centred = uniform - np.float32(0.5)
    if name.endswith(".bias"):
        return centred * np.float32(0.1)
    if re.search(r"norm\d?\.weight$", name):
        return np.float32(1) + centred * np.float32(0.2)
    if name.endswith(("embed_tokens.weight", "pos_embed.weight")):
        return centred * np.float32(2)
    fan_in = math.prod(uniform.shape[1:])
    return centred * np.float32(2 * math.sqrt(3 / fan_in) * _branch_scale(name, config))


def _branch_scale(name: str, config: dict) -> float:
    """Two branches per layer write to the residual stream: 1 / sqrt(2 * depth) keeps their sum of the input's size."""
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return 1 / math.sqrt(2 * config["text_config"]["num_hidden_layers"])
    if ".blocks." in name and name.endswith(("attn.proj.weight", "linear_fc2.weight")):
        return 1 / math.sqrt(2 * config["vision_config"]["depth"])
    return 1.0


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even, and return the upper 16 bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def safetensors_header(tensors: Iterable[TensorSource], metadata: dict[str, str]) -> bytes:
    """Return length prefix and JSON header of a bfloat16 safetensors file that holds `tensors` in this order."""
    header: dict = {"__metadata__": metadata}
    offset = 0
    for name, _, shape in tensors:
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the payload starts on a multiple of 8
    return len(text).to_bytes(8, "little") + text


def payload_bytes(tensors: Iterable[TensorSource]) -> int:
    """Return the bytes of all tensors together, headers left out."""
    return sum(2 * math.prod(shape) for _, _, shape in tensors)


def write_safetensors(path: Path, tensors: list[TensorSource], metadata: dict[str, str], config: dict) -> None:
    """Write one safetensors file, one tensor in memory at a time."""
    with path.open("wb") as file:
        file.write(safetensors_header(tensors, metadata))
        file.writelines(weight(source, shape, config).tobytes() for _, source, shape in tensors)
