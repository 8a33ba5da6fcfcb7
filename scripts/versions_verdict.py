"""What the version matrix must show: `problems(results, blocked)` lists every figure that is not as expected.

From 5.15 on every bit agrees. Before, hidden states differ and the position interpolation alone explains it: it is the
only step that differs on the same input, and with ours in its place every bit agrees. Sizes of videos differ only where
a rule of size is known to differ. Our own output is the same everywhere, also without transformers.
"""

from __future__ import annotations

from collections.abc import Iterator

DTYPES = ("float32", "bfloat16")
INTERPOLATION = "position interpolation"
# Relative L2 of our delivered patch embedding (a matrix product) behind tower and layers, as tests/test_parity.py.
DELIVERED_BOUND = {"float32": 3e-6, "bfloat16": 2e-2}

OFFICIAL_GRID = [1, 10, 30]  # of 300 x 90 pixels


def is_released(version: str) -> bool:
    """Whether this transformers computes what H3 was released with: 5.15 and later."""
    return tuple(int(part) for part in version.split(".")[:2]) >= (5, 15)


def agrees(case: dict) -> bool:
    """Whether ids, grids, pixels and position ids of a case are ours."""
    positions = max(case[dtype]["steps"]["position ids"] for dtype in DTYPES)
    return case["ids equal"] and case["grids equal"] and case["pixels"] == 0 and positions == 0


def steps_that_differ(cases: dict[str, dict]) -> list[str]:
    """Names of the steps that differ in any case and precision."""
    rows = [case[dtype]["steps"] for case in cases.values() for dtype in DTYPES]
    return [step for step in rows[0] if any(row[step] != 0 for row in rows)]


def size_reason(version: str, size: tuple[int, int, int]) -> str:
    """Why a release gives a video of (samples, height, width) another size than the released rule; "" if unknown."""
    samples, height, width = size
    if is_released(version):
        return ""
    if min(height, width) < 32 and samples > 1:
        return "sides under 32 are refused, not enlarged"
    if version.startswith("5."):
        if samples == 1:
            return "one sample is accepted"
        if samples % 4 == 1:
            return "5, 9, 13 ... samples count as 6, 10, 14 ... against the pixel limits, not as 4, 8, 12 ..."
    return ""


def size_reasons(version: str, sizes: dict) -> dict[str, list]:
    """Reason -> the sizes that differ for it, each [given, theirs, ours]."""
    found: dict[str, list] = {}
    for row in sizes["video"]:
        found.setdefault(size_reason(version, tuple(row[0])), []).append(row)
    return found


def problems(results: dict[str, dict], blocked: dict) -> list[str]:
    """results: version -> report of its process; blocked: the report of the process without transformers."""
    found = []
    for version, result in results.items():
        found += [f"transformers {version}: {text}" for text in _problems(version, result, blocked)]
    return found


def _problems(version: str, result: dict, blocked: dict) -> Iterator[str]:
    yield from (
        f"our own output differs from that of the process without transformers: {case}"
        for case, hashes in result["ours"].items()
        if hashes != blocked["ours"][case]
    )
    for case, numbers in result["cases"].items():
        if not agrees(numbers):
            yield f"ids, grids, pixels or position ids differ: {case}"
        for dtype in DTYPES:
            yield from (f"{case}, {dtype}: {text}" for text in _hidden_problems(version, numbers[dtype], dtype))
    others = [step for step in steps_that_differ(result["cases"]) if step != INTERPOLATION or is_released(version)]
    if others:
        yield f"steps differ that should not: {', '.join(others)}"
    yield from _interface_problems(version, result["interface"])
    unknown = [*size_reasons(version, result["sizes"]).get("", []), *result["sizes"]["image"]]
    if unknown:
        yield f"{len(unknown)} sizes differ for no known reason, the first: {unknown[0]}"


def _hidden_problems(version: str, numbers: dict, dtype: str) -> Iterator[str]:
    equal = "convolution" if is_released(version) else "our interpolation"
    if numbers[equal]["largest"] != 0:
        yield f"hidden states differ by {numbers[equal]['largest']:.2g} where every bit should agree ({equal})"
    if numbers["delivered"]["relative"] > DELIVERED_BOUND[dtype] and is_released(version):
        yield f"as delivered {numbers['delivered']['relative']:.2g} relative, more than {DELIVERED_BOUND[dtype]:.0e}"


def _interface_problems(version: str, interface: dict) -> Iterator[str]:
    five, cap, pil = version.startswith("5."), interface["cap"], interface["pil"]
    if interface["mm_token_type_ids"] != five:
        yield "mm_token_type_ids is asked for in transformers 5 only, not so here"
    if cap and not cap["left out"] == cap["False"] != cap["True"]:
        yield f"cap_pixels_per_frame left out should be uncapped, got {cap}"
    if (pil["grid"] == OFFICIAL_GRID) != five or not 1 <= pil["largest"] <= 3:
        yield f"the PIL image processor is not as described: {pil}"
