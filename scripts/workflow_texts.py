"""What the bundled workflows say: the prompt of each, and its note. Markdown, read in ComfyUI's own note node."""

from __future__ import annotations

PROMPTS = {
    "h3te_ref2va_images": (
        "The character from <Picture 1> walks into the place shown in <Picture 2>, stops and looks around in wonder. "
        "Slow dolly-in from a wide shot to a medium close-up, soft late afternoon light, shallow depth of field. "
        "Colours and materials stay as in the pictures.\n\n"
        "Sound: light wind, soft footsteps on gravel, distant birds, one quiet breath at the end."
    ),
    "h3te_ref2va_images_video_voice": (
        "The character from <Picture 1> stands in the place shown in <Picture 2> and turns to the camera. The camera "
        "moves as in <Video 1>: the same path, the same speed. Warm evening light, natural skin and fabric, "
        "no cuts.\n\n"
        "With the voice of <Audio 1>, calm and close: <d>[English] I waited here all day. I am glad you came.</d>\n\n"
        "Sound: a quiet room tone under the voice, cloth rustling once as the character turns."
    ),
    "h3te_fl2va_first_last": (
        "The scene opens exactly on <Picture 1> and comes to rest exactly on <Picture 2>. One continuous shot: the "
        "camera glides forward and slightly upward, the light turns slowly from morning to evening, and everything in "
        "between moves naturally. No cuts, no text.\n\n"
        "Sound: a calm room tone that opens into evening ambience, a single soft chime on the last frame."
    ),
    "h3te_fl2va_mid_keyframes": (
        "The shot starts on <Picture 1> and ends on <Picture 2>. Halfway through, the subject reaches the middle of "
        "its path and pauses for a moment, then goes on. One unbroken take from a steady tracking camera at eye level; "
        "speed, light and weather change gradually.\n\n"
        "Sound: steps and movement follow the picture, they stop at the pause and start again; a slow rising "
        "background tone ends with the last frame."
    ),
    "h3te_save_conditioning": (
        "The character from <Picture 1> walks into the place shown in <Picture 2>, stops and looks around in wonder. "
        "Slow dolly-in from a wide shot to a medium close-up, soft late afternoon light, shallow depth of field.\n\n"
        "Sound: light wind, soft footsteps on gravel, distant birds."
    ),
    "h3te_t2va": (
        "A small sailing boat leaves a quiet stone harbour at dawn. Thin mist over still water, the first sun on wet "
        "ropes, gulls on the mole. The camera starts low beside the hull, rises with the mast and follows the boat "
        "past the lighthouse. An old man on the pier lifts his cap and calls after it: "
        "<d>[English] Fair winds, and come back soon!</d>\n\n"
        "Sound: water lapping against stone, a creaking boom, two gulls far away, the flap of the sail as it fills."
    ),
}

