"""Names and tooltips in the frontend's languages: English equals the nodes, Chinese has each of its texts."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import text_encoders  # noqa: F401 (fixture)
from node_locales import english, leaves, read, write

ROOT = Path(__file__).resolve().parents[1]
FILES = ("main.json", "nodeDefs.json")
SPECIAL = re.compile(r"[{}@|]")  # of vue-i18n's message format, which the frontend reads names and descriptions with
CHINESE = re.compile(r"[\u4e00-\u9fff]")
SAME_IN_CHINESE = {"CLIP", "VAE", "MiniMax H3"}


@pytest.fixture
def info(text_encoders) -> dict:  # noqa: F811
    """As /object_info has it."""
    import h3te

    extension = asyncio.run(h3te.comfy_entrypoint())
    nodes = {node.GET_SCHEMA().node_id: node for node in asyncio.run(extension.get_node_list())}
    return json.loads(json.dumps({node_id: node.GET_NODE_INFO_V1() for node_id, node in nodes.items()}))


def test_english_is_what_the_nodes_say(info):
    assert english(info) == read("en", "nodeDefs.json")


def test_english_has_both_kinds_of_growing_sockets():
    """Keys have no dots: the frontend looks for ref_images_ref_image_0, whatever made the socket."""
    inputs = read("en", "nodeDefs.json")["H3TEEncodeReferences"]["inputs"]
    assert [key for key in inputs if key.startswith("ref_images")] == [f"ref_images_ref_image_{i}" for i in range(9)]
    assert "ref_video_audios_ref_video_audio_2" in inputs
    assert not [key for key in inputs if "." in key]


@pytest.mark.parametrize("file", FILES)
def test_chinese_has_exactly_the_texts_of_english(file):
    assert leaves(read("zh", file)).keys() == leaves(read("en", file)).keys()


@pytest.mark.parametrize("file", FILES)
def test_no_text_is_left_in_english(file):
    left = [f"{place}: {text}" for place, text in leaves(read("zh", file)).items()
            if not CHINESE.search(text) and text not in SAME_IN_CHINESE]  # fmt: skip
    assert left == []


def test_no_clause_of_a_chinese_text_is_left_in_english():
    """Names, paths and words in the interface are; five English words on end are a sentence that was forgotten."""
    sentence = re.compile(r"(?:[A-Za-z']+ ){4}[A-Za-z']+")
    found = {place: match[0] for place, text in leaves(read("zh", "nodeDefs.json")).items()
             if (match := sentence.search(text))}  # fmt: skip
    assert found == {}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("file", FILES)
def test_texts_hold_nothing_that_the_frontend_would_interpret(language, file):
    found = {place: text for place, text in leaves(read(language, file)).items() if SPECIAL.search(text) or not text}
    assert found == {}


def test_category_and_socket_types_are_named(info):
    names = read("en", "main.json")
    assert {part for node in info.values() for part in node["category"].split("/")} == set(names["nodeCategories"])
    assert all(kind in info_types(info) for kind in names["dataTypes"])


def info_types(info: dict) -> set[str]:
    return {kind for node in info.values() for kind in node["output"]}


def test_choices_that_a_tooltip_explains_are_the_same_in_both_languages():
    """Options are not translated by the frontend: a Chinese tooltip names them as the widget shows them."""
    texts = {language: leaves(read(language, "nodeDefs.json")) for language in ("en", "zh")}
    choice = re.compile(r"(?:^|[.。；] ?)([a-z][a-z ]{2,14})(?=[:：])")
    lost = {place: word for place, text in texts["en"].items() for word in choice.findall(text)
            if word not in texts["zh"][place]}  # fmt: skip
    assert lost == {}
    assert choice.findall(texts["en"]["H3TEEncoderOptions", "inputs", "reader", "tooltip"]) == [
        "auto", "mmap", "read", "stream",
    ]  # fmt: skip


def test_every_node_is_found_by_a_chinese_word(info):
    if "search_aliases" not in next(iter(info.values())):
        pytest.skip("this ComfyUI's nodes have no search aliases")
    poor = {node_id: node["search_aliases"] for node_id, node in info.items()
            if not any(CHINESE.search(alias) for alias in node["search_aliases"] or [])
            or not any(alias.isascii() for alias in node["search_aliases"] or [])}  # fmt: skip
    assert poor == {}


def test_write_names_what_chinese_lacks(info, tmp_path, monkeypatch, capsys):
    import layout
    import node_locales

    for language in ("en", "zh"):
        (tmp_path / language).mkdir()
    chinese = read("zh", "nodeDefs.json")
    del chinese["H3TEKeyframe"]["inputs"]["unit"]["tooltip"]
    (tmp_path / "zh" / "nodeDefs.json").write_text(json.dumps(chinese), encoding="utf-8")
    monkeypatch.setattr(node_locales, "FOLDER", tmp_path)
    monkeypatch.setattr(layout, "ROOT", tmp_path)
    assert write(info) == 1
    assert "locales/zh lacks: H3TEKeyframe.inputs.unit.tooltip" in capsys.readouterr().out
    assert read("en", "nodeDefs.json") == english(info)
