"""The encoder as a service over HTTP, on one process or on the ranks of torchrun: `worker.py` starts it."""

from .main import main

__all__ = ["main"]
