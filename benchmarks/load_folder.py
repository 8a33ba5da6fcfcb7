"""A folder laid out as the released one (64 layers, 14 shards and their index), a quarter as wide: 4.8 GB.

Contract: `make_load_folder(folder)` writes it once and leaves a finished one alone. What loading 50 layers does not
need stands where the release has it: layers 50..63, the final norm, lm_head. All tensors repeat one block of values:
loading does not look at them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import demo_weights
from disk_space import require_space

STAMP = "h3te_bench_stamp.json"
INDEX = "model.safetensors.index.json"
RECIPE = 1


def config() -> dict:
    """Released keys and depths, every width a quarter."""
    found = demo_weights.demo_config()
    found["text_config"] |= {
        "hidden_size": 1280, "intermediate_size": 6400, "num_attention_heads": 16, "num_key_value_heads": 2,
    }  # fmt: skip
    found["vision_config"] |= {
        "hidden_size": 288, "intermediate_size": 1076, "num_heads": 4, "out_hidden_size": 1280,
    }  # fmt: skip
    return found


def make_load_folder(folder: Path) -> Path:
    """Raises RuntimeError when the disk is too full, with both numbers."""
    shards: dict[str, list[demo_weights.TensorSource]] = {}
    for name, shape in demo_weights.tensor_shapes(config()).items():
        shards.setdefault(demo_weights.shard_of(name), []).append((name, name, shape))
    sizes = {file: demo_weights.payload_bytes(tensors) for file, tensors in shards.items()}
    if _is_complete(folder, sizes):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    require_space(folder, sum(sizes.values()), "bench", "folder")
    print(f"  writing a folder of 14 shards, {sum(sizes.values()) / 1e9:.1f} GB", flush=True)
    block = demo_weights.weight("bench.block.weight", (4096, 4096), config()).tobytes()
    for file, tensors in shards.items():
        _write(folder / file, tensors, sizes[file], block)
    weight_map = {name: file for file, tensors in shards.items() for name, _, _ in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config(), indent=2), encoding="utf-8")
    (folder / STAMP).write_text(json.dumps({"recipe": RECIPE, "payload": sizes}), encoding="utf-8")
    return folder


def _write(path: Path, tensors: list[demo_weights.TensorSource], size: int, block: bytes) -> None:
    with path.open("wb") as file:
        file.write(demo_weights.safetensors_header(tensors, {"format": "pt"}))
        while size > 0:
            size -= file.write(block[:size])


def _is_complete(folder: Path, sizes: dict[str, int]) -> bool:
    try:
        stamp = json.loads((folder / STAMP).read_bytes())
    except (OSError, ValueError):
        return False
    return stamp == {"recipe": RECIPE, "payload": sizes} and all((folder / name).is_file() for name in sizes)
