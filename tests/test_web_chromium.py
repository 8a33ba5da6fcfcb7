"""The browser of `make test-web`: which one is taken, and what is said when there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import package_installer
import pytest
import web_chromium


@pytest.fixture
def no_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a browser, whose playwright would download one to the returned path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("H3TE_CHROMIUM", raising=False)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", "")
    monkeypatch.setattr(web_chromium, "PLACES", ())
    monkeypatch.setattr(web_chromium, "missing", lambda files, site: [])
    monkeypatch.setattr(web_chromium, "_known_to_playwright", lambda: tmp_path / "downloaded")
    return tmp_path / "downloaded"


def program(folder: Path, name: str) -> Path:
    path = folder / (name + (".exe" if sys.platform == "win32" else ""))
    path.write_text("")
    path.chmod(0o755)
    return path


def test_a_named_browser_is_taken(no_browser, monkeypatch, tmp_path):
    named = program(tmp_path, "my-browser")
    program(tmp_path, "chromium")
    monkeypatch.setenv("H3TE_CHROMIUM", str(named))
    assert web_chromium.provide() == named


def test_chromium_on_path_is_taken_before_chrome(no_browser, tmp_path):
    chrome = program(tmp_path, "google-chrome")
    assert web_chromium.provide() == chrome
    chromium = program(tmp_path, "chromium")
    assert web_chromium.provide() == chromium


def test_a_named_browser_that_is_none_is_said(no_browser, monkeypatch):
    monkeypatch.setenv("H3TE_CHROMIUM", "no-such-browser")
    with pytest.raises(package_installer.SetupError, match=r"H3TE_CHROMIUM: expected a program, got no-such-browser\."):
        web_chromium.provide()


def test_without_one_it_is_downloaded_into_the_clone(no_browser, monkeypatch):
    def download(command: list[str]) -> int:
        assert command[1:] == ["-m", "playwright", "install", "chromium"]
        assert os.environ["PLAYWRIGHT_BROWSERS_PATH"] == str(web_chromium.BROWSERS)
        no_browser.write_text("")
        return 0

    monkeypatch.setattr(web_chromium.subprocess, "call", download)
    assert web_chromium.provide() == no_browser


def test_a_download_that_fails_is_said_with_what_to_do(no_browser, monkeypatch):
    monkeypatch.setattr(web_chromium.subprocess, "call", lambda command: 1)
    with pytest.raises(
        package_installer.SetupError,
        match=r"browser: expected playwright to download Chromium, got exit status 1\. Install Chromium or Chrome, or "
        "set H3TE_CHROMIUM",
    ):
        web_chromium.provide()
