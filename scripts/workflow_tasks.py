"""The files that the bundled workflows load, and how their tasks differ: model, turbo LoRA, name of the video."""

from __future__ import annotations

from dataclasses import dataclass

ENCODER = "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors"
VIDEO_VAE = "minimax_h3_video_vae_int8_convrot.safetensors"
AUDIO_VAE = "minimax_h3_audio_vae_fp32.safetensors"


@dataclass(frozen=True)
class Task:
    """Which model and turbo LoRA a task takes, and where its video is saved."""

    model: str
    lora: str
    turbo: int
    saved: str


REF2VA = Task(
    "minimax_h3_ref2va_pruned_int8_convrot.safetensors",
    "minimax_h3_ref2v_turbo_4step_v0.1_comfyui_bf16.safetensors",
    4,
    "video/H3TE_Ref2VA",
)
FL2VA = Task(
    "minimax_h3_fl2va_pruned_int8_convrot.safetensors",
    "minimax_h3_fl2v_turbo_8step_v1.0_comfyui_bf16.safetensors",
    8,
    "video/H3TE_FL2VA",
)
T2VA = Task(FL2VA.model, FL2VA.lora, FL2VA.turbo, "video/H3TE_T2VA")
LOADED = Task(REF2VA.model, REF2VA.lora, REF2VA.turbo, "video/H3TE_Loaded")
