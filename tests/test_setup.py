"""Set-up explains itself: each obstacle has one clear error, a second run does nothing, a half-done one goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.append(str(SCRIPTS))  # last, so that its test.py never stands for Python's own package

import clean  # noqa: E402
import comfy_install  # noqa: E402
import help as targets_help  # noqa: E402
import layout  # noqa: E402
import lint  # noqa: E402
import package_installer  # noqa: E402
import preflight  # noqa: E402
import setup  # noqa: E402
import stamps  # noqa: E402
import torch_install  # noqa: E402
import torchvision_shim  # noqa: E402
from package_installer import SetupError  # noqa: E402


@pytest.fixture
def empty_clone(tmp_path, monkeypatch):
    """Set-up's folders, moved to an empty place."""
    places = {"VENV": ".venv", "COMFY": ".comfyui", "PYPI_HOST": ".comfyui/ComfyUI", "FOREIGN_BASE": ".comfyui/base"}
    places |= {"TEMP": ".comfyui/tmp", "PIP_CACHE": ".comfyui/pip-cache", "OUTPUT": "output", "LOGS": "output/logs"}
    for name, place in places.items():
        monkeypatch.setattr(layout, name, tmp_path / place)
    for name in ("COMFYUI_PATH", "H3TE_TORCH_INDEX", "PIP_NO_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def pip(monkeypatch, empty_clone):
    """A pip that records its arguments and answers what `pip.answers` says, in order, then success."""
    fake = SimpleNamespace(calls=[], answers=[])

    def run(arguments, python=None):
        fake.calls.append(list(arguments))
        return fake.answers.pop(0) if fake.answers else (0, "")

    for module in (package_installer, torch_install, comfy_install):
        monkeypatch.setattr(module, "run_pip", run)
    return fake


OFFLINE = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('Failed to establish a new "
    "connection: [Errno -3] Temporary failure in name resolution')': /simple/einops/\n"
    "ERROR: Could not find a version that satisfies the requirement einops (from versions: none)\n"
    "ERROR: No matching distribution found for einops\n"
)
NO_BUILD = "ERROR: No matching distribution found for torch==2.13.0+cpu\n"


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


def test_comfyui_path_one_folder_too_high_is_recognised(monkeypatch, tmp_path):
    (tmp_path / "ComfyUI").mkdir()
    (tmp_path / "ComfyUI" / "main.py").touch()
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"has no main\.py\. Did you mean .*ComfyUI\?"):
        preflight.foreign_host()


def test_empty_comfyui_path_means_the_private_one(monkeypatch):
    monkeypatch.setenv("COMFYUI_PATH", " ")
    assert preflight.foreign_host() is None


def test_failing_pip_without_network_shows_its_last_lines_and_what_to_do(pip):
    pip.answers = [(1, OFFLINE)]
    with pytest.raises(SetupError) as caught:
        package_installer.install("packages", ["-r", "list.txt"])
    text = str(caught.value)
    assert "set-up, packages" in text and "-r list.txt" in text
    assert "No matching distribution found for einops" in text
    assert "No package index answered" in text and "again: it goes on from here" in text
    assert "setup.log" in text


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (OFFLINE, "network"),
        (NO_BUILD, "version"),
        ("OSError: [Errno 28] No space left on device", "disk"),
        ("SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED'))", "certificate"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "download"),
        ("PermissionError: [Errno 13] Permission denied", "permission"),
        ("something new", "other"),
    ],
)
def test_pip_output_is_diagnosed(output, cause):
    assert package_installer.diagnose(output) == cause


def test_pip_keeps_its_cache_and_temporary_files_in_the_clone(empty_clone, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "mirror")
    environment = package_installer.pip_environment()
    assert environment["PIP_INDEX_URL"] == "mirror"
    assert all(Path(environment[name]).is_relative_to(empty_clone) for name in ("PIP_CACHE_DIR", "TMPDIR", "TEMP"))


def test_real_pip_failure_is_logged_and_explained(empty_clone):
    with pytest.raises(SetupError, match="expected pip to install"):
        arguments = ["install", "--no-index", "h3te-no-such-package"]
        status, output = package_installer.run_pip(arguments, python=Path(sys.executable))
        assert status
        raise package_installer.explain("packages", arguments, output)
    assert "h3te-no-such-package" in (layout.LOGS / "setup.log").read_text(encoding="utf-8")


