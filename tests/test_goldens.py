"""The golden cases through every public door: `encode`, `encode_ids`, weights from files and from `load_weights`.

Bounds: float32 within 2e-4 relative L2 of the official path (measured 1.2e-6), bfloat16 within 1.5e-2 (measured 1.2e-2,
which is what the official path in bfloat16 is from its own float32).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from h3te.encoder import Encoder, build_encoder, load_encoder
from h3te.encoder.presentation import present
from h3te_tests.golden_cases import CASES, expected, references, relative_error
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config, tiny_weights

BOUND = {torch.float32: 2e-4, torch.bfloat16: 1.5e-2}
WITH_PIXELS = [name for name, case in CASES.items() if any(r["kind"] != "audio" for r in case["references"])]
BLOCKED = ("transformers", "torchvision", "torchaudio", "comfy")


@pytest.fixture(scope="module", params=BOUND, ids=["float32", "bfloat16"])
def encoder(request, tiny_checkpoint, tokenizer_folder) -> Encoder:
    """Over the files of the official layout."""
    return load_encoder(tiny_checkpoint, dtype=request.param, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)


@pytest.fixture(scope="module")
def float32_encoder(tiny_checkpoint, tokenizer_folder) -> Encoder:
    return load_encoder(tiny_checkpoint, dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)


@pytest.mark.parametrize("name", CASES)
def test_encode_gives_the_golden(encoder, name):
    case = CASES[name]
    got = encoder.encode(case["prompt"], references(case))
    assert torch.equal(got.token_ids, expected()[f"{name}.ids"])
    assert torch.equal(got.token_tags, expected()[f"{name}.tags"])
    assert got.token_ids.dtype == got.token_tags.dtype == torch.int64
    assert got.hidden.shape == (1, case["tokens"], 64)
    assert got.hidden.dtype == encoder.dtype
    assert relative_error(got.hidden[0], expected()[f"{name}.hidden"]) <= BOUND[encoder.dtype]


@pytest.mark.parametrize("name", CASES)
def test_encode_ids_gives_the_golden_from_our_pixels(encoder, name):
    presentation = present(CASES[name]["prompt"], references(CASES[name]))
    image, video = presentation.image, presentation.video
    hidden = encoder.encode_ids(
        expected()[f"{name}.ids"],
        pixel_values=image and image.pixel_values,
        image_grid_thw=image and image.grid_thw,
        pixel_values_videos=video and video.pixel_values,
        video_grid_thw=video and video.grid_thw,
    )
    assert hidden.shape == (CASES[name]["tokens"], 64)
    assert hidden.dtype == encoder.dtype
    assert relative_error(hidden, expected()[f"{name}.hidden"]) <= BOUND[encoder.dtype]
    for patches, key in ((image, "image_grid_thw"), (video, "video_grid_thw")):
        assert (patches.grid_thw.tolist() if patches else []) == CASES[name][key]


def test_built_encoder_with_given_weights_gives_the_goldens(tokenizer_folder):
    encoder = build_encoder(tiny_config(), dtype=torch.float32, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    encoder.load_weights(tiny_weights())
    for name, case in CASES.items():
        got = encoder.encode(case["prompt"], references(case))
        assert torch.equal(got.token_ids, expected()[f"{name}.ids"])
        assert relative_error(got.hidden[0], expected()[f"{name}.hidden"]) <= BOUND[torch.float32]


PIXEL_KINDS = {
    "numpy float32": lambda pixels: pixels.astype(np.float32) / np.float32(255),
    "numpy float64": lambda pixels: pixels / 255.0,
    "torch uint8": torch.from_numpy,
    "torch float32": lambda pixels: torch.from_numpy(pixels).float() / 255,
    "torch strided": lambda pixels: torch.from_numpy(pixels.swapaxes(-2, -3).copy()).transpose(-2, -3),
}


@pytest.mark.parametrize("kind", PIXEL_KINDS)
@pytest.mark.parametrize("name", WITH_PIXELS)
def test_float_and_uint8_pixels_of_numpy_and_torch_are_the_same_patches(name, kind):
    case = CASES[name]
    plain = present(case["prompt"], references(case))
    other = present(case["prompt"], references(case, PIXEL_KINDS[kind]))
    for mine, wanted in ((other.image, plain.image), (other.video, plain.video)):
        assert (mine is None) == (wanted is None)
        assert mine is None or torch.equal(mine.pixel_values, wanted.pixel_values)


@pytest.mark.parametrize("kind", PIXEL_KINDS)
def test_float_and_uint8_pixels_of_numpy_and_torch_are_the_same_conditioning(float32_encoder, kind):
    name = "mixed_in_request_order"
    case = CASES[name]
    plain = float32_encoder.encode(case["prompt"], references(case))
    other = float32_encoder.encode(case["prompt"], references(case, PIXEL_KINDS[kind]))
    assert torch.equal(other.hidden, plain.hidden)
    assert torch.equal(other.token_ids, plain.token_ids)


def test_the_same_request_twice_is_the_same_to_the_last_bit(encoder):
    case = CASES["mixed_other_order"]
    first = encoder.encode(case["prompt"], references(case)).hidden
    encoder.encode("something else", ())
    assert torch.equal(encoder.encode(case["prompt"], references(case)).hidden, first)


SCRIPT = """
import importlib.util, sys
from pathlib import Path

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError("blocked by the test: " + name)

sys.meta_path.insert(0, Blocked())
for name in {blocked!r}:
    assert name not in sys.modules
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(name + " could be imported")

def load(name, file):
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(Path(file).parent)])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])

load("h3te", {root!r} + "/__init__.py")
load("h3te_tests", {root!r} + "/tests/conftest_package.py")
import torch
from h3te.encoder import load_encoder
from h3te_tests import golden_cases

encoder = load_encoder({checkpoint!r}, dtype=torch.float32, tap_layer=5, tokenizer={tokenizer!r})
for name, case in golden_cases.CASES.items():
    got = encoder.encode(case["prompt"], golden_cases.references(case))
    assert torch.equal(got.token_ids, golden_cases.expected()[name + ".ids"]), name
    assert torch.equal(got.token_tags, golden_cases.expected()[name + ".tags"]), name
    assert golden_cases.relative_error(got.hidden[0], golden_cases.expected()[name + ".hidden"]) <= 2e-4, name
foreign = [m for m in sys.modules if m.split(".")[0] in {blocked!r}]
assert not foreign, foreign
print("checked", len(golden_cases.CASES))
"""


def test_goldens_without_transformers_torchvision_or_comfyui(tiny_checkpoint, tokenizer_folder):
    script = SCRIPT.format(
        blocked=BLOCKED,
        root=str(Path(__file__).resolve().parents[1]),
        checkpoint=str(tiny_checkpoint),
        tokenizer=str(tokenizer_folder),
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["checked", str(len(CASES))]
