"""docs/transformers-versions.md, made whole from the figures of `make test-versions`: same figures, same file."""

from __future__ import annotations

import layout
from versions_verdict import DTYPES, INTERPOLATION, agrees, is_released, size_reasons, steps_that_differ

DOCUMENT = layout.ROOT / "docs" / "transformers-versions.md"
EQUAL = "equal"
CASE_HEADER = (
    "transformers", "case", "tokens", "ids, grids, pixels, positions", "float32", "bf16", "float32, our interpolation",
    "bf16, our interpolation", "float32, as delivered", "bf16, as delivered",
)  # fmt: skip

SUMMARY_HEADER = (
    "transformers", "ids, grids, pixels, positions", "float32", "bf16", "steps that differ",
    "float32, our interpolation", "bf16, our interpolation",
)  # fmt: skip


def row(*cells: object) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def table(header: tuple[str, ...], rows: list[str]) -> str:
    """A Markdown table."""
    return "\n".join([row(*header), "|" + "---|" * len(header), *rows])


def error_cell(numbers: dict | None) -> str:
    """Largest absolute difference and relative L2, or that every bit agrees; a dash where nothing was measured."""
    if numbers is None:
        return "-"
    return EQUAL if numbers["largest"] == 0 else f"{numbers['largest']:.1e} / {numbers['relative']:.1e}"


def case_row(version: str, case: str, numbers: dict) -> str:
    """The line of one version and case."""
    columns = [
        error_cell(numbers[d].get(kind)) for kind in ("convolution", "our interpolation", "delivered") for d in DTYPES
    ]
    return row(version, case, numbers["tokens"], EQUAL if agrees(numbers) else "DIFFER", *columns)


def _worst(cases: dict[str, dict], dtype: str, kind: str) -> dict | None:
    measured = [case[dtype][kind] for case in cases.values() if kind in case[dtype]]
    return {key: max(numbers[key] for numbers in measured) for key in ("largest", "relative")} if measured else None


def _summary(results: dict[str, dict]) -> str:
    rows = []
    for version, result in results.items():
        cases = result["cases"]
        exact = [error_cell(_worst(cases, dtype, "convolution")) for dtype in DTYPES]
        replaced = [error_cell(_worst(cases, dtype, "our interpolation")) for dtype in DTYPES]
        same = EQUAL if all(agrees(case) for case in cases.values()) else "DIFFER"
        rows.append(row(version, same, *exact, ", ".join(steps_that_differ(cases)) or "none", *replaced))
    return table(SUMMARY_HEADER, rows)


def _steps(results: dict[str, dict]) -> str:
    rows = []
    for step in next(iter(next(iter(results.values()))["cases"].values()))["float32"]["steps"]:
        worst = [[max(c[d]["steps"][step] for c in r["cases"].values()) for d in DTYPES] for r in results.values()]
        rows.append(row(step, *(EQUAL if max(pair) == 0 else f"{pair[0]:.1e} / {pair[1]:.1e}" for pair in worst)))
    return table(("step, on the same input (float32 / bf16)", *results), rows)


def _grid(grid: list[int]) -> str:
    return " x ".join(str(n) for n in grid)


def _cap(result: dict, value: str) -> str:
    cap = result["interface"]["cap"]
    return _grid(cap[value]) if cap else "no such argument"


def _counted(result: dict, modality: str) -> str:
    return f"{len(result['sizes'][modality])} of {result['sizes']['of'][modality]}"


def _pil(result: dict) -> str:
    return "{largest} levels, {share:.1%} of elements".format(**result["interface"]["pil"])


# What one release asks for, allows or gives: the line's name, its cell of a process's report.
INTERFACE = {
    "`mm_token_type_ids`": lambda r: "required" if r["interface"]["mm_token_type_ids"] else "unknown",
    "video sizes that differ": lambda r: _counted(r, "video"),
    "24 samples of 1344 x 768 are seen at": lambda r: _size(r["interface"]["16:9 sizes"]["24"]),
    "25 samples": lambda r: _size(r["interface"]["16:9 sizes"]["25"]),
    "26 samples": lambda r: _size(r["interface"]["16:9 sizes"]["26"]),
    "30 samples": lambda r: _size(r["interface"]["16:9 sizes"]["30"]),
    "`cap_pixels_per_frame` left out: grid of 4 samples of 1344 x 768": lambda r: _cap(r, "left out"),
    "`cap_pixels_per_frame=False`": lambda r: _cap(r, "False"),
    "`cap_pixels_per_frame=True`": lambda r: _cap(r, "True"),
    "image sizes that differ": lambda r: _counted(r, "image"),
    "PIL image processor: grid of 300 x 90 pixels": lambda r: _grid(r["interface"]["pil"]["grid"]),
    "PIL image processor at the same size": _pil,
    "tokenizers": lambda r: r["versions"]["tokenizers"],
    "huggingface_hub": lambda r: r["versions"]["huggingface_hub"],
}