def test_torch_without_gpu_tries_the_cpu_build_then_the_default_and_says_so(pip, monkeypatch):
    said = []
    pip.answers = [(1, NO_BUILD)]
    if torch_install.candidates(gpu=False, system="Linux") != torch_install.candidates(gpu=False):
        pytest.skip("only Linux has two builds on the default index")
    monkeypatch.setattr(preflight, "check_space", lambda *needs: None)
    torch_install.install_torch(gpu=False, say=said.append)
    assert [call[-1] for call in pip.calls] == ["torch==2.13.0+cpu", "torch==2.13.0"]
    assert "H3TE_TORCH_INDEX" in said[0]


def test_torch_without_network_is_not_tried_twice(pip):
    pip.answers = [(1, OFFLINE)]
    with pytest.raises(SetupError, match=r"set-up, torch: expected pip to install"):
        torch_install.install_torch(gpu=False, say=print)
    assert len(pip.calls) == 1


def test_torch_index_of_the_user_is_passed_through(monkeypatch):
    monkeypatch.setenv("H3TE_TORCH_INDEX", "https://wheels.example/cpu")
    assert torch_install.candidates(False, "Linux") == [["--index-url", "https://wheels.example/cpu", "torch==2.13.0"]]


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_default_torch_is_taken_where_it_is_a_cpu_build(monkeypatch, system):
    monkeypatch.delenv("H3TE_TORCH_INDEX", raising=False)
    assert torch_install.candidates(False, system) == [["torch==2.13.0"]]


def test_shim_is_applied_once(tmp_path):
    (tmp_path / "torchvision").mkdir()
    extension = tmp_path / "torchvision" / "extension.py"
    extension.write_text("def _has_ops():\n    return False\n")
    (tmp_path / "torchvision" / "_C.so").touch()
    torchvision_shim.apply(tmp_path)
    once = extension.read_text()
    torchvision_shim.apply(tmp_path)
    assert extension.read_text() == once and once.count("qnms") == 1
    assert not (tmp_path / "torchvision" / "_C.so").exists()


def test_missing_packages_are_found_by_name(tmp_path):
    (tmp_path / "Some_Package-1.2.dist-info").mkdir()
    wanted = tmp_path / "list.txt"
    wanted.write_text("# comment\nsome-package>=1\nother==2  # why\n-r more.txt\n")
    assert package_installer.missing([wanted], tmp_path) == ["other"]


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


def test_requirements_of_a_foreign_host_leave_torch_and_frontend_out(tmp_path, empty_clone):
    listed = "comfyui-frontend-package==9.9\ncomfyui-workflow-templates==1\ntorch\ntorchvision\nav>=16\nblake3\n"
    (tmp_path / "requirements.txt").write_text(listed)
    assert list(comfy_install.foreign_requirements(tmp_path).values()) == ["av>=16", "blake3"]
    assert comfy_install.frontend_version(tmp_path) == "9.9"
    assert not comfy_install.foreign_is_ready(tmp_path)


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


def test_clean_refuses_to_delete_large_models_of_the_user(empty_clone, monkeypatch):
    models = layout.PYPI_HOST / "models"
    models.mkdir(parents=True)
    (models / "big.safetensors").touch()
    monkeypatch.setattr(clean, "_OWN_MODEL_LIMIT", -1)
    with pytest.raises(SystemExit, match=r"expected only generated files.*\n.*big\.safetensors\nMove them away"):
        clean.clean()
    assert (models / "big.safetensors").exists()


def test_import_across_a_boundary_is_found(tmp_path):
    (tmp_path / "encoder" / "deep").mkdir(parents=True)
    (tmp_path / "encoder" / "good.py").write_text("import torch\nfrom . import rope\nfrom .deep import part\n")
    bad = Path("encoder", "deep", "bad.py")
    (tmp_path / bad).write_text("def f():\n    import comfy.ops\n    from ...nodes import x\n")
    found = [f"{bad}:{line}: encoder/ must not import {name}" for line, name in ((2, "comfy"), (3, "nodes"))]
    assert lint.crossings(tmp_path) == found


def test_every_make_target_is_one_line_into_scripts_and_documented():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    documented = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    targets = targets_help.targets(makefile)
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE).group(1).split()
    assert set(phony) == set(targets) and {"setup", "demo", "demo-ui", "test", "test-all"} <= set(targets)
    for target in targets:
        recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE).group(1)
        script = re.fullmatch(r"\t@\$\(PYTHON\) scripts/(\w+\.py).*\n", recipe)
        assert script, f"{target} is not one line into scripts/"
        assert f"`make {target}" in documented and f"python scripts/{script.group(1)}" in documented
        assert (SCRIPTS / script.group(1)).is_file()


def test_ci_runs_make_test():
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_bootstrap_needs_the_standard_library_only():
    """A bare interpreter reads every module that runs before .venv exists."""
    modules = "setup, layout, stamps, preflight, package_installer, torch_install, torchvision_shim, comfy_install"
    code = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
