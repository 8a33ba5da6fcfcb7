"""A checkpoint's report in words: rows of a table, lines of text, and a dict for programs.

Contract: `rows(report)` -> (label, text, tone) in reading order: the verdict, problems and what to do about them, then
what the checkpoint is. Tones: "good", "problem", "todo", "note", "plain". Sizes are 10^9 bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .report import CheckpointReport
from .wording import printable

_USED_LAYERS = 50
_LABEL_WIDTH = 13
_NAMES = {"official": "official names", "comfyui": "ComfyUI's names", "bare": "names without a prefix"}


class Row(NamedTuple):
    label: str
    text: str
    tone: str = "plain"


def rows(report: CheckpointReport) -> tuple[Row, ...]:
    """Problems come first, then what to do about them."""
    found = (
        _verdict(report),
        *_problem_rows(report),
        *_fact_rows(report),
        *(Row("note", n, "note") for n in report.notes),
    )
    return tuple(row._replace(text=printable(row.text)) for row in found)


def text(report: CheckpointReport) -> str:
    """The rows as lines, the path above them."""
    lines = (f"  {row.label:<{_LABEL_WIDTH}}{row.text}" for row in rows(report))
    return "\n".join([printable(str(report.path)), *lines])


def as_dict(report: CheckpointReport) -> dict[str, Any]:
    """Everything that the report holds, in types that JSON has."""
    return {
        "path": str(report.path), "is_h3": report.is_h3, "is_demo": report.is_demo, "problems": list(report.problems),
        "notes": list(report.notes), "layout": report.layout, "format": report.format, "formats": dict(report.formats),
        "embedding_format": report.embedding_format, "linear_formats": dict(report.linear_formats),
        "awq_folded": report.awq_folded, "layers": report.layers, "hidden_size": report.hidden_size,
        "has_vision": report.has_vision, "bytes_needed": report.bytes_needed, "bytes_unread": report.bytes_unread,
        "bytes_in_files": report.bytes_in_files, "files_needed": [str(file) for file in report.files_needed],
        "files_unneeded": [str(file) for file in report.files_unneeded],
        "tokenizer": str(report.tokenizer) if report.tokenizer else None,
    }  # fmt: skip


def what_to_do(problem: str) -> tuple[str, str]:
    """A problem -> (what is wrong, what to do): messages read `expected ..., got .... What to do.`"""
    wrong, dot, advice = problem.partition(", got ")
    got, _, rest = advice.partition(". ")
    return (f"{wrong}{dot}{got}".rstrip("."), rest)


def _verdict(report: CheckpointReport) -> Row:
    if report.problems:
        count = len(report.problems)
        return Row("verdict", f"not usable: {count} problem{'s' if count > 1 else ''}", "problem")
    if report.is_demo:
        return Row("verdict", "demo weights: it runs, its output is meaningless", "good")
    usable = "ready to use" if report.has_vision else "usable for text alone"
    return Row("verdict", f"MiniMax H3's text encoder, {usable}", "good")


def _problem_rows(report: CheckpointReport) -> list[Row]:
    """All problems, then what to do; advice for several of them stands once."""
    split = [what_to_do(problem.removeprefix(f"{printable(report.path.name)}: ")) for problem in report.problems]
    advice = dict.fromkeys(advice for _, advice in split if advice)
    return [Row("problem", wrong, "problem") for wrong, _ in split] + [Row("what to do", a, "todo") for a in advice]


def _fact_rows(report: CheckpointReport) -> list[Row]:
    if report.layout is None:
        return []  # nothing of it could be read
    used = min(_USED_LAYERS, report.layers)
    return [
        Row("layout", _layout(report)),
        Row("format", report.format or "unknown"),
        Row("linears", ", ".join(f"{n} {label}" for label, n in report.formats.most_common()) or "none found"),
        Row("token table", report.embedding_format or "none found"),
        Row("decoder", f"{report.layers} layers, {used} of them used; {report.hidden_size} wide"),
        Row("vision tower", "present" if report.has_vision else "none"),
        Row("needed", f"{report.bytes_needed / 1e9:.2f} GB ({report.bytes_needed:,} bytes of tensors)"),
        Row("never read", f"{report.bytes_unread / 1e9:.2f} GB of {report.bytes_in_files / 1e9:.2f} GB in its files"),
        Row("complete", _complete(len(report.files_needed))),
        Row("tokenizer", str(report.tokenizer) if report.tokenizer else "none beside it: ComfyUI's own is used"),
    ]


def _layout(report: CheckpointReport) -> str:
    names = _NAMES.get(str(report.layout), str(report.layout))
    if not report.path.is_dir():
        return f"{_files(len(report.files_needed))}, {names}"
    unopened = f", {len(report.files_unneeded)} more are never opened" if report.files_unneeded else ""
    return f"folder, {_files(len(report.files_needed))} needed{unopened}; {names}"


def _complete(count: int) -> str:
    return f"{_files(count)},{' each' if count > 1 else ''} as long as its header says, to the byte"


def _files(count: int) -> str:
    return "one file" if count == 1 else f"{count} files"
