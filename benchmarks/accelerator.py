"""One accelerator, measured in under eight minutes: our encoder at the released sizes against transformers and the
floor.

    python accelerator.py [--device cuda] [--layers N] [--minutes 8] [--out accelerator.json]

Needs torch, transformers and the pack's `encoder` folder beside this script's own: no ComfyUI, no checkpoint. Weights
are random, made on the device: all 50 layers in bf16 where they fit (51 GB and room to compute), else as many as fit.
Reported for each request: seconds and peak memory of the encode, ratio to transformers' model on the same tensors,
ratio to the floor (see `decoder_floor`) and TFLOP/s; then streaming with a quarter of the layers resident, and what
unpacking int8 and nvfp4 costs. A part that fails or finds no time is named with its reason, and the rest goes on.
`--tiny` is for tests.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import inspect
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ENCODER = Path(__file__).resolve().parents[1] / "encoder"
IMAGE_PAD, VISION_START, VISION_END = 151655, 151652, 151653
REQUESTS = {"prompt": (312, ()), "keyframes": (312, ((84, 48),) * 2), "references": (312, ((54, 30),) * 9)}
TINY_REQUESTS = {"prompt": (12, ()), "keyframes": (12, ((8, 4),) * 2)}  # tokens, pictures as columns x rows of patches
RESERVE = 8e9  # bytes for activations, beside the weights
RESIDENT = 0.25  # of the layers, in the streaming part
MATRIX = (5120, 25600)


def config(layers: int, tiny: bool) -> dict:
    """config.json: the released sizes, or ones for tests."""
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 25600, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
        "num_attention_heads": 64, "num_hidden_layers": layers, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000, "vocab_size": 151936,
    }  # fmt: skip
    vision = {
        "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152,
        "in_channels": 3, "intermediate_size": 4304, "model_type": "qwen3_vl", "num_heads": 16,
        "num_position_embeddings": 2304, "out_hidden_size": 5120, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }  # fmt: skip
    if tiny:
        text |= {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
        vision |= {"hidden_size": 144, "intermediate_size": 256, "depth": 4, "num_heads": 2, "out_hidden_size": 64}
        vision["deepstack_visual_indexes"] = [0, 1, 2]
    return {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision, "image_token_id": IMAGE_PAD}


def encoder_package(folder: Path = ENCODER):
    """The pack's `encoder`, under a name of its own."""
    if "h3te_encoder" not in sys.modules:
        found = {"submodule_search_locations": [str(folder)]}
        spec = importlib.util.spec_from_file_location("h3te_encoder", folder / "__init__.py", **found)
        module = importlib.util.module_from_spec(spec)
        sys.modules["h3te_encoder"] = module
        spec.loader.exec_module(module)
    return sys.modules["h3te_encoder"]


def submodule(name: str):
    encoder_package()
    return importlib.import_module(f"h3te_encoder.{name}")


# The device


def synchronize(device: torch.device) -> None:
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize()


def free_memory(device: torch.device) -> int | None:
    """Bytes; None where the device does not tell."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def seconds_of(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median after one run that warms up."""
    run()
    found = []
    for _ in range(repeats):
        synchronize(device)
        started = time.perf_counter()
        run()
        synchronize(device)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def peak_of(run: Callable[[], object], device: torch.device) -> int | None:
    """Most bytes allocated during one run above those before it; None where the device does not count."""
    if device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def depth_that_fits(device: torch.device, wanted: int, layer_bytes: float, other_bytes: float) -> int:
    free = free_memory(device)
    if free is None:
        return wanted
    return max(1, min(wanted, int((free * 0.97 - other_bytes - RESERVE) / layer_bytes)))


# The model and its requests


