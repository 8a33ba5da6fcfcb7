"""What the demo leaves behind in output/demo/: the table, the conditioning, pictures of the presentations, JSON to
share."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import demo_requests
import torch
from demo_claims import Claim, probed
from demo_requests import REQUESTS
from given_checkpoint import Checkpoint
from pack import h3te_module
from safetensors.torch import save_file

TITLES = {
    1: "Hidden states against transformers, same files",
    2: "The node graph in ComfyUI against the encoder called directly",
    3: "Files and memory",
    4: "Stop",
    5: "Packed files: nvfp4_awq, int8_convrot, GGUF; reading layer by layer",
    6: "Partial loading by ComfyUI's patcher",
    7: "References in any order, keyframes anywhere, several prompts in one pass",
    8: "Nothing is encoded twice",
}
DEMO_WARNING = "demo weights: output is meaningless (exactness, files, memory and Stop are real)"


def line(claim: Claim) -> str:
    """One line for the terminal."""
    return f"  {'PASS' if claim.passed else 'FAIL'}  ({claim.number}) {claim.what}: {claim.figure}"


def keep_conditioning(server, results: Path) -> None:
    """Copy what the graphs produced, under the requests' names."""
    results.mkdir(parents=True, exist_ok=True)
    for request in REQUESTS:
        _replace(
            results / f"conditioning_{request.name}.safetensors",
            lambda path, r=request: save_file(probed(server, r), path),
        )


def draw(checkpoint: Checkpoint, results: Path) -> None:
    """Pictures of the presentations, as the model reads them."""
    tokens, presentation = h3te_module("encoder.tokens"), h3te_module("encoder.presentation")
    picture = h3te_module("encoder.presentation_picture")
    tokenizer = tokens.H3Tokenizer.from_folder(checkpoint.tokenizer)
    for request in REQUESTS:
        shown = presentation.present(request.prompt, demo_requests.references(request))
        sequence = tokens.tokenize(shown, tokenizer)
        sheet = picture.Sheet(request.title, shown, sequence, thumbs=picture.seen_pictures(shown))
        drawn = picture.draw(sheet)
        _replace(results / f"presentation_{request.name}.png", lambda path, page=drawn: page.save(path, format="PNG"))


def write(results: Path, checkpoint: Checkpoint, claims: Sequence[Claim], host: str, seconds: float) -> None:
    """report.md and report.json."""
    facts = machine(host) | {"checkpoint": checkpoint.path.name, "demo_weights": checkpoint.is_demo, "seconds": seconds}
    body = json.dumps({**facts, "claims": [asdict(claim) for claim in claims]}, indent=2)
    _replace(results / "report.json", lambda path: path.write_text(body, encoding="utf-8"))
    _replace(results / "report.md", lambda path: path.write_text(_markdown(facts, claims), encoding="utf-8"))


def machine(host: str) -> dict:
    """What the figures were measured on; nothing that names a person or a place."""
    import transformers

    return {
        "comfyui": host,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads",
    }


def _markdown(facts: dict, claims: Sequence[Claim]) -> str:
    lines = ["# Demo report", ""]
    if facts["demo_weights"]:
        lines += [f"**{DEMO_WARNING}**", ""]
    lines += [f"- {key}: {value if key != 'seconds' else f'{value:.0f}'}" for key, value in facts.items()]
    lines += ["", "| | claim | measured |", "|---|---|---|"]
    for number, title in TITLES.items():
        found = [f"| {'PASS' if c.passed else 'FAIL'} | {c.what} | {c.figure} |" for c in claims if c.number == number]
        lines += [f"| **{number}** | **{title}** | |", *found] if found else []
    return "\n".join(lines) + "\n"


def closing(checkpoint: Checkpoint, claims: Sequence[Claim], host: str, seconds: float, results: Path) -> str:
    """The last words in the terminal."""
    failed = sum(not claim.passed for claim in claims)
    verdict = f"{len(claims)} claims checked, {failed} FAILED" if failed else f"all {len(claims)} claims PASS"
    lines = ["", f"{verdict} in {seconds:.0f} s, on ComfyUI {host}."]
    lines.append(f"Table, conditioning and pictures of what the model reads: {results}")
    if checkpoint.is_demo:
        lines.append(f"These were {DEMO_WARNING}. On your own file, with 16 GB of RAM or more:")
        lines.append("    make demo CHECKPOINT=/path/to/file-or-folder")
        lines.append("    python scripts/demo.py --checkpoint /path/to/file-or-folder      (without make)")
    else:
        lines.append(f"To share: {results / 'report.md'}")
    return "\n".join(lines)


def _replace(path: Path, write_to) -> None:
    """Write under a temporary name, then rename: a reader never finds half a file."""
    temporary = path.with_name(path.name + ".part")
    write_to(temporary)
    temporary.replace(path)
