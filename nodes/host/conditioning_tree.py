"""CONDITIONING as JSON with named tensors beside it: what a conditioning file holds.

Contract: `pack(conditioning)` -> `Packed`: a JSON tree that names its tensors, and the tensors, contiguous, on the CPU.
What JSON lacks stands in an object with one key: `tensor` (a name; with `widen` beside it, see below), `nested`
(tensors), `tuple`, `dict` (pairs of key and value), `float` (nan, inf, -inf). A float32 tensor whose values are all
bfloat16 values is stored as bfloat16, to be widened again. What is no tensor, number, text or container of these is
refused by the name of its key: nothing here runs code, as a pickle would. The way back is conditioning_untree.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import comfy.nested_tensor
import numpy as np
import torch

WHO = "Save MiniMax H3 Conditioning (H3TE)"
MAX_DEPTH = 32  # of containers in containers; CONDITIONING of ComfyUI's nodes needs 5
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LONGEST_PART = 40  # characters of a key in a tensor's name
_WHAT_TO_DO = {
    "control": "Save before the ControlNet is applied, and apply it after loading.",
    "hooks": "Save before hooks are set, and set them after loading.",
    "gligen": "Save before GLIGEN is applied, and apply it after loading.",
}


@dataclass(frozen=True, eq=False)
class Packed:
    """tree: JSON values. tensors: by the names in the tree, contiguous, on the CPU."""

    tree: list
    tensors: dict[str, torch.Tensor]


def pack(conditioning: Any) -> Packed:
    """Raises ValueError for what is no CONDITIONING, and for what a file cannot hold, named by its key."""
    entries = conditioning if isinstance(conditioning, (list, tuple)) else ()
    if not entries or not all(is_entry(entry) for entry in entries):
        raise ValueError(
            f"{WHO}: expected CONDITIONING, a list of [tensor, dict] with at least one entry, got "
            f"{type(conditioning).__name__}{' that holds something else' if entries else ''}. Connect an encode node."
        )
    packing = _Packing()
    return Packed(packing.value(list(conditioning), ()), packing.tensors)


def is_entry(entry: Any) -> bool:
    """Whether it is a pair of tensor and dict."""
    pair = type(entry) in (list, tuple) and len(entry) == 2
    return pair and isinstance(entry[0], torch.Tensor) and isinstance(entry[1], dict)


@dataclass
class _Packing:
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    known: dict[int, dict] = field(default_factory=dict)  # one tensor in two places is one tensor again
    alive: list = field(default_factory=list)  # an id belongs to a tensor while that lives

    def value(self, value: Any, place: tuple) -> Any:
        if len(place) > MAX_DEPTH:
            raise ValueError(
                f"{WHO}: expected containers at most {MAX_DEPTH} deep, got more at {_where(place[:4])}. "
                f"{_advice(place)}"
            )
        if isinstance(value, np.generic):
            value = value.item()
        make = self.makers().get(type(value))
        if make is None:
            raise _refused(value, place)
        return make(value, place)

    def makers(self) -> dict[type, Callable[[Any, tuple], Any]]:
        plain = dict.fromkeys((bool, str, type(None)), lambda value, place: value)
        tensors = dict.fromkeys((torch.Tensor, torch.nn.Parameter), self.tensor)
        tuples = dict.fromkeys((tuple, torch.Size), lambda value, place: {"tuple": self.listed(value, place)})
        kinds = {int: _int, float: _float, list: self.listed, dict: self.mapping}
        return {**plain, **tensors, **tuples, **kinds, comfy.nested_tensor.NestedTensor: self.nested}

    def listed(self, values: Any, place: tuple) -> list:
        return [self.value(value, (*place, i)) for i, value in enumerate(values)]

    def mapping(self, values: dict, place: tuple) -> dict:
        items = values.items()
        return {"dict": [[self.key(key, place), self.value(value, (*place, key))] for key, value in items]}

    def key(self, key: Any, place: tuple) -> Any:
        if type(key) not in (str, int, bool, float, type(None)):
            raise _refused(key, place)
        return self.value(key, place)

    def nested(self, value: Any, place: tuple) -> dict:
        return {"nested": self.listed(value.tensors, place)}

    def tensor(self, tensor: torch.Tensor, place: tuple) -> dict:
        if id(tensor) not in self.known:
            self.alive.append(tensor)
            self.known[id(tensor)] = self.stored(tensor, place)
        return self.known[id(tensor)]

    def stored(self, tensor: torch.Tensor, place: tuple) -> dict:
        kind = _kind(tensor)
        if kind is not None:
            raise ValueError(
                f"{WHO}: expected a dense tensor of a common dtype at {_where(place)}, got {kind}. {_advice(place)}"
            )
        plain = tensor.detach().to("cpu").contiguous()
        narrow = _narrowed(plain)
        name = self.name(place)
        self.tensors[name] = plain if narrow is None else narrow
        return {"tensor": name} if narrow is None else {"tensor": name, "widen": "F32"}

    def name(self, place: tuple) -> str:
        """Tells where the tensor stands, for people who open the file with another tool."""
        entry, *rest = place
        parts = ["hidden"] if rest == [0] else rest[1:]
        name = ".".join([str(entry), *(_readable(part) for part in parts[:6])])
        while name in self.tensors:
            name += f".{len(self.tensors)}"
        return name


def _int(value: int, place: tuple) -> int:
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(
            f"{WHO}: expected whole numbers of 64 bits, got one of {value.bit_length()} bits at {_where(place)}. "
            f"{_advice(place)}"
        )
    return value


def _float(value: float, place: tuple) -> Any:
    return value if math.isfinite(value) else {"float": repr(value)}


def _kind(tensor: torch.Tensor) -> str | None:
    """What keeps a tensor from being stored; None when nothing does."""
    if tensor.is_meta:
        return "one without values (meta)"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"{tensor.layout}" if tensor.layout != torch.strided else f"quantised {tensor.dtype}"
    return None if tensor.dtype in _NAMES else str(tensor.dtype)


def _narrowed(tensor: torch.Tensor) -> torch.Tensor | None:
    """float32 as bfloat16 where the lower half of every value is zero: bit for bit, NaN too. None where it is not."""
    if tensor.dtype != torch.float32 or tensor.numel() == 0:
        return None
    bits = tensor.view(torch.int32)
    if bool((bits & 0xFFFF).any()):
        return None
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


def dtype_name(tensor: torch.Tensor) -> str:
    """As safetensors spells it."""
    return _NAMES[tensor.dtype]


def _readable(part: Any) -> str:
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in str(part))
    return text[:_LONGEST_PART] or "_"


def _where(place: tuple) -> str:
    """ "minimax_refs.0.latent of entry 1", counted from 1 as people do."""
    entry, *rest = place
    if not rest or rest == [0]:
        return f"entry {entry + 1}"
    return f"key {'.'.join(str(part)[:_LONGEST_PART] for part in rest[1:6])!r} of entry {entry + 1}"


def _advice(place: tuple) -> str:
    key = place[2] if len(place) > 2 else None
    known = _WHAT_TO_DO.get(key) if isinstance(key, str) else None
    return known or "Save the conditioning before the node that adds this."


def _refused(value: Any, place: tuple) -> ValueError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return ValueError(
        f"{WHO}: expected tensors, numbers and texts, got {kind} at {_where(place)}, which no file can hold. "
        f"{_advice(place)}"
    )
