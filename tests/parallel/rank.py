"""One rank of the tests' pool: takes jobs as JSON lines, does them with the others, and leaves tensors in a file.

    python rank.py RANK SIZE STORE_FILE SECONDS

Contract: each line on standard input is {"job", "size", "arguments", "out"}; `size` ranks of the pool form the group,
the others stand outside it. The answer is one line that begins with MARK: {} or {"error"}. Whatever waits for another
rank longer than SECONDS is an error.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

MARK = "@rank "  # gloo writes to standard output too


def main(rank: int, size: int, store: str, seconds: float) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import conftest  # noqa: F401 (the pack as h3te, the tests as h3te_tests)
    import torch.distributed as dist

    timeout = timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    groups = {n: dist.new_group(list(range(n)), timeout=timeout) for n in (1, 2, 3, 4) if n <= size}
    _answer({})
    for line in sys.stdin:
        _answer(_done(json.loads(line), groups))


def _done(request: dict, groups: dict) -> dict:
    from h3te_tests.parallel import jobs
    from safetensors.torch import save_file

    try:
        found = getattr(jobs, request["job"])(groups[request["size"]], **request["arguments"])
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, request["out"])
    except Exception as error:  # noqa: BLE001 (told to the test, which decides)
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def _answer(answer: dict) -> None:
    print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
