"""Makes GGUF files as people have them from the official bf16 folder: for tests, demo and benchmarks.

    python scripts/gguf_files.py FOLDER TARGET.gguf --family C --linear Q4_K --embedding Q6_K --vision F16

The families are described in gguf_plan.py; C writes a second file, mmproj-TARGET.gguf.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
from ggml_pack import packed
from gguf_plan import FAMILIES, Planned, Types, plan, text_values, vision_values

INDEX = "model.safetensors.index.json"


def write_gguf(
    source: Path, target: Path, family: str, types: Types | None = None, *, demo: bool = False
) -> tuple[Path, ...]:
    """Convert the official folder `source`; returns the files written. One tensor is in memory at a time."""
    config, files = json.loads((source / "config.json").read_text()), _shards(source)
    model, vision = plan(config, _shapes(files), family, types or Types())
    demo = demo or bool(config.get("h3te_demo"))
    with _Source(files) as read:
        write_tensors(target, model, text_values(config, family, demo), read)
        if not vision:
            return (target,)
        second = target.with_name(f"mmproj-{target.name}")
        write_tensors(second, vision, vision_values(config), read)
    return target, second


def write_header(path: Path, tensors: Iterable[Planned], values: Mapping[str, object]) -> int:
    """A file's header alone; returns the bytes of data that belong behind it."""
    writer, end = _open(path, tensors, values)
    writer.close()
    with path.open("ab") as file:
        file.truncate(-(-file.tell() // 32) * 32)
    return end


def write_tensors(path: Path, tensors: list[Planned], values: Mapping[str, object], read: Callable) -> None:
    writer, _ = _open(path, tensors, values)
    for tensor in tensors:
        writer.write_tensor_data(packed(tensor.rows(read(tensor.source)), tensor.kind))
    writer.close()


def _open(path: Path, tensors: Iterable[Planned], values: Mapping[str, object]) -> tuple[gguf.GGUFWriter, int]:
    """A writer whose header is written, and the bytes of data, padded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer, end = gguf.GGUFWriter(path, ""), 0
    writer.kv_data[0].clear()
    for key, value in _with_shapes(tensors, values):
        _add(writer, key, value)
    for tensor in tensors:
        dtype = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16)}.get(tensor.kind, np.dtype(np.uint8))
        size = int(np.prod(tensor.stored_shape)) * dtype.itemsize
        kind = gguf.GGMLQuantizationType[tensor.kind]
        writer.add_tensor_info(tensor.name, tensor.stored_shape, dtype, size, raw_dtype=kind)
        end += -(-size // writer.data_alignment) * writer.data_alignment
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer, end


def _with_shapes(tensors: Iterable[Planned], values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    yield from values.items()
    for tensor in tensors:
        if tensor.original:
            yield f"comfy.gguf.orig_shape.{tensor.name}", list(tensor.original)


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    kinds = ((bool, writer.add_bool), (int, writer.add_uint32), (float, writer.add_float32), (str, writer.add_string),
             (list, writer.add_array))  # fmt: skip
    next(add for kind, add in kinds if isinstance(value, kind))(key, value)


def _shards(source: Path) -> dict[str, Path]:
    """{released name: file}."""
    index = json.loads((source / INDEX).read_text())["weight_map"]
    return {name: source / file for name, file in index.items()}


def _shapes(files: Mapping[str, Path]) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(set(files.values())):
        with safe_open(file, framework="pt") as opened:
            found |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return {name: found[name] for name in files}


class _Source:
    """Reads tensors as float32; each shard is opened once."""

    def __init__(self, files: Mapping[str, Path]):
        self._files, self._opened = files, {}

    def __enter__(self) -> Callable[[str], np.ndarray]:
        return self._read

    def __exit__(self, *error: object) -> None:
        self._opened.clear()

    def _read(self, name: str) -> np.ndarray:
        from safetensors import safe_open

        file = self._files[name]
        if file not in self._opened:
            self._opened[file] = safe_open(file, framework="pt")
        return self._opened[file].get_tensor(name).float().numpy()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the official folder, with its index")
    parser.add_argument("target", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default="C")
    for kind, default in (("linear", "Q8_0"), ("down", None), ("embedding", "Q8_0"), ("vision", "F16")):
        parser.add_argument(f"--{kind}", default=default, help=f"ggml type, default {default or 'that of --linear'}")
    given = parser.parse_args()
    types = Types(given.linear, given.down, given.embedding, given.vision)
    for path in write_gguf(given.source, given.target, given.family, types):
        print(f"{path}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
