"""Runs the browser tests (tests/web): the pack in a real ComfyUI's page, in headless Chromium. Arguments go to pytest.

The ComfyUI is the one of set-up, or the one that COMFYUI_PATH names. The first run installs playwright into .venv; a
Chromium or Chrome of this machine is used (H3TE_CHROMIUM names another), else playwright downloads one into the clone.
Screenshots lie in output/web/ afterwards. Minutes.
"""

from __future__ import annotations

import sys

from package_installer import SetupError
from setup import enter
from test import run_pytest

ARGUMENTS = ("-o", "norecursedirs=.*", "-p", "no:xdist", "-v", "tests/web")

if __name__ == "__main__":
    enter()
    import web_chromium

    try:
        print(f"test-web: {web_chromium.provide()}", flush=True)
    except SetupError as error:
        sys.exit(f"\ntest-web: {error}\n")
    sys.exit(run_pytest([*ARGUMENTS, *sys.argv[1:]]))