def random_weights(shapes: dict[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype):
    """Pairs of (name, tensor): matrices scaled to keep activations of order one, norms about 1."""
    generator = torch.Generator(device=device).manual_seed(0)
    for name, shape in shapes.items():
        middle, reach = (1.0, 0.1) if "norm" in name and name.endswith("weight") else (0.0, 0.05)
        if len(shape) > 1:
            reach = 1.0 if "embed" in name and "proj" not in name else (3 / (torch.Size(shape[1:]).numel())) ** 0.5
            reach *= 0.3 if name.endswith(("o_proj.weight", "down_proj.weight", "linear_fc2.weight")) else 1.0
        values = torch.empty(shape, dtype=dtype, device=device)
        yield name, values.uniform_(middle - reach, middle + reach, generator=generator)


def build(device: torch.device, layers: int, tiny: bool):
    encoder = encoder_package().build_encoder(config(layers, tiny), device=device, tap_layer=layers)
    encoder.load_weights(random_weights(encoder.slots.shapes, device, encoder.dtype))
    return encoder


def request(tokens: int, pictures: Sequence[tuple[int, int]]) -> dict[str, torch.Tensor]:
    """Arguments of `encode_ids`: pictures (a label, a block of pads each) and a prompt; random pixels."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, 100_000, (tokens + 6 * len(pictures),), generator=generator)
    ids = []
    for i, (columns, rows) in enumerate(pictures):
        label = words[tokens + 6 * i : tokens + 6 * (i + 1)].tolist()
        ids += [*label, VISION_START, *[IMAGE_PAD] * (columns * rows // 4), VISION_END]
    found = {"input_ids": torch.tensor([*ids, *words[:tokens].tolist()])}
    if pictures:
        count = sum(columns * rows for columns, rows in pictures)
        found["pixel_values"] = torch.rand(count, 1536, generator=generator) * 2 - 1
        found["image_grid_thw"] = torch.tensor([[1, rows, columns] for columns, rows in pictures])
    return found


def official_model(encoder, layers: int, tiny: bool) -> nn.Module:
    """transformers' model over the encoder's own tensors, its final norm left out as hidden_states[tap] has it."""
    from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLModel

    settings = Qwen3VLConfig.from_dict(config(layers, tiny))
    settings._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = Qwen3VLModel(settings).eval().requires_grad_(False)
    model.language_model.norm = nn.Identity()
    state = {name.removeprefix("model."): encoder.slots.get(name).detach() for name in encoder.slots.names}
    model.load_state_dict(state, assign=True, strict=True)
    for half in (model.visual, model.language_model):
        for name, child in list(half.named_children()):
            if name in ("rotary_emb", "rotary_pos_emb"):  # their tables are in no checkpoint
                setattr(half, name, type(child)(child.config).to(encoder.device))
    return model


@torch.no_grad()
def run_official(model: nn.Module, asked: dict[str, torch.Tensor], device: torch.device) -> torch.Tensor:
    """[S, D]. Pixels go to the device and to bf16 within the clock, as ours do."""
    on_device = {name: tensor.to(device) for name, tensor in asked.items()}
    ids = on_device.pop("input_ids")[None]
    options = {"mm_token_type_ids": (ids == IMAGE_PAD).int()}
    if "mm_token_type_ids" not in inspect.signature(model.forward).parameters:
        options = {}
    return model(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **on_device, **options
    ).last_hidden_state[0]


# The floor


def _product(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return F.linear(x, layer.weight.flatten(1), layer.bias)


def _inputs(like: torch.Tensor, rows: int, *widths: int) -> list[torch.Tensor]:
    """Random [rows, width] in the dtype and on the device of `like`."""
    return [torch.randn(rows, width, device=like.device).to(like.dtype) for width in widths]


def _heads(x: torch.Tensor, width: int) -> torch.Tensor:
    """[S, H * Dh] -> the view [1, H, S, Dh] that attention is called with."""
    return x.view(len(x), -1, width).transpose(0, 1)[None]


@torch.no_grad()
def decoder_floor(layers: Sequence[nn.Module], tokens: int, head_dim: int = 128) -> float:
    """Seconds of what no decoder of these sizes can go below: the seven products and the causal attention of every
    layer alone, in the order they happen, with the model's own weights, on random inputs that are ready beforehand. No
    norm, no rotary, no activation, no residual, no copy."""
    attention, mlp = layers[0].self_attn, layers[0].mlp
    (query, width), (key, _) = attention.q_proj.weight.shape, attention.k_proj.weight.shape
    x, attended, gated = _inputs(attention.q_proj.weight, tokens, width, query, mlp.gate_proj.weight.shape[0])
    q, k, v = (_heads(y, head_dim) for y in _inputs(x, tokens, query, key, key))
    synchronize(x.device)
    started = time.perf_counter()
    for layer in layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            _product(x, getattr(layer.self_attn, name))
        F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
        _product(attended, layer.self_attn.o_proj)
        _product(x, layer.mlp.gate_proj)
        _product(x, layer.mlp.up_proj)
        _product(gated, layer.mlp.down_proj)
    synchronize(x.device)
    return time.perf_counter() - started


@torch.no_grad()
def tower_floor(visual: nn.Module, frames: Sequence[int], heads: int = 16) -> tuple[float, float]:
    """The same of the vision tower: (seconds of patch embedding and blocks, seconds of the mergers). `frames`: patches
    of each; attention is within a frame."""
    weight, count = visual.patch_embed.proj.weight, sum(frames)
    width, mlp = weight.shape[0], visual.blocks[0].mlp.linear_fc1.weight.shape[0]
    patches, x, wide, qkv = _inputs(weight, count, weight.flatten(1).shape[1], width, mlp, 3 * width)
    views = [[_heads(part, width // heads) for part in frame.split(width, dim=1)] for frame in qkv.split(list(frames))]
    synchronize(x.device)
    started = time.perf_counter()
    _product(patches, visual.patch_embed.proj)
    for block in visual.blocks:
        _product(x, block.attn.qkv)
        for frame in views:
            F.scaled_dot_product_attention(*frame)
        _product(x, block.attn.proj)
        _product(x, block.mlp.linear_fc1)
        _product(wide, block.mlp.linear_fc2)
    synchronize(x.device)
    between, merged = time.perf_counter(), x.view(-1, 4 * width)
    for merger in (*visual.deepstack_merger_list, visual.merger):
        _product(merged, merger.linear_fc1)
        _product(merged, merger.linear_fc2)
    synchronize(x.device)
    return between - started, time.perf_counter() - between


def floor_of(encoder, tokens: int, frames: Sequence[int]) -> float:
    """Seconds of one request."""
    tree, sizes = encoder.model, encoder.config
    found = decoder_floor(tree.language_model.layers, tokens, sizes.text.head_dim)
    return found + (sum(tower_floor(tree.visual, frames, sizes.vision.num_heads)) if frames else 0.0)


def flops_of(encoder, tokens: int, frames: Sequence[int]) -> float:
    """Multiplications and additions of the products and of attention, causal for text."""
    text, vision = encoder.config.text, encoder.config.vision
    decoder = sum(p.numel() for p in encoder.model.language_model.layers.parameters() if p.dim() > 1)
    square = 2 * tokens**2 * text.num_attention_heads * text.head_dim * len(encoder.model.language_model.layers)
    found = 2.0 * tokens * decoder + square
    if frames:
        visual, count = encoder.model.visual, sum(frames)
        blocks = sum(p.numel() for m in (visual.patch_embed, visual.blocks) for p in m.parameters() if p.dim() > 1)
        mergers = sum(
            p.numel() for m in (visual.merger, visual.deepstack_merger_list) for p in m.parameters() if p.dim() > 1
        )
        squares = 4 * sum(n**2 for n in frames) * vision.hidden_size * vision.depth
        found += 2.0 * count * blocks + 2.0 * count / 4 * mergers + squares
    return found


# The parts of the report


def measure_request(encoder, official: nn.Module | None, shape: tuple, repeats: int) -> dict:
    device, asked = encoder.device, request(*shape)
    frames, tokens = [columns * rows for columns, rows in shape[1]], len(asked["input_ids"])
    ours = seconds_of(lambda: encoder.encode_ids(**asked), device, repeats)
    floor = statistics.median(floor_of(encoder, tokens, frames) for _ in range(1 + repeats))
    found = {
        "tokens": tokens, "seconds": ours, "peak_bytes": peak_of(lambda: encoder.encode_ids(**asked), device),
        "floor_seconds": floor, "to_floor": ours / floor, "tflops": flops_of(encoder, tokens, frames) / ours / 1e12,
    }  # fmt: skip
    if official is not None:
        theirs = seconds_of(lambda: run_official(official, asked, device), device, repeats)
        mine, other = encoder.encode_ids(**asked).float(), run_official(official, asked, device).float()
        found |= {
            "official_seconds": theirs, "to_official": ours / theirs,
            "official_peak_bytes": peak_of(lambda: run_official(official, asked, device), device),
            "difference": float((mine - other).norm() / other.norm()),
        }  # fmt: skip
    return found


class OnHost:
    """Where a streamed weight rests: ordinary memory of the host (see encoder/leaf.py, Rest)."""

    def __init__(self, tensor: torch.Tensor, held: bool):
        self.tensor, self.held = tensor, held

    def parts(self) -> dict[str, torch.Tensor]:
        return {"weight": self.tensor}


def measure_streaming(encoder, shape: tuple, repeats: int) -> dict:
    """All but a quarter of the layers fetched for every encode. The streamed layers share the first layer's values, so
    that the host needs one layer of memory; what crosses the bus is every layer's. Ends the encoder's usual state."""
    device, asked, layers = encoder.device, request(*shape), list(encoder.model.language_model.layers)
    streamed = layers[max(1, round(RESIDENT * len(layers))) :]
    names = [name for name, module in layers[0].named_modules() if name.endswith("_proj")]
    for name in names:
        for layer in streamed:
            layer.get_submodule(name).assign("weight", layers[0].get_submodule(name).weight.detach())
    resident, expected = (
        seconds_of(lambda: encoder.encode_ids(**asked), device, repeats), encoder.encode_ids(**asked),
    )  # fmt: skip
    moved = 0
    for name in names:
        rest = OnHost(layers[0].get_submodule(name).weight.detach().cpu(), held=device.type != "cpu")
        for layer in streamed:
            leaf = layer.get_submodule(name)
            leaf.assign("weight", torch.empty_like(rest.tensor, device="meta"))
            leaf.store(rest)
            moved += rest.tensor.nbytes
    seconds = seconds_of(lambda: encoder.encode_ids(**asked), device, repeats)
    return {
        "layers": len(layers), "streamed_layers": len(streamed), "seconds": seconds, "resident_seconds": resident,
        "to_resident": seconds / resident, "streamed_bytes": moved, "bytes_per_second": moved / seconds,
        "peak_bytes": peak_of(lambda: encoder.encode_ids(**asked), device),
        "bits_equal": bool(torch.equal(encoder.encode_ids(**asked), expected)),
    }  # fmt: skip


def measure_unpack(device: torch.device, shape: tuple[int, int], rows: int, repeats: int) -> dict:
    """Seconds to unpack one matrix to bf16, beside the product of that matrix with `rows` rows."""
    packing = submodule("packing")
    int8, nvfp4 = submodule("packing.int8").Int8, submodule("packing.nvfp4").Nvfp4
    kinds = {"int8": int8(shape), "int8_convrot": int8(shape, group=256), "nvfp4": nvfp4(shape)}
    matrix = torch.randn(shape, device=device).to(torch.bfloat16)
    (x,) = _inputs(matrix, rows, shape[1])
    product = seconds_of(lambda: F.linear(x, matrix), device, repeats)
    found: dict = {"shape": list(shape), "rows": rows, "product_seconds": product}
    for name, kind in kinds.items():
        stored = {part: _random_part(part, of, device) for part, of in kind.parts.items()}
        spent = seconds_of(lambda k=kind, s=stored: packing.unpack(k, s, torch.bfloat16), device, repeats)
        found[name] = {"seconds": spent, "to_product": spent / product, "bytes_per_second": matrix.nbytes / spent}
    return found


def _random_part(name: str, part, device: torch.device) -> torch.Tensor:
    if part.dtype == torch.float32:
        return torch.rand(part.shape, device=device) * 0.01 + 1e-3
    codes = torch.randint(0, 256, part.shape, dtype=torch.uint8, device=device)
    if part.dtype == torch.float8_e4m3fn:
        codes = codes & 7 | 0x38  # block scales from 1 to 2
    return codes.view(part.dtype)


class Report:
    """Parts by name; one that fails or comes too late is named with its reason."""

    def __init__(self, minutes: float):
        self.ends = time.monotonic() + 60 * minutes
        self.found: dict = {}

    def measure(self, name: str, run: Callable[[], object], least_seconds: float = 20.0):
        if time.monotonic() + least_seconds > self.ends:
            self.found[name] = {"not_measured": "no time was left"}
            return None
        started = time.monotonic()
        try:
            value = run()
        except (RuntimeError, ImportError, ValueError, AttributeError, TypeError) as error:
            self.found[name] = {"not_measured": f"{type(error).__name__}: {error}"}
            value = None
        else:
            self.found[name] = value if isinstance(value, dict) else {"made": True}
        self.found[name]["took_seconds"] = time.monotonic() - started
        print(f"{name}: {json.dumps(self.found[name])}", flush=True)
        gc.collect()
        return value


def machine(device: torch.device) -> dict:
    found = {"system": f"{platform.system()} {platform.machine()}", "python": platform.python_version()}
    found |= {"torch": torch.__version__, "device": device.type}
    if device.type == "cuda":
        of = torch.cuda.get_device_properties(device)
        found |= {"name": of.name, "memory_bytes": of.total_memory, "capability": [of.major, of.minor]}
    return found


def run_all(device: torch.device, layers: int | None, minutes: float, repeats: int, tiny: bool) -> dict:
    report = Report(minutes)
    requests = TINY_REQUESTS if tiny else REQUESTS
    shapes = encoder_package().build_encoder(config(1, tiny), tap_layer=1).slots.shapes
    size = {name: 2 * torch.Size(shape).numel() for name, shape in shapes.items()}
    layer_bytes = sum(nbytes for name, nbytes in size.items() if ".layers." in name)
    wanted = layers or (6 if tiny else 50)
    depth = depth_that_fits(device, wanted, layer_bytes, sum(size.values()) - layer_bytes)
    found = {"machine": machine(device), "layers": depth, "of_layers": wanted, "repeats": repeats}
    encoder = report.measure("weights", lambda: build(device, depth, tiny))
    if encoder is not None:
        official = report.measure("official model", lambda: official_model(encoder, depth, tiny))
        for name, shape in requests.items():
            report.measure(name, lambda s=shape: measure_request(encoder, official, s, repeats))
        del official
        report.measure("streaming", lambda: measure_streaming(encoder, requests["keyframes"], repeats))
    matrix, rows = ((128, 512), 18) if tiny else (MATRIX, 2344)
    report.measure("unpack", lambda: measure_unpack(device, matrix, rows, repeats))
    return found | {"parts": report.found}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the encoder on one accelerator.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, help="decoder layers (all 50, or as many as fit)")
    parser.add_argument("--minutes", type=float, default=8.0, help="no part is begun that would end later")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("accelerator.json"))
    parser.add_argument("--tiny", action="store_true", help="small sizes, to test this script")
    parsed = parser.parse_args(arguments)
    device = torch.device(parsed.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("expected a CUDA or ROCm device, got none. Name another with --device, or install torch for it.")
    with torch.no_grad():
        found = run_all(device, parsed.layers, parsed.minutes, parsed.repeats, parsed.tiny)
    parsed.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{parsed.out} written")
    return int(any("not_measured" in part for part in found["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
