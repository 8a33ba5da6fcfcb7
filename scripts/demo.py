"""The main job on this machine, proven: a real ComfyUI encodes real pictures with our nodes, and every claim is
checked.

    python scripts/demo.py                             demo weights (generated), one to two minutes
    python scripts/demo.py --checkpoint PATH           the same rows on your own file or folder
    python scripts/demo.py --ui                        leaves ComfyUI open for the browser

`make demo`, `make demo CHECKPOINT=PATH` and `make demo-ui` are the same. Results are written to output/demo/.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import command
import layout
import setup

RESULTS = layout.OUTPUT / "demo"


def main() -> int:
    parsed = _arguments()
    host = setup.enter()
    return command.status_of("demo", lambda: run(parsed, host))


def run(parsed: argparse.Namespace, host: Path) -> int:
    started = time.perf_counter()
    checkpoint = _checkpoint(parsed.checkpoint, host)
    packed = {} if parsed.checkpoint else _packed(checkpoint)
    if parsed.ui:
        return _open_for_browser(host, checkpoint, parsed.port)
    return _prove(host, checkpoint, packed, started)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the main job in a real ComfyUI and check every claim.")
    parser.add_argument(
        "--checkpoint", type=Path, help="your own text encoder: a .safetensors or .gguf file, or a folder"
    )
    parser.add_argument("--ui", action="store_true", help="leave ComfyUI open and print its address")
    parser.add_argument("--port", type=int, help="the port for --ui (default: any free one)")
    return parser.parse_args()


def _checkpoint(path: Path | None, host: Path):
    import given_checkpoint

    return given_checkpoint.given(path, host, "demo") if path else given_checkpoint.demo(host, "demo")


def _packed(checkpoint) -> dict[str, Path]:
    import demo_packed

    return demo_packed.make(checkpoint.path, "demo")


def _server(host: Path, checkpoint, port: int | None = None):
    import comfy_install
    import given_checkpoint
    from comfy_server import ComfyServer

    folders = {"custom_nodes": [Path(__file__).with_name("host_nodes")]}
    # demo weights may lie anywhere too: what decides is whether ComfyUI looks there by itself
    if checkpoint.path.parent != comfy_install.base_directory(host) / "models" / "text_encoders":
        folders["text_encoders"] = [given_checkpoint.lone_folder(checkpoint.path)]
    return ComfyServer(host, port=port, model_folders=folders)


def _prove(host: Path, checkpoint, packed: dict[str, Path], started: float) -> int:
    import demo_budget_claims
    import demo_cache_claims
    import demo_chain_claims
    import demo_claims
    import demo_memory_claims
    import demo_packed_claims
    import demo_report

    claims = []

    def say(what: str) -> None:
        print(f"  [{time.perf_counter() - started:6.1f} s] {what} ...", flush=True)

    def collect(found) -> None:
        for claim in found:
            claims.append(claim)
            print(demo_report.line(claim), flush=True)

    readers = demo_packed_claims.start_readers(checkpoint, packed) if packed else {}
    budgets = demo_budget_claims.start_budgets(host, checkpoint) if packed else None
    with _server(host, checkpoint) as server:
        version = server.version
        collect(demo_claims.graph_claims(server, checkpoint, say))
        collect(demo_claims.stop_claims(server, checkpoint, say))
        collect(demo_memory_claims.memory_claims(server, checkpoint, say))
        collect(demo_chain_claims.chain_claims(server, checkpoint, say))
        collect(demo_cache_claims.cache_claims(server, checkpoint, say))
        if packed:
            collect(demo_packed_claims.packed_claims(server, checkpoint, packed, say))
            collect(demo_packed_claims.reader_claims(readers))
            collect(demo_budget_claims.budget_claims(budgets, checkpoint))
        demo_report.keep_conditioning(server, RESULTS)
    if not packed:
        collect(demo_packed_claims.streamed_claims(checkpoint, say))
    collect(demo_claims.official_claims(checkpoint, say))
    demo_report.draw(checkpoint, RESULTS)
    seconds = time.perf_counter() - started
    demo_report.write(RESULTS, checkpoint, claims, version, seconds)
    print(demo_report.closing(checkpoint, claims, version, seconds, RESULTS), flush=True)
    return 0 if all(claim.passed for claim in claims) else 1


def _open_for_browser(host: Path, checkpoint, port: int | None) -> int:
    import demo_requests

    with _server(host, checkpoint, port) as server:
        for picture in sorted(demo_requests.PICTURES.glob("*.jpg")):
            server.upload_image(picture)
        print(f"\nComfyUI {server.version} is open at {server.url}")
        print(f"In Load MiniMax H3 Text Encoder (H3TE), choose {checkpoint.value}")
        print("Templates: Workflow > Browse Templates, under this pack's name. Ctrl-C ends it.", flush=True)
        server.process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
