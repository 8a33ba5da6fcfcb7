"""The picture of a presentation: it shows every part in proportion, and no text leaves its place."""

from __future__ import annotations

import random

import pytest
import torch
from h3te.encoder import AudioReference, ImageReference, VideoReference
from h3te.encoder import presentation_picture as module
from h3te.encoder import presentation_picture_text as text_module
from h3te.encoder.presentation import present
from h3te.encoder.presentation_layout import lay_out
from h3te.encoder.presentation_picture import Sheet, draw, seen_pictures
from h3te.encoder.presentation_picture_flow import MOST_BLOCKS
from h3te.encoder.presentation_picture_page import MARGIN, PAPER, WIDTH, Page, colour_of, ink_of
from h3te.encoder.presentation_picture_table import ROWS
from h3te.encoder.presentation_picture_text import Face, legible
from h3te.encoder.tokens import H3Tokenizer, tokenize
from PIL import Image

RED, GREEN = (255, 0, 0), (0, 255, 0)


def blank(*shape: int) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8).expand(*shape, 3)


@pytest.fixture
def sheet_of(tokenizer_folder):
    tokenizer = H3Tokenizer.from_folder(tokenizer_folder)

    def make(prompt="a fox", references=(), **more) -> Sheet:
        presentation = lay_out(prompt, references)
        return Sheet("Presentation", presentation, tokenize(presentation, tokenizer), **more)

    return make


@pytest.fixture
def said(monkeypatch):
    """Every text that is put on a page, with where it begins and ends."""
    found, original = [], Page.text

    def text(self, x, y, text, face, colour=None):
        found.append((text, x, x + face.length(text), y))
        original(self, x, y, text, face, *([] if colour is None else [colour]))

    monkeypatch.setattr(Page, "text", text)
    return found


def words(said) -> str:
    return "\n".join(text for text, *_ in said)


def pixels_of(picture: Image.Image, colour) -> torch.Tensor:
    """[n, 2] of (y, x)."""
    from numpy import asarray

    array = torch.from_numpy(asarray(picture).copy())
    return torch.nonzero((array == torch.tensor(colour, dtype=torch.uint8)).all(-1))


# what it shows


def test_each_part_has_its_label_its_tokens_and_its_block(sheet_of, said):
    references = [
        ImageReference(blank(512, 768)),
        VideoReference(blank(60, 320, 320), has_audio=True),
        AudioReference(),
    ]
    sheet = sheet_of("<Picture 1> and <Picture 4>", references, notes={"Picture 1": "from ref_image_0"})
    draw(sheet)
    text = words(said)
    for label in ("<Picture 1>: ", "<Audio 1>: ", "<Video 1>: ", "<Audio 2>: "):
        assert label.strip() in text
    for part, count in sheet.sequence.counts.items():
        assert f"{part}\n{count:,}\n" in text
    assert "from ref_image_0" in text
    assert "768 x 512: 384 + 2 tokens" in text
    assert "<0.2 seconds>" in text and "<2.0 seconds>" in text
    assert "3 blocks of 320 x 320: 100 + 2 tokens each" in text
    assert f"{len(sheet.sequence):,}, " in text and "of 262,144" in text


def test_thumbnails_have_the_proportions_of_the_blocks(sheet_of):
    references = [ImageReference(blank(512, 1024)), ImageReference(blank(512, 512))]
    thumbs = [Image.new("RGB", (64, 64), RED), Image.new("RGB", (640, 64), GREEN)]
    picture = draw(sheet_of("", references, thumbs=thumbs))
    sizes = []
    for colour in (RED, GREEN):
        found = pixels_of(picture, colour)
        sizes.append(tuple((found.max(0).values - found.min(0).values + 1).tolist()))
    (tall, wide), (small_tall, small_wide) = sizes
    assert wide == pytest.approx(2 * tall, abs=2)
    assert (small_tall, small_wide) == pytest.approx((tall, tall), abs=2)


