"""The server's process: it starts, explains a failure, leaves nothing behind. A small stand-in plays ComfyUI here."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from h3te_tests.empty_clone import moved_folders  # noqa: F401 (fixture)
from h3te_tests.host_server import SCRIPTS, ComfyServer, ServerError, ValidationError, new_server

import comfy_client  # isort: skip
import comfy_install  # isort: skip
import comfy_server  # isort: skip
import demo  # isort: skip
import given_checkpoint  # isort: skip

MAIN = """
import http.server, json, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {"system": sys.argv[1:]})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(*body["prompt"]["answer"])
    def answer(self, status, content):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())
http.server.HTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""
NODE_ERRORS = {"3": {"class_type": "Node", "errors": [{"message": "Value not in list", "details": "text_encoder"}]}}


@pytest.fixture
def stand_in(tmp_path) -> Path:
    """A folder with a main.py that answers as ComfyUI would."""
    host = tmp_path / "ComfyUI"
    (host / "comfy").mkdir(parents=True)
    (host / "comfy" / "cli_args.py").write_text('parser.add_argument("--disable-api-nodes")')
    (host / "comfyui_version.py").write_text('__version__ = "1.2.3"\n')
    (host / "main.py").write_text(MAIN)
    return host


def test_server_starts_and_leaves_no_process(stand_in, tmp_path):
    with new_server(stand_in, tmp_path / "base") as server:
        arguments = server.system_stats()["system"]
        family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        assert len(family) == 2 and server.version == "1.2.3"
    assert "--disable-api-nodes" in arguments and "--log-stdout" not in arguments
    assert arguments[arguments.index("--base-directory") + 1] == str(tmp_path / "base")
    assert not any(process.is_running() for process in family)


def test_server_ends_when_its_parent_is_killed(stand_in, tmp_path):
    places = {"host": str(stand_in), "base": str(tmp_path / "base"), "log": str(tmp_path / "log")}
    code = f"""
import sys, time
sys.path.append({str(SCRIPTS)!r})
from comfy_server import ComfyServer
server = ComfyServer(**{places!r}, pack=None, quiet=True)
server.start()
print(server.process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    server = psutil.Process(int(parent.stdout.readline()))
    orphans = server.children()
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs([server], timeout=10)
    for process in orphans:
        process.kill()
    assert not alive


def test_server_that_ends_at_once_shows_the_end_of_its_log(stand_in, tmp_path):
    (stand_in / "main.py").write_text("import sys\nprint('no such flag')\nsys.exit(2)\n")
    with pytest.raises(ServerError, match=r"(?s)expected it to start, and it ended \(2\)\..*no such flag"):
        new_server(stand_in, tmp_path / "base").start()


def test_server_that_does_not_answer_in_time_is_ended(stand_in, tmp_path):
    (stand_in / "main.py").write_text("import time\ntime.sleep(600)\n")
    server = new_server(stand_in, tmp_path / "base", timeout=0.5)
    with pytest.raises(ServerError, match=r"expected an answer within 0 s"):
        server.start()
    assert server.process is None


def test_port_in_use_is_said_before_anything_starts(stand_in, tmp_path):
    with new_server(stand_in, tmp_path / "base") as server:
        second = new_server(stand_in, tmp_path / "second", port=server.port)
        with pytest.raises(
            ServerError, match=rf"expected port {server.port} to be free.*Stop it, or name another port"
        ):
            second.start()
        assert second.process is None


def test_folder_without_main_is_refused(tmp_path):
    with pytest.raises(ServerError, match=r"expected main\.py in .*make setup"):
        ComfyServer(tmp_path, base=tmp_path / "base").start()


@pytest.mark.parametrize("status", [400, 200])
def test_node_errors_are_raised_whatever_the_status(stand_in, tmp_path, status):
    refused = {"error": {"message": "Prompt outputs failed validation"}, "node_errors": NODE_ERRORS}
    answer = refused if status == 400 else {"prompt_id": "abc", "node_errors": NODE_ERRORS}
    with new_server(stand_in, tmp_path / "base") as server, pytest.raises(ValidationError) as caught:
        server.queue({"answer": [status, answer]})
    assert caught.value.node_errors == NODE_ERRORS
    assert caught.value.prompt_id == (None if status == 400 else "abc")
    assert "Node (3): Value not in list: text_encoder" in str(caught.value)


def test_failed_import_of_the_pack_is_quoted_from_the_log():
    log = (
        "Traceback (most recent call last):\n  other pack\nCannot import /x/custom_nodes/other module: no\n"
        "Traceback (most recent call last):\n  File 'a'\nValueError: ours\n"
        "Cannot import /x/custom_nodes/my pack module for custom nodes: ours\n"
        "   0.0 seconds (IMPORT FAILED): /x/custom_nodes/my pack\n"
    )
    report = comfy_server.import_failure(log, "my pack")
    assert report.startswith("Traceback") and "ValueError: ours" in report and "other" not in report


def test_failure_names_node_and_exception():
    details = {"node_type": "Node", "node_id": "7", "exception_type": "ValueError", "exception_message": "bad\n"}
    entry = {"status": {"messages": [["execution_start", {}], ["execution_error", details]]}}
    assert comfy_client.failure(entry) == "Node (7): ValueError: bad"


def test_wait_says_what_it_waited_for(stand_in, tmp_path):
    with new_server(stand_in, tmp_path / "base") as server:
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=r"prompt abc: expected an end within 0 s, got none\. The end of "):
            server.wait("abc", timeout=0.2)
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("is_demo", [True, False])
@pytest.mark.parametrize("is_folder", [True, False])
def test_demo_shows_comfyui_a_given_checkpoint_and_nothing_beside_it(
    stand_in,
    tmp_path,
    empty_clone,
    is_demo,
    is_folder,
):
    path = tmp_path / "my files" / ("text_encoder" if is_folder else "encoder.safetensors")
    path.mkdir(parents=True) if is_folder else (path.parent.mkdir(), path.write_text("x"))
    for _ in range(2):
        given = given_checkpoint.Checkpoint(path, path.name, tmp_path, tmp_path, is_demo)
        (folder,) = demo._server(stand_in, given)._model_folders["text_encoders"]
        assert [entry.name for entry in folder.iterdir()] == [path.name]
        assert (folder / path.name).samefile(path)
        assert folder.is_relative_to(empty_clone)


def test_demo_weights_among_comfyuis_models_are_not_shown_twice(stand_in):
    path = comfy_install.base_directory(stand_in) / "models" / "text_encoders" / "h3te-demo"
    own = given_checkpoint.Checkpoint(path, "h3te-demo/", path, path, True)
    assert "text_encoders" not in demo._server(stand_in, own)._model_folders
