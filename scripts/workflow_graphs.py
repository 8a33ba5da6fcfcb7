"""The bundled workflows as one description: a skeleton, and what each task puts into it.

Contract: `graphs()` gives a `Graph` per workflow. The skeleton does what ComfyUI's own H3 templates do (models, sizes,
turbo branch, sampler, save); ours are the loader and encode nodes, and those that save and load conditioning. Node ids
never change. Columns from left to right: note, models and settings, pictures, encoder, sampling, video.
"""

from __future__ import annotations

import workflow_definitions
import workflow_texts
from workflow_format import Graph, Group, Link, Node
from workflow_tasks import AUDIO_VAE, ENCODER, FL2VA, LOADED, REF2VA, T2VA, VIDEO_VAE, Task

STEPS, SECONDS, ASPECT, MEGAPIXELS = 20, 5, "16:9 (Widescreen)", 0.4
# raised to the model's grid of 17k + 5 frames
FRAMES = "ceil((a * 24 - 5) / 17) * 17 + 5"
PICTURE, VIDEO, VOICE = "example.png", "reference_video.mp4", "voice.wav"
SAVED, FIRST_SAVED = "conditioning/h3", "conditioning/h3_00001_.safetensors [output]"
LEFT, GAP, ROW = 680, 60, 420  # where the pictures begin, and from one to the next
# every node type below, to be recorded from a host
KINDS = (
    "BasicGuider", "BasicScheduler", "ComfyMathExpression", "ComfySwitchNode", "CreateVideo",
    "EmptyMiniMaxH3LatentAV", "H3TEEncodeKeyframes", "H3TEEncodeReferences", "H3TEKeyframe", "H3TELoadConditioning",
    "H3TELoadTextEncoder", "H3TEReferenceAudio", "H3TEReferenceImage", "H3TEReferenceVideo", "H3TESaveConditioning",
    "KSamplerSelect", "LoadAudio", "LoadImage", "LoadVideo", "LoraLoaderModelOnly", "PreviewAny",
    "PrimitiveBoolean", "PrimitiveFloat", "PrimitiveInt", "PrimitiveStringMultiline", "RandomNoise",
    "ResolutionSelector", "SamplerCustomAdvanced", "SaveVideo", "UNETLoader", "VAEDecode", "VAEDecodeAudio",
    "VAELoader",
)  # fmt: skip


def graphs() -> list[Graph]:
    definitions = workflow_definitions.load()
    makers = (ref2va_images, ref2va_images_video_voice, fl2va_first_last, fl2va_mid_keyframes, t2va)
    return [make(definitions) for make in (*makers, save_conditioning, load_conditioning)]


def ref2va_images(definitions, name: str = "h3te_ref2va_images", beside=(), around=()) -> Graph:
    """beside, around: further nodes, and groups around them."""
    pictures = [_picture(25, "Picture 1", 0), _picture(26, "Picture 2", 1)]
    sockets = {f"ref_images.ref_image_{i}": Link(node.id, "IMAGE") for i, node in enumerate(pictures)}
    encode = {"audio_vae": Link(5, "VAE"), "ref_image_size": "match", **sockets}
    group = Group("3 Pictures", (LEFT - 20, -70, 340, 880))
    more = [*pictures, *beside]
    return _graph(name, REF2VA, definitions, "H3TEEncodeReferences", encode, more, [group, *around], 300)


