"""The memory plan against the bytes that an encode really holds, at released widths on the meta device."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
from h3te.encoder import arena, build_encoder, load_encoder, row_blocks
from h3te.encoder.encode_pass import EncodePass, Request
from h3te.encoder.pixels import PATCH_WIDTH, Patches
from h3te.encoder.tokens import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START
from h3te.nodes.host import memory, product_memory
from h3te.nodes.host.memory import (
    PAGES,
    SMALL,
    plan_request,
    plan_requests,
    text_bytes,
    vision_bytes,
    weights_in_use,
)
from h3te.nodes.host.product_memory import PLAIN, TILES, Products, products_here
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.gguf_files import write_sparse_gguf
from h3te_tests.packed_headers import PACKED, write_packed
from h3te_tests.tiny_weights import tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META, CPU = torch.device("meta"), torch.device("cpu")


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


@pytest.fixture(params=[None, CPU], ids=["accelerator", "cpu"])
def planned_for(request, monkeypatch):
    """The device of a plan; meta then does what is done there."""
    if request.param is not None:
        monkeypatch.setattr(arena, "DEVICES", ("cpu", "meta"))
        for where, name in ((row_blocks, "DEVICE_BLOCK_BYTES"), (memory, "BLOCK_BYTES")):
            monkeypatch.setattr(where, name, 1 << 22)  # a CPU's own are so many that counting takes minutes
        monkeypatch.setattr(product_memory, "HERE", Products(0, 0, 0))
    return request.param


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
def test_plan_is_within_a_tenth_above_the_measured_peak(wide, planned_for, pictures, grid, text):
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
    seen = SimpleNamespace(image=images, video=None)
    plan = plan_request(wide.config, seen, len(ids), wide.dtype, device=planned_for)
    assert plan.patches == (pictures * grid[0] * grid[1], 0)
    assert held.peak <= plan.activations <= 1.1 * held.peak + SMALL


@pytest.mark.parametrize("packing", ["official", "per_reference"])
@pytest.mark.parametrize(
    ("images", "videos", "text"),
    [
        ([(1, 48, 84)] * 2, [(4, 32, 48)], 50),
        ([(1, 16, 16)], [(12, 32, 48), (2, 32, 32)], 2000),
        ([(1, 64, 96), (1, 16, 16), (1, 32, 32)], [], 9),
        ([], [(30, 24, 42)], 300),
        ([(1, 16, 16)] * 40, [], 9),
    ],
)
def test_plan_counts_all_calls_alive_and_the_largest_at_work(wide, planned_for, images, videos, text, packing):
    ids, given = [100] * text, {}
    for modality, pad, grids in (("image", IMAGE_PAD, images), ("video", VIDEO_PAD, videos)):
        ids += [token for t, h, w in grids for token in [VISION_START, *[pad] * (h * w // 4), VISION_END] * t]
        rows = sum(t * h * w for t, h, w in grids)
        given[modality] = Patches(torch.empty(rows, PATCH_WIDTH, device=META), torch.tensor(grids)) if grids else None
    request = Request(torch.tensor(ids), given)
    known = [wide.slots.get(name) for name in wide.slots.names]
    with LiveBytes([*known, request.ids, *[p.pixel_values for p in given.values() if p]]) as held, torch.no_grad():
        EncodePass(wide.model, wide.config, [request], META, wide.dtype, packing).run(None)
    seen = SimpleNamespace(**given)
    counts = wide.config, seen, len(ids), wide.dtype
    plan = plan_request(*counts, vision_packing=packing, device=planned_for)
    assert plan.bare == plan.activations
    assert 1.0 <= plan.activations / held.peak <= 1.3
    assert plan.activations <= plan_request(*counts, device=planned_for).activations


@pytest.mark.parametrize("sizes", [[(48, 84)], [(16, 16)] * 40, [(64, 96), (16, 16), (16, 16)], [(32, 48)] * 4])
def test_vision_alone_is_planned_for_all_calls(wide, planned_for, sizes):
    """At released widths a text layer needs more than the tower ever does, so that the whole plan hides this part."""
    tower, vision = wide.model.visual, wide.config.vision
    with LiveBytes([wide.slots.get(name) for name in wide.slots.names]) as held, torch.no_grad():
        calls = [(torch.empty(h * w, PATCH_WIDTH, dtype=wide.dtype, device=META), [(1, h, w)]) for h, w in sizes]
        features = tower.see(calls)
    counts = [h * w for h, w in sizes]
    kept = sum(f.merged.nbytes + sum(level.nbytes for level in f.deepstack) for f in features)
    needed = vision_bytes(vision, sum(counts), 2, max(counts), on_cpu=planned_for is not None)
    assert 1.0 <= (needed + kept) / held.peak <= 1.3


def requests_of(sizes, shared: bool) -> list[Request]:
    """One request per (pictures, text tokens); `shared`: of the same grid, they hold the same patches."""
    made, patches = [], {}
    for pictures, text in sizes:
        grids = torch.tensor([[1, 48, 84]] * pictures)
        new = Patches(torch.empty(pictures * 48 * 84, PATCH_WIDTH, device=META), grids) if pictures else None
        seen = patches.setdefault(pictures, new) if shared else new
        ids = torch.tensor([VISION_START, *[IMAGE_PAD] * 1008, VISION_END] * pictures + [100] * text)
        made.append(Request(ids, {"image": seen, "video": None}))
    return made


@pytest.mark.parametrize("packing", ["official", "per_reference"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("sizes", [[(0, 300)] * 8, [(0, 4000), (0, 50), (0, 50)], [(2, 60)] * 4, [(1, 2000), (0, 9)]])
def test_plan_of_several_requests_is_that_of_one_pass_over_all(wide, planned_for, sizes, shared, packing):
    requests = requests_of(sizes, shared)
    known = [wide.slots.get(name) for name in wide.slots.names]
    known += [part for r in requests for part in (r.ids, *[p.pixel_values for p in r.patches.values() if p])]
    with LiveBytes(known) as held, torch.no_grad():
        EncodePass(wide.model, wide.config, requests, META, wide.dtype, packing).run(None)
    seen = [SimpleNamespace(**request.patches) for request in requests]
    options = {"vision_packing": packing, "device": planned_for}
    plan = plan_requests(wide.config, seen, [len(r.ids) for r in requests], wide.dtype, **options)
    assert plan.prompts == len(sizes)
    assert 1.0 <= plan.activations / held.peak <= 1.3
    if shared and sizes[0][0]:
        assert plan.patches == (sum(count * 48 * 84 for count in {pictures for pictures, _ in sizes}), 0)


def test_merged_features_are_not_held_through_the_layers(wide, monkeypatch):
    (request,) = requests_of([(1, 9)], shared=False)
    merged, alive = [], []
    real = wide.model.visual.see

    def see(*args, **options):
        seen = real(*args, **options)
        merged.append(weakref.ref(seen[0].merged))
        return seen

    def step(done: int, total: int, what: str) -> None:
        if "layer" in what:
            alive.append(merged[0]() is not None)

    monkeypatch.setattr(wide.model.visual, "see", see)
    with torch.no_grad():
        EncodePass(wide.model, wide.config, [request], META, wide.dtype, "official").run(step)
    assert alive == [False] * 3


@pytest.fixture
def extra(wide, monkeypatch):
    """What products add to the plan of a request, in bytes."""

    def extra(products, given, tokens, dtype=torch.bfloat16, device=CPU, **options) -> float:
        found = []
        for each in (products, Products(0, 0, 0)):
            monkeypatch.setattr(product_memory, "HERE", each)
            found.append(plan_requests(wide.config, given, tokens, dtype, device=device, **options).activations)
        return (found[0] - found[1]) / (81 / 80)

    return extra


@pytest.fixture
def given():
    """A text, pictures, and pictures with a video of another size."""
    text, seeing = [SimpleNamespace(**r.patches) for r in requests_of([(0, 9), (2, 9)], shared=False)]
    both = SimpleNamespace(image=seeing.image, video=requests_of([(1, 9)], shared=False)[0].patches["image"])
    return text, seeing, both


def test_code_that_is_kept_for_each_shape_counts_on_a_cpu_in_bf16_alone(extra, given):
    text, seeing, both = given
    one = Products(10**6, 10**6, 10**6)
    assert extra(one, [text], [700]) == pytest.approx(6e6, abs=9)
    assert extra(one, [seeing], [900]) == pytest.approx((6 + 7) * 1e6, abs=9)
    assert extra(one, [both], [900]) == pytest.approx((6 + 2 * 7) * 1e6, abs=9)  # two calls of the tower
    assert extra(one, [both], [900], vision_packing="per_reference") == pytest.approx((6 + 7) * 1e6, abs=9)
    assert extra(one, [text, text, text], [700, 900, 700]) == pytest.approx(2 * 6e6, abs=9)
    assert extra(one, [text], [2100]) == pytest.approx(7e6, abs=9)  # up in blocks of columns
    assert extra(one, [both], [900], torch.float32) == extra(one, [both], [900], device=META) == 0


def test_short_code_of_few_rows_and_scratch_of_each_thread_count(extra, given, monkeypatch):
    text, seeing, _ = given
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert extra(Products(1000, 9, 9), [text], [64]) == pytest.approx(6000, abs=9)
    assert extra(Products(9, 1000, 9), [text], [65]) == pytest.approx(6000, abs=9)
    assert extra(Products(0, 0, 0, 500, 20), [text], [65]) == pytest.approx(3 * (500 + 20 * 65), abs=9)
    patches = len(seeing.image.pixel_values)
    assert extra(Products(0, 0, 0, 500, 20), [seeing], [65]) == pytest.approx(3 * (500 + 20 * patches), abs=9)


def test_no_more_code_is_kept_than_onednn_has_room_for(extra, given, monkeypatch):
    monkeypatch.setattr(product_memory, "MOST_PRODUCTS", 10)
    lengths = list(range(100, 110))
    assert extra(Products(1000, 1000, 1000), [given[0]] * 10, lengths) == pytest.approx(10_000, abs=9)


def test_a_processor_that_is_not_known_has_the_larger_code(monkeypatch):
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert products_here() is TILES
    for tiles, expected in ((True, TILES), (False, PLAIN)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda tiles=tiles: tiles, raising=False)
        assert products_here() is expected


def test_results_in_float32_count_on_a_cpu(wide):
    tokens = [100] * 300
    on_cpu, elsewhere = (
        plan_requests(wide.config, [NOTHING] * 300, tokens, torch.bfloat16, device=d).activations for d in (CPU, None)
    )
    assert on_cpu > 5120 * 4 * sum(tokens) > elsewhere


def test_plan_grows_with_dtype_and_cast_weights(wide):
    nothing = SimpleNamespace(image=None, video=None)
    narrow = plan_request(wide.config, nothing, 8000, torch.bfloat16)
    full = plan_request(wide.config, nothing, 8000, torch.float32)
    assert 1.9 < full.activations / narrow.activations < 2.0
    assert plan_request(wide.config, nothing, 8000, torch.bfloat16, cast=7).activations == narrow.activations + 7


def test_parts_of_the_plan_are_linear(wide):
    assert text_bytes(wide.config.text, 20, 2) == 2 * text_bytes(wide.config.text, 10, 2)
    assert vision_bytes(wide.config.vision, 20, 2) == 2 * vision_bytes(wide.config.vision, 10, 2)


NOTHING = SimpleNamespace(image=None, video=None)
DOWN = "qwen3vl_32b.transformer.model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def open_wide(comfy, monkeypatch, tmp_path):  # noqa: F811
    """An encoder of released widths over an empty file of some format, for a device where nothing is resident."""
    from h3te.encoder import attention
    from h3te.nodes.host.leaf import HostOps

    kernel = SimpleNamespace(scaled_dot_product_attention=lambda query, *_, **__: torch.empty_like(query))
    monkeypatch.setattr(attention, "F", kernel)

    def open_file(kind: str, reader: str = "mmap"):
        path = tmp_path / ("wide.gguf" if kind == "gguf" else "wide.safetensors")
        config = wide_config()
        if kind == "gguf":
            write_sparse_gguf(path, "A", config)
        else:
            write_packed(path, PACKED[kind](config))
        encoder = load_encoder(path, device=META, tap_layer=3, ops=HostOps, reader=reader)
        encoder.materialise()
        return encoder

    return open_file


def tree_of(encoder):
    from h3te.nodes.host.tree import HostTree

    return HostTree(encoder)


def resting(module) -> list:
    return [leaf for leaf in module.modules() if getattr(leaf, "rest", None) is not None]


def measured(encoder, tokens: int) -> int:
    """Peak of a text; what a thread fetches ahead is seen here only once it is used, so the coming page is added."""
    ids = torch.tensor([100] * tokens)
    known = [encoder.slots.get(name) for name in encoder.slots.names]
    known += [part for leaf in resting(encoder) if leaf.rest.held for part in leaf.rest.parts().values()]
    with LiveBytes([ids, *known]) as held:
        encoder.encode_ids(ids)
    coming = resting(encoder.model.language_model.layers[0])
    return held.peak + sum(leaf.weight.numel() * leaf.weight.element_size() for leaf in coming)


@pytest.mark.parametrize("kind", ["nvfp4_awq", "int8_convrot", "int8_tensor", "fp8_row", "fp8_blocks", "gguf"])
@pytest.mark.parametrize(("tokens", "above"), [(64, 1.05), (4000, 1.3)])
def test_plan_covers_unpacking_and_what_is_fetched_ahead(open_wide, kind, tokens, above):
    """Long texts: the largest activations and the largest matrix are not there at the same time, but counted so."""
    encoder = open_wide(kind)
    plan = plan_request(encoder.config, NOTHING, tokens, encoder.dtype, weights_in_use(tree_of(encoder), META))
    assert 1.0 <= plan.activations / measured(encoder, tokens) <= above


@pytest.mark.parametrize("kind", ["nvfp4_awq", "int8_convrot", "gguf"])
def test_plan_covers_the_matrices_that_several_requests_share(open_wide, kind):
    encoder = open_wide(kind)
    requests = [Request(torch.tensor([100] * 64), {"image": None, "video": None}) for _ in range(3)]
    known = [encoder.slots.get(name) for name in encoder.slots.names]
    known += [part for leaf in resting(encoder) if leaf.rest.held for part in leaf.rest.parts().values()]
    with LiveBytes([*known, *[request.ids for request in requests]]) as held, torch.no_grad():
        EncodePass(encoder.model, encoder.config, requests, META, encoder.dtype, "official").run(None)
    coming = resting(encoder.model.language_model.layers[0])
    peak = held.peak + sum(leaf.weight.numel() * leaf.weight.element_size() for leaf in coming)
    cast = weights_in_use(tree_of(encoder), META, lend_once=True)
    plan = plan_requests(encoder.config, [NOTHING] * 3, [64] * 3, encoder.dtype, cast)
    assert cast > weights_in_use(tree_of(encoder), META) + 5e8
    assert 1.0 <= plan.activations / peak <= 1.1


@pytest.mark.parametrize("kind", ["nvfp4_awq", "int8_tensor", "gguf"])
def test_plan_covers_a_lora_on_a_packed_matrix(comfy, open_wide, kind):  # noqa: F811
    from h3te.nodes.host.clip import make_patcher

    encoder = open_wide(kind)
    patcher = make_patcher(tree_of(encoder), META, torch.device("cpu"))
    plain = weights_in_use(patcher.model, META, patcher.patches)
    lora = {"x.lora_up.weight": torch.empty(5120, 8), "x.lora_down.weight": torch.empty(8, 25600)}
    patcher.add_patches(comfy.lora.load_lora(lora, {"x": DOWN}), 0.5)
    patcher.partially_load(META, 1)
    more = weights_in_use(patcher.model, META, patcher.patches)
    assert more > plain + 1e9
    plan = plan_request(encoder.config, NOTHING, 64, encoder.dtype, more)
    assert 1.0 <= plan.activations / measured(encoder, 64) <= 1.1
    patcher.detach()


def test_weights_in_memory_are_not_fetched_for_a_cpu(open_wide):
    tree = tree_of(open_wide("int8_tensor"))
    on_cpu, elsewhere = weights_in_use(tree, torch.device("cpu")), weights_in_use(tree, META)
    layer = sum(p.numel() for p in tree.encoder.model.language_model.layers[0].parameters() if p.dtype == torch.uint8)
    assert elsewhere - on_cpu == PAGES * layer
    assert weights_in_use(tree, META, resident=True) == on_cpu  # what is on the device is not fetched
    assert on_cpu == 5120 * 25600 * 2 + (1 << 20) * 24


def test_streamed_weights_are_fetched_for_a_cpu_too(open_wide):
    streamed = tree_of(open_wide("bf16", reader="stream"))
    assert weights_in_use(streamed, torch.device("cpu")) == weights_in_use(streamed, META) > 1.9e9
    assert weights_in_use(tree_of(open_wide("bf16")), META) == 0  # ComfyUI moves mapped ones, and counts that itself
