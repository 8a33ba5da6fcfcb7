"""ComfyUI's own kernels: taken where they give our numbers on a real backend, left alone or refused by name elsewhere.

The real comfy_kitchen runs its plain torch path here ("eager"); no test sees its CUDA, HIP or Triton kernels.
"""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
from h3te.encoder.packing import unpack
from h3te.encoder.packing.fp8 import BlockFp8, Fp8
from h3te.encoder.packing.ggml import Ggml
from h3te.encoder.packing.int8 import Int8
from h3te.encoder.packing.kernels import Kernel, kernel_for, use_kernels
from h3te.encoder.packing.nvfp4 import Nvfp4
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)

CPU = torch.device("cpu")
SERVED = (
    Nvfp4((400, 512)), Nvfp4((1000, 48)), Int8((300, 512)), Int8((300, 512), per_row=False), Fp8((300, 64)),
    Fp8((300, 64), code=torch.float8_e5m2, scale_shape=(1,), scale_name="scale_weight"),
)  # fmt: skip
needs_kitchen = pytest.mark.skipif(
    importlib.util.find_spec("comfy_kitchen") is None, reason="this ComfyUI has no comfy_kitchen"
)


@pytest.fixture
def kernels(comfy, monkeypatch):  # noqa: F811
    """The module, with the trials forgotten and, as on a GPU, every backend taken for a real one."""
    from h3te.nodes.host import kernels

    monkeypatch.setattr(kernels, "REAL_BACKENDS", ("cuda", "hip", "triton", "eager"))
    kernels._refusal.cache_clear()
    yield kernels
    kernels._refusal.cache_clear()


def kitchen_of(**functions) -> SimpleNamespace:
    """A comfy_kitchen whose CUDA backend has these functions."""

    class Registry:
        def get_capable_backend(self, name, kwargs):
            if name not in functions:
                raise RuntimeError(f"No backend available for '{name}'")
            return "cuda"

        def get_implementation(self, name, kwargs):
            return functions[name]

    return SimpleNamespace(registry=Registry())


def parts_of(kernels, packing):
    return kernels._trial_parts(packing)


@needs_kitchen
@pytest.mark.parametrize("packing", SERVED, ids=str)
def test_kitchen_gives_our_numbers_and_unpack_uses_it(kernels, monkeypatch, packing):
    found = kernels.kernels_for("comfyui", CPU, [packing])
    parts = parts_of(kernels, packing)
    ours = unpack(packing, parts, torch.float32)
    with use_kernels(found):
        assert kernel_for(packing, CPU) is found[0]
        monkeypatch.setattr(type(packing), "rows", None)  # ours is not asked
        theirs = unpack(packing, parts, torch.float32)
    assert torch.equal(theirs, ours)


@needs_kitchen
def test_convrot_is_taken_only_when_its_rounding_is_ours(kernels):
    packing = Int8((300, 1024), group=256)
    parts = parts_of(kernels, packing)
    import comfy_kitchen

    arguments = {"q": parts["weight"], "scale": parts["weight_scale"], "group_size": 256}
    theirs = comfy_kitchen.registry.get_implementation("dequantize_int8_convrot_weight", kwargs=arguments)(**arguments)
    same = torch.equal(theirs, unpack(packing, parts, torch.float32))
    assert bool(kernels.kernels_for("auto", CPU, [packing])) == same
    assert (theirs - unpack(packing, parts, torch.float32)).abs().max() < 1e-4  # the same matrix, rounded otherwise


@needs_kitchen
def test_plain_torch_path_of_kitchen_is_no_reason_to_leave_ours(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "REAL_BACKENDS", ("cuda", "hip", "triton"))
    assert kernels.kernels_for("auto", CPU, SERVED) == ()
    with pytest.raises(RuntimeError, match=r"has only its eager path for dequantize_nvfp4.*Set unpack to auto"):
        kernels.kernels_for("comfyui", CPU, SERVED)


def test_torch_turns_them_off(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "_kitchen", None)  # not even looked for
    assert kernels.kernels_for("torch", CPU, SERVED) == ()


def test_nothing_packed_needs_no_kernel(kernels):
    assert kernels.kernels_for("comfyui", CPU, []) == ()


def test_absent_kitchen_is_usual(kernels, monkeypatch):
    monkeypatch.setitem(sys.modules, "comfy_kitchen", None)
    assert kernels.kernels_for("auto", CPU, SERVED) == ()
    with pytest.raises(RuntimeError, match=r"kernels for nvfp4 weights of 512 columns on cpu, got none: .*absent"):
        kernels.kernels_for("comfyui", CPU, SERVED)


