"""Make the demo checkpoint: the released folder layout and depth at a tiny width, with random weights.

    python scripts/demo_checkpoint.py FOLDER --tokenizer COMFYUI/comfy/text_encoders/qwen25_tokenizer
    python scripts/demo_checkpoint.py FILE.safetensors --single-file

FOLDER receives config.json (marked with "h3te_demo": true), 14 shards with their index, and the tokenizer files;
FILE receives what a ComfyUI single file holds, the mark and the config in its metadata. Both hold the same weights
(demo_weights.py). A finished checkpoint is left alone; anything else of ours in that place is replaced in one rename.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import demo_tokenizer
import demo_weights

STAMP = "h3te_demo_stamp.json"
INDEX = "model.safetensors.index.json"
SHARD_METADATA = {"format": "pt"}


def make_folder(folder: Path, tokenizer: Path | None = None) -> bool:
    """Make the demo checkpoint in `folder`; return False if a finished one already stood there.

    `tokenizer`: a folder with vocab.json and merges.txt, copied into the checkpoint; None leaves them out.
    Raises ValueError when `folder` holds anything else, and RuntimeError when the disk is too full.
    """
    config, shards = demo_weights.demo_config(), _shards()
    small = _small_files(config, tokenizer)
    sizes = {name: len(content) for name, content in small.items()}
    sizes |= {name: _file_size(tensors, SHARD_METADATA) for name, tensors in shards.items()}
    if is_complete(folder, sizes):
        return False
    _require_replaceable(folder)
    _require_space(folder.parent, sum(sizes.values()))
    partial = _partial_name(folder)
    try:
        partial.mkdir(parents=True)
        for name, tensors in shards.items():
            demo_weights.write_safetensors(partial / name, tensors, SHARD_METADATA, config)
        for name, content in small.items():
            (partial / name).write_bytes(content)
        (partial / STAMP).write_bytes(_json({"recipe": demo_weights.RECIPE_VERSION, "files": sizes}))
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def make_single_file(file: Path) -> bool:
    """Make the demo checkpoint as one bfloat16 file with ComfyUI's names; return False if it already stood there.

    Raises ValueError when `file` is something else, and RuntimeError when the disk is too full.
    """
    config = demo_weights.demo_config()
    tensors = [
        (short, name, shape)
        for name, shape in demo_weights.tensor_shapes(config).items()
        if (short := demo_weights.single_file_name(name))
    ]
    metadata = _single_file_metadata(config)
    header, size = demo_weights.safetensors_header(tensors, metadata), _file_size(tensors, metadata)
    if file.is_file() and file.stat().st_size == size and _begins_with(file, header):
        return False
    if file.is_dir() or (file.exists() and not _holds_demo_mark(file)):
        raise ValueError(
            f"demo checkpoint: expected no file or an earlier demo checkpoint, got something else at {file}. "
            "Choose another file name; nothing was changed."
        )
    _require_space(file.parent, size)
    partial = _partial_name(file)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        demo_weights.write_safetensors(partial, tensors, metadata, config)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return True


def is_complete(folder: Path, sizes: dict[str, int]) -> bool:
    """Return whether `folder` is stamped by this recipe, holds at least the files of `sizes`, and all are whole."""
    try:
        stamp = json.loads((folder / STAMP).read_bytes())
        found = {name: (folder / name).stat().st_size for name in stamp["files"]}
    except (OSError, ValueError, KeyError, TypeError):  # no stamp, no JSON, another shape, a file gone
        return False
    known = stamp.get("recipe") == demo_weights.RECIPE_VERSION and stamp["files"] == found
    return known and sizes.items() <= found.items()


def _shards() -> dict[str, list[demo_weights.TensorSource]]:
    shards: dict[str, list[demo_weights.TensorSource]] = {}
    for name, shape in demo_weights.tensor_shapes(demo_weights.demo_config()).items():
        shards.setdefault(demo_weights.shard_of(name), []).append((name, name, shape))
    return dict(sorted(shards.items()))


def _small_files(config: dict, tokenizer: Path | None) -> dict[str, bytes]:
    shards = _shards()
    weight_map = {name: shard for shard, tensors in shards.items() for name, _, _ in tensors}
    total = sum(demo_weights.payload_bytes(tensors) for tensors in shards.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    files = {"config.json": _json(config), INDEX: _json(index)}
    return files | (demo_tokenizer.tokenizer_files(tokenizer) if tokenizer else {})


def _single_file_metadata(config: dict) -> dict[str, str]:
    """The config tells of the layers that are in the file, not of those the folder has."""
    text = config["text_config"] | {"num_hidden_layers": demo_weights.TAP_LAYER}
    note = {"h3te_demo": "true", "h3te_demo_note": config["h3te_demo_note"]}
    return {"format": "pt", **note, "config": json.dumps({**config, "text_config": text})}


def _require_replaceable(folder: Path) -> None:
    """Only what this script made is ever deleted: a real model has the same file names."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    config = folder / "config.json"
    if not (folder / STAMP).is_file() and not (config.is_file() and _holds_demo_mark(config)):
        raise ValueError(
            "demo checkpoint: expected no folder, an empty one or an earlier demo checkpoint, got other files in "
            f"{folder}. Choose another folder; nothing was changed."
        )


def _require_space(parent: Path, needed: int) -> None:
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise RuntimeError(
            f"demo checkpoint: expected {needed / 1e6:.0f} MB of free disk, got {free / 1e6:.0f} MB at {parent}. "
            "Free some space and run it again."
        )


def _holds_demo_mark(file: Path) -> bool:
    with file.open("rb") as opened:
        return b'"h3te_demo"' in opened.read(4096)


def _begins_with(file: Path, content: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(content)) == content


def _file_size(tensors: list[demo_weights.TensorSource], metadata: dict[str, str]) -> int:
    return len(demo_weights.safetensors_header(tensors, metadata)) + demo_weights.payload_bytes(tensors)


def _partial_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def _json(value: dict) -> bytes:
    return json.dumps(value, indent=2).encode()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="folder to make, or file with --single-file")
    parser.add_argument("--tokenizer", type=Path, help="folder with vocab.json and merges.txt, e.g. ComfyUI's")
    parser.add_argument("--single-file", action="store_true", help="one file with ComfyUI's names; no tokenizer")
    options = parser.parse_args(arguments)
    if options.single_file and options.tokenizer:
        parser.error("--tokenizer belongs to the folder; a single file holds no tokenizer")
    target = options.target.absolute()
    try:
        made = make_single_file(target) if options.single_file else make_folder(target, options.tokenizer)
    except (OSError, ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"demo checkpoint {'made' if made else 'already there'}: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
