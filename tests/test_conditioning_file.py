"""A conditioning file gives back to the bit what was written, and says by name what it cannot hold."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.conditioning_files import assert_same, bits, conditioning, folders, tensor  # noqa: F401 (fixture)
from safetensors import safe_open

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.fixture
def file(folders):  # noqa: F811
    from h3te.nodes.host import conditioning_file

    return conditioning_file


@pytest.fixture
def written(file):
    """conditioning -> what was written."""
    from h3te.nodes.host.saving import save_target

    return lambda given, **options: file.write(save_target("c/h3"), given, **options)


@pytest.fixture
def again(file, written):
    """conditioning -> conditioning, through a file."""
    return lambda given: file.read(written(given).path).conditioning


def with_extra(value, key="extra") -> list:
    return [[tensor(1, 3, 4), {key: value}]]


def test_everything_that_h3_nodes_make_comes_back(again):
    assert_same(conditioning(), again(conditioning()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (2, 0, 3)], ids=str)
def test_tensor_keeps_dtype_shape_and_bits(again, dtype, shape):
    given = with_extra((torch.randn(shape) * 50).to(dtype))
    assert_same(given, again(given))


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**63, -(2**63), 0.1, -0.0, 1e308, float("nan"), float("inf"), -float("inf"), "",
        "text\n\x00\u202e\U0001f98a", "\ud800", [], {}, (), [[]], {"a": [], 1: (), None: {}, False: 0.0}, [(1, [2])],
        {"tensor": "0.hidden"}, {"dict": [["a", 1]]}, {"float": "nan"}, {"widen": "F32", "nested": []}, [True, 1, 1.0],
    ],
    ids=repr,
)  # fmt: skip
def test_value_keeps_kind_and_order(again, value):
    given = with_extra(value)
    assert_same(given, again(given))


def test_order_of_keys_is_kept(again):
    given = with_extra({"b": 1, "a": 2, "c": tensor(2)})
    assert list(again(given)[0][1]["extra"]) == ["b", "a", "c"]


def test_numpy_numbers_become_pythons(again):
    found = again(with_extra([np.float32(0.5), np.int64(3), np.bool_(True)]))[0][1]["extra"]
    assert_same(found, [0.5, 3, True])


def test_nested_latents_come_back(again):
    from comfy.nested_tensor import NestedTensor

    given = with_extra(NestedTensor((tensor(1, 24, 2, 3, 4), tensor(1, 32, 2, 5))))
    assert_same(given, again(given))


def test_tensor_views_and_parameters_come_back(again):
    base = tensor(6, 8)
    views = [base.T, base[::2, 1::3], base[0].expand(5, 8), base.flip(0), base[2:4]]
    found = again(with_extra(views))[0][1]["extra"]
    assert_same(views, found)
    parameter = torch.nn.Parameter(tensor(3))
    found = again(with_extra(parameter))[0][1]["extra"]
    assert type(found) is torch.Tensor and torch.equal(found, parameter) and not found.requires_grad


def test_one_tensor_in_two_places_is_stored_once_and_one_again(file, written):
    latent = tensor(1, 24, 1, 8, 8)
    given = [[tensor(1, 3, 4), {"a": latent, "b": [latent]}], [tensor(1, 3, 4), {"c": latent}]]
    done = written(given)
    with safe_open(done.path, "pt") as opened:
        assert len(list(opened.keys())) == 3
    found = file.read(done.path).conditioning
    assert found[0][1]["a"] is found[0][1]["b"][0] is found[1][1]["c"]


def test_several_entries_of_several_lengths_come_back(again):
    given = [*conditioning(5), *conditioning(9)]
    assert_same(given, again(given))


# half the bytes


def stored_dtypes(path) -> dict[str, torch.dtype]:
    with safe_open(path, "pt") as opened:
        return {name: opened.get_tensor(name).dtype for name in opened.keys()}  # noqa: SIM118 (no mapping)


def test_widened_bfloat16_is_stored_as_bfloat16_and_other_float32_is_not(written):
    given = conditioning()
    given[0][1]["other"] = tensor(3)
    stored = stored_dtypes(written(given).path)
    assert stored["0.hidden"] == torch.bfloat16
    assert stored["0.other"] == torch.float32
    assert stored["0.minimax_token_tags"] == torch.int64


def test_one_value_beyond_bfloat16_keeps_the_whole_tensor(written, again):
    given = conditioning()
    given[0][0][0, -1, -1] = 1 + 2**-23
    assert stored_dtypes(written(given).path)["0.hidden"] == torch.float32
    assert_same(given, again(given))


def test_special_values_are_widened_bit_for_bit(again):
    patterns = torch.tensor([0x7F80, -0x80, 0x7FC0, 0x7F81, -1, -0x8000, 1, 0], dtype=torch.int32) << 16
    given = [[patterns.view(torch.float32).reshape(1, 2, 4), {}]]
    assert torch.equal(bits(again(given)[0][0]), bits(given[0][0]))


# refused before anything is written


class Hooks:
    pass


REFUSED = {
    "hooks": (Hooks(), "hooks", "Save before hooks are set"),
    "a control net": (Hooks(), "control", "Save before the ControlNet is applied"),
    "a function": (print, "callback", "builtin_function_or_method"),
    "a set": ({1}, "areas", "got set at key 'areas' of entry 1"),
    "bytes": (b"x", "raw", "got bytes"),
    "an array": (np.zeros(3), "raw", "got numpy.ndarray"),
    "an ordered dict": (OrderedDict(), "raw", "collections.OrderedDict"),
    "a complex number": (1j, "raw", "got complex"),
    "a huge number": (2**70, "raw", "got one of 71 bits"),
    "a deep list": (None, "raw", "at most 32 deep"),
    "a tuple as key": ({(1, 2): 3}, "raw", "got tuple at key 'raw'"),
    "a complex tensor": (torch.zeros(2, dtype=torch.complex64), "raw", "got torch.complex64"),
    "a sparse tensor": (torch.zeros(2).to_sparse(), "raw", "got torch.sparse_coo"),
    "a meta tensor": (torch.zeros(2, device="meta"), "raw", "without values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_file_can_hold_is_refused_by_its_key(written, folders, name):  # noqa: F811
    value, key, said = REFUSED[name]
    if name == "a deep list":
        for _ in range(40):
            value = [value]
    with pytest.raises(ValueError, match=r"^Save MiniMax H3 Conditioning") as caught:
        written(with_extra(value, key))
    assert said in str(caught.value)
    assert str(caught.value).rstrip().endswith(".")
    assert [p for p in folders.output.rglob("*") if p.is_file()] == []


def test_inner_key_is_named_by_its_place(written):
    given = conditioning()
    given[0][1]["minimax_refs"][2]["hook"] = Hooks()
    with pytest.raises(ValueError, match=r"key 'minimax_refs\.2\.hook' of entry 1"):
        written(given)


def test_list_that_holds_itself_is_refused(written):
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="at most 32 deep"):
        written(with_extra(loop))


@pytest.mark.parametrize("given", [None, [], {}, [[]], [[None, {}]], [[torch.zeros(2), None]], torch.zeros(2)], ids=str)
def test_what_is_no_conditioning_is_refused(written, given):
    with pytest.raises(ValueError, match="expected CONDITIONING"):
        written(given)


def test_texts_beyond_the_limit_are_refused(written, monkeypatch, file):
    monkeypatch.setattr(file, "MAX_HEADER_BYTES", 5_000)
    with pytest.raises(ValueError, match=r"^Save .*at most 5,000 bytes"):
        written(with_extra("x" * 5_000))


# what the file says


def test_presentation_and_provenance_stand_in_the_metadata(file, written):
    done = written(conditioning())
    with safe_open(done.path, "pt") as opened:
        metadata = opened.metadata()
    assert metadata["presentation"] == "<Picture 1>: a fox"
    assert json.loads(metadata["provenance"]) == {"prompt": "a fox", "encoder": "nvfp4", "parts": {"prompt": 3}}
    assert metadata["h3te_conditioning"] == "1"
    loaded = file.read(done.path)
    assert loaded.presentation == "<Picture 1>: a fox"
    assert loaded.conditioning[0][1]["h3te"] == conditioning()[0][1]["h3te"]
    assert loaded.nbytes == done.nbytes == done.path.stat().st_size


def test_conditioning_without_origin_has_neither(file, written):
    loaded = file.read(written(with_extra(1)).path)
    assert loaded.presentation == ""
    assert not {"presentation", "provenance"} & set(loaded.metadata)


def test_prompt_is_left_out_when_asked(file, written):
    done = written(conditioning(), with_prompt=False)
    assert b"a fox" not in done.path.read_bytes()
    loaded = file.read(done.path)
    given = conditioning()
    del given[0][1]["h3te"]
    assert_same(loaded.conditioning, given)


def test_safetensors_own_reader_takes_the_file_and_tensors_are_aligned(written):
    done = written(conditioning())
    with safe_open(done.path, "pt") as opened:
        names = list(opened.keys())
        assert "0.minimax_refs.0.latent" in names
        assert torch.equal(opened.get_tensor("0.hidden").float(), conditioning()[0][0])
    raw = done.path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    entries = {k: v for k, v in json.loads(raw[8 : 8 + length]).items() if k != "__metadata__"}
    sizes = {"I64": 8, "F32": 4, "BF16": 2}
    assert all(entry["data_offsets"][0] % sizes[entry["dtype"]] == 0 for entry in entries.values())


def test_lines_of_the_node_say_tokens_size_latents_prompt_and_encoder(written):
    from h3te.nodes.host.report_conditioning import described

    lines = described(written(conditioning()).metadata, 1_234_567)
    assert lines[:4] == ["7 tokens, 1.23 MB", "3 reference latents, 1 keyframes", "prompt: a fox", "encoded by nvfp4"]
    assert lines[4].startswith("saved 20") and lines[4].endswith(" UTC")
    lines = described(written(with_extra(1)).metadata)
    assert lines[:2] == ["3 tokens", "no reference or keyframe latents; no token tags: not MiniMax H3's conditioning"]


@pytest.mark.parametrize(
    "metadata",
    [{}, {"about": "["}, {"about": "[1]"}, {"about": '{"tokens": "x", "references": 3, "keyframes": "a"}'},
     {"about": "[" * 100_000}, {"provenance": '{"prompt": 3, "encoder": []}'}],
    ids=lambda m: str(m)[:40],
)  # fmt: skip
def test_lines_pass_over_what_somebody_else_wrote(comfy, metadata):  # noqa: F811
    from h3te.nodes.host.report_conditioning import described

    assert described(metadata)[0] == "? tokens"
