"""transformers' Qwen3-VL unpatched and patched, in several releases; writes docs/transformers-patches.md.

Part of `make test-versions`. Each release runs in a process of its own. Exits with 1, and names what is not so, when a
scene does not fail unpatched, does not pass patched, a figure is not as the document says, or a test of the patches or
of the official backend fails on an older release.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import layout
from patches_report import DOCUMENT, document
from patches_verdict import problems
from setup import enter
from transformers_versions import AGAIN, PATCHED_VERSIONS, provide

PROBE = layout.ROOT / "tests" / "patch_probe.py"
TESTS = ("tests/test_patch_scenes.py", "tests/test_patch_official.py")
LIMIT_SECONDS = 600


def environment(folder: Path | None) -> dict[str, str]:
    """The environment of a process that takes transformers from `folder`, or from .venv."""
    changes = {"PYTHONPATH": str(folder)} if folder else {}
    return layout.child_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **changes)


def failed_tests(version: str, folder: Path | None) -> list[str]:
    """What pytest says of the patches and of the official backend on this release; the newest is `make test`'s."""
    if folder is None:
        return []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(
        command, env=environment(folder), cwd=layout.ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode and not said:
        said = [f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}"]
    return [f"transformers {version}: {line}" for line in said]


def probe(version: str, folder: Path | None) -> dict:
    """The report of one process that takes transformers from `folder`, or from .venv; it must be that version."""
    command = [sys.executable, str(PROBE)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_SECONDS)
    result = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    if result.get("versions", {}).get("transformers") != version:
        raise RuntimeError(
            f"test-patches: expected a report on transformers {version} from `{' '.join(command)}` with "
            f"PYTHONPATH={folder or ''}, got exit status {done.returncode} and {result.get('versions')}:\n"
            f"{done.stderr[-1500:]}\nDelete {folder or layout.VENV} and run `{AGAIN}` again."
        )
    print(f"  transformers {version}: patches tried in {result['seconds']:.0f} s", flush=True)
    return result


def main() -> int:
    """Measures all; returns 1 when something is not as expected or could not be measured."""
    try:
        folders = {version: provide(version) for version in PATCHED_VERSIONS}
        results = {version: probe(version, folder) for version, folder in folders.items()}
    except RuntimeError as error:  # SetupError is one
        print(f"\n{error}\n", file=sys.stderr)
        return 1
    wrong = problems(results)
    for version, folder in folders.items():
        wrong += failed_tests(version, folder)
    DOCUMENT.write_text(document(results), encoding="utf-8", newline="\n")
    print(f"{DOCUMENT.relative_to(layout.ROOT)}: written")
    print("\n".join(f"FAIL  {line}" for line in wrong) or "PASS  every scene and figure is as the document says")
    return int(bool(wrong))


if __name__ == "__main__":
    enter()
    sys.exit(main())
