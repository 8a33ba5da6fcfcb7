"""The encoder's dimensions, from a checkpoint's `config.json` or from its tensor shapes alone.

Contract: a frozen `EncoderConfig`; every value the forward pass needs and nothing else. Source: the released
`text_encoder/config.json` of MiniMax H3 (a Qwen3-VL config), in which transformers 4 writes `rope_scaling` plus
`rope_theta` and transformers 5 writes `rope_parameters`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

logger = logging.getLogger(__name__)

VISION_HEAD_DIM = 72  # every released Qwen3-VL tower: 1152 / 16
DEEPSTACK_BY_DEPTH = {27: (8, 16, 24), 24: (5, 11, 17)}  # released Qwen3-VL towers
RELEASED_MROPE_SECTION = (24, 20, 20)
RELEASED_ROPE_THETA = 5_000_000.0


@dataclass(frozen=True)
class TextConfig:
    """Decoder dimensions. `mrope_section`: rotary pairs per axis (time, height, width); it sums to head_dim / 2."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = RELEASED_ROPE_THETA
    mrope_section: tuple[int, int, int] = RELEASED_MROPE_SECTION
    max_position_embeddings: int = 262_144


@dataclass(frozen=True)
class VisionConfig:
    """Vision tower dimensions. `num_position_embeddings` is the square learned table (48 x 48 as released)."""

    hidden_size: int
    intermediate_size: int
    depth: int
    num_heads: int
    out_hidden_size: int
    num_position_embeddings: int
    deepstack_visual_indexes: tuple[int, ...]
    in_channels: int = 3
    patch_size: int = 16
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2

    @property
    def patch_width(self) -> int:
        """Values in one flattened patch (1536 as released)."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merged_width(self) -> int:
        """Width of one 2 x 2 block of patches (4608 as released)."""
        return self.hidden_size * self.spatial_merge_size**2


@dataclass(frozen=True)
class EncoderConfig:
    """Both halves; `vision` is None for a file without its vision tower, which then serves text alone."""

    text: TextConfig
    vision: VisionConfig | None

    @classmethod
    def from_dict(cls, config: Mapping) -> EncoderConfig:
        """Read the dict of a Qwen3-VL `config.json`. Raises ValueError naming the key that is missing or
        unsupported."""
        if "text_config" not in config:
            raise ValueError(
                f"EncoderConfig: expected a Qwen3-VL config with text_config and vision_config, got keys "
                f"{sorted(config)[:8]}. Use the config.json of the released text_encoder folder."
            )
        vision = config.get("vision_config")
        return cls(_text_from_dict(config["text_config"]), _vision_from_dict(vision) if vision else None)

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> EncoderConfig:
        """Derive the dimensions from {released tensor name: shape}. Raises ValueError naming the tensor that is
        missing.

        What shapes cannot tell (rope_theta, M-RoPE sections, epsilon, context) takes the released values.
        """
        has_vision = any(name.startswith("model.visual.") for name in shapes)
        return cls(_text_from_shapes(shapes), _vision_from_shapes(shapes) if has_vision else None)


def _required(section: Mapping, key: str, where: str):
    if key not in section:
        raise ValueError(f"EncoderConfig: expected {where}.{key} in config.json, got none. Restore the released file.")
    return section[key]


def _expect(where: str, got, *allowed) -> None:
    if got not in allowed:
        raise ValueError(
            f"EncoderConfig: expected {where} to be {' or '.join(map(repr, allowed))}, got {got!r}. "
            "This config is not one of a Qwen3-VL encoder as MiniMax H3 uses it."
        )


def _text_from_dict(text: Mapping) -> TextConfig:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    theta = rope.get("rope_theta", text.get("rope_theta"))
    if theta is None:
        raise ValueError("EncoderConfig: expected text_config.rope_theta in config.json, got none. Restore the file.")
    _expect("text_config.rope_type", rope.get("rope_type", rope.get("type", "default")), "default", "mrope")
    _expect("text_config.mrope_interleaved", rope.get("mrope_interleaved", True), True)
    _expect("text_config.hidden_act", text.get("hidden_act", "silu"), "silu")
    _expect("text_config.attention_bias", text.get("attention_bias", False), False)
    sizes = {
        key: int(_required(text, key, "text_config"))
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    }
    heads = sizes["num_attention_heads"]
    config = TextConfig(
        **sizes,
        num_key_value_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or sizes["hidden_size"] // heads),
        rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
        rope_theta=float(theta),
        mrope_section=tuple(rope.get("mrope_section") or RELEASED_MROPE_SECTION),
        max_position_embeddings=int(text.get("max_position_embeddings", 262_144)),
    )
    return _checked_text(config)


def _checked_text(config: TextConfig) -> TextConfig:
    if sum(config.mrope_section) * 2 != config.head_dim:
        raise ValueError(
            f"EncoderConfig: expected mrope_section to sum to half of head_dim ({config.head_dim // 2}), "
            f"got {list(config.mrope_section)}. Restore the released config.json."
        )
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(
            f"EncoderConfig: expected query heads in whole groups per key-value head, got {config.num_attention_heads} "
            f"and {config.num_key_value_heads}. Restore the released config.json."
        )
    return config


def _vision_from_dict(vision: Mapping) -> VisionConfig:
    _expect("vision_config.hidden_act", vision.get("hidden_act", "gelu_pytorch_tanh"), "gelu_pytorch_tanh")
    keys = ("hidden_size", "intermediate_size", "depth", "num_heads", "out_hidden_size", "num_position_embeddings")
    optional = ("in_channels", "patch_size", "temporal_patch_size", "spatial_merge_size")
    return VisionConfig(
        **{key: int(_required(vision, key, "vision_config")) for key in keys},
        **{key: int(vision[key]) for key in optional if key in vision},
        deepstack_visual_indexes=tuple(_required(vision, "deepstack_visual_indexes", "vision_config")),
    )


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    if name not in shapes:
        raise ValueError(
            f"EncoderConfig: expected the tensor {name} to read the dimensions from, got none. "
            "The file is incomplete or of another model."
        )
    return tuple(shapes[name])


def _count(shapes: Mapping[str, tuple[int, ...]], pattern: str) -> int:
    found = {int(match.group(1)) for name in shapes if (match := re.match(pattern, name))}
    return max(found) + 1 if found else 0


def _text_from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> TextConfig:
    layer = "model.language_model.layers.0."
    vocab_size, hidden_size = _shape(shapes, "model.language_model.embed_tokens.weight")
    head_dim = _shape(shapes, layer + "self_attn.q_norm.weight")[0]
    return _checked_text(
        TextConfig(
            hidden_size=hidden_size,
            intermediate_size=_shape(shapes, layer + "mlp.gate_proj.weight")[0],
            num_hidden_layers=_count(shapes, r"model\.language_model\.layers\.(\d+)\."),
            num_attention_heads=_shape(shapes, layer + "self_attn.q_proj.weight")[0] // head_dim,
            num_key_value_heads=_shape(shapes, layer + "self_attn.k_proj.weight")[0] // head_dim,
            head_dim=head_dim,
            vocab_size=vocab_size,
        )
    )


def _vision_from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> VisionConfig:
    hidden_size, in_channels, temporal, patch, _ = _shape(shapes, "model.visual.patch_embed.proj.weight")
    depth = _count(shapes, r"model\.visual\.blocks\.(\d+)\.")
    mergers = _count(shapes, r"model\.visual\.deepstack_merger_list\.(\d+)\.")
    return VisionConfig(
        hidden_size=hidden_size,
        intermediate_size=_shape(shapes, "model.visual.blocks.0.mlp.linear_fc1.weight")[0],
        depth=depth,
        num_heads=max(1, hidden_size // VISION_HEAD_DIM),
        out_hidden_size=_shape(shapes, "model.visual.merger.linear_fc2.weight")[0],
        num_position_embeddings=_shape(shapes, "model.visual.pos_embed.weight")[0],
        deepstack_visual_indexes=_deepstack_indexes(depth, mergers),
        in_channels=in_channels,
        patch_size=patch,
        temporal_patch_size=temporal,
    )


def _deepstack_indexes(depth: int, mergers: int) -> tuple[int, ...]:
    released = DEEPSTACK_BY_DEPTH.get(depth, ())
    if len(released) == mergers:
        return released
    spaced = tuple(depth * (i + 1) // mergers - 1 for i in range(mergers))
    logger.warning(
        "no config.json: a vision tower of depth %d is unknown, DeepStack after blocks %s is a guess", depth, spaced
    )
    return spaced
