"""What the patches' matrix must show: `problems(results)` lists everything that is not so.

Unpatched, every scene fails in the releases that need a patch for it; patched, all pass, in every model that shares the
code. Before 5.15 positions drift; of a chosen tower they do not, of another pack's tower they drift on as before.
The official backend (nodes/official) equals the encoder in every bit but for the patch embedding.
"""

from __future__ import annotations

from collections.abc import Iterator

TABLE, VISION, GRIDS, CASTING, THREADS, TEXT = (
    "table of positions elsewhere", "vision inv_freq elsewhere", "grids elsewhere",
    "weights and grids elsewhere, leaves cast", "two devices at once", "text inv_freq elsewhere",
)  # fmt: skip
# Scene -> (first release, first release after the last one) that fails; None: no end yet, or unknown in between.
FAILS = {
    TABLE: ((4, 57), None),
    VISION: ((4, 57), (5, 16)),
    GRIDS: ((5, 9), None),
    CASTING: ((4, 57), None),
    THREADS: ((4, 57), None),
    TEXT: ((4, 57), (5, 9)),
}
ALL, CLOSED = "all", (5, 15)
# Largest difference that our delivered patch embedding (a matrix product) may make in hidden states of about 10.
DELIVERED = {"float32": 1e-4, "bfloat16": 1.0}
MODELS = {
    (4, 57): {"Qwen3VLVisionModel", "Qwen3VLMoeVisionModel", "Qwen3OmniMoeVisionEncoder"},
    (5, 5): {"Qwen3_5VisionModel", "Qwen3_5MoeVisionModel"},
    (5, 24): {"Qwen4ExpVisionModel", "CohereCompassVisionModel"},
}


def release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def must_fail(version: str) -> set[str]:
    """The scenes that fail without patches."""
    at = release(version)
    return {scene for scene, (start, end) in FAILS.items() if at >= start and (end is None or at < end)}


def drifts(version: str) -> bool:
    """Whether the positions of this release differ from those that H3 was released with."""
    return release(version) < CLOSED


def problems(results: dict[str, dict]) -> list[str]:
    """results: version -> report of its process."""
    return [f"transformers {v}: {problem}" for v, result in results.items() for problem in _of_release(v, result)]


def _of_release(version: str, result: dict) -> Iterator[str]:
    wanted = set().union(*(names for first, names in MODELS.items() if release(version) >= first))
    if missing := sorted(wanted - set(result["models"])):
        yield f"models that should be patched were left alone: {', '.join(missing)}"
    if result["unlisted"]:
        yield f"towers of this shape are not in the patches' list: {', '.join(result['unlisted'])}"
    for dtype, figures in result["official"].items():
        if figures["convolution"]:
            yield f"{dtype}: the official backend differs by {figures['convolution']} from the encoder"
        if not figures["delivered"] <= DELIVERED[dtype]:
            yield f"{dtype}: the patch embedding alone makes a difference of {figures['delivered']}"
    for model, measured in result["models"].items():
        yield from (f"{model}: {problem}" for problem in _of_model(version, measured))


def _of_model(version: str, measured: dict) -> Iterator[str]:
    for scene, (before, after) in measured["scenes"].items():
        if after != "passes":
            yield f"{scene}: {after} with the patches"
        if scene in must_fail(version) and before == "passes":
            yield f"{scene}: passes without patches, which are no longer needed for it"
    drift = measured["drift"]
    for dtype, figure in drift["unpatched"].items():
        if (figure > 0) != drifts(version):
            yield f"{dtype}: positions drift by {figure} unpatched"
        if drift["chosen"][dtype] or drift[ALL][dtype]:
            yield f"{dtype}: patched positions drift by {max(drift['chosen'][dtype], drift[ALL][dtype])}"
        if drift["not chosen"][dtype] != figure:
            yield f"{dtype}: positions of a tower that was not chosen changed"
    if not measured["values"]:
        yield "a request on another device gives other bits than in place"
