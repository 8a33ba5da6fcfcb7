"""The encode part of a template as an API prompt, where the templates come from, and what the command needs."""

from __future__ import annotations

import json

import package_installer
import pytest
import template_fetch
import template_run
import test_templates
from comfy_client import PromptFailed
from h3te_tests.templates_graph import FILE, object_info, workflow

from template_prompt import encode_part, files, with_stand_ins  # isort: skip
from template_swap import PASSES, swapped  # isort: skip
from workflow_definitions import Definitions  # isort: skip

BOTH = list(PASSES.values())[-1]


def test_encode_part_has_values_from_outside_the_subgraph_and_nothing_else():
    definitions = Definitions(object_info())
    part = encode_part(swapped(workflow(), BOTH, definitions), definitions)
    assert part.ends == [["10:3", 0]]
    assert part.encoders == 1
    assert part.prompt == {
        "10:1": {"class_type": "H3TELoadTextEncoder", "inputs": {"text_encoder": FILE, "device": "auto"}},
        "10:2": {"class_type": "VAELoader", "inputs": {"vae_name": "v.safetensors"}},
        "10:3": {"class_type": "H3TEEncodeReferences", "inputs": {
            "clip": ["10:1", 0], "vae": ["10:2", 0], "ref_images.ref_image_0": ["11", 0], "prompt": "outer prompt",
            "width": ["13", 0], "size": "max",
        }},
        "11": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
        "13": {"class_type": "Seeded", "inputs": {"seed": 96}},
    }  # fmt: skip
    assert files(part.prompt) == {"a.png": "LoadImage"}


def test_stand_ins_take_the_place_of_vaes_and_read_the_conditioning():
    definitions = Definitions(object_info())
    prompt = with_stand_ins(encode_part(workflow(), definitions), "here")
    assert prompt["10:2"] == {"class_type": "H3TEStandInVAE", "inputs": {"kind": "video"}}
    probe = {"class_type": "H3TEConditioningProbe", "inputs": {"conditioning": ["10:3", 0], "name": "here_0"}}
    assert prompt["probe_0"] == probe


def test_bypassed_node_on_the_way_is_refused_by_name():
    graph = workflow()
    graph["nodes"][1]["mode"] = 4
    with pytest.raises(ValueError, match=r"node 11 \(LoadImage\): expected a node .* switched on"):
        encode_part(graph, Definitions(object_info()))


def test_without_a_copy_or_an_index_the_fetch_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(template_fetch, "FOLDER", tmp_path / "templates")
    monkeypatch.setattr(package_installer, "run_pip", lambda arguments: (1, "ERROR: (from versions: none)"))
    with pytest.raises(package_installer.SetupError, match="The indexes offered no version at all"):
        template_fetch.provide()


def test_copy_is_used_without_an_index(monkeypatch, tmp_path):
    (tmp_path / "comfyui_workflow_templates_json-0.1.9.dist-info").mkdir()
    monkeypatch.setattr(template_fetch, "FOLDER", tmp_path)
    assert template_fetch.provide() == (tmp_path / "comfyui_workflow_templates_json" / "templates", "0.1.9")


def test_command_without_comfyui_path_says_what_to_do(monkeypatch):
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    monkeypatch.setattr("sys.argv", ["test_templates.py"])
    with pytest.raises(SystemExit, match=r"expected COMFYUI_PATH to name a ComfyUI of 0\.30 or newer, got nothing"):
        test_templates.main()


@pytest.mark.parametrize("version", ["0.3.75", "0.29.9", "unknown"])
def test_comfyui_without_h3_nodes_is_refused(version):
    with pytest.raises(ValueError, match=rf"expected ComfyUI 0\.30 or newer, .* got {version}"):
        test_templates._check_version(version)


@pytest.mark.parametrize("version", ["0.30.0", "0.33", "1.0.0"])
def test_comfyui_with_h3_nodes_is_taken(version):
    test_templates._check_version(version)


class FakeServer:
    """Answers as ComfyUI does: each probe's text, and the file that it wrote."""

    def __init__(self, keys=("minimax_token_tags",), content: bytes = b"states", error: Exception | None = None):
        self.keys, self.content, self.error, self.uploaded = list(keys), content, error, []

    def upload_image(self, path, name):
        self.uploaded.append(name)

    def run(self, prompt, timeout):
        if self.error:
            raise self.error
        return {"probe_0": {"text": [json.dumps({"keys": self.keys})]}}

    def view(self, name):
        return self.content


def ran(server: FakeServer, graph: dict | None = None) -> template_run.Ran:
    return template_run.run(server, "here", graph or workflow(), Definitions(object_info()))


def test_run_counts_encode_nodes_and_tells_states_apart():
    server = FakeServer()
    found = ran(server)
    assert (found.done, found.there, found.faults) == (1, 1, [])
    assert server.uploaded == ["a.png"]
    assert found.states == ran(FakeServer()).states != ran(FakeServer(content=b"other")).states


def test_run_that_fails_or_gives_another_conditioning_is_a_fault():
    assert ran(FakeServer(error=PromptFailed("node: ValueError: no", {}))).faults == ["node: ValueError: no"]
    assert ran(FakeServer(keys=["pooled_output"])).faults == [
        "conditioning without minimax_token_tags: ['pooled_output']"
    ]


def test_encode_node_that_leads_to_no_guider_is_a_fault():
    graph = workflow()
    graph["nodes"][2]["inputs"][1]["link"] = None
    found = ran(FakeServer(), graph)
    assert (found.done, found.faults) == (0, ["0 of 1 encode nodes lead to a guider"])
