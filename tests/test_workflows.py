"""The bundled workflows: made from their description, fitting ComfyUI's nodes and ours, with models to download.

`make workflows` runs the same checks against a live ComfyUI, and the encode part of each.
"""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path

import pytest
import workflow_checks
import workflow_definitions
import workflow_files
import workflow_graphs
import workflow_lint
import workflow_thumbnails
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "workflows").glob("*.json"))
NAMES = (
    "h3te_ref2va_images", "h3te_ref2va_images_video_voice", "h3te_fl2va_first_last", "h3te_fl2va_mid_keyframes",
    "h3te_t2va", "h3te_save_conditioning", "h3te_load_conditioning",
)  # fmt: skip
LOADED = "h3te_load_conditioning"  # has neither text encoder nor prompt
CHAINS = {
    "h3te_save_conditioning": ["H3TESaveConditioning"],
    "h3te_ref2va_images_video_voice": ["H3TEReferenceImage"] * 2 + ["H3TEReferenceVideo", "H3TEReferenceAudio"],
    "h3te_fl2va_mid_keyframes": ["H3TEKeyframe"] * 3,
}
KNOWN = workflow_definitions.load()


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def workflow(request) -> dict:
    return {"name": request.param.stem, **json.loads(request.param.read_text(encoding="utf-8"))}


@pytest.fixture(params=[file for file in FILES if file.stem != LOADED], ids=lambda file: file.stem)
def encoding(request) -> dict:
    return {"name": request.param.stem, **json.loads(request.param.read_text(encoding="utf-8"))}


@pytest.fixture
def loading() -> dict:
    return json.loads((ROOT / "workflows" / f"{LOADED}.json").read_text(encoding="utf-8"))


@pytest.fixture
def plain() -> dict:
    """One workflow, to plant faults in."""
    return json.loads((ROOT / "workflows" / "h3te_fl2va_first_last.json").read_text(encoding="utf-8"))


def node_of(workflow: dict, kind: str) -> dict:
    return next(node for node in workflow["nodes"] if node["type"] == kind)


def every(_node: dict) -> bool:
    return True


def test_the_workflows_are_there_with_their_api_copies():
    assert {file.stem for file in FILES} == {file.stem for file in workflow_files.SENT.glob("*.json")} == set(NAMES)


def test_files_are_what_the_description_makes():
    assert workflow_files.stale() == []


def test_a_file_changed_by_hand_or_left_over_is_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(workflow_files, "SAVED", tmp_path / "workflows")
    monkeypatch.setattr(workflow_files, "SENT", tmp_path / "api")
    assert len(workflow_files.write()) == 2 * len(NAMES)
    changed, left = tmp_path / "workflows" / "h3te_t2va.json", tmp_path / "api" / "another.json"
    changed.write_text("{}")
    left.write_text("{}")
    assert workflow_files.write() == [changed, left]
    assert workflow_files.stale() == [] and not left.exists()


def test_links_widgets_models_and_layout_hold(workflow):
    assert list(workflow_checks.link_problems(workflow)) == []
    assert list(workflow_checks.node_problems(workflow, KNOWN, every)) == []
    assert list(workflow_checks.model_problems(workflow)) == []
    assert list(workflow_checks.layout_problems(workflow)) == []


def test_node_ids_are_those_of_earlier_releases(encoding):
    """People's own changes and linked tutorials name them."""
    kinds = {node["id"]: node["type"] for node in encoding["nodes"]}
    assert [kinds[i] for i in (1, 3, 9, 18, 22, 24, 28)] == [
        "UNETLoader", "H3TELoadTextEncoder", "PrimitiveBoolean", "SamplerCustomAdvanced", "SaveVideo",
        "PrimitiveStringMultiline", "MarkdownNote",
    ]  # fmt: skip
    assert kinds[23] in ("H3TEEncodeReferences", "H3TEEncodeKeyframes")


def test_our_nodes_are_at_top_level(encoding):
    assert "definitions" not in encoding
    found = [node["type"] for node in encoding["nodes"] if workflow_checks.is_ours(node)]
    references = "ref2va" in encoding["name"] or "save" in encoding["name"]
    encode = "H3TEEncodeReferences" if references else "H3TEEncodeKeyframes"
    assert found == ["H3TELoadTextEncoder", encode, *CHAINS.get(encoding["name"], ())]


def test_one_workflow_loads_what_the_other_saves_with_the_same_size_and_model(loading):
    saving = json.loads((ROOT / "workflows" / "h3te_save_conditioning.json").read_text(encoding="utf-8"))
    prefix = node_of(saving, "H3TESaveConditioning")["widgets_values_named"]["filename_prefix"]
    file = node_of(loading, "H3TELoadConditioning")["widgets_values_named"]["file"]
    assert file == f"{prefix}_00001_.safetensors [output]"
    for kind in ("UNETLoader", "ResolutionSelector", "PrimitiveFloat", "ComfyMathExpression"):
        assert node_of(saving, kind)["widgets_values"] == node_of(loading, kind)["widgets_values"]


