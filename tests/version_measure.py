"""How one release of transformers differs from our encoder: ids, pixels, sizes, positions, hidden states, steps.

Contract: `measure(tokenizer, cases)` -> a dict of numbers that JSON can hold. Zero means that every bit agrees.
"""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from h3te.encoder.pixels import image_size, video_size
from h3te.encoder.presentation import present
from h3te.encoder.tokens import H3Tokenizer, tokenize
from h3te_tests.golden_cases import relative_error
from h3te_tests.oracle import (
    PATCHING,
    TRANSFORMERS_4,
    Inputs,
    Oracle,
    official_inputs,
    official_patches,
    official_tokenizer,
)
from h3te_tests.version_cases import CASES, DTYPES, our_encoder
from h3te_tests.version_steps import compare_steps, difference, use_our_interpolation, use_released_convolution
from transformers.models import qwen2_vl
from transformers.models.qwen3_vl import Qwen3VLModel, Qwen3VLVideoProcessor, video_processing_qwen3_vl
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

IMAGE_PIXELS = {"min_pixels": 65_536, "max_pixels": 16_777_216}
VIDEO_PIXELS = {"min_pixels": 4_096, "max_pixels": 25_165_824}
SIDES = (20, 32, 64, 90, 180, 333, 480, 768, 1080, 1344, 2048, 4096)


def measure(tokenizer: Path, cases: Iterable[str] = tuple(CASES)) -> dict:
    """tokenizer: a folder with vocab.json and merges.txt."""
    with tempfile.TemporaryDirectory() as folder:
        official = official_tokenizer(tokenizer, Path(folder) / "tokenizer")
        inputs = {case: official_inputs(*CASES[case], official) for case in cases}
    found = {case: _presentation(tokenizer, case, inputs[case]) for case in cases}
    for name, dtype in DTYPES.items():
        for case, numbers in _hidden(dtype, tokenizer, inputs).items():
            found[case][name] = numbers
    return {"cases": found, "sizes": sizes(), "interface": interface()}


def _presentation(tokenizer: Path, case: str, inputs: Inputs) -> dict:
    """Ids, and pixels with their grids, of the official processors against ours."""
    presentation = present(*CASES[case])
    ids = tokenize(presentation, H3Tokenizer.from_folder(tokenizer)).ids
    found = {"tokens": len(ids), "ids equal": torch.equal(ids, inputs.ids), "pixels": 0.0, "grids equal": True}
    for mine, pixels, grids in (
        (presentation.image, inputs.pixel_values, inputs.image_grid_thw),
        (presentation.video, inputs.pixel_values_videos, inputs.video_grid_thw),
    ):
        if mine is not None:
            found["grids equal"] &= torch.equal(mine.grid_thw, grids)
            found["pixels"] = max(found["pixels"], difference(mine.pixel_values, pixels))
    return found


def _hidden(dtype: torch.dtype, tokenizer: Path, inputs: dict[str, Inputs]) -> dict[str, dict]:
    """Case -> hidden states as they are, with our interpolation in their tower, and step by step."""
    encoder, oracle = our_encoder(dtype, tokenizer), Oracle(dtype)
    theirs = {case: oracle.hidden(given) for case, given in inputs.items()}
    delivered = _ours(encoder, inputs)
    use_released_convolution(encoder)
    mine = _ours(encoder, inputs)
    steps = {case: compare_steps(encoder, oracle, given) for case, given in inputs.items()}
    pairs = {"delivered": (delivered, theirs), "convolution": (mine, theirs)}
    if has_own_interpolation():
        use_our_interpolation(encoder, oracle)
        pairs["our interpolation"] = (mine, {case: oracle.hidden(given) for case, given in inputs.items()})
    if dtype != torch.float32:
        exact = Oracle(torch.float32)
        pairs["rounding"] = (theirs, {case: exact.hidden(given).to(dtype) for case, given in inputs.items()})
    return {
        case: {"steps": steps[case], **{kind: _error(a[case], b[case]) for kind, (a, b) in pairs.items()}}
        for case in inputs
    }


def _ours(encoder, inputs: dict[str, Inputs]) -> dict[str, torch.Tensor]:
    return {case: encoder.encode_ids(given.ids, **given.pictures) for case, given in inputs.items()}


