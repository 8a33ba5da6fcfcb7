"""The official path of several releases of transformers against our encoder; writes docs/transformers-versions.md.

Then the same releases and 5.14, unpatched and patched (test_patches.py, docs/transformers-patches.md).
Each release is installed into `.comfyui/transformers/` once (about 45 MB of download, no other torch) and runs in a
process of its own. Exits with 1, and names every figure, when something is not as the document says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import layout
import test_patches
from setup import enter
from transformers_versions import AGAIN, VERSIONS, provide
from versions_report import DOCUMENT, document
from versions_verdict import problems

PROBE = layout.ROOT / "tests" / "version_probe.py"
LIMIT_SECONDS = 600


def probe(tokenizer: Path, folder: Path | None, *arguments: str) -> dict:
    """The report of one process that takes transformers from `folder`, or from .venv."""
    changes = {"PYTHONPATH": str(folder)} if folder else {}
    environment = layout.child_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **changes)
    command = [sys.executable, str(PROBE), str(tokenizer), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    if done.returncode:
        raise RuntimeError(
            f"test-versions: expected a report from `{' '.join(command)}` with PYTHONPATH={folder or ''}, got exit "
            f"status {done.returncode}:\n{done.stderr[-1500:]}\nDelete {folder or layout.VENV} and run `{AGAIN}` again."
        )
    return json.loads(done.stdout.splitlines()[-1])


def measure(version: str, tokenizer: Path, folder: Path | None) -> dict:
    """The report of one release, which must be the one that was asked for."""
    started = time.monotonic()
    result = probe(tokenizer, folder)
    if result["versions"]["transformers"] != version:
        raise RuntimeError(
            f"test-versions: expected transformers {version}, got {result['versions']['transformers']} from {folder}. "
            f"Delete that folder and run `{AGAIN}` again."
        )
    print(f"  transformers {version}: measured in {time.monotonic() - started:.0f} s", flush=True)
    return result


def write(text: str) -> bool:
    """Replace the document; returns whether it changed."""
    if DOCUMENT.is_file() and DOCUMENT.read_text(encoding="utf-8") == text:
        return False
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(text, encoding="utf-8", newline="\n")
    return True


def collect(tokenizer: Path) -> tuple[dict[str, dict], dict]:
    """(version -> report, the report of the process without transformers). Raises RuntimeError saying what to do."""
    folders = {version: provide(version) for version in VERSIONS}
    blocked = probe(tokenizer, None, "--without-transformers")
    return {version: measure(version, tokenizer, folder) for version, folder in folders.items()}, blocked


def main(host: Path) -> int:
    """Measures all; returns 1 when a figure is not as expected or could not be measured."""
    try:
        results, blocked = collect(host / "comfy" / "text_encoders" / "qwen25_tokenizer")
    except RuntimeError as error:  # SetupError is one
        print(f"\n{error}\n", file=sys.stderr)
        return 1
    text, wrong = document(results, blocked), problems(results, blocked)
    print(text.split("\n\n")[3])
    print(f"\n{DOCUMENT.relative_to(layout.ROOT)}: {'written' if write(text) else 'unchanged'}")
    print("\n".join(f"FAIL  {line}" for line in wrong) or "PASS  every figure is as the document says")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(enter()) | test_patches.main())
