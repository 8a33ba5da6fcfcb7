"""Load MiniMax H3 Text Encoder (H3TE): a checkpoint -> CLIP. Headers are read here, weights at first use."""

from __future__ import annotations

import logging

from comfy_api.latest import io

from .encoder_options import EncoderOptions, checked_options
from .host import cache_only, paths, report
from .host.clip import H3Clip
from .host.devices import AUTO, device_options, pick_devices, pick_dtype
from .host.opening import load_clip, open_recorded, open_remote
from .host.remote_encoder import check_same, find_remote
from .sockets import Options, Schema

logger = logging.getLogger(__name__)


def _values() -> list[str]:
    """Checkpoints, and what stands for having none here."""
    return [*paths.combo_values(), *([paths.CACHE_ONLY] if len(cache_only.choices()) > 1 else []), paths.REMOTE]


class LoadTextEncoder(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return Schema(
            node_id="H3TELoadTextEncoder",
            display_name="Load MiniMax H3 Text Encoder (H3TE)",
            description="Opens MiniMax H3's text encoder (Qwen3-VL-32B): the released folder or a single file.",
            search_aliases=["clip loader", "minimax", "qwen3vl", "文本编码器", "加载CLIP"],
            inputs=[
                io.Combo.Input(
                    "text_encoder",
                    options=_values(),
                    tooltip="A file or released folder in models/text_encoders. H3 encoders are listed first.",
                ),
                io.Combo.Input(
                    "device",
                    options=device_options(),
                    default=AUTO,
                    tooltip="Where to compute. auto: ComfyUI's own choice for text encoders.",
                ),
                Options.Input("options", optional=True, tooltip="From MiniMax H3 Encoder Options (H3TE)."),
            ],
            outputs=[io.Clip.Output(tooltip="The text encoder, for the encode nodes and for ComfyUI's own H3 nodes.")],
        )

    @classmethod
    def validate_inputs(cls, text_encoder: str | None = None) -> bool | str:
        """Checked before the run; a name over a link is checked in execute."""
        if text_encoder is None or paths.none_here(text_encoder):
            return True
        try:
            path = paths.resolve(text_encoder)
        except ValueError as error:
            return str(error)
        problems = paths.cached_report(path).problems
        return f"{paths.WHO}: {problems[0]}" if problems else True

    @classmethod
    def fingerprint_inputs(cls, text_encoder: str | None = None, **_) -> object:
        """Changes when the file or folder does, so that a replaced checkpoint is opened again."""
        if not text_encoder or paths.none_here(text_encoder):
            return ()
        try:
            return paths.file_state(paths.resolve(text_encoder))
        except ValueError as error:
            return str(error)

    @classmethod
    def execute(cls, text_encoder: str, device: str = AUTO, options: EncoderOptions | None = None) -> io.NodeOutput:
        options = checked_options(options)
        if options.cache_only != cache_only.OFF:
            return cls._cache_only(device, options)
        if options.remote.strip():
            return cls._remote(text_encoder, device, options)
        if missing := paths.none_here(text_encoder):
            raise ValueError(
                f"{paths.WHO}: expected {missing}. Connect MiniMax H3 Encoder Options (H3TE) and "
                "choose one there, or choose a checkpoint here."
            )
        path, vision = paths.resolve(text_encoder), paths.resolve_vision(options.vision_file)
        found = paths.cached_report(path, vision)
        if found.problems:
            raise ValueError(f"{paths.WHO}: {found.problems[0]}")
        load_device, offload_device = pick_devices(device)
        dtype = pick_dtype(options.dtype, load_device)
        how = (options.reader, vision, options.unpack, options.backend, options.unload_after_encode, options.caches)
        clip = load_clip(path, load_device, offload_device, dtype, *how)
        lines = report.loaded(found, load_device, dtype, options.reader, options.backend)
        return cls._told(clip, [*lines, options.caches.line()])

    @classmethod
    def _cache_only(cls, device: str, options: EncoderOptions) -> io.NodeOutput:
        """Without a checkpoint, whatever text_encoder says."""
        clip = open_recorded(cache_only.recorded(options.cache_only), *pick_devices(device), options.caches)
        return cls._told(clip, [clip.label, *cache_only.lines()])

    @classmethod
    def _remote(cls, text_encoder: str, device: str, options: EncoderOptions) -> io.NodeOutput:
        """A worker computes. A checkpoint that is chosen and there must be the one that it serves."""
        remote = find_remote(options.remote, options.dtype, options.backend)
        same = check_same(remote, text_encoder, options.vision_file)
        clip = open_remote(remote, *pick_devices(device), options.unload_after_encode, options.caches)
        return cls._told(clip, [*remote.lines(), *same, options.caches.line("the worker")])

    @classmethod
    def _told(cls, clip: H3Clip, lines: list[str]) -> io.NodeOutput:
        for line in lines:
            logger.info("H3TE: %s", line)
        return io.NodeOutput(clip, ui=report.show(cls.hidden.unique_id if cls.hidden else None, lines))
