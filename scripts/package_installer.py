"""Runs pip in the clone's environment: full log to a file, a few explaining lines when it fails.

The user's own pip configuration (index, proxy, constraints) is honoured. Only the cache is moved into the clone, so
that an interrupted set-up goes on where it stopped; it is deleted once set-up is complete. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import layout

AGAIN = r"python scripts\setup.py" if os.name == "nt" else "make setup"
_SYMPTOMS = (
    (r"No space left on device|Errno 28|not enough space on the disk", "disk"),
    (
        r"NewConnectionError|name resolution|ConnectTimeout|Read timed out|ProxyError|getaddrinfo"
        r"|Network is unreachable|Connection refused|ConnectionResetError",
        "network",
    ),
    (r"SSLError|CERTIFICATE_VERIFY_FAILED", "certificate"),
    (r"THESE PACKAGES DO NOT MATCH THE HASHES|IncompleteRead|BadZipFile|unexpected end of", "download"),
    (r"not a trusted or secure host", "trust"),
    (r"from versions: none", "nothing"),
    (r"requires a different Python|No matching distribution found", "version"),
    (r"Permission denied|Errno 13|Access is denied", "permission"),
)
_ADVICE = {
    "disk": "The disk is full. Free some space",
    "network": "No package index answered. Check the network (and proxy, or PIP_INDEX_URL for a mirror)",
    "certificate": "The index's certificate was not accepted. Point PIP_CERT at your network's certificate bundle",
    "download": "A download was cut short or damaged",
    "trust": "pip passes over an index without https. Name its https address, or set PIP_TRUSTED_HOST to its host",
    "nothing": "The indexes offered no version at all: none answered (network, proxy, mirror), or none has a build for "
    "this Python (3.10 to 3.13 have them). Mend that",
    "version": "The index has no build for this Python and machine. Use Python 3.10 to 3.13, or name an index that has "
    "one (H3TE_TORCH_INDEX for torch)",
    "permission": "A file could not be written. Make sure that you own the clone and that no program of it still runs",
    "other": "Mend what it says",
}


class SetupError(RuntimeError):
    """Set-up cannot go on; the message names the step, what was expected, what came and what to do."""


def pip_log() -> Path:
    """The file that receives everything pip says."""
    layout.LOGS.mkdir(parents=True, exist_ok=True)
    return layout.LOGS / "setup.log"


def pip_environment() -> dict[str, str]:
    """The user's environment with temporary files and pip's cache inside the clone."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER")
    }
    layout.TEMP.mkdir(parents=True, exist_ok=True)
    environment.update({name: str(layout.TEMP) for name in ("TMPDIR", "TEMP", "TMP")})
    if "PIP_NO_CACHE_DIR" not in environment:
        environment["PIP_CACHE_DIR"] = str(layout.PIP_CACHE)
    return environment


def run_pip(arguments: Sequence[str], python: Path | None = None) -> tuple[int, str]:
    """Runs `pip <arguments>`; returns (exit status, its output), and appends both to the log."""
    command = [str(python or layout.venv_python()), "-m", "pip", *arguments]
    done = subprocess.run(
        command,
        env=pip_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    with pip_log().open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n{done.stdout}\n[exit {done.returncode}]\n\n")
    return done.returncode, done.stdout


def diagnose(output: str) -> str:
    """Names what went wrong in pip's output: disk, network, certificate, download, version, permission or other."""
    return next((name for pattern, name in _SYMPTOMS if re.search(pattern, output)), "other")


def explain(step: str, arguments: Sequence[str], output: str, again: str = AGAIN) -> SetupError:
    """The error to raise when pip failed: what was tried, its last lines, the likely cause, what to do."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("WARNING: Retrying")]
    tail = "\n".join(f"    {line[:300]}" for line in lines[-6:]) or "    (pip said nothing)"
    return SetupError(
        f"set-up, {step}: expected pip to install, but `pip {' '.join(arguments)}` failed. Its last lines:\n{tail}\n"
        f"{_ADVICE[diagnose(output)]}, then run `{again}` again: it goes on from here. Full log: {pip_log()}"
    )


def explain_system(error: OSError) -> SetupError:
    """The error to raise when the system refused to write or start something."""
    return SetupError(
        f"set-up: expected to write in {layout.ROOT} and to start programs there, got {type(error).__name__}: {error}. "
        f"{_ADVICE[diagnose(str(error))]}, then run `{AGAIN}` again: it goes on from here."
    )


def install(step: str, arguments: Sequence[str], again: str = AGAIN) -> None:
    """Installs with pip or raises SetupError saying why not, and which command to repeat."""
    command = ["install", "--no-input", "--disable-pip-version-check", *arguments]
    status, output = run_pip(command)
    if status:
        raise explain(step, command, output, again)


def installed(site: Path | None) -> dict[str, str]:
    """Normalised name -> version of what lies in a package folder, from the names of its .dist-info folders."""
    found = {}
    for folder in site.glob("*.dist-info") if site else ():
        name, _, version = folder.name[: -len(".dist-info")].partition("-")
        found[normalise(name)] = version
    return found


def normalise(name: str) -> str:
    """A package name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(requirements: Path) -> dict[str, str]:
    """Normalised name -> requirement line of a requirements file, without comments and options."""
    lines = (line.split("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines())
    found = (re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line) for line in lines if line and not line.startswith("-"))
    return {normalise(match.group()): match.string for match in found if match}


def missing(requirements: Sequence[Path], site: Path | None) -> list[str]:
    """Names that the files want and the package folder lacks."""
    have = installed(site)
    return [name for path in requirements for name in wanted(path) if name not in have]


def drop_cache() -> None:
    """Deletes the clone's pip cache and leftovers of interrupted downloads, once everything is installed."""
    for folder in (layout.PIP_CACHE, *layout.TEMP.glob("pip-*")):
        shutil.rmtree(folder, ignore_errors=True)
