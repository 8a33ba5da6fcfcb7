"""What the pack costs a ComfyUI at its start, in a process that has imported ComfyUI already. Prints one line of JSON.

    measure_startup.py --host COMFYUI --files FOLDER

`import_seconds`: ComfyUI's own loading of the pack as a custom node (import, entry point, schema of every node) with
no file to list; then the list of text encoders in FOLDER, `first_listing` and `cached_listing` in seconds. What
importing brought along: `packages` that were not imported before, `torch_modules` among them, `threads`, `cuda`
(initialised).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import layout
from budgets_measure import import_host


def measure(files: Path) -> dict:
    """ComfyUI is imported and its folder stands first on sys.path."""
    import folder_paths

    import nodes

    kinds = folder_paths.folder_names_and_paths["text_encoders"][1]
    with tempfile.TemporaryDirectory() as empty:
        folder_paths.folder_names_and_paths["text_encoders"] = ([empty], kinds)
        found = _imported(nodes)
    paths = next(module for name, module in sys.modules.items() if name.endswith(".nodes.host.paths"))
    folder_paths.folder_names_and_paths["text_encoders"] = ([str(files)], kinds)
    for listing in ("first_listing", "cached_listing"):
        gc.collect()  # what importing left to collect would fall due in whatever comes next
        started = time.perf_counter()
        values = paths.combo_values()
        found[listing] = time.perf_counter() - started
    return found | {"files": len(values)}


def _imported(nodes) -> dict:
    import torch

    before, threads = set(sys.modules), threading.active_count()
    started = time.perf_counter()
    done = asyncio.run(nodes.load_custom_node(str(layout.ROOT)))
    seconds = time.perf_counter() - started
    if not done or "H3TELoadTextEncoder" not in nodes.NODE_CLASS_MAPPINGS:
        raise RuntimeError("expected ComfyUI to load the pack, got its refusal: see its log above")
    new = [name for name in sys.modules if name not in before]
    return {
        "import_seconds": seconds,
        "modules": len(new),
        "packages": sorted(_foreign(new)),
        "torch_modules": sorted(name for name in new if name.split(".")[0] == "torch"),
        "threads": threading.active_count() - threads,
        "cuda": torch.cuda.is_initialized(),
    }


def _foreign(names: list[str]) -> set[str]:
    """Top-level names that belong neither to the pack nor to Python."""
    pack = str(layout.ROOT).replace(".", "_x_")
    tops = {name.split(".")[0] for name in names if not name.startswith(pack)}
    return {top for top in tops if top not in sys.stdlib_module_names and top != pack.split(".")[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the pack costs a ComfyUI at its start.")
    parser.add_argument("--host", type=Path, required=True)
    parser.add_argument("--files", type=Path, required=True)
    parsed = parser.parse_args()
    import_host(parsed.host)
    import comfy.sd  # noqa: F401

    with suppress(ImportError):  # what ComfyUI itself imports with the first pack, whichever that is
        from comfy_config import config_parser

        config_parser.extract_node_configuration(str(layout.ROOT))
    print(json.dumps(measure(parsed.files)))


if __name__ == "__main__":
    main()
