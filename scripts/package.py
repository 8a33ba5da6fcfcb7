"""The pack as the registry and the Manager hand it out: validated, packed, looked through, tried in a fresh ComfyUI.

    python scripts/package.py           everything; the zip stays in output/package/source/node.zip
    python scripts/package.py --no-run  without the ComfyUI

`comfy node validate` and `comfy node pack` come from comfy-cli, which the first run installs into .comfyui/package.
comfy-import-guard looks up what the pack uses of ComfyUI in the stock ComfyUI and in the one that COMFYUI_PATH names.
What is packed is HEAD: changes that are not committed are not in it. Nothing is published.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import command
import layout
import setup

OUT = layout.OUTPUT / "package"
NAME = "minimax-h3-text-encoder"


def main() -> int:
    parser = argparse.ArgumentParser(description="Validate, pack and try the pack.")
    parser.add_argument("--no-run", action="store_true", help="do not start a ComfyUI with the unpacked zip")
    parsed = parser.parse_args()
    host = setup.enter()
    return command.status_of("package", lambda: run(host, not parsed.no_run))


def run(host: Path, start: bool = True) -> int:
    """Prints a row per check; returns 1 when one fails. Raises SetupError, ServerError."""
    import comfy_install
    import package_guard
    import package_smoke
    import package_tools
    import package_zip

    package_tools.provide()
    zipped, problems = package_zip.make(OUT / "source")
    failed = _row("comfy node validate, comfy node pack, what is in the zip", problems)
    if zipped is None:
        return 1
    print(f"        {zipped.relative_to(layout.ROOT)}: {zipped.stat().st_size / 1e6:.2f} MB", flush=True)
    pack = package_zip.unpack(zipped, OUT / "base" / "custom_nodes" / NAME)
    for place in dict.fromkeys((layout.PYPI_HOST, host)):
        found = package_guard.problems(pack, place, OUT / "guard")
        failed |= _row(f"comfy-import-guard on ComfyUI {comfy_install.host_version(place)}", found)
    if start:
        failed |= _row("the unpacked zip in a fresh ComfyUI", package_smoke.problems(pack, OUT / "base", host))
    return int(failed)


def _row(what: str, problems: list[str]) -> bool:
    print(f"  {'FAIL' if problems else 'PASS'}  {what}", flush=True)
    for problem in problems:
        print(f"        {problem}", flush=True)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
