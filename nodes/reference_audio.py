"""Reference Audio (H3TE): one more sound on a chain of references."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .chains import REFERENCES, AudioItem, checked_chain
from .host.references import checked_waveform
from .sockets import References, Schema, chain_input, checked_switch, vision_only_input

NODE = "Reference Audio (H3TE)"


class ReferenceAudio(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TEReferenceAudio",
            display_name=NODE,
            description="Adds a sound to a chain of references, whose order is the order of the request.",
            search_aliases=["minimax reference", "ref2va", "voice", "参考音频", "人声"],
            inputs=[
                io.Audio.Input("audio", tooltip="A voice or another sound, <Audio 1> and so on."),
                vision_only_input(),
                chain_input(References, "references", "References before this one."),
            ],
            outputs=[References.Output(display_name="references", tooltip="The chain with this sound at its end.")],
        )

    @classmethod
    def execute(cls, audio: Any, vision_only: bool, references: Any = None) -> io.NodeOutput:
        before = checked_chain(references, REFERENCES, NODE, "references")
        where = f"{NODE} {len(before) + 1} of the chain"
        vision_only = checked_switch(vision_only, f"{where}, vision_only")
        checked_waveform(audio, where)  # here, so that ComfyUI marks this node and not the encode node
        return io.NodeOutput((*before, AudioItem(audio, vision_only, where)))
