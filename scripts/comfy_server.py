"""Starts a real ComfyUI without a browser on a free loopback port, and is its client while it runs.

    with ComfyServer() as server:
        outputs = server.run(graph)

Runs in `.venv` (needs psutil). The host is COMFYUI_PATH, or the one that set-up unpacked; it works in a base directory
(models, custom_nodes, input, output, temp, user) and nothing is written into a host named by COMFYUI_PATH.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
from collections.abc import Sequence
from pathlib import Path

import comfy_install
import layout
import preflight
import torch_install
from comfy_client import ComfyClient
from comfy_events import Events

_FAILED_PACK = re.compile(r"seconds \(IMPORT FAILED\): (.+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ServerError(RuntimeError):
    """ComfyUI did not start or has gone; the message ends with the last lines of its log."""


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def port_is_free(port: int) -> bool:
    """Whether nothing listens on that loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


class ComfyServer(ComfyClient):
    """One ComfyUI process and its HTTP client.

    host: a ComfyUI folder (default: COMFYUI_PATH or the unpacked one). base: the folder it works in (default: the
    host's own base directory in the clone; a second server at the same time needs another). pack: the folder linked
    into custom_nodes, None for no pack. port: a fixed one, else any free. arguments: further ComfyUI arguments.
    model_folders: folder kind -> folders to search besides the base's models. environment: changes to the process
    environment. quiet: no progress line. timeout: seconds until it must answer.
    """

    def __init__(
        self,
        host: Path | None = None,
        *,
        base: Path | None = None,
        pack: Path | None = layout.ROOT,
        port: int | None = None,
        log: Path | None = None,
        arguments: Sequence[str] = (),
        model_folders: dict[str, Sequence[str | Path]] | None = None,
        environment: dict[str, str] | None = None,
        quiet: bool = False,
        timeout: float = 240,
    ):
        self.host = Path(host) if host else preflight.foreign_host() or layout.PYPI_HOST
        self.base = Path(base) if base else comfy_install.base_directory(self.host)
        self.pack, self.version = pack, comfy_install.host_version(self.host)
        self.port, self._fixed_port = port or 0, port is not None
        self.log_path = Path(log) if log else layout.LOGS / "comfyui.log"
        self.process: subprocess.Popen | None = None
        self._arguments, self._model_folders = list(arguments), model_folders or {}
        self._environment, self._quiet, self._timeout = environment or {}, quiet, timeout
        super().__init__(f"http://127.0.0.1:{self.port}")

    def __enter__(self) -> ComfyServer:
        self.start()
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the process and waits until it answers. Raises ServerError; a lost race for a port is tried again."""
        if not (self.host / "main.py").is_file():
            raise ServerError(f"ComfyUI: expected main.py in {self.host}, got none. Run `make setup` first.")
        if self._fixed_port and not port_is_free(self.port):
            raise ServerError(
                f"ComfyUI: expected port {self.port} to be free, and something listens there (another ComfyUI?). "
                "Stop it, or name another port."
            )
        comfy_install.prepare_base(self.base, self.pack)
        for attempt in range(3):
            self._launch()
            try:
                self._wait_until_ready()
                self._check_pack()
                return
            except BaseException as error:
                taken = "address already in use" in self.log_tail(60).lower() or "Errno 10048" in self.log_tail(60)
                self.stop()
                if not (isinstance(error, ServerError) and taken and not self._fixed_port and attempt < 2):
                    raise

    def stop(self) -> None:
        """Ends the process and everything it started; harmless when it has gone."""
        if self.process is None:
            return
        import psutil

        try:
            root = psutil.Process(self.process.pid)
            family = [*root.children(recursive=True), root]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            _signal(member, "terminate")
        _, alive = psutil.wait_procs(family, timeout=5)
        for member in alive:
            _signal(member, "kill")
        self.process.stdin.close()
        self.process.wait(10)
        self.process = None

    def events(self) -> Events:
        """A context manager that collects progress and other messages of the graphs queued meanwhile."""
        return Events(self)

    def log(self) -> str:
        """Everything the server has printed, without colours."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.is_file() else ""
        return _COLOUR.sub("", text)

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the server's log."""
        return "\n".join(self.log().splitlines()[-lines:])

    def describe(self, message: str) -> str:
        """The message followed by the end of the server's log."""
        return f"{message} The end of {self.log_path}:\n{self.log_tail()}"

    def command(self) -> list[str]:
        """The command line that starts this host."""
        flags = (self.host / "comfy" / "cli_args.py").read_text(encoding="utf-8")
        command = [sys.executable, "-s", str(Path(__file__).with_name("host_process.py")), str(self.host / "main.py")]
        command += ["--listen", "127.0.0.1", "--port", str(self.port), "--disable-auto-launch"]
        command += ["--base-directory", str(self.base), "--database-url", "sqlite:///:memory:"]
        command += [flag for flag in ("--disable-api-nodes", "--log-stdout") if f'"{flag}"' in flags]
        if not (torch_install.torch_is_cuda_build() and torch_install.has_nvidia_gpu()):
            command.append("--cpu")
        frontend = comfy_install.frontend_version(self.host)
        if frontend and comfy_install.frontend_root(frontend).is_dir():
            command += ["--front-end-root", str(comfy_install.frontend_root(frontend))]
        if self._model_folders:
            command += ["--extra-model-paths-config", str(self._write_model_folders())]
        return command + self._arguments

    def _write_model_folders(self) -> Path:
        lines = ["h3te:"]
        for kind, folders in self._model_folders.items():
            lines += [f"  {kind}: |", *(f"    {Path(folder).resolve()}" for folder in folders)]
        file = self.base / "extra_model_paths.h3te.yaml"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    def _launch(self) -> None:
        if not self._fixed_port:
            self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        changes = dict(self._environment)
        if self.host != layout.PYPI_HOST:
            changes.setdefault("PYTHONPYCACHEPREFIX", str(layout.COMFY / "pycache"))
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.base,
                env=layout.child_environment(PYTHONUNBUFFERED="1", **changes),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=os.name != "nt",  # Ctrl-C in the terminal reaches us first, and we end it in order
            )

    def _wait_until_ready(self) -> None:
        started = time.monotonic()
        self._say(f"ComfyUI {self.version}: starting on {self.url} ...")
        while True:
            waited = time.monotonic() - started
            if self.process.poll() is not None:
                raise ServerError(
                    self.describe(f"ComfyUI: expected it to start, and it ended ({self.process.returncode}).")
                )
            if waited > self._timeout:
                raise ServerError(self.describe(f"ComfyUI: expected an answer within {self._timeout:.0f} s, got none."))
            try:
                self.system_stats()
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
                continue
            self._say(f"ComfyUI {self.version}: ready in {waited:.1f} s (log: {self.log_path})")
            return

    def _check_pack(self) -> None:
        failed = [Path(found).name for found in _FAILED_PACK.findall(self.log())]
        if self.pack and self.pack.name in failed:
            report = import_failure(self.log(), self.pack.name)
            raise ServerError(f"ComfyUI {self.version}: expected the pack to load, and it failed:\n{report}")

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)


def import_failure(log: str, pack: str) -> str:
    """The lines of a server's log that say why a pack did not load, with the traceback before them."""
    lines = log.splitlines()
    named = re.compile(rf"(Cannot import|Error while calling).*[\\/]{re.escape(pack)}\b")
    last = next((number for number, line in enumerate(lines) if named.search(line)), len(lines) - 1)
    above = [number for number in range(last) if lines[number].startswith("Traceback (most recent call last)")]
    first = above[-1] if above and not any(_FAILED_PACK.search(line) for line in lines[above[-1] : last]) else last
    return "\n".join(lines[max(first, last - 40) : last + 1])


def _signal(process, how: str) -> None:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        getattr(process, how)()
