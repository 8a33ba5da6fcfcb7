"""Files and functions within the style. Contract: `problems(root)` -> "file:line: message" each.

A file has at most 250 lines. A function has at most 35, without its signature and docstring: what a model's forward
may have; nearly all have under 15. What is longer is named below with its reason and its length, and may not grow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import layout
import lint_files

MOST_LINES = 250
MOST_IN_FUNCTION = 35
LONG_FUNCTIONS = {
    "encoder/parallel/worker/settings.py:_parser": 47,  # a table: one argument of the worker per statement
    "scripts/demo.py:_prove": 40,  # a list of claims in the order in which they are printed
    "tests/parallel/failing_worker.py:_patch": 38,  # one fault per branch, in a process of its own
    "tests/test_layers.py:test_what_others_put_around_a_linear_of_the_mlp_sees_its_input_and_its_own_output": 38,
}
# Still to be split by noun.
LONG_FILES = {
    "benchmarks/accelerator.py": 446,
    "encoder/checkpoint/packed.py": 252,
    "encoder/config.py": 315,
    "encoder/layers.py": 286,
    "encoder/model.py": 313,
    "encoder/tokens.py": 285,
}


def problems(root: Path = layout.ROOT) -> list[str]:
    """What is too long. Tests may be long files: one behaviour per function, one subject per file."""
    return [found for path in lint_files.listed("*.py", root) for found in _too_long(path, root)]


def _too_long(path: Path, root: Path) -> Iterator[str]:
    name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
    lines, most = len(text.splitlines()), LONG_FILES.get(name, MOST_LINES)
    if lines > most and not name.startswith("tests/"):
        yield f"{name}:{most + 1}: expected at most {most} lines, got {lines}. Split it by noun."
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            most = LONG_FUNCTIONS.get(f"{name}:{function.name}", MOST_IN_FUNCTION)
            if (length := body_lines(function)) > most:
                yield f"{name}:{function.lineno}: expected at most {most} lines in {function.name}, got {length}"


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0
