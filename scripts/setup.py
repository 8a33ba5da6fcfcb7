"""Makes everything the other commands need, inside the clone: `.venv`, torch, packages, a ComfyUI with the pack in it.

`python scripts/setup.py` (or `make setup`) prints one line per step that has work to do; the second run does nothing.
Other scripts call `enter()`, which sets up and continues in `.venv`. Standard library only; Windows, macOS, Linux.
Environment: COMFYUI_PATH (use this ComfyUI instead), H3TE_TORCH_INDEX (wheel index for torch).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import comfy_install
import layout
import preflight
import stamps
import torch_install
from package_installer import SetupError, drop_cache, explain_system, install, missing, pip_log

_DEV = layout.ROOT / "requirements-dev.txt"
_NO_DEPS = layout.REQUIREMENTS / "no_deps.txt"
_PACKAGE_LISTS = (_DEV, comfy_install.HOST_PACKAGES)


def _say(text: str) -> None:
    print(text, flush=True)


class Step:
    """One line of set-up: what it makes, how to see that it is made, how to make it."""

    def __init__(self, what: str, folder: Path, done: Callable[[], bool], make: Callable[[], None], fingerprint: str):
        self.what, self.folder, self._done, self._make, self._fingerprint = what, folder, done, make, fingerprint

    def is_done(self) -> bool:
        """Whether the step was completed with the present lists and its result is still there."""
        return stamps.is_done(self.folder, self.what, self._fingerprint) and self._done()

    def run(self) -> None:
        """Makes it and records that."""
        started = time.monotonic()
        print(f"set-up: {self.what} ... ", end="", flush=True)
        self._make()
        stamps.write(self.folder, self.what, self._fingerprint)
        _say(f"{time.monotonic() - started:.0f} s")


def _venv_works() -> bool:
    python = layout.venv_python()
    return python.exists() and (layout.site_packages() or layout.ROOT / "absent").joinpath("pip").is_dir()


def make_venv() -> None:
    """Creates .venv afresh; a half-made one, a moved one, or one of another Python is deleted first."""
    preflight.check_venv_module()
    shutil.rmtree(layout.VENV, ignore_errors=True)
    base = getattr(sys, "_base_executable", sys.executable)  # when the .venv that was deleted runs this
    command = [base, "-m", "venv", str(layout.VENV)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode or not _venv_works():
        raise SetupError(
            f"set-up, virtual environment: expected {layout.VENV} to be made, and `{' '.join(command)}` failed:\n"
            f"{(done.stdout + done.stderr)[-600:]}\nRun that command to see more, or use another Python: PYTHON=/path."
        )


def _has_packages(*lists: Path) -> Callable[[], bool]:
    return lambda: not missing(lists, layout.site_packages())


def _make_packages() -> None:
    lists = [argument for path in _PACKAGE_LISTS for argument in ("-r", str(path))]
    install("packages", ["-c", str(torch_install.TORCH), *lists])
    install("packages", ["--no-deps", "-r", str(_NO_DEPS)])


def _make_torch(gpu: bool) -> Callable[[], None]:
    def make() -> None:
        preflight.check_space(preflight.SPACE_CUDA_GB if gpu else preflight.SPACE_CPU_GB, "torch and packages")
        torch_install.install_torch(gpu, lambda text: print(f"\n  {text} ", end="", flush=True))

    return make


def _make_host() -> None:
    preflight.check_space(preflight.SPACE_HOST_GB, "ComfyUI")
    comfy_install.unpack_host()


def steps(host: Path | None) -> list[Step]:
    """Every step in order; `host` is the ComfyUI that COMFYUI_PATH names, or None for the private one."""
    gpu = torch_install.has_nvidia_gpu()
    venv, python = layout.VENV, stamps.environment_fingerprint(layout.VENV)
    torch_key = stamps.fingerprint(torch_install.TORCH, gpu, os.environ.get("H3TE_TORCH_INDEX", ""))
    companions_key = stamps.fingerprint(torch_install.COMPANIONS, torch_key)
    packages_key = stamps.fingerprint(*_PACKAGE_LISTS, _NO_DEPS)
    build = "for the GPU" if gpu else "for the CPU"
    found = [
        Step("virtual environment", venv, _venv_works, make_venv, python),
        Step(f"torch {build}", venv, _has_packages(torch_install.TORCH), _make_torch(gpu), torch_key),
        Step("packages", venv, _has_packages(*_PACKAGE_LISTS, _NO_DEPS), _make_packages, packages_key),
        Step(
            "torchvision and torchaudio",
            venv,
            _has_packages(torch_install.COMPANIONS),
            torch_install.install_companions,
            companions_key,
        ),
    ]
    return [*found, _host_step(host)]


def _host_step(host: Path | None) -> Step:
    if host is None:
        main = layout.PYPI_HOST / "main.py"
        return Step("ComfyUI", layout.PYPI_HOST, main.is_file, _make_host, stamps.fingerprint(comfy_install.HOST))
    listed = host / "requirements.txt"
    key = stamps.fingerprint(listed if listed.is_file() else "")
    return Step(
        f"packages of ComfyUI {comfy_install.host_version(host)}",
        layout.VENV,
        lambda: comfy_install.foreign_is_ready(host),
        lambda: comfy_install.install_foreign(host),
        key,
    )


def _lock_on_windows(file: int) -> None:
    import msvcrt

    while True:
        try:
            return msvcrt.locking(file, msvcrt.LK_LOCK, 1)
        except OSError:  # it gives up after ten seconds
            continue


@contextmanager
def _only_one():
    """Lets one set-up of this clone run at a time; the system releases the lock when the process ends."""
    layout.COMFY.mkdir(exist_ok=True)
    with (layout.COMFY / "set-up.lock").open("a+") as lock:
        if os.name == "nt":
            _lock_on_windows(lock.fileno())
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_up() -> Path:
    """Does what is still to do; returns the ComfyUI folder to use. Raises SetupError with an explanation."""
    preflight.check_python()
    host = preflight.foreign_host()
    with _only_one():
        started, worked = time.monotonic(), False
        for step in steps(host):
            if not step.is_done():
                step.run()
                worked = True
        chosen = host or layout.PYPI_HOST
        comfy_install.prepare_base(comfy_install.base_directory(chosen))
        if worked:
            drop_cache()
        spent, version = time.monotonic() - started, comfy_install.host_version(chosen)
        _say(f"set-up: ready in {spent:.1f} s, ComfyUI {version} in {chosen}")
    return chosen


def enter() -> Path:
    """Sets up, then makes sure that the calling script runs in .venv; returns the ComfyUI folder to use.

    In any other interpreter it runs the script again in .venv and exits with its status. A script that another one
    started finds everything set up (H3TE_SET_UP).
    """
    host = set_up_or_exit()
    if layout.in_venv():
        os.environ.update(layout.child_environment(H3TE_SET_UP="1"))
        return host
    sys.exit(_call([str(layout.venv_python()), *sys.argv]))


def set_up_or_exit() -> Path:
    """`set_up` for a command line: what goes wrong is printed and ends the process."""
    try:
        if layout.in_venv() and os.environ.get("H3TE_SET_UP") == "1":
            return preflight.foreign_host() or layout.PYPI_HOST
        return set_up()
    except SetupError as error:
        sys.exit(f"\n{error}\n")
    except OSError as error:
        sys.exit(f"\n{explain_system(error)}\n")
    except KeyboardInterrupt:
        sys.exit("\nset-up: stopped. Run it again: it goes on from here.")


def _call(command: list[str]) -> int:
    """Runs a command that gets the terminal's Ctrl-C itself; waits for it to end in order."""
    with subprocess.Popen(command, env=layout.child_environment(H3TE_SET_UP="1")) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Set up everything inside the clone.")
    parser.add_argument("--torch-index", help="wheel index to take torch from (same as H3TE_TORCH_INDEX)")
    parsed = parser.parse_args()
    if parsed.torch_index:
        os.environ["H3TE_TORCH_INDEX"] = parsed.torch_index
    set_up_or_exit()
    if pip_log().exists():
        _say(f"set-up: the log is {pip_log()}")


if __name__ == "__main__":
    main()