def test_loading_workflow_encodes_nothing_and_samples_on_what_it_loads(loading):
    nodes = {node["id"]: node["type"] for node in loading["nodes"]}
    kinds = {(nodes[a], nodes[b], kind) for _, a, _, b, _, kind in loading["links"]}
    assert [kind for kind in nodes.values() if kind.startswith("H3TE")] == ["H3TELoadConditioning"]
    assert not {"LoadImage", "PrimitiveStringMultiline"} & set(nodes.values())
    assert ("H3TELoadConditioning", "BasicGuider", "CONDITIONING") in kinds
    assert ("EmptyMiniMaxH3LatentAV", "SamplerCustomAdvanced", "LATENT") in kinds
    assert "text_encoders" not in node_of(loading, "MarkdownNote")["widgets_values"][0]


def test_our_nodes_are_recorded_as_this_pack_has_them(comfy):  # noqa: F811
    import h3te

    nodes = asyncio.run(asyncio.run(h3te.comfy_entrypoint()).get_node_list())
    live = {node.GET_SCHEMA().node_id: node.GET_NODE_INFO_V1() for node in nodes}
    assert list(workflow_checks.definition_problems(KNOWN, workflow_definitions.Definitions(live))) == []


def test_a_changed_default_of_ours_is_found():
    live = copy.deepcopy(KNOWN.nodes)
    live["H3TEKeyframe"]["input"]["required"]["second"][1]["default"] = 1.0
    del live["H3TEEncodeKeyframes"]["input"]["optional"]["canvas"]
    found = list(workflow_checks.definition_problems(KNOWN, workflow_definitions.Definitions(live)))
    assert [problem.split(":")[0] for problem in found] == ["H3TEEncodeKeyframes.canvas", "H3TEKeyframe.second"]


def test_every_node_type_used_is_recorded(workflow):
    assert {node["type"] for node in workflow["nodes"]} <= {*workflow_graphs.KINDS, "MarkdownNote"}
    assert set(workflow_graphs.KINDS) | {"MarkdownNote"} == set(KNOWN.nodes)


def test_text_encoder_is_the_file_most_people_have_and_the_note_says_the_others(encoding):
    loader, note = node_of(encoding, "H3TELoadTextEncoder"), node_of(encoding, "MarkdownNote")["widgets_values"][0]
    assert loader["widgets_values"][0] == "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors"
    assert all(name in note for name in (loader["widgets_values"][0], "int8_convrot", "bf16", "GGUF", "Doctor"))


def test_encode_node_feeds_guider_and_sampler_without_a_negative(encoding):
    nodes = {node["id"]: node["type"] for node in encoding["nodes"]}
    kinds = {(nodes[a], nodes[b], kind) for _, a, _, b, _, kind in encoding["links"]}
    encode = nodes[23]
    assert {("H3TELoadTextEncoder", encode, "CLIP"), (encode, "BasicGuider", "CONDITIONING")} <= kinds
    assert (encode, "SamplerCustomAdvanced", "LATENT") in kinds
    assert not {"CFGGuider", "CLIPLoader", "CLIPTextEncode"} & set(nodes.values())


def test_turbo_is_off_and_its_steps_are_those_of_its_lora(workflow):
    steps = {node.get("title"): node["widgets_values"][0] for node in workflow["nodes"] if node["widgets_values"]}
    assert steps["Turbo LoRA on"] is False and steps["Steps without turbo"] == 20
    assert f"_turbo_{steps['Steps with turbo']}step_" in node_of(workflow, "LoraLoaderModelOnly")["widgets_values"][0]


def test_prompt_names_every_reference_that_the_encoder_is_shown(encoding):
    prompt = node_of(encoding, "PrimitiveStringMultiline")["widgets_values"][0]
    images = sum(node["type"] == "LoadImage" for node in encoding["nodes"])
    hidden = sum(node["widgets_values_named"].get("show_to_encoder") is False for node in encoding["nodes"])
    named = [f"<Picture {i}>" for i in range(1, images - hidden + 1)]
    named += ["<Video 1>", "<Audio 1>", "<d>"] if "voice" in encoding["name"] else []
    assert all(name in prompt for name in named)
    assert f"<Picture {images - hidden + 1}>" not in prompt


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda w: w["links"][0].__setitem__(5, "CLIP"), "MODEL does not fit MODEL"),
        (lambda w: w["links"].pop(), "name different links"),
        (lambda w: w["nodes"][0]["outputs"][0]["links"].clear(), "the table says it, the nodes do not"),
    ],
)
def test_a_broken_link_is_found(plain, plant, said):
    plant(plain)
    assert any(said in problem for problem in workflow_checks.link_problems(plain))


