"""Which workers this machine's owner trusts, and asking one of them.

Contract: `worker_at(text)` -> RemoteWorker for the value of the options node, or a ValueError that says which line to
add where. Addresses and tokens come from `minimax_h3_text_encoder/workers.txt` below ComfyUI's user directory and from
the environment, read anew each time; never from a workflow. See encoder/parallel/remote/addresses.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import folder_paths

from ...encoder.parallel.remote import (
    ListedWorker,
    RemoteWorker,
    WorkerAddress,
    WorkerUnreachable,
    read_list,
    token_for,
)
from ...encoder.regular import regular_stat

FILE = Path("minimax_h3_text_encoder", "workers.txt")  # below ComfyUI's user directory
LIST, TOKEN = "H3TE_WORKERS", "H3TE_WORKER_TOKEN"  # in the environment
MAX_BYTES = 1_000_000
STATE_SECONDS = 3.0  # asked before every run, so a machine that is off must not delay it much

_known: dict[WorkerAddress, object] = {}  # what each worker last said it was


def list_file() -> Path:
    return Path(folder_paths.get_user_directory()) / FILE


def worker_at(text: str) -> RemoteWorker:
    """Nothing is asked yet. Raises ValueError."""
    address = WorkerAddress.parse(text)
    how = f'add the line "{address}" (and its token, if it has one) to {list_file()}, or to {LIST} in the environment'
    return RemoteWorker(address, token_for(address, _listed(), os.environ.get(TOKEN, "").strip() or None, how))


def worker_state(text: str) -> object:
    """Changes when another encoder is served there; a worker that is away for a while is what it was. Never raises."""
    try:
        worker = worker_at(text)
        health = worker.health(STATE_SECONDS)
    except WorkerUnreachable as error:
        return _known.get(worker.address, str(error))
    except (ValueError, RuntimeError) as error:
        return str(error)
    _known[worker.address] = (health.identity.key, health.tp_size, health.token_limit, health.body_limit)
    return _known[worker.address]


def _listed() -> list[ListedWorker]:
    lines = os.environ.get(LIST, "").replace(";", "\n").splitlines()
    return [*_in_file(list_file()), *read_list(lines, f"{LIST} in the environment")]


def _in_file(path: Path) -> list[ListedWorker]:
    try:
        size = regular_stat(path).st_size
        text = path.read_text(encoding="utf-8-sig") if size <= MAX_BYTES else None
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a list of workers that can be read, got {error}. Correct it.") from error
    if text is None:
        raise ValueError(f"{path}: expected a list of at most {MAX_BYTES:,} bytes, got {size:,}. Correct it.")
    return read_list(text.splitlines(), str(path))
