"""Segments -> token ids, modality tags, and where each part lies.

Contract: Qwen2's byte-level BPE (NFC, its split pattern, 26 added tokens) plus the 7 tokens that H3's own tokenizer
configuration adds: a stock Qwen tokenizer splits `<d>` into pieces, a wrong result that nothing reports. Only
vocab.json and merges.txt are read; the added tokens are constants here. No template, no BOS or EOS, no prompt weights.
Each text segment is tokenised on its own; a vision block is a start marker, its pads, an end marker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from .pixels import PATCH
from .presentation import PROMPT_PART, Presentation, Segment, TextSegment
from .regular import is_regular

logger = logging.getLogger(__name__)

ENDOFTEXT = 151643
VISION_START, VISION_END = 151652, 151653
IMAGE_PAD, VIDEO_PAD = 151655, 151656
MAX_TOKENS = 262_144  # the model's context
TEXT_TAG, VISION_TAG = 1, 0  # what the sampler reads: vision blocks are tagged as video, markers included

# Ids 151643.., in order. (text, special) as released; none is normalised.
QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
QWEN_PLAIN = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
H3_TOKENS = (
    "<d>", "</d>", "<|cutoff|>", "<|lyrics_start|>", "<|lyrics_end|>", "<|caption_start|>", "<|caption_end|>",
)  # fmt: skip
ADDED_TOKENS = QWEN_SPECIAL + QWEN_PLAIN + H3_TOKENS

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_VOCAB, _MERGES = "vocab.json", "merges.txt"
_RESERVED = {id_: ADDED_TOKENS[id_ - ENDOFTEXT] for id_ in (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)}
_LABEL, _LABEL_IDS = "<Picture 1>: ", [21604, 3826, 220, 16, 26818, 220]


class H3Tokenizer:
    """Text -> ids, checked to be H3's when it is made. Use `from_folder` or `from_object`."""

    def __init__(self, encode: Callable[[str], list[int]], source: str) -> None:
        """`encode` adds no special tokens. Raises ValueError when it does not give H3's ids."""
        self._encode = encode
        self.source = source
        self._check_ids()

    @classmethod
    def from_folder(cls, path: str | Path) -> H3Tokenizer:
        """A folder with vocab.json and merges.txt (with or without a version line). Cached until a file changes."""
        folder = Path(path)
        missing = [name for name in (_VOCAB, _MERGES) if not (folder / name).is_file()]
        if missing:
            raise ValueError(
                f"H3Tokenizer: expected a folder with {_VOCAB} and {_MERGES}, got {folder} without "
                f"{' and '.join(missing)}. Copy the tokenizer folder of the released model there."
            )
        stamps = tuple((folder / name).stat().st_mtime_ns for name in (_VOCAB, _MERGES))
        return _from_files(cls, folder.resolve(), stamps)

    @classmethod
    def from_object(cls, tokenizer: Any) -> H3Tokenizer:
        """Any object whose `encode(text)` gives a list of ids or something with `.ids`: a `tokenizers.Tokenizer`, a
        transformers tokenizer, another H3Tokenizer (returned as it is)."""
        if isinstance(tokenizer, cls):
            return tokenizer
        source = type(tokenizer).__name__
        if not callable(getattr(tokenizer, "encode", None)):
            raise ValueError(
                f"H3Tokenizer: expected an object with an encode method, got {source}. Pass a tokenizer, or the folder "
                f"with its {_VOCAB} and {_MERGES}."
            )
        if getattr(tokenizer, "truncation", None) is not None:
            raise ValueError(f"H3Tokenizer: expected no truncation, got {source} that truncates. Call no_truncation().")
        return cls(_plain_encode(tokenizer), source)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone. The markers of a vision block are refused: written in a prompt, they would stand for
        a picture that is not there."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"tokens: expected valid Unicode text, got a lone surrogate at character {error.start}. Remove it."
            ) from error
        ids = self._encode(text)
        for reserved in _RESERVED.keys() & set(ids):
            raise ValueError(
                f"tokens: expected text without vision markers, got {_RESERVED[reserved]} in it. Remove it; pictures "
                "and videos are given as references and named like <Picture 1>."
            )
        return ids

    def _check_ids(self) -> None:
        expected = [(token, [ENDOFTEXT + i]) for i, token in enumerate(ADDED_TOKENS)]
        for text, ids in [*expected, (_LABEL, _LABEL_IDS)]:
            got = self._encode(text)
            if got != ids:
                raise ValueError(
                    f"H3Tokenizer: expected {text!r} to give {ids}, got {got} from {self.source}. This is not H3's "
                    "tokenizer; use the one that comes with the released text encoder."
                )


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """`ids` and `tags` int64 [S] (tags: 1 text, 0 vision block with its markers).

    `spans`: (start, stop, part) of every part in reading order; together they cover 0..S. `vision_spans`: the same for
    every vision block, markers included. `counts`: tokens per part, label and timestamps included, in reading order;
    "prompt" is always there."""

    ids: torch.Tensor
    tags: torch.Tensor
    spans: tuple[tuple[int, int, str], ...]
    vision_spans: tuple[tuple[int, int, str], ...]
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.ids)


