"""What a prompt says in vain is noted with its place and never changed."""

from __future__ import annotations

import time

import pytest
import torch
from h3te.encoder import AudioReference, ImageReference, VideoReference, load_encoder
from h3te.encoder.presentation import TextSegment, present
from h3te.encoder.prompt_notes import prompt_notes
from h3te.encoder.tokens import H3Tokenizer, tokenize
from h3te_tests.tiny_weights import TAP_LAYER

PICTURE = ImageReference(torch.zeros(64, 64, 3, dtype=torch.uint8))
VIDEO = VideoReference(torch.zeros(13, 32, 32, 3, dtype=torch.uint8), has_audio=True)


def notes(prompt: str, references=()) -> list[tuple[str, str, int]]:
    return [(note.kind, note.text, note.position) for note in prompt_notes(present(prompt, references))]


WEIGHTED = [
    ("a (fox:1.3) runs", "(fox:1.3)", 2),
    ("a (red fox : 0.8) runs", "(red fox : 0.8)", 2),
    ("(fox:2)", "(fox:2)", 0),
    ("(fox:-1.5)", "(fox:-1.5)", 0),
    ("(in the (red:1.1) snow:1.2)", "(red:1.1)", 8),
    ("((fox))", "((fox))", 0),
    (r"a \(film\) still", r"\(", 2),
    ("[day:night:0.5]", "[day:night:0.5]", 0),
    ("fox <lora:fur:0.7>", "<lora:fur:0.7>", 4),
]


@pytest.mark.parametrize("prompt,text,position", WEIGHTED, ids=[row[0] for row in WEIGHTED])
def test_prompt_weights_are_noted_with_their_place(prompt, text, position):
    assert notes(prompt) == [("weights", text, position)]


PLAIN = [
    "", "a fox (a red one) runs (S1)", "[Music] <d>[English] Come.</d>", "[soft light]", "aspect (16:9)",
    "(John 3:16)", "<picture 4>", "at (10:30) or (take: 2)", "[00:12.50] la la", "a: b (c): d", "(:1.2)", "{a|b}",
    "c:\\films\\new", "<Picture 1", "1 < 2", "<D>", "(fox:one)",
]  # fmt: skip


@pytest.mark.parametrize("prompt", PLAIN)
def test_plain_text_has_no_notes(prompt):
    assert notes(prompt) == []


def test_all_prompt_weights_are_one_note():
    found = prompt_notes(present("A (fox:1.3)\nand a (bear:1.2) in \\(snow\\)"))
    assert [note.message for note in found] == [
        "(fox:1.3) (line 1, column 3) and 3 more: MiniMax H3 has no prompt weights; the text is read as it stands."
    ]


UNPAIRED = [
    ("<d>Come.", [("unpaired", "<d>", 0)], "<d> (line 1, column 1) is not closed: there is no </d> after it."),
    ("He:\nCome.</d> <d>x</d>", [("unpaired", "</d>", 9)],
     "</d> (line 2, column 6) closes nothing: there is no <d> before it."),
    ("<d>a <d>b</d>", [("unpaired", "<d>", 0)],
     "<d> (line 1, column 1) is not closed by </d> before the next <d>."),
    ("<|lyrics_start|>la", [("unpaired", "<|lyrics_start|>", 0)],
     "<|lyrics_start|> (line 1, column 1) is not closed: there is no <|lyrics_end|> after it."),
    ("x<|caption_end|>", [("unpaired", "<|caption_end|>", 1)],
     "<|caption_end|> (line 1, column 2) closes nothing: there is no <|caption_start|> before it."),
]  # fmt: skip


@pytest.mark.parametrize("prompt,found,message", UNPAIRED, ids=[row[0] for row in UNPAIRED])
def test_unpaired_markers_are_noted_with_their_place(prompt, found, message):
    assert notes(prompt) == found
    assert [note.message for note in prompt_notes(present(prompt))] == [message]


def test_paired_markers_have_no_notes():
    assert notes("<d>a</d> <d>[English] b</d><|lyrics_start|>la<|lyrics_end|> <|caption_start|>x<|caption_end|>") == []


def test_references_that_are_not_given_are_noted_with_the_count():
    prompt = "<Picture 4> <Picture 3> <Picture 0> <Video 2> <Audio 2> <Audio 1> <Picture 01>"
    found = prompt_notes(present(prompt, [PICTURE, PICTURE, VIDEO, PICTURE]))
    assert [(note.kind, note.text, note.position) for note in found] == [
        ("reference", "<Picture 4>", 0),
        ("reference", "<Picture 0>", 24),
        ("reference", "<Video 2>", 36),
        ("reference", "<Audio 2>", 46),
        ("reference", "<Picture 01>", 66),
    ]
    assert found[0].message == "<Picture 4> (line 1, column 1) names no reference: 3 given, numbered from 1."
    (alone,) = prompt_notes(present("As <Picture 1>.", [AudioReference()]))
    assert alone.message == "<Picture 1> (line 1, column 4) names no reference: no picture is given."


def test_notes_of_all_kinds_come_in_the_order_of_the_prompt():
    assert [kind for kind, _, _ in notes("<Video 1> (fox:1.2) <d>Come.")] == ["reference", "weights", "unpaired"]


def test_a_long_quotation_is_cut_in_the_message_alone():
    (note,) = prompt_notes(present(f"({'fox ' * 30}bear:1.3)"))
    assert note.text.endswith("bear:1.3)")
    assert note.message.startswith("(fox fox fox fox fox fox fox ... (line 1, column 1): MiniMax")


def test_a_hostile_prompt_takes_linear_time():
    started = time.perf_counter()
    for text in ("(", "((", "[a:", "\\(", "<lora:", "<d>", "(a:1", "[:::", "<Picture 9"):
        prompt_notes(present(text * 20_000))
    assert time.perf_counter() - started < 5  # about 0.2 s


@pytest.mark.parametrize("prompt", [row[0] for row in WEIGHTED] + [row[0] for row in UNPAIRED])
def test_a_noted_prompt_is_kept_verbatim(prompt, tokenizer_folder):
    tokenizer = H3Tokenizer.from_folder(tokenizer_folder)
    presentation = present(prompt)
    assert presentation.segments == (TextSegment(prompt, "prompt"),)
    assert tokenize(presentation, tokenizer).ids.tolist() == tokenizer.encode(prompt)


def test_encode_returns_the_notes_and_logs_them_once_per_prompt(tiny_checkpoint, tokenizer_folder, caplog):
    encoder = load_encoder(tiny_checkpoint, tap_layer=TAP_LAYER, tokenizer=tokenizer_folder)
    first, other = "Logged (once:1.2) <d>only", "Logged (twice:1.2)"
    done = encoder.encode(first)
    assert [note.kind for note in done.notes] == ["weights", "unpaired"]
    assert done.notes == encoder.encode(first).notes
    encoder.encode(other)
    encoder.encode("a fox")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert [record.getMessage()[:24] for record in caplog.records] == [
        "prompt: (once:1.2) (line", "prompt: <d> (line 1, col", "prompt: (twice:1.2) (lin",
    ]  # fmt: skip
