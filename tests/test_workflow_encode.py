"""The encode part cut out of each bundled workflow, the host's own nodes for the same request, and their comparison.

What they emit is measured by `make workflows`; here the graphs and the comparison itself.
"""

from __future__ import annotations

import copy
import json

import pytest
import workflow_conditioning
import workflow_encode
import workflow_files
import workflow_rows

CORE = {"LoadImage", "LoadVideo", "LoadAudio", "PrimitiveFloat", "PrimitiveStringMultiline"}
OURS = {
    f"H3TE{name}"
    for name in (
        "LoadTextEncoder", "EncodeReferences", "EncodeKeyframes", "ReferenceImage", "ReferenceVideo", "ReferenceAudio",
        "Keyframe",
    )
}  # fmt: skip
OLD = CORE | OURS  # a host without the newer core nodes
NEW = OLD | {"ResolutionSelector", "ComfyMathExpression", *workflow_encode.HOST_NODES}
SENT = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in workflow_files.SENT.glob("*.json")}
GRAPHS = workflow_encode.encoding(SENT)


def kinds(graph: dict) -> list[str]:
    return sorted(node["class_type"] for node in graph.values())


@pytest.fixture(params=sorted(GRAPHS))
def graph(request) -> dict:
    return copy.deepcopy(GRAPHS[request.param])


def test_encode_part_holds_nothing_that_samples_and_links_only_what_it_holds(graph):
    part = workflow_encode.ours(graph, OLD)
    assert set(kinds(part)) <= OLD | {"H3TEStandInVAE", "H3TEConditioningShapes"}
    links = [value for node in part.values() for value in node["inputs"].values() if isinstance(value, list)]
    assert all(source in part for source, _ in links)
    encode = part[workflow_encode.encoder_of(graph)]["inputs"]
    assert (encode["width"], encode["height"], encode["length"]) == (864, 480, 124)


def test_encode_part_keeps_core_nodes_that_the_host_has(graph):
    part = workflow_encode.ours(graph, NEW)
    assert {"ResolutionSelector", "ComfyMathExpression"} <= set(kinds(part))
    assert isinstance(part["23"]["inputs"]["width"], list)


def test_the_graph_itself_is_not_changed(graph):
    before = copy.deepcopy(graph)
    workflow_encode.ours(graph, OLD)
    workflow_encode.hosts(graph, NEW)
    assert graph == before


def test_a_node_of_unknown_value_is_refused_by_name(graph):
    graph["6"]["class_type"] = "SomeSizeNode"
    with pytest.raises(ValueError, match=r"SomeSizeNode \(6\): expected a node whose value is known"):
        workflow_encode.ours(graph, OLD)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("h3te_t2va", ["MiniMaxH3ImageToVideo"]),
        ("h3te_fl2va_first_last", ["MiniMaxH3ImageToVideo"]),
        ("h3te_fl2va_mid_keyframes", ["MiniMaxH3AddGuide", "MiniMaxH3ImageToVideo"]),
        ("h3te_ref2va_images", ["MiniMaxH3ReferenceToVideo"]),
        ("h3te_ref2va_images_video_voice", ["GetVideoComponents", "MiniMaxH3ReferenceToVideo"]),
    ],
)
def test_the_hosts_part_is_made_of_the_hosts_nodes(name, nodes):
    part = workflow_encode.hosts(GRAPHS[name], NEW)
    assert [kind for kind in kinds(part) if kind in workflow_encode.HOST_NODES] == nodes
    assert [kind for kind in kinds(part) if kind in OURS] == ["H3TELoadTextEncoder"]


def test_the_hosts_part_takes_references_in_the_order_of_the_chain():
    host = workflow_encode.hosts(GRAPHS["h3te_ref2va_images_video_voice"], NEW)["host"]["inputs"]
    assert {name: value for name, value in host.items() if "." in name} == {
        "ref_images.ref_image_0": ["25", 0], "ref_images.ref_image_1": ["26", 0],
        "ref_videos.ref_video_0": ["components", 0], "ref_audios.ref_audio_0": ["31", 0],
    }  # fmt: skip


def test_the_hosts_part_guides_the_middle_frame_of_its_second():
    part = workflow_encode.hosts(GRAPHS["h3te_fl2va_mid_keyframes"], NEW)
    assert (part["host"]["inputs"]["first_frame"], part["host"]["inputs"]["last_frame"]) == (["25", 0], ["30", 0])
    assert (part["guide_0"]["inputs"]["frame_idx"], part["guide_0"]["inputs"]["image"]) == (60, ["26", 0])


@pytest.mark.parametrize(("seconds", "frames"), [(5, 124), (2, 56), (5.17, 141), (15, 362)])
def test_frames_are_raised_to_the_grid(seconds, frames):
    assert workflow_encode.frames(seconds) == frames


def test_every_workflow_is_recorded():
    kept = workflow_conditioning.kept()
    assert set(kept["workflows"]) == set(GRAPHS)
    assert kept["comfyui"] and kept["date"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["minimax_keyframes"].pop(), "minimax_keyframes: 1 ours, 2 of the host"),
        (
            lambda c: c["minimax_keyframes"][0]["latent"].update(shape=[1]),
            "latent.shape: ours [1], the host [1, 24, 1, 30, 54]",
        ),
        (
            lambda c: c["minimax_keyframes"][0].update(resolved_frame_index=9),
            "resolved_frame_index: ours 9, the host 0",
        ),
        (lambda c: c["minimax_token_tags"].update(digest="0"), "minimax_token_tags.digest: ours '0'"),
        (lambda c: c.pop("pooled_output"), "pooled_output: only the host has it"),
        (lambda c: c.update(extra=1), "extra: only ours has it"),
    ],
)
def test_a_difference_of_conditioning_is_named(change, said):
    host = workflow_conditioning.kept()["workflows"]["h3te_fl2va_first_last"]
    ours = copy.deepcopy(host)
    change(ours["conditioning"][0][1])
    found = list(workflow_conditioning.differences(ours, host))
    assert any(said in problem for problem in found), found


def test_order_of_keyframes_and_a_picture_index_are_no_difference():
    host = workflow_conditioning.kept()["workflows"]["h3te_fl2va_mid_keyframes"]
    ours = copy.deepcopy(host)
    ours["conditioning"][0][1]["minimax_keyframes"].reverse()
    ours["conditioning"][0][1]["minimax_keyframes"][0]["picture_index"] = 2
    assert list(workflow_conditioning.differences(ours, host)) == []


class FailingServer:
    def run(self, graph, timeout):
        raise TimeoutError("no answer")


def test_an_encode_part_that_fails_is_a_failed_row():
    rows = list(workflow_rows.encode_rows(FailingServer(), {"h3te_t2va": GRAPHS["h3te_t2va"]}, OLD, {}))
    assert [(row.what, row.passed, row.problems) for row in rows] == [("h3te_t2va encodes", False, ("no answer",))]
