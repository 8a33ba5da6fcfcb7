"""What became of a request: answered from a store, computed in part, or whole."""

from __future__ import annotations

from dataclasses import dataclass

PLACES = {"ram": "RAM", "disk": "disk"}


@dataclass(frozen=True)
class CacheStatus:
    """hit: where the whole was found, None where it was encoded. reused: tokens whose layers were not computed, of
    `tokens`; seen_before: vision blocks whose features were not."""

    hit: str | None
    tokens: int
    reused: int = 0
    seen_before: int = 0

    def text(self) -> str:
        if self.hit is not None:
            return f"hit ({PLACES[self.hit]})"
        parts = [f"prefix {self.reused} of {self.tokens} tokens"] if self.reused else []
        blocks = "picture" if self.seen_before == 1 else "pictures"
        parts += [f"{self.seen_before} {blocks} seen before"] if self.seen_before else []
        return ", ".join(parts) or "miss"
