"""How weights are read: what auto decides from system, sizes and free RAM, when it decides, and what the nodes say."""

from __future__ import annotations

import pytest
import torch
from h3te_tests.comfy_host import comfy, make_tiny_clip, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.demo_host import demo_folder, place, text_encoders  # noqa: F401 (fixtures)
from hypothesis import given
from hypothesis import strategies as st

GB = 10**9
AWQ, INT8, BF16 = 15_686_911_143, 27_141_161_040, 51_506_191_840


@pytest.fixture
def readers(comfy):  # noqa: F811
    from h3te.nodes.host import readers

    return readers


@pytest.mark.parametrize(
    ("system", "needed", "free", "mode"),
    [
        ("Linux", AWQ, 11.2 * GB, "stream"),  # a machine with 16 GB
        ("Linux", AWQ, 19 * GB, "stream"),  # fits, but nothing would be left for the rest
        ("Linux", AWQ, 20 * GB, "mmap"),
        ("Linux", AWQ, 500 * GB, "mmap"),
        ("Darwin", AWQ, 25 * GB, "mmap"),
        ("Darwin", BF16, 25 * GB, "stream"),
        ("Linux", BF16, 55 * GB, "stream"),
        ("Linux", BF16, 56 * GB, "mmap"),
        ("Windows", AWQ, 11.2 * GB, "stream"),
        ("Windows", AWQ, 25 * GB, "mmap"),  # fits, but not comfortably
        ("Windows", AWQ, 32 * GB, "read"),
        ("Windows", INT8, 50 * GB, "mmap"),
        ("Windows", INT8, 60 * GB, "read"),
        ("Windows", BF16, 60 * GB, "mmap"),
        ("Windows", BF16, 110 * GB, "read"),
        ("Windows", 0, 0, "stream"),
        ("FreeBSD", AWQ, 64 * GB, "mmap"),
    ],
)
def test_auto_decides_by_system_and_free_ram(readers, system, needed, free, mode):
    assert readers.choose("auto", system, needed, int(free)).mode == mode


@given(st.sampled_from(["Windows", "Linux", "Darwin"]), st.integers(0, 10**12), st.integers(0, 10**12))
def test_auto_never_reads_into_memory_what_does_not_fit(system, needed, free):
    from h3te.nodes.host import readers

    mode = readers.choose("auto", system, needed, free).mode
    assert (mode == "stream") == (free < needed + readers.RESERVE)
    assert mode != "read" or (system == "Windows" and needed * 2 <= free)


@pytest.mark.parametrize("mode", ["mmap", "read", "stream"])
def test_a_chosen_reader_is_taken_whatever_the_memory(readers, mode):
    for system, free in (("Windows", 1 * GB), ("Linux", 500 * GB)):
        reading = readers.choose(mode, system, AWQ, free)
        assert reading.mode == mode
        assert "as chosen" in reading.reason


def test_reason_holds_the_numbers(readers):
    reason = readers.choose("auto", "Linux", AWQ, int(11.2 * GB)).reason
    assert reason == (
        "weights stay in the file and are read layer by layer: 15.7 GB needed and 4 GB to spare, 11.2 GB of RAM free"
    )
    reason = readers.choose("auto", "Linux", AWQ, 64 * GB).reason
    assert reason == "weights are mapped from the file: 15.7 GB needed, 64.0 GB of RAM free"
    assert "choose auto" in readers.choose("read", "Linux", BF16, 16 * GB).reason
    assert "choose auto" not in readers.choose("read", "Linux", BF16, 64 * GB).reason


@pytest.mark.parametrize(("free", "mode"), [(1, "stream"), (10**12, "mmap")])
def test_auto_decides_when_weights_are_first_needed_and_once(
    readers, tiny_checkpoint, tokenizer_folder, monkeypatch, free, mode
):
    monkeypatch.setattr(readers.platform, "system", lambda: "Linux")
    monkeypatch.setattr(readers, "free_memory", lambda: 7)  # while the loader ran
    clip = make_tiny_clip(tiny_checkpoint, tokenizer_folder, reader="auto")
    assert clip.patcher.model.reading is None
    monkeypatch.setattr(readers, "free_memory", lambda: free)
    cond = clip.encode("a fox")
    assert clip.encoder.source.mode == clip.patcher.model.reading.mode == mode
    monkeypatch.setattr(readers, "free_memory", lambda: 10**12 - free)
    assert torch.equal(clip.encode("a fox"), cond)
    assert clip.clone().patcher.model.reading.mode == mode


