"""The encoder's dimensions, from a checkpoint's `config.json` or from its tensor shapes alone.

Contract: a frozen `EncoderConfig`; every value the forward pass needs and nothing else. Source: the released
`text_encoder/config.json` of MiniMax H3 (a Qwen3-VL config), in which transformers 4 writes `rope_scaling` plus
`rope_theta` and transformers 5 writes `rope_parameters`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

logger = logging.getLogger(__name__)

VISION_HEAD_DIM = 72  # every released Qwen3-VL tower: 1152 / 16
DEEPSTACK_BY_DEPTH = {27: (8, 16, 24), 24: (5, 11, 17)}  # released Qwen3-VL towers
RELEASED_MROPE_SECTION = (24, 20, 20)
RELEASED_ROPE_THETA = 5_000_000.0
RELEASED_EPSILON = 1e-6
MOST_LAYERS, MOST_BLOCKS, MOST_MERGERS = 1_000, 1_000, 100  # far beyond every Qwen3-VL; more is a damaged file
_MOST = {
    "num_hidden_layers": MOST_LAYERS, "depth": MOST_BLOCKS, "vocab_size": 10**7, "max_position_embeddings": 10**9,
    "in_channels": 100, "patch_size": 100, "temporal_patch_size": 100, "spatial_merge_size": 100,
}  # fmt: skip
_RESTORE = "These are not the dimensions of a released encoder: restore its config.json, or download the file again."
_MOST_SIZE = 100_000  # of any other number


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
    rms_norm_eps: float = RELEASED_EPSILON
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
    def from_dict(cls, config: Mapping[str, Any]) -> EncoderConfig:
        """Read the dict of a Qwen3-VL `config.json`. Raises ValueError naming the key that is missing or
        unsupported."""
        if not isinstance(config, Mapping):
            raise ValueError(
                f"EncoderConfig: expected the dict of config.json, got {type(config).__name__}. Pass what it holds."
            )
        text, vision = config.get("text_config"), config.get("vision_config")
        if not isinstance(text, Mapping) or not isinstance(vision, (Mapping, type(None))):
            raise ValueError(
                f"EncoderConfig: expected a Qwen3-VL config with text_config and vision_config, got keys "
                f"{sorted(config)[:8]}. Use the config.json of the released text_encoder folder."
            )
        return _checked(cls(_text_from_dict(text), _vision_from_dict(vision) if vision else None))

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> EncoderConfig:
        """Derive the dimensions from {released tensor name: shape}. Raises ValueError naming the tensor that is
        missing.

        What shapes cannot tell (rope_theta, M-RoPE sections, epsilon, context) takes the released values.
        """
        has_vision = any(name.startswith("model.visual.") for name in shapes)
        return _checked(cls(_text_from_shapes(shapes), _vision_from_shapes(shapes) if has_vision else None))

    def misfit(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """How tensors of these shapes differ from this config, or None: it may have more layers than they, and a tower
        that they lack. Raises ValueError naming the tensor that is missing."""
        told = _text_sizes(shapes)
        layers = told.pop("num_hidden_layers")
        if self.text.num_hidden_layers < layers:
            return f"The config has {self.text.num_hidden_layers} layers, the tensors have {layers}."
        differing = _differing(self.text, told)
        if any(name.startswith("model.visual.") for name in shapes):
            if self.vision is None:
                return "The config has no vision_config, the tensors have a vision tower."
            differing = differing or _differing(self.vision, _vision_sizes(shapes))
        return differing


def _number(section: Mapping[str, Any], where: str, key: str, kind: type = int, default: Any = None) -> Any:
    """A positive number; `default` stands for an absent or null key, where there is one."""
    value = section.get(key)
    value = default if value is None else value
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12
    if not known or kind(value) != value:
        raise ValueError(
            f"EncoderConfig: expected {where}.{key} in config.json to be a number above 0, got {_short(value)}. "
            "Restore the released file."
        )
    return kind(value)


def _numbers(section: Mapping[str, Any], where: str, key: str, default: Any = None) -> tuple[int, ...]:
    value = section.get(key, default)
    if not isinstance(value, (list, tuple)) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(
            f"EncoderConfig: expected {where}.{key} in config.json to be a list of whole numbers, got {_short(value)}. "
            "Restore the released file."
        )
    return tuple(value)


def _expect(where: str, got: object, *allowed: object) -> None:
    if got not in allowed:
        raise ValueError(
            f"EncoderConfig: expected {where} to be {' or '.join(map(repr, allowed))}, got {_short(got)}. "
            "This config is not one of a Qwen3-VL encoder as MiniMax H3 uses it."
        )


def _text_from_dict(text: Mapping[str, Any]) -> TextConfig:
    where = "text_config"
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ValueError(
            f"EncoderConfig: expected {where}.rope_scaling as an object, got {_short(rope)}. Restore the file."
        )
    _expect("text_config.rope_type", rope.get("rope_type", rope.get("type", "default")), "default", "mrope")
    _expect("text_config.mrope_interleaved", rope.get("mrope_interleaved", True), True)
    _expect("text_config.hidden_act", text.get("hidden_act", "silu"), "silu")
    _expect("text_config.attention_bias", text.get("attention_bias", False), False)
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    found = {key: _number(text, where, key) for key in sizes}
    heads = found["num_attention_heads"]
    return TextConfig(
        **found,
        num_key_value_heads=_number(text, where, "num_key_value_heads", default=heads),
        head_dim=_number(text, where, "head_dim", default=found["hidden_size"] // heads),
        rms_norm_eps=_number(text, where, "rms_norm_eps", float, RELEASED_EPSILON),
        rope_theta=_number({**text, **rope}, where, "rope_theta", float),
        mrope_section=_numbers(rope, where, "mrope_section", RELEASED_MROPE_SECTION),
        max_position_embeddings=_number(text, where, "max_position_embeddings", default=262_144),
    )


def _differing(section: TextConfig | VisionConfig, told: Mapping[str, int]) -> str | None:
    said = asdict(section)
    wrong = [f"{key} {said[key]}, not {size}" for key, size in told.items() if said[key] != size]
    return f"The config has {', '.join(wrong)} as the tensors." if wrong else None


def _check_most(section: TextConfig | VisionConfig) -> None:
    """Numbers that no model has would block the machine: modules are built from them."""
    for key, value in asdict(section).items():
        most = _MOST.get(key, _MOST_SIZE)
        if type(value) is int and value > most:
            raise ValueError(f"EncoderConfig: expected {key} to be at most {most:,}, got {value:,}. {_RESTORE}")


def _checked(config: EncoderConfig) -> EncoderConfig:
    text, vision = config.text, config.vision
    for section in filter(None, (text, vision)):
        _check_most(section)
    heads, groups = text.num_attention_heads, text.num_key_value_heads
    _agree("three mrope_sections with the sum head_dim / 2", list(text.mrope_section), text.head_dim / 2,
           len(text.mrope_section) == 3 and sum(text.mrope_section) * 2 == text.head_dim)  # fmt: skip
    _agree("query heads in whole groups per key-value head", heads, groups,
           min(heads, groups) > 0 and heads % groups == 0)  # fmt: skip
    if vision is not None:
        side, taps = vision.num_position_embeddings**0.5, vision.deepstack_visual_indexes
        _agree(f"at most {MOST_MERGERS} deepstack_visual_indexes", len(taps), list(taps), len(taps) <= MOST_MERGERS)
        _agree("the tower's out_hidden_size to be the decoder's hidden_size", vision.out_hidden_size, text.hidden_size,
               vision.out_hidden_size == text.hidden_size)  # fmt: skip
        _agree("deepstack_visual_indexes to rise and to stay below depth", list(taps), vision.depth,
               list(taps) == sorted({*taps}) and max(taps, default=0) < vision.depth)  # fmt: skip
        _agree("a vision head width that divides by 4", vision.hidden_size, vision.num_heads,
               vision.hidden_size % (4 * vision.num_heads) == 0)  # fmt: skip
        _agree("a square number of num_position_embeddings", vision.num_position_embeddings, side, side % 1 == 0)
    return config


def _short(value: object) -> str:
    """A value in a message: a damaged file may hold millions."""
    return repr(value)[:200]


def _agree(expected: str, first: object, second: object, agreed: bool) -> None:
    if not agreed:
        raise ValueError(f"EncoderConfig: expected {expected}, got {_short(first)} and {_short(second)}. {_RESTORE}")


def _vision_from_dict(vision: Mapping[str, Any]) -> VisionConfig:
    where = "vision_config"
    _expect("vision_config.hidden_act", vision.get("hidden_act", "gelu_pytorch_tanh"), "gelu_pytorch_tanh")
    keys = ("hidden_size", "intermediate_size", "depth", "num_heads", "out_hidden_size", "num_position_embeddings")
    optional = ("in_channels", "patch_size", "temporal_patch_size", "spatial_merge_size")
    return VisionConfig(
        **{key: _number(vision, where, key) for key in keys},
        **{key: _number(vision, where, key) for key in optional if key in vision},
        deepstack_visual_indexes=_numbers(vision, where, "deepstack_visual_indexes"),
    )


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str, rank: int) -> tuple[int, ...]:
    shape = shapes.get(name)
    if shape is None or len(shape) != rank or 0 in shape:
        got = "none" if shape is None else f"the shape {list(shape)}"
        raise ValueError(
            f"EncoderConfig: expected the tensor {name} of {rank} axes to read the dimensions from, got {got}. "
            "The file is incomplete or of another model."
        )
    return tuple(shape)


def _count(shapes: Mapping[str, tuple[int, ...]], start: str, most: int) -> int:
    """One more than the highest number behind `start`."""
    behind = re.compile(rf"{re.escape(start)}(\d{{1,9}})")
    found = map(behind.match, shapes)
    highest = max((int(match[1]) for match in found if match), default=-1)
    if highest >= most:
        raise ValueError(
            f"EncoderConfig: expected {start}0 to {start}{most - 1} at most, got number {highest:,}. The file is "
            "damaged or another model's: download it again."
        )
    return highest + 1


def _text_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """What shapes tell of a TextConfig."""
    layer = "model.language_model.layers.0."
    vocab_size, hidden_size = _shape(shapes, "model.language_model.embed_tokens.weight", 2)
    head_dim = _shape(shapes, layer + "self_attn.q_norm.weight", 1)[0]
    return {
        "hidden_size": hidden_size,
        "intermediate_size": _shape(shapes, layer + "mlp.gate_proj.weight", 2)[0],
        "num_hidden_layers": _count(shapes, "model.language_model.layers.", MOST_LAYERS),
        "num_attention_heads": _shape(shapes, layer + "self_attn.q_proj.weight", 2)[0] // head_dim,
        "num_key_value_heads": _shape(shapes, layer + "self_attn.k_proj.weight", 2)[0] // head_dim,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
    }


def _text_from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> TextConfig:
    return TextConfig(**_text_sizes(shapes))


def _vision_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """What shapes tell of a VisionConfig."""
    hidden_size, in_channels, temporal, patch, _ = _shape(shapes, "model.visual.patch_embed.proj.weight", 5)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": _shape(shapes, "model.visual.blocks.0.mlp.linear_fc1.weight", 2)[0],
        "depth": _count(shapes, "model.visual.blocks.", MOST_BLOCKS),
        "out_hidden_size": _shape(shapes, "model.visual.merger.linear_fc2.weight", 2)[0],
        "num_position_embeddings": _shape(shapes, "model.visual.pos_embed.weight", 2)[0],
        "in_channels": in_channels,
        "patch_size": patch,
        "temporal_patch_size": temporal,
    }


def _vision_from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> VisionConfig:
    sizes = _vision_sizes(shapes)
    mergers = _count(shapes, "model.visual.deepstack_merger_list.", MOST_MERGERS)
    return VisionConfig(
        **sizes,
        num_heads=max(1, sizes["hidden_size"] // VISION_HEAD_DIM),
        deepstack_visual_indexes=_deepstack_indexes(sizes["depth"], mergers),
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
