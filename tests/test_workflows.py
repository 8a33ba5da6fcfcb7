"""The bundled workflows: links that fit, our nodes as their schema has them, and models that the dialog can offer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "workflows").glob("*.json"))
OURS = {"h3te_ref2va_images": "H3TEEncodeReferences", "h3te_fl2va_first_last": "H3TEEncodeKeyframes"}
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def workflow(request) -> dict:
    return {"name": request.param.stem, **json.loads(request.param.read_text(encoding="utf-8"))}


def by_id(workflow: dict) -> dict[int, dict]:
    return {node["id"]: node for node in workflow["nodes"]}


def fits(kind: str, accepted: str) -> bool:
    return "*" in (kind, accepted) or bool(set(kind.split(",")) & set(accepted.split(",")))


def test_the_workflows_are_there():
    assert {file.stem for file in FILES} == set(OURS)


def test_links_join_outputs_and_inputs_of_their_type(workflow):
    nodes = by_id(workflow)
    for link_id, source, slot, target, place, kind in workflow["links"]:
        output, entry = nodes[source]["outputs"][slot], nodes[target]["inputs"][place]
        assert link_id in output["links"]
        assert entry["link"] == link_id
        assert fits(output["type"], kind)
        assert fits(kind, entry["type"]), (nodes[source]["type"], nodes[target]["type"], entry["name"])


def test_every_linked_slot_is_in_the_link_table(workflow):
    known = {link[0] for link in workflow["links"]}
    slots = [entry["link"] for node in workflow["nodes"] for entry in node["inputs"] if entry["link"] is not None]
    outputs = [link for node in workflow["nodes"] for output in node["outputs"] for link in output["links"]]
    assert sorted(slots) == sorted(outputs) == sorted(known)
    assert len(slots) == len(set(slots))


def test_required_inputs_of_ours_are_linked_or_widgets(workflow, comfy):  # noqa: F811
    for node, schema in our_nodes(workflow):
        linked = {entry["name"] for entry in node["inputs"] if entry["link"] is not None}
        for socket in schema.inputs:
            widget = socket.get_io_type() in WIDGETS
            assert socket.optional or widget or socket.id in linked, socket.id


def our_nodes(workflow: dict) -> list:
    import h3te

    known = asyncio.run(asyncio.run(h3te.comfy_entrypoint()).get_node_list())
    schemas = {node.GET_SCHEMA().node_id: node.GET_SCHEMA() for node in known}
    return [(node, schemas[node["type"]]) for node in workflow["nodes"] if node["type"] in schemas]


def test_our_nodes_are_at_top_level_with_the_schemas_widgets_and_outputs(workflow, comfy):  # noqa: F811
    found = our_nodes(workflow)
    assert [node["type"] for node, _ in found] == ["H3TELoadTextEncoder", OURS[workflow["name"]]]
    for node, schema in found:
        widgets = [s.id for s in schema.inputs if str(s.get_io_type()) in WIDGETS]
        assert list(node["widgets_values_named"]) == widgets
        assert list(node["widgets_values_named"].values()) == node["widgets_values"]
        names = [output.display_name or output.io_type for output in schema.outputs]
        assert [(o["name"], o["type"]) for o in node["outputs"]] == [
            (name, output.io_type) for name, output in zip(names, schema.outputs, strict=True)
        ]
        known = {socket.id for socket in schema.inputs} | {socket.id.split(".")[0] for socket in schema.inputs}
        assert {entry["name"].split(".")[0] for entry in node["inputs"]} <= {name.split(".")[0] for name in known}


def test_combo_values_of_ours_are_offered(workflow, comfy):  # noqa: F811
    for node, schema in our_nodes(workflow):
        for socket in schema.inputs:
            if socket.id in ("ref_image_size", "fit", "device"):
                assert node["widgets_values_named"][socket.id] in socket.options


def test_every_model_file_has_its_download(workflow):
    loaders = ("UNETLoader", "LoraLoaderModelOnly", "VAELoader", "H3TELoadTextEncoder")
    nodes = [node for node in workflow["nodes"] if node["type"] in loaders]
    assert len(nodes) == 5
    for node in nodes:
        (model,) = node["properties"]["models"]
        assert model["name"] == node["widgets_values"][0]
        assert (
            model["url"]
            == f"https://huggingface.co/Comfy-Org/MiniMax-H3/resolve/main/{model['directory']}/{model['name']}"
        )


def test_text_encoder_is_the_file_most_people_have_and_the_note_says_the_others(workflow):
    (loader,) = [node for node in workflow["nodes"] if node["type"] == "H3TELoadTextEncoder"]
    assert loader["widgets_values"][0] == "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors"
    (note,) = [node["widgets_values"][0] for node in workflow["nodes"] if node["type"] == "MarkdownNote"]
    assert all(name in note for name in (loader["widgets_values"][0], "int8_convrot", "bf16", "GGUF", "Doctor"))


def test_encode_node_feeds_guider_and_sampler_without_a_negative(workflow):
    nodes = by_id(workflow)
    kinds = {(nodes[a]["type"], nodes[b]["type"], kind) for _, a, _, b, _, kind in workflow["links"]}
    encode = OURS[workflow["name"]]
    assert ("H3TELoadTextEncoder", encode, "CLIP") in kinds
    assert (encode, "BasicGuider", "CONDITIONING") in kinds
    assert (encode, "SamplerCustomAdvanced", "LATENT") in kinds
    assert not any(node["type"] in ("CFGGuider", "CLIPLoader", "CLIPTextEncode") for node in workflow["nodes"])


def test_nodes_do_not_overlap(workflow):
    boxes = [(n["id"], *n["pos"], *n["size"]) for n in workflow["nodes"] if not n["flags"].get("collapsed")]
    for i, (first, x, y, w, h) in enumerate(boxes):
        for second, x2, y2, w2, h2 in boxes[i + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y, (first, second)
