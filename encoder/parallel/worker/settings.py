"""How a worker is started: its command line, checked.

Contract: `read_settings(arguments)` -> Settings; argparse says what is wrong with an argument, `SettingsError` what may
not be: an address that other machines reach without a token. The token comes from a file or the environment, never from
the command line, which every user of the machine can read.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...checkpoint.reader import READERS
from ...tap import SELECTED_LAYER
from ...tokens import MAX_TOKENS
from ..group import SIZES
from ..protocol import DTYPES

TOKEN_VARIABLE = "H3TE_WORKER_TOKEN"
DEFAULT_PORT = 8189
SHORTEST_TOKEN = 16
_TOKEN = re.compile(r"[\x21-\x7e]+")
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


class SettingsError(ValueError):
    """A worker is not started like this."""


@dataclass(frozen=True)
class Limits:
    """What clients may take. A body or an answer may stall for `stall_seconds`, and after `grace_seconds` has to have
    moved at `bytes_per_second`; at most `answers` are on their way, then the oldest is given up."""

    body_bytes: int = 1_000_000_000
    tokens: int = 65_536
    queue: int = 8
    answers: int = 8
    stall_seconds: float = 20.0
    grace_seconds: float = 30.0
    bytes_per_second: int = 1_000_000
    connections: int = 256


@dataclass(frozen=True)
class Settings:
    """device: "auto", "cpu", "cuda" or "cuda:N". token: None where none is asked for. rank_timeout: seconds after which
    a rank that gives no sign of life counts as lost."""

    checkpoint: Path
    ranks: int = 1
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    device: str = "auto"
    dtype: str = "bfloat16"
    reader: str = "mmap"
    vision: Path | None = None
    tap_layer: int = SELECTED_LAYER
    prefix_bytes: int = 0
    token: str | None = field(default=None, repr=False)
    limits: Limits = Limits()
    rank_timeout: float = 60.0


def read_settings(arguments: Sequence[str] | None = None) -> Settings:
    """From a command line (None: this process's) and the environment. Raises SettingsError; exits as argparse does."""
    given = _parser().parse_args(arguments)
    limits = Limits(round(given.body_limit * 1e6), given.tokens_limit, given.queue, given.queue)
    settings = Settings(
        given.checkpoint, given.ranks, given.host, given.port, given.device, given.dtype, given.reader, given.vision,
        given.tap_layer, round(given.prefix_gb * 1e9), _token(given.token_file), limits, given.rank_timeout,
    )  # fmt: skip
    _check(settings)
    return settings


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="worker.py",
        description="Serve MiniMax H3's text encoder over HTTP, on one device or several.",
        epilog="docs/remote.md says how ComfyUI is told of it.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="an official text_encoder folder, a .safetensors or a .gguf file")
    add("--ranks", type=int, choices=SIZES, default=1, help="processes that share the encoder, one GPU each")
    add("--host", default="127.0.0.1", help="address to listen on; any other than this machine's own needs a token")
    add("--port", type=_port, default=DEFAULT_PORT, help="%(default)s unless told otherwise")
    add("--device", type=_device, default="auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N")
    add("--dtype", choices=DTYPES, default="bfloat16", help="compute dtype (%(default)s)")
    add(
        "--reader",
        choices=READERS,
        default="mmap",
        help="how weights are read (%(default)s); stream keeps them in the file",
    )
    add("--vision", type=Path, help="second file with the vision tower, for a GGUF")
    add("--tap-layer", type=int, default=SELECTED_LAYER, help=argparse.SUPPRESS)  # of test models
    add(
        "--tokens-limit",
        type=_number(1, MAX_TOKENS),
        default=Limits.tokens,
        help="longest request in tokens (%(default)s)",
    )
    add(
        "--body-limit",
        type=_number(1, 10**6),
        default=Limits.body_bytes / 1e6,
        help="largest request in MB (%(default)g)",
    )
    add("--queue", type=_number(1, 1000), default=Limits.queue, help="requests that may wait (%(default)s)")
    add(
        "--prefix-gb",
        type=_number(0, 10**5, float),
        default=0.0,
        help="memory of each rank for reused beginnings (0: none)",
    )
    add("--token-file", type=Path, help=f"file with the token that clients send; else the variable {TOKEN_VARIABLE}")
    add(
        "--rank-timeout",
        type=_number(2, 86_400, float),
        default=60.0,
        help="seconds after which a silent rank is lost (%(default)g)",
    )
    return parser


def _number(least: float, most: float, kind: type = int):
    def number(text: str):
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a number from {least:,} to {most:,}, got {text}")
        return value

    return number


_port = _number(0, 65_535)


def _device(text: str) -> str:
    if not _DEVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected auto, cpu, cuda or cuda:N, got {text!r}")
    return text


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        return file.read_text(encoding="utf-8-sig").strip()  # editors on Windows begin a file with a mark
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"worker: expected a readable token file, got {file} ({error}). Write the token into it as one line."
        ) from error


def _check(settings: Settings) -> None:
    token = settings.token
    if token is None and not is_loopback(settings.host):
        raise SettingsError(
            f"worker: expected a token to listen on {settings.host}, which other machines reach, got none. Put one "
            f"into a file and pass --token-file, or into the variable {TOKEN_VARIABLE}."
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not _TOKEN.fullmatch(token)):
        raise SettingsError(
            f"worker: expected a token of at least {SHORTEST_TOKEN} printable ASCII characters without spaces, got "
            f'{len(token)} characters. Make one: python -c "import secrets; print(secrets.token_hex(32))".'
        )
    if settings.ranks > 1 and ":" in settings.device:
        raise SettingsError(
            f"worker: expected device cuda or cpu for {settings.ranks} ranks, got {settings.device}. Each rank takes a "
            "GPU of its own: choose which with the variable CUDA_VISIBLE_DEVICES."
        )
