"""Encoder Options (H3TE): what is rarely changed about the text encoder, for the loader's `options` socket."""

from __future__ import annotations

from dataclasses import dataclass

from comfy_api.latest import io

from .sockets import Options, schema

DTYPE_CHOICES = ("auto", "bfloat16", "float32")


@dataclass(frozen=True)
class EncoderOptions:
    """Checked settings; the defaults are what the loader does without this node."""

    dtype: str = "auto"

    def __post_init__(self):
        if self.dtype not in DTYPE_CHOICES:
            raise ValueError(
                f"MiniMax H3 Encoder Options (H3TE): expected dtype to be one of {', '.join(DTYPE_CHOICES)}, "
                f"got {self.dtype!r}. Choose auto."
            )


def checked_options(options: object) -> EncoderOptions:
    """The options on a socket, the defaults for none. Raises ValueError for anything else."""
    if options is None:
        return EncoderOptions()
    if not isinstance(options, EncoderOptions):
        raise ValueError(
            f"Load MiniMax H3 Text Encoder (H3TE): expected options from MiniMax H3 Encoder Options (H3TE), "
            f"got {type(options).__name__}. Connect that node."
        )
    return options


class EncoderOptionsNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="H3TEEncoderOptions",
            display_name="MiniMax H3 Encoder Options (H3TE)",
            description="Settings of the text encoder that rarely need a change.",
            inputs=[
                io.Combo.Input(
                    "dtype",
                    options=list(DTYPE_CHOICES),
                    default="auto",
                    tooltip="Precision to compute in. auto: bfloat16 as released, float32 where the device lacks it.",
                ),
            ],
            outputs=[Options.Output(display_name="OPTIONS", tooltip="For the options socket of the loader.")],
        )

    @classmethod
    def execute(cls, dtype: str = "auto") -> io.NodeOutput:
        return io.NodeOutput(EncoderOptions(dtype))
