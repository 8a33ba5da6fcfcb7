"""Runs the tests that need a ComfyUI against the one that COMFYUI_PATH names; arguments go to pytest.

Beside those of `make test`, these are the tests for a ComfyUI with H3 nodes of its own (tests/h3_host).
"""

from __future__ import annotations

import os
import sys

from setup import enter
from test import run_pytest

HOST_FIXTURES = frozenset({"comfy", "host_server"})
ALL_FOLDERS = ("-o", "norecursedirs=.* wide web output node_modules")  # pyproject.toml leaves out tests/h3_host as well


class HostTestsOnly:
    """A pytest plugin that leaves out every test which asks for no ComfyUI."""

    def pytest_collection_modifyitems(self, config, items: list) -> None:
        """Keeps the tests whose fixtures include a host."""
        kept = [item for item in items if HOST_FIXTURES.intersection(getattr(item, "fixturenames", ()))]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


if __name__ == "__main__":
    if not os.environ.get("COMFYUI_PATH", "").strip():
        sys.exit(
            "test-host: expected COMFYUI_PATH to name a ComfyUI, got nothing. Run `make test-host "
            "COMFYUI_PATH=/path/to/ComfyUI`; without one, `make test` covers the private ComfyUI inside the clone."
        )
    enter()
    sys.exit(run_pytest([*ALL_FOLDERS, *sys.argv[1:]], [HostTestsOnly()]))
