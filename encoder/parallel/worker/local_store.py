"""Where the ranks of one machine meet: a store that no other machine reaches.

Contract: `register()` makes `BACKEND` a rendezvous of torchrun. Its standard one listens on every address of the
machine, takes keys from whoever connects, and reads what it finds under them with pickle. This one listens on HOST
alone, and its rendezvous is fixed: nothing of it is read. Source: torch.distributed.elastic.rendezvous.
"""

from __future__ import annotations

import socket
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

BACKEND = "h3te-local"
HOST = "127.0.0.1"
SECONDS = 600


class LocalRendezvous(StaticTCPRendezvous):
    def __init__(self, parameters: RendezvousParameters):
        listening = socket.create_server((HOST, 0))
        port = listening.getsockname()[1]
        super().__init__(HOST, port, 0, 1, parameters.run_id, SECONDS)
        options: dict[str, Any] = {"multi_tenant": True, "master_listen_fd": listening.detach()}
        self._store = TCPStore(HOST, port, 1, True, self.timeout, **options)  # where the class it is of looks for one

    def get_backend(self) -> str:
        return BACKEND


def register() -> None:
    rendezvous_handler_registry.register(BACKEND, LocalRendezvous)
