"""Checkpoints for tests: tiny ones with weights, and ones of real size that are a true header over an empty file."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from h3te_tests.tiny_weights import shapes, tiny_config, tiny_weight
from safetensors.torch import save_file

INDEX = "model.safetensors.index.json"
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I32": 4,
         "I64": 8}  # fmt: skip
Stored = tuple[str, tuple[int, ...]]  # dtype as safetensors spells it, shape


def released_config(width: int = 5120, layers: int = 64, mlp: int = 25600, heads: int = 64, **vision) -> dict:
    """The released dimensions, or those of a sibling."""
    config = tiny_config(
        hidden_size=width, num_hidden_layers=layers, intermediate_size=mlp, num_attention_heads=heads,
        num_key_value_heads=8,
    )  # fmt: skip
    config["vision_config"] |= {
        "hidden_size": 1152, "intermediate_size": 4304, "depth": 27, "num_heads": 16, "out_hidden_size": width,
        "deepstack_visual_indexes": [8, 16, 24], **vision,
    }  # fmt: skip
    return config


QWEN3_VL_8B = {"width": 4096, "layers": 36, "mlp": 12288, "heads": 32}
QWEN3_VL_2B = {
    "width": 2048, "layers": 28, "mlp": 6144, "heads": 16, "hidden_size": 1024, "intermediate_size": 4096, "depth": 24,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
QWEN3_VL_4B = {
    "width": 2560, "layers": 36, "mlp": 9728, "heads": 32, "hidden_size": 1024, "intermediate_size": 4096, "depth": 24,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip


def comfyui_name(name: str) -> str:
    """A released name as ComfyUI's single files spell it."""
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def bare_name(name: str) -> str:
    return comfyui_name(name).removeprefix("model.")


def stored(config: dict, dtype: str = "BF16", rename: Callable[[str], str] = comfyui_name) -> dict[str, Stored]:
    """Every tensor of a config but lm_head and the final norm, as single files hold them."""
    unneeded = ("lm_head.weight", "model.language_model.norm.weight")
    return {rename(name): (dtype, shape) for name, shape in shapes(config).items() if name not in unneeded}


def write_sparse(
    path: Path,
    tensors: Mapping[str, Stored],
    metadata: dict | None = None,
    short_by: int = 0,
    contents: Mapping[str, bytes] | None = None,
) -> Path:
    """A .safetensors file with a true header and holes instead of data but for `contents`; `short_by` bytes are missing
    at its end."""
    header, offset = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, shape) in tensors.items():
        end = offset + BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    if sys.platform == "win32" and offset > 1e9:
        pytest.skip("a hole of this size takes real space on this system")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, content in (contents or {}).items():
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(content)
        file.truncate(8 + len(text) + offset - short_by)
    return path


def write_sparse_folder(folder: Path, config: dict, shard_bytes: float = 5e9) -> Path:
    """The official layout at any size: decoder first, then what else is there, cut into shards by bytes."""
    known = shapes(config)
    decoder = [name for name in known if name.startswith("model.language_model.")]
    shards: list[dict[str, Stored]] = [{}]
    free = shard_bytes
    for name in [*decoder, *(name for name in known if name not in decoder)]:
        size = 2 * math.prod(known[name])
        if size > free:
            shards.append({})
            free = shard_bytes
        shards[-1][name] = ("BF16", known[name])
        free -= size
    files = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for file, tensors in zip(files, shards, strict=True):
        write_sparse(folder / file, tensors)
    weight_map = {name: file for file, tensors in zip(files, shards, strict=True) for name in tensors}
    write_json(folder / "config.json", config)
    write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})
    return folder


def copy_sparse(source: Path, target: Path) -> Path:
    """A copy of an official folder whose shards have headers and sizes, but holes instead of data."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        with path.open("rb") as file, (target / path.name).open("wb") as copy:
            start = file.read(8)
            header = int.from_bytes(start, "little") if path.suffix == ".safetensors" else -1
            copy.write(start + file.read(header))
            copy.truncate(path.stat().st_size)
    return target


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def write_single(
    path: Path,
    names: Iterable[str],
    *,
    rename: Callable[[str], str] = comfyui_name,
    metadata: dict[str, str] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """A single file with the tiny weights of these released names."""
    known = shapes(tiny_config())
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({rename(n): tiny_weight(n, known[n]).to(dtype) for n in names}, path, metadata=metadata)
    return path


@contextmanager
def opened_files(folder: Path):
    """Names of the files that this machine opens in `folder`, by whichever library: Linux's inotify tells."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    in_open = 0x20
    assert libc.inotify_add_watch(descriptor, os.fsencode(folder), in_open) >= 0
    names: set[str] = set()
    try:
        yield names
        names |= _drain(descriptor)
    finally:
        os.close(descriptor)


def _drain(descriptor: int) -> set[str]:
    try:
        events = os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return set()
    names, at = set(), 0
    while at < len(events):  # wd, mask, cookie, length of the name: four 32-bit words
        length = int.from_bytes(events[at + 12 : at + 16], "little")
        names.add(events[at + 16 : at + 16 + length].rstrip(b"\0").decode())
        at += 16 + length
    return names - {""}
