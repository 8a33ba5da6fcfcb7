"""Clear MiniMax H3 Caches (H3TE): what is kept to encode nothing twice, given back."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .host import caches, report
from .host.report_conditioning import file_size
from .sockets import Schema, checked_choice

WHO = "Clear MiniMax H3 Caches (H3TE)"


class ClearCaches(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TEClearCaches",
            display_name=WHO,
            description="Gives back what the encode nodes keep for later runs, and says how many bytes that were.",
            search_aliases=["free memory", "minimax", "purge", "清除缓存", "释放内存"],
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "what",
                    options=list(caches.CHOICES),
                    default=caches.ALL,
                    tooltip="Prefixes: keys and values of references and keyframes seen before. Conditioning: results.",
                ),
                io.AnyType.Input(
                    "anything", optional=True, tooltip="Passed on as it is: caches are cleared after it was made."
                ),
            ],
            outputs=[
                io.AnyType.Output(display_name="anything", tooltip="What came in."),
                io.Int.Output(display_name="bytes freed", tooltip="In RAM and on disk together."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **_) -> float:
        """Never what it was: the node runs every time."""
        return float("nan")

    @classmethod
    def execute(cls, what: str = caches.ALL, anything: Any = None) -> io.NodeOutput:
        freed = caches.clear(checked_choice(what, caches.CHOICES, f"{WHO}, what"))
        kept = "" if freed else ": nothing was kept"
        lines = [f"freed {file_size(freed)} ({what}){kept}"]
        return io.NodeOutput(anything, freed, ui=report.show(cls.hidden.unique_id if cls.hidden else None, lines))
