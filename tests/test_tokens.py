"""Ids, tags and spans: against transformers' tokenizer class, the goldens, and everything that is refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from h3te.encoder.pixels import Patches
from h3te.encoder.presentation import (
    AudioReference,
    ImageReference,
    PixelInputs,
    Presentation,
    TextSegment,
    VideoReference,
    VisionSegment,
    present,
)
from h3te.encoder.tokens import (
    ADDED_TOKENS,
    ENDOFTEXT,
    H3_TOKENS,
    IMAGE_PAD,
    MAX_TOKENS,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
    H3Tokenizer,
    describe_tokens,
    find_tokenizer,
    find_tokenizer_folder,
    tokenize,
)
from h3te_tests.golden_cases import CASES, expected, references
from hypothesis import given, settings
from hypothesis import strategies as st

RESERVED = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder) -> H3Tokenizer:
    return H3Tokenizer.from_folder(tokenizer_folder)


@pytest.fixture(scope="session")
def theirs(tokenizer_folder):
    """transformers' Qwen2 tokenizer class on the same files, with tokens added as the released configuration does."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    from tokenizers import AddedToken

    vocab = json.loads((tokenizer_folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (tokenizer_folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    made = transformers.Qwen2Tokenizer(vocab=vocab, merges=merges)
    plain = {"<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>"}
    plain |= {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
    made.add_tokens([AddedToken(text, special=text not in plain, normalized=False) for text in ADDED_TOKENS])
    return made


TEXTS = [
    "",
    " ",
    "A red fox runs through fresh snow at dawn.",
    "<Picture 1>: ",
    "<Video 3>: <0.2 seconds><12.5 seconds>",
    "The man (S1) says, <d>[English] Follow the wind.</d> Then <|cutoff|> silence.",
    "<|lyrics_start|>la la<|lyrics_end|> <|caption_start|>x<|caption_end|>",
    "<d></d><d> </d>  <d>\n</d>",
    "< d> <D> </ d> <|cutoff|",
    "A (red:1.3) fox, [soft light], \\(film\\) ((grain)) {a|b} embedding:foo <lora:x:1>",
    "雪の中の狐 🦊 café naïve — الثعلب\n\nSecond paragraph.\t<think>",
    "e\u0301 A\u030a \u1112\u1161\u11ab \u212b \ufb01 \u01c5 ﷺ",
    "don't WE'LL they'Re I'M it'S 'd",
    "1234567890 3.14159 1,000,000 ½ ²³ ٣٤ Ⅷ",
    "a  b   c\t\td\r\n\r\ne \n f\n",
    "   leading and trailing   ",
    "\u00a0\u2003\u200b\u200d\ufeff\u0085\u2028",
    "👨‍👩‍👧‍👦🏳️‍🌈 👍🏽",
    "ก็ไม่รู้ हिन्दी עִבְרִית 한국어 Việt",
    "<|endoftext|><|im_start|>user\n<|im_end|><tool_call></tool_call>",
    "\x00\x01\x7f",
    "a" * 3000,
    "word " * 2000,
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_ids_equal_transformers(tokenizer, theirs, text):
    assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)


def without_markers(text: str) -> bool:
    """hypothesis also tries the strings that it finds in the source: the refused markers among them."""
    return not any(token in text for token in RESERVED)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60).filter(without_markers))
def test_ids_equal_transformers_on_any_unicode(tokenizer, theirs, text):
    assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)


PIECES = [token for token in ADDED_TOKENS if token not in RESERVED]
PIECES += ["<", "|>", "<|", "d>", " ", "\n", "e", "\u0301", "'s", "7", "fox", "狐", "\u200d", "<d", "cutoff"]


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_ids_equal_transformers_around_added_tokens(tokenizer, theirs, pieces):
    text = "".join(pieces)
    assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_added_tokens_have_the_released_ids(tokenizer):
    assert [tokenizer.encode(token) for token in H3_TOKENS] == [[151669 + i] for i in range(7)]
    assert tokenizer.encode("<think></think>") == [151667, 151668]
    assert tokenizer.encode("<|endoftext|>") == [ENDOFTEXT]
    assert len(ADDED_TOKENS) == 33
    assert tokenizer.encode("<Picture 1>: ") == [21604, 3826, 220, 16, 26818, 220]


@pytest.mark.parametrize("convert", [lambda p: p, lambda p: torch.from_numpy(p).float() / 255], ids=["uint8", "float"])
@pytest.mark.parametrize("name", CASES)
def test_ids_tags_and_grids_equal_the_goldens(tokenizer, name, convert):
    presentation = present(CASES[name]["prompt"], references(CASES[name], convert))
    sequence = tokenize(presentation, tokenizer)
    assert torch.equal(sequence.ids, expected()[f"{name}.ids"])
    assert torch.equal(sequence.tags, expected()[f"{name}.tags"])
    for patches, key in ((presentation.image, "image_grid_thw"), (presentation.video, "video_grid_thw")):
        assert (patches.grid_thw.tolist() if patches else []) == CASES[name][key]


def test_nothing_becomes_one_end_of_text(tokenizer):
    sequence = tokenize(present(""), tokenizer)
    assert (sequence.ids.tolist(), sequence.tags.tolist()) == ([ENDOFTEXT], [1])
    assert sequence.ids.dtype == sequence.tags.dtype == torch.int64
    assert sequence.counts == {"prompt": 1}
    assert sequence.spans == ((0, 1, "prompt"),)


def mixed() -> Presentation:
    picture, frames = torch.zeros(64, 64, 3, dtype=torch.uint8), torch.zeros(36, 64, 96, 3, dtype=torch.uint8)
    return present("go", [ImageReference(picture), VideoReference(frames, has_audio=True), AudioReference()])


def test_spans_and_counts_cover_the_sequence(tokenizer):
    sequence = tokenize(mixed(), tokenizer)
    assert [part for _, _, part in sequence.spans] == ["Picture 1", "Audio 1", "Video 1", "Audio 2", "prompt"]
    assert sequence.spans[0][0] == 0 and sequence.spans[-1][1] == len(sequence)
    assert all(before[1] == after[0] for before, after in zip(sequence.spans, sequence.spans[1:], strict=False))
    assert sequence.counts == {part: stop - start for start, stop, part in sequence.spans}
    assert sum(sequence.counts.values()) == len(sequence)


def test_vision_spans_are_the_rows_tagged_zero(tokenizer):
    sequence = tokenize(mixed(), tokenizer)
    assert [part for _, _, part in sequence.vision_spans] == ["Picture 1", "Video 1", "Video 1"]
    tags = torch.ones(len(sequence), dtype=torch.int64)
    for start, stop, part in sequence.vision_spans:
        tags[start:stop] = 0
        pad = IMAGE_PAD if part.startswith("Picture") else VIDEO_PAD
        block = sequence.ids[start:stop].tolist()
        assert block == [VISION_START, *[pad] * (stop - start - 2), VISION_END]
    assert torch.equal(sequence.tags, tags)


def test_description_has_one_line_per_part(tokenizer):
    presentation = mixed()
    assert describe_tokens(presentation, tokenize(presentation, tokenizer)) == (
        "Picture 1: 72 tokens, seen at 256x256",
        "Audio 1: 5 tokens",
        "Video 1: 34 tokens, seen at 96x64, 2 frame pairs",
        "Audio 2: 5 tokens",
        "prompt: 1 token",
    )


def test_segments_are_tokenised_each_on_its_own(tokenizer):
    sequence = tokenize(present("fox", [AudioReference()]), tokenizer)
    assert sequence.ids.tolist() == tokenizer.encode("<Audio 1>: ") + tokenizer.encode("fox")
    assert sequence.ids.tolist() != tokenizer.encode("<Audio 1>: fox")


@pytest.mark.parametrize("token", RESERVED)
def test_vision_markers_in_a_prompt_are_refused_by_name(tokenizer, token):
    with pytest.raises(ValueError, match="expected text without vision markers") as error:
        tokenize(present(f"a {token} fox"), tokenizer)
    assert f"got {token} in it" in str(error.value)


def test_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(ValueError, match="expected valid Unicode text, got a lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")


def test_too_many_tokens_are_refused_with_the_count(tokenizer):
    pads = MAX_TOKENS - 2
    patches = Patches(torch.zeros(0, 1536), torch.tensor([[1, 2, 2 * pads]]))
    block = VisionSegment("image", pads, "Picture 1", (2, 2 * pads))
    presentation = Presentation((block,), PixelInputs(image=patches))
    assert len(tokenize(presentation, tokenizer)) == MAX_TOKENS
    longer = Presentation((block, TextSegment("fox", "prompt")), PixelInputs(image=patches))
    message = f"expected at most {MAX_TOKENS} tokens, got {MAX_TOKENS + 1} .Picture 1: {MAX_TOKENS}, prompt: 1."
    with pytest.raises(ValueError, match=message):
        tokenize(longer, tokenizer)


def test_folder_is_read_once_until_a_file_changes(tokenizer_folder, tmp_path):
    copy = copied(tokenizer_folder, tmp_path / "tokenizer")
    started = time.perf_counter()
    first = H3Tokenizer.from_folder(copy)
    assert time.perf_counter() - started < 5  # about 0.3 s
    assert H3Tokenizer.from_folder(str(copy)) is first
    os.utime(copy / "vocab.json", ns=(1, 1))
    assert H3Tokenizer.from_folder(copy) is not first


def copied(source: Path, target: Path) -> Path:
    target.mkdir(parents=True)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(source / name, target / name)
    return target


@pytest.mark.parametrize("header", ["", "#version: 0.2\n"])
def test_merges_with_and_without_a_version_line(tokenizer, tokenizer_folder, tmp_path, header):
    copy = copied(tokenizer_folder, tmp_path / "tokenizer")
    merges = (copy / "merges.txt").read_text(encoding="utf-8")
    body = merges.split("\n", 1)[1] if merges.startswith("#version") else merges
    (copy / "merges.txt").write_text(header + body, encoding="utf-8", newline="\n")
    made = H3Tokenizer.from_folder(copy)
    assert [made.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


def test_folder_without_the_files_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ValueError, match=r"H3Tokenizer: expected a folder with vocab.json and merges.txt, got "):
        H3Tokenizer.from_folder(tmp_path)


def test_broken_files_are_refused(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0')
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ValueError, match=r"H3Tokenizer: expected a readable vocab.json .*, got: .*\. Download"):
        H3Tokenizer.from_folder(tmp_path)


def test_files_of_another_tokenizer_are_refused(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ValueError, match=r"expected '<\|endoftext\|>' to give \[151643\], got \[2\] from .* not H3's"):
        H3Tokenizer.from_folder(tmp_path)


def test_objects_with_encode_are_taken(tokenizer, theirs):
    class Wrapped:
        def encode(self, text):
            return tokenizer.encode(text) if text not in RESERVED else theirs.encode(text, add_special_tokens=False)

    text = "a <d>fox</d>"
    for made in (theirs, theirs.backend_tokenizer, Wrapped(), tokenizer):
        assert H3Tokenizer.from_object(made).encode(text) == tokenizer.encode(text)
    assert H3Tokenizer.from_object(tokenizer) is tokenizer


def test_stock_tokenizer_without_h3_tokens_is_refused(tokenizer_folder):
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = models.BPE.from_file(str(tokenizer_folder / "vocab.json"), str(tokenizer_folder / "merges.txt"))
    stock = Tokenizer(model)
    stock.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    stock.add_special_tokens(list(ADDED_TOKENS[:26]))
    with pytest.raises(ValueError, match=r"H3Tokenizer: expected '<d>' to give \[151669\], got .* from Tokenizer"):
        H3Tokenizer.from_object(stock)


def test_objects_that_cannot_serve_are_refused(theirs):
    with pytest.raises(ValueError, match="H3Tokenizer: expected an object with an encode method, got int"):
        H3Tokenizer.from_object(3)
    truncating = type(theirs.backend_tokenizer).from_str(theirs.backend_tokenizer.to_str())
    truncating.enable_truncation(77)
    with pytest.raises(ValueError, match="H3Tokenizer: expected no truncation, got Tokenizer that truncates"):
        H3Tokenizer.from_object(truncating)


PLACES = [
    ("model/text_encoder", "model/text_encoder"),
    ("model/text_encoder", "model/tokenizer"),
    ("model/text_encoder", "model/processor"),
    ("model/FL2VA/text_encoder", "model/processor"),
    ("model/text_encoder", "model/text_encoder/processor"),
    ("text_encoders/h3.safetensors", "text_encoders"),
    ("text_encoders/h3.safetensors", "text_encoders/tokenizer"),
]


@pytest.mark.parametrize("checkpoint,place", PLACES)
def test_tokenizer_is_found_beside_the_checkpoint(tokenizer_folder, tmp_path, checkpoint, place):
    folder = copied(tokenizer_folder, tmp_path / place)
    path = tmp_path / checkpoint
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"") if path.suffix else path.mkdir(parents=True, exist_ok=True)
    assert find_tokenizer(path) is H3Tokenizer.from_folder(folder)
    assert find_tokenizer_folder(path) == folder


def test_no_tokenizer_beside_the_checkpoint_is_none(tmp_path):
    assert find_tokenizer(tmp_path / "model" / "text_encoder") is None
    assert find_tokenizer_folder(tmp_path / "model" / "text_encoder") is None


def test_tokenizer_of_another_model_is_passed_over(tokenizer_folder, tmp_path, caplog):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("")
    assert find_tokenizer(tmp_path) is None
    assert "Tokenizer files beside the checkpoint are not used: H3Tokenizer: expected" in caplog.text
    found = copied(tokenizer_folder, tmp_path / "tokenizer")
    assert find_tokenizer(tmp_path) is H3Tokenizer.from_folder(found)
