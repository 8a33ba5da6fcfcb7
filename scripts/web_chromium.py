"""Finds a Chromium for the browser tests, and playwright, which drives it.

Contract: `provide()` -> the executable: H3TE_CHROMIUM, else chromium or Chrome on PATH or where systems put it, else
the one that playwright downloads into .comfyui/browsers (170 MB). Raises SetupError that says what to do. Nothing is
written outside the clone. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import layout
from package_installer import SetupError, drop_cache, install, missing

PACKAGES = layout.REQUIREMENTS / "web.txt"
BROWSERS = layout.COMFY / "browsers"
AGAIN = "python scripts/test_web.py"
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Google/Chrome/Application/chrome.exe",
)
OTHERWISE = "Install Chromium or Chrome, or set H3TE_CHROMIUM to its executable"


def provide() -> Path:
    """What is lacking is installed or downloaded first."""
    if missing([PACKAGES], layout.site_packages()):
        print("  installing playwright ... ", end="", flush=True)
        install("playwright", ["-r", str(PACKAGES)], again=AGAIN)
        drop_cache()
        print("done", flush=True)
    return found() or _downloaded()


def found() -> Path | None:
    """A Chromium of this system. Raises SetupError when H3TE_CHROMIUM names none."""
    if named := os.environ.get("H3TE_CHROMIUM", "").strip():
        if not shutil.which(named):
            raise SetupError(f"H3TE_CHROMIUM: expected a program, got {named}. Correct it, or unset it.")
        return Path(shutil.which(named))
    on_path = (shutil.which(command) for command in COMMANDS)
    placed = (place for place in PLACES if Path(place).is_file())
    return next((Path(path) for path in (*on_path, *placed) if path), None)


def _downloaded() -> Path:
    os.environ["PLAYWRIGHT_BROWSERS_PATH"] = str(BROWSERS)
    if not (path := _known_to_playwright()).is_file():
        print(f"  no Chromium here: playwright downloads one into {BROWSERS.relative_to(layout.ROOT)}", flush=True)
        status = subprocess.call([sys.executable, "-m", "playwright", "install", "chromium"])
        if status or not path.is_file():
            raise SetupError(
                f"browser: expected playwright to download Chromium, got exit status {status}. {OTHERWISE}, then run "
                f"`{AGAIN}` again."
            )
    return path


def _known_to_playwright() -> Path:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        return Path(driver.chromium.executable_path)
