"""The README's Map names what exists, and what exists is named."""

from __future__ import annotations

import layout
import lint_map

README = """# Pack

## Map
| where | what |
| `worker.py` | the worker |
| `encoder/model.py`, `gone.py` | the model |
"""


def test_map_names_what_exists_and_what_exists_is_named():
    rows = lint_map.rows((layout.ROOT / "README.md").read_text(encoding="utf-8"))
    assert sum(map(len, rows)) > 10
    assert lint_map.problems() == []


def test_what_is_missing_on_either_side_is_said(tmp_path):
    (tmp_path / "encoder").mkdir()
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    for name in ("worker.py", "encoder/model.py", "encoder/rope.py", "unnamed.py"):
        (tmp_path / name).touch()
    assert lint_map.problems(tmp_path) == [
        "README.md, Map: expected what exists, got encoder/gone.py",
        "README.md, Map: expected a row that names encoder/rope.py, got none",
        "README.md, Map: expected a row that names unnamed.py, got none",
    ]