def ref2va_images_video_voice(definitions) -> Graph:
    """The chain nodes stand beside what they take; the chain runs downwards."""
    right = LEFT + 340
    loaders = [
        _picture(25, "Picture 1", 0),
        _picture(26, "Picture 2", 1),
        Node(30, "LoadVideo", (LEFT, 2 * ROW), (300, 330), {"file": VIDEO}, "Video 1"),
        Node(31, "LoadAudio", (LEFT, 3 * ROW), (300, 140), {"audio": VOICE}, "Voice"),
    ]
    chain = [
        Node(32, "H3TEReferenceImage", (right, 0), (300, 130), {"image": Link(25, "IMAGE")}),
        Node(33, "H3TEReferenceImage", (right, ROW), (300, 130), {"image": Link(26, "IMAGE"), **_after(32)}),
        Node(
            34,
            "H3TEReferenceVideo",
            (right, 2 * ROW),
            (300, 170),
            {"video": Link(30, "VIDEO"), "with_sound": False, **_after(33)},
        ),
        Node(35, "H3TEReferenceAudio", (right, 3 * ROW), (300, 100), {"audio": Link(31, "AUDIO"), **_after(34)}),
    ]
    encode = {"audio_vae": Link(5, "VAE"), "ref_image_size": "match", **_after(35)}
    group = Group("3 References, in the order of the request", (LEFT - 20, -70, 680, 1530))
    name = "h3te_ref2va_images_video_voice"
    return _graph(name, REF2VA, definitions, "H3TEEncodeReferences", encode, [*loaders, *chain], [group], 640)


def fl2va_first_last(definitions) -> Graph:
    pictures = [_picture(25, "First frame", 0), _picture(26, "Last frame", 1)]
    encode = {"first_frame": Link(25, "IMAGE"), "last_frame": Link(26, "IMAGE")}
    group = Group("3 First and last frame", (LEFT - 20, -70, 340, 880))
    return _graph("h3te_fl2va_first_last", FL2VA, definitions, "H3TEEncodeKeyframes", encode, pictures, [group], 300)


def fl2va_mid_keyframes(definitions) -> Graph:
    right = LEFT + 340
    places = (
        ("First frame", {"unit": "frame", "frame": 0}),
        ("In between", {"unit": "second", "second": 2.5, "show_to_encoder": False}),
        ("Last frame", {"unit": "frame", "frame": -1}),
    )
    pictures, chain = [], []
    for i, (title, values) in enumerate(places):
        pictures.append(_picture((25, 26, 30)[i], title, i))
        inputs = {"image": Link(pictures[-1].id, "IMAGE"), **values}
        inputs |= {"keyframes": Link(31 + i, "keyframes")} if i else {}
        chain.append(Node(32 + i, "H3TEKeyframe", (right, ROW * i), (300, 210), inputs, f"Keyframe: {title.lower()}"))
    encode = {"keyframes": Link(34, "keyframes")}
    group = Group("3 Keyframes", (LEFT - 20, -70, 680, 1300))
    name = "h3te_fl2va_mid_keyframes"
    return _graph(name, FL2VA, definitions, "H3TEEncodeKeyframes", encode, [*pictures, *chain], [group], 640)


def t2va(definitions) -> Graph:
    return _graph("h3te_t2va", T2VA, definitions, "H3TEEncodeKeyframes", {}, [], [], 0)


def save_conditioning(definitions) -> Graph:
    """The one with two pictures; its conditioning is saved as well."""
    inputs = {"conditioning": Link(23, "positive"), "filename_prefix": SAVED}
    x = LEFT + 300 + GAP
    save = Node(36, "H3TESaveConditioning", (x, 1150), (480, 110), inputs, "Save for later", yours=True)
    around = Group("9 Saved conditioning", (x - 20, 1080, 520, 200))
    return ref2va_images(definitions, "h3te_save_conditioning", [save], [around])


def load_conditioning(definitions) -> Graph:
    """No text encoder, no prompt, no pictures."""
    name, x = "h3te_load_conditioning", LEFT
    size = {"width": Link(6, "width"), "height": Link(6, "height"), "length": Link(8, "INT")}
    loaded = [
        Node(37, "H3TELoadConditioning", (x, 0), (480, 110), {"file": FIRST_SAVED}, "What was saved", yours=True),
        Node(38, "EmptyMiniMaxH3LatentAV", (x, 210), (480, 130), size),
        Node(27, "PreviewAny", (x, 730), (480, 300), {"source": Link(37, "presentation")}, "What the encoder read"),
    ]
    without = (3, 24)  # text encoder and prompt
    kept = [node for node in (*_models(LOADED), *_settings(name)) if node.id not in without]
    nodes = [*kept, *loaded, *_sampling(LOADED, x + 560, Link(37, "CONDITIONING"), Link(38, "LATENT"))]
    nodes += [*_video(LOADED, x + 1160), _note(name, LOADED)]
    return Graph(name, sorted(nodes, key=lambda node: node.id), _groups(x, 3, "Saved conditioning"), definitions)


