"""Help pages, English and Chinese, against the nodes: inputs, defaults, outputs, pictures, and errors that exist."""

from __future__ import annotations

import ast
import asyncio
import io
import re
from functools import cache
from pathlib import Path

import pytest
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import text_encoders  # noqa: F401 (fixture)
from help_pictures import LARGEST, reduced, take
from help_scenes import SCENES
from node_locales import read
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "web" / "docs"
NODE_IDS = sorted(read("en", "nodeDefs.json"))
SECTIONS = {"en": ["Inputs", "Outputs", "Cost", "Common errors"], "zh": ["输入", "输出", "开销", "常见错误"]}
DEFAULT = {"en": r"Default `([^`]*)`", "zh": r"默认 `([^`]*)`"}


def page(node_id: str, language: str) -> str:
    return (DOCS / (f"{node_id}.md" if language == "en" else f"{node_id}/{language}.md")).read_text(encoding="utf-8")


def section(node_id: str, language: str, place: int) -> str:
    return page(node_id, language).split(f"\n## {SECTIONS[language][place]}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of a section's tables, without heads."""
    lines = [line.strip().strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in cells] for cells in lines[1:]]


def cells(node_id: str, language: str, place: int) -> list[str]:
    """First cells: in English ids (width), in Chinese what the node shows and the id (宽度 width)."""
    return [row[0] for row in rows(section(node_id, language, place))]


@pytest.fixture
def schemas(text_encoders) -> dict:  # noqa: F811
    import h3te

    extension = asyncio.run(h3te.comfy_entrypoint())
    found = [node.GET_SCHEMA() for node in asyncio.run(extension.get_node_list())]
    return {schema.node_id: schema for schema in found}


def test_every_node_has_both_pages_and_no_other_file_lies_there(schemas):
    pages = [name for node_id in schemas for name in (f"{node_id}.md", f"{node_id}/zh.md", f"{node_id}.png")]
    found = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file()]
    assert sorted(found) == sorted(pages)


@pytest.mark.parametrize("language", SECTIONS)
@pytest.mark.parametrize("node_id", NODE_IDS)
def test_page_is_named_as_the_node_and_has_its_sections(node_id, language):
    text = page(node_id, language)
    assert text.splitlines()[0] == f"# {read(language, 'nodeDefs.json')[node_id]['display_name']}"
    heads = re.findall("^## (.*)$", text, flags=re.MULTILINE)
    assert [head for head in heads if head in SECTIONS[language]] == SECTIONS[language]


def test_inputs_and_outputs_are_those_of_the_node_in_order(schemas):
    for node_id, schema in schemas.items():
        inputs = list(dict.fromkeys(socket.id.split(".")[0] for socket in schema.inputs))
        assert cells(node_id, "en", 0) == inputs, node_id
        assert cells(node_id, "en", 1) == [out.display_name or out.io_type for out in schema.outputs], node_id


@pytest.mark.parametrize("language", SECTIONS)
def test_every_default_is_said(schemas, language):
    for node_id, schema in schemas.items():
        said = dict(zip(cells(node_id, "en", 0), rows(section(node_id, language, 0)), strict=True))
        for socket in schema.inputs:
            if getattr(socket, "default", None) not in (None, ""):
                found = re.search(DEFAULT[language], said[socket.id][1])
                assert found and found[1] == in_words(socket.default), (node_id, socket.id)


