"""Set-up and pip: what is asked for, in which order, and what is said when pip fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import comfy_install
import layout
import package_installer
import preflight
import pytest
import torch_install
import torchvision_shim
from h3te_tests.empty_clone import moved_folders, recording_pip  # noqa: F401 (fixtures)
from package_installer import SetupError

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"

OFFLINE = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('Failed to establish a new "
    "connection: [Errno -3] Temporary failure in name resolution')': /simple/einops/\n"
    "ERROR: Could not find a version that satisfies the requirement einops (from versions: none)\n"
    "ERROR: No matching distribution found for einops\n"
)
NOTHING = "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)\n"
NO_BUILD = "ERROR: No matching distribution found for torch==2.13.0+cpu\n"


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
        (NOTHING, "nothing"),
        ("WARNING: The repository located at 10.0.0.1 is not a trusted or secure host.\n" + NOTHING, "trust"),
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


@pytest.mark.parametrize("output", [OFFLINE, NOTHING])
def test_torch_without_network_is_not_tried_twice(pip, output):
    pip.answers = [(1, output)]
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


def test_requirements_of_a_foreign_host_leave_torch_and_frontend_out(tmp_path, empty_clone):
    listed = "comfyui-frontend-package==9.9\ncomfyui-workflow-templates==1\ntorch\ntorchvision\nav>=16\nblake3\n"
    (tmp_path / "requirements.txt").write_text(listed)
    assert list(comfy_install.foreign_requirements(tmp_path).values()) == ["av>=16", "blake3"]
    assert comfy_install.frontend_version(tmp_path) == "9.9"
    assert not comfy_install.foreign_is_ready(tmp_path)


def test_bootstrap_needs_the_standard_library_only():
    """A bare interpreter reads every module that runs before .venv exists."""
    modules = "setup, layout, stamps, preflight, package_installer, torch_install, torchvision_shim, comfy_install"
    code = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
