"""What the pack costs at ComfyUI's start: its import as a custom node, and the list of 50 text encoder files.

Each repeat in a process of its own that has imported ComfyUI already. The 50 files are sparse, of the real sizes,
with the real headers of four formats; the list is made once by reading them and once more from what is remembered.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rounds import GENERATED, median, run, take_turns
from verdict import Target, Verdict, at_most
from wide_files import tests_module

FILES = 50
FORMATS = ("bf16", "nvfp4_awq", "int8_convrot", "fp8")
IMPORT_LIMIT, LISTING_LIMIT = 0.3, 100.0  # seconds, milliseconds
REPEATS = 2  # of each round: they are short


def bench(rounds: int, host: Path) -> Verdict:
    if sys.platform == "win32":
        return Verdict("startup", [], [(None, "sparse files of the real sizes would take real space here")])
    files = make_files(GENERATED / "combo")
    compiled = {"PYTHONDONTWRITEBYTECODE": ""}  # as a ComfyUI runs: what was compiled is kept
    case = partial(run, "measure_startup.py", "--host", host, "--files", files, environment=compiled)
    case()  # Python compiles what it has not compiled before
    found = take_turns({"startup": case}, rounds * REPEATS)["startup"]
    return Verdict("startup", lines(found), targets_of(found), figures(found))


def make_files(folder: Path, count: int = FILES, config: dict | None = None) -> Path:
    """Text encoders with true headers and holes instead of data; a folder that has them is left alone."""
    headers, made = tests_module("packed_headers"), {}
    for i in range(count):
        kind = FORMATS[i % len(FORMATS)]
        path = folder / f"encoder_{i:02}_{kind}.safetensors"
        if path.is_file():
            continue
        if kind not in made:
            made[kind] = headers.PACKED[kind](config or tests_module("checkpoint_files").released_config(layers=50))
        headers.write_packed(path, made[kind])
    return folder


def figures(found: Sequence[dict]) -> dict:
    first = {name: found[0][name] for name in ("modules", "packages", "torch_modules", "threads", "cuda", "files")}
    return {name: median(found, name) for name in ("import_seconds", "first_listing", "cached_listing")} | first


def targets_of(found: Sequence[dict]) -> list[Target]:
    of = figures(found)
    idle = not (of["cuda"] or of["threads"] or of["packages"] or of["torch_modules"])
    return [
        at_most("import of the pack", of["import_seconds"], IMPORT_LIMIT, " s"),
        (idle, "the import initialises nothing: no CUDA, no thread, no package that ComfyUI has not imported"),
        at_most(f"list of {of['files']} files, headers read", of["first_listing"] * 1e3, LISTING_LIMIT, " ms"),
        at_most(f"list of {of['files']} files, again", of["cached_listing"] * 1e3, LISTING_LIMIT, " ms"),
    ]


def lines(found: Sequence[dict]) -> list[str]:
    of = figures(found)
    return [
        f"import {of['import_seconds'] * 1e3:.0f} ms, {of['modules']} modules; packages beside them: "
        + (", ".join(of["packages"]) or "none")
        + f"; torch modules: {', '.join(of['torch_modules']) or 'none'}",
        f"list of {of['files']} files: {of['first_listing'] * 1e3:.1f} ms, again {of['cached_listing'] * 1e3:.2f} ms",
    ]
