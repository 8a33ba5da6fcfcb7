"""The tree of a conditioning file and its tensors back into a CONDITIONING, whatever somebody wrote into the file.

Contract: `unpack(tree, tensors)` gives what `pack` of conditioning_tree.py was given: dtypes, kinds of containers,
order of keys, one tensor in two places. A tree that `pack` does not make is a NotPacked that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import comfy.nested_tensor
import torch

from .conditioning_tree import MAX_DEPTH, is_entry

_KINDS = {"tensor", "nested", "tuple", "dict", "float"}  # what stands for a value that JSON does not have


class NotPacked(ValueError):
    """The tree is not one that `pack` makes."""


def unpack(tree: Any, tensors: Mapping[str, torch.Tensor]) -> list:
    """tensors: as stored; one of them named twice comes back as one object. Raises NotPacked."""
    unpacking = _Unpacking(tensors)
    found = unpacking.value(tree, 0)
    if not isinstance(found, list) or not found or not all(is_entry(entry) for entry in found):
        raise NotPacked("its tree is no list of [tensor, dict]")
    unused = set(tensors) - set(unpacking.used)
    if unused:
        raise NotPacked(f"nothing names its tensor {min(unused)!r:.60}")
    return found


@dataclass
class _Unpacking:
    tensors: Mapping[str, torch.Tensor]
    used: dict[str, tuple[bool, torch.Tensor]] = field(default_factory=dict)

    def value(self, node: Any, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH:  # a dict is a list of pairs
            raise NotPacked("its tree is too deep")
        if isinstance(node, list):
            return [self.value(each, depth + 1) for each in node]
        if not isinstance(node, dict):
            return node
        kinds = _KINDS & set(node)
        if len(kinds) != 1 or set(node) - kinds - {"widen"} or ("widen" in node and "tensor" not in node):
            raise NotPacked(f"its tree holds {repr(node)[:60]}")
        (kind,) = kinds
        return getattr(self, f"a_{kind}")(node[kind], depth, node)

    def a_tensor(self, name: Any, depth: int, node: dict) -> torch.Tensor:
        stored = self.tensors.get(name) if isinstance(name, str) else None
        widen = "widen" in node
        if stored is None or (widen and (node["widen"] != "F32" or stored.dtype != torch.bfloat16)):
            raise NotPacked(f"its tree names a tensor {name!r:.60} that it does not hold so")
        if name not in self.used:
            self.used[name] = widen, widened(stored) if widen else stored
        if self.used[name][0] != widen:
            raise NotPacked(f"its tree names {name!r:.60} in two ways")
        return self.used[name][1]

    def a_nested(self, values: Any, depth: int, node: dict) -> Any:
        found = self.listed(values, depth)
        if not all(isinstance(each, torch.Tensor) for each in found):
            raise NotPacked("its tree nests something other than tensors")
        return comfy.nested_tensor.NestedTensor(found)

    def a_tuple(self, values: Any, depth: int, node: dict) -> tuple:
        return tuple(self.listed(values, depth))

    def a_float(self, text: Any, depth: int, node: dict) -> float:
        if text not in ("nan", "inf", "-inf"):
            raise NotPacked(f"its tree holds the number {text!r:.60}")
        return float(text)

    def a_dict(self, items: Any, depth: int, node: dict) -> dict:
        pairs = self.listed(items, depth)
        if not all(isinstance(pair, list) and len(pair) == 2 and _is_key(pair[0]) for pair in pairs):
            raise NotPacked("its tree holds a dict without keys")
        return dict(pairs)

    def listed(self, values: Any, depth: int) -> list:
        if not isinstance(values, list):
            raise NotPacked(f"its tree holds {type(values).__name__} where a list belongs")
        return self.value(values, depth)


def _is_key(key: Any) -> bool:
    return key is None or isinstance(key, (str, int, float))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """bfloat16 -> float32 with the same values, NaN bit for bit."""
    return (tensor.view(torch.int16).to(torch.int32) << 16).view(torch.float32)
