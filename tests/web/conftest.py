"""A real ComfyUI and a real browser, started once; every test gets pages of its own.

`make test-web` brings both (scripts/test_web.py); `H3TE_CHROMIUM` names another browser. Screenshots go to output/web.
A test fails when a script of ours put an error on the console, asked for anything, or was reached from outside.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import comfy_install
import demo_checkpoint
import given_checkpoint
import layout
import pytest
import web_chromium
from comfy_server import ComfyServer
from web_browser import Browser
from web_page import ComfyPage

PICTURES = layout.ROOT / "assets" / "demo"
OUTPUT = layout.OUTPUT / "web"
MODES = {"canvas": False, "nodes2": True}


@pytest.fixture(scope="session")
def server(comfy_folder: Path) -> Iterator[ComfyServer]:
    """With the demo checkpoint and the demo's pictures."""
    base = OUTPUT / f"base-{comfy_install.host_version(comfy_folder)}"
    comfy_install.prepare_base(base)
    demo_checkpoint.make_folder(
        base / "models" / "text_encoders" / given_checkpoint.DEMO_NAME, given_checkpoint.bundled_tokenizer(comfy_folder)
    )
    for picture in PICTURES.glob("*.jpg"):
        shutil.copy(picture, base / "input")
    with ComfyServer(comfy_folder, base=base, log=layout.LOGS / "web.log") as running:
        yield running
    comfy_install.unlink_packs(base)  # a link back to the clone is no place for tools that walk output/


@pytest.fixture(scope="session")
def browser(server: ComfyServer) -> Iterator[Browser]:
    with Browser(server, web_chromium.provide()) as started:
        yield started


@pytest.fixture(scope="session")
def pictures(server: ComfyServer) -> Path:
    """Where screenshots of this ComfyUI go."""
    return OUTPUT / server.version


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., ComfyPage]]:
    """Opens pages with settings of ComfyUI; what our scripts did wrong in them fails the test."""
    opened: list[ComfyPage] = []

    def open_one(**settings) -> ComfyPage:
        opened.append(browser.page(**settings))
        return opened[-1]

    yield open_one
    wrong = [problem for page in opened for problem in (*page.errors, *page.asked)]
    for page in opened:
        page.close()
    assert wrong == []


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Both ways in which ComfyUI draws nodes."""
    return request.param


@pytest.fixture
def page(open_page, mode: str) -> ComfyPage:
    """An empty canvas, in either mode."""
    opened = open_page(Comfy__VueNodes__Enabled=MODES[mode])
    opened.clear()
    return opened
