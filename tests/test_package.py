"""What is published: one version, a changelog that says what happened to workflows, a zip of what users need, and
requirements that move nothing of ComfyUI's."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

import package_zip
import pytest
from package_installer import normalise, wanted
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NEVER = {"torch", "torchvision", "torchaudio", "numpy", "pillow", "safetensors", "tokenizers", "transformers"}


def project() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def version() -> str:
    return re.search(r'^version = "([^"]+)"$', project(), flags=re.MULTILINE)[1]


def releases() -> dict[str, str]:
    """Heading of each release in the changelog -> its text."""
    parts = re.split(r"^## \[([^\]]+)\].*$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def packed() -> list[str]:
    """What git holds and .comfyignore does not leave out."""
    held, ignored = (
        subprocess.run(["git", "ls-files", *more], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for more in ([], ["--cached", "--ignored", "--exclude-from=.comfyignore"])
    )
    return sorted(set(held.splitlines()) - set(ignored.splitlines()))


def test_the_newest_release_is_the_version():
    names = list(releases())
    assert names[0] == "Unreleased"
    assert names[1] == version()


def test_the_version_stands_in_one_place():
    """Code asks pyproject.toml."""
    from h3te.encoder.pack_version import pack_version

    assert pack_version() == version()
    files = [*ROOT.glob("encoder/**/*.py"), *ROOT.glob("nodes/**/*.py"), *ROOT.glob("web/*.js"), ROOT / "worker.py"]
    assert [file.name for file in files if f'"{version()}"' in _code(file)] == []


def _code(file: Path) -> str:
    """Without docstrings that give an example."""
    return re.sub(r'""".*?"""', "", file.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("release", releases())
def test_a_release_says_what_happened_to_workflows(release):
    assert re.search(r"^Workflows: \S", releases()[release], flags=re.MULTILINE)
    kinds = re.findall(r"^### (.+)$", releases()[release], flags=re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert len(kinds) == len(set(kinds))


def test_the_zip_has_what_users_need_and_nothing_else():
    assert package_zip.wrong(packed()) == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([*package_zip.NEEDED, "tests/test_goldens.py"], "expected nothing of tests/"),
        ([name for name in package_zip.NEEDED if name != "worker.py"], "expected ['worker.py'] in the zip, got none"),
    ],
)
def test_a_wrong_zip_is_named(names, said):
    assert [problem for problem in package_zip.wrong(names) if problem.startswith(said)] != []


def test_what_users_read_in_the_zip_leads_into_the_zip():
    """ComfyUI's page looks for the pictures of help pages in web/docs, in every language."""
    held = set(packed())
    for page in (name for name in held if name.startswith("web/docs/") and name.endswith(".md")):
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            assert f"web/docs/{picture}" in held


def test_the_icon_is_what_the_registry_takes():
    """Square, at most 400 x 400, from our own drawing beside it."""
    with Image.open(ROOT / "assets" / "icon.png") as icon:
        assert icon.size == (400, 400)
    assert (ROOT / "assets" / "icon.svg").is_file()
    assert '/assets/icon.png"' in project()


def test_requirements_move_nothing_of_comfyuis(comfy_folder):
    """Nothing that ComfyUI lists, no torch; and what ours needs, ComfyUI has, at any version."""
    ours, host = wanted(ROOT / "requirements.txt"), wanted(comfy_folder / "requirements.txt")
    assert set(ours) & (NEVER | set(host)) == set()
    assert [line for line in ours.values() if not re.fullmatch(r"[\w-]+>=[\d.]+", line)] == []
    assert f"dependencies = {sorted(ours.values())}".replace("'", '"') in project()
    for name in ours:
        for needed in metadata.requires(name) or []:
            if "extra ==" not in needed:
                assert not re.search(r"<|==|~=|!=", needed.split(";")[0]), needed
                assert normalise(re.match(r"[\w.-]+", needed)[0]) in set(host) | {"requests"}, needed