def tokenize(presentation: Presentation, tokenizer: H3Tokenizer) -> TokenSequence:
    """Ids and tags of a presentation. Nothing at all becomes one <|endoftext|>, tagged as text.

    Errors (ValueError): vision markers in the prompt, more than 262,144 tokens."""
    pieces = [_piece(segment, tokenizer) for segment in presentation.segments]
    if not any(ids for ids, _, _ in pieces):
        pieces = [([ENDOFTEXT], TEXT_TAG, PROMPT_PART)]
    ids = [id_ for piece, _, _ in pieces for id_ in piece]
    if len(ids) > MAX_TOKENS:
        raise ValueError(
            f"tokens: expected at most {MAX_TOKENS} tokens, got {len(ids)} ({_listing(_counts(pieces))}). Shorten the "
            "prompt, or use fewer or smaller references."
        )
    tags = [tag for piece, tag, _ in pieces for _ in piece]
    spans = _spans(pieces)
    vision_spans = tuple(span for span, (_, tag, _) in zip(spans, pieces, strict=True) if tag == VISION_TAG)
    return TokenSequence(
        torch.tensor(ids, dtype=torch.int64), torch.tensor(tags, dtype=torch.int64), _merged(spans), vision_spans,
        _counts(pieces),
    )  # fmt: skip


def describe_tokens(presentation: Presentation, sequence: TokenSequence) -> tuple[str, ...]:
    """One line per part, for people: "Picture 1: 79 tokens, seen at 256x256"."""
    seen = {part.name: part.grid_thw for part in presentation.parts if part.grid_thw}
    return tuple(_line(part, count, seen.get(part)) for part, count in sequence.counts.items())


def find_tokenizer(checkpoint: str | Path) -> H3Tokenizer | None:
    """The tokenizer that came with a checkpoint: in its folder (for a single file, the folder it lies in), in
    `tokenizer/` or `processor/` inside or beside it, or beside its parent. None if there is none; files that are
    another model's are passed over with a warning."""
    for place in _tokenizer_folders(Path(checkpoint)):
        try:
            return H3Tokenizer.from_folder(place)
        except ValueError as error:
            logger.warning("Tokenizer files beside the checkpoint are not used: %s", error)
    return None


def find_tokenizer_folder(checkpoint: str | Path) -> Path | None:
    """Where `find_tokenizer` looks first among the folders that have both files; nothing is read."""
    return next(iter(_tokenizer_folders(Path(checkpoint))), None)


def find_tokenizer_files(checkpoint: str | Path) -> list[Path]:
    """The files that decide what `find_tokenizer` gives; nothing is read."""
    return [folder / name for folder in _tokenizer_folders(Path(checkpoint)) for name in (_VOCAB, _MERGES)]


def _tokenizer_folders(checkpoint: Path) -> list[Path]:
    # A link may be what stands beside the tokenizer, or what it points to.
    folders = [p.parent if is_regular(p) else p for p in (checkpoint.absolute(), checkpoint.resolve())]
    places = dict.fromkeys(place for folder in folders for place in _places(folder))
    return [place for place in places if all(is_regular(place / name) for name in (_VOCAB, _MERGES))]


def _places(folder: Path) -> Iterable[Path]:
    yield folder
    for base in (folder, folder.parent, folder.parent.parent):
        yield base / "tokenizer"
        yield base / "processor"


@lru_cache(maxsize=4)
def _from_files(cls: type[H3Tokenizer], folder: Path, stamps: tuple[int, ...]) -> H3Tokenizer:
    """`stamps` are the files' modification times: part of the cache key, else unused."""
    try:
        model = models.BPE.from_file(str(folder / _VOCAB), str(folder / _MERGES))
    except Exception as error:  # the Rust side raises plain Exception for whatever it cannot parse
        raise ValueError(
            f"H3Tokenizer: expected a readable {_VOCAB} and {_MERGES} in {folder}, got: {error}. Download them again."
        ) from error
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_tokens([AddedToken(text, special=text not in QWEN_PLAIN, normalized=False) for text in ADDED_TOKENS])
    return cls(_plain_encode(tokenizer), str(folder))


def _plain_encode(tokenizer: Any) -> Callable[[str], list[int]]:
    """`tokenizer.encode` without special tokens, as a list of ids."""
    options = {"add_special_tokens": False}
    try:
        tokenizer.encode("a", **options)
    except TypeError:
        options = {}  # the object has no such switch; the check of ids shows whether it adds any
    return lambda text: _as_ids(tokenizer.encode(text, **options))


def _as_ids(encoded: Any) -> list[int]:
    return [int(id_) for id_ in getattr(encoded, "ids", encoded)]


_Piece = tuple[list[int], int, str]  # ids, their tag, the part they belong to


def _piece(segment: Segment, tokenizer: H3Tokenizer) -> _Piece:
    if isinstance(segment, TextSegment):
        return tokenizer.encode(segment.text), TEXT_TAG, segment.part
    pad = IMAGE_PAD if segment.modality == "image" else VIDEO_PAD
    return [VISION_START, *[pad] * segment.pads, VISION_END], VISION_TAG, segment.part


def _spans(pieces: list[_Piece]) -> list[tuple[int, int, str]]:
    spans, start = [], 0
    for ids, _, part in pieces:
        spans.append((start, start + len(ids), part))
        start += len(ids)
    return spans


def _merged(spans: list[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """Neighbouring spans of one part as one."""
    merged: list[tuple[int, int, str]] = []
    for start, stop, part in spans:
        if merged and merged[-1][2] == part:
            start = merged.pop()[0]
        merged.append((start, stop, part))
    return tuple(merged)


def _counts(pieces: list[_Piece]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for ids, _, part in pieces:
        counts[part] = counts.get(part, 0) + len(ids)
    counts.setdefault(PROMPT_PART, 0)
    return counts


def _listing(counts: dict[str, int]) -> str:
    return ", ".join(f"{part}: {count}" for part, count in counts.items())


def _line(part: str, count: int, grid: tuple[int, int, int] | None) -> str:
    line = f"{part}: {count} token{'' if count == 1 else 's'}"
    if grid is None:
        return line
    times, height, width = grid
    pairs = f", {times} frame pair{'' if times == 1 else 's'}" if part.startswith("Video") else ""
    return f"{line}, seen at {width * PATCH}x{height * PATCH}{pairs}"
