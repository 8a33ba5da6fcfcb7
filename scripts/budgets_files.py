"""The checkpoints that `make budgets` measures: the demo weights, and weights of the released width, in each format.

Contract: `demo_files(folder)` and `wide_files()` -> {format: what `load_encoder` opens}. Wide ones have WIDE_LAYERS
decoder layers and the whole vision tower: the bf16 folder is the one of `make test-wide` (6.7 GB), the others are
packed from it once (9 GB in .comfyui/wide).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import layout
import stamps

WIDE = layout.COMFY / "wide"
WIDE_LAYERS = 2
PACKED = ("nvfp4_awq", "int8_convrot", "gguf")
_RECIPE = ("packed_files", "packed_kinds", "quantise", "gguf_files", "gguf_plan", "ggml_pack")
SPARE_BYTES = 12e9  # what the files take, and what stays free


def demo_files(folder: Path) -> dict[str, Path]:
    """folder: the demo checkpoint."""
    import demo_packed

    return {"bf16": folder, **demo_packed.make(folder, "budgets")}


def wide_files() -> dict[str, Path]:
    """Raises RuntimeError when the disk is too full, with both numbers."""
    sys.path.append(str(layout.ROOT / "benchmarks"))
    from wide_files import bf16_folder

    folder = bf16_folder()
    return {"bf16": folder, **{kind: _made(folder, kind) for kind in PACKED}}


def _made(folder: Path, kind: str) -> Path:
    target = WIDE / "budgets" / f"wide_{WIDE_LAYERS}_layers_{kind}.{'gguf' if kind == 'gguf' else 'safetensors'}"
    recipe = stamps.fingerprint(WIDE_LAYERS, *(Path(__file__).with_name(f"{name}.py") for name in _RECIPE))
    if not stamps.is_done(folder, kind, recipe) or not target.is_file():
        _require_space()
        print(f"  writing {target.name}", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(folder, target, kind)
        stamps.write(folder, kind, recipe)
    return target


def _write(folder: Path, target: Path, kind: str) -> None:
    if kind == "gguf":
        from gguf_files import write_gguf

        with _shallow(folder) as cut:
            write_gguf(cut, target, "C")
    else:
        from packed_files import write_packed

        write_packed(folder, target, kind, tap=WIDE_LAYERS)


@contextmanager
def _shallow(folder: Path) -> Iterator[Path]:
    """The folder without the layers that are not used, for as long as the block runs: its tensors are not copied."""
    import json

    from formats_files import INDEX

    cut = layout.TEMP / "shallow"
    shutil.rmtree(cut, ignore_errors=True)
    cut.mkdir(parents=True)
    config, index = (json.loads((folder / name).read_text()) for name in ("config.json", INDEX))
    config["text_config"]["num_hidden_layers"] = WIDE_LAYERS
    unused = tuple(f"model.language_model.layers.{i}." for i in range(WIDE_LAYERS, 64))
    kept = {name: str(folder / file) for name, file in index["weight_map"].items() if not name.startswith(unused)}
    (cut / "config.json").write_text(json.dumps(config))
    (cut / INDEX).write_text(json.dumps({**index, "weight_map": kept}))
    try:
        yield cut
    finally:
        shutil.rmtree(cut, ignore_errors=True)


def _require_space() -> None:
    free = shutil.disk_usage(layout.COMFY).free
    if free < SPARE_BYTES:
        raise RuntimeError(
            f"budgets: expected {SPARE_BYTES / 1e9:.0f} GB of free disk for the files of the released width (kept for "
            f"later runs; make clean deletes them), got {free / 1e9:.1f} GB. Free some space, or run it with --demo."
        )
