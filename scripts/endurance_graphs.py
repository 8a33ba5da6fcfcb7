"""The steps of an endurance run as graphs in ComfyUI's API format.

Contract: `graph(step, result, checkpoints)` writes its conditioning to `<result>.safetensors` of the output folder
(`<result>_<i>` of a list); `fresh(step, ...)` asks for the same conditioning without any cache, budget or reader of its
own. `checkpoints`: key -> value of the loader's combo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from demo_requests import LENGTH, lossless_name, node
from endurance_steps import PICTURES, Request, Settings, Step

PREFIX_GB = 0.02  # full long before the end of a run, so that what grows is no cache
NO_ROOM = 1e-12  # prefixes are asked for and never kept: pictures are seen one by one, everything is computed
SECONDS = {"frames": 6, "fps": 3.0}
CUT = "h3te_endurance_cut.safetensors"  # the first part of a checkpoint
SAVED = "endurance/h3"

Graph = dict[str, dict]


def graph(step: Step, result: str, checkpoints: Mapping[str, str]) -> Graph:
    nodes = _encoder(step.settings, checkpoints)
    nodes["budget"] = node("H3TEEnduranceBudget", clip=_clip(nodes), percent=step.settings.budget)
    nodes |= _encode(step.request, ["budget", 0], result)
    if step.does == "preview":
        return _previewed(nodes, step.request)
    if step.does == "save":
        return _saved(nodes, SAVED)
    return nodes


def fresh(step: Step, result: str, checkpoints: Mapping[str, str], dtype: str = "") -> Graph:
    """dtype: instead of the step's own."""
    of = step.settings
    plain = Settings(of.checkpoint, dtype or of.dtype, exact=of.exact, kept="off", prefixes=of.prefixes, lora=of.lora)
    nodes = _encoder(plain, checkpoints)
    nodes["options"]["inputs"]["prefix_cache_gb"] = NO_ROOM if of.prefixes else 0
    return nodes | _encode(step.request, _clip(nodes), result)


def loading(file: str, result: str) -> Graph:
    return {"load": node("H3TELoadConditioning", file=file)} | _probe(["load", 0], result)


def clearing(what: str) -> Graph:
    return {"clear": node("H3TEClearCaches", what=what)}


def broken(step: Step, result: str, checkpoints: Mapping[str, str]) -> tuple[Graph, str]:
    """A graph that cannot run, and what the error must name."""
    nodes = graph(replace(step, does="encode"), result, checkpoints)
    if step.detail == "no file":
        nodes["loader"]["inputs"]["text_encoder"] = "no_such_file.safetensors"
        return nodes, "no_such_file"
    if step.detail == "cut file":
        nodes["loader"]["inputs"]["text_encoder"] = CUT
        return nodes, "as its header says"
    if step.detail == "marker":
        marked = replace(step.request, kind="text", prompts=("a <|image_pad|> of nothing",), pictures=())
        return _encoder(step.settings, checkpoints) | _encode(marked, ["loader", 0], result), "image_pad"
    if step.detail == "leads out":
        return _saved(nodes, "../out"), "leads out"
    if step.detail == "nothing saved":
        return loading("no_such_file.safetensors [output]", result), "no_such_file"
    if step.detail == "neither video":
        video = Request("video", step.request.prompts[:1], PICTURES[:1])
        nodes = _encoder(step.settings, checkpoints) | _encode(video, ["loader", 0], result)
        nodes["video"] = node("H3TEReferenceVideo", fps=24.0, with_sound=False, vision_only=False)
        return nodes, "either video or frames"
    nodes["budget"] = node("CLIPSetLastLayer", clip=["loader", 0], stop_at_clip_layer=-2)
    return nodes, "CLIPSetLastLayer"


