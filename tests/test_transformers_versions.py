"""The version matrix without network: its document, its verdict, and the rows of the installed transformers."""

from __future__ import annotations

import copy
from importlib import metadata

import layout
import package_installer
import pytest
import test_versions
import transformers_versions
import versions_report
import versions_verdict
from h3te_tests.version_cases import CASES

pytest.importorskip("transformers.models.qwen3_vl")
pytest.importorskip("torchvision")

NEWEST = transformers_versions.VERSIONS[-1]
QUICK = ("text with H3 tokens", "video, 3 samples", "two images, odd sizes")


def written_rows() -> dict[tuple[str, str], list[str]]:
    """(version, case) -> the other cells of the long table in the document."""
    section = versions_report.DOCUMENT.read_text(encoding="utf-8").split("## Every case")[1]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    assert tuple(lines[0]) == versions_report.CASE_HEADER
    return {(version, case): cells for version, case, *cells in lines[2:]}


@pytest.fixture(scope="module")
def measured(tokenizer_folder) -> dict:
    """The report of this process for the quick cases."""
    from h3te_tests.version_measure import measure

    return measure(tokenizer_folder, QUICK)


@pytest.fixture
def result(measured) -> dict:
    return {"ours": {}, **copy.deepcopy(measured)}


def problems(result: dict, version: str = NEWEST) -> list[str]:
    return versions_verdict.problems({version: result}, {"ours": {}})


def test_document_holds_every_version_and_case():
    assert list(written_rows()) == [(v, case) for v in transformers_versions.VERSIONS for case in CASES]


def test_document_rows_are_those_of_the_installed_transformers(measured):
    written = written_rows()
    for case in QUICK:
        row = versions_report.case_row(NEWEST, case, measured["cases"][case])
        exact = row.strip("| ").split(" | ")[2:-2]  # what the matrix product costs depends on the processor
        assert written[NEWEST, case][:-2] == exact


def test_installed_transformers_has_no_problem(result):
    assert problems(result, metadata.version("transformers")) == []


def test_document_says_which_versions_agree_in_every_bit():
    for (version, _), cells in written_rows().items():
        exact = cells[2:4] if versions_verdict.is_released(version) else cells[4:6]
        assert [cells[1], *exact] == ["equal"] * 3


def test_a_differing_bit_is_a_problem(result):
    result["cases"][QUICK[1]]["bfloat16"]["convolution"]["largest"] = 1e-7
    assert problems(result) == [
        f"transformers {NEWEST}: video, 3 samples, bfloat16: hidden states differ by 1e-07 where every bit should "
        "agree (convolution)"
    ]


def test_a_differing_step_is_a_problem_unless_it_is_the_old_interpolation(result):
    for numbers in result["cases"].values():
        numbers["float32"]["steps"]["position interpolation"] = 1e-6
        numbers["float32"]["our interpolation"] = numbers["bfloat16"]["our interpolation"] = {"largest": 0.0}
    assert problems(result, "5.5.4") == []
    assert problems(result) == [f"transformers {NEWEST}: steps differ that should not: position interpolation"]
    result["cases"][QUICK[1]]["float32"]["steps"]["mergers"] = 1e-6
    assert problems(result, "5.5.4") == ["transformers 5.5.4: steps differ that should not: mergers"]


def test_differing_ids_are_a_problem(result):
    result["cases"][QUICK[0]]["ids equal"] = False
    assert problems(result) == [
        f"transformers {NEWEST}: ids, grids, pixels or position ids differ: text with H3 tokens"
    ]


def test_our_output_that_differs_between_processes_is_a_problem(result):
    result["ours"] = {"text": {"float32": {"hidden": "a"}}}
    found = versions_verdict.problems({NEWEST: result}, {"ours": {"text": {"float32": {"hidden": "b"}}}})
    assert found == [
        f"transformers {NEWEST}: our own output differs from that of the process without transformers: text"
    ]


def test_a_size_that_differs_without_known_reason_is_a_problem(result):
    result["sizes"]["video"] = [[[25, 768, 1344], [736, 1312], [768, 1344]]]
    (reason,) = versions_verdict.size_reasons("5.5.4", result["sizes"])
    assert reason.startswith("5, 9, 13 ... samples count as")
    (found,) = problems(result)
    assert found.startswith(f"transformers {NEWEST}: 1 sizes differ for no known reason, the first: [[25, 768, 1344]")


def test_another_default_of_the_cap_is_a_problem(result):
    result["interface"]["cap"] = {"left out": [2, 40, 72], "False": [2, 48, 84], "True": [2, 40, 72]}
    (found,) = problems(result)
    assert "cap_pixels_per_frame left out should be uncapped" in found


def test_install_that_fails_names_the_command_to_repeat(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers_versions, "FOLDER", layout.COMFY / "tmp" / tmp_path.name)
    monkeypatch.setattr(package_installer, "run_pip", lambda arguments: (1, "NewConnectionError: getaddrinfo failed"))
    with pytest.raises(package_installer.SetupError) as error:
        transformers_versions.provide("5.5.4")
    assert "set-up, transformers 5.5.4: expected pip to install" in str(error.value)
    assert "No package index answered" in str(error.value)
    assert "then run `python scripts/test_versions.py` again" in str(error.value)


def test_installed_release_needs_no_folder(monkeypatch):
    monkeypatch.setattr(transformers_versions, "installed", lambda site: {"transformers": NEWEST})
    assert transformers_versions.provide(NEWEST) is None


def test_process_that_fails_is_explained(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)^test-versions: expected a report from .* got exit status 1:.*Delete"):
        test_versions.probe(tmp_path / "no tokenizer", None, "--without-transformers")


def test_other_release_than_asked_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(test_versions, "probe", lambda *arguments: {"versions": {"transformers": "1.2.3"}})
    with pytest.raises(RuntimeError, match=f"expected transformers {NEWEST}, got 1.2.3 from .*Delete that folder"):
        test_versions.measure(NEWEST, tmp_path, tmp_path)


def test_probe_refuses_an_interpreter_that_holds_transformers(tokenizer_folder):
    from h3te_tests.version_probe import report

    with pytest.raises(RuntimeError, match="version_probe: expected a fresh interpreter"):
        report(tokenizer_folder)


def test_command_that_cannot_install_says_so_and_fails(tmp_path, monkeypatch, capsys):
    def refuse(version: str):
        raise package_installer.SetupError("set-up, transformers: no index")

    monkeypatch.setattr(test_versions, "provide", refuse)
    assert test_versions.main(tmp_path) == 1
    assert "set-up, transformers: no index" in capsys.readouterr().err