def test_all_readers_encode_to_the_same_bits(readers, tiny_checkpoint, tokenizer_folder):
    made = {
        mode: make_tiny_clip(tiny_checkpoint, tokenizer_folder, reader=mode).encode("a fox <d>hi</d>")
        for mode in ("mmap", "read", "stream")
    }
    assert torch.equal(made["mmap"], made["read"])
    assert torch.equal(made["mmap"], made["stream"])


def test_encoder_that_was_given_its_weights_keeps_them(readers, tiny_clip):  # noqa: F811
    tiny_clip.encode("a fox")
    assert tiny_clip.encoder.source.mode == "mmap"
    assert tiny_clip.patcher.model.reading is None


def test_reading_into_memory_shows_progress_and_hears_stop(
    readers,
    comfy,  # noqa: F811
    tiny_checkpoint,
    tokenizer_folder,
    monkeypatch,
):
    from h3te.encoder.checkpoint import files
    from h3te.nodes.host import local_computing as module

    class Stopped(module.HostProgress):
        def __call__(self, done, total, what):
            seen.append((self.show, done, total))
            if len(seen) == 5:
                comfy.model_management.interrupt_current_processing(True)
            super().__call__(done, total, what)

    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 20)
    expected = make_tiny_clip(tiny_checkpoint, tokenizer_folder).encode("a fox")
    clip, seen = make_tiny_clip(tiny_checkpoint, tokenizer_folder, reader="read"), []
    monkeypatch.setattr(module, "HostProgress", Stopped)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        clip.encode("a fox")
    assert [done for _, done, _ in seen] == [n << 20 for n in range(1, 6)]
    assert {(show, total) for show, _, total in seen} == {(True, clip.encoder.weight_bytes)}
    assert not clip.encoder.is_loaded
    assert torch.equal(clip.encode("a fox"), expected)  # goes on where it stopped


def test_free_memory_is_what_comfyui_counts(readers, comfy):  # noqa: F811
    assert 0 < readers.free_memory() <= comfy.model_management.get_total_memory(torch.device("cpu"))


def test_loader_and_encode_say_who_decides_and_what_was_done(
    readers,
    text_encoders,  # noqa: F811
    demo_folder,  # noqa: F811
    monkeypatch,
):
    from h3te.nodes.encode_keyframes import EncodeKeyframes
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    monkeypatch.setattr(readers.platform, "system", lambda: "Linux")
    monkeypatch.setattr(readers, "free_memory", lambda: 2 * GB)
    place(demo_folder, text_encoders / "h3" / "text_encoder")
    loaded = LoadTextEncoder.execute("h3/text_encoder/")
    said = loaded.ui["text"][0]
    assert "reader auto decides at the first prompt; as of now: weights stay in the file" in said
    assert "2.0 GB of RAM free" in said
    monkeypatch.setattr(readers, "free_memory", lambda: 64 * GB)
    encoded = EncodeKeyframes.execute(clip=loaded.args[0], prompt="a fox", width=64, height=64, length=5)
    assert "weights are mapped from the file" in encoded.ui["text"][0]
    assert "64.0 GB of RAM free" in encoded.ui["text"][0]
    chosen = LoadTextEncoder.execute("h3/text_encoder/", options=EncoderOptionsNode.execute(reader="read").args[0])
    assert "weights are read into memory, as chosen" in chosen.ui["text"][0]
    assert chosen.args[0].encode("another fox").isfinite().all()
    assert chosen.args[0].encoder.source.mode == "read"


@pytest.mark.parametrize("name", ["reader", "unpack", "dtype"])
def test_unknown_option_is_refused_with_the_choices(comfy, name):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptions

    with pytest.raises(ValueError, match=rf"expected {name} to be one of auto, .*, got 'fast'\. Choose auto"):
        EncoderOptions(**{name: "fast"})


def test_options_prompts_saved_before_the_reader_still_run(text_encoders):  # noqa: F811
    from h3te.nodes.encoder_options import EncoderOptions, EncoderOptionsNode

    assert EncoderOptionsNode.execute("float32").args[0] == EncoderOptions("float32")
    appended = [socket for socket in EncoderOptionsNode.GET_SCHEMA().inputs if socket.id != "dtype"]
    before = ["reader", "vision_file", "unpack", "backend", "unload_after_encode"]
    caches = ["prefix_cache_gb", "conditioning_cache", "disk_cache_gb", "exact", "cache_only"]
    assert [socket.id for socket in appended] == [*before, *caches, "remote"]
    assert all(socket.optional and socket.tooltip for socket in appended)
