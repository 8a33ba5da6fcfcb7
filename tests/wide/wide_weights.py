"""A checkpoint of the released width and few layers: the official folder layout, random bfloat16 weights.

Contract: `make_wide_checkpoint(folder)` writes 6.7 GB once (one tensor in memory at a time) and leaves a finished one
alone. Weights are uniform, seeded by the tensor's name, scaled so that activations stay of order one: what a matrix
adds to the residual stream is small, as in a trained model.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import zlib
from pathlib import Path

import torch
from demo_weights import payload_bytes, safetensors_header, tensor_shapes
from h3te_tests.checkpoint_files import INDEX, released_config, write_json

LAYERS = 4  # DeepStack adds after layers 0, 1, 2; the state after layer 3 has seen all three levels
RECIPE = 1
STAMP = "h3te_wide_stamp.json"
SPARE_BYTES = 2e9  # disk that stays free
_UNNEEDED = ("lm_head.weight", "model.language_model.norm.weight")


def wide_config() -> dict:
    """config.json: released sizes, cut to LAYERS decoder layers."""
    return released_config(layers=LAYERS)


def shards() -> dict[str, dict[str, tuple[int, ...]]]:
    """{file name: {released name: shape}}: the token table, one file a decoder layer, the vision tower."""
    files: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in tensor_shapes(wide_config()).items():
        layer = re.match(r"model\.language_model\.layers\.(\d+)\.", name)
        number = int(layer.group(1)) + 2 if layer else LAYERS + 2 if name.startswith("model.visual.") else 1
        if name not in _UNNEEDED:
            files.setdefault(f"model-{number:05d}-of-{LAYERS + 2:05d}.safetensors", {})[name] = shape
    return dict(sorted(files.items()))


def make_wide_checkpoint(folder: Path) -> Path:
    """Raises RuntimeError when the disk is too full, with both numbers."""
    files = {name: [(n, n, shape) for n, shape in tensors.items()] for name, tensors in shards().items()}
    sizes = {name: len(_header(tensors)) + payload_bytes(tensors) for name, tensors in files.items()}
    if _is_complete(folder, sizes):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _require_space(folder, sum(sizes.values()))
    for name, tensors in files.items():
        print(f"  writing {name}, {sizes[name] / 1e9:.2f} GB", flush=True)
        _write(folder / name, tensors)
    write_json(folder / "config.json", wide_config())
    write_json(folder / INDEX, {"weight_map": {n: name for name, tensors in files.items() for n, _, _ in tensors}})
    write_json(folder / STAMP, {"recipe": RECIPE, "files": sizes})
    return folder


def _is_complete(folder: Path, sizes: dict[str, int]) -> bool:
    try:
        stamp = json.loads((folder / STAMP).read_bytes())
        found = {name: (folder / name).stat().st_size for name in sizes}
    except (OSError, ValueError):
        return False
    return stamp == {"recipe": RECIPE, "files": sizes} and found == sizes


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise RuntimeError(
            f"test-wide: expected {(needed + SPARE_BYTES) / 1e9:.1f} GB of free disk for the wide checkpoint "
            f"({needed / 1e9:.1f} GB, kept for later runs; make clean deletes it), got {free / 1e9:.1f} GB. "
            "Free some space and run it again."
        )


def _header(tensors: list) -> bytes:
    return safetensors_header(tensors, {"format": "pt"})


def _write(path: Path, tensors: list) -> None:
    with path.open("wb") as file:
        file.write(_header(tensors))
        for name, _, shape in tensors:
            file.write(wide_weight(name, shape).view(torch.uint16).numpy().tobytes())


def wide_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """One bfloat16 tensor of the recipe."""
    middle, reach = _range(name, shape)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.empty(shape, dtype=torch.bfloat16).uniform_(middle - reach, middle + reach, generator=generator)


def _range(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if name.endswith(".bias"):
        return 0.0, 0.05
    if re.search(r"norm\d?\.weight$", name):
        return 1.0, 0.1
    if name.endswith(("embed_tokens.weight", "pos_embed.weight")):
        return 0.0, 1.0
    to_residual = re.search(r"(o_proj|down_proj|attn\.proj|blocks\.\d+\.mlp\.linear_fc2)\.weight$", name)
    return 0.0, math.sqrt(3 / math.prod(shape[1:])) * (0.3 if to_residual else 1.0)
