"""A text encoder in another process, on this machine or another: its address, who may be asked, and the asking.

Contract: no host. `RemoteWorker(address, token)` asks a worker (../worker/) by HTTP; `WorkerAddress.parse` reads what
people write; `token_for` says whether an address may be used and which token goes there.
"""

from .addresses import ListedWorker, UnlistedAddress, WorkerAddress, WorkerUnreachable, read_list, token_for
from .client import RemoteWorker

__all__ = [
    "ListedWorker",
    "RemoteWorker",
    "UnlistedAddress",
    "WorkerAddress",
    "WorkerUnreachable",
    "read_list",
    "token_for",
]
