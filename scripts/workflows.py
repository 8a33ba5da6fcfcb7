"""The bundled workflows, checked: files, links, widgets, models, comfy-lint, and what their encode part emits.

    python scripts/workflows.py            all checks, under two minutes
    python scripts/workflows.py --write    first write workflows/ and tests/workflow_api/ anew from their description
    python scripts/workflows.py --record   first record, from a COMFYUI_PATH with H3 nodes of its own, what it says
                                           about the nodes and what its H3 nodes emit; then write

`make workflows` is the first. The exit status is 1 when a check fails. What was found is in output/workflows/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import command
import layout
import setup

H3_NODES = "MiniMaxH3ReferenceToVideo"
BASE = layout.OUTPUT / "workflows" / "base"


def main() -> int:
    parsed = _arguments()
    host = setup.enter()
    return command.status_of("workflows", lambda: run(host, parsed.write, parsed.record, parsed.date))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check the bundled workflows.")
    parser.add_argument("--write", action="store_true", help="write the files anew from their description first")
    parser.add_argument("--record", action="store_true", help="record facts from COMFYUI_PATH first, then write")
    parser.add_argument("--date", help="with --record: of that ComfyUI, where its folder has no git history")
    return parser.parse_args()


def run(host: Path, write: bool = False, record: bool = False, date: str | None = None) -> int:
    """Prints a table; returns 1 when a row fails. Raises ValueError, ServerError."""
    import comfy_install
    import workflow_conditioning
    import workflow_definitions
    import workflow_encode
    import workflow_files
    import workflow_rows

    started, measured, rows = time.monotonic(), {}, []

    def collect(found) -> None:
        for row in found:
            rows.append(row)
            _print(row)

    with _server(host) as server:
        info = server.object_info()
        if record:
            _record_definitions(host, info, server.version, date)
        for path in workflow_files.write() if write or record else ():
            print(f"  wrote {path.relative_to(layout.ROOT)}", flush=True)
        known, live = workflow_definitions.load(), workflow_definitions.Definitions(info, server.version)
        saved, graphs = workflow_rows.read(workflow_files.SAVED), workflow_rows.read(workflow_files.SENT)
        collect(workflow_rows.static_rows(saved, graphs, known))
        collect(workflow_rows.live_rows(saved, known, live))
        workflow_conditioning.upload(server)
        if record:
            encoding = workflow_encode.encoding(graphs)
            found = {name: workflow_conditioning.measure(server, each, set(info))[1] for name, each in encoding.items()}
            workflow_conditioning.save(found, server.version, _date(host, date))
        collect(workflow_rows.encode_rows(server, graphs, set(info), measured))
    comfy_install.unlink_packs(BASE)  # a link back to the clone is no place for tools that walk output/
    return _close(rows, measured, server.version, time.monotonic() - started)


def _close(rows: list, measured: dict, version: str, seconds: float) -> int:
    import workflow_rows

    workflow_rows.RESULTS.mkdir(parents=True, exist_ok=True)
    facts = [{"what": row.what, "size": row.size, "problems": row.problems} for row in rows]
    report = {"comfyui": version, "rows": facts, "hosts_own": measured}
    (workflow_rows.RESULTS / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    failed = sum(not row.passed for row in rows)
    print(f"\nworkflows: {len(rows) - failed} of {len(rows)} checks passed on ComfyUI {version} in {seconds:.0f} s")
    return int(failed > 0)


def _print(row) -> None:
    print(f"  {'PASS' if row.passed else 'FAIL'}  {row.what} ({row.size})", flush=True)
    for problem in row.problems[:12]:
        print(f"        {problem}", flush=True)
    if len(row.problems) > 12:
        print(f"        and {len(row.problems) - 12} more, in output/workflows/report.json", flush=True)


def _server(host: Path):
    """In a base directory of its own, with the demo checkpoint, the pack and the test-only nodes."""
    import comfy_install
    import demo_checkpoint
    import given_checkpoint
    from comfy_server import ComfyServer
    from workflow_encode import CHECKPOINT

    comfy_install.prepare_base(BASE)
    folder = BASE / "models" / "text_encoders" / CHECKPOINT.rstrip("/")
    if demo_checkpoint.make_folder(folder, given_checkpoint.bundled_tokenizer(host)):
        print(f"workflows: made the demo checkpoint in {folder}", flush=True)
    folders = {"custom_nodes": [Path(__file__).with_name("host_nodes")]}
    return ComfyServer(host, base=BASE, log=layout.LOGS / "workflows.log", model_folders=folders)


def _record_definitions(host: Path, info: dict, version: str, date: str | None) -> None:
    import workflow_definitions
    import workflow_graphs

    if H3_NODES not in info:
        raise ValueError(
            f"--record: expected a ComfyUI with H3 nodes of its own (0.30 or newer), got {version} without "
            f"{H3_NODES}. Name one: COMFYUI_PATH=/path/to/ComfyUI."
        )
    workflow_definitions.save(info, workflow_graphs.KINDS, version, _date(host, date))


def _date(host: Path, given: str | None) -> str:
    """Of the host's newest commit."""
    if given:
        return given
    done = subprocess.run(["git", "-C", str(host), "log", "-1", "--format=%cs"], capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        raise ValueError(f"--record: expected git history in {host}, got none. Say its date: --date 2026-08-22.")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