@pytest.mark.parametrize(
    "kitchen", [SimpleNamespace(), SimpleNamespace(registry=SimpleNamespace()), kitchen_of()], ids=["no", "old", "none"]
)
def test_old_kitchen_is_left_alone_or_named(kernels, monkeypatch, kitchen):
    monkeypatch.setitem(sys.modules, "comfy_kitchen", kitchen)
    assert kernels.kernels_for("auto", CPU, SERVED) == ()
    with pytest.raises(RuntimeError, match="is too old, or fails there"):
        kernels.kernels_for("comfyui", CPU, SERVED)


def test_kernel_that_fails_is_left_alone(kernels, monkeypatch):
    def fails(**_):
        raise AssertionError("num_rows must be divisible by 128")

    monkeypatch.setitem(sys.modules, "comfy_kitchen", kitchen_of(dequantize_nvfp4=fails))
    assert kernels.kernels_for("auto", CPU, [Nvfp4((64, 64))]) == ()
    with pytest.raises(RuntimeError, match=r"AssertionError: num_rows must be divisible by 128"):
        kernels.kernels_for("comfyui", CPU, [Nvfp4((64, 64))])


def test_kernel_with_other_numbers_is_left_alone(kernels, monkeypatch):
    def nearly(q, scale):
        values = q.float() * scale
        values[-1, -1] += 1e-7
        return values

    monkeypatch.setitem(sys.modules, "comfy_kitchen", kitchen_of(dequantize_int8_simple=nearly))
    assert kernels.kernels_for("auto", CPU, [Int8((64, 64))]) == ()
    with pytest.raises(RuntimeError, match="cuda kernel dequantize_int8_simple gives other numbers"):
        kernels.kernels_for("comfyui", CPU, [Int8((64, 64))])


def test_a_width_is_proven_for_itself(kernels, monkeypatch, caplog):
    def narrow(q, scale):
        return q.float() * scale + (q.shape[1] > 100)

    caplog.set_level("INFO")
    monkeypatch.setitem(sys.modules, "comfy_kitchen", kitchen_of(dequantize_int8_simple=narrow))
    found = kernels.kernels_for("auto", CPU, [Int8((64, 64)), Int8((99, 64)), Int8((64, 128))])
    assert len(found) == 1
    with use_kernels(found):
        assert kernel_for(Int8((77, 64)), CPU) is found[0]
        assert kernel_for(Int8((64, 128)), CPU) is None
        assert kernel_for(Int8((64, 64), per_row=False), CPU) is None
        assert kernel_for(Int8((64, 64)), torch.device("meta")) is None
    assert kernel_for(Int8((77, 64)), CPU) is None
    assert "int8 is unpacked by comfy_kitchen's cuda kernel on cpu" in caplog.text


def test_trial_runs_once_for_each_format_and_width(kernels, monkeypatch):
    calls = []

    def counted(q, scale):
        calls.append(q.shape)
        return q.float() * scale

    monkeypatch.setitem(sys.modules, "comfy_kitchen", kitchen_of(dequantize_int8_simple=counted))
    for _ in range(3):
        kernels.kernels_for("auto", CPU, [Int8((64, 64)), Int8((128, 64)), Int8((64, 96))])
    assert len(calls) == 2 * 2  # two chunks each


@pytest.mark.parametrize(
    "packing",
    [Ggml((64, 256), "Q8_0"), BlockFp8((128, 128)), Fp8((64, 64), scale_shape=(64, 1))],
    ids=["Q8_0", "fp8 blocks", "fp8 rows"],
)
def test_formats_that_kitchen_does_not_know_stay_with_torch(kernels, packing):
    assert kernels.kernels_for("auto", CPU, [packing]) == ()
    with pytest.raises(RuntimeError, match="comfy_kitchen has none for"):
        kernels.kernels_for("comfyui", CPU, [packing])


def test_kernel_starts_at_multiples_of_its_step(monkeypatch):
    from h3te.encoder.packing import packing as module

    starts = []

    def rows(packing, parts, start, stop):
        starts.append(start)
        return packing.rows(parts, start, stop)

    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64 * 150)
    packing = Int8((400, 64))
    parts = {"weight": torch.ones(400, 64, dtype=torch.int8), "weight_scale": torch.arange(400.0)[:, None]}
    with use_kernels([Kernel(Int8, "cpu", rows, lambda packing: True, 128)]):
        matrix = unpack(packing, parts, torch.float32)
    assert starts == [0, 128, 256, 384]
    assert torch.equal(matrix, torch.arange(400.0)[:, None].expand(400, 64))


def test_kernels_of_one_encode_do_not_reach_another():
    kernel = Kernel(Int8, "cpu", Int8.rows, lambda packing: True)
    with use_kernels([kernel]):
        with use_kernels([]):
            assert kernel_for(Int8((4, 4)), CPU) is None
        assert kernel_for(Int8((4, 4)), CPU) is kernel
    assert kernel_for(Int8((4, 4)), CPU) is None
