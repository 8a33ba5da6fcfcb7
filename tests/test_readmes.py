"""README.md and README_CN.md say the same: headings, tables, commands, links, nodes, figures."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGLISH, CHINESE = "README.md", "README_CN.md"
READMES = (ENGLISH, CHINESE)
_WORDS = {"One": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "seven": 7, "nine": 9, "ten": 10}
_FIGURE = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\w])")


def text_of(readme: str) -> str:
    return (ROOT / readme).read_text(encoding="utf-8")


def fences(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def headings(text: str) -> list[int]:
    """The level of each heading outside of code."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [len(marks) for marks in re.findall(r"^(#+) ", outside, flags=re.MULTILINE)]


def tables(text: str) -> list[list[list[str]]]:
    """Cells of the rows of each table, its head included."""
    found, before = [], False
    for line in text.splitlines():
        inside = line.strip().startswith("|")
        if inside and not before:
            found.append([])
        if inside:
            found[-1].append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
        before = inside
    return found


def code(text: str) -> Counter:
    return Counter(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text))


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(text: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_headings_are_in_step():
    assert headings(text_of(ENGLISH)) == headings(text_of(CHINESE))
    assert len(headings(text_of(ENGLISH))) > 12


def test_tables_are_in_step():
    ours, theirs = (tables(text_of(readme)) for readme in READMES)
    assert [len(table) for table in ours] == [len(table) for table in theirs]
    assert [[len(row) for row in table] for table in ours] == [[len(row) for row in table] for table in theirs]


def test_code_stands_in_both():
    english, chinese = (set(code(text_of(readme))) for readme in READMES)
    assert english - chinese == set()
    assert fences(text_of(ENGLISH)) == fences(text_of(CHINESE))


def test_a_figure_of_one_is_in_the_other():
    english, chinese = (set(_FIGURE.findall(text_of(readme))) for readme in READMES)
    spelled = {str(number) for word, number in _WORDS.items() if re.search(rf"\b{word}\b", text_of(ENGLISH))}
    assert english - chinese == set()
    assert chinese - english - spelled == set()


@pytest.mark.parametrize("readme", READMES)
def test_links_lead_somewhere(readme):
    own = anchors(text_of(readme))
    for link in links(text_of(readme)):
        path, _, anchor = link.partition("#")
        if link.startswith("https://"):
            continue
        assert not path or (ROOT / path).exists(), link
        target = own if not path else anchors((ROOT / path).read_text(encoding="utf-8")) if anchor else set()
        assert not anchor or anchor in target, link


@pytest.mark.parametrize("readme", READMES)
def test_every_node_has_a_row(readme):
    titles = set(
        re.findall(r"\*\*([^*]+ \(H3TE\))\*\*", "".join("".join(row) for t in tables(text_of(readme)) for row in t))
    )
    nodes = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "nodes").glob("*.py"))
    known = set(
        re.findall(r'(?:display_name=|^WHO = |^NODE = |^TITLE = )"([^"]+ \(H3TE\))"', nodes, flags=re.MULTILINE)
    )
    assert len(known) >= 13
    assert known - titles == set()


@pytest.mark.parametrize("readme", READMES)
def test_there_are_two_set_up_commands(readme):
    commands = [line for block in fences(text_of(readme)) for line in block.splitlines() if line.startswith("make ")]
    assert commands == ["make demo", "make test"]


@pytest.mark.parametrize("readme", READMES)
def test_messages_of_the_table_are_those_of_the_code(readme):
    """Each as it is written in the code, up to where a value is filled in."""
    table = next(t for t in tables(text_of(readme)) if any("no VAE: references condition" in row[0] for row in t))
    sources = [
        path.read_text(encoding="utf-8") for room in ("nodes", "encoder") for path in (ROOT / room).rglob("*.py")
    ]
    written = re.sub(r'"\s*\n?\s*f?"', "", "\n".join(sources))
    served = re.search(r'^SERVED = "([^"]+)"', written, flags=re.MULTILINE)[1]
    written = written.replace("{SERVED}", served)
    for message, _ in table[2:]:
        wanted = re.escape(message.strip("`").split(", got")[0]).replace(r"\.\.\.", ".*")
        wanted = re.sub(r"\d+", r"(\\d+|\\{[^{}]*\\})", wanted)  # a number may be filled in
        assert re.search(wanted, written), message
