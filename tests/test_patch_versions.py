"""The patches' matrix without its processes: its document, its verdict, and the older releases that are at hand."""

from __future__ import annotations

import copy

import patches_report
import patches_verdict
import pytest
import test_patches as command
import transformers_versions
from patches_verdict import GRIDS, TABLE, TEXT, problems

VERSIONS = transformers_versions.PATCHED_VERSIONS
DTYPES = ("float32", "bfloat16")


def model(version: str) -> dict:
    """What one model should measure in this release."""
    fails = patches_verdict.must_fail(version)
    figure = 1e-6 if patches_verdict.drifts(version) else 0.0
    drift = {"unpatched": figure, "not chosen": figure, "chosen": 0.0, "all": 0.0}
    return {
        "generation": "closed",
        "scenes": {s: ["fails: mix" if s in fails else "passes", "passes"] for s in patches_verdict.FAILS},
        "drift": {kind: dict.fromkeys(DTYPES, value) for kind, value in drift.items()},
        "values": True,
    }


@pytest.fixture
def results() -> dict[str, dict]:
    """A report per release that is as it should be."""
    found = {}
    for version in VERSIONS:
        names = [
            n
            for first, names in patches_verdict.MODELS.items()
            for n in names
            if patches_verdict.release(version) >= first
        ]
        models = {name: copy.deepcopy(model(version)) for name in sorted(names, reverse=True)}
        found[version] = {
            "models": models,
            "unlisted": [],
            "official": {dtype: {"convolution": 0.0, "delivered": 1e-5} for dtype in DTYPES},
            "versions": {"torch": "2.0", "transformers": version},
        }
    return found


def test_what_should_be_has_no_problem(results):
    assert problems(results) == []
    assert "DIFFERS" not in patches_report.document(results)


def test_each_generation_has_a_release():
    spans = [(4, 57), (5, 9), (5, 15)]
    releases = [patches_verdict.release(version) for version in VERSIONS]
    assert all(
        any(start <= at < end for at in releases) for start, end in zip(spans, [*spans[1:], (6, 0)], strict=True)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["scenes"][TABLE].__setitem__(1, "fails: mix"), f"{TABLE}: fails: mix with the patches"),
        (
            lambda m: m["scenes"][TABLE].__setitem__(0, "passes"),
            f"{TABLE}: passes without patches, which are no longer needed for it",
        ),
        (lambda m: m["drift"]["unpatched"].update(float32=0.0), "float32: positions drift by 0.0 unpatched"),
        (lambda m: m["drift"]["chosen"].update(bfloat16=0.1), "bfloat16: patched positions drift by 0.1"),
        (
            lambda m: m["drift"]["not chosen"].update(float32=0.0),
            "float32: positions of a tower that was not chosen changed",
        ),
        (lambda m: m.update(values=False), "a request on another device gives other bits than in place"),
    ],
)
def test_what_should_not_be_is_a_problem(results, change, said):
    change(results["5.5.4"]["models"]["Qwen3VLVisionModel"])
    assert f"transformers 5.5.4: Qwen3VLVisionModel: {said}" in problems(results)


def test_a_model_left_alone_and_an_unlisted_one_are_problems(results):
    del results["5.5.4"]["models"]["Qwen3_5VisionModel"]
    results["5.24.0"]["unlisted"] = ["Qwen5VisionModel"]
    assert problems(results) == [
        "transformers 5.5.4: models that should be patched were left alone: Qwen3_5VisionModel",
        "transformers 5.24.0: towers of this shape are not in the patches' list: Qwen5VisionModel",
    ]


def test_an_official_backend_that_differs_is_a_problem(results):
    results["5.15.0"]["official"]["float32"] = {"convolution": 1e-7, "delivered": 1e-3}
    assert problems(results) == [
        "transformers 5.15.0: float32: the official backend differs by 1e-07 from the encoder",
        "transformers 5.15.0: float32: the patch embedding alone makes a difference of 0.001",
    ]


def test_the_scenes_of_one_release_are_the_scenes_of_all():
    from_scenes = pytest.importorskip("h3te_tests.patch_scenes").SCENES
    assert list(from_scenes) == list(patches_verdict.FAILS) == list(patches_report.ORDER)
    assert TEXT not in patches_verdict.must_fail("5.9.0")
    assert GRIDS not in patches_verdict.must_fail("5.8.1")


def test_the_document_holds_every_release_and_ends_every_scene_well():
    text = patches_report.DOCUMENT.read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    cells = {row[0]: row[1:] for row in rows}
    for scene in patches_report.ORDER:
        wanted = ["**fails** → passes" if scene in patches_verdict.must_fail(v) else "passes" for v in VERSIONS]
        assert cells[scene] == wanted
    assert all(cell.endswith("equal") for name in ("float32", "bf16") for cell in cells[name])
    released = [cells[f"{name}, with the released convolution"] for name in ("float32", "bf16")]
    assert released == [["equal"] * len(VERSIONS)] * 2
    assert "DIFFERS" not in text


def test_a_process_of_another_version_is_explained(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "PROBE", tmp_path / "none.py")
    with pytest.raises(RuntimeError, match=r"test-patches: expected a report on transformers 5\.5\.4 from") as error:
        command.probe("5.5.4", tmp_path)
    assert f"Delete {tmp_path} and run `{transformers_versions.AGAIN}` again." in str(error.value)


def test_the_command_fails_with_a_problem(monkeypatch, tmp_path, results, capsys):
    results["5.5.4"]["models"]["Qwen3VLVisionModel"]["values"] = False
    monkeypatch.setattr(command, "provide", lambda version: None)
    monkeypatch.setattr(command, "probe", lambda version, folder: results[version])
    monkeypatch.setattr(command, "failed_tests", lambda version, folder: [f"{version}: FAILED"])
    monkeypatch.setattr(command, "DOCUMENT", command.layout.COMFY / "tmp" / "patches.md")
    (command.layout.COMFY / "tmp").mkdir(parents=True, exist_ok=True)
    assert command.main() == 1
    said = capsys.readouterr().out
    assert "FAIL  transformers 5.5.4: Qwen3VLVisionModel: a request" in said
    assert "FAIL  5.14.1: FAILED" in said


def test_failing_tests_of_an_older_release_are_named(monkeypatch, tmp_path):
    bad = tmp_path / "test_bad.py"
    bad.write_text("def test_bad():\n    assert 0\n")
    monkeypatch.setattr(command, "TESTS", (str(bad),))
    (failure,) = command.failed_tests("5.5.4", tmp_path)
    assert failure.startswith("transformers 5.5.4: FAILED")
    monkeypatch.setattr(command, "TESTS", ("no such file",))
    (failure,) = command.failed_tests("5.5.4", tmp_path)
    assert failure.startswith("transformers 5.5.4: pytest ended with 4: ")
    assert command.failed_tests("5.24.0", None) == []


def test_the_command_says_what_could_not_be_measured(monkeypatch, capsys):
    def refuse(version):
        raise RuntimeError("no network")

    monkeypatch.setattr(command, "provide", refuse)
    assert command.main() == 1
    assert "no network" in capsys.readouterr().err
