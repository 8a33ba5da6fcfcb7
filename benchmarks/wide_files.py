"""The generated files of the released width that tests/wide makes: benchmarks measure on the same ones."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import layout

WIDE = layout.COMFY / "wide"
PACKED_FILE = WIDE / "packed" / "wide_nvfp4_awq.safetensors"
_TESTS = layout.ROOT / "tests"


def packed_file() -> Path:
    """nvfp4_awq with 16 layers, made when it is not there."""
    return tests_module("wide.wide_packed").make_packed_checkpoint(PACKED_FILE)


def bf16_folder() -> Path:
    """The official layout in bf16 with 4 layers, made when it is not there."""
    folder = tests_module("wide.wide_weights").make_wide_checkpoint(WIDE / "text_encoder")
    complete_index(folder / "model.safetensors.index.json")
    return folder


def complete_index(path: Path) -> None:
    """transformers' from_pretrained wants the key "metadata", as the released index has it."""
    index = json.loads(path.read_bytes())
    if "metadata" not in index:
        path.write_text(json.dumps({"metadata": {}, **index}), encoding="utf-8")


def tests_module(name: str) -> ModuleType:
    """A module of the tests' support, under the package name that the tests use."""
    if "h3te_tests" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "h3te_tests", _TESTS / "conftest_package.py", submodule_search_locations=[str(_TESTS)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["h3te_tests"] = module
        spec.loader.exec_module(module)
    return importlib.import_module(f"h3te_tests.{name}")
