"""Reference Video (H3TE): one more video on a chain of references, from VIDEO or from frames.

What is wrong with the video itself is refused here, so that ComfyUI marks this node and not the encode node.
"""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .chains import REFERENCES, VideoItem, checked_chain
from .host.reference_videos import check_video
from .host.video_files import decode
from .sockets import References, Schema, chain_input, checked_switch, vision_only_input

NODE = "Reference Video (H3TE)"


class ReferenceVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TEReferenceVideo",
            display_name=NODE,
            description="Adds a video to a chain of references, whose order is the order of the request.",
            search_aliases=["minimax reference", "ref2va", "参考视频"],
            inputs=[
                io.Video.Input("video", optional=True, tooltip="A video file; its frame rate and sound are read."),
                io.Image.Input("frames", optional=True, tooltip="Instead of video: frames at the rate below."),
                io.Float.Input(
                    "fps", default=24.0, min=0.01, max=1000.0, step=0.01, tooltip="Frame rate of frames; of no other."
                ),
                io.Audio.Input("soundtrack", optional=True, tooltip="Instead of the video's own sound."),
                io.Boolean.Input(
                    "with_sound", default=True, tooltip="Off: the video is silent, whatever sound there is."
                ),
                vision_only_input(),
                chain_input(References, "references", "References before this one."),
            ],
            outputs=[References.Output(display_name="references", tooltip="The chain with this video at its end.")],
        )

    @classmethod
    def execute(
        cls,
        fps: float,
        with_sound: bool,
        vision_only: bool,
        video: Any = None,
        frames: Any = None,
        soundtrack: Any = None,
        references: Any = None,
    ) -> io.NodeOutput:
        before = checked_chain(references, REFERENCES, NODE, "references")
        where = f"{NODE} {len(before) + 1} of the chain"
        with_sound = checked_switch(with_sound, f"{where}, with_sound")
        vision_only = checked_switch(vision_only, f"{where}, vision_only")
        if (video is None) == (frames is None):
            got = "none" if video is None else "both"
            raise ValueError(f"{where}: expected either video or frames, got {got}. Connect one of the two.")
        total = played = None
        if video is not None:
            decoded = decode(video, where, with_sound and soundtrack is None)
            frames, total, fps, played = decoded.frames, decoded.total, decoded.fps, decoded.played
            soundtrack = decoded.sound if soundtrack is None else soundtrack
        sound = soundtrack if with_sound else None
        item = VideoItem(frames, fps, sound, vision_only, where, total, played)
        check_video(item)
        return io.NodeOutput((*before, item))
