"""Every format x (doctor, load, error against bf16, bytes, memory, readers) on generated files.

    python scripts/formats.py            all of them; the files are made once (3.4 GB in .comfyui)
    python scripts/formats.py nvfp4_awq "HF block fp8 folder"   only these
    python scripts/formats.py --document all of them, and docs/formats.md is written anew

`make formats` is the same, and `make clean` deletes the files. The table and every figure are written to
output/formats/ as formats.md and report.json.
The exit status is 1 when a row is not as formats_list.py says: an error above its bound, readers that differ, a doctor
that finds another format.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import command
import layout
import setup
from formats_list import FORMATS, SOURCE, Format

RESULTS = layout.OUTPUT / "formats"
MEASURE = layout.ROOT / "scripts" / "formats_measure.py"
AT_A_TIME = 2  # processes; each takes one core and about half a gigabyte
LIMIT_SECONDS = 600


def main() -> int:
    parsed = _arguments()
    host = setup.enter()
    return command.status_of("formats", lambda: run(parsed.formats, host, document=parsed.document))


def _arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prove every format on generated files.")
    names = [format.name for format in FORMATS]
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"{', '.join(names)}; none: all")
    parser.add_argument("--document", action="store_true", help="write docs/formats.md too")
    parsed = parser.parse_args(arguments)
    unknown = sorted(set(parsed.formats) - set(names))
    if unknown:
        parser.error(f"expected formats among {', '.join(names)}, got {', '.join(unknown)}")
    return parsed


def run(names: Sequence[str], host: Path, results: Path = RESULTS, document: bool = False) -> int:
    """The whole command; returns the exit status."""
    import formats_files
    import formats_report
    from demo_report import machine

    paths = formats_files.make_all()
    chosen = [format for format in FORMATS if not names or format.name in names]
    rows = list(measured(chosen, paths, formats_files.LAYERS, host))
    facts = {name: version for name, version in machine("").items() if name in ("torch", "python", "system")}
    print("\n".join(["", *formats_report.table(rows), ""]))
    if len(chosen) == len(FORMATS):
        written = formats_report.write(rows, facts, results, formats_report.DOCUMENT if document else None)
        print(f"{written} written; every figure: {results / 'report.json'}")
    wrong = [line for row in rows for line in row.wrong]
    print("\n".join(f"FAIL  {line}" for line in wrong) or f"PASS  {len(rows)} formats are as they should be")
    return int(bool(wrong))


def measured(chosen: Sequence[Format], paths: dict[str, Path], layers: int, host: Path) -> Iterator:
    """A row for each format, in order: first the source, which the others are compared with."""
    from formats_report import Row

    layout.TEMP.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=layout.TEMP, prefix="formats_") as folder,
        ThreadPoolExecutor(AT_A_TIME) as pool,
    ):
        reference = Path(folder) / "reference.safetensors"
        first = measure(paths[SOURCE], layers, host, reference, None)

        def row(format: Format) -> Row:
            path, own = paths[format.name], Path(folder) / f"{FORMATS.index(format)}.safetensors"
            found = first if format.name == SOURCE else measure(path, layers, host, own, reference)
            return Row(format, found, _size(path), layers)

        for one in pool.map(row, chosen):
            print(f"  {'FAIL' if one.wrong else 'PASS'}  {one.format.name}", flush=True)
            yield one


def measure(path: Path, layers: int, host: Path, hidden: Path, reference: Path | None) -> dict:
    """formats_measure.py in a process of its own. Raises RuntimeError when it ends badly."""
    from given_checkpoint import bundled_tokenizer

    options = ["--layers", str(layers), "--tokenizer", str(bundled_tokenizer(host)), "--hidden", str(hidden)]
    options += ["--reference", str(reference)] if reference else []
    done = subprocess.run(
        [sys.executable, str(MEASURE), str(path), *options],
        env=layout.child_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(
            f"expected figures of {path.name} in {path.parent.name}, got exit status {done.returncode}:\n"
            f"{done.stderr[-1500:]}\nThis is an error of the encoder or of the script: please report it."
        )
    return json.loads(done.stdout.splitlines()[-1])


def _size(path: Path) -> int:
    """Bytes of a checkpoint's weights, a vision file beside it included."""
    files = path.glob("*.safetensors") if path.is_dir() else path.parent.glob(f"*{path.suffix}")
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    sys.exit(main())
