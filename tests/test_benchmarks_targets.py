"""The table of every target: from the result files, in the terminal and in benchmarks/README.md; and the profile's."""

from __future__ import annotations

import json
import sys

import bench
import layout
import pytest

sys.path.append(str(layout.ROOT / "benchmarks"))
import profile_whole
import targets
from verdict import Verdict


@pytest.fixture
def found(tmp_path) -> dict:
    Verdict("load", [], [(True, "time: 0.5x"), (False, "bytes: 2x")], {}).write(0.25, tmp_path)
    Verdict("host", [], [(None, "no ComfyUI")], {}).write(None, tmp_path)
    return targets.read(("load", "growth", "host"), tmp_path)


def test_table_has_every_target_and_what_was_not_run(found):
    lines = targets.table(found)
    assert [line.split()[:2] for line in lines[:2]] == [["met", "load"], ["missed", "load"]]
    assert lines[2].split() == ["not", "measured", "growth", "not", "run", "yet"]
    assert lines[-1] == "1 of 4 targets met, 1 missed, 2 not measured"


def test_section_of_the_document_is_replaced_and_the_rest_is_kept(found, tmp_path):
    document = tmp_path / "README.md"
    document.write_text(f"before\n{targets.BEGIN}\nold\n{targets.END}\nafter\n", encoding="utf-8")
    targets.write(found, document)
    text = document.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| load | bytes: 2x | missed |" in text and "load average 0.25 before" in text
    targets.write(found, document)
    assert document.read_text(encoding="utf-8") == text


def test_document_without_marks_is_refused(found, tmp_path):
    document = tmp_path / "README.md"
    document.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match=r"expected the marks .* in README.md, got none\. Put them where"):
        targets.write(found, document)


def test_readme_says_what_the_result_files_say():
    """`python scripts/bench.py --table` mends it."""
    assert targets.section(targets.read(bench.NAMES)) in targets.DOCUMENT.read_text(encoding="utf-8")


def test_readme_names_every_benchmark():
    text = targets.DOCUMENT.read_text(encoding="utf-8")
    assert all(f"\n| `{name}` |" in text for name in bench.NAMES)


def test_missed_target_is_the_exit_status(found, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(targets, "read", lambda names: found)
    monkeypatch.setattr(targets, "write", lambda found: None)
    assert bench.show_targets() == 1 and "1 missed" in capsys.readouterr().out
    found.pop("load")
    assert bench.show_targets() == 0


def test_profile_tells_products_and_attention_from_the_rest():
    found = [("aten::mm", 3, 6.0), ("aten::mul", 9, 3.0), ("aten::_scaled_dot_product_flash_attention_for_cpu", 1, 1.0)]
    lines = profile_whole.table(found, 2)
    assert lines[0] == "10.00 s, of which products and attention 70.0%, the rest 30.0%"
    assert len(lines) == 3 and "aten::mul" in lines[2]
    json.dumps(lines)
