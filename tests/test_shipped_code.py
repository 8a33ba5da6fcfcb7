"""What the code that users get can never do: run what it reads, unpickle, or talk to a network outside its one room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("encoder", "nodes", "patches")
SHIPPED = [
    ROOT / "__init__.py",
    ROOT / "worker.py",
    *(p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))),
]
RUNS = {"eval", "exec", "compile", "__import__", "execfile"}
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "code",
    "codeop",
    "runpy",
    "subprocess",
    "pty",
    "ctypes",
    "cffi",
    "zipimport",
    "zipfile",
    "tarfile",
    "webbrowser",
    "ftplib",
    "smtplib",
    "telnetlib",
    "xmlrpc",
    "requests",
    "httpx",
    "urllib3",
    "huggingface_hub",
    "modelscope",
    "yaml",
    "imp",
}
NETWORK = {"socket", "aiohttp", "http", "urllib", "socketserver", "ssl"}
ATTRIBUTES = {  # of these modules, whatever they are called as
    "torch": {"load", "hub"},
    "jit": {"load"},
    "hub": {"load"},
    "ops": {"load_library"},
    "classes": {"load_library"},
    "np": {"load", "fromfile"},
    "numpy": {"load", "fromfile"},
    "os": {"system", "popen", "execv", "execve", "startfile"},
    "utils": {"load_torch_file"},
    "torch.utils": {"cpp_extension"},
}
ANYWHERE = {
    "from_pretrained",
    "trust_remote_code",
    "allow_pickle",
    "AutoModel",
    "AutoConfig",
    "AutoTokenizer",
    "AutoProcessor",
    "hf_hub_download",
    "snapshot_download",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
    "load_torch_file",
}
BY_NAME = {"patches/qwen3_vl.py", "worker.py"}  # import modules of transformers, and the pack, by their names
REMOTE = "encoder/parallel/"  # the one room that may talk to others


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def forbidden(text: str, name: str = "x.py") -> Iterator[str]:
    """What a file has that it must not have."""
    for node in ast.walk(ast.parse(text)):
        found = _called(node) or _used(node) or _imported(node, name)
        if found:
            yield f"{name}:{node.lineno}: {found}"


def _called(node: ast.AST) -> str | None:
    calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RUNS
    return node.func.id if calls else None


def _used(node: ast.AST) -> str | None:
    if isinstance(node, ast.keyword):
        return node.arg if node.arg in ANYWHERE else None
    if isinstance(node, ast.Name):
        return node.id if node.id in ANYWHERE else None
    if not isinstance(node, ast.Attribute):
        return None
    owner = node.value
    of = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return f"{of}.{node.attr}" if node.attr in ANYWHERE or node.attr in ATTRIBUTES.get(of, ()) else None


def _imported(node: ast.AST, name: str) -> str | None:
    modules = set()
    if isinstance(node, ast.Import):
        modules = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and not node.level:
        modules = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    tops = {module.split(".")[0] for module in modules}
    not_here = set() if name.startswith(REMOTE) else NETWORK
    by_name = {"importlib"} if name not in BY_NAME and not modules <= {"importlib.metadata", "importlib"} else set()
    if isinstance(node, ast.ImportFrom) and modules == {"importlib", "importlib.metadata"}:
        by_name = set()
    wrong = tops & (MODULES | not_here | by_name) or {
        m for m in modules if m in ("torch.hub", "torch.load", "numpy.load")
    }
    return f"import {min(wrong)}" if wrong else None


@pytest.mark.parametrize("path", SHIPPED, ids=named)
def test_shipped_code_runs_nothing_that_it_reads(path):
    assert list(forbidden(path.read_text(encoding="utf-8"), named(path))) == []


WRONG = [
    "eval(x)",
    "exec(x)",
    "compile(x, '', 'exec')",
    "__import__(x)",
    "import pickle",
    "from pickle import loads",
    "import torch\ntorch.load(x)",
    "torch.hub.load(x)",
    "torch.jit.load(x)",
    "from torch import load",
    "np.load(x)",
    "f(x, allow_pickle=False)",
    "f(trust_remote_code=True)",
    "AutoModel.from_pretrained(x)",
    "import socket",
    "from urllib.request import urlopen",
    "import http.client",
    "import aiohttp",
    "import subprocess",
    "os.system(x)",
    "import importlib\nimport importlib.util",
    "distributed.broadcast_object_list(x)",
    "comfy.utils.load_torch_file(x)",
    "import ctypes",
    "from yaml import load",
    "import huggingface_hub",
]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_forbidden_is_found(text):
    assert list(forbidden(text))


@pytest.mark.parametrize("text", ["re.compile(x)", "model.eval()", "self.load(x)", "from importlib import metadata"])
def test_what_only_looks_alike_is_not(text):
    assert list(forbidden(text)) == []


def test_every_file_is_looked_at():
    assert len(SHIPPED) > 150


SCRIPTS = sorted((ROOT / "web").glob("*.js"))
JAVASCRIPT = re.compile(
    r"\beval\s*\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|\bimport\s*\(|"
    r"setTimeout\s*\(\s*[\"'`]|from\s+[\"']https?:|\bfetch\s*\(|XMLHttpRequest|WebSocket|localStorage|\.cookie"
)


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_page_code_makes_no_markup_and_asks_no_network(path):
    assert JAVASCRIPT.findall(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text", ["eval(x)", "a.innerHTML = x", "fetch('/x')", "await import(x)", "import a from 'https://x'"]
)
def test_what_is_forbidden_in_the_page_is_found(text):
    assert JAVASCRIPT.search(text)
