"""A small checkpoint with every format's own needs, and the same weights in every format of formats_list.py.

Contract: `make_all(folder)` -> {name of a format: what `load_encoder` opens}, written once. The widths are whole blocks
of every format (256 columns a K-quant block and a convrot group, 128 x 128 a block of fp8), the vision tower has its 27
blocks at a quarter of the released width, and the four decoder layers that are used see all three DeepStack levels.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import demo_weights
import layout
import stamps
from formats_list import FORMATS, Format

FOLDER = layout.COMFY / "formats"
LAYERS = 4  # used; the folder holds one more, to be left unread
_RECIPE = (
    "formats_files", "demo_weights", "packed_files", "packed_kinds", "quantise", "gguf_files", "gguf_plan", "ggml_pack",
)  # fmt: skip
_STAMP = "formats"
INDEX = "model.safetensors.index.json"


def config() -> dict:
    """config.json: the demo's mark and keys with these widths."""
    found = demo_weights.demo_config()
    found["text_config"] |= {
        "hidden_size": 256, "intermediate_size": 1280, "num_hidden_layers": LAYERS + 1, "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }  # fmt: skip
    found["vision_config"] |= {
        "hidden_size": 288, "intermediate_size": 1076, "num_heads": 4, "out_hidden_size": 256,
    }  # fmt: skip
    return found


def make_all(folder: Path = FOLDER) -> dict[str, Path]:
    """Everything is written anew when one of the writing modules has changed."""
    modules = (Path(__file__).with_name(f"{name}.py") for name in _RECIPE)
    recipe = stamps.fingerprint(*modules, *((f.name, f.kind, f.plain, f.family, f.types) for f in FORMATS))
    paths = {format.name: path_of(format, folder) for format in FORMATS}
    if not stamps.is_done(folder, _STAMP, recipe) or not all(path.exists() for path in paths.values()):
        shutil.rmtree(folder, ignore_errors=True)
        _make_source(source(folder))
        for format in FORMATS:
            print(f"  writing {format.name}", flush=True)
            write(format, folder)
        stamps.write(folder, _STAMP, recipe)
    return paths


def source(folder: Path) -> Path:
    return folder / "text_encoder"


def path_of(format: Format, folder: Path) -> Path:
    """Each in a folder of its own: a GGUF file's vision file is looked for beside it."""
    if not (format.kind or format.plain or format.family):
        return source(folder)
    own = folder / "".join(c if c.isalnum() else "_" for c in format.name)
    if format.kind == "hf_block_fp8":
        return own
    return own / f"qwen3vl_h3te_demo.{'gguf' if format.family else 'safetensors'}"


def write(format: Format, folder: Path) -> None:
    path, origin = path_of(format, folder), source(folder)
    if format.plain:
        _write_plain(path_of(next(f for f in FORMATS if f.kind == "bf16"), folder), path, format.plain)
    elif format.kind:
        from packed_files import write_packed

        write_packed(origin, path, format.kind, tap=LAYERS)
    elif format.family:
        from gguf_files import Types, write_gguf

        write_gguf(origin, path, format.family, Types(*format.types))


def _write_plain(bf16: Path, path: Path, dtype: str) -> None:
    """The single bf16 file in another type."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(bf16, "pt") as opened:
        metadata = opened.metadata()
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(bf16).items()}
    save_file(tensors, path, metadata=metadata)


def _make_source(folder: Path) -> None:
    """The official layout: two shards of decoder and vision, and one that nothing needs."""
    folder.mkdir(parents=True)
    shards: dict[str, list[demo_weights.TensorSource]] = {}
    for name, shape in demo_weights.tensor_shapes(config()).items():
        if name != "lm_head.weight":
            shards.setdefault(_shard_of(name), []).append((name, name, shape))
    for file, tensors in shards.items():
        demo_weights.write_safetensors(folder / file, tensors, {"format": "pt"}, config())
    weight_map = {name: file for file, tensors in shards.items() for name, _, _ in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config(), indent=2), encoding="utf-8")


def _shard_of(name: str) -> str:
    unneeded = f".layers.{LAYERS}." in name or name == "model.language_model.norm.weight"
    number = 3 if unneeded else 2 if name.startswith("model.visual.") else 1
    return f"model-{number:05d}-of-00003.safetensors"