def test_bar_is_proportional_to_the_tokens(sheet_of):
    sheet = sheet_of("a " * 800, [ImageReference(blank(1024, 1024))])
    picture = draw(sheet)
    rows = pixels_of(picture, colour_of("Picture 1"))
    _, y = max((int((rows[:, 0] == y).sum()), int(y)) for y in rows[:, 0].unique())
    length = int((rows[:, 0] == y).sum())
    share = sheet.sequence.counts["Picture 1"] / len(sheet.sequence)
    assert length == pytest.approx((WIDTH - 2 * MARGIN) * share, abs=4)


def test_time_is_shared_by_patches_and_tokens_and_marked_as_a_share(sheet_of, said):
    sheet = sheet_of("a fox", [ImageReference(blank(512, 512)), ImageReference(blank(512, 1024))],
                     stages={"load": 3.0, "vision": 3.0, "decoder": 2.0})  # fmt: skip
    draw(sheet)
    text = words(said)
    tokens = sheet.sequence.counts
    first = 3.0 * 1 / 3 + 2.0 * tokens["Picture 1"] / len(sheet.sequence)
    assert "time, a share" in text
    assert f"~ {first:.2f} s" in text
    assert f"~ {2.0 * tokens['prompt'] / len(sheet.sequence):.2f} s" in text
    assert "load 3.00 s" in text and "vision 3.00 s" in text and "decoder 2.00 s" in text


def test_without_measured_stages_nothing_is_said_of_time(sheet_of, said):
    draw(sheet_of("a fox", [ImageReference(blank(512, 512))]))
    assert "time" not in words(said)


def test_mentions_are_in_the_colour_of_what_they_name(sheet_of):
    known = draw(sheet_of("<Picture 1>", [ImageReference(blank(64, 64))]))
    unknown = draw(sheet_of("<Picture 2>", [ImageReference(blank(64, 64))]))
    assert len(pixels_of(known, module.RED)) == 0 < len(pixels_of(unknown, module.RED))
    assert len(pixels_of(known, ink_of("Picture 1"))) > len(pixels_of(unknown, ink_of("Picture 1")))


def test_warnings_are_shown_and_many_are_counted(sheet_of, said):
    draw(sheet_of(warnings=[f"warning {i}" for i in range(30)]))
    text = words(said)
    assert "warning 9" in text and "warning 10" not in text
    assert "and 20 more" in text


def test_nothing_at_all_is_drawn(sheet_of, said):
    assert draw(sheet_of("")).size[0] == WIDTH
    assert "empty" in words(said)


# what is cut, and says so


def test_long_prompt_is_cut_and_says_by_how_much(sheet_of, said):
    prompt = "".join(f"word{i:05} " for i in range(2000))
    picture = draw(sheet_of(prompt))
    shown = [text for text, *_ in said if "word0" in text]
    last = int(shown[-1].split()[-1].removeprefix("word"))
    rest = len(prompt) - 10 * (last + 1)
    (cut,) = [text for text, *_ in said if "more characters" in text]
    assert int(cut.split()[1].replace(",", "")) == pytest.approx(rest, rel=0.05)
    assert picture.height < 1000


def test_many_parts_and_many_blocks_are_counted_and_not_all_drawn(sheet_of, said):
    pictures = [ImageReference(blank(64, 64)) for _ in range(60)]
    frames = VideoReference(blank(400, 64, 64), timestamps=tuple(i / 2 for i in range(400)))
    picture = draw(sheet_of("", [*pictures, frames]))
    text = words(said)
    assert f"and {62 - ROWS + 1} more parts, " in text
    assert f"200 blocks of 64 x 64: 4 + 2 tokens each; the first {MOST_BLOCKS} are shown" in text
    assert picture.height < 6000


# text stays in its place


