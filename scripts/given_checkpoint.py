"""The checkpoint that a proof runs on: one's own file or folder, or the generated demo weights.

Contract: `given(path, host)` opens what `load_encoder` opens, refuses with the loader's own words what is not H3's
encoder, and finds the tokenizer beside the checkpoint or ComfyUI's bundled one; `demo(host)` makes the demo weights
once.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import comfy_install
import demo_checkpoint
import demo_tokenizer
import layout
from pack import h3te_module

DEMO_NAME = "h3te-demo"


@dataclass(frozen=True)
class Checkpoint:
    """`value`: the loader's combo value; `tokenizer` is ours, `official_tokenizer` transformers'; `is_demo` decides
    which proofs are possible."""

    path: Path
    value: str
    tokenizer: Path
    official_tokenizer: Path
    is_demo: bool


def demo(host: Path, who: str) -> Checkpoint:
    """The demo checkpoint among ComfyUI's models, made when it is not there. `who` begins the printed line."""
    path = comfy_install.base_directory(host) / "models" / "text_encoders" / DEMO_NAME
    if demo_checkpoint.make_folder(path, bundled_tokenizer(host)):
        print(f"{who}: made the demo checkpoint in {path}", flush=True)
    return Checkpoint(path, DEMO_NAME + "/", path, path, True)


def given(path: Path, host: Path, who: str, layers: int | None = None) -> Checkpoint:
    """A checkpoint of one's own, of which `layers` will be used (None: all that H3 needs). Raises ValueError with every
    problem that its headers tell."""
    encoder = h3te_module("encoder")
    report = encoder.inspect_checkpoint(path.expanduser(), encoder.SELECTED_LAYER if layers is None else layers)
    if report.problems:
        raise ValueError("\n".join(report.problems))
    print(f"{who}: {report.path}: {report.describe()}", flush=True)
    tokenizer = report.tokenizer or bundled_tokenizer(host)
    value = report.path.name + ("/" if report.path.is_dir() else "")
    return Checkpoint(report.path, value, tokenizer, official_tokenizer(tokenizer), report.is_demo)


def lone_folder(path: Path) -> Path:
    """A folder that holds nothing but links to `path` and to the vision file of a GGUF, for ComfyUI to search.

    ComfyUI walks every folder below a model folder, along links: beside the checkpoint may lie a whole home directory,
    or this clone, whose ComfyUI links back to it. Where no link can be made, it is the checkpoint's own folder.
    """
    path = path.absolute()
    folder = layout.TEMP / "given" / hashlib.sha256(str(path).encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        comfy_install.link_folder(path, folder / path.name)
        return folder
    for old in folder.iterdir():
        old.unlink()
    return folder if all(_linked(file, folder / file.name) for file in (path, *_companions(path))) else path.parent


def _companions(path: Path) -> list[Path]:
    """The second file of a GGUF, which the loader looks for beside the first."""
    if path.suffix.lower() != ".gguf":
        return []
    needed = h3te_module("encoder").inspect_checkpoint(path).files_needed
    return [file for file in needed if file.name != path.name]


def _linked(file: Path, link: Path) -> bool:
    for make in (link.symlink_to, link.hardlink_to):  # Windows asks for a privilege to make the first
        with suppress(OSError):
            make(file)
            return True
    return False


def official_tokenizer(tokenizer: Path) -> Path:
    """A folder that transformers opens as the released tokenizer: vocabulary of `tokenizer`, released settings."""
    folder = layout.TEMP / "official_tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in demo_tokenizer.tokenizer_files(tokenizer).items():
        (folder / name).write_bytes(content)
    return folder


def bundled_tokenizer(host: Path) -> Path:
    """vocab.json and merges.txt that every ComfyUI bundles."""
    return host / "comfy" / "text_encoders" / "qwen25_tokenizer"
