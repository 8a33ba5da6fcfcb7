"""One process of the patches' matrix: prints, as JSON, what every known model of its transformers does un- and patched.

Contract: `python patch_probe.py`; takes whatever transformers this interpreter finds; the last line is the JSON.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import time
import warnings
from pathlib import Path


def unlisted() -> list[str]:
    """Towers of this transformers that have the shape of Qwen3-VL's, but are not in the patches' list."""
    from h3te.patches.qwen3_vl import CLASSES, TAPS

    marks = (*TAPS.values(), "fast_pos_embed_interpolate")
    folder = Path(importlib.util.find_spec("transformers").origin).parent / "models"
    found = []
    for path in sorted(folder.glob("*/modeling_*.py")):
        text = path.read_text(encoding="utf-8")
        if any(mark in text for mark in marks):
            found += [c.name for c in ast.parse(text).body if isinstance(c, ast.ClassDef) and is_tower(c)]
    return [name for name in found if name not in {tower for tower, _ in CLASSES.values()}]


def is_tower(node: ast.ClassDef) -> bool:
    """Whether a class has the tower's shape: `forward(hidden_states, grid_thw)`, pos_embed and blocks."""
    forwards = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "forward"]
    wanted = {"self", "hidden_states", "grid_thw"}
    own = {a.attr for a in ast.walk(node) if isinstance(a, ast.Attribute) and isinstance(a.value, ast.Name)}
    return any(wanted <= {a.arg for a in f.args.args} for f in forwards) and {"pos_embed", "blocks"} <= own


def report() -> dict:
    import conftest  # noqa: F401 (makes h3te and h3te_tests importable)
    import torch
    import transformers
    from h3te.patches.qwen3_vl import families
    from h3te_tests.patch_official import differences
    from h3te_tests.patch_scenes import measure

    torch.set_num_threads(1)
    started = time.monotonic()
    models = {family.tower.__name__: measure(family) for family in families()}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    return {
        "versions": versions,
        "models": models,
        "unlisted": unlisted(),
        "official": differences(),
        "seconds": time.monotonic() - started,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(report()))
