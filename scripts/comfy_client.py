"""HTTP client of one ComfyUI server: queue graphs in API format, wait for them, stop them. Standard library only.

Answers are ComfyUI's own JSON. Proxies from the environment are never used: the server is on this machine.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path


class ValidationError(ValueError):
    """The server refused a graph, or some of its outputs.

    `node_errors` maps node id -> ComfyUI's report; `prompt_id` is set when the other outputs were queued all the same.
    """

    def __init__(self, message: str, node_errors: dict, prompt_id: str | None = None):
        super().__init__(message)
        self.node_errors, self.prompt_id = node_errors, prompt_id


class PromptFailed(RuntimeError):
    """A queued graph ended in an error or was stopped; `entry` is its history entry."""

    def __init__(self, message: str, entry: dict):
        super().__init__(message)
        self.entry = entry


class ComfyClient:
    """Talks to the server at `url` ("http://127.0.0.1:8188")."""

    def __init__(self, url: str):
        self.url = url
        self.client_id = uuid.uuid4().hex
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def request(self, path: str, body: bytes | dict | None = None, kind: str = "application/json") -> bytes:
        """GETs `path`, or POSTs `body` to it; returns the answer. Raises urllib.error.HTTPError."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": kind} if data else {})
        with self._open(request, timeout=60) as answer:
            return answer.read()

    def get(self, path: str):
        """GETs `path` and decodes the JSON answer."""
        return json.loads(self.request(path))

    def object_info(self, node: str | None = None) -> dict:
        """What the server says about its nodes: all of them, or one (an empty dict when it has none of that name)."""
        return self.get(f"/object_info/{urllib.parse.quote(node)}" if node else "/object_info")

    def system_stats(self) -> dict:
        """Versions, devices and memory."""
        return self.get("/system_stats")

    def queue(self, prompt: dict, **extra) -> str:
        """Queues a graph in API format; returns its id. Raises ValidationError with the server's node_errors."""
        try:
            answer = json.loads(self.request("/prompt", {"prompt": prompt, "client_id": self.client_id, **extra}))
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
            answer = json.loads(error.read())
        if "prompt_id" not in answer or answer.get("node_errors"):
            raise ValidationError(_refusal(answer), answer.get("node_errors") or {}, answer.get("prompt_id"))
        return answer["prompt_id"]

    def history(self, prompt_id: str) -> dict | None:
        """The history entry (prompt, outputs, status) of a finished graph, or None while it waits or runs."""
        return self.get(f"/history/{prompt_id}").get(prompt_id)

    def wait(self, prompt_id: str, timeout: float = 120) -> dict:
        """Waits until a graph has ended, well or not; returns its history entry. Raises TimeoutError."""
        ends = time.monotonic() + timeout
        pause = 0.02
        while (entry := self.history(prompt_id)) is None:
            if time.monotonic() > ends:
                raise TimeoutError(
                    self.describe(f"prompt {prompt_id}: expected an end within {timeout:.0f} s, got none.")
                )
            time.sleep(pause)
            pause = min(0.25, pause * 1.5)
        return entry

    def run(self, prompt: dict, timeout: float = 120) -> dict:
        """Queues a graph and waits; returns its outputs by node id.

        Raises ValidationError, PromptFailed, TimeoutError.
        """
        entry = self.wait(self.queue(prompt), timeout)
        if not entry["status"]["completed"]:
            raise PromptFailed(failure(entry) or "stopped", entry)
        return entry["outputs"]

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Stops what runs (only that prompt, when named)."""
        self.request("/interrupt", {"prompt_id": prompt_id} if prompt_id else {})

    def free(self, unload_models: bool = True, free_memory: bool = True) -> None:
        """Asks the server to unload models and drop cached results; it does so between prompts."""
        self.request("/free", {"unload_models": unload_models, "free_memory": free_memory})

    def upload_image(self, path: str | Path, name: str | None = None) -> str:
        """Puts a picture (or any input file) into the input folder, replacing one of that name; returns the name."""
        path, mark = Path(path), uuid.uuid4().hex
        fields = f'--{mark}\r\nContent-Disposition: form-data; name="overwrite"\r\n\r\ntrue\r\n'
        fields += f'--{mark}\r\nContent-Disposition: form-data; name="image"; filename="{name or path.name}"\r\n'
        head = (fields + "Content-Type: application/octet-stream\r\n\r\n").encode()
        body = head + path.read_bytes() + f"\r\n--{mark}--\r\n".encode()
        return json.loads(self.request("/upload/image", body, f"multipart/form-data; boundary={mark}"))["name"]

    def view(self, filename: str, subfolder: str = "", folder: str = "output") -> bytes:
        """The bytes of a file in the output, input or temp folder."""
        query = urllib.parse.urlencode({"filename": filename, "subfolder": subfolder, "type": folder})
        return self.request(f"/view?{query}")

    def describe(self, message: str) -> str:
        """Adds what is known about the server to an error message; ComfyServer adds its log."""
        return message


def failure(entry: dict) -> str | None:
    """What went wrong in a history entry, as "node type (id): exception", or None when it did not fail."""
    for kind, details in entry["status"].get("messages", ()):
        if kind == "execution_error":
            where = f"{details.get('node_type')} ({details.get('node_id')})"
            return f"{where}: {details.get('exception_type')}: {details.get('exception_message')}".strip()
        if kind == "execution_interrupted":
            return f"{details.get('node_type')} ({details.get('node_id')}): interrupted"
    return None


def _refusal(answer: dict) -> str:
    error = answer.get("error") or {}
    lines = [error.get("message", "some outputs were refused") if isinstance(error, dict) else str(error)]
    for node, report in (answer.get("node_errors") or {}).items():
        for problem in report.get("errors", ()):
            lines.append(f"{report.get('class_type')} ({node}): {problem.get('message')}: {problem.get('details')}")
    return "\n".join(lines)
