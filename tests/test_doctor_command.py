"""The doctor command: what it prints, its exit status, JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import doctor
import pytest
import setup
from h3te_tests.checkpoint_files import released_config
from h3te_tests.packed_headers import PACKED, write_packed


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("good") / "qwen3vl_32b_minimax_h3_int8_convrot.safetensors"
    return write_packed(path, PACKED["int8_convrot"](released_config(layers=50)))


def run(*arguments: object) -> int:
    return doctor.run(doctor._arguments([str(argument) for argument in arguments]))


def test_good_file_has_status_0(good, capsys):
    assert run(good) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{good}\n  verdict      MiniMax H3's text encoder, ready to use\n")
    assert "int8 convrot, bf16 embedding" in printed


def test_any_problem_has_status_1_and_every_path_is_reported(good, tmp_path, capsys):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"")
    assert run(good, broken, tmp_path / "nothing") == 1
    printed = capsys.readouterr().out
    assert "ready to use" in printed
    assert "got 0 bytes" in printed
    assert "what to do   Check the path." in printed
    assert printed.index(str(good)) < printed.index(str(broken)) < printed.index("nothing")


def test_json_holds_everything(good, tmp_path, capsys):
    assert run(good, tmp_path / "nothing", "--json") == 1
    whole, nothing = json.loads(capsys.readouterr().out)
    assert whole["path"] == str(good)
    assert whole["is_h3"] and not whole["problems"]
    assert whole["formats"] == {"int8 convrot": 350}
    assert len(whole["linear_formats"]) == 350
    assert whole["bytes_needed"] + whole["bytes_unread"] == 27_141_161_040
    assert nothing["problems"] and nothing["layout"] is None


def test_vision_file_is_for_gguf_alone(good, capsys):
    assert run(good, "--vision", good) == 1
    assert "expected a vision file for .gguf files alone" in capsys.readouterr().out


def test_no_name_for_the_vision_file_is_none(good):
    assert run(good, "--vision", "") == 0


def test_name_that_only_looks_like_a_home_folder_is_taken_as_it_is(good, capsys):
    assert run("~no_such_user/x", good) == 1
    printed = capsys.readouterr().out
    assert "expected a file or folder at ~no_such_user" in printed and "ready to use" in printed


def test_home_is_spelled_out(good, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(good.parent))
    monkeypatch.setenv("USERPROFILE", str(good.parent))
    assert run(f"~/{good.name}") == 0
    assert capsys.readouterr().out.startswith(str(good))


@pytest.mark.skipif(sys.platform == "win32", reason="no such names")
def test_nothing_that_a_terminal_obeys_is_printed(good, tmp_path, capsys):
    folder = tmp_path / "\x1b[2J"
    folder.mkdir()
    (folder / "a\nb.safetensors").symlink_to(good)
    assert run(folder / "a\nb.safetensors", folder / "\x9bnone") == 1
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert "/\\x1b[2J/a\\nb.safetensors\n  verdict      MiniMax H3's text encoder" in printed
    assert "/\\x1b[2J/\\x9bnone\n  verdict      not usable" in printed


def test_path_is_required(capsys):
    with pytest.raises(SystemExit):
        doctor._arguments([])
    assert "PATH" in capsys.readouterr().err


def test_set_up_prints_nothing_into_the_report(good, capsys, monkeypatch):
    monkeypatch.setattr(setup, "enter", lambda: print("set-up: ready"))
    monkeypatch.setattr(sys, "argv", ["doctor.py", str(good), "--json"])
    assert doctor.main() == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)
    assert captured.err == "set-up: ready\n"
