"""Names that people did not choose: markup and line breaks on a node, what a terminal obeys, what is no name at all."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)
from h3te_tests.conditioning_files import conditioning, folders  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, place, text_encoders  # noqa: F401 (fixtures)
from h3te_tests.page import page  # noqa: F401 (fixture)

MARKUP = "<img src=x onerror=alert(1)>"
NAMES = [
    f"{MARKUP}.safetensors",
    "a\nb<script>.safetensors",
    "\x1b[31mred\x07.safetensors",
    "a\u202egpj.safetensors",
]
OUR_OWN = re.compile("</?span>|<br>")  # what node_text.py itself puts around text
SIZE = {"width": 256, "height": 192, "length": 22}

windows_refuses = pytest.mark.skipif(sys.platform == "win32", reason="no such names")


@pytest.fixture(params=NAMES, ids=["markup", "line break", "escape", "direction"])
def name(request):
    return request.param


def assert_plain(told) -> None:
    """What was sent to the page is text, and what a terminal would obey stands there as escapes."""
    assert told.sent
    for _, text in told.sent:
        assert "<" not in OUR_OWN.sub("", text)
    assert all(line.isprintable() for text in told.texts for line in text.split("\n"))


@windows_refuses
def test_name_of_a_checkpoint_is_text_on_the_node(name, text_encoders, demo_file, page, monkeypatch):  # noqa: F811
    from h3te.nodes.load_text_encoder import LoadTextEncoder
    from h3te_tests.page import NODE

    place(demo_file, text_encoders / name)
    monkeypatch.setattr(LoadTextEncoder, "hidden", type("Hidden", (), {"unique_id": NODE}))
    output = LoadTextEncoder.execute(text_encoder=name)
    assert_plain(page)
    assert all(line.isprintable() for line in output.ui["text"][0].split("\n"))
    assert (
        sum(
            "red" in line or "img" in line or "script" in line or "gpj" in line
            for line in output.ui["text"][0].split("\n")
        )
        >= 1
    )


@windows_refuses
def test_name_of_a_conditioning_file_is_text_on_the_node(name, folders, page, monkeypatch):  # noqa: F811
    from h3te.nodes.host.conditioning_file import write
    from h3te.nodes.host.saving import save_target
    from h3te.nodes.load_conditioning import LoadConditioning
    from h3te_tests.page import NODE

    made = conditioning()
    made[0][1]["h3te"] |= {"prompt": f"{MARKUP}\x1b[2J\n", "encoder": f"{MARKUP}\x1b[2J", "pack": "\u202e1"}
    write(save_target("good"), made).path.rename(folders.input / name)
    monkeypatch.setattr(LoadConditioning, "hidden", type("Hidden", (), {"unique_id": NODE}))
    LoadConditioning.execute(file=name)
    assert_plain(page)


@windows_refuses
def test_refusals_name_files_in_printable_text(name, folders, text_encoders):  # noqa: F811
    from h3te.nodes.host import conditioning_file, conditioning_list, paths
    from h3te.nodes.load_conditioning import LoadConditioning
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    for folder in (folders.input, text_encoders):
        (folder / name).write_bytes(b"x")
    said = [LoadConditioning.validate_inputs(file=name), LoadTextEncoder.validate_inputs(text_encoder=name)]
    for call in (
        lambda: conditioning_file.read(folders.input / name),
        lambda: conditioning_list.resolve(f"gone {name}"),
        lambda: paths.resolve(f"gone {name}"),
        lambda: paths.resolve_vision(f"gone {name}"),
        lambda: LoadTextEncoder.execute(text_encoder=name),
    ):
        with pytest.raises(ValueError, match=r"expected [\s\S]* got") as raised:
            call()
        said.append(str(raised.value))
    assert [text for text in said if not text.isprintable()] == []


@windows_refuses
def test_two_files_of_one_name_are_listed_in_printable_text(text_encoders):  # noqa: F811
    from h3te.nodes.host import paths

    for folder in ("a\x1b[2J", "b\n"):
        (text_encoders / folder).mkdir()
        (text_encoders / folder / "e.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="got 2 files of that name elsewhere") as raised:
        paths.resolve("c\x1b[31m/e.safetensors")
    assert str(raised.value).isprintable()


def test_prompt_of_markup_is_text_on_the_node(tiny_clip, page, monkeypatch):  # noqa: F811
    from h3te.nodes.encode_references import EncodeReferences
    from h3te_tests.page import NODE

    monkeypatch.setattr(EncodeReferences, "hidden", type("Hidden", (), {"unique_id": NODE}))
    prompt = f"{MARKUP} <Picture 7> </div><script>alert(1)</script> <d>"
    EncodeReferences.execute(clip=tiny_clip, prompt=prompt, **SIZE)
    assert page.sent
    assert all("<" not in OUR_OWN.sub("", text) for _, text in page.sent)


def test_counts_of_thousands_of_digits_are_not_shown(comfy):  # noqa: F811
    """A file may say anything of itself."""
    from h3te.nodes.host.report_conditioning import described

    digits = "9" * 4000
    about = f'{{"tokens": [{digits}], "keyframes": {digits}, "tags": true, "saved": "\\u001b[2J", "references": []}}'
    lines = described({"about": about, "presentation": "\x1b" * 10_000})
    assert lines[0] == "? tokens"
    assert all(line.isprintable() and len(line) < 500 for line in lines)


# what is no name

NO_NAMES = [
    "\ud800",
    "\ud800/",
    "\0",
    "\0/",
    "a\0b.safetensors",
    "x" * 5000,
    "x" * 5000 + "/",
    "/" * 5000,
    "C:/",
    "C:",
    "C:foo/",
    "\\foo\\",
    "\\\\server\\share\\",
    "..\\..\\",
    "../",
    "a/../../b/",
    "~/",
    "%2e%2e/",
    "con/../..",
]


@pytest.mark.parametrize("value", NO_NAMES, ids=lambda value: ascii(value)[:20])
def test_value_that_is_no_name_of_ours_is_refused_in_our_words(text_encoders, folders, value):  # noqa: F811
    from h3te.nodes.host import conditioning_list, paths

    (folders.outside / "b").mkdir()
    for who, resolve in (
        ("Load MiniMax H3 Text Encoder", paths.resolve),
        ("Load MiniMax H3", conditioning_list.resolve),
        ("MiniMax H3 Encoder Options", paths.resolve_vision),
    ):
        with pytest.raises(ValueError, match=r"expected [\s\S]* got") as raised:
            resolve(value)
        assert str(raised.value).startswith(who)


@pytest.mark.parametrize("value", ["C:foo/", "\\foo\\", "D:\\", "..\\e\\"])
def test_folder_of_another_drive_is_never_joined_to_a_root(text_encoders, monkeypatch, value):  # noqa: F811
    """On Windows a path of a drive replaces the root that it is joined to; here such a folder would be found."""
    from h3te.nodes.host import paths

    monkeypatch.setattr(paths, "is_folder", lambda path: True)
    assert paths._parent_folder("e/") == text_encoders / "e"
    assert paths._parent_folder(value) is None


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_link_out_of_the_input_folder_is_refused_by_the_node_itself(folders, comfy):  # noqa: F811
    from h3te.nodes.load_conditioning import LoadConditioning

    secret = folders.outside / "secret.safetensors"
    secret.write_bytes(b"secret")
    (folders.input / "x.safetensors").symlink_to(secret)
    (folders.input / "folder").symlink_to(folders.outside)
    for value in ("x.safetensors", "folder/secret.safetensors"):
        assert "a link leads out" in str(LoadConditioning.validate_inputs(file=value))
        with pytest.raises(ValueError, match="a link leads out"):
            LoadConditioning.execute(file=value)


def test_media_of_a_worker_are_tensors_alone():
    """No request has a path or a name of a file: there is nothing to lead out with."""
    from h3te.encoder.parallel.framing import framed
    from h3te.encoder.parallel.protocol import EncodeRequest

    told = {
        "protocol": "1",
        "checkpoint": "a" * 64,
        "dtype": "bfloat16",
        "tap_layer": "50",
        "vision_packing": "official",
        "reuse": "0",
        "numerics": "1",
        "tp_size": "0",
        "path": "/etc/passwd",
    }
    body = b"".join(framed({"input_ids": torch.arange(4)}, told))
    assert "passwd" not in repr(EncodeRequest.from_bytes(body).__dict__)
    with pytest.raises(ValueError, match="expected tensors"):
        EncodeRequest.from_bytes(b"".join(framed({"path": torch.arange(4)}, told)))
