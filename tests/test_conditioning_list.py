"""The list of conditioning files: ours first, bounded, only of the two folders; and what a saved value means."""

from __future__ import annotations

import json
import os

import pytest
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.conditioning_files import conditioning, folders  # noqa: F401 (fixture)


@pytest.fixture
def listed(folders, monkeypatch):  # noqa: F811
    """The module, its memory empty."""
    from h3te.nodes.host import conditioning_list

    monkeypatch.setattr(conditioning_list, "_input", conditioning_list._Listing(""))
    monkeypatch.setattr(conditioning_list, "_output", conditioning_list._Listing(conditioning_list.OUTPUT))
    monkeypatch.setattr(conditioning_list, "_marks", {})
    return conditioning_list


@pytest.fixture
def save(folders):  # noqa: F811
    from h3te.nodes.host import conditioning_file
    from h3te.nodes.host.saving import save_target

    return lambda prefix: conditioning_file.write(save_target(prefix), conditioning()).path


def other(path, time: float | None = None):
    """A safetensors file of another program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    if time is not None:
        os.utime(path, (time, time))
    return path


def settled(folder) -> None:
    """Changed long ago, as far as times tell."""
    for each in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        os.utime(each, (1_000_000, 1_000_000))


def test_ours_come_first_and_the_newest_before_all(listed, save, folders):  # noqa: F811
    older, newer = save("z/h3"), save("a/h3")
    mine = folders.input / "sub" / "mine.safetensors"
    mine.parent.mkdir()
    mine.write_bytes(older.read_bytes())
    for path, when in ((older, 1000), (mine, 2000), (newer, 3000)):
        os.utime(path, (when, when))
    other(folders.input / "b.safetensors", 9000)
    other(folders.output / "a.safetensors", 8000)
    (folders.output / "picture.png").write_bytes(b"x")
    (folders.output / "x.latent").write_bytes(b"x")
    assert listed.combo_values() == [
        "a/h3_00001_.safetensors [output]", "sub/mine.safetensors", "z/h3_00001_.safetensors [output]",
        "a.safetensors [output]", "b.safetensors",
    ]  # fmt: skip


def test_every_listed_value_means_its_file(listed, save, folders, comfy):  # noqa: F811
    save("дом/h 3")
    other(folders.input / "b.SafeTensors")
    values = listed.combo_values()
    assert len(values) == 2
    for value in values:
        assert str(listed.resolve(value)) == comfy.folder_paths.get_annotated_filepath(value)
    assert listed.value_of(listed.resolve(values[0])) == values[0] == "дом/h 3_00001_.safetensors [output]"


def test_empty_folders_give_one_entry_that_says_what_to_do(listed):
    assert listed.combo_values() == [listed.NOTHING]
    with pytest.raises(ValueError, match="Save one with Save MiniMax H3 Conditioning"):
        listed.resolve(listed.NOTHING)


def test_folders_that_are_not_there_give_an_empty_list(listed, folders):  # noqa: F811
    folders.input.rmdir()
    folders.output.rmdir()
    assert listed.combo_values() == [listed.NOTHING]


def test_new_changed_and_removed_files_show(listed, save, folders):  # noqa: F811
    first = save("h3")
    assert listed.combo_values() == ["h3_00001_.safetensors [output]"]
    settled(folders.output)
    assert len(listed.combo_values()) == 1
    save("h3")
    assert len(listed.combo_values()) == 2
    first.unlink()
    assert listed.combo_values() == ["h3_00002_.safetensors [output]"]
    assert len(listed._marks) == 1


def test_unchanged_folders_are_not_walked_and_known_files_not_read_again(listed, save, folders, monkeypatch):  # noqa: F811
    save("a/h3")
    other(folders.input / "b.safetensors")
    settled(folders.output)
    settled(folders.input)
    values = listed.combo_values()
    monkeypatch.setattr(listed.os, "scandir", lambda path: pytest.fail("walked"))
    monkeypatch.setattr(listed, "_has_mark", lambda path: pytest.fail("read"))
    assert listed.combo_values() == values


def test_a_listing_reads_a_bounded_number_of_files_newest_first(listed, save, folders, monkeypatch):  # noqa: F811
    ours = save("h3")
    os.utime(ours, (5000, 5000))
    for i in range(30):
        other(folders.input / f"{i:02}.safetensors", 1000 + i)
    read, has_mark = [], listed._has_mark
    monkeypatch.setattr(listed, "MAX_PEEKS", 10)
    monkeypatch.setattr(listed, "MAX_OTHERS", 20)
    monkeypatch.setattr(listed, "_has_mark", lambda path: read.append(path) or has_mark(path))
    values = listed.combo_values()
    assert len(read) == 10
    assert values[0] == "h3_00001_.safetensors [output]"
    assert len(values) == 21
    listed.combo_values()
    assert len(read) == len(set(read)) == 20


def test_a_walk_looks_at_a_bounded_number_of_entries(listed, folders, monkeypatch, caplog):  # noqa: F811
    for i in range(30):
        other(folders.output / f"{i % 3}" / f"{i:02}.safetensors")
    monkeypatch.setattr(listed, "MAX_ENTRIES", 12)
    assert 0 < len(listed.combo_values()) <= 12
    assert "over 12 entries" in caplog.text


def test_links_out_are_not_listed_and_loops_end(listed, save, folders):  # noqa: F811
    kept = save("h3")
    other(folders.outside / "secret.safetensors")
    (folders.output / "file.safetensors").symlink_to(folders.outside / "secret.safetensors")
    (folders.output / "folder").symlink_to(folders.outside, target_is_directory=True)
    (folders.output / "loop").symlink_to(folders.output, target_is_directory=True)
    (folders.output / "dangling.safetensors").symlink_to(folders.output / "nothing")
    (folders.output / "inner.safetensors").symlink_to(kept)
    (folders.output / "folder.safetensors").mkdir()
    assert sorted(listed.combo_values()) == ["h3_00001_.safetensors [output]", "inner.safetensors [output]"]


def test_name_that_is_no_text_is_left_out(listed, folders):  # noqa: F811
    try:
        other(folders.input / os.fsdecode(b"\xff.safetensors"))
    except OSError:
        pytest.skip("this file system takes text alone")
    other(folders.input / "a.safetensors")
    assert listed.combo_values() == ["a.safetensors"]


LEADS_OUT = [
    "../outside/x.safetensors", "..\\outside\\x.safetensors", "a/../../outside/x.safetensors", "/etc/passwd",
    "\\etc\\x.safetensors", "C:/x.safetensors", "c:x.safetensors", "../outside/x.safetensors [output]",
    "x.safetensors [temp]", "x.safetensors[temp]", "x\0.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("value", LEADS_OUT)
def test_value_that_leads_out_is_refused(listed, folders, value):  # noqa: F811
    other(folders.outside / "x.safetensors")
    other(folders.input / "x.safetensors")
    with pytest.raises(ValueError, match=r"^Load MiniMax H3 Conditioning .*a path that leads elsewhere"):
        listed.resolve(value)


def test_links_out_are_refused(listed, folders):  # noqa: F811
    other(folders.outside / "x.safetensors")
    (folders.input / "x.safetensors").symlink_to(folders.outside / "x.safetensors")
    (folders.output / "f").symlink_to(folders.outside, target_is_directory=True)
    for value in ("x.safetensors", "f/x.safetensors [output]"):
        with pytest.raises(ValueError, match="got one that a link leads out of"):
            listed.resolve(value)


def test_missing_file_says_where_was_looked_and_where_one_is(listed, save, folders):  # noqa: F811
    save("h3")
    with pytest.raises(ValueError, match="got no such file in") as caught:
        listed.resolve("h3_00001_.safetensors")
    assert str(folders.input) in str(caught.value)
    assert "'h3_00001_.safetensors [output]' is there." in str(caught.value)
    with pytest.raises(ValueError, match=r"got no such file in .*out put\. Choose"):
        listed.resolve("nothing.safetensors [output]")
    with pytest.raises(ValueError, match="got no such file"):
        listed.resolve("x" * 5000)


@pytest.mark.parametrize("value", ["", "  ", None, 3, ["a"]])
def test_value_that_is_no_name_is_refused(listed, value):
    with pytest.raises(ValueError, match="expected"):
        listed.resolve(value)


def test_input_annotation_and_backslashes_are_understood(listed, folders):  # noqa: F811
    path = other(folders.input / "a" / "b.safetensors")
    assert listed.resolve("a/b.safetensors [input]") == listed.resolve("a\\b.safetensors") == path
