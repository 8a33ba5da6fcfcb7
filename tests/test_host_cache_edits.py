"""Random edits through ComfyUI's CLIP with every cache on: each result is that of an encoder that keeps nothing."""

from __future__ import annotations

import json
import os
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from h3te_tests.cache_edits import Step, edited
from h3te_tests.comfy_host import CPU, comfy, make_tiny_clip  # noqa: F401 (fixture)
from h3te_tests.golden_cases import relative_error
from h3te_tests.tiny_weights import TAP_LAYER, tiny_config, tiny_weights
from safetensors.torch import save_file

EXACT = 1e-5  # float32, absolute
ROUNDING = 1.2  # bfloat16: times the error of a fresh encode
LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.2.mlp.down_proj", "visual.merger.linear_fc2")


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return dict(tiny_weights())


@pytest.fixture(scope="module")
def files(tmp_path_factory, weights) -> list[Path]:
    """Two checkpoints that differ in their weights alone, each one file beside its config.json."""
    made = []
    for number in range(2):
        folder = tmp_path_factory.mktemp("edits")
        (folder / "config.json").write_text(json.dumps(tiny_config()))
        other = {name: tensor * (1 + number / 16) for name, tensor in weights.items()}
        save_file(other, folder / "model.safetensors", metadata={"format": "pt"})
        made.append(folder / "model.safetensors")
    return made


@pytest.fixture(scope="module")
def lora(weights) -> dict[str, torch.Tensor]:
    chance, found = torch.Generator().manual_seed(5), {}
    for layer in LAYERS:
        released = layer.replace("model.layers", "model.language_model.layers").replace("visual.", "model.visual.")
        rows, columns = weights[f"{released}.weight"].shape
        for part, size in (("up", (rows, 4)), ("down", (4, columns))):
            key = f"text_encoders.qwen3vl_32b.transformer.{layer}.lora_{part}.weight"
            found[key] = torch.randn(size, generator=chance) * (16 * columns) ** -0.25
    return found


class Fresh:
    """Encoders that keep nothing, each over weights of its own that nobody replaces."""

    def __init__(self, files: list[Path], patched, tokenizer: Path):
        self._files, self._patched, self._tokenizer = files, patched, tokenizer
        self._clips, self._done = {}, {}

    def __call__(self, step: Step, dtype: str, prompt: str, content: str) -> torch.Tensor:
        key = step.file, step.strength, dtype
        if key not in self._clips:
            clip = make_tiny_clip(self._files[step.file], self._tokenizer, dtype=getattr(torch, dtype))
            self._clips[key] = self._patched(clip, step.strength)
        if (key, content) not in self._done:
            clip = self._clips[key]
            self._done[key, content] = clip.encode_from_tokens(clip.tokenize(prompt, **step.asked()))
        return self._done[key, content]


class Bench:
    """The loader, the caches and what was kept, in one place for a sequence of steps."""

    def __init__(self, comfy, path: Path, files: list[Path], lora, caches):  # noqa: F811
        self.comfy, self.path, self.files, self.lora, self.caches = comfy, path, files, lora, caches
        self._clip = self._opened = self._lies = None

    def patched(self, clip, strength: float):
        return self.comfy.sd.load_lora_for_models(None, clip, self.lora, 0.0, strength)[1]

    def clip(self, step: Step):
        """As the nodes hold it: opened again where the step says so, or where the graph would have to."""
        settings = self.caches.CacheSettings(step.prefix_gb, step.kept, step.disk_gb, step.exact)
        how = step.file, step.dtype, settings
        if step.anew or how != self._opened:
            from h3te.nodes.host.opening import load_clip

            if step.file != self._lies:
                self.path.unlink(missing_ok=True)
                os.link(self.files[step.file], self.path)
                self._lies = step.file
            self._clip = load_clip(self.path, CPU, CPU, getattr(torch, step.dtype), caches=settings)
            self._opened = how
        untouched = step.anew and not step.strength
        return self._clip if untouched else self.patched(self._clip, step.strength)

    def encode(self, clip, step: Step) -> list[tuple]:
        """(tokens' batch, CONDITIONING's tensor, tags) of each prompt, as the encode nodes ask for them."""
        if len(step.prompts) > 1:
            tokens = clip.tokenize_each(step.prompts, **step.asked())
            done = clip.encode_each(tokens)
        else:
            tokens = [clip.tokenize(step.prompts[0], **step.asked())]
            done = [clip.encode_from_tokens_scheduled(tokens[0])]
        rows = zip(tokens, done, strict=True)
        return [(*t.values(), entry[0], entry[1]["minimax_token_tags"]) for t, (entry,) in rows]


