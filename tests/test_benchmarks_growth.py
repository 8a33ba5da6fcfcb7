"""Growth and start-up measured at tiny size: fits, targets, generated files, and a pack loaded by ComfyUI."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import layout
import pytest

sys.path.append(str(layout.ROOT / "benchmarks"))
import bench_growth
import bench_preview
import bench_startup
import charts
import measure_growth

SIZES = (256, 512, 1024, 2048, 4096)


@pytest.mark.parametrize("relative", [True, False])
def test_fit_finds_the_terms_of_a_curve(relative):
    found = bench_growth.fit(SIZES, [7 + 3e-3 * n + 2e-7 * n**2 for n in SIZES], relative)
    assert found == pytest.approx({"constant": 7, "linear": 3e-3, "quadratic": 2e-7})


def series(square: float | None) -> dict:
    """What a request of each size takes when its memory has a quadratic term of `square` bytes."""
    held = [None if square is None else 4e6 + 1e5 * n + square * n**2 for n in SIZES]
    found = {str(n): [{"tokens": n, "seconds": 1e-3 * n, "bytes": held[i]}] * 3 for i, n in enumerate(SIZES)}
    return bench_growth.of_series(found, found)


@pytest.mark.parametrize(("square", "met"), [(0, True), (0.2, True), (1, False), (4, False), (None, None)])
def test_memory_that_grows_with_the_square_is_a_miss(square, met):
    assert bench_growth.target("text", series(square))[0] is met


def test_growth_is_printed_and_drawn(tmp_path):
    both = {"text": series(0), "picture": series(1)}
    text = "\n".join(bench_growth.lines(both))
    assert "text: bytes = 4e+06 + 1e+05 n" in text and "4096 patches" in text and "n + 1 n^2 beyond" in text
    charts.growth(both, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert "not known" in "\n".join(bench_growth.lines({"text": series(None)}))


@pytest.mark.parametrize(("name", "size", "counted"), [("text", 40, 40), ("picture", 288, 18 * 18)])
def test_one_encode_of_a_size_is_measured(tiny_checkpoint, tokenizer_folder, name, size, counted):
    found = measure_growth.measure(name, size, tiny_checkpoint, 1, tokenizer_folder)
    assert found["tokens"] == counted and found["seconds"] > 0
    assert found["bytes"] is None or found["bytes"] > -1e6  # a tiny encode may end with a page less than it began


@pytest.fixture(scope="module")
def startup(comfy_folder, tmp_path_factory) -> dict:
    """What the script prints for a ComfyUI and eight files."""
    files = bench_startup.make_files(tmp_path_factory.mktemp("files"), 8)
    paths = [str(layout.ROOT / folder) for folder in ("scripts", "benchmarks")]
    command = [sys.executable, str(layout.ROOT / "benchmarks" / "measure_startup.py"), "--host", str(comfy_folder)]
    environment = layout.child_environment(PYTHONPATH=os.pathsep.join(paths))
    done = subprocess.run(
        [*command, "--files", str(files)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_comfyui_loads_the_pack_and_nothing_else_comes_along(startup):
    assert startup["import_seconds"] > 0 and startup["modules"] > 20
    assert startup["packages"] == startup["torch_modules"] == []
    assert startup["threads"] == 0 and startup["cuda"] is False


def test_every_file_is_listed(startup):
    assert startup["files"] == 8 and startup["first_listing"] > 0 and startup["cached_listing"] > 0


def test_generated_encoders_are_recognised(tmp_path):
    from h3te.encoder import inspect_checkpoint

    files = sorted(bench_startup.make_files(tmp_path, 4).iterdir())
    reports = [inspect_checkpoint(file) for file in files]
    assert all(report.is_h3 and not report.problems for report in reports)
    assert files[0].stat().st_size > 50e9 and len({report.describe() for report in reports}) == 4


FOUND = {
    "import_seconds": 0.1, "first_listing": 0.05, "cached_listing": 0.001, "modules": 60, "packages": [],
    "torch_modules": [], "threads": 0, "cuda": False, "files": 50,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, None), ({"import_seconds": 0.31}, 0), ({"packages": ["scipy"]}, 1), ({"cuda": True}, 1),
        ({"threads": 1}, 1), ({"first_listing": 0.11}, 2), ({"cached_listing": 0.11}, 3),
    ],
)  # fmt: skip
def test_startup_targets_are_the_projects_own(change, missed):
    targets = bench_startup.targets_of([FOUND | change])
    assert [met for met, _ in targets] == [i != missed for i in range(4)]
    assert ", ".join(change.get("packages", [])) in bench_startup.lines([FOUND | change])[0]


# preview


def previewed(**seconds) -> dict:
    taken = dict.fromkeys(("match", "max", "official", "none"), 0.4) | seconds
    return {"first_seconds": 0.9, "seconds": taken, "tokens": dict.fromkeys(taken, 5000)}


@pytest.mark.parametrize("slow", ["match", "max", "official", "none", None])
def test_preview_has_a_target_in_every_size_mode(slow):
    found = [previewed(**({slow: 1.1} if slow else {})) for _ in range(3)]
    targets = bench_preview.targets_of(found)
    assert [met for met, _ in targets] == [mode != slow for mode in ("match", "max", "official", "none")]
    assert "the first of a process 0.90 s" in bench_preview.lines(found)[0]
