"""Who may import whom, and that importing does no work."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOST = {"comfy", "comfy_api", "comfy_extras", "comfy_execution", "folder_paths", "nodes", "server", "execution"}
ENCODER_MAY = {"aiohttp", "gguf", "numpy", "PIL", "safetensors", "tokenizers", "torch"}
ROOMS = ("encoder", "nodes", "patches")
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
ENCODER = [path for path in FILES if path.is_relative_to(ROOT / "encoder")]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(level, dotted name) of every import anywhere in a file; level counts the dots of a relative one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, f"{node.module or ''}.{alias.name}".lstrip(".")) for alias in node.names)


def absolute(path: Path) -> set[str]:
    """Top-level modules that a file imports absolutely."""
    return {name.split(".")[0] for level, name in imports(path) if level == 0}


def rooms(path: Path) -> set[str]:
    """Rooms of the pack that a file's relative imports lead to."""
    found = set()
    for level, name in imports(path):
        if level:
            base = path.parents[level - 1].relative_to(ROOT).parts
            found.add((*base, *name.split("."))[0])
    return found


@pytest.mark.parametrize("path", ENCODER, ids=name_of)
def test_encoder_imports_no_host_and_no_other_room(path):
    others = absolute(path) - set(sys.stdlib_module_names)
    assert others <= ENCODER_MAY
    assert not others & HOST
    assert rooms(path) <= {"encoder"}


@pytest.mark.parametrize("path", ENCODER, ids=name_of)
def test_encoder_imports_nothing_by_name_at_run_time(path):
    text = path.read_text(encoding="utf-8")
    assert "importlib" not in text
    assert "__import__" not in text


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_modules_of_the_pack_import_each_other_relatively(path):
    assert not absolute(path) & {*ROOMS, "h3te"}


@pytest.mark.parametrize("path", [p for p in FILES if p.is_relative_to(ROOT / "nodes")], ids=name_of)
def test_nodes_reach_comfy_only_through_their_host_room(path):
    if not path.is_relative_to(ROOT / "nodes" / "host"):
        assert not absolute(path) & (HOST - {"comfy_api"})


@pytest.mark.parametrize("path", [p for p in FILES if p.is_relative_to(ROOT / "patches")], ids=name_of)
def test_patches_do_not_know_the_nodes(path):
    assert "nodes" not in rooms(path)


def test_the_root_imports_nothing_at_module_scope():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]


LOAD = """
import importlib.util, sys, threading

def load(name, root={root!r}):
    spec = importlib.util.spec_from_file_location(name, root + "/__init__.py", submodule_search_locations=[root])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
"""


def run(script: str) -> list[str]:
    """What a fresh interpreter prints that runs this script after LOAD."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(root=str(ROOT)) + script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_the_root_brings_in_nothing():
    assert (
        run(
            """
before = set(sys.modules)
load("any name - 1.0")
print(*sorted(set(sys.modules) - before - {"any name - 1.0"}))
"""
        )
        == []
    )


def test_importing_the_encoder_does_no_work():
    # Its dependencies come first: what they do is theirs.
    assert run(
        """
import numpy, PIL.Image, safetensors.torch, tokenizers, torch
import os

opened, before, environment = [], set(sys.modules), dict(os.environ)
threads = threading.active_count()

def audit(event, args):
    if event in ("subprocess.Popen", "os.mkdir", "socket.connect"):
        opened.append(event)
    elif event == "open" and not str(args[0]).endswith((".py", ".pyc")) and ".pyc." not in str(args[0]):
        opened.append(str(args[0]))

sys.addaudithook(audit)
load("pack")
import pack.encoder, pack.encoder.geometry
assert opened == [], opened
assert threading.active_count() == threads
assert dict(os.environ) == environment
assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
assert not torch.cuda.is_initialized()
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""
    ) == ["pack"]


def test_the_pack_works_under_two_names_at_once():
    assert run(
        """
load("first"), load("second pack")
import importlib
first, second = (importlib.import_module(name + ".encoder") for name in ("first", "second pack"))
print(first.Encoder is second.Encoder, first.Encoder.__module__)
"""
    ) == ["False", "first.encoder.model"]
