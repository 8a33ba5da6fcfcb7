"""What a node says about its run: sent to the node itself (no JavaScript needed) and kept in the prompt's history.

Contract: plain text lines. Sizes are 10^9 bytes. Token counts come from the tokens that were encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...encoder import CheckpointReport
from ...encoder.checkpoint.wording import printable
from ...encoder.pixels import FPS
from ...encoder.prompt_notes import PromptNote, prompt_notes
from ...encoder.tokens import TokenSequence, describe_tokens
from . import node_text, provenance
from .clip import H3Clip
from .local_computing import OFFICIAL
from .readers import forecast
from .reference_limits import MOST_VIDEO_FRAMES
from .references import Target
from .request_cache import identity_of
from .shown import HOSTS_CACHE, Shown
from .tokens import TokenBatch

PROMPT_LINES = 5  # more about a prompt is in the log alone
HOST_CLIP = "encoded by ComfyUI's own H3 text encoder"


def show(node_id: str | None, lines: Iterable[str]) -> dict:
    """Send the lines to the node and return the `ui` value that puts them into the history."""
    text = "\n".join(lines)
    node_text.show(node_id, text)
    return {"text": (text,)}


def of_list(said: Sequence[Sequence[str]], warned: Sequence[Sequence[str]] = ()) -> list[str]:
    """The lines of every prompt of one list, `warned` of all of them first: a node shows two lines. What is true of all
    prompts stands once; the rest is numbered."""
    if len(said) == 1:
        return [line for lines in (*warned, *said) for line in lines]
    return [f"{len(said)} prompts", *_numbered(warned), *_numbered(said)]


def _numbered(each: Sequence[Sequence[str]]) -> list[str]:
    shared = [line for line in (each[0] if each else ()) if all(line in lines for lines in each)]
    own = [f"{n}: {line}" for n, lines in enumerate(each, 1) for line in lines if line not in shared]
    return [*dict.fromkeys(shared), *own]


def loaded(
    report: CheckpointReport, device: object, dtype: object, reader: str = "auto", backend: str = "encoder"
) -> list[str]:
    """Lines of the loader, which has opened headers alone."""
    lines = [
        printable(f"{report.path.name}: {report.describe()}"),
        f"computes in {str(dtype).removeprefix('torch.')} on {device}; weights are read at first use",
        forecast(reader, report.bytes_needed),
    ]
    return [*lines, *([OFFICIAL] if backend == "official" else []), *map(printable, report.notes)]


def summary(clip: object, tokens: object, seconds: float, prompts: int = 1) -> str:
    """The line that is seen without enlarging the node: tokens in all and per part, time, cache. prompts: how many
    were encoded in that time, in one pass."""
    batch = _batch(tokens)
    if batch is None:
        return f"{HOST_CLIP}; {seconds:.1f} s, cache: {HOSTS_CACHE}"
    time = f"{seconds:.1f} s" + (f" for {prompts} prompts in one pass" if prompts > 1 else "")
    return f"{counted(batch.sequence)}; {time}, cache: {_cache(batch)}"


def counted(sequence: TokenSequence) -> str:
    """Tokens in all and per part."""
    parts = ", ".join(f"{part} {count}" for part, count in sequence.counts.items())
    return f"{len(sequence)} tokens in all: {parts}"


def _cache(batch: TokenBatch) -> str:
    return "none" if batch.status is None else batch.status.text()


def shown(clip: object, tokens: object, seconds: float, prompts: int = 1) -> Shown | None:
    """For a picture of what was read; None for a CLIP of ComfyUI's own. seconds, prompts: as of `summary`."""
    batch = _batch(tokens)
    if batch is None:
        return None
    run = clip.run if isinstance(clip, H3Clip) else None
    stages = {} if run is None else run.seconds
    return Shown(batch.presentation, batch.sequence, _cache(batch), stages, seconds, prompts)


def details(clip: object, tokens: object) -> list[str]:
    """Format, size, device, resident bytes, the memory plan; the size at which each picture is seen."""
    batch = _batch(tokens)
    if not isinstance(clip, H3Clip) or batch is None:
        return []
    seen = describe_tokens(batch.presentation, batch.sequence)
    if batch.status is not None and batch.status.hit is not None:
        return [clip.label, "answered from the cache: no weight was read", *seen]
    return [clip.label, *clip.run.lines(), *seen]


def about_memory(clip: object) -> list[str]:
    """That memory was short, or ran out and the request was repeated."""
    run = clip.run if isinstance(clip, H3Clip) else None
    return [] if run is None else run.notes()


def about_prompt(tokens: object) -> list[str]:
    """What the prompt says in vain: weights, unpaired markers, references that are not given."""
    batch = _batch(tokens)
    return noted(() if batch is None else prompt_notes(batch.presentation))


def noted(notes: Sequence[PromptNote]) -> list[str]:
    """The first few, for a node; the log has all."""
    lines = [note.message for note in notes]
    if len(lines) > PROMPT_LINES:
        lines[PROMPT_LINES:] = [f"{len(lines) - PROMPT_LINES} more about the prompt are in the log"]
    return lines


def about_target(target: Target, width: int, height: int, length: int) -> list[str]:
    """What was changed to fit the model's grid, and a length beyond those it was trained with."""
    lines = []
    if (target.width, target.height) != (width, height):
        lines.append(f"size {width}x{height} became {target.width}x{target.height}: multiples of 32")
    if target.frames != length:
        lines.append(f"length {length} became {target.frames}: 17k + 5 frames")
    if target.frames > MOST_VIDEO_FRAMES:
        lines.append(
            f"length {target.frames} is beyond the trained {MOST_VIDEO_FRAMES} frames ({MOST_VIDEO_FRAMES / FPS:.0f} s)"
        )
    return lines


def presentation_text(tokens: object) -> str:
    """What the encoder read, as text. Empty for a CLIP of ComfyUI's own."""
    batch = _batch(tokens)
    return "" if batch is None else provenance.presentation_text(batch)


def facts(clip: object, tokens: object) -> dict:
    """What a conditioning came from, for files that are saved of it; {} for a CLIP of ComfyUI's own."""
    batch = _batch(tokens)
    if batch is None or not isinstance(clip, H3Clip):
        return {}
    return provenance.facts_of(batch, identity_of(clip.patcher, clip.backend, clip.caches))


def _batch(tokens: object) -> TokenBatch | None:
    values = tokens.values() if isinstance(tokens, dict) else ()
    return next((value for value in values if isinstance(value, TokenBatch)), None)
