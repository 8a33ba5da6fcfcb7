"""What in a prompt probably means more to its writer than to MiniMax H3. It is said, never changed.

Contract: `prompt_notes(presentation)` is a pure function; the prompt stays verbatim whatever it finds.
  weights    prompt-weight syntax of other models: `(fox:1.3)`, `((fox))`, `[day:night:0.5]`, `\\(`, `<lora:name:1>`.
             One note for all of it. Plain parentheses and brackets are no such syntax: `[English]` is H3's own.
  unpaired   `<d>` without `</d>` or the reverse; the lyrics and caption markers alike
  reference  `<Picture 4>` where three pictures are given; videos and sounds alike
Sources: the released presentation (labels) and tokenizer (markers); the weight syntax of ComfyUI and its kin.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .presentation import PROMPT_PART, Presentation, TextSegment

logger = logging.getLogger(__name__)

PAIRS = (("<d>", "</d>"), ("<|lyrics_start|>", "<|lyrics_end|>"), ("<|caption_start|>", "<|caption_end|>"))
SHOWN = 32  # characters of the prompt that a message quotes

# None of these can match in two ways: a long prompt takes linear time.
_BRACKETED = re.compile(r"\(([^()]*)\)")
_CERTAIN = re.compile(r"\\[()]|\(\([^()]*\)\)|<lora:[^<>]*>")
_SWITCHED = re.compile(r"\[[^\[\]:]*:[^\[\]:]*:\d*\.\d+\]")
_WEIGHT = re.compile(r"[+-]?\d|\s*[+-]?\d*\.\d+\s*")
_LABEL = re.compile(r"<(Picture|Video|Audio) [0-9]+>")


@dataclass(frozen=True)
class PromptNote:
    """`kind`: "weights", "unpaired" or "reference". `text` as it stands in the prompt, `position`: its first
    character's offset from 0. `message`: one line for people, with line and column from 1."""

    kind: str
    text: str
    position: int
    message: str


def prompt_notes(presentation: Presentation) -> tuple[PromptNote, ...]:
    """Notes on the prompt of a presentation in the order of their positions; none for a prompt without surprises."""
    prompt = prompt_of(presentation)
    given = [part.name for part in presentation.parts]
    notes = [*_weights(prompt), *_unpaired(prompt), *_references(prompt, given)]
    return tuple(sorted(notes, key=lambda note: note.position))


def prompt_of(presentation: Presentation) -> str:
    """The prompt as it was given."""
    return "".join(s.text for s in presentation.segments if isinstance(s, TextSegment) and s.part == PROMPT_PART)


@lru_cache(maxsize=64)
def log_notes(notes: tuple[PromptNote, ...], prompt: str) -> None:
    """Log each note as a warning, once per prompt: a cached call does nothing."""
    for note in notes:
        logger.warning("prompt: %s", note.message)


def _weights(prompt: str) -> Iterator[PromptNote]:
    found = sorted((m.start(), m.group()) for m in _weight_matches(prompt))
    if found:
        position, text = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield PromptNote(
            "weights",
            text,
            position,
            f"{_quoted(text)} {_place(prompt, position)}{more}: MiniMax H3 has no prompt weights; the text is read as "
            "it stands.",
        )


def _weight_matches(prompt: str) -> Iterator[re.Match[str]]:
    yield from _CERTAIN.finditer(prompt)
    yield from _SWITCHED.finditer(prompt)
    yield from (match for match in _BRACKETED.finditer(prompt) if _is_weighted(match.group(1)))


def _is_weighted(inner: str) -> bool:
    """`fox:1.3` and `fox:2` are weighted; `aspect 16:9`, `at 10:30` and `take: 2` are not."""
    text, _, weight = inner.rpartition(":")
    return bool(text.strip()) and not text[-1].isdigit() and bool(_WEIGHT.fullmatch(weight))


def _unpaired(prompt: str) -> Iterator[PromptNote]:
    for opening, closing in PAIRS:
        open_at = None
        for match in re.finditer(f"{re.escape(opening)}|{re.escape(closing)}", prompt):
            if match.group() == closing:
                if open_at is None:
                    yield _lone(prompt, closing, match.start(), f"closes nothing: there is no {opening} before it")
                open_at = None
            else:
                if open_at is not None:
                    yield _lone(prompt, opening, open_at, f"is not closed by {closing} before the next {opening}")
                open_at = match.start()
        if open_at is not None:
            yield _lone(prompt, opening, open_at, f"is not closed: there is no {closing} after it")


def _lone(prompt: str, text: str, position: int, why: str) -> PromptNote:
    return PromptNote("unpaired", text, position, f"{text} {_place(prompt, position)} {why}.")


def _references(prompt: str, given: list[str]) -> Iterator[PromptNote]:
    for match in _LABEL.finditer(prompt):
        text, kind = match.group(), match.group(1)
        if text[1:-1] not in given:
            count = sum(name.startswith(f"{kind} ") for name in given)
            numbered = f"{count} given, numbered from 1" if count else f"no {kind.lower()} is given"
            message = f"{_quoted(text)} {_place(prompt, match.start())} names no reference: {numbered}."
            yield PromptNote("reference", text, match.start(), message)


def _quoted(text: str) -> str:
    """On one line, and not too long."""
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _place(prompt: str, position: int) -> str:
    before = prompt[:position]
    return f"(line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))})"
