"""The nvfp4_awq file at its real width, 8 and 16 layers, read layer by layer from the file (reader "stream").

Its private memory must not depend on the depth and stay under 2.5 GB, and its hidden states must be those of resident
weights to the last bit. Resident weights are mapped with 16 layers and read into memory with 8 (6.4 GB with 16).
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import layout
from given_checkpoint import bundled_tokenizer
from rounds import GIVE_BACK, median, ratio, run, take_turns
from verdict import Verdict, at_most
from wide_files import packed_file

DEPTHS = (8, 16)
CASES = (("stream", 8), ("mmap", 8), ("read", 8), ("stream", 16), ("mmap", 16))
PRIVATE_LIMIT, APART_LIMIT = 2.5e9, 0.05


def bench(rounds: int, host: Path) -> Verdict:
    file, tokenizer = packed_file(), bundled_tokenizer(host)
    layout.TEMP.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=layout.TEMP, prefix="stream_") as folder:
        kept = {case: Path(folder) / f"{case[0]}_{case[1]}.safetensors" for case in CASES}
        cases = {_name(case): partial(measure, file, *case, tokenizer, kept[case]) for case in CASES}
        found = take_turns(cases, min(rounds, 2))
        equal = {_name(case): same_bits(kept[case], kept["stream", case[1]]) for case in CASES}
    rows = {
        name: {
            "seconds": median(of, "seconds"),
            "seconds_to_mmap": ratio(of, found[f"mmap {name.split()[1]}"], "seconds"),
            "private": None if of[0]["private"] is None else max(one["private"] for one in of),
            "weight_bytes": of[0]["weight_bytes"],
            "equal_to_streamed": equal[name],
        }
        for name, of in found.items()
    }
    return Verdict("stream", _lines(rows), _targets(rows), {"tokens": found["stream 8"][0]["tokens"], **rows})


def measure(file: Path, reader: str, layers: int, tokenizer: Path, out: Path) -> dict:
    """One encode in a process of its own; see measure_stream.py."""
    arguments = (file, reader, "--layers", layers, "--tokenizer", tokenizer, "--out", out)
    return run("measure_stream.py", *arguments, environment=GIVE_BACK)


def same_bits(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def apart(first: int, second: int) -> float:
    """How far two figures are from each other, relative to the larger."""
    return abs(first - second) / max(first, second)


def _name(case: tuple[str, int]) -> str:
    return f"{case[0]} {case[1]}"


def _targets(rows: dict[str, dict]) -> list[tuple[bool | None, str]]:
    private = [rows[f"stream {depth}"]["private"] for depth in DEPTHS]
    known = None not in private
    bits = all(row["equal_to_streamed"] for row in rows.values())
    return [
        at_most("streamed, private memory with 8 and 16 layers apart", apart(*private) if known else None, APART_LIMIT),
        at_most("streamed, private memory", max(private) / 1e9 if known else None, PRIVATE_LIMIT / 1e9, " GB"),
        (bits, "hidden states equal to the last bit, streamed, mapped and read"),
    ]


def _lines(rows: dict[str, dict]) -> list[str]:
    lines = [f"{'reader, layers':<16}{'seconds':>9}{'to mmap':>9}{'private':>10}{'weights':>10}  bits as streamed"]
    for name, row in rows.items():
        private = "not known" if row["private"] is None else f"{row['private'] / 1e9:.2f} GB"
        lines.append(
            f"{name:<16}{row['seconds']:>8.1f}s{row['seconds_to_mmap']:>9.2f}{private:>10}"
            f"{row['weight_bytes'] / 1e9:>7.2f} GB  {'yes' if row['equal_to_streamed'] else 'NO'}"
        )
    return lines