def _picture(node: int, title: str, row: int) -> Node:
    return Node(node, "LoadImage", (LEFT, ROW * row), (300, 330), {"image": PICTURE}, title, yours=True)


def _after(node: int) -> dict[str, Link]:
    return {"references": Link(node, "references")}


def _graph(name, task: Task, definitions, encode: str, inputs, pictures, groups, width: int) -> Graph:
    """width: of the column of pictures; what is right of it moves along."""
    x = LEFT + (width + GAP if width else 0)
    nodes = [*_models(task), *_settings(name), *pictures, *_encode(encode, inputs, x)]
    nodes += [*_sampling(task, x + 560, Link(23, "positive"), Link(23, "LATENT"))]
    nodes += [*_video(task, x + 1160), _note(name, task)]
    fixed = _groups(x, 4 if width else 3, "Text encoder")
    return Graph(name, sorted(nodes, key=lambda node: node.id), [*fixed[:2], *groups, *fixed[2:]], definitions)


def _groups(x: int, first: int, conditioning: str) -> list[Group]:
    """The two on the left, then those from `x` on, numbered from `first`."""
    titles = (conditioning, "Turbo or full", "Sampling", "Video and sound", "Result")
    boxes = (
        (x - 20, -70, 520, 1120),
        (x + 540, -70, 560, 360),
        (x + 540, 320, 560, 550),
        (x + 1140, -70, 740, 270),
        (x + 1140, 230, 740, 860),
    )
    numbered = [Group(f"{first + i} {title}", box) for i, (title, box) in enumerate(zip(titles, boxes, strict=True))]
    fixed = [Group("1 Models", (-20, -70, 640, 900)), Group("2 What you change", (-20, 860, 640, 740))]
    return [*fixed, *numbered]


def _models(task: Task) -> list[Node]:
    """Room is left below each: Nodes 2.0 draws a line more on a loader whose file is not there."""
    lora = {"model": Link(1, "MODEL"), "lora_name": task.lora, "strength_model": 1}
    return [
        Node(1, "UNETLoader", (0, 0), (600, 90), {"unet_name": task.model}, "", "diffusion_models"),
        Node(2, "LoraLoaderModelOnly", (0, 180), (600, 110), lora, "Turbo LoRA", "loras"),
        Node(3, "H3TELoadTextEncoder", (0, 380), (600, 110), {"text_encoder": ENCODER}, "", "text_encoders"),
        Node(4, "VAELoader", (0, 580), (600, 60), {"vae_name": VIDEO_VAE}, "Video VAE", "vae"),
        Node(5, "VAELoader", (0, 730), (600, 60), {"vae_name": AUDIO_VAE}, "Audio VAE", "vae"),
    ]


def _settings(name: str) -> list[Node]:
    size = {"aspect_ratio": ASPECT, "megapixels": MEGAPIXELS, "multiple": 32}
    frames = {"expression": FRAMES, "values.a": Link(7, "FLOAT")}
    prompt = {"value": workflow_texts.PROMPTS.get(name, "")}
    return [
        Node(6, "ResolutionSelector", (0, 930), (290, 130), size, "Size", yours=True),
        Node(7, "PrimitiveFloat", (310, 930), (290, 60), {"value": SECONDS}, "Seconds", yours=True),
        Node(8, "ComfyMathExpression", (310, 1040), (290, 100), frames, "Seconds to frames", collapsed=True),
        Node(9, "PrimitiveBoolean", (0, 1110), (290, 60), {"value": False}, "Turbo LoRA on", yours=True),
        Node(24, "PrimitiveStringMultiline", (0, 1220), (600, 360), prompt, "Prompt", yours=True),
    ]


