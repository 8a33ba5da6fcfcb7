"""Set-up with its folders moved to an empty place, and a pip that only records: fixtures `empty_clone` and `pip`."""

from __future__ import annotations

from types import SimpleNamespace

import comfy_install
import layout
import package_installer
import pytest
import torch_install


@pytest.fixture(name="empty_clone")
def moved_folders(tmp_path, monkeypatch):
    """Set-up's folders, moved to an empty place."""
    places = {"VENV": ".venv", "COMFY": ".comfyui", "PYPI_HOST": ".comfyui/ComfyUI", "FOREIGN_BASE": ".comfyui/base"}
    places |= {"TEMP": ".comfyui/tmp", "PIP_CACHE": ".comfyui/pip-cache", "OUTPUT": "output", "LOGS": "output/logs"}
    for name, place in places.items():
        monkeypatch.setattr(layout, name, tmp_path / place)
    for name in ("COMFYUI_PATH", "H3TE_TORCH_INDEX", "PIP_NO_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(name="pip")
def recording_pip(monkeypatch, empty_clone):
    """A pip that records its arguments and answers what `pip.answers` says, in order, then success."""
    fake = SimpleNamespace(calls=[], answers=[])

    def run(arguments, python=None):
        fake.calls.append(list(arguments))
        return fake.answers.pop(0) if fake.answers else (0, "")

    for module in (package_installer, torch_install, comfy_install):
        monkeypatch.setattr(module, "run_pip", run)
    return fake
