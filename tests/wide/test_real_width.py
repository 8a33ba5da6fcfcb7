"""The encoder as released in every size but depth, against transformers on the same tensors in bf16.

With the released patch convolution in the place of our matrix product, every request is equal to the last bit; as
shipped, the difference is measured. Both models hold the same views of the mapped files, so memory is paid once.
"""

from __future__ import annotations

import json
import shutil
import time
from types import SimpleNamespace

import demo_tokenizer
import layout
import pytest
import torch
import torch.nn.functional as F
from h3te.encoder import AudioReference, ImageReference, VideoReference, load_encoder
from h3te_tests.golden_cases import clip, pattern, relative_error
from h3te_tests.wide.wide_weights import LAYERS, make_wide_checkpoint
from measure_encode import peak
from official_path import OfficialPath, Request, renew_rotary
from parity_official import run_whole
from torch import nn

FOLDER = layout.COMFY / "wide" / "text_encoder"
RESULTS = layout.OUTPUT / "wide"
MEMORY_LIMIT = 9e9  # bytes ever resident in this process, mapped files included
PATCH_LIMIT = 1e-4  # relative L2 of the patch embedding alone
WHOLE_LIMIT = 2e-2  # of the conditioning as shipped: bf16 rounds every step, and is itself about 1e-2 from float32

FRAMES = [ImageReference(pattern(256, 448, i)) for i in (1, 2)]
VIDEO = VideoReference(clip(48, 128, 224, 3), has_audio=True)
REQUESTS = {
    "text": ("A red fox runs through deep snow at dawn and says: <d>[English] Follow me!</d> " * 8, ()),
    "keyframes": ("From <Picture 1> to <Picture 2>: the fox crosses the clearing.", FRAMES),
    "video": ("As in <Video 1>, but at night.", (VIDEO,)),
    "mixed": ("<Picture 1> moves as in <Video 1>, to <Audio 2>.", (FRAMES[0], VIDEO, AudioReference())),
}


@pytest.fixture(scope="module")
def ours(tokenizer_folder):
    make_wide_checkpoint(FOLDER)
    encoder = load_encoder(FOLDER, tap_layer=LAYERS, tokenizer=tokenizer_folder)
    encoder.load_to_device()
    return encoder


@pytest.fixture(scope="module")
def official(ours, tokenizer_folder, tmp_path_factory) -> OfficialPath:
    """transformers' model over our encoder's own tensors."""
    folder = tmp_path_factory.mktemp("official")
    for name, content in demo_tokenizer.tokenizer_files(tokenizer_folder).items():
        (folder / name).write_bytes(content)
    path = OfficialPath(FOLDER, tap_layer=LAYERS, dtype=torch.bfloat16, tokenizer=folder)
    path.model.language_model.norm = nn.Identity()
    state = {name.removeprefix("model."): ours.slots.get(name).detach() for name in ours.slots.names}
    path.model.load_state_dict(state, assign=True, strict=True)
    for half in (path.model.visual, path.model.language_model):
        renew_rotary(half)
    return path


@pytest.fixture(scope="module")
def requests(official) -> dict[str, Request]:
    return {name: official.prepare(*request) for name, request in REQUESTS.items()}


@pytest.fixture(scope="module")
def wanted(official, requests, figures) -> dict[str, torch.Tensor]:
    """transformers' hidden states of every request."""
    found = {}
    for name, request in requests.items():
        started = time.perf_counter()
        with torch.no_grad():
            found[name] = run_whole(official.model, request)
        figures.setdefault(name, {}).update(tokens=len(request.ids), transformers_s=_since(started))
    return found


@pytest.fixture(scope="module")
def figures():
    """What was measured; written to output/wide/report.json at the end."""
    found: dict = {}
    yield found
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "report.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    print("\n" + "\n".join(f"  {name}: {figure}" for name, figure in found.items()))


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 2)