def _interface(results: dict[str, dict]) -> str:
    rows = [row(name, *(cell(result) for result in results.values())) for name, cell in INTERFACE.items()]
    return table(("", *results), rows)


def _reasons(results: dict[str, dict]) -> str:
    lines = []
    for version, result in results.items():
        for reason, rows in size_reasons(version, result["sizes"]).items():
            given, theirs, ours = max(rows, key=lambda r: min(r[0][1:]) * r[0][0])
            example = f"{given[0]} of {given[2]} x {given[1]}: {_size(theirs)}, as released {_size(ours)}"
            lines.append(f"  - {version}, {len(rows)} sizes: {reason or 'unknown reason'} ({example}).")
    return "\n".join(lines) or "None."


def _size(size: list[int] | str) -> str:
    return size if isinstance(size, str) else f"{size[1]} x {size[0]}"


def document(results: dict[str, dict], blocked: dict) -> str:
    """The whole file. results: version -> report of its process; blocked: the process without transformers."""
    newest = next(reversed(results))
    same = all(result["ours"] == blocked["ours"] for result in results.values())
    older = [version for version in results if not is_released(version)]
    drift = max(case["bfloat16"]["steps"][INTERPOLATION] for v in older for case in results[v]["cases"].values())
    cases = [case_row(version, case, n) for version, r in results.items() for case, n in r["cases"].items()]
    return TEXT.format(
        newest=newest,
        torch=results[newest]["versions"]["torch"].split("+")[0],
        same="is the same to the last bit" if same else "DIFFERS",
        count=len(results) + 1,
        older=" and ".join(older),
        rounding=f"{max(c['bfloat16']['rounding']['relative'] for c in results[newest]['cases'].values()):.1e}",
        drift=f"{drift:.4f}",
        summary=_summary(results),
        steps=_steps(results),
        interface=_interface(results),
        reasons=_reasons(results),
        cases=table(CASE_HEADER, cases),
    )


TEXT = """# Our encoder against the releases of transformers

Made by `make test-versions` (`python scripts/test_versions.py`), which checks every claim below and fails when one
does not hold; do not edit by hand. Tiny random weights in the released layout, CPU, torch {torch}. A pair of figures
is the largest absolute difference and the relative L2 difference of the hidden states; `equal` means that every bit
agrees (`rtol=0, atol=0`). For scale: the official path in bf16 is up to {rounding} relative from itself in float32.
The last digits of unequal figures depend on the processor.

Our own output {same} in {count} processes: one per release of transformers (each with
the tokenizers that it needs), and one in which transformers, torchvision, torchaudio and ComfyUI cannot be imported.

{summary}

In these columns our patch embedding is the released convolution. As delivered it is one matrix product, the single
stated exception; what that costs is in the last two columns of the long table.

## What differs, and where

Every step of theirs, ours on the same input, worst of all cases:

{steps}

- **Position interpolation** ({older}): the coordinates come from a linspace, and the four bilinear weights are
  rounded to the dtype of the table before they are used. Since 5.15 the coordinates have a closed form, and weights
  and sum stay in float32 until the sum is added; H3's released conditioning is that one, and so is ours. The drift
  before the first block is up to {drift} in bf16. With this one function exchanged for ours, the older releases agree
  with us in every bit (columns "our interpolation"). Text alone is equal everywhere.
- **Sizes of videos** (pixels are equal wherever the size is; in brackets one example, samples of width x height):
{reasons}
- **`mm_token_type_ids`**: transformers 5 takes the modality of each token as an input of `get_rope_index` and of the
  model; 4.57 reads it from the ids. The position ids are the same.
- **Per-frame cap**: newer releases know `cap_pixels_per_frame` and warn, when it is left out, that True becomes the
  default "in v5.22". In {newest} left out still means uncapped, which is the released rule. Ours never depends on it;
  whoever calls the official processor should pass False.
- **Two image processors**: the released `preprocessor_config.json` names `Qwen2VLImageProcessorFast`, which is called
  `Qwen2VLImageProcessor` in transformers 5; its pixels are ours. The one that resizes with PIL
  (`Qwen2VLImageProcessor` in 4.57, `Qwen2VLImageProcessorPil` since) differs by a few of 255 levels, and in 4.57 it
  ignores the `size` of the configuration: small pictures get too few tokens.

{interface}

## Every case

{cases}
"""
