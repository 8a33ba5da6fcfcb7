"""Load MiniMax H3 Conditioning (H3TE): a file of Save MiniMax H3 Conditioning (H3TE) -> CONDITIONING."""

from __future__ import annotations

from comfy_api.latest import io

from ..encoder.checkpoint.wording import printable
from .host import conditioning_list, report
from .host.conditioning_file import read, read_metadata
from .host.report_conditioning import described
from .sockets import PRESENTATION_TIP, Schema


class LoadConditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TELoadConditioning",
            display_name="Load MiniMax H3 Conditioning (H3TE)",
            description="Loads saved conditioning with its latents. Needs no text encoder.",
            search_aliases=["import conditioning", "minimax", "cache", "加载条件"],
            inputs=[
                io.Combo.Input(
                    "file",
                    options=conditioning_list.combo_values(),
                    tooltip="A file in ComfyUI's input or output folder. Saved conditioning is listed first.",
                ),
            ],
            outputs=[
                io.Conditioning.Output(tooltip="To the bit what was saved."),
                io.String.Output(display_name="presentation", tooltip=PRESENTATION_TIP),
            ],
        )

    @classmethod
    def validate_inputs(cls, file: str | None = None) -> bool | str:
        """Header read before the run; a name over a link is checked in execute."""
        try:
            return file is None or bool(read_metadata(conditioning_list.resolve(file)))
        except (ValueError, OSError) as error:
            return str(error)

    @classmethod
    def fingerprint_inputs(cls, file: str | None = None, **_) -> object:
        """Changes when the file does."""
        try:
            return conditioning_list.state_of(file) if file is not None else ()
        except (ValueError, OSError) as error:
            return str(error)

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        path = conditioning_list.resolve(file)
        loaded = read(path)
        lines = [*described(loaded.metadata, loaded.nbytes), printable(path.name)]
        shown = report.show(cls.hidden.unique_id if cls.hidden else None, lines)
        return io.NodeOutput(loaded.conditioning, loaded.presentation, ui=shown)
