"""How a worker may be started, and how not."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from h3te.encoder.parallel.worker.engine import chosen_device
from h3te.encoder.parallel.worker.main import run_rank
from h3te.encoder.parallel.worker.ranks import Place
from h3te.encoder.parallel.worker.service import ready_lines
from h3te.encoder.parallel.worker.settings import TOKEN_VARIABLE, SettingsError, is_loopback, read_settings

TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_a_checkpoint_alone_is_served_to_this_machine_by_one_process():
    found = read_settings(["a.safetensors"])
    assert (found.checkpoint, found.host, found.port, found.ranks) == (Path("a.safetensors"), "127.0.0.1", 8189, 1)
    assert (found.device, found.dtype, found.reader, found.tap_layer, found.token) == (
        "auto",
        "bfloat16",
        "mmap",
        50,
        None,
    )


def test_every_argument_reaches_its_setting(tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    line = "a --ranks 4 --host 0.0.0.0 --port 1 --device cuda --dtype float32 --reader read --vision v --queue 3 "
    line += f"--tokens-limit 9 --body-limit 2 --prefix-gb 0.5 --token-file {tmp_path / 'token'} --rank-timeout 5"
    found = read_settings(line.split())
    assert (found.ranks, found.host, found.port, found.device) == (4, "0.0.0.0", 1, "cuda")
    assert (found.dtype, found.reader, found.vision, found.prefix_bytes) == ("float32", "read", Path("v"), 500_000_000)
    assert (found.limits.tokens, found.limits.body_bytes, found.limits.queue, found.limits.answers) == (
        9,
        2_000_000,
        3,
        3,
    )
    assert (found.token, found.rank_timeout) == (TOKEN, 5.0)
    assert TOKEN not in repr(found)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "my-machine"])
def test_an_address_that_others_reach_needs_a_token(host, monkeypatch):
    with pytest.raises(SettingsError, match=r"expected a token to listen on .*, got none\. Put one into a file"):
        read_settings(["a", "--host", host])
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert read_settings(["a", "--host", host]).token == TOKEN


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_an_address_of_this_machine_needs_none(host):
    assert is_loopback(host)
    assert read_settings(["a", "--host", host]).token is None


@pytest.mark.parametrize("token", ["short", "with a space inside it", "ünïcödé-ünïcödé-ünïcödé", "x" * 15])
def test_a_weak_or_unusable_token_is_refused_without_showing_it(token, tmp_path):
    (tmp_path / "token").write_text(token, encoding="utf-8")
    with pytest.raises(SettingsError, match="expected a token of at least 16 printable ASCII characters") as caught:
        read_settings(["a", "--token-file", str(tmp_path / "token")])
    assert token not in str(caught.value)


def test_a_token_file_of_a_windows_editor_is_read_and_one_of_powershell_is_an_error(tmp_path):
    (tmp_path / "marked").write_text(TOKEN + "\r\n", encoding="utf-8-sig")
    assert read_settings(["a", "--token-file", str(tmp_path / "marked")]).token == TOKEN
    (tmp_path / "wide").write_text(TOKEN, encoding="utf-16")
    with pytest.raises(SettingsError, match="expected a readable token file"):
        read_settings(["a", "--token-file", str(tmp_path / "wide")])


def test_an_empty_token_file_is_not_no_token(tmp_path):
    (tmp_path / "token").write_text("\n")
    with pytest.raises(SettingsError, match="got 0 characters"):
        read_settings(["a", "--token-file", str(tmp_path / "token")])


def test_a_token_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match="expected a readable token file"):
        read_settings(["a", "--token-file", str(tmp_path / "none")])


def test_several_ranks_take_no_numbered_gpu():
    with pytest.raises(SettingsError, match=r"expected device cuda or cpu for 2 ranks, got cuda:1"):
        read_settings(["a", "--ranks", "2", "--device", "cuda:1"])


@pytest.mark.parametrize(
    "line",
    ["", "a --ranks 3", "a --port 70000", "a --device tpu", "a --dtype float16", "a --reader fast", "a --queue 0",
     "a --tokens-limit 0", "a --body-limit -1", "a --prefix-gb -1", "a --rank-timeout 0", "a --token secret"],
)  # fmt: skip
def test_other_values_end_with_a_usage_message(line, capsys):
    with pytest.raises(SystemExit):
        read_settings(line.split())
    assert "usage: worker.py" in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [str(chosen_device(wanted, 1)) for wanted in ("auto", "cuda", "cuda:0", "cpu")] == [
        "cuda:1", "cuda:1", "cuda:0", "cpu"
    ]  # fmt: skip
    with pytest.raises(ValueError, match="expected GPU 2 of this machine, got 2 GPUs"):
        chosen_device("cuda", 2)


@pytest.mark.parametrize(
    ("host", "ranks", "token", "first", "typed"),
    [
        ("127.0.0.1", 1, False, "at http://127.0.0.1:8189, 1 rank, cpu, bfloat16, ready", "type 127.0.0.1:8189 at"),
        ("::1", 2, False, "at http://[::1]:8189, 2 ranks, cpu, bfloat16, ready", "type [::1]:8189 at remote"),
        ("0.0.0.0", 1, True, "at http://0.0.0.0:8189, 1 rank", "type this machine's name or address with :8189"),
    ],
)  # fmt: skip
def test_a_ready_worker_says_what_it_serves_and_what_to_type(host, ranks, token, first, typed):
    told = SimpleNamespace(label="a.safetensors: bf16", tp_size=ranks, device="cpu", dtype="bfloat16")
    serves, at, how = ready_lines(told, host, 8189, token)
    assert (serves, at.startswith(first), typed in how) == ("serves a.safetensors: bf16", True, True)
    assert ("list it there with the token" in how) == token


def test_a_taken_address_is_an_error_that_names_it_once(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_rank(read_settings(["a", "--port", str(port)]), Place()) == 1
    assert caplog.messages[-1].startswith(f"worker: expected a free address of this machine, got 127.0.0.1 port {port}")
    assert "Choose another --port, or correct --host." in caplog.text


def test_ctrl_c_while_it_starts_is_one_line(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("started", Path(__file__).resolve().parents[1] / "worker.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def interrupted() -> int:
        raise KeyboardInterrupt

    left = []
    monkeypatch.setattr(script, "main", interrupted)
    monkeypatch.setattr(os, "_exit", left.append)
    script.run()
    assert (left, capsys.readouterr().err) == ([130], "worker: ends, it was told to end\n")
