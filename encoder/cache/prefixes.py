"""Keys and values of sequences that were encoded, kept so that what begins like them need not be computed again.

Contract: `PrefixStore(budget)` keeps, per identity, a tree of sequences (keys and values of every layer, hidden states)
and the vision features of references, all on the CPU, never more than `budget()` bytes. Least recently used goes first,
and of a tree its leaves; using a branch is using what stands before it. What a running pass holds stays valid when it
is dropped here. One pass at a time; `clear` may come from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from threading import RLock

import torch

from ..config import TextConfig
from ..past import Pair
from ..vision import VisionFeatures
from .prefix_tree import Branch, longest

KEY_BYTES = 16  # of each token: what it is by content


@dataclass(frozen=True)
class PrefixUse:
    """identity: of whatever decides the numbers (weights, compute dtype, tap, LoRA); only equal ones share."""

    store: PrefixStore
    identity: str


def pass_identity(use: PrefixUse, dtype: torch.dtype, layers: int) -> Hashable:
    """Under which a pass of so many layers keeps sequences."""
    return use.identity, str(dtype), layers


def kept_bytes(config: TextConfig, tokens: int, dtype: torch.dtype, layers: int = 50) -> int:
    """Bytes that keeping `tokens` takes: keys and values of `layers` layers (of all, where the model has fewer), hidden
    states, keys by content."""
    layers = min(layers, config.num_hidden_layers)
    values = layers * 2 * config.num_key_value_heads * config.head_dim + config.hidden_size
    return tokens * (values * dtype.itemsize + KEY_BYTES)


class Node(Branch):
    """A kept branch. layers: a Pair each; hidden [rows, D]."""

    def __init__(self, parent: Node | None, offset: int, keys: torch.Tensor, layers: list[Pair], hidden: torch.Tensor):
        super().__init__(parent, offset, keys)
        self.layers, self.hidden = layers, hidden
        self.used = 0
        self.dropped = False

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.hidden.nbytes + sum(k.nbytes + v.nbytes for k, v in self.layers)

    def pair(self, layer: int) -> Pair:
        return self.layers[layer]


@dataclass(eq=False)
class _Seen:
    features: VisionFeatures
    used: int

    @property
    def nbytes(self) -> int:
        return features_bytes(self.features)


def features_bytes(features: VisionFeatures) -> int:
    return features.merged.nbytes + sum(level.nbytes for level in features.deepstack)


class PrefixStore:
    def __init__(self, budget: Callable[[], int]):
        """budget: bytes that may be held now; 0 keeps and reuses nothing. Where several ranks share an encoder each has
        a store of its own, all asked alike and with the same fixed number: what one drops, no other may reuse."""
        self.budget = budget
        self._roots: dict[Hashable, list[Node]] = {}
        self._seen: dict[Hashable, _Seen] = {}
        self._bytes = 0
        self._clock = count(1)
        self._lock = RLock()
        self._cleared = 0

    @property
    def nbytes(self) -> int:
        with self._lock:
            return self._bytes

    def clear(self) -> int:
        """Drop everything; returns the bytes freed. What a running pass would add afterwards is not kept."""
        with self._lock:
            freed, self._cleared = self._bytes, self._cleared + 1
            self._shrink(0)
            return freed

    @property
    def is_on(self) -> bool:
        """Whether anything may be kept now; with a budget of 0 nothing is any longer."""
        with self._lock:
            self._shrink(max(0, self.budget()))
            return self.budget() > 0

    def open(self) -> int:
        """Fit into the budget of now. Returns a mark for `add`: what is cleared later is noticed by it."""
        with self._lock:
            self._shrink(max(0, self.budget()))
            return self._cleared

    def find(self, identity: Hashable, keys: torch.Tensor) -> tuple[Node | None, int]:
        """Where the longest kept prefix of keys [S, 2] ends, see `longest`."""
        with self._lock:
            return longest(self._roots.get(identity, ()), keys)

    def features(self, key: Hashable) -> VisionFeatures | None:
        """What the tower gave for this reference; using it is noted."""
        with self._lock:
            seen = self._seen.get(key)
            if seen is not None:
                seen.used = next(self._clock)
            return seen and seen.features

    def touch(self, keys: Iterable[Hashable]) -> None:
        """Note that these references are used now, though nobody asks for their features."""
        for key in keys:
            self.features(key)

    def use(self, node: Node | None) -> None:
        """Note that a node, and so all before it, is used now."""
        with self._lock:
            now = next(self._clock)
            while node is not None:
                node.used, node = now, node.parent

    def add_features(self, mark: int, key: Hashable, features: VisionFeatures) -> None:
        with self._lock:
            if mark == self._cleared and key not in self._seen:
                self._seen[key] = _Seen(features, next(self._clock))
                self._bytes += features_bytes(features)
                self._shrink(max(0, self.budget()))

    def add(self, mark: int, identity: Hashable, node: Node) -> None:
        """Hang `node` into the tree: behind its parent, if that is still there, or as a root."""
        with self._lock:
            if mark != self._cleared or (node.parent is not None and node.parent.dropped):
                node.dropped = True
                return
            (node.parent.children if node.parent is not None else self._roots.setdefault(identity, [])).append(node)
            self._bytes += node.nbytes
            self.use(node)
            self._shrink(max(0, self.budget()))

    def _shrink(self, most: int) -> None:
        """Drop leaves and features, least recently used first, until at most that many bytes are held."""
        while self._bytes > most:
            leaves = ((node.used, identity, node) for identity, node in self._leaves())
            seen = ((seen.used, key, seen) for key, seen in self._seen.items())
            _, key, oldest = min((*leaves, *seen), key=lambda found: found[0])
            self._bytes -= oldest.nbytes
            if isinstance(oldest, Node):
                self._drop(key, oldest)
            else:
                del self._seen[key]

    def _drop(self, identity: Hashable, node: Node) -> None:
        node.dropped = True
        siblings = node.parent.children if node.parent is not None else self._roots[identity]
        siblings.remove(node)
        if not self._roots[identity]:
            del self._roots[identity]

    def _leaves(self) -> Iterator[tuple[Hashable, Node]]:
        for identity, roots in self._roots.items():
            waiting: list[Branch] = list(roots)
            while waiting:
                node = waiting.pop()
                waiting += node.children
                if not node.children:
                    yield identity, node


def pinned_bytes(nodes: Iterable[Node | None]) -> int:
    """Bytes of these nodes and all before them, each counted once."""
    found: set[Node] = set()
    for node in nodes:
        while node is not None:
            found.add(node)
            node = node.parent
    return sum(node.nbytes for node in found)
