"""A small graph with a subgraph, and what ComfyUI would say about its nodes, for the tests of the template check."""

from __future__ import annotations

FILE = "encoder.safetensors"
GROWN = {"input": {"required": {"ref_image": ["IMAGE", {}]}}, "prefix": "ref_image_", "min": 0, "max": 9}
COMMON = {
    "clip": ["CLIP", {}], "vae": ["VAE", {}], "prompt": ["STRING", {}], "width": ["INT", {"min": 32, "max": 16384}],
    "size": ["COMBO", {"options": ["match", "max"]}],
}  # fmt: skip


def node(inputs: dict, outputs: list[str], optional: dict | None = None) -> dict:
    return {"input": {"required": inputs, "optional": optional or {}}, "output": outputs, "output_name": outputs}


def object_info() -> dict:
    """In the form of ComfyUI's answer: its nodes and ours, as far as the graph needs them."""
    grown = {"ref_images": ["COMFY_AUTOGROW_V3", {"template": GROWN}]}
    return {
        "CLIPLoader": node({"clip_name": [[FILE]], "type": [["sd3", "minimax"]]}, ["CLIP"], {"device": [["default"]]}),
        "H3TELoadTextEncoder": node(
            {"text_encoder": ["COMBO", {"options": []}], "device": ["COMBO", {"options": ["auto"], "default": "auto"}]},
            ["CLIP"], {"options": ["OPTIONS", {}]},
        ),
        "MiniMaxH3ReferenceToVideo": node(COMMON, ["CONDITIONING", "LATENT"], grown),
        "H3TEEncodeReferences": node(
            COMMON, ["CONDITIONING", "LATENT", "STRING"], {**grown, "references": ["H3TE_REFERENCES", {}],
                                                          "alpha_colour": ["STRING", {"default": "white"}]},
        ),
        "MiniMaxH3ImageToVideo": node(COMMON, ["CONDITIONING", "LATENT"]),
        "H3TEEncodeKeyframes": node(COMMON, ["CONDITIONING", "LATENT"]),
        "VAELoader": node({"vae_name": [["v.safetensors"]]}, ["VAE"]),
        "LoadImage": node({"image": [["a.png"], {"image_upload": True}]}, ["IMAGE", "MASK"]),
        "Seeded": node({"seed": ["INT", {"control_after_generate": True}]}, ["INT"]),
        "BasicGuider": node({"model": ["MODEL", {}], "conditioning": ["CONDITIONING", {}]}, ["GUIDER"]),
    }  # fmt: skip


def entry(name: str, kind: str, link: int | None = None, widget: bool = False) -> dict:
    return {"name": name, "type": kind, "link": link} | ({"widget": {"name": name}} if widget else {})


def saved(identity: int, kind: str, inputs: list, outputs: list, values: list | None = None) -> dict:
    ends = [{"name": name, "type": name, "links": links} for name, links in outputs]
    return {"id": identity, "type": kind, "mode": 0, "inputs": inputs, "outputs": ends, "widgets_values": values}


def link(identity: int, origin: int, origin_slot: int, target: int, target_slot: int, kind: str) -> dict:
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    return dict(zip(names, (identity, origin, origin_slot, target, target_slot, kind), strict=True))


def workflow() -> dict:
    """Loader and encode node inside a subgraph whose own inputs are the file, the prompt, the width and a picture."""
    inner = [
        saved(
            1, "CLIPLoader", [entry("clip_name", "COMBO", 1, True)], [("CLIP", [5])], ["other", "minimax", "default"],
        ),
        saved(2, "VAELoader", [], [("VAE", [6])], ["v.safetensors"]),
        saved(
            3, "MiniMaxH3ReferenceToVideo",
            [entry("clip", "CLIP", 5), entry("vae", "VAE", 6), entry("ref_images.ref_image_0", "IMAGE", 4),
             entry("ref_images.ref_image_1", "IMAGE"), entry("prompt", "STRING", 2, True),
             entry("width", "INT", 3, True)],
            [("CONDITIONING", [7]), ("LATENT", [])], ["inner prompt", 64, "max"],
        ),
    ]  # fmt: skip
    inputs = [("clip_name", "COMBO", 1), ("prompt", "STRING", 2), ("width", "INT", 3), ("picture", "IMAGE", 4)]
    subgraph = {
        "id": "sub", "name": "Encode", "nodes": inner,
        "outputs": [{"name": "positive", "type": "CONDITIONING", "linkIds": [7]}],
        "inputs": [{"name": name, "type": kind, "linkIds": [i]} for name, kind, i in inputs],
        "links": [link(1, -10, 0, 1, 0, "COMBO"), link(2, -10, 1, 3, 4, "STRING"), link(3, -10, 2, 3, 5, "INT"),
                  link(4, -10, 3, 3, 2, "IMAGE"), link(5, 1, 0, 3, 0, "CLIP"), link(6, 2, 0, 3, 1, "VAE"),
                  link(7, 3, 0, -20, 0, "CONDITIONING")],
    }  # fmt: skip
    outer = [
        saved(10, "sub", [entry("picture", "IMAGE", 1), entry("width", "INT", 3, True)], [("CONDITIONING", [2])],
              [FILE, "outer prompt", 512]),
        saved(11, "LoadImage", [], [("IMAGE", [1]), ("MASK", [])], ["a.png", "image"]),
        saved(12, "BasicGuider", [entry("model", "MODEL"), entry("conditioning", "CONDITIONING", 2)], [("GUIDER", [])]),
        saved(13, "Seeded", [], [("INT", [3])], [96, "fixed"]),
    ]  # fmt: skip
    links = [[1, 11, 0, 10, 0, "IMAGE"], [2, 10, 0, 12, 1, "CONDITIONING"], [3, 13, 0, 10, 1, "INT"]]
    return {"id": "top", "nodes": outer, "links": links, "definitions": {"subgraphs": [subgraph]}}
