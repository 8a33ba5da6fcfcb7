"""Ids, titles, inputs and outputs of the nodes are frozen, as saved workflows hold them; nothing happens at import."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.demo_host import text_encoders  # noqa: F401 (fixture)

ROOT = Path(__file__).resolve().parents[1]
GROWN = {"ref_images": ("ref_image_", 9), "ref_videos": ("ref_video_", 3), "ref_video_audios": ("ref_video_audio_", 3),
         "ref_audios": ("ref_audio_", 3)}  # fmt: skip

FROZEN = {
    "H3TELoadTextEncoder": (
        "Load MiniMax H3 Text Encoder (H3TE)",
        ["text_encoder COMBO", "device COMBO", "options? OPTIONS"],
        ["CLIP CLIP"],
    ),
    "H3TEEncodeReferences": (
        "Encode Prompt + Reference Image (H3TE)",
        ["clip CLIP", "vae? VAE", "audio_vae? VAE", "prompt STRING", "width INT", "height INT", "length INT",
         "ref_image_size COMBO", "ref_images? IMAGE,MINIMAX_H3_REFERENCE_IMAGE", "ref_videos? IMAGE",
         "ref_video_audios? AUDIO", "ref_audios? AUDIO", "references? H3TE_REFERENCES",
         "alpha_colour? STRING", "preview_only? BOOLEAN"],
        ["positive CONDITIONING", "LATENT LATENT", "presentation STRING", "presentation_image IMAGE"],
    ),
    "H3TEEncodeKeyframes": (
        "Encode Video Keyframes (H3TE)",
        ["clip CLIP", "vae? VAE", "prompt STRING", "width INT", "height INT", "length INT", "first_frame? IMAGE",
         "last_frame? IMAGE", "keyframes? H3TE_KEYFRAMES", "fit? COMBO", "alpha_colour? STRING", "canvas? COMBO",
         "preview_only? BOOLEAN"],
        ["positive CONDITIONING", "LATENT LATENT", "presentation STRING", "width INT", "height INT", "length INT",
         "presentation_image IMAGE"],
    ),
    "H3TEShowPresentation": (
        "Show Presentation (H3TE)",
        ["prompt STRING", "width INT", "height INT", "length INT", "ref_image_size COMBO", "clip? CLIP",
         "ref_images? IMAGE,MINIMAX_H3_REFERENCE_IMAGE", "ref_videos? IMAGE", "ref_video_audios? AUDIO",
         "ref_audios? AUDIO", "references? H3TE_REFERENCES", "first_frame? IMAGE", "last_frame? IMAGE",
         "keyframes? H3TE_KEYFRAMES", "fit? COMBO", "canvas? COMBO", "alpha_colour? STRING"],
        ["presentation_image IMAGE", "presentation STRING", "tokens INT"],
    ),
    "H3TEReferenceImage": (
        "Reference Image (H3TE)",
        ["image IMAGE", "vision_only BOOLEAN", "timed BOOLEAN", "second FLOAT", "references? H3TE_REFERENCES"],
        ["references H3TE_REFERENCES"],
    ),
    "H3TEReferenceVideo": (
        "Reference Video (H3TE)",
        ["video? VIDEO", "frames? IMAGE", "fps FLOAT", "soundtrack? AUDIO", "with_sound BOOLEAN",
         "vision_only BOOLEAN", "references? H3TE_REFERENCES"],
        ["references H3TE_REFERENCES"],
    ),
    "H3TEReferenceAudio": (
        "Reference Audio (H3TE)",
        ["audio AUDIO", "vision_only BOOLEAN", "references? H3TE_REFERENCES"],
        ["references H3TE_REFERENCES"],
    ),
    "H3TEKeyframe": (
        "Keyframe (H3TE)",
        ["image IMAGE", "unit COMBO", "frame INT", "second FLOAT", "fit COMBO", "pad_colour STRING",
         "show_to_encoder BOOLEAN", "keyframes? H3TE_KEYFRAMES"],
        ["keyframes H3TE_KEYFRAMES"],
    ),
    "H3TESaveConditioning": (
        "Save MiniMax H3 Conditioning (H3TE)",
        ["conditioning CONDITIONING", "filename_prefix STRING"],
        ["CONDITIONING CONDITIONING", "file STRING"],
    ),
    "H3TELoadConditioning": (
        "Load MiniMax H3 Conditioning (H3TE)",
        ["file COMBO"],
        ["CONDITIONING CONDITIONING", "presentation STRING"],
    ),
    "H3TEClearCaches": (
        "Clear MiniMax H3 Caches (H3TE)",
        ["what COMBO", "anything? *"],
        ["anything *", "bytes freed INT"],
    ),
    "H3TECheckpointDoctor": (
        "MiniMax H3 Checkpoint Doctor (H3TE)",
        ["text_encoder COMBO"],
        ["report STRING", "table IMAGE"],
    ),
    "H3TEEncoderOptions": (
        "MiniMax H3 Encoder Options (H3TE)",
        ["dtype COMBO", "reader? COMBO", "vision_file? COMBO", "unpack? COMBO", "backend? COMBO",
         "unload_after_encode? BOOLEAN", "prefix_cache_gb? FLOAT", "conditioning_cache? COMBO",
         "disk_cache_gb? FLOAT", "exact? BOOLEAN", "cache_only? COMBO", "remote? STRING"],
        ["OPTIONS OPTIONS"],
    ),
}  # fmt: skip


@pytest.fixture
def nodes(text_encoders) -> dict:  # noqa: F811
    import h3te

    extension = asyncio.run(h3te.comfy_entrypoint())
    return {node.GET_SCHEMA().node_id: node for node in asyncio.run(extension.get_node_list())}


def inputs_of(node) -> list[tuple[str, bool, str]]:
    """(id, optional, type), with the fixed sockets of older releases folded back into their growing group."""
    found = {}
    for socket in node.GET_SCHEMA().inputs:
        group = socket.id.split(".")[0]
        kind = socket.template.input if hasattr(socket, "template") else socket
        found.setdefault(group, (group, bool(socket.optional), str(kind.get_io_type())))
    return list(found.values())


@pytest.mark.parametrize("node_id", FROZEN)
def test_node_is_frozen(nodes, node_id):
    title, inputs, outputs = FROZEN[node_id]
    schema = nodes[node_id].GET_SCHEMA()
    assert schema.display_name == title
    assert schema.category == "MiniMax H3/text encoder"
    assert [f"{name}{'?' if optional else ''} {kind}" for name, optional, kind in inputs_of(nodes[node_id])] == inputs
    assert [f"{o.display_name or o.io_type} {o.io_type}" for o in schema.outputs] == outputs


def test_no_other_nodes_are_added(nodes):
    assert set(nodes) == set(FROZEN)


@pytest.mark.parametrize("node_id", FROZEN)
def test_node_info_for_the_frontend_is_complete(nodes, node_id):
    import json

    info = nodes[node_id].GET_NODE_INFO_V1()
    json.dumps(info)
    assert info["description"]
    assert all(info["output_tooltips"])


@pytest.mark.parametrize("node_id", FROZEN)
def test_every_input_and_output_has_a_tooltip(nodes, node_id):
    schema = nodes[node_id].GET_SCHEMA()
    assert [socket.id for socket in (*schema.inputs, *schema.outputs) if not socket.tooltip] == []


def test_widgets_have_the_hosts_defaults_and_limits(nodes):
    for node_id in ("H3TEEncodeReferences", "H3TEEncodeKeyframes"):
        widgets = {socket.id: socket.as_dict() for socket in nodes[node_id].GET_SCHEMA().inputs}
        assert widgets["prompt"]["multiline"]
        assert widgets["prompt"]["dynamicPrompts"]
        limits = {"min": 32, "max": 16384, "step": 32}
        assert widgets["width"].items() >= {"default": 1344, **limits}.items()
        assert widgets["height"].items() >= {"default": 768, **limits}.items()
        assert widgets["length"].items() >= {"default": 124, "min": 5, "max": 3600, "step": 17}.items()
    sizes = {s.id: s for s in nodes["H3TEEncodeReferences"].GET_SCHEMA().inputs}["ref_image_size"]
    assert (sizes.options, sizes.default) == (["match", "max", "official", "none"], "match")


def test_api_keys_of_growing_sockets_are_flat_on_every_release(nodes):
    from comfy_api.latest import io

    sockets = {s.id: s for s in nodes["H3TEEncodeReferences"].GET_SCHEMA().inputs}
    for group, (prefix, count) in GROWN.items():
        if hasattr(io, "Autogrow"):
            template = sockets[group].template
            assert (template.prefix, template.min, template.max) == (prefix, 0, count)
        else:
            keys = [key for key in sockets if key.startswith(group + ".")]
            assert keys == [f"{group}.{prefix}{i}" for i in range(count)]
            assert all(sockets[key].optional for key in keys)


def test_gathered_reads_grown_and_fixed_sockets_alike(comfy):  # noqa: F811
    from h3te.nodes.sockets import gathered

    grown = {"ref_images": {"ref_image_10": "b", "ref_image_2": "a", "ref_image_3": None}}
    fixed = {"ref_images.ref_image_10": "b", "ref_images.ref_image_2": "a", "ref_videos.ref_video_0": "c"}
    assert list(gathered(grown, "ref_images").items()) == [(2, "a"), (10, "b")]
    assert list(gathered(fixed, "ref_images").items()) == [(2, "a"), (10, "b")]
    assert gathered({"ref_images": {}}, "ref_images") == gathered({}, "ref_images") == {}


def test_schema_leaves_out_fields_that_a_release_lacks(comfy, monkeypatch):  # noqa: F811
    from h3te.nodes import sockets

    assert sockets.Schema(node_id="X", inputs=[], outputs=[], field_of_the_future=1).node_id == "X"


def test_ids_are_literals_in_direct_comfy_nodes():
    """The Manager's scanner reads nodes from the syntax tree: a call of something named Schema with its node_id."""
    found = []
    for file in (ROOT / "nodes").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["io.ComfyNode"]:
                calls = [c for c in ast.walk(node) if isinstance(c, ast.Call) and ast.unparse(c.func) == "Schema"]
                found += [k.value.value for call in calls for k in call.keywords if k.arg == "node_id"]
    assert sorted(found) == sorted(FROZEN)


