"""The commands: make targets, their Windows twins, lint's boundaries, clean."""

from __future__ import annotations

import re
from pathlib import Path

import clean
import help as targets_help
import layout
import lint_boundaries
import pytest
from h3te_tests.empty_clone import moved_folders  # noqa: F401 (fixture)

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"


def test_clean_refuses_to_delete_large_models_of_the_user(empty_clone, monkeypatch):
    models = layout.PYPI_HOST / "models"
    models.mkdir(parents=True)
    (models / "big.safetensors").touch()
    monkeypatch.setattr(clean, "_OWN_MODEL_LIMIT", -1)
    with pytest.raises(SystemExit, match=r"expected only generated files.*\n.*big\.safetensors\nMove them away"):
        clean.clean()
    assert (models / "big.safetensors").exists()


@pytest.mark.parametrize("argument", ["--help", "--dry-run", "output"])
def test_clean_deletes_nothing_when_asked_for_anything_else(argument, empty_clone, monkeypatch):
    monkeypatch.setattr(layout, "ROOT", empty_clone)
    layout.OUTPUT.mkdir(parents=True)
    with pytest.raises(SystemExit):
        clean.main([argument])
    assert layout.OUTPUT.is_dir()


def test_clean_deletes_what_was_made(empty_clone, monkeypatch):
    monkeypatch.setattr(layout, "ROOT", empty_clone)
    layout.OUTPUT.mkdir(parents=True)
    clean.main([])
    assert not layout.OUTPUT.exists()


def test_import_across_a_boundary_is_found(tmp_path):
    (tmp_path / "encoder" / "deep").mkdir(parents=True)
    (tmp_path / "encoder" / "good.py").write_text("import torch\nfrom . import rope\nfrom .deep import part\n")
    bad = Path("encoder", "deep", "bad.py")
    (tmp_path / bad).write_text("def f():\n    import comfy.ops\n    from ...nodes import x\n")
    found = [f"{bad}:{line}: encoder/ must not import {name}" for line, name in ((2, "comfy"), (3, "nodes"))]
    assert lint_boundaries.problems(tmp_path) == found


def test_every_make_target_is_one_line_into_scripts_and_documented():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    documented = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    targets = targets_help.targets(makefile)
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE).group(1).split()
    assert set(phony) == set(targets) and {"setup", "demo", "demo-ui", "test", "test-all"} <= set(targets)
    for target in targets:
        recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE).group(1)
        script = re.fullmatch(r"\t@\$\(PYTHON\) scripts/(\w+\.py).*\n", recipe)
        assert script, f"{target} is not one line into scripts/"
        assert f"`make {target}" in documented and f"python scripts/{script.group(1)}" in documented
        assert (SCRIPTS / script.group(1)).is_file()


def test_ci_runs_make_test():
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
