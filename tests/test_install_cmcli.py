"""ComfyUI-Manager's command line installs the pack from a git address into a ComfyUI, without the network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "cm-cli.exe" if os.name == "nt" else "cm-cli"
# What cm-cli imports of a ComfyUI: enough to stand for one, and quickly copied.
HOST_FILES = ("folder_paths.py", "comfyui_version.py", "requirements.txt", "comfy/options.py", "comfy/cli_args.py")
NOWHERE = "http://127.0.0.1:9"  # nothing listens there: a look-up of the public registry fails at once

LOAD_AS_COMFYUI_DOES = """
import asyncio, importlib.util, sys
sys.path.insert(0, sys.argv[1])
import comfy.options
from comfy.cli_args import args
args.cpu = True
folder = sys.argv[2]
name = folder.replace(".", "_x_")
spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
spec.loader.exec_module(module)
assert not hasattr(module, "NODE_CLASS_MAPPINGS")
async def ids():
    extension = await module.comfy_entrypoint()
    return sorted(node.define_schema().node_id for node in await extension.get_node_list())
print("NODES", *asyncio.run(ids()))
"""


def cm_cli() -> Path:
    """The program beside this interpreter, or in the clone's .venv."""
    folders = (Path(sys.executable).parent, ROOT / ".venv" / "bin", ROOT / ".venv" / "Scripts")
    found = next((folder / PROGRAM for folder in folders if (folder / PROGRAM).is_file()), None)
    if found is None:
        pytest.fail("expected cm-cli in .venv, got none: run scripts/setup.py")
    return found


@pytest.fixture(scope="module")
def git_address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bare clone of this repository's HEAD, under an address that cm-cli accepts."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git program, or this copy of the project is no clone: there is no address to install from")
    bare = tmp_path_factory.mktemp("remote") / "some-pack.git"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(ROOT), str(bare)], check=True, env=environment())
    return f"file://localhost/{bare.as_posix().lstrip('/')}"


@pytest.fixture(scope="module")
def throw_away_host(comfy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like ComfyUI to cm-cli."""
    host = tmp_path_factory.mktemp("manager") / "ComfyUI"
    for name in HOST_FILES:
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(comfy_folder / name, host / name)
    shutil.copytree(comfy_folder / "utils", host / "utils", ignore=shutil.ignore_patterns("__pycache__"))
    (host / "custom_nodes").mkdir()
    return host


def environment(**changes: str) -> dict[str, str]:
    """Ours, with git trusting the clone whoever owns it, and without the tests' own ComfyUI."""
    trust = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    return {**os.environ, **trust, "PYTHONUTF8": "1", **changes}


def manager(*arguments: str, host: Path) -> subprocess.CompletedProcess[str]:
    """cm-cli on a ComfyUI, offline."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
    return subprocess.run(
        [str(cm_cli()), *arguments, "--mode", "local"],
        env=environment(COMFYUI_PATH=str(host), PIP_NO_INDEX="1", NO_PROXY="", no_proxy="", **proxies),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.fixture(scope="module")
def installed_pack(git_address: str, throw_away_host: Path) -> Path:
    """The pack's folder after `cm-cli install`."""
    done = manager("install", git_address, host=throw_away_host)
    assert "Installation was successful" in done.stdout, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return throw_away_host / "custom_nodes" / "some-pack"


def test_cmcli_installs_every_committed_file(installed_pack):
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    missing = [name for name in listed.stdout.splitlines() if not (installed_pack / name).exists()]
    assert listed.stdout.strip() and not missing
    assert not any((installed_pack / name).exists() for name in (".venv", ".comfyui", "output"))


def test_installed_pack_offers_its_nodes(installed_pack, comfy_folder):
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AS_COMFYUI_DOES, str(comfy_folder), str(installed_pack)],
        cwd=installed_pack.parent,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    nodes = done.stdout.rsplit("NODES", 1)[1].split()
    assert {"H3TELoadTextEncoder", "H3TEEncodeReferences", "H3TEEncodeKeyframes", "H3TEEncoderOptions"} <= set(nodes)


def test_uninstalled_it_leaves_what_the_user_asked_for(installed_pack, throw_away_host, git_address):
    """Last in this file: it takes the pack away. Conditioning kept on disk is the user's."""
    kept = throw_away_host / "user" / "minimax_h3_text_encoder" / "conditioning" / "kept.safetensors"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(b"kept")
    before = {path for path in throw_away_host.rglob("*") if installed_pack not in path.parents}
    done = manager("uninstall", "some-pack", host=throw_away_host)
    assert not installed_pack.exists(), f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert kept.read_bytes() == b"kept"
    assert [path for path in before - {installed_pack} if not path.exists()] == []
