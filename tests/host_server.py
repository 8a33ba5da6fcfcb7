"""A real ComfyUI booted once for all tests that drive one over HTTP.

Contract: `from h3te_tests.host_server import demo_folder, host_server` gives the session fixture `host_server`, a
`ComfyServer` (scripts/): `run`, `queue`, `wait`, `interrupt`, `upload_image`, `object_info`, `events`, `log`. The host
is the one of `comfy_folder`; the base directory is temporary. Linked into it are this pack, under an awkward folder
name, and the conditioning probe of scripts/host_nodes; the loader offers the demo checkpoint as DEMO_VALUE.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.append(str(SCRIPTS))  # last, so that its test.py never stands for Python's own package

import comfy_install  # noqa: E402
from comfy_client import PromptFailed, ValidationError  # noqa: E402
from comfy_server import ComfyServer, ServerError  # noqa: E402

from .demo_host import demo_folder  # noqa: E402

__all__ = [
    "DEMO_VALUE",
    "ComfyServer",
    "PromptFailed",
    "ServerError",
    "ValidationError",
    "demo_folder",
    "host_server",
    "new_server",
]

DEMO_VALUE = "h3te-demo/"  # as the loader's list shows a folder
PACK_NAME = "a pack.of any-name 1"
PROBE = SCRIPTS / "host_nodes" / "conditioning_probe"

_running: list[ComfyServer] = []


def new_server(host: Path, base: Path, packs: Sequence[Path] = (), **options) -> ComfyServer:
    """A server (not yet started) in its own base directory, with further packs linked beside this one."""
    (base / "custom_nodes").mkdir(parents=True, exist_ok=True)
    for pack in packs:
        comfy_install.link_folder(pack, base / "custom_nodes" / pack.name)
    return ComfyServer(host, base=base, log=base / "comfyui.log", quiet=True, **options)


@pytest.fixture(scope="session")
def host_server(
    comfy_folder: Path,
    demo_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ComfyServer]:
    """The shared server. Each module that imports this fixture gets the same process."""
    if _running:
        yield _running[0]
        return
    folder = tmp_path_factory.mktemp("comfyui")
    pack = comfy_install.link_folder(ROOT, folder / PACK_NAME)
    base = folder / "base"
    comfy_install.prepare_base(base, None)
    comfy_install.link_folder(demo_folder, base / "models" / "text_encoders" / DEMO_VALUE.rstrip("/"))
    with new_server(comfy_folder, base, packs=(PROBE,), pack=pack) as server:
        _running.append(server)
        yield server
        _running.clear()