@pytest.fixture
def bench(comfy, tmp_path, monkeypatch, files, lora):  # noqa: F811
    from h3te.encoder import load_encoder
    from h3te.nodes.host import caches, opening

    monkeypatch.setattr(comfy.folder_paths, "get_user_directory", lambda: str(tmp_path / "users"))
    monkeypatch.setattr(opening, "load_encoder", partial(load_encoder, tap_layer=TAP_LAYER))
    folder = tmp_path / "text_encoders"
    folder.mkdir()
    (folder / "config.json").write_bytes((files[0].parent / "config.json").read_bytes())
    return Bench(comfy, folder / "h3.safetensors", files, lora, caches)


def content_of(batch, step: Step) -> str:
    """What was asked, from the very pixels and tokens: no part of the caches' own keys."""
    digest = sha256(repr(batch.sequence.ids.tolist()).encode())
    for name in ("image", "video"):
        patches = getattr(batch.presentation, name)
        if patches is not None:
            digest.update(f"{name} {patches.grid_thw.tolist()}".encode())
            digest.update(patches.pixel_values.numpy().tobytes())
    return digest.hexdigest()


class Judge:
    """Every result against a fresh one; every hit against what was kept for the very same request."""

    def __init__(self, fresh: Fresh):
        self.fresh, self.kept = fresh, {}
        self.counts = {"hit": 0, "miss": 0, "prefix": 0, "seen": 0, "tokens": 0, "reused": 0}
        self.squares = torch.zeros(2, dtype=torch.float64)

    def __call__(self, step: Step, prompt: str, batch, hidden: torch.Tensor) -> None:
        content = content_of(batch, step)
        key = content, step.file, step.strength, step.dtype, step.reuses
        wanted = self.fresh(step, "float32", prompt, content)
        assert hidden.shape == wanted.shape and hidden.dtype == torch.float32
        status = batch.status
        if status.hit is not None:
            assert step.kept != "off" and (status.hit == "ram" or step.kept == "ram and disk")
            assert any(torch.equal(hidden, one) for one in self.kept.get(key, ()))
        elif step.kept != "off":
            self.kept.setdefault(key, []).append(hidden.clone())
        self._near(step, prompt, content, hidden, wanted)
        self._count(status)

    def _near(self, step: Step, prompt: str, content: str, hidden: torch.Tensor, wanted: torch.Tensor) -> None:
        own = self.fresh(step, step.dtype, prompt, content)
        if not step.reuses:
            assert torch.equal(hidden, own)  # computed whole, in the released order
        if step.dtype == "float32":
            assert float((hidden - wanted).abs().max()) <= EXACT
            return
        errors = torch.tensor([relative_error(x, wanted) for x in (hidden, own)], dtype=torch.float64)
        assert errors[0] <= ROUNDING * errors[1] + 1e-4
        self.squares += errors**2

    def _count(self, status) -> None:
        self.counts["hit"] += status.hit is not None
        if status.hit is None:
            self.counts["tokens"] += status.tokens
            self.counts["reused"] += status.reused
            self.counts["prefix"] += status.reused > 0
            self.counts["seen"] += status.seen_before > 0
            self.counts["miss"] += status.text() == "miss"


def test_200_edits_in_comfyui_give_what_fresh_encoders_give(bench, files, tokenizer_folder):
    """What is handed out is overwritten after each step, as a node may do: nobody else may see it."""
    judge = Judge(Fresh(files, bench.patched, tokenizer_folder))
    steps = 0
    for seed in range(5):
        bench.caches.clear("all")
        judge.kept.clear()
        for step in edited(seed, 40):
            if step.cleared is not None:
                bench.caches.clear(step.cleared)
            done = bench.encode(bench.clip(step), step)
            for prompt, (batch, hidden, tags) in zip(step.prompts, done, strict=True):
                assert torch.equal(tags, batch.sequence.tags)
                judge(step, prompt, batch, hidden)
            for _, hidden, tags in done:
                hidden.fill_(float("nan")), tags.fill_(9)
            steps += 1
    counts = judge.counts
    assert steps == 200
    assert judge.squares[0].sqrt() <= ROUNDING * judge.squares[1].sqrt()
    assert counts["hit"] >= 40 and counts["prefix"] >= 40 and counts["seen"] >= 5 and counts["miss"] >= 20
    assert counts["reused"] > 0.3 * counts["tokens"]