@pytest.mark.parametrize("seed", range(6))
def test_no_text_leaves_the_page(sheet_of, said, seed):
    choose = random.Random(seed)
    letters = "abcdefghij     <>|/\n\t,.éüßŽжאя漢字かな한🙂"

    def babble(n):
        return "".join(choose.choice(letters) for _ in range(n))

    references = [ImageReference(blank(choose.randint(8, 900), choose.randint(8, 900))) for _ in range(seed * 3)]
    sheet = sheet_of(
        babble(4000) + "x" * 900, references, subtitle=babble(400), remark=babble(400),
        tiles=[(babble(80), babble(300)) for _ in range(4)], warnings=[babble(700) for _ in range(12)],
        notes={f"Picture {i + 1}": babble(300) for i in range(30)}, stages={"load": 1.0, "vision": 2.0},
    )  # fmt: skip
    picture = draw(sheet)
    outside = [(text, left, right) for text, left, right, _ in said if left < MARGIN - 1 or right > WIDTH - MARGIN + 1]
    assert outside == []
    assert all(0 <= y < picture.height - 8 for *_, y in said)
    columns = torch.tensor([[list(picture.getpixel((x, y))) for x in (0, 8, WIDTH - 1)] for y in range(picture.height)])
    assert (columns == torch.tensor(PAPER)).all()


@pytest.mark.parametrize("text", ["a fox " * 40, "x" * 300, "漢字かな" * 50, "a\n\nb", "", " lead and  inner  blanks "])
def test_wrapped_lines_fit_and_lose_no_word(text):
    lines = Face(17).wrap(text, 200)
    assert all(Face(17).length(line) <= 200 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_wrapping_keeps_names_of_references_together():
    lines = Face(17).wrap("look at <Picture 1> and <Picture 12> and <d>this</d> " * 9, 160)
    assert "".join(lines).count("<Picture 1>") == "".join(lines).count("<Picture 12>") == 9
    assert sum(line.count("<Picture 12>") for line in lines) == 9
    assert sum(line.count("</d>") for line in lines) == 9


def test_text_on_one_line_is_cut_with_dots():
    face = Face(17)
    assert face.cut("short", 200) == "short"
    cut = face.cut("a rather long text that does not fit", 120)
    assert cut.endswith("...") and face.length(cut) <= 120


# scripts


def test_characters_without_a_font_are_counted_and_not_drawn_as_boxes(monkeypatch, sheet_of, said):
    monkeypatch.setattr(text_module, "NAMES", ())
    text_module._font_of.cache_clear()
    try:
        assert legible("a 漢字 b\u200bc") == ("a [2 characters] bc", 2)
        draw(sheet_of("一只狐狸 runs"))
    finally:
        text_module._font_of.cache_clear()
    assert "[4 characters] runs" in words(said)
    assert "No font here has 4 of these characters" in words(said)


def test_a_font_of_the_system_is_taken_where_pillows_own_has_no_character(monkeypatch):
    """Whichever font stands in: what decides is whether it draws the character."""
    own = text_module._sized

    def sized(name, size):
        return Other() if name == "Other.ttf" else own(name, size)

    class Other(text_module.ImageFont.FreeTypeFont):
        def __init__(self):
            pass

        def getmask(self, text, *_, **__):
            from PIL import Image as I

            return I.new("L", (4, 4), 255 if text == "漢" else 9).im

    monkeypatch.setattr(text_module, "NAMES", ("Other.ttf",))
    monkeypatch.setattr(text_module, "_sized", sized)
    for cached in (text_module._font_of, text_module._covers):
        cached.cache_clear()
    try:
        assert text_module._font_of("漢") == "Other.ttf"
        assert text_module._font_of("字") is None  # drawn as what stands for a character that it lacks
        assert text_module._font_of("a") == ""
    finally:
        for cached in (text_module._font_of, text_module._covers):
            cached.cache_clear()


# from patches


def test_seen_pictures_are_what_the_tower_sees():
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (256, 320, 3), generator=generator, dtype=torch.uint8)
    frames = torch.randint(0, 256, (26, 96, 64, 3), generator=generator, dtype=torch.uint8)
    first, *pairs, last = seen_pictures(present("", [VideoReference(frames), ImageReference(image)]))
    assert last.tobytes() == image.numpy().tobytes()
    assert first.tobytes() == frames[0].numpy().tobytes()
    assert pairs[0].tobytes() == frames[24].numpy().tobytes()
