"""`make fuzz`: which targets, where it can run, what it reads of atheris' output, when it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import fuzz
import pytest
from package_installer import SetupError

LOG = """\
INFO: Instrumenting h3te.encoder
#2\tINITED cov: 171 ft: 288 corp: 3/13760b exec/s: 0 rss: 465Mb
#58\tNEW    cov: 189 ft: 342 corp: 15/88Kb lim: 65536 exec/s: 0 rss: 465Mb L: 775/12536 MS: 1 Custom-
FINDING 1399a1f4d0df: KeyError at header.py:1
#4208\tDONE   cov: 192 ft: 398 corp: 46/143Kb lim: 65536 exec/s: 382 rss: 462Mb
Done 4208 runs in 11 second(s)
"""


def test_targets_are_chosen_by_the_beginning_of_their_names():
    assert fuzz.chosen([]) == list(fuzz.TARGETS)
    assert fuzz.chosen(["worker", "gguf"]) == ["gguf_header", "worker_protocol"]
    with pytest.raises(ValueError, match=r"expected targets of safetensors_header, .*, got 'pdf'\. Correct --only"):
        fuzz.chosen(["gguf", "pdf"])


def test_every_target_has_its_module():
    folder = Path(fuzz.RUN).parent
    assert fuzz.RUN.is_file()
    assert all((folder / f"{target}.py").is_file() for target in fuzz.TARGETS)
    assert f"TARGETS = {fuzz.TARGETS}".replace("'", '"') in fuzz.RUN.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("system", "machine", "can"),
    [("Linux", "x86_64", True), ("Linux", "aarch64", False), ("Windows", "AMD64", False), ("Darwin", "arm64", False)],
)
def test_systems_without_atheris_are_told_before_anything_is_installed(monkeypatch, system, machine, can):
    monkeypatch.setattr(fuzz.platform, "system", lambda: system)
    monkeypatch.setattr(fuzz.platform, "machine", lambda: machine)
    installed = []
    monkeypatch.setattr(fuzz, "missing", lambda *_: ["atheris"])
    monkeypatch.setattr(fuzz, "install", lambda *given, **_: installed.append(given))
    monkeypatch.setattr(fuzz, "drop_cache", lambda: None)
    if can:
        fuzz.provide()
        assert installed and fuzz.obstacle() == ""
    else:
        with pytest.raises(SetupError, match=rf"expected a system .*{system} on {machine.lower()}\. Run `make test`"):
            fuzz.provide()
        assert not installed


def test_figures_are_those_of_the_last_line():
    assert fuzz.figures(LOG) == (4208, 192, 398, 46)
    assert fuzz.figures("Traceback") == (0, 0, 0, 0)


def test_a_finding_makes_it_fail_and_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fuzz, "provide", lambda: None)
    monkeypatch.setattr(fuzz, "FOLDER", tmp_path)
    good = fuzz.Outcome("gguf_header", 4208, 192, 398, 46, (), 11.0)
    monkeypatch.setattr(fuzz, "fuzz", lambda target, seconds: good)
    assert fuzz.main(0.5, ["gguf"]) == 0
    bad = fuzz.Outcome("gguf_header", 4208, 192, 398, 46, ("1399a1f4d0df",), 11.0)
    monkeypatch.setattr(fuzz, "fuzz", lambda target, seconds: bad)
    assert fuzz.main(0.5, ["gguf"]) == 1
    assert str(tmp_path / "gguf_header" / "findings" / "1399a1f4d0df.txt") in capsys.readouterr().out


def test_a_run_that_breaks_off_is_a_problem_with_its_log(tmp_path, monkeypatch):
    broken = tmp_path / "run.py"
    broken.write_text("import sys\nprint('no atheris')\nsys.exit(3)\n")
    monkeypatch.setattr(fuzz, "RUN", broken)
    outcome = fuzz.fuzz("gguf_header", 1, sys.executable, tmp_path)
    assert outcome.problem == f"exit status 3, see {tmp_path / 'gguf_header' / 'log.txt'}"
    assert (tmp_path / "gguf_header" / "log.txt").read_text() == "no atheris\n"
    assert outcome.executions == 0


def test_findings_are_inputs_without_their_tracebacks(tmp_path):
    assert fuzz.found(tmp_path / "none") == ()
    for name in ("b", "a", "a.txt", "b.txt"):
        (tmp_path / name).touch()
    assert fuzz.found(tmp_path) == ("a", "b")