def _encoder(of: Settings, checkpoints: Mapping[str, str]) -> Graph:
    options = {"dtype": of.dtype, "reader": of.reader, "exact": of.exact, "unload_after_encode": of.unload}
    caches = {"conditioning_cache": of.kept, "prefix_cache_gb": PREFIX_GB if of.prefixes else 0}
    nodes = {"options": node("H3TEEncoderOptions", **options, **caches)}
    nodes["loader"] = node("H3TELoadTextEncoder", text_encoder=checkpoints[of.checkpoint], device="auto")
    nodes["loader"]["inputs"]["options"] = ["options", 0]
    if of.lora:
        nodes["lora"] = node("H3TEEnduranceLora", clip=["loader", 0], strength=of.lora)
    return nodes


def _clip(nodes: Graph) -> list:
    return ["lora" if "lora" in nodes else "loader", 0]


def _encode(request: Request, clip: list, result: str) -> Graph:
    nodes = {f"picture_{i}": node("LoadImage", image=lossless_name(name)) for i, name in enumerate(request.pictures)}
    links = [[name, 0] for name in nodes]
    if request.kind == "text":
        nodes["encode"] = node("CLIPTextEncode", clip=clip, text=request.prompts[0])
        return nodes | _probe(["encode", 0], result)
    width, height = request.canvas
    common = {"clip": clip, "prompt": request.prompts[0], "width": width, "height": height, "length": LENGTH}
    if request.kind == "keyframes":
        nodes["encode"] = node("H3TEEncodeKeyframes", **common, first_frame=links[0], last_frame=links[1])
        return nodes | _probe(["encode", 0], result)
    sockets = {f"ref_images.ref_image_{i}": link for i, link in enumerate(links)}
    if request.kind in ("chain", "video"):
        chain = _chain(request, links) if request.kind == "chain" else _video(links[0])
        nodes |= chain
        sockets = {"references": [list(chain)[-1], 0]}
    mode = request.detail if request.kind in ("references", "list") else "match"
    nodes["encode"] = node("H3TEEncodeReferences", **common, ref_image_size=mode, **sockets)
    if request.kind == "list":
        return nodes | _listed(nodes["encode"], request, result)
    return nodes | _probe(["encode", 0], result)


def _listed(encode: dict, request: Request, result: str) -> Graph:
    """Prompts and names of results as lists of ComfyUI."""
    encode["inputs"]["prompt"] = ["texts", 0]
    texts = node("H3TETextList", texts="\n".join(request.prompts), prefix=f"{result}_")
    return {"texts": texts} | _probe(["encode", 0], ["texts", 1])


def _chain(request: Request, links: list) -> Graph:
    """In the order of the pictures, the first with a second of its own where the request names one."""
    second, nodes, before = float(request.detail), {}, {}
    for i, link in enumerate(links):
        timed = second > 0 and i == 0
        nodes[f"chain_{i}"] = node(
            "H3TEReferenceImage", image=link, vision_only=False, timed=timed, second=second, **before
        )
        before = {"references": [f"chain_{i}", 0]}
    return nodes


def _video(link: list) -> Graph:
    """One picture as two seconds of film."""
    frames = node("RepeatImageBatch", image=link, amount=SECONDS["frames"])
    video = {"fps": SECONDS["fps"], "with_sound": False, "vision_only": False}
    return {"frames": frames, "video": node("H3TEReferenceVideo", frames=["frames", 0], **video)}


def _probe(conditioning: list, name: str | list) -> Graph:
    return {"probe": node("H3TEConditioningProbe", conditioning=conditioning, name=name)}


def _saved(nodes: Graph, prefix: str) -> Graph:
    nodes["save"] = node("H3TESaveConditioning", conditioning=["encode", 0], filename_prefix=prefix)
    nodes["probe"]["inputs"]["conditioning"] = ["save", 0]
    return nodes


def _previewed(nodes: Graph, request: Request) -> Graph:
    """Of a prompt alone by the node that shows; of everything else by the encode node itself."""
    del nodes["probe"]
    if request.kind == "text":
        nodes["encode"] = node(
            "H3TEShowPresentation", clip=["budget", 0], prompt=request.prompts[0], width=320, height=192, length=LENGTH,
            ref_image_size="match",
        )  # fmt: skip
        return nodes
    nodes["encode"]["inputs"]["preview_only"] = True
    nodes["shown"] = node("PreviewAny", source=["encode", 2])
    return nodes
