"""Whole encodes at the real width in bf16 against transformers' own model, and against the floor of the same shapes.

Hidden 5120, 4 decoder layers, the whole vision tower; per request and round one process of ours, one of transformers
(see peers.py) and one of the floor (see floor.py), taking turns. Both sides must give the same tokens, and the same
bits for text; with pictures the released patch convolution rounds otherwise (relative L2 about 1.3e-2, bf16's own
rounding).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import charts
import layout
from given_checkpoint import bundled_tokenizer
from rounds import GIVE_BACK, median, ratio, run, take_turns
from verdict import Target, Verdict, at_most
from wide_files import bf16_folder

REQUESTS = ("prompt", "keyframes", "references")
SIDES = ("ours", "official", "floor")
LAYERS = 4
REPEATS = {"prompt": 3}  # of the short one in each process
TIME_LIMIT, MEMORY_LIMIT = 0.82, 0.60
DECODER_LIMIT, VISION_LIMIT = 1.20, 1.25  # to the floor: what counts where the official time is close to it itself
LIMIT_SECONDS = 1800
SAME = 2e-2  # relative L2
PICTURE = layout.ROOT / "benchmarks" / "results" / "encode.png"
PARTS = ("tokenise", "pixels", "vision", "mergers", "decoder", "unpack", "rest")


def bench(rounds: int, host: Path) -> Verdict:
    folder, tokenizer = bf16_folder(), bundled_tokenizer(host)
    layout.TEMP.mkdir(parents=True, exist_ok=True)
    rows = {}
    with tempfile.TemporaryDirectory(dir=layout.TEMP, prefix="encode_") as kept:
        for request in REQUESTS:
            print(f"  {request} ", end="", flush=True)
            out = {side: Path(kept) / f"{request}_{side}.safetensors" for side in SIDES}
            cases = {side: partial(_measured, side, folder, request, tokenizer, out[side]) for side in SIDES}
            timed = take_turns(cases, rounds)
            frugal = take_turns({side: partial(cases[side], environment=GIVE_BACK) for side in SIDES[:2]}, 1)
            rows[request] = row(timed, frugal) | compared(out["ours"], out["official"], request)
    charts.encode(rows, PARTS, PICTURE)
    targets = [target for request, found in rows.items() for target in targets_of(request, found)]
    return Verdict("encode", lines(rows), targets, {"layers": LAYERS, "rounds": rounds, **rows})


def _measured(
    side: str, folder: Path, request: str, tokenizer: Path, out: Path, environment: Mapping[str, str] | None = None
) -> dict:
    options = ["--layers", LAYERS, "--tokenizer", tokenizer, "--repeats", REPEATS.get(request, 1)]
    if side != "floor":
        options += ["--out", out]
    return run("measure_whole.py", side, folder, request, *options, environment=environment, limit=LIMIT_SECONDS)


def row(found: Mapping[str, Sequence[dict]], frugal: Mapping[str, Sequence[dict]]) -> dict:
    """found: the rounds of each of SIDES; frugal: of the first two, with an allocator that gives back at once what is
    freed. Memory beyond the weights is taken from that: otherwise what is kept by chance is in it."""
    ours, official, floor = (found[side] for side in SIDES)
    known = ours[0]["beyond"] is not None
    return {
        "tokens": ours[0]["tokens"],
        "seconds": {side: median(found[side], "seconds") for side in SIDES},
        "to_official": ratio(ours, official, "seconds"),
        "official_to_floor": ratio(official, floor, "seconds"),
        "to_floor": {part: _part_ratio(ours, floor, part) for part in floor[0]["parts"]},
        "beyond": {side: median(frugal[side], "beyond") if known else None for side in SIDES[:2]},
        "beyond_to_official": ratio(frugal["ours"], frugal["official"], "beyond") if known else None,
        "beyond_as_allocated": {side: median(found[side], "beyond") if known else None for side in SIDES[:2]},
        "warmed": {side: median(frugal[side], "warmed") for side in SIDES[:2]},
        "cpu_to_official": ratio(ours, official, "cpu_seconds"),
        "peak": {side: median(found[side], "peak") for side in SIDES[:2]},
        "load_seconds": {side: median(found[side], "load_seconds") for side in SIDES[:2]},
        "parts": {side: _parts(found[side]) for side in SIDES},
    }


def _part_ratio(ours: Sequence[dict], floor: Sequence[dict], part: str) -> float:
    return ratio([found["parts"] for found in ours], [found["parts"] for found in floor], part)


def _parts(rounds: Sequence[dict]) -> dict[str, float]:
    return {part: median([found["parts"] for found in rounds], part) for part in rounds[0]["parts"]}


def compared(ours: Path, official: Path, request: str) -> dict:
    """Raises RuntimeError when the two sides did not do the same work."""
    from safetensors.torch import load_file

    mine, theirs = load_file(ours), load_file(official)
    same = mine["ids"].equal(theirs["ids"])
    error = difference(mine["hidden"], theirs["hidden"]) if same else float("nan")
    if not same or not error <= SAME:
        raise RuntimeError(
            f"bench encode: expected the same tokens and hidden states of the request {request} from both sides, got "
            f"{len(mine['ids'])} and {len(theirs['ids'])} tokens, relative L2 {error:.3g}. This is an error of the "
            "benchmark or of the encoder: please report it."
        )
    return {"bits_equal": mine["hidden"].equal(theirs["hidden"]), "difference": error}


def difference(ours, theirs) -> float:
    """Relative L2."""
    theirs = theirs.float()
    return float((ours.float() - theirs).norm() / theirs.norm())


def targets_of(request: str, found: dict) -> list[Target]:
    time, beyond = found["to_official"], found["beyond_to_official"]
    decoder, vision = found["to_floor"]["decoder"], found["to_floor"].get("vision")
    close = decoder <= DECODER_LIMIT and (vision is None or vision <= VISION_LIMIT)
    floor = f"decoder {decoder:.3g}x" + ("" if vision is None else f", vision {vision:.3g}x")
    text = (
        f"{request}: time to official {time:.3g}x (at most {TIME_LIMIT}x), or to the floor {floor} "
        f"(at most {DECODER_LIMIT:.2f}x and {VISION_LIMIT}x)"
    )
    return [
        (time <= TIME_LIMIT or close, text),
        at_most(f"{request}: memory beyond the weights to official", beyond, MEMORY_LIMIT),
    ]


def lines(rows: Mapping[str, dict]) -> list[str]:
    found = [
        f"{'request':<12}{'tokens':>7}{'ours':>9}{'official':>10}{'floor':>9}{'ratio':>7}  {'to the floor':<34}"
        f"{'beyond':>9}{'official':>10}{'ratio':>7}  peak, official's"
    ]
    for request, of in rows.items():
        seconds, floor = of["seconds"], ", ".join(f"{part} {value:.2f}" for part, value in of["to_floor"].items())
        beyond, peak = ({side: _size(value) for side, value in of[what].items()} for what in ("beyond", "peak"))
        times = "".join(f"{seconds[side]:>{width}.2f}s" for side, width in zip(SIDES, (8, 9, 8), strict=True))
        memory = "" if of["beyond_to_official"] is None else f"{of['beyond_to_official']:.2f}"
        found.append(
            f"{request:<12}{of['tokens']:>7}{times}{of['to_official']:>7.2f}  {floor:<34}{beyond['ours']:>9}"
            f"{beyond['official']:>10}{memory:>7}  {peak['ours']}, {peak['official']}"
        )
    return [*found, "", *_shares(rows), "", *_agreement(rows)]


def _shares(rows: Mapping[str, dict]) -> list[str]:
    found = [f"{'share of ours':<14}" + "".join(f"{part:>10}" for part in PARTS)]
    for request, of in rows.items():
        parts, whole = of["parts"]["ours"], sum(of["parts"]["ours"].values())
        found.append(f"{request:<14}" + "".join(f"{parts.get(part, 0.0) / whole:>10.1%}" for part in PARTS))
    return found


def _agreement(rows: Mapping[str, dict]) -> list[str]:
    return [
        f"{request}: same tokens, hidden states "
        + ("equal to the last bit" if of["bits_equal"] else f"{of['difference']:.2g} apart (relative L2)")
        for request, of in rows.items()
    ]


def _size(value: float | None) -> str:
    return "not known" if value is None else f"{value / 1e9:.2f} GB"