def in_words(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("node_id", NODE_IDS)
def test_chinese_inputs_and_outputs_are_called_as_on_the_node(node_id):
    names = read("zh", "nodeDefs.json")[node_id]
    first = {key: names["inputs"].get(key) or names["inputs"][f"{key}_{key[:-1]}_0"] for key in cells(node_id, "en", 0)}
    shown = [f"{re.sub(' 0$', '', entry['name'])} {key}" for key, entry in first.items()]
    assert cells(node_id, "zh", 0) == shown
    types = {"LATENT": "Latent LATENT", "CONDITIONING": "条件 CONDITIONING", "CLIP": "CLIP", "OPTIONS": "选项 OPTIONS"}
    outputs = zip(cells(node_id, "en", 1), names["outputs"].values(), strict=True)
    named = [f"{entry['name']} {key}" if "name" in entry else types[key] for key, entry in outputs]
    assert cells(node_id, "zh", 1) == named


@cache
def source_texts() -> tuple[str, ...]:
    """Every string of the pack's own code; what an f-string fills in is one character."""
    found = []
    for path in (file for room in ("nodes", "encoder") for file in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def errors(node_id: str, language: str) -> list[str]:
    return [re.fullmatch("`(.+)`", row[0])[1] for row in rows(section(node_id, language, 3))]


@pytest.mark.parametrize("node_id", NODE_IDS)
def test_common_errors_are_messages_of_the_code(node_id):
    """`...` stands for what a message fills in."""
    told = errors(node_id, "en")
    assert told
    patterns = {text: re.compile(".+?".join(map(re.escape, text.split("...")))) for text in told}
    unknown = [text for text, pattern in patterns.items() if not any(map(pattern.search, source_texts()))]
    assert unknown == []
    assert all(len(cells) == 2 and cells[1] for cells in rows(section(node_id, "en", 3)))


@pytest.mark.parametrize("node_id", NODE_IDS)
def test_chinese_page_keeps_step(node_id):
    """The same errors, tables, pictures and numbers of tokens; paragraphs on one line, as a break is a gap."""
    english, chinese = page(node_id, "en"), page(node_id, "zh")
    assert errors(node_id, "zh") == errors(node_id, "en")
    for pattern in ("^#+ ", r"^\|", r"^\d\. ", "^> "):
        count = [len(re.findall(pattern, text, flags=re.MULTILINE)) for text in (english, chinese)]
        assert count[0] == count[1], pattern
    figures = [sorted(set(re.findall(r"\d+,\d{3}", text))) for text in (english, chinese)]
    assert figures[0] == figures[1]
    broken = re.findall(r"^[^\n|#>!-][^\n]*\n[^\n|#>!\d-][^\n]*", chinese, flags=re.MULTILINE)
    assert broken == []


@pytest.mark.parametrize("node_id", NODE_IDS)
def test_no_sentence_of_a_chinese_page_is_left_in_english(node_id):
    """Messages and names of nodes apart."""
    text = re.sub(r"`[^`]*`|\*\*[^*]*\*\*", "", page(node_id, "zh"))
    assert re.findall(r"(?:[A-Za-z']+ ){4,}[A-Za-z']+", text) == []


@pytest.mark.parametrize("node_id", NODE_IDS)
def test_picture_is_small_and_on_both_pages(node_id):
    """By the name that is right for the frontend, which looks beside the English page from either."""
    for language in SECTIONS:
        assert re.findall(r"^!\[[^\]]+\]\(([^)]+)\)$", page(node_id, language), flags=re.MULTILINE) == [
            f"{node_id}.png"
        ]
    path = DOCS / f"{node_id}.png"
    assert path.stat().st_size < LARGEST
    with Image.open(path) as picture:
        assert 250 <= picture.width <= 1000


def test_every_node_has_a_scene_for_its_picture():
    assert sorted(SCENES) == NODE_IDS


def test_pictures_of_an_unknown_node_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"expected nodes of H3TELoadTextEncoder, .+, got H3TENothing"):
        take(tmp_path, ["H3TENothing"])


def test_a_picture_is_reduced_until_it_is_small():
    noise = Image.effect_noise((300, 300), 80)
    out = io.BytesIO()
    Image.merge("RGB", (noise, noise.rotate(90), noise.rotate(180))).save(out, "PNG")
    assert len(out.getvalue()) > 2 * LARGEST
    small = reduced(out.getvalue())
    assert len(small) < LARGEST
    assert Image.open(io.BytesIO(small)).size == (300, 300)
