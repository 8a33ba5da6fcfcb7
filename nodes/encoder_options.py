"""Encoder Options (H3TE): what is rarely changed about the text encoder, for the loader's `options` socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comfy_api.latest import io

from .host import cache_only, caches, clip, kernels, readers
from .host.caches import CacheSettings
from .host.paths import BESIDE, OPTIONS, file_state, resolve_vision, vision_values
from .host.remote_workers import worker_at, worker_state
from .sockets import Options, Schema, is_finite

DTYPE_CHOICES = ("auto", "bfloat16", "float32")
READER_CHOICES = readers.CHOICES
UNPACK_CHOICES = kernels.CHOICES
BACKEND_CHOICES = clip.BACKENDS
READER_TIP = (
    "How weights get from the file into memory; the numbers are the same. auto: by the free RAM, as the encode node "
    "says. mmap: the system keeps what it can of the file. read: copied into memory, for systems where mapped files "
    "crash or lie on a network drive. stream: read layer by layer at every prompt, for little RAM."
)
VISION_TIP = (
    "For a GGUF file whose vision part is a second file (mmproj): the one in the same folder, or the one named here."
)
UNPACK_TIP = (
    "What unpacks fp8, int8 and nvfp4 weights. auto: ComfyUI's own kernels where they were found to give the same "
    "numbers on this device, else torch. torch: always torch. comfyui: those kernels or an error that says why not."
)
BACKEND_TIP = (
    "What computes. encoder: this pack. official: the transformers package's own Qwen3-VL on the same weights, to "
    "compare with; slower, and an error at the loader where transformers is missing or too old."
)
UNLOAD_TIP = (
    "Give up the weights after every prompt: VRAM, RAM and the mapped file. The next prompt reads them again, with the "
    "same result. Off: ComfyUI keeps them until it needs the room."
)
PREFIX_TIP = (
    "RAM in GB for what prompts begin with alike: references and keyframes come first, so that another prompt behind "
    "them, or another reference after them, costs a fraction. -1: a quarter of the RAM that is free. 0: off."
)
CONDITIONING_TIP = (
    "Where finished conditioning is kept: the same request again takes no time, and no weight is read. On disk it "
    "outlives ComfyUI, in its user directory."
)
DISK_TIP = "Most GB of conditioning on disk, the least recently used goes first; about 10 MB for 1,000 tokens."
EXACT_TIP = (
    "On: every prompt is computed whole, and all its pictures in one call, bit for bit in the order of the released "
    "model. Off: what earlier prompts have in common with it is reused, which may differ in the last bits."
)
CACHE_ONLY_TIP = (
    "Answer from conditioning on disk alone, without a checkpoint: the encoder that it was stored of. What is not "
    "stored is an error that lists what is."
)


REMOTE_TIP = (
    "Address of a worker that computes instead of this machine, such as 127.0.0.1:8189; empty: here. Other machines "
    "must be listed in minimax_h3_text_encoder/workers.txt in ComfyUI's user directory, where their tokens belong, too."
)


@dataclass(frozen=True)
class EncoderOptions:
    """Checked settings; the defaults are what the loader does without this node."""

    dtype: str = "auto"
    reader: str = "auto"
    vision_file: str = BESIDE
    unpack: str = "auto"
    backend: str = "encoder"
    unload_after_encode: bool = False
    prefix_cache_gb: float = caches.AUTO
    conditioning_cache: str = caches.KEPT[0]
    disk_cache_gb: float = caches.DISK_GB
    exact: bool = False
    cache_only: str = cache_only.OFF
    remote: str = ""

    @property
    def caches(self) -> CacheSettings:
        return CacheSettings(
            float(self.prefix_cache_gb), self.conditioning_cache, float(self.disk_cache_gb), self.exact
        )

    def __post_init__(self):
        _check("dtype", self.dtype, DTYPE_CHOICES)
        _check("reader", self.reader, READER_CHOICES)
        _check("unpack", self.unpack, UNPACK_CHOICES)
        _check("backend", self.backend, BACKEND_CHOICES)
        _check("conditioning_cache", self.conditioning_cache, caches.KEPT)
        for name in ("unload_after_encode", "exact"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{OPTIONS}: expected {name} to be true or false, got {getattr(self, name)!r}. Connect a BOOLEAN."
                )
        for name, choice in (("vision_file", BESIDE), ("cache_only", cache_only.OFF)):
            if not isinstance(getattr(self, name), str):
                got = type(getattr(self, name)).__name__
                raise ValueError(f"{OPTIONS}: expected {name} as a name, got {got}. Choose {choice}.")
        if not isinstance(self.remote, str):
            got = type(self.remote).__name__
            raise ValueError(f"{OPTIONS}: expected remote as an address, got {got}. Leave it empty, or type one.")
        _check_size("prefix_cache_gb", self.prefix_cache_gb, caches.AUTO, "-1 by the RAM that is free, 0 for none")
        _check_size("disk_cache_gb", self.disk_cache_gb, 0.0, "0 for none")


def _check(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(choices)
        raise ValueError(f"{OPTIONS}: expected {name} to be one of {listed}, got {value!r}. Choose {choices[0]}.")


def _check_size(name: str, value: object, least: float, meaning: str) -> None:
    if not is_finite(value) or value < least or least < value < 0:
        raise ValueError(f"{OPTIONS}: expected {name} in GB ({meaning}), got {value!r:.60}. Connect a FLOAT.")


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
        return Schema(
            node_id="H3TEEncoderOptions",
            display_name="MiniMax H3 Encoder Options (H3TE)",
            description="Settings of the text encoder that rarely need a change.",
            search_aliases=["minimax", "dtype", "reader", "cache", "remote", "编码器选项", "缓存", "远程"],
            inputs=[
                io.Combo.Input(
                    "dtype",
                    options=list(DTYPE_CHOICES),
                    default="auto",
                    tooltip="Precision to compute in. auto: bfloat16 as released, float32 where the device lacks it.",
                ),
                # appended later: optional, so that prompts saved before them still run
                _choice("reader", READER_CHOICES, READER_TIP),
                _choice("vision_file", vision_values(), VISION_TIP),
                _choice("unpack", UNPACK_CHOICES, UNPACK_TIP),
                _choice("backend", BACKEND_CHOICES, BACKEND_TIP),
                io.Boolean.Input("unload_after_encode", default=False, optional=True, tooltip=UNLOAD_TIP),
                _size("prefix_cache_gb", caches.AUTO, caches.AUTO, PREFIX_TIP),
                _choice("conditioning_cache", caches.KEPT, CONDITIONING_TIP),
                _size("disk_cache_gb", caches.DISK_GB, 0.0, DISK_TIP),
                io.Boolean.Input("exact", default=False, optional=True, tooltip=EXACT_TIP),
                _choice("cache_only", cache_only.choices(), CACHE_ONLY_TIP),
                io.String.Input("remote", default="", optional=True, tooltip=REMOTE_TIP),
            ],
            outputs=[Options.Output(display_name="OPTIONS", tooltip="For the options socket of the loader.")],
        )

    @classmethod
    def validate_inputs(
        cls, vision_file: str | None = None, cache_only: str | None = None, remote: str | None = None
    ) -> bool | str:
        """A file that moved is found by its name; a name over a link is checked in execute, as is an encoder of the
        store, which may be known by now. Of a worker, whether it may be asked."""
        try:
            resolve_vision(BESIDE if vision_file is None else vision_file)
            if remote and remote.strip():
                worker_at(remote)
        except ValueError as error:
            return str(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, vision_file: str | None = None, remote: str | None = None, **_) -> object:
        """Changes when the named file does, and when the worker serves another encoder."""
        served = (worker_state(remote),) if remote and remote.strip() else ()
        try:
            path = resolve_vision(BESIDE if vision_file is None else vision_file)
        except ValueError as error:
            return str(error)
        return (() if path is None else file_state(path)) + served

    @classmethod
    def execute(cls, dtype: str = "auto", **chosen: object) -> io.NodeOutput:
        """chosen: the other fields of EncoderOptions, as far as the prompt has them."""
        return io.NodeOutput(EncoderOptions(dtype, **chosen))


def _size(name: str, default: float, least: float, tooltip: str) -> io.Input:
    limits = {"min": least, "max": 4096.0, "step": 0.5}
    return io.Float.Input(name, default=default, optional=True, tooltip=tooltip, **limits)


def _choice(name: str, choices: Sequence[str], tooltip: str) -> io.Input:
    return io.Combo.Input(name, options=list(choices), default=choices[0], optional=True, tooltip=tooltip)
