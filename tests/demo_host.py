"""The demo checkpoint inside ComfyUI's model folders, for tests of the loader and encode nodes.

Contract: `text_encoders` gives a folder that stands in for models/text_encoders while the test runs; `demo_folder` and
`demo_file` are the demo checkpoint as released folder and as single file, made once per session.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def _demo_checkpoint():
    """scripts/demo_checkpoint.py, whose siblings are imported by plain name."""
    if "demo_checkpoint" not in sys.modules:
        sys.path.append(str(SCRIPTS))
        try:
            importlib.import_module("demo_checkpoint")
        finally:
            sys.path.remove(str(SCRIPTS))
    return sys.modules["demo_checkpoint"]


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "MiniMax-H3-demo"
    _demo_checkpoint().make_folder(folder, tokenizer_folder)
    return folder


@pytest.fixture(scope="session")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("demo") / "qwen3vl_32b_minimax_h3_demo.safetensors"
    _demo_checkpoint().make_single_file(file)
    return file


@pytest.fixture
def text_encoders(comfy: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty models/text_encoders beside an empty legacy models/clip."""
    folders = [tmp_path / "text_encoders", tmp_path / "clip"]
    for folder in folders:
        folder.mkdir()
    known = comfy.folder_paths.folder_names_and_paths
    monkeypatch.setitem(known, "text_encoders", ([str(folder) for folder in folders], known["text_encoders"][1]))
    monkeypatch.setattr(comfy.folder_paths, "filename_list_cache", {})
    yield folders[0]


def place(source: Path, target: Path) -> Path:
    """Link a checkpoint into a model folder, shards one by one, so that the folder is a folder."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
        return target
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).symlink_to(file)
    return target
