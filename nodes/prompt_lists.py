"""Lists of prompts: nodes that take ComfyUI's lists whole, so that all prompts share one pass over the weights.

Contract: ComfyUI hands a node with `is_input_list` every input as a list, growing inputs as a dict of lists. `rows`
gives one mapping of plain values for each run, by ComfyUI's own rule: as many as the longest list, a shorter list
repeats its last value. A value that is no list counts for every run, so that nodes can be called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def rows(inputs: Mapping[str, Any], node: str) -> list[dict[str, Any]]:
    """Raises ValueError naming the node and the input for an empty list."""
    return [{name: _at(value, i) for name, value in inputs.items()} for i in range(_longest(inputs, node))]


def _longest(inputs: Mapping[str, Any], node: str, group: str = "") -> int:
    longest = 1
    for name, value in inputs.items():
        if isinstance(value, list) and not value:
            raise ValueError(
                f"{node}: expected at least one value on {group}{name}, got an empty list. "
                "Check the node that makes the list."
            )
        length = len(value) if isinstance(value, list) else 1
        longest = max(longest, _longest(value, node, f"{name}.") if _grown(value) else length)
    return longest


def _grown(value: Any) -> bool:
    """A growing input's {socket: list}; other mappings (audio, marked pictures) are values, whatever they hold."""
    if not isinstance(value, dict):
        return False
    linked = [each for each in value.values() if each is not None]
    return bool(linked) and all(isinstance(each, list) for each in linked)


def _at(value: Any, i: int) -> Any:
    if isinstance(value, list):
        return value[min(i, len(value) - 1)]
    return {name: _at(each, i) for name, each in value.items()} if _grown(value) else value


@contextmanager
def told_which(number: int, count: int) -> Iterator[None]:
    """A ValueError says which of several prompts it is about, `number` from 0 on; that of a single one stays."""
    try:
        yield
    except ValueError as error:
        if count == 1:
            raise
        raise ValueError(f"prompt {number + 1} of {count}: {error}") from error


def once_each(make: Callable[..., Any], *names: str) -> Callable[[Mapping[str, Any]], Any]:
    """`make(row)`, called once for rows whose values under `names` are the very same objects."""
    made: dict[Hashable, tuple[Any, Any]] = {}

    def of(row: Mapping[str, Any]) -> Any:
        key = tuple(_identity(row.get(name)) for name in names)
        if key not in made:
            made[key] = row, make(row)  # the row keeps its objects alive, and so their ids taken
        return made[key][1]

    return of


def _identity(value: Any) -> Hashable:
    """Widget values are the same when they are equal; anything else only when it is the very same object."""
    if isinstance(value, dict):  # built anew for each row, of sockets that may hold the same
        return tuple((name, _identity(each)) for name, each in value.items())
    if isinstance(value, (str, int, float, type(None))):
        return type(value), value
    return id, id(value)
