"""The demo checkpoint once more, as the files that people have: packed, beside the demo folder among ComfyUI's models.

Contract: `make(folder, who)` -> {kind: file}, written from the demo folder when they are not there or not by this
recipe. The names are those of the real files with a mark; a file in that place without the mark inside is not touched.
`broken(folder)` gives files that must be refused, and deletes them again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import demo_weights
import layout
import stamps

MARK = "h3te-demo"
FILES = {
    "nvfp4_awq": f"qwen3vl_32b_minimax_h3_nvfp4_awq_{MARK}.safetensors",
    "int8_convrot": f"qwen3vl_32b_minimax_h3_int8_convrot_{MARK}.safetensors",
    "gguf": f"qwen3vl_32b_minimax_h3_Q8_0_{MARK}.gguf",
}
VISION_PREFIX = "mmproj-"  # llama.cpp's converters put the vision tower into a second file
_RECIPE = ("demo_packed", "packed_files", "packed_kinds", "quantise", "gguf_files", "gguf_plan", "ggml_pack")


def make(folder: Path, who: str) -> dict[str, Path]:
    """The packed files beside the demo folder `folder`. Raises ValueError for a file that is somebody else's."""
    return {kind: _made(folder, kind, who) for kind in FILES}


def _made(folder: Path, kind: str, who: str) -> Path:
    file = folder.with_name(FILES[kind])
    if not stamps.is_done(folder, kind, _fingerprint(file)):
        _require_replaceable(file)
        for written in _write(folder, kind):
            written.replace(folder.with_name(written.name))
        stamps.write(folder, kind, _fingerprint(file))
        print(f"{who}: made the demo checkpoint as {file.name}", flush=True)
    return file


def _write(folder: Path, kind: str) -> list[Path]:
    """Written aside: ComfyUI never finds half a file."""
    aside = layout.TEMP / "packed"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    if kind == "gguf":
        from gguf_files import write_gguf

        return list(write_gguf(folder, aside / FILES[kind], "C"))
    from packed_files import write_packed

    return [write_packed(folder, aside / FILES[kind], kind)]


def _fingerprint(file: Path) -> str:
    """Of the recipe and of the files as they lie there: changes when one is replaced or cut short."""
    found = [path.stat() for path in (file, file.with_name(VISION_PREFIX + file.name)) if path.is_file()]
    recipe = [Path(__file__).with_name(f"{name}.py") for name in _RECIPE]
    return stamps.fingerprint(demo_weights.RECIPE_VERSION, *recipe, *((s.st_size, s.st_mtime_ns) for s in found))


def _require_replaceable(file: Path) -> None:
    if not file.exists():
        return
    with file.open("rb") as opened:
        if b"h3te_demo" in opened.read(4096):
            return
    raise ValueError(
        f"demo checkpoint: expected no file or an earlier demo checkpoint, got something else at {file}. "
        "Move it away; nothing was changed."
    )


@contextmanager
def broken(folder: Path, whole: Path) -> Iterator[dict[str, Path]]:
    """{"truncated": a copy of `whole` that ends early, "mxfp8": a format that is not served}, while the block runs."""
    from packed_files import write_packed

    files = {what: folder.with_name(f"{MARK}_{what}.safetensors") for what in ("truncated", "mxfp8")}
    try:
        shutil.copyfile(whole, files["truncated"])
        with files["truncated"].open("r+b") as opened:
            opened.truncate(whole.stat().st_size * 2 // 3)
        write_packed(folder, files["mxfp8"], "mxfp8")
        yield files
    finally:
        for file in files.values():
            file.unlink(missing_ok=True)
