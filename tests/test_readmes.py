"""The README and its Chinese twin say the same: headings, tables, commands, names, links and figures; all of it exists.

Figures and code are compared section by section as sets: sentences may be built in another order, and a figure may be
said twice. What the README quotes from the pack (messages, node titles, the repository's address) is looked up there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGLISH, CHINESE = READMES = ("README.md", "README_CN.md")
FENCED = re.compile(r"^ *```.*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FIGURE = re.compile(r"(?<![A-Za-z_])\d[\d,.]*(?:e-?\d+)?")
VARIABLE = re.compile(r"^expected |\.\.\.|\d+")  # what a quoted message fills in, and its beginning
SHORTEST = 6  # characters of a message that are looked up


def read(readme: str) -> str:
    return (ROOT / readme).read_text(encoding="utf-8")


def prose(readme: str) -> str:
    """Without the commands in fences, where # is a comment."""
    return FENCED.sub("", read(readme))


def headings(readme: str) -> list[tuple[int, str]]:
    return [(len(marks), title) for marks, title in HEADING.findall(prose(readme))]


def sections(readme: str) -> list[str]:
    """The text below each heading, that before the first one first."""
    return re.split(r"^#+ .+$", prose(readme), flags=re.MULTILINE)


def tables(text: str) -> list[list[int]]:
    """Of each table, how many cells its rows have."""
    found, last = [], False
    for line in text.splitlines():
        row = line.strip().startswith("|")
        if row and not last:
            found.append([])
        if row:
            found[-1].append(line.strip().strip("|").count("|") + 1)
        last = row
    return found


def code(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def figures(text: str) -> set[str]:
    without_targets = LINK.sub("]", text)
    return {found.rstrip(".,") for found in FIGURE.findall(without_targets)}


def slug(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {slug(title) for _, title in HEADING.findall(FENCED.sub("", text))}


@cache
def literals() -> list[str]:
    """Every text in the pack's code, what is filled in left out."""
    files = [*ROOT.glob("encoder/**/*.py"), *ROOT.glob("nodes/**/*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def node_titles() -> Iterator[str]:
    """Of every schema in nodes/, `display_name` written out or a constant of its module."""
    for file in (ROOT / "nodes").glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        known = {
            node.targets[0].id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if isinstance(node.value, ast.Constant)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            if "node_id" in given:
                title = given["display_name"]
                yield title.value if isinstance(title, ast.Constant) else known[title.id]


def test_headings_have_the_same_levels():
    english, chinese = ([level for level, _ in headings(readme)] for readme in READMES)
    assert english == chinese and len(english) > 10


def test_tables_have_the_same_rows_and_columns():
    english, chinese = (tables(read(readme)) for readme in READMES)
    assert english == chinese and len(english) > 5
    assert all(len(set(widths)) == 1 for widths in english)


def test_commands_in_fences_are_the_same():
    english, chinese = (FENCED.findall(read(readme)) for readme in READMES)
    assert english == chinese
    assert [block.split("\n")[:-1] for block in english if "make" in block] == [["make demo", "make test"]]


def test_code_figures_and_links_are_the_same_in_every_section():
    for parts in zip(headings(ENGLISH), sections(ENGLISH)[1:], sections(CHINESE)[1:], strict=True):
        (_, title), english, chinese = parts
        assert code(english) == code(chinese), title
        assert figures(english) == figures(chinese), title
        found = [{t for t in LINK.findall(text) if not t.startswith(("#", "README"))} for text in (english, chinese)]
        assert found[0] == found[1], title


@pytest.mark.parametrize("readme", READMES)
def test_links_lead_somewhere(readme):
    text = read(readme)
    targets = [target for target in LINK.findall(text) if not target.startswith("https://")]
    assert len(targets) > 20
    for target in targets:
        path, _, anchor = target.partition("#")
        assert (ROOT / path).exists(), target
        assert not anchor or anchor in anchors((ROOT / (path or readme)).read_text(encoding="utf-8")), target


def test_readmes_lead_to_each_other():
    assert f"]({CHINESE})" in read(ENGLISH) and f"]({ENGLISH})" in read(CHINESE)


@pytest.mark.parametrize("readme", READMES)
def test_every_node_has_a_row(readme):
    titles = list(node_titles())
    assert len(titles) >= 12
    assert [title for title in titles if f"\n| **{title}**" not in read(readme)] == []


def test_messages_of_the_table_are_those_of_the_pack():
    table = read(ENGLISH).split("\n## Troubleshooting\n")[1].split("\n## ")[0]
    messages = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(messages) > 20
    for message in messages:
        parts = [part.strip() for part in VARIABLE.split(message)]
        lost = [p for p in parts if len(p) >= SHORTEST and not any(p in text for text in literals())]
        assert not lost, f"{message}: {lost}"


def test_address_and_name_are_those_of_the_package():
    project = read("pyproject.toml")
    address = re.search(r'^Repository = "(.+)"$', project, re.MULTILINE).group(1)
    name = re.search(r'^name = "(.+)"$', project, re.MULTILINE).group(1)
    assert f"git clone {address} custom_nodes/{name}\n" in read(ENGLISH)
    assert f"comfy node install {name}\n" in read(ENGLISH)


def test_differences_are_found():
    assert tables("| a | b |\n|---|---|\n\n| c |\n") == [[2, 2], [1]]
    assert figures("H3 has 1,138 tokens, 0.5 of [2](x3.md) and 1e-6.") == {"1,138", "0.5", "2", "1e-6"}
    assert slug("Coming from CLIPLoader + X") == "coming-from-cliploader--x"
    assert slug("实测：速度、内存") == "实测速度内存"
