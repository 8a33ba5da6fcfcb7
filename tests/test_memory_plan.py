"""The memory plan against the bytes that an encode really holds, at released widths on the meta device."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
from h3te.encoder import build_encoder
from h3te.encoder.pixels import PATCH_WIDTH, Patches
from h3te.encoder.tokens import IMAGE_PAD, VISION_END, VISION_START
from h3te.nodes.host.memory import plan_request, text_bytes, vision_bytes
from h3te_tests.tiny_weights import tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")


class LiveBytes(TorchDispatchMode):
    """Peak bytes of the storages that ops made and that were still referenced; `known` ones are not counted."""

    def __init__(self, known: list[torch.Tensor]):
        super().__init__()
        self.live = self.peak = 0
        self.seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size


def wide_config() -> dict:
    """Released widths, few layers."""
    config = tiny_config(
        hidden_size=5120, intermediate_size=25600, num_attention_heads=64, num_key_value_heads=8, num_hidden_layers=3
    )
    config["vision_config"].update(
        hidden_size=1152, intermediate_size=4304, num_heads=16, out_hidden_size=5120, depth=4,
        deepstack_visual_indexes=[0, 1, 2],
    )  # fmt: skip
    return config


@pytest.fixture
def wide(monkeypatch):
    """An encoder without weights, on meta; attention stands for a kernel that holds no score matrix."""
    from h3te.encoder import attention

    kernel = SimpleNamespace(scaled_dot_product_attention=lambda query, *_, **__: torch.empty_like(query))
    monkeypatch.setattr(attention, "F", kernel)
    encoder = build_encoder(wide_config(), device=META, tap_layer=3)
    monkeypatch.setattr(encoder.slots, "missing", list)
    return encoder


@pytest.mark.parametrize(
    ("pictures", "grid", "text"),
    [
        (0, (0, 0), 1),
        (0, (0, 0), 4000),
        (1, (48, 84), 200),
        (2, (48, 84), 2000),
        (4, (128, 128), 100),
        (9, (16, 16), 9),
    ],
)
def test_plan_is_within_a_tenth_above_the_measured_peak(wide, pictures, grid, text):
    block = [VISION_START, *[IMAGE_PAD] * (grid[0] * grid[1] // 4), VISION_END]
    ids = torch.tensor(block * pictures + [100] * text)
    images = None
    if pictures:
        patches = torch.empty(pictures * grid[0] * grid[1], PATCH_WIDTH, device=META)
        images = Patches(patches, torch.tensor([[1, *grid]] * pictures))
    weights = [wide.slots.get(name) for name in wide.slots.names]
    with LiveBytes([*weights, ids, *([images.pixel_values] if images else [])]) as held:
        if images:
            wide.encode_ids(ids, pixel_values=images.pixel_values, image_grid_thw=images.grid_thw)
        else:
            wide.encode_ids(ids)
    plan = plan_request(wide.config, SimpleNamespace(image=images, video=None), len(ids), wide.dtype)
    assert plan.patches == (pictures * grid[0] * grid[1], 0)
    assert 1.0 <= plan.activations / held.peak <= 1.1


def test_plan_grows_with_dtype_and_cast_weights(wide):
    nothing = SimpleNamespace(image=None, video=None)
    narrow = plan_request(wide.config, nothing, 1000, torch.bfloat16)
    full = plan_request(wide.config, nothing, 1000, torch.float32)
    assert 1.9 < full.activations / narrow.activations < 2.0
    assert plan_request(wide.config, nothing, 1000, torch.bfloat16, cast=7).activations == narrow.activations + 7


def test_parts_of_the_plan_are_linear(wide):
    assert text_bytes(wide.config.text, 20, 2) == 2 * text_bytes(wide.config.text, 10, 2)
    assert vision_bytes(wide.config.vision, 20, 2) == 2 * vision_bytes(wide.config.vision, 10, 2)