def test_help_pages_and_web_directory_belong_to_the_nodes():
    import h3te

    docs = (ROOT / h3te.WEB_DIRECTORY / "docs").resolve()
    assert sorted(page.stem for page in docs.glob("*.md")) == sorted(FROZEN)


@pytest.mark.parametrize("name", ["pack", "pack with spaces", "pack-with.dots-1.0"])
def test_importing_the_root_imports_nothing(tmp_path, name):
    """Any folder name; the entry point is there, torch and comfy are not."""
    folder = tmp_path / name
    folder.symlink_to(ROOT, target_is_directory=True)
    code = f"""
import importlib.util, sys
folder = r"{folder}"
spec = importlib.util.spec_from_file_location("x", folder + "/__init__.py", submodule_search_locations=[folder])
module = importlib.util.module_from_spec(spec); sys.modules["x"] = module
before = set(sys.modules); spec.loader.exec_module(module)
assert set(sys.modules) == before, set(sys.modules) - before
assert callable(module.comfy_entrypoint) and not hasattr(module, "NODE_CLASS_MAPPINGS")
"""
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def test_importing_the_nodes_does_no_work(tmp_path, comfy_folder):
    """No file is opened for writing, no weights, no thread, no transformers."""
    code = f"""
import asyncio, sys, threading
sys.path.insert(0, r"{comfy_folder}")
sys.path.insert(0, r"{ROOT / "tests"}")
from comfy.cli_args import args
args.cpu = True
import comfy.sd, importlib.util
root = r"{ROOT}"
spec = importlib.util.spec_from_file_location("x", root + "/__init__.py", submodule_search_locations=[root])
module = importlib.util.module_from_spec(spec); sys.modules["x"] = module; spec.loader.exec_module(module)
threads, loaded = threading.active_count(), "transformers.models.qwen3_vl" in sys.modules
written = []
def audit(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        written.append(arguments[0])
sys.addaudithook(audit)
extension = asyncio.run(module.comfy_entrypoint())
assert len(asyncio.run(extension.get_node_list())) == {len(FROZEN)}
assert threading.active_count() == threads
assert ("transformers.models.qwen3_vl" in sys.modules) == loaded
assert not [name for name in written if not str(name).endswith(".pyc") and ".pyc." not in str(name)], written
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_every_input_is_on_its_help_page(nodes):
    for node_id, node in nodes.items():
        page = (ROOT / "web" / "docs" / f"{node_id}.md").read_text(encoding="utf-8")
        table = page.split("## Inputs")[-1].split("## Outputs")[0]
        missing = [name for name, *_ in inputs_of(node) if name not in table]
        assert not missing, (node_id, missing)
