"""`make workflows`: what it refuses, how it ends, and rows about a host that has other nodes than the facts say."""

from __future__ import annotations

import copy
import json
import subprocess

import pytest
import workflow_conditioning
import workflow_definitions
import workflow_files
import workflow_rows
from workflow_rows import Row

import workflows

KNOWN = workflow_definitions.load()
SAVED = workflow_rows.read(workflow_files.SAVED)


def test_recording_needs_a_host_with_h3_nodes(tmp_path):
    with pytest.raises(ValueError, match=r"--record: expected a ComfyUI with H3 nodes of its own .*, got 0\.3\.75"):
        workflows._record_definitions(tmp_path, {"LoadImage": {}}, "0.3.75", None)


def test_recording_needs_the_date_of_a_host_without_git_history(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ValueError, match=r"--record: expected git history in .*, got none\. Say its date"):
        workflows._date(tmp_path, None)
    assert workflows._date(tmp_path, "2026-08-22") == "2026-08-22"


def test_the_date_is_that_of_the_hosts_newest_commit(tmp_path):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    commit = ["git", "-C", str(tmp_path), *identity, "commit", "-q", "--allow-empty", "-m", "x"]
    subprocess.run([*commit, "--date", "2020-01-01T00:00:00Z"], check=True)
    assert len(workflows._date(tmp_path, None).split("-")) == 3


@pytest.mark.parametrize(("problems", "status", "said"), [((), 0, "2 of 2"), (("wrong",), 1, "1 of 2")])
def test_the_status_is_one_when_a_row_fails_and_the_report_names_it(
    problems, status, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(workflow_rows, "RESULTS", tmp_path)
    rows = [Row("links", "3 links"), Row("widgets", "4 widgets", problems)]
    assert workflows._close(rows, {}, "0.33.0", 1.0) == status
    assert f"{said} checks passed on ComfyUI 0.33.0" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["rows"][1]["problems"] == list(problems)


def test_a_long_list_of_problems_is_cut_and_says_where_the_rest_is(capsys):
    workflows._print(Row("links", "20 links", tuple(f"problem {i}" for i in range(20))))
    printed = capsys.readouterr().out
    assert "FAIL  links (20 links)" in printed and "problem 11" in printed and "problem 12" not in printed
    assert "and 8 more, in output/workflows/report.json" in printed


def test_static_rows_all_pass_and_count_what_they_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(workflow_rows, "RESULTS", tmp_path)
    rows = list(workflow_rows.static_rows(SAVED, workflow_rows.read(workflow_files.SENT), KNOWN))
    assert [row.problems for row in rows] == [()] * 6
    links = sum(len(workflow["links"]) for workflow in SAVED.values())
    assert {row.size for row in rows} >= {"14 files", f"{links} links", "34 files"}


def test_a_host_that_lacks_core_nodes_passes_and_the_row_names_them():
    nodes = copy.deepcopy(KNOWN.nodes)
    del nodes["ResolutionSelector"]
    rows = list(workflow_rows.live_rows(SAVED, KNOWN, workflow_definitions.Definitions(nodes, "0.3.75")))
    assert all(row.passed for row in rows)
    assert rows[2].size.endswith("it lacks ResolutionSelector")


def test_a_host_where_an_input_of_ours_moved_fails():
    nodes = copy.deepcopy(KNOWN.nodes)
    inputs = nodes["H3TEEncodeKeyframes"]["input"]["optional"]
    nodes["H3TEEncodeKeyframes"]["input"]["optional"] = {"fit_again": inputs["fit"], **inputs}
    rows = list(workflow_rows.live_rows(SAVED, KNOWN, workflow_definitions.Definitions(nodes, "0.33.0")))
    assert [row.passed for row in rows] == [False, False, True]
    assert "H3TEEncodeKeyframes.fit_again: kept as None" in rows[0].problems[0]
    assert any("saved are 8 values" in problem for problem in rows[1].problems)


class FixedServer:
    """Answers every graph with the recorded description of one workflow."""

    def __init__(self, name: str):
        self.answer = json.dumps(workflow_conditioning.kept()["workflows"][name])

    def run(self, graph: dict, timeout: float) -> dict:
        return {"shapes": {"text": [self.answer]}}


def test_conditioning_of_another_workflow_is_a_failed_row_and_the_right_one_passes():
    graphs = {"h3te_t2va": workflow_rows.read(workflow_files.SENT)["h3te_t2va"]}
    types = {node["class_type"] for node in graphs["h3te_t2va"].values()}
    for name, passed in (("h3te_t2va", True), ("h3te_fl2va_first_last", False)):
        (row,) = workflow_rows.encode_rows(FixedServer(name), graphs, types, {})
        assert row.passed is passed


def test_a_workflow_without_a_record_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(workflow_conditioning, "FILE", tmp_path / "conditioning.json")
    server = FixedServer.__new__(FixedServer)
    server.answer = "{}"
    graphs = {"h3te_t2va": workflow_rows.read(workflow_files.SENT)["h3te_t2va"]}
    types = {node["class_type"] for node in graphs["h3te_t2va"].values()}
    (row,) = workflow_rows.encode_rows(server, graphs, types, {})
    assert row.problems == ("nothing is recorded; run `make workflows ARGS=--record`",)
