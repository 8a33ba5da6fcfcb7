"""transformers' Qwen3-VL unpatched and patched, in several releases; writes docs/transformers-patches.md.

Part of `make test-versions`. Each release runs in a process of its own. Exits with 1, and names what is not so, when a
scene does not fail unpatched, does not pass patched, or a figure is not as the document says.
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
LIMIT_SECONDS = 600


def probe(version: str, folder: Path | None) -> dict:
    """The report of one process that takes transformers from `folder`, or from .venv; it must be that version."""
    changes = {"PYTHONPATH": str(folder)} if folder else {}
    environment = layout.child_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **changes)
    command = [sys.executable, str(PROBE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
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
        results = {version: probe(version, provide(version)) for version in PATCHED_VERSIONS}
    except RuntimeError as error:  # SetupError is one
        print(f"\n{error}\n", file=sys.stderr)
        return 1
    wrong = problems(results)
    DOCUMENT.write_text(document(results), encoding="utf-8", newline="\n")
    print(f"{DOCUMENT.relative_to(layout.ROOT)}: written")
    print("\n".join(f"FAIL  {line}" for line in wrong) or "PASS  every scene and figure is as the document says")
    return int(bool(wrong))


if __name__ == "__main__":
    enter()
    sys.exit(main())
