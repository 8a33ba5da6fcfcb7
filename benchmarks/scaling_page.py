"""The tables of docs/scaling.md: computed from the released sizes and from what is assumed of GPUs and links, and what
`make bench ARGS=parallel` measured.

    python benchmarks/scaling_page.py                             print the computed tables
    python benchmarks/scaling_page.py --tflops 300 --pcie 20      with what you know of your machine
    python benchmarks/scaling_page.py --write                     write all tables into the page

Run it in the clone's environment. Contract: `write(result)` replaces what stands between the marks of each name;
result: the result file of bench_parallel, None where there is none.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / "scripts"), str(Path(__file__).resolve().parent)]

import layout
from pack import h3te_module
from scaling_model import Machine
from scaling_tables import markdown, size_of, tables
from verdict import RESULTS

DOCUMENT = layout.ROOT / "docs" / "scaling.md"


def measured(result: Mapping | None) -> str:
    """What bench_parallel found."""
    if result is None:
        return "Not measured yet: `make bench ARGS=parallel` writes this."
    figures, of = result["figures"], result["machine"]
    rows = [
        (
            f"{request}, {row['tokens']:,} tokens", f"{size} x {row['threads']}", f"{row['seconds']:.3g} s",
            f"{row['parts'].get('vision', 0.0):.3g} s", f"{row['parts']['decoder']:.3g} s", f"{row['in_sums']:.2g} s",
            size_of(row["bytes_read"]), size_of(row["read_by_all"]), size_of(row["resident"]), size_of(row["peak"]),
            size_of(row["sums"]["bytes"][0]), f"{row['difference']:.2g}",
        )
        for request, sizes in figures["ranks"].items()
        for size, row in sizes.items()
    ]  # fmt: skip
    names = ("request", "ranks x threads", "encode", "vision", "decoder", "waiting in sums", "read by one",
             "read by all", "resident, one", "beyond it", "added up by one", "to one process")  # fmt: skip
    return (
        f"{of['processor']}, {of['cores']} cores, torch {of['torch']}; {figures['layers']} decoder layers of the "
        f"released width and the whole tower, bf16, gloo.\n\n{markdown(names, rows)}\n\n{_through(figures)}"
    )


def _through(figures: Mapping) -> str:
    remote = figures["remote"]
    alone = remote["alone"]
    parts = ", ".join(
        f"{name.replace('_', ' ')} {alone[name] * 1e3:.2g} ms"
        for name in ("make_request", "read_request", "make_reply", "read_reply")
    )
    agree = max(row["agree_us"] for sizes in figures["ranks"].values() for row in sizes.values())
    return (
        f"Through a worker of one rank on the same machine, {remote['tokens']:,} tokens, the same bits: "
        f"{remote['local']:.3g} s here, {remote['remote']:.3g} s there ({remote['to_local']:.3f} times). All that is "
        f"not its computing takes {remote['overhead'] * 1e3:.3g} ms, {remote['overhead_to_local'] - 1:.2%} of the "
        f"encode ({parts}; sending {size_of(alone['request_bytes'])} and {size_of(alone['reply_bytes'])} and waiting "
        f"for turns {remote['sending'] * 1e3:.3g} ms). Ranks agree on a step in at most {agree:.0f} us."
    )


def read_result(path: Path = RESULTS / "parallel.json") -> dict | None:
    return json.loads(path.read_bytes()) if path.is_file() else None


def page(text: str, result: Mapping | None) -> str:
    """`text` with every table as it is now. Raises ValueError where a mark is missing."""
    cuts = h3te_module("encoder.parallel.cut_table").cut_table()
    for name, table in {**tables(Machine()), "cuts": cuts, "measured": measured(result)}.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end of {name} -->)", re.DOTALL)
        if not mark.search(text):
            raise ValueError(
                f"scaling page: expected the marks <!-- {name} --> and <!-- end of {name} -->, got none. Put them "
                "where the table belongs."
            )
        text = mark.sub(lambda found, table=table: f"{found[1]}{table}{found[2]}", text)
    return text


def write(result: Mapping | None, document: Path = DOCUMENT) -> None:
    document.write_text(page(document.read_text(encoding="utf-8"), result), encoding="utf-8", newline="\n")


def assumptions(arguments: Sequence[str] | None = None) -> tuple[Machine, bool]:
    """What the command line assumes, and whether to write the page."""
    parser = argparse.ArgumentParser(description="What several GPUs and a network cost, computed.")
    usual = Machine()
    for each in fields(Machine)[:-1]:
        parser.add_argument(f"--{each.name}", type=float, default=getattr(usual, each.name))
    for name, link in zip(("pcie", "nvlink"), usual.links, strict=True):
        parser.add_argument(f"--{name}", type=float, default=link.gbytes, help=f"GB/s over {link.name}")
    parser.add_argument("--write", action="store_true", help="write docs/scaling.md, with the usual assumptions")
    given = parser.parse_args(arguments)
    links = (replace(link, gbytes=gbytes) for link, gbytes in zip(usual.links, (given.pcie, given.nvlink), strict=True))
    machine = Machine(given.tflops, given.memory, given.stream, given.agree, tuple(links))
    if given.write and machine != usual:
        parser.error("expected the usual assumptions with --write, got others: print them instead")
    return machine, given.write


def main() -> None:
    machine, writes = assumptions()
    if writes:
        write(read_result())
    print("\n\n".join(tables(machine).values()))


if __name__ == "__main__":
    main()