def test_checkpoint_has_the_released_sizes(ours):
    text, vision = ours.config.text, ours.config.vision
    assert (text.hidden_size, text.intermediate_size, text.head_dim, text.vocab_size) == (5120, 25600, 128, 151936)
    assert (text.num_attention_heads, text.num_key_value_heads) == (64, 8)
    assert (vision.hidden_size, vision.intermediate_size, vision.depth, vision.num_heads) == (1152, 4304, 27, 16)
    assert (vision.out_hidden_size, tuple(vision.deepstack_visual_indexes)) == (5120, (8, 16, 24))


def test_both_models_hold_the_same_memory(ours, official):
    for name, tensor in official.model.state_dict().items():
        if "inv_freq" not in name:
            assert tensor.data_ptr() == ours.slots.get(f"model.{name}").data_ptr(), name


@pytest.mark.parametrize("name", REQUESTS)
def test_activations_are_sane(wanted, name):
    assert bool(torch.isfinite(wanted[name]).all())
    assert 0.3 < float(wanted[name].float().std()) < 3


@pytest.mark.parametrize("name", ["keyframes", "video"])
def test_patch_embedding_is_within_its_bound(ours, official, requests, figures, name):
    (patches,) = requests[name].patches.values()
    patches = patches.to(torch.bfloat16)
    with torch.no_grad():
        mine, theirs = ours.model.visual.patch_embed(patches), official.model.visual.patch_embed(patches)
    error = relative_error(mine, theirs)
    figures.setdefault(name, {})["patch_embedding"] = error
    assert error <= PATCH_LIMIT


@pytest.mark.parametrize("name", ["text", "keyframes", "video"])
def test_conditioning_as_shipped_is_within_its_bound(ours, requests, wanted, figures, name):
    started = time.perf_counter()
    done = ours.encode(*REQUESTS[name])
    figures[name].update(ours_s=_since(started))
    assert torch.equal(done.token_ids, requests[name].ids)
    error = relative_error(done.hidden[0], wanted[name])
    figures[name]["as_shipped"] = error
    assert error <= (WHOLE_LIMIT if requests[name].patches else 0)


@pytest.mark.parametrize("name", ["keyframes", "video", "mixed"])
def test_conditioning_is_bit_equal_with_the_released_convolution(ours, requests, wanted, figures, name, monkeypatch):
    proj = ours.model.visual.patch_embed.proj

    def convolution(x: torch.Tensor) -> torch.Tensor:
        kernel = proj.weight
        return F.conv3d(x.view(-1, *kernel.shape[1:]), kernel, proj.bias, stride=kernel.shape[2:]).flatten(1)

    monkeypatch.setattr(proj, "forward", convolution)
    done = ours.encode(*REQUESTS[name])
    assert torch.equal(done.token_ids, requests[name].ids)
    mine = done.hidden[0]
    figures[name]["with_conv3d"] = relative_error(mine, wanted[name])
    assert mine.dtype == wanted[name].dtype == torch.bfloat16
    torch.testing.assert_close(mine, wanted[name], rtol=0, atol=0)


def test_one_changed_weight_is_noticed(ours, official):
    """Bit-equality at this width does see a single norm scaled by a hundredth."""
    with torch.no_grad():
        wanted = run_whole(official.model, official.prepare("A fox.", ()))
    assert torch.equal(ours.encode("A fox.").hidden[0], wanted)
    norm = ours.model.language_model.layers[LAYERS - 1].post_attention_layernorm
    kept = norm.weight
    norm.weight = nn.Parameter(kept * 1.01, requires_grad=False)
    try:
        assert relative_error(ours.encode("A fox.").hidden[0], wanted) > 1e-4
    finally:
        norm.weight = kept


def test_memory_stays_under_nine_gigabytes(wanted, figures):
    figures["peak_resident_bytes"] = peak()
    assert figures["peak_resident_bytes"] < MEMORY_LIMIT


def test_wide_checkpoint_is_refused_without_space(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    with pytest.raises(
        RuntimeError, match=r"test-wide: expected 8\.\d GB of free disk .*got 1\.0 GB\. Free some space"
    ):
        make_wide_checkpoint(tmp_path / "wide")
