"""Set-up explains itself: each obstacle has one clear error, a second run does nothing, a half-done one goes on."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import comfy_install
import layout
import preflight
import pytest
import setup
import stamps
from h3te_tests.empty_clone import moved_folders, recording_pip  # noqa: F401 (fixtures)
from package_installer import SetupError

ROOT = Path(__file__).resolve().parents[1]


def test_old_python_is_refused_with_the_way_out():
    with pytest.raises(SetupError, match=r"expected Python 3\.10 or newer, got 3\.9 .*make setup PYTHON="):
        preflight.check_python((3, 9))


def test_python_without_venv_names_the_debian_package():
    with pytest.raises(SetupError, match=r"expected Python's venv module.*apt install python3\.\d+-venv"):
        preflight.check_venv_module(available=False)


def test_full_disk_says_what_is_needed_and_what_there_is(monkeypatch):
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_200_000_000))
    with pytest.raises(SetupError, match=r"torch: expected 3\.0 GB free .* got 1\.2 GB\. Free some space"):
        preflight.check_space(3.0, "torch")


def test_comfyui_path_that_does_not_exist_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(SetupError, match=r"got .*nowhere, which does not exist\. Name the folder that holds main\.py"):
        preflight.foreign_host()


def test_comfyui_path_that_names_main_py_is_recognised(monkeypatch, tmp_path):
    (tmp_path / "main.py").touch()
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path / "main.py"))
    with pytest.raises(SetupError, match=r"main\.py, which is a file\. Name the folder that holds main\.py"):
        preflight.foreign_host()


def test_comfyui_path_one_folder_too_high_is_recognised(monkeypatch, tmp_path):
    (tmp_path / "ComfyUI").mkdir()
    (tmp_path / "ComfyUI" / "main.py").touch()
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"has no main\.py\. Did you mean .*ComfyUI\?"):
        preflight.foreign_host()


def test_empty_comfyui_path_means_the_private_one(monkeypatch):
    monkeypatch.setenv("COMFYUI_PATH", " ")
    assert preflight.foreign_host() is None


def _step(folder: Path, made: list, fingerprint: str = "1", done=lambda: True) -> setup.Step:
    return setup.Step("thing", folder, done, lambda: made.append(fingerprint), fingerprint)


def test_step_runs_once_and_again_when_its_list_changes(tmp_path):
    made = []
    for fingerprint in ("1", "1", "2"):
        step = _step(tmp_path, made, fingerprint)
        if not step.is_done():
            step.run()
    assert made == ["1", "2"]


def test_step_runs_again_when_its_result_has_gone(tmp_path):
    _step(tmp_path, []).run()
    assert _step(tmp_path, []).is_done() and not _step(tmp_path, [], done=lambda: False).is_done()


def test_failed_step_leaves_no_stamp(tmp_path):
    def fail():
        raise SetupError("no")

    step = setup.Step("thing", tmp_path, lambda: True, fail, "1")
    with pytest.raises(SetupError):
        step.run()
    assert not step.is_done()


def test_damaged_stamp_file_is_read_as_nothing_done(tmp_path):
    stamps.write(tmp_path, "thing", "1")
    (tmp_path / stamps.NAME).write_text("{")
    assert not stamps.is_done(tmp_path, "thing", "1")


@pytest.mark.parametrize(
    ("code", "advice"), [(28, "The disk is full. Free some space"), (13, "Make sure that you own the clone")]
)
def test_system_error_ends_set_up_with_an_explanation(empty_clone, monkeypatch, code, advice):
    def refuse():
        raise OSError(code, os.strerror(code), "some file")

    monkeypatch.delenv("H3TE_SET_UP", raising=False)
    monkeypatch.setattr(setup, "steps", lambda host: [setup.Step("thing", empty_clone, lambda: True, refuse, "1")])
    with pytest.raises(SystemExit) as stopped:
        setup.set_up_or_exit()
    text = str(stopped.value)
    assert "set-up: expected to write in" in text and "some file" in text and advice in text


def test_environment_that_cannot_be_made_shows_why(empty_clone, monkeypatch):
    monkeypatch.setattr(preflight, "check_venv_module", lambda: None)
    failed = SimpleNamespace(returncode=1, stdout="", stderr="Error: no room for a virtual environment")
    monkeypatch.setattr(setup.subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(SetupError, match=r"(?s)expected .*\.venv to be made.*no room.*use another Python"):
        setup.make_venv()


def test_half_made_environment_is_not_taken_for_a_whole_one(empty_clone):
    python = layout.venv_python()
    python.parent.mkdir(parents=True)
    python.touch()
    assert not setup._venv_works()


def test_moved_environment_is_made_again(empty_clone):
    layout.VENV.mkdir()
    stamps.write(layout.VENV, "virtual environment", stamps.environment_fingerprint(empty_clone / "elsewhere"))
    assert not setup.steps(None)[0].is_done()


def test_second_run_finds_nothing_to_do(empty_clone, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(setup, "steps", lambda host: [_step(empty_clone, made)])
    for _ in range(2):
        setup.set_up()
    assert made == ["1"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("set-up: ready in 0.")


def test_pack_is_linked_under_the_clones_name_and_relinked_after_a_move(tmp_path):
    old, new, base = tmp_path / "old" / "my clone", tmp_path / "new" / "my clone", tmp_path / "base"
    old.mkdir(parents=True)
    new.mkdir(parents=True)
    link = comfy_install.prepare_base(base, old)
    assert link == base / "custom_nodes" / "my clone" and link.resolve() == old.resolve()
    assert comfy_install.prepare_base(base, new).resolve() == new.resolve()
    comfy_install.unlink_packs(base)
    assert not link.exists() and old.exists() and new.exists()


def test_folder_in_the_links_place_is_refused(tmp_path):
    pack, base = tmp_path / "pack", tmp_path / "base"
    pack.mkdir()
    (base / "custom_nodes" / "pack").mkdir(parents=True)
    with pytest.raises(SetupError, match=r"to be free for a link to the pack, got a folder of its own\. Move it away"):
        comfy_install.prepare_base(base, pack)


def test_new_host_keeps_the_old_ones_models_and_leaves_the_pack_alone(empty_clone):
    pack, partial = empty_clone / "pack", empty_clone / "partial"
    pack.mkdir()
    (pack / "file.py").touch()
    comfy_install.prepare_base(layout.PYPI_HOST, pack)
    (layout.PYPI_HOST / "models" / "mine.safetensors").touch()
    (partial / "models").mkdir(parents=True)
    (partial / "main.py").touch()
    comfy_install.replace_host(partial)
    assert (layout.PYPI_HOST / "main.py").exists() and (layout.PYPI_HOST / "models" / "mine.safetensors").exists()
    assert (pack / "file.py").exists()


def test_foreign_host_gets_its_packages_once_and_is_not_written_into(pip, monkeypatch):
    host = layout.VENV.parent / "my ComfyUI"
    (host / "comfy").mkdir(parents=True)
    for name, text in (("main.py", ""), ("folder_paths.py", ""), ("comfy/sd.py", ""), ("requirements.txt", "blake3\n")):
        (host / name).write_text(text)
    before = sorted(host.rglob("*"))
    monkeypatch.setenv("COMFYUI_PATH", str(host))
    step = setup.steps(preflight.foreign_host())[-1]
    assert not step.is_done()
    layout.VENV.mkdir()
    step.run()
    assert pip.calls[-1][-1] == "blake3" and "torch.txt" in pip.calls[-1][-2]
    comfy_install.prepare_base(comfy_install.base_directory(host))
    assert sorted(host.rglob("*")) == before
    assert (layout.FOREIGN_BASE / "custom_nodes" / ROOT.name).resolve() == ROOT