def _encode(kind: str, inputs: dict, x: int) -> list[Node]:
    """Room is left below for the release whose sockets do not grow: it shows all of them."""
    common = {"clip": Link(3, "CLIP"), "vae": Link(4, "VAE"), "prompt": Link(24, "STRING"), "width": Link(6, "width")}
    common |= {"height": Link(6, "height"), "length": Link(8, "INT")}
    read = {"source": Link(23, "presentation")}
    return [
        Node(23, kind, (x, 0), (480, 470), {**common, **inputs}),
        Node(27, "PreviewAny", (x, 730), (480, 300), read, "What the encoder read"),
    ]


def _sampling(task: Task, x: int, positive: Link, latent: Link) -> list[Node]:
    model = {"on_false": Link(1, "MODEL"), "on_true": Link(2, "MODEL"), "switch": Link(9, "BOOLEAN")}
    steps = {"on_false": Link(10, "INT"), "on_true": Link(11, "INT"), "switch": Link(9, "BOOLEAN")}
    sampled = {"noise": Link(14, "NOISE"), "guider": Link(15, "GUIDER"), "sampler": Link(16, "SAMPLER")}
    sampled |= {"sigmas": Link(17, "SIGMAS"), "latent_image": latent}
    guided = {"model": Link(12, "output"), "conditioning": positive}
    scheduled = {"model": Link(12, "output"), "scheduler": "simple", "steps": Link(13, "output"), "denoise": 1}
    return [
        Node(10, "PrimitiveInt", (x, 0), (240, 90), {"value": STEPS}, "Steps without turbo"),
        Node(11, "PrimitiveInt", (x, 160), (240, 90), {"value": task.turbo}, "Steps with turbo"),
        Node(12, "ComfySwitchNode", (x + 260, 0), (260, 90), model, "Model: turbo or not"),
        Node(13, "ComfySwitchNode", (x + 260, 160), (260, 90), steps, "Steps: turbo or not"),
        Node(14, "RandomNoise", (x, 390), (260, 90), {"noise_seed": 20260901}),
        Node(15, "BasicGuider", (x, 530), (260, 50), guided),
        Node(16, "KSamplerSelect", (x, 630), (260, 60), {"sampler_name": "res_multistep"}),
        Node(17, "BasicScheduler", (x, 740), (260, 110), scheduled),
        Node(18, "SamplerCustomAdvanced", (x + 280, 390), (240, 130), sampled),
    ]


def _video(task: Task, x: int) -> list[Node]:
    made = {"images": Link(19, "IMAGE"), "audio": Link(20, "AUDIO"), "fps": 24, "bit_depth": 8}
    saved = {"video": Link(21, "VIDEO"), "filename_prefix": task.saved}
    return [
        Node(19, "VAEDecode", (x, 0), (280, 50), {"samples": Link(18, "output"), "vae": Link(4, "VAE")}),
        Node(20, "VAEDecodeAudio", (x, 110), (280, 50), {"samples": Link(18, "output"), "vae": Link(5, "VAE")}),
        Node(21, "CreateVideo", (x + 400, 0), (300, 110), made),
        Node(22, "SaveVideo", (x, 300), (700, 760), saved),
    ]


def _note(name: str, task: Task) -> Node:
    files = {"model": task.model, "lora": task.lora, "turbo": task.turbo, "steps": STEPS}
    files |= {"encoder": ENCODER, "video_vae": VIDEO_VAE, "audio_vae": AUDIO_VAE}
    text = workflow_texts.note(name, encodes=task is not LOADED, **files)
    return Node(28, "MarkdownNote", (-580, -40), (520, 900), {"text": text}, "About this workflow")
