"""The `remote` option: whose addresses may be used, where tokens come from, when the loader runs again."""

from __future__ import annotations

import pytest
from h3te_tests.remote_host import (  # noqa: F401 (fixtures)
    comfy,
    demo_file,
    demo_told,
    fake_worker,
    load,
    load_local,
    serve,
    text_encoders,
    user,
)

LINE = r'add the line "10\.0\.0\.9:8189" \(and its token, if it has one\) to .*workers\.txt, or to H3TE_WORKERS in'


@pytest.fixture
def node(load):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptionsNode

    return EncoderOptionsNode


@pytest.fixture
def list_file(user):  # noqa: F811
    def write(text: str) -> None:
        folder = user / "minimax_h3_text_encoder"
        folder.mkdir(exist_ok=True)
        (folder / "workers.txt").write_text(text, encoding="utf-8")

    return write


def test_address_of_a_strangers_workflow_is_refused_before_anything_is_sent(node, load):  # noqa: F811
    import re

    assert re.search(LINE, node.validate_inputs(remote="10.0.0.9"))
    with pytest.raises(ValueError, match=LINE):
        load("10.0.0.9")
    assert re.search(LINE, str(node.fingerprint_inputs(remote="10.0.0.9")))
    assert "expected a worker's address" in node.validate_inputs(remote="http://me:pw@host")


@pytest.mark.parametrize("remote", [None, "", "  ", "127.0.0.1", "http://localhost:9000", "[::1]:8189"])
def test_no_address_and_addresses_of_this_machine_pass(node, remote):
    assert node.validate_inputs(remote=remote) is True


def test_owner_lists_machines_in_a_file_or_in_the_environment(node, list_file, monkeypatch):
    list_file("# mine\n10.0.0.9 secret\n")
    assert node.validate_inputs(remote="10.0.0.9:8189") is True
    assert node.validate_inputs(remote="10.0.0.9:9000") is not True
    monkeypatch.setenv("H3TE_WORKERS", "https://gpu.example.org other; 10.0.0.9:9000")
    for remote in ("https://gpu.example.org", "10.0.0.9:9000", "10.0.0.9"):
        assert node.validate_inputs(remote=remote) is True
    list_file("10.0.0.9 secret more")
    assert "workers.txt, line 1: expected an address and at most one token" in node.validate_inputs(remote="127.0.0.1")
    list_file("")
    monkeypatch.setenv("H3TE_WORKERS", "ftp://x")
    assert "H3TE_WORKERS in the environment, line 1" in node.validate_inputs(remote="127.0.0.1")


def test_list_that_cannot_be_read_is_named(node, user, list_file):  # noqa: F811
    list_file("x")
    path = user / "minimax_h3_text_encoder" / "workers.txt"
    path.write_bytes(b"\xff\xfe\x00")
    assert "expected a list of workers that can be read" in node.validate_inputs(remote="127.0.0.1")
    path.unlink()
    path.mkdir()
    assert "expected a file, got a folder" in node.validate_inputs(remote="127.0.0.1")


def test_list_of_a_size_nobody_wrote_is_not_read(node, list_file, monkeypatch):
    monkeypatch.setattr("h3te.nodes.host.remote_workers.MAX_BYTES", 10)
    list_file("# " + "x" * 20)
    assert "expected a list of at most 10 bytes, got 22" in node.validate_inputs(remote="127.0.0.1")


def test_token_comes_from_a_list_or_the_environment(load, serve, list_file, monkeypatch, caplog, node):  # noqa: F811
    caplog.set_level("DEBUG")
    worker = serve()
    worker.token = "the-secret"
    with pytest.raises(RuntimeError, match=r"\(HTTP 401\)\. Put the worker's token behind its address in workers\.txt"):
        load(worker)
    monkeypatch.setenv("H3TE_WORKER_TOKEN", "the-secret")
    load(worker)
    monkeypatch.setenv("H3TE_WORKER_TOKEN", "another-secret")
    list_file(f"{worker.at} the-secret")
    said = load(worker).ui["text"][0]
    assert "secret" not in said + caplog.text + str(node.fingerprint_inputs(remote=worker.at))


def test_loader_runs_again_when_the_worker_serves_another_encoder(node, serve):  # noqa: F811
    from dataclasses import replace

    worker = serve()
    before = node.fingerprint_inputs(remote=worker.at)
    assert before == node.fingerprint_inputs(remote=worker.at)
    worker.health = replace(worker.health, waiting=3, loaded=True)
    assert before == node.fingerprint_inputs(remote=worker.at)
    worker.health = replace(worker.health, weights="b" * 64)
    changed = node.fingerprint_inputs(remote=worker.at)
    assert changed != before
    worker.stop()  # away for a while: what is cached is answered without it
    assert node.fingerprint_inputs(remote=worker.at) == changed


def test_worker_that_was_never_there_is_no_error_of_the_fingerprint(node):
    assert "expected a worker that answers" in str(node.fingerprint_inputs(remote="127.0.0.1:9"))


def test_loader_offers_to_have_no_checkpoint(load):  # noqa: F811
    from h3te.nodes.host import paths
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    options = {i.id: i for i in LoadTextEncoder.define_schema().inputs}["text_encoder"].options
    assert options == [paths.NOTHING, paths.REMOTE]
    assert LoadTextEncoder.validate_inputs(paths.REMOTE) is True
    with pytest.raises(ValueError, match="expected remote of the options to be a worker's address, got nothing"):
        load("")


def test_remote_that_is_no_text_is_refused_by_name(comfy):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptions

    with pytest.raises(ValueError, match=r"expected remote as an address, got int\. Leave it empty"):
        EncoderOptions(remote=8189)
