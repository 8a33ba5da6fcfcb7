"""ComfyUI's own H3 text encoder over a file with fewer layers than its 50, and ours in the same ComfyUI.

Contract: `SIDES[name](file, layers, tokenizer)` -> a CLIP. ComfyUI decides by tensor names: with the vision tower and
`model.layers.49.self_attn.q_proj.weight` a file is H3's encoder, and then its config says 50 layers. Two things are
exchanged for a shorter file, in the measuring process alone: the config says `layers`, and the file is taken for H3's
without that name. Everything else is its own loader (`comfy.sd.load_clip`), model, casts and kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path

import torch
from pack import h3te_module

CPU = torch.device("cpu")
MODEL = Path("comfy", "text_encoders", "minimax.py")  # in a ComfyUI that has an H3 encoder of its own


def has_own_encoder(host: Path) -> bool:
    return (host / MODEL).is_file()


def cut_to(layers: int) -> None:
    """ComfyUI's H3 encoder has that many layers from now on in this process."""
    import comfy.sd
    from comfy.text_encoders import llama, qwen3vl

    known = qwen3vl.QWEN3VL_CONFIGS.get("qwen3vl_32b", llama.Qwen3VL_32BConfig)
    qwen3vl.QWEN3VL_CONFIGS["qwen3vl_32b"] = make_dataclass(
        "Shortened", [("num_hidden_layers", int, layers)], bases=(known,)
    )
    comfy.sd.detect_te_model = lambda state: comfy.sd.TEModel.QWEN3VL_32B


def theirs(file: Path, layers: int, tokenizer: Path):
    import comfy.sd

    cut_to(layers)
    return comfy.sd.load_clip([str(file)], clip_type=comfy.sd.CLIPType.MINIMAX)


def ours(file: Path, layers: int, tokenizer: Path):
    """As the loader node makes it with its defaults, but for the layers."""
    clip, leaf, tree = (h3te_module(f"nodes.host.{name}") for name in ("clip", "leaf", "tree"))
    load_encoder = h3te_module("encoder").load_encoder
    encoder = load_encoder(file, tap_layer=layers, tokenizer=tokenizer, ops=leaf.HostOps)
    return clip.H3Clip(clip.make_patcher(tree.HostTree(encoder, None, "auto", "auto"), CPU, CPU))


SIDES = {"ours": ours, "theirs": theirs}


def encode(clip, prompt: str, pictures: Sequence[torch.Tensor]) -> torch.Tensor:
    """As the H3 nodes of ComfyUI ask for it: float pictures [1, H, W, 3] -> conditioning [S, D]."""
    images = [pixels[None].float() / 255 for pixels in pictures]
    tokens = clip.tokenize(prompt, images=images)
    return clip.encode_from_tokens_scheduled(tokens, show_pbar=False)[0][0][0]
