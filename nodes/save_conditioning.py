"""Save MiniMax H3 Conditioning (H3TE): CONDITIONING -> a file in the output folder that needs no encoder to be read."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .host import report
from .host.conditioning_file import write
from .host.conditioning_list import value_of
from .host.report_conditioning import described
from .host.saving import prompts_may_be_saved, save_target
from .sockets import Schema

PREFIX = "conditioning/h3"
NO_PROMPT = "without the prompt's text: ComfyUI runs with --disable-metadata"


class SaveConditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TESaveConditioning",
            display_name="Save MiniMax H3 Conditioning (H3TE)",
            description="Saves conditioning with its latents, so that later runs need neither encoder nor VAE for it.",
            search_aliases=["export conditioning", "minimax", "cache", "保存条件"],
            is_output_node=True,
            inputs=[
                io.Conditioning.Input("conditioning", tooltip="From an encode node; with its references, keyframes."),
                io.String.Input(
                    "filename_prefix",
                    default=PREFIX,
                    tooltip="Name in ComfyUI's output folder, with subfolders; a number is added. %year%, %month%, "
                    "%day% and so on as in Save Image.",
                ),
            ],
            outputs=[
                io.Conditioning.Output(tooltip="The conditioning as it came."),
                io.String.Output(display_name="file", tooltip="The file, as Load MiniMax H3 Conditioning names it."),
            ],
        )

    @classmethod
    def execute(cls, conditioning: Any, filename_prefix: str = PREFIX) -> io.NodeOutput:
        target = save_target(filename_prefix)
        with_prompt = prompts_may_be_saved()
        written = write(target, conditioning, with_prompt)
        file = value_of(written.path)
        lines = [f"saved {file}", *described(written.metadata, written.nbytes)]
        lines += [] if with_prompt else [NO_PROMPT]
        shown = report.show(cls.hidden.unique_id if cls.hidden else None, lines)
        return io.NodeOutput(conditioning, file, ui=shown)
