"""The demo's requests, each twice: as a graph for ComfyUI and as a direct call of the encoder on the same pictures.

Contract: `REQUESTS` in the order of the demo; `graph(request, checkpoint)` is in ComfyUI's API format;
`references(request)` are the prepared pixels that the nodes must arrive at, by the geometry that the facts of the
model prescribe.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import layout
from pack import h3te_module

PICTURES = layout.ROOT / "assets" / "demo"
WIDTH, HEIGHT, LENGTH = 864, 480, 124  # what ComfyUI's own H3 templates use
STOPPED_WIDTH, STOPPED_HEIGHT = 1344, 768  # long enough to press Stop in the middle


@dataclass(frozen=True)
class DemoRequest:
    """`kind`: text, references or keyframes; `pictures`: file names in assets/demo."""

    name: str
    title: str
    kind: str
    prompt: str
    pictures: tuple[str, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT


TEXT = DemoRequest(
    "text",
    "Prompt only",
    "text",
    "A small sailing boat leaves a quiet harbour at dawn; gulls call, water laps against the stones. An old man on the "
    "pier waves and says: <d>[English] Fair winds!</d>",
)
REFERENCES = DemoRequest(
    "references",
    "Two reference images (Ref2VA)",
    "references",
    "The rubber duck of <Picture 1>, scarf and all, floats past the lighthouse of <Picture 2> while the lamp turns.",
    ("rubber_duck.jpg", "lighthouse.jpg"),
)
KEYFRAMES = DemoRequest(
    "keyframes",
    "First and last frame (FL2VA)",
    "keyframes",
    "From <Picture 1> to <Picture 2>: the boat crosses the harbour as morning turns into full daylight.",
    ("harbour_dawn.jpg", "harbour_day.jpg"),
)
REQUESTS = (TEXT, REFERENCES, KEYFRAMES)
STOPPED = DemoRequest(
    "stopped",
    "Stopped in the middle",
    "keyframes",
    "This one is stopped in the middle.",
    KEYFRAMES.pictures,
    STOPPED_WIDTH,
    STOPPED_HEIGHT,
)
AFTER_STOP = DemoRequest("after_stop", "The prompt after Stop", "text", "And then the fog lifts over the harbour.")
FRESH = {"exact": True, "conditioning_cache": "off"}  # computed whole each time, in the released order


def lossless_name(picture: str) -> str:
    return Path(picture).with_suffix(".png").name


def upload_pictures(server, requests=REQUESTS) -> None:
    """Put the requests' pictures into ComfyUI's input folder, as PNG: its releases decode JPEG differently."""
    from PIL import Image

    for picture in sorted({name for request in requests for name in request.pictures}):
        png = layout.TEMP / lossless_name(picture)
        Image.fromarray(_pixels(PICTURES / picture)).save(png)
        server.upload_image(png)
        png.unlink()


def graph(request: DemoRequest, checkpoint: str) -> dict:
    """The request as an API graph whose probe writes `h3te_demo_<name>.safetensors`. checkpoint: a value of the
    combo."""
    nodes = {"loader": node("H3TELoadTextEncoder", text_encoder=checkpoint, device="auto")}
    for i, picture in enumerate(request.pictures):
        nodes[f"picture_{i}"] = node("LoadImage", image=lossless_name(picture))
    nodes["encode"] = _encode_node(request)
    nodes["probe"] = node("H3TEConditioningProbe", conditioning=["encode", 0], name=f"h3te_demo_{request.name}")
    return nodes


def with_options(graph: dict, **options) -> dict:
    """The graph with the encoder's options: those of `FRESH`, and the given ones."""
    graph["options"] = node("H3TEEncoderOptions", **{"dtype": "auto", **FRESH, **options})
    graph["loader"]["inputs"]["options"] = ["options", 0]
    return graph


def _encode_node(request: DemoRequest) -> dict:
    if request.kind == "text":
        return node("CLIPTextEncode", clip=["loader", 0], text=request.prompt)
    size = {"width": request.width, "height": request.height, "length": LENGTH}
    common = {"clip": ["loader", 0], "prompt": request.prompt, **size}
    links = [[f"picture_{i}", 0] for i in range(len(request.pictures))]
    if request.kind == "keyframes":
        return node("H3TEEncodeKeyframes", **common, first_frame=links[0], last_frame=links[1])
    sockets = {f"ref_images.ref_image_{i}": link for i, link in enumerate(links)}
    return node("H3TEEncodeReferences", **common, ref_image_size="match", **sockets)


def node(class_type: str, **inputs) -> dict:
    """One node of an API graph; an input [name, slot] is a link."""
    return {"class_type": class_type, "inputs": inputs}


def references(request: DemoRequest) -> list:
    """The prepared pixels as the encoder's own references."""
    image_reference = h3te_module("encoder").ImageReference
    pictures = [_pixels(PICTURES / name) for name in request.pictures]
    if request.kind == "keyframes":
        geometry = h3te_module("encoder.geometry")
        first = geometry.resize(pictures[0], request.width, request.height)
        last = geometry.cover_crop(pictures[1], request.width, request.height)
        return [image_reference(first), image_reference(last)]
    return [image_reference(_matched(pixels, request)) for pixels in pictures]


def _matched(pixels, request: DemoRequest):
    geometry = h3te_module("encoder.geometry")
    height, width = pixels.shape[:2]
    target = geometry.reference_image_size(width, height, "match", request.width, request.height)
    return geometry.resize(pixels, *target)


def _pixels(path: Path):
    import numpy as np
    from PIL import Image, ImageOps

    return np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