def unlink_vae_decode(workflow: dict) -> None:
    node_of(workflow, "VAEDecode")["inputs"][0]["link"] = None


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda w: node_of(w, "H3TEEncodeKeyframes")["widgets_values"].pop(), "saved are 7 values"),
        (lambda w: node_of(w, "BasicScheduler")["widgets_values_named"].update(scheduler="magic"), "scheduler cannot"),
        (lambda w: node_of(w, "BasicScheduler")["widgets_values_named"].update(steps=0), "steps cannot be 0"),
        (lambda w: node_of(w, "PrimitiveBoolean")["widgets_values_named"].update(value="no"), "value cannot be 'no'"),
        (lambda w: node_of(w, "RandomNoise")["widgets_values"].__setitem__(0, 7), "by position and by name differ"),
        (lambda w: node_of(w, "VAEDecode")["inputs"][0].update(name="pixels"), "has no input pixels"),
        (lambda w: node_of(w, "VAEDecode")["inputs"][0].update(type="IMAGE"), "samples takes LATENT"),
        (lambda w: node_of(w, "VAEDecode")["outputs"][0].update(type="AUDIO"), "is saved as IMAGE (AUDIO)"),
        (unlink_vae_decode, "samples is required"),
        (lambda w: node_of(w, "VAEDecode").update(type="VAEDecodeTwice"), "not known"),
    ],
)
def test_a_node_that_does_not_fit_is_found(plain, plant, said):
    plant(plain)
    assert any(said in problem for problem in workflow_checks.node_problems(plain, KNOWN, every))


def test_inputs_of_a_later_release_are_passed_over_unless_exactness_is_asked(plain):
    older = copy.deepcopy(KNOWN.nodes)
    del older["CreateVideo"]["input"]["optional"]["bit_depth"]
    older = workflow_definitions.Definitions(older)
    assert list(workflow_checks.node_problems(plain, older, every, exact=False)) == []
    assert len(list(workflow_checks.node_problems(plain, older, every))) == 1


def test_a_model_without_its_download_is_found(plain):
    node_of(plain, "UNETLoader")["properties"]["models"][0]["directory"] = "unet"
    node_of(plain, "VAELoader")["properties"].pop("models")
    assert len(list(workflow_checks.model_problems(plain))) == 2


def test_overlap_and_a_node_outside_its_group_are_found(plain):
    node_of(plain, "VAEDecode")["pos"] = node_of(plain, "VAEDecodeAudio")["pos"]
    node_of(plain, "SaveVideo")["pos"] = [9000, 0]
    found = list(workflow_checks.layout_problems(plain))
    assert found == ["nodes 19 and 20 overlap", "node 22 (SaveVideo) lies in 0 groups"]


def api_copies() -> dict[str, dict]:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in workflow_files.SENT.glob("*.json")}


def test_comfy_lint_finds_nothing(tmp_path):
    assert list(workflow_lint.problems(api_copies(), KNOWN, tmp_path / "object_info.json")) == []


def test_comfy_lint_finds_a_wrong_link_a_wrong_choice_and_an_unknown_input(tmp_path):
    graph = api_copies()["h3te_t2va"]
    graph["19"]["inputs"]["samples"] = ["4", 0]
    graph["16"]["inputs"]["sampler_name"] = "magic"
    graph["23"]["inputs"]["negative"] = "blurry"
    found = list(workflow_lint.problems({"h3te_t2va": graph}, KNOWN, tmp_path / "object_info.json"))
    assert [problem.rsplit("(", 1)[1] for problem in found] == ["invalid-enum)", "type-mismatch)", "extraneous-input)"]


def test_every_workflow_has_a_thumbnail_of_its_own():
    from PIL import Image

    pictures = sorted((ROOT / "workflows").glob("*.jpg"))
    assert {file.stem for file in pictures} == set(NAMES)
    assert all(file.stat().st_size < 60_000 and Image.open(file).size == (640, 360) for file in pictures)
    assert len({file.read_bytes() for file in pictures}) == len(NAMES)


def test_thumbnails_are_described_for_these_workflows():
    assert {thumbnail.name for thumbnail in workflow_thumbnails.THUMBNAILS} == set(NAMES)


def test_a_thumbnail_that_cannot_be_small_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(workflow_thumbnails, "LIMIT", 100)
    with pytest.raises(ValueError, match=r"h3te\.jpg: expected less than 100 bytes, got more"):
        workflow_thumbnails.draw(workflow_thumbnails.THUMBNAILS[-1]).save(tmp_path / "h3te.jpg")
