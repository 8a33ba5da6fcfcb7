"""docs/transformers-patches.md, made whole from the figures of `make test-versions`: same figures, same file."""

from __future__ import annotations

import layout
from patches_verdict import CASTING, GRIDS, TABLE, TEXT, THREADS, VISION
from versions_report import table

DOCUMENT = layout.ROOT / "docs" / "transformers-patches.md"
PASSES, EQUAL = "passes", "equal"
ORDER = (TABLE, VISION, GRIDS, CASTING, THREADS, TEXT)
OURS = "Qwen3VLVisionModel"
GENERATIONS = {
    "method": "the tower's own method, on the table's device",
    "bilinear": "a shared function, linspace, on the grids' device",
    "closed": "a shared function, closed form, on the grids' device",
}


def scene_cell(pair: list[str]) -> str:
    """How a scene ends unpatched and patched."""
    before, after = ("passes" if outcome == PASSES else "**fails**" for outcome in pair)
    return f"{before} → {after}" if before != after else before


def drift_cell(measured: dict, dtype: str) -> str:
    """The drift unpatched and of a chosen tower patched."""
    before, after = (measured["drift"][kind][dtype] for kind in ("unpatched", "chosen"))
    return " → ".join(dict.fromkeys(figure_cell(figure) for figure in (before, after)))


def figure_cell(figure: float) -> str:
    return EQUAL if figure == 0 else f"{figure:.1e}"


def scene_rows(results: dict[str, dict]) -> list[tuple[str, ...]]:
    """A line per scene, a column per release: Qwen3-VL itself."""
    ours = [result["models"][OURS] for result in results.values()]
    return [(scene, *(scene_cell(model["scenes"][scene]) for model in ours)) for scene in ORDER]


def drift_rows(results: dict[str, dict]) -> list[tuple[str, ...]]:
    ours = [result["models"][OURS] for result in results.values()]
    dtypes = {"float32": "float32", "bfloat16": "bf16"}
    return [(name, *(drift_cell(model, dtype) for model in ours)) for dtype, name in dtypes.items()]


def official_rows(results: dict[str, dict]) -> list[tuple[str, ...]]:
    """The official backend against the encoder, by dtype and patch embedding."""
    kinds = {"convolution": "with the released convolution", "delivered": "as delivered"}
    dtypes = {"float32": "float32", "bfloat16": "bf16"}
    return [
        (f"{name}, {kind}", *(figure_cell(r["official"][dtype][key]) for r in results.values()))
        for key, kind in kinds.items()
        for dtype, name in dtypes.items()
    ]


def _as_ours(result: dict, model: str) -> str:
    """Whether another model ends every scene as Qwen3-VL does."""
    ours, other = ([scene_cell(pair) for pair in result["models"][name]["scenes"].values()] for name in (OURS, model))
    drifts = {name: cell for name in ("float32", "bfloat16") if (cell := drift_cell(result["models"][model], name))}
    same = ours == other and all(cell.endswith(EQUAL) for cell in drifts.values())
    return "the same" if same else "DIFFERS"


def sibling_rows(results: dict[str, dict]) -> list[tuple[str, ...]]:
    """A line per other model: what it does in each release."""
    names = dict.fromkeys(name for result in results.values() for name in result["models"] if name != OURS)
    return [
        (f"`{name}`", *(_as_ours(r, name) if name in r["models"] else "not there" for r in results.values()))
        for name in names
    ]


def _operations(results: dict[str, dict]) -> list[str]:
    """The operations in which unpatched scenes fail, each once."""
    ends = [pair[0] for r in results.values() for pair in r["models"][OURS]["scenes"].values() if pair[0] != PASSES]
    return sorted({end.removeprefix("fails: ").split(":")[0] for end in ends})


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return table(header, [f"| {' | '.join(cells)} |" for cells in rows])


def document(results: dict[str, dict]) -> str:
    """The whole file. results: version -> report of its process."""
    ours = [result["models"][OURS] for result in results.values()]
    generations = ("where positions come from", *(GENERATIONS[model["generation"]] for model in ours))
    return TEXT.format(
        torch=next(iter(results.values()))["versions"]["torch"],
        scenes=_table(("", *results), [generations, *scene_rows(results)]),
        official=_table(("", *results), official_rows(results)),
        drift=_table(("", *results), drift_rows(results)),
        siblings=_table(("vision tower", *results), sibling_rows(results)),
        operations=", ".join(f"`{name}`" for name in _operations(results)),
    )


TEXT = (
    """# transformers' Qwen3-VL, unpatched and patched

Made by `make test-versions` (`python scripts/test_versions.py`; `python scripts/test_patches.py` makes this file
alone), which checks every claim below and fails when one does not hold; do not edit by hand. Tiny random weights, CPU,
torch {torch}. Our encoder needs none of this: the patches (folder `patches/`) are for the official path.

## Parts on other devices

Under partial loading some weights stay on the CPU. In each scene the accelerator is torch's `meta` device, and an
operation that gets tensors of two devices is an error, as on a real one; there are no values on `meta`, so a second
check uses a CPU tensor that reports another device, and every bit is as in place.
Unpatched → patched, class `Qwen3VLVisionModel` and its text rotary embedding:

{scenes}

- *{table}*: `pos_embed.weight` stays behind, as the weight of a plain module does.
- *{casting}*: the host casts each weight to its input's device, which
  cannot help where the tower makes the inputs itself; the grids are on the CPU, where the processor makes them.
- *{threads}*: one model, two threads, one on each device, both past the patch embedding before either goes on.
  Nothing is noted on the module or the thread, so they cannot cross; a patch that notes its device on the module
  fails this scene (a test installs one).
- Unpatched, they fail in {operations},
  where a real accelerator says "Expected all tensors to be on the same device".
- Where everything is in place the original method runs with the module itself.

## Positions before the first block

Largest difference from the closed form in float32, with which MiniMax H3 was released, at the input of the first
block. Unpatched → patched, a tower built by our backend; the towers of other packs drift on exactly as before, unless
`for_transformers("all")` asks for all of them. The last digits depend on the processor.

{drift}

## The official backend

`nodes/official`: transformers' model on the weights of our encoder, patched, against the encoder; hidden states of text
with two images and a video, largest difference. As delivered our patch embedding is a matrix product, not the released
convolution.

{official}

## Models that share the code

`the same`: every scene above ends as for Qwen3-VL, unpatched and patched, and its patched positions are equal.

{siblings}

An unknown release (before 4.57, or 6) or a class of another shape is left alone and named in the log. A test searches
the installed transformers for towers of this shape that are not in the list.
""".replace("{table}", TABLE)
    .replace("{casting}", CASTING)
    .replace("{threads}", THREADS)
)