HEADS = {
    "h3te_ref2va_images": """# References to video (Ref2VA)

Two pictures and a prompt become a video with sound. In the prompt the pictures are `<Picture 1>` and `<Picture 2>`, in
the order of the sockets of **Encode Prompt + Reference Image (H3TE)**; connect one and the
next socket appears (up to 9).

1. Choose your own pictures in the two Load Image nodes.
2. Write the prompt: who or what comes from which picture, then the shot, the motion and the sound.
   Spoken words stand in `<d>[English] ...</d>`.
3. Queue. The encode node then says how many tokens each picture costs, and *What the encoder read* shows the
   exact text.

`ref_image_size` **match** is fast; **official** is what the model was released with and costs most tokens.
""",
    "h3te_ref2va_images_video_voice": """# Pictures, a video and a voice (Ref2VA)

References of several kinds on one chain. **The order of the chain is the order of the request**: the pictures are
`<Picture 1>` and `<Picture 2>`, the video is `<Video 1>`, the voice is `<Audio 1>`. A video with sound brings its
soundtrack as an `<Audio>` of its own, before the voice; *with_sound* is off here so that the voice stays `<Audio 1>`.

1. Choose two pictures, a video of 2 to 15 seconds and a sound file in the four loaders. Any frame rate will do.
2. Write the prompt and name all four. Spoken words stand in `<d>[English] ...</d>`.
3. Queue, and read in *What the encoder read* where each reference stands.

To leave one out, bypass its chain node (Ctrl+B). To add one, put another chain node in between. Limits: 9 pictures,
3 videos, 3 sounds, 12 in all; a sound never alone.
""",
    "h3te_fl2va_first_last": """# First and last frame to video (FL2VA)

The video starts on the first picture and ends on the last one, with sound. In the prompt they are `<Picture 1>` and
`<Picture 2>`. Disconnect one of them to leave that end open.

1. Choose your own pictures in the two Load Image nodes.
2. Write what happens between them, and what is heard. Spoken words stand in `<d>[English] ...</d>`.
3. Queue. The encode node then says how many tokens each picture costs, and *What the encoder read* shows the
   exact text.

As released, the first picture given is stretched to the size of the video and the next one is cropped to cover it;
choose `fit` to change that. `canvas` **first image** takes the size from the first picture instead.
""",
    "h3te_fl2va_mid_keyframes": """# Keyframes anywhere in the video (FL2VA)

Three pictures pin the video: the first frame, a moment in between, the last frame. Each **Keyframe (H3TE)** node adds
one to the chain: `unit` says whether `frame` or `second` is read; negative values count from the end, so frame -1 is
the last one.

1. Choose three pictures. Set `second` of the middle keyframe.
2. Write what happens between them, and what is heard. Spoken words stand in `<d>[English] ...</d>`.
3. Queue. *What the encoder read* shows which pictures the text encoder saw.

The middle keyframe only pins its frame, as with ComfyUI's own guide node: the model was released with the encoder
seeing the first and the last picture. Turn `show_to_encoder` on and it becomes `<Picture 2>`, the last one
`<Picture 3>`. For more keyframes, put more nodes into the chain.
""",
    "h3te_t2va": """# Text to video (T2VA)

A prompt becomes a video with sound. There are no pictures: **Encode Video Keyframes (H3TE)** with nothing on its
picture sockets is text to video. Connect a picture to `first_frame` or `last_frame` to start or end on it.

1. Write the prompt: the scene, what moves, how the camera moves, then the sound.
   Spoken words stand in `<d>[English] ...</d>`.
2. Choose the size and the seconds.
3. Queue. *What the encoder read* shows the exact text.

Prompt weights such as `(word:1.3)` do not exist in this model: they are read as plain text.
""",
    "h3te_save_conditioning": """# Encode once and keep it (Ref2VA)

Two pictures and a prompt become a video, and what the text encoder and the VAE made of them is saved as well, with the
latents of the pictures. The workflow **h3te_load_conditioning** makes more videos of it, without text encoder.

1. Choose your own pictures in the two Load Image nodes.
2. Write the prompt. Name the file in *Save for later*: subfolders are allowed, a number is added, and no file is ever
   written over.
3. Queue. The save node then says where the file is, its size and its tokens.

The file stands in ComfyUI's output folder and holds the prompt's text; ComfyUI started with `--disable-metadata` keeps
the text out. It is safetensors, which any program can read.
""",
    "h3te_load_conditioning": """# Sample from saved conditioning

Nothing is encoded here: no text encoder is loaded, no picture, no prompt. Save conditioning first, with the workflow
**h3te_save_conditioning** or by adding *Save MiniMax H3 Conditioning (H3TE)* to any other.

1. Press R, then choose the file in *What was saved*: the newest is on top.
2. Set the size and the seconds **that it was encoded for**: pictures and keyframes are bound to them.
3. Queue. The load node says what the file holds, and *What the encoder read* shows the exact text.

The seed, the steps and the turbo switch are yours to change: the conditioning stays the same to the bit. For a file
made with keyframes, choose the fl2va model and its LoRA.
""",
}

MODELS = """
Turn on *Turbo LoRA on* for {turbo} steps instead of {steps}.

**Files** (the missing-model dialog offers them):

| folder | file |
|---|---|
| diffusion_models | {model} |
{encoders}| vae | {video_vae}, {audio_vae} |
| loras | {lora} (for the turbo switch) |
"""
ENCODERS = "| text_encoders | {encoder} (15.7 GB), or another of those below |\n"

WHICH = """
**Which text encoder**: the loader opens all of these, and packed ones stay packed in memory.

| file | size | for whom |
|---|---|---|
| ..._nvfp4_awq | 15.7 GB | most people; with less free RAM it is read layer by layer |
| ..._int8_convrot | 27.1 GB | closer to the original |
| ..._bf16, or the released `text_encoder` folder | 51.5 GB | the original numbers |
| a GGUF with its mmproj file | by its type | who has one |

Choose another in *Load MiniMax H3 Text Encoder (H3TE)*; *MiniMax H3 Checkpoint Doctor (H3TE)* tells what a
file holds.
"""

TAIL = """
Needs ComfyUI 0.30 or newer. The int8 files of the model and VAE are those of ComfyUI's own template.
"""


def note(name: str, encodes: bool = True, **files: object) -> str:
    """encodes: whether the workflow has a text encoder."""
    encoders = ENCODERS.format(**files) if encodes else ""
    return HEADS[name] + MODELS.format(encoders=encoders, **files) + (WHICH if encodes else "") + TAIL
