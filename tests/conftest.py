"""The pack under the fixed name `h3te` (its folder may have any name), the tiny checkpoint, and the host's folder."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Before torch is imported: at tiny size threads only wait for each other (40 times slower on two busy cores).
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(ROOT / "scripts"))  # last, so that its test.py never stands for Python's own package


def _load_as(name: str, folder: Path, file: str = "__init__.py"):
    spec = importlib.util.spec_from_file_location(name, folder / file, submodule_search_locations=[str(folder)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_load_as("h3te", ROOT)
_load_as("h3te_tests", ROOT / "tests", "conftest_package.py")


@pytest.fixture(scope="session")
def comfy_folder() -> Path:
    """The ComfyUI of the tests: COMFYUI_PATH, or the one that set-up put into the clone."""
    folder = Path(os.environ.get("COMFYUI_PATH") or ROOT / ".comfyui" / "ComfyUI")
    if not (folder / "main.py").exists():
        pytest.fail(f"no ComfyUI at {folder}: run scripts/setup.py, or set COMFYUI_PATH")
    return folder


@pytest.fixture(scope="session")
def tokenizer_folder(comfy_folder: Path) -> Path:
    """vocab.json and merges.txt that every ComfyUI bundles."""
    return comfy_folder / "comfy" / "text_encoders" / "qwen25_tokenizer"


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The goldens' checkpoint in the official layout, without tokenizer files."""
    from h3te_tests.tiny_weights import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "text_encoder")


@pytest.fixture(autouse=True)
def fresh_caches():
    """What one test kept must not answer for another."""
    yield
    caches = sys.modules.get("h3te.nodes.host.caches")
    for stores in (caches.prefix_store, caches._store_in) if caches else ():
        stores.cache_clear()


@pytest.fixture
def load_small(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """`load_encoder` for the tiny checkpoint, in float32; streaming takes its tiny tensors for large ones."""
    import torch
    from h3te.encoder import load_encoder
    from h3te_tests.tiny_weights import TAP_LAYER

    monkeypatch.setattr("h3te.encoder.checkpoint.reader.STREAMED_FROM", 4096)
    return lambda path, **options: load_encoder(
        path, **{"dtype": torch.float32, "tap_layer": TAP_LAYER, "tokenizer": tokenizer_folder, **options}
    )