def _error(mine: torch.Tensor, theirs: torch.Tensor) -> dict[str, float]:
    if mine.shape != theirs.shape:
        return {"largest": float("inf"), "relative": float("inf")}
    return {"largest": difference(mine, theirs), "relative": relative_error(mine, theirs)}


def sizes() -> dict[str, list]:
    """Modality -> sizes that differ from ours, each [given, theirs, ours]; "of" -> how many were compared."""
    pairs = [(h, w) for h in SIDES for w in SIDES]
    image = functools.partial(qwen2_vl.image_processing_qwen2_vl.smart_resize, factor=32, **IMAGE_PIXELS)
    videos = [(n, *pair) for n in range(1, 31) for pair in pairs]
    found = {"image": _differing(pairs, image, image_size), "video": _differing(videos, _video_rule(), video_size)}
    return {**found, "of": {"image": len(pairs), "video": len(videos)}}


def _video_rule() -> Callable:
    return functools.partial(video_processing_qwen3_vl.smart_resize, temporal_factor=2, factor=32, **VIDEO_PIXELS)


def _differing(given: list[tuple], theirs: Callable, ours: Callable) -> list:
    rows = [[sides, _size(theirs, sides), _size(ours, sides)] for sides in given]
    return [row for row in rows if row[1] != row[2]]


def _size(rule: Callable, sides: tuple[int, ...]) -> list[int] | str:
    try:
        return list(rule(*sides))
    except ValueError:
        return "error"


def interface() -> dict:
    """What may or must be passed, what the cap does, and what the other image processor gives."""
    return {
        "mm_token_type_ids": "mm_token_type_ids" in inspect.signature(Qwen3VLModel.get_rope_index).parameters,
        "own interpolation": has_own_interpolation(),
        "16:9 sizes": {n: _size(_video_rule(), (n, 768, 1344)) for n in (24, 25, 26, 30)},
        "cap": _cap(),
        "pil": _pil(),
    }


def has_own_interpolation() -> bool:
    """Whether the tower interpolates positions in a method of its own, as before 5.15."""
    return "fast_pos_embed_interpolate" in inspect.getsource(Qwen3VLVisionModel.forward)


def _cap() -> dict[str, list[int]] | None:
    """Value of cap_pixels_per_frame -> grid of 4 frames of 1344 x 768; None where the argument is unknown."""
    if not hasattr(Qwen3VLVideoProcessor, "cap_pixels_per_frame"):
        return None
    size = {"shortest_edge": VIDEO_PIXELS["min_pixels"], "longest_edge": VIDEO_PIXELS["max_pixels"]}
    processor = Qwen3VLVideoProcessor(size=size, **PATCHING)
    frames = [torch.zeros(4, 3, 768, 1344, dtype=torch.uint8)]
    values = {"left out": {}, "False": {"cap_pixels_per_frame": False}, "True": {"cap_pixels_per_frame": True}}
    return {
        name: processor(videos=frames, do_sample_frames=False, return_tensors="pt", **value)["video_grid_thw"][
            0
        ].tolist()
        for name, value in values.items()
    }


def _pil() -> dict:
    """The processor that resizes with PIL against the official one.

    grid: what it makes of 90 x 300 pixels; then, with the released limits forced on it, the largest difference in
    uint8 levels and the share of elements that differ.
    """
    kind = qwen2_vl.Qwen2VLImageProcessor if TRANSFORMERS_4 else qwen2_vl.Qwen2VLImageProcessorPil
    size = {"shortest_edge": IMAGE_PIXELS["min_pixels"], "longest_edge": IMAGE_PIXELS["max_pixels"]}
    images = [reference.pixels for case in ("one image", "two images, odd sizes") for reference in CASES[case][1]]
    processor = kind(size=size, **PATCHING)
    grid = processor(images=images[1:2], return_tensors="pt")["image_grid_thw"][0].tolist()
    got = processor(images=images, size=size, return_tensors="pt", **(IMAGE_PIXELS if TRANSFORMERS_4 else {}))
    off = (torch.as_tensor(got["pixel_values"]) - official_patches("image", images)[0]).abs() * 127.5
    return {"grid": grid, "largest": round(float(off.max())), "share": float((off > 0.5).double().mean())}
