"""Lint: dead links, lengths, and what happens where its programs cannot be installed."""

from __future__ import annotations

import lint
import lint_length
import lint_links
import lint_tools
import pytest
from package_installer import SetupError

PAGE = """# The page's `name`, twice
[there](other.md#second-part) [gone](gone.md) [self](#the-pages-name-twice) [no head](#third) [site](https://x.y/z)
`[code](nothing.md)`
```
[fenced](nothing.md)
```
## Same
## Same
[second](#same-1) <img src="gone.png">
"""


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "other.md").write_text("# First\n## Second part\n", encoding="utf-8")
    assert lint_links.problems(tmp_path) == [
        "page.md:2: expected a file behind the link, got gone.md",
        "page.md:2: expected a heading behind the link, got #third",
        "page.md:9: expected a file behind the link, got gone.png",
    ]


def test_links_out_of_the_project_are_found(tmp_path):
    (tmp_path / "outside.md").touch()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "page.md").write_text("[out](../outside.md)", encoding="utf-8")
    found = lint_links.problems(tmp_path / "project")
    assert found == ["page.md:1: expected a link inside the project, got ../outside.md"]


def test_help_pages_link_from_the_folder_of_the_english_ones(tmp_path):
    (tmp_path / "web" / "docs" / "Node").mkdir(parents=True)
    (tmp_path / "web" / "docs" / "Node.png").touch()
    (tmp_path / "web" / "docs" / "Node" / "zh.md").write_text("![node](Node.png)", encoding="utf-8")
    assert lint_links.problems(tmp_path) == []


def test_long_files_and_functions_are_found(tmp_path):
    long = '"""' + "text\n" * 60 + '"""\n' + "    x = 1\n" * 36
    (tmp_path / "a.py").write_text(f"def f():\n    {long}\n\ndef g():\n    {long[:-10]}", encoding="utf-8")
    (tmp_path / "b.py").write_text("x = 1\n" * 251, encoding="utf-8")
    (tmp_path / "c.py").write_text("x = 1\n" * 250, encoding="utf-8")
    assert lint_length.problems(tmp_path) == [
        "a.py:1: expected at most 35 lines in f, got 36",
        "b.py:251: expected at most 250 lines, got 251. Split it by noun.",
    ]


def test_exceptions_to_the_lengths_are_still_needed():
    root = lint_length.layout.ROOT
    for name, most in lint_length.LONG_FILES.items():
        length = len((root / name).read_text(encoding="utf-8").splitlines())
        assert lint_length.MOST_LINES < length <= most, name


CHECKS = (lint.Check("plain", "no program", list), lint.Check("tool", "a program", lambda: ["a.py:1: wrong"], True))


def test_what_a_check_finds_is_printed_and_is_a_failure(capsys, monkeypatch):
    monkeypatch.setattr(lint_tools, "provide", lambda: None)
    assert lint.run(CHECKS) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("  PASS    plain") and said[1].startswith("  FAIL    tool")
    assert said[2] == "    a.py:1: wrong"


@pytest.mark.parametrize("all_must_run", [False, True])
def test_programs_that_no_index_has_are_said_and_decide_only_when_asked(all_must_run, capsys, monkeypatch):
    def offline():
        raise SetupError("set-up, lint: no package index answered")

    monkeypatch.setattr(lint_tools, "provide", offline)
    assert lint.run(CHECKS, all_must_run) == int(all_must_run)
    said = capsys.readouterr().out
    assert "  PASS    plain" in said and "  NOT RUN tool" in said
    assert "set-up, lint: no package index answered" in said


def test_a_program_that_fails_silently_is_a_problem(monkeypatch):
    monkeypatch.setattr(lint_tools.layout, "venv_python", lambda: lint_tools.layout.Path(lint_tools.sys.executable))
    tool = lint_tools.Tool(lint_tools.layout.Path(lint_tools.sys.executable).name, ("-c", "raise SystemExit(3)"))
    assert lint_tools.run(tool) == [f"{tool.program}: exit status 3"]
    assert lint_tools.run(lint_tools.Tool(tool.program, ("-c", "print('fine')"))) == []
