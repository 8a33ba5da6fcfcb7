"""worker.py with a rank that fails where a request says so: its first ids are (MARK, rank, how, sum).

how: 0 raises as if memory ran out in the middle of a layer, 1 kills the process there, 2 raises while weights are read,
3 leaves the sum out, so that ranks are at different places. OTHER_CHECKPOINT in the environment is what all ranks but
the first open.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
MARK = 77


def main() -> int:
    if os.environ.get("RANK", "0") != "0" and "OTHER_CHECKPOINT" in os.environ:
        sys.argv[1] = os.environ["OTHER_CHECKPOINT"]
    sys.path[0] = str(ROOT)  # instead of this folder, whose requests.py is not the package of that name
    import worker as script

    run = script.importlib.import_module

    def patched(name: str):
        if name.endswith(".parallel.worker"):
            _patch(run(f"{name}.engine").Engine, run(f"{name}.control").AgreedParallel)
        return run(name)

    script.importlib.import_module = patched
    script.__file__ = __file__
    return script.main()


def _patch(engine, parallel) -> None:
    encode, add_up, load = engine.encode, parallel.add_up, engine.load
    asked: dict[str, int] = {}

    def encoding(self, request, step):
        ids = request.input_ids[:4].tolist()
        asked.clear()
        if ids[0] == MARK and ids[1] == int(os.environ["RANK"]):
            asked.update(how=ids[2], left=ids[3])
        return encode(self, request, step)

    def loading(self, step):
        if asked.get("how") != 2:
            return load(self, step)
        self.loaded, fill = False, self.encoder.source.fill

        def failing(slots, names):
            asked["left"] -= 1
            if asked["left"] < 0:
                raise RuntimeError("the disk is gone")
            fill(slots, names)

        self.encoder.source.fill = failing
        try:
            return load(self, step)
        finally:
            del self.encoder.source.fill

    def adding(self, total):
        asked["left"] = asked.get("left", 0) - 1
        if asked.get("how") in (0, 1, 3) and asked["left"] == -1:
            if asked["how"] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if asked["how"] == 3:
                return
            raise torch.OutOfMemoryError("out of memory. Tried to allocate 2 GiB")
        add_up(self, total)

    engine.encode, engine.load, parallel.add_up = encoding, loading, adding


if __name__ == "__main__":
    sys.exit(main())
