"""What Show Presentation takes for nine pictures of 4000 x 3000, on one core. Prints one line of JSON.

    measure_preview.py --host COMFYUI

`seconds`: by size mode, the node as ComfyUI calls it, its picture drawn and saved for the canvas; `first_seconds`: the
first one in a process, which also reads the tokenizer; `tokens` by size mode.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from budgets_measure import import_host

PICTURES, WIDTH, HEIGHT = 9, 4000, 3000
PROMPT = "A film of <Picture 1> beside <Picture 9>, in the light of <Picture 4>."


def measure() -> dict:
    """ComfyUI is imported."""
    import torch
    from pack import h3te_module

    torch.set_num_threads(1)
    node, modes = h3te_module("nodes.show_presentation").ShowPresentation, h3te_module("encoder.geometry")
    pictures = {f"ref_image_{i}": [torch.rand(1, HEIGHT, WIDTH, 3)] for i in range(PICTURES)}
    given = {"prompt": [PROMPT], "width": [1344], "height": [768], "length": [124], "ref_images": pictures}
    first, seconds, tokens = None, {}, {}
    for mode in (modes.REFERENCE_SIZES[0], *modes.REFERENCE_SIZES):  # the first one is the process' own
        started = time.perf_counter()
        output = node.execute(**given, ref_image_size=[mode])
        seconds[mode] = time.perf_counter() - started
        first = seconds[mode] if first is None else first
        (tokens[mode],) = output.args[2]
    return {"first_seconds": first, "seconds": seconds, "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a preview of nine large pictures.")
    parser.add_argument("--host", type=Path, required=True)
    import_host(parser.parse_args().host)
    print(json.dumps(measure()))


if __name__ == "__main__":
    main()
