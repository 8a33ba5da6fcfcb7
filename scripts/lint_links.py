"""Links in every Markdown file, help pages too: the file that a relative one names exists, and so does the heading.

Contract: `problems(root)` -> "file:line: message" each. Links to other sites are not followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import layout
import lint_files

LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
FENCE = re.compile(r"^\s*(```|~~~)")


def problems(root: Path = layout.ROOT) -> list[str]:
    """Links that lead nowhere."""
    headings.cache_clear()
    return [found for path in lint_files.listed("*.md", root) for found in _dead(path, root)]


def _dead(path: Path, root: Path) -> Iterator[str]:
    for line, target in links(path.read_text(encoding="utf-8")):
        name, _, anchor = unquote(target).partition("#")
        to = (_base(path, root) / name).resolve() if name else path
        where = f"{path.relative_to(root).as_posix()}:{line}"
        if not to.exists():
            yield f"{where}: expected a file behind the link, got {target}"
        elif not to.is_relative_to(root.resolve()) and to != path:
            yield f"{where}: expected a link inside the project, got {target}"
        elif anchor and to.suffix == ".md" and anchor not in headings(to):
            yield f"{where}: expected a heading behind the link, got {target}"


def _base(path: Path, root: Path) -> Path:
    """The folder that links start from: of a help page in any language the one that ComfyUI's page starts from."""
    pages = root / "web" / "docs"
    return pages if path.is_relative_to(pages) else path.parent


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """(line number, line) outside fenced code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def links(text: str) -> Iterator[tuple[int, str]]:
    """(line, target) of each relative link and picture; code is no link."""
    for number, line in _prose(text):
        for match in LINK.finditer(re.sub(r"`[^`]*`(?!\])", "", line)):
            target = match[1] or match[2]
            if not ELSEWHERE.match(target):
                yield number, target


@cache
def headings(path: Path) -> frozenset[str]:
    """Anchors of a file's headings as GitHub makes them; the second of a name gets "-1"."""
    found: dict[str, int] = {}
    for _, line in _prose(path.read_text(encoding="utf-8")):
        if match := re.match(r"#{1,6}\s+(.+?)\s*#*$", line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).lower()
            anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            count = found[anchor] = found.get(anchor, -1) + 1
            if count:
                found[f"{anchor}-{count}"] = 0
    return frozenset(found)
