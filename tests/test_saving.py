"""Where a save node writes: inside the output folder, under a new name, whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

import pytest
from h3te_tests.comfy_host import comfy  # noqa: F401 (fixture)
from h3te_tests.conditioning_files import folders  # noqa: F401 (fixture)

SUFFIX = ".safetensors"


@pytest.fixture
def saving(folders):  # noqa: F811
    from h3te.nodes.host import saving

    return saving


@pytest.fixture
def save(saving):
    """(prefix, chunks) -> path."""
    return lambda prefix, *chunks: saving.placed(saving.save_target(prefix), SUFFIX, chunks or [b"x"])


def names(folder) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())


def test_files_are_counted_as_comfyui_counts(save, folders):  # noqa: F811
    for _ in range(3):
        save("conditioning/h3")
    save("conditioning/other")
    save("top")
    assert names(folders.output) == [
        "conditioning/h3_00001_.safetensors", "conditioning/h3_00002_.safetensors",
        "conditioning/h3_00003_.safetensors", "conditioning/other_00001_.safetensors", "top_00001_.safetensors",
    ]  # fmt: skip


def test_host_counts_on_from_our_names(save, comfy, folders):  # noqa: F811
    save("conditioning/h3")
    assert comfy.folder_paths.get_save_image_path("conditioning/h3", str(folders.output))[2] == 2


def test_dates_are_filled_in(save, folders):  # noqa: F811
    path = save("%year%/h3-%month%")
    now = time.localtime()
    assert path.parent.name in (str(now.tm_year), str(now.tm_year - 1))
    assert path.name[:3] == "h3-" and path.name[3:5].isdecimal()
    assert path.is_relative_to(folders.output)


@pytest.mark.parametrize(
    ("prefix", "file"),
    [
        ("a\\b\\h3", "a/b/h3_00001_.safetensors"), (" h3 ", "h3_00001_.safetensors"), ("./h3", "h3_00001_.safetensors"),
        ("a//h3", "a/h3_00001_.safetensors"), ("дом/狐 🦊", "дом/狐 🦊_00001_.safetensors"),
        ("..h3", "..h3_00001_.safetensors"),
        ("a.b/h3.safetensors", "a.b/h3.safetensors_00001_.safetensors"), ("x" * 200, "x" * 200 + "_00001_.safetensors"),
    ],
)  # fmt: skip
def test_prefix_is_read_alike_on_every_system(save, folders, prefix, file):  # noqa: F811
    save(prefix)
    assert names(folders.output) == [file]


OUTSIDE = [
    "/etc/h3", "\\h3", "//server/share/h3", "C:/h3", "c:h3", "C:\\h3", "../h3", "a/../../h3", "a\\..\\..\\h3", "a/..",
    "..", "a/../h3",
]  # fmt: skip


@pytest.mark.parametrize("prefix", OUTSIDE)
def test_prefix_out_of_the_output_folder_is_refused(saving, folders, prefix):  # noqa: F811
    with pytest.raises(ValueError, match=r"inside ComfyUI's output folder, got .* Use a name such as"):
        saving.save_target(prefix)
    assert [*folders.output.iterdir(), *folders.outside.iterdir()] == []


@pytest.mark.parametrize("prefix", ["", "  ", ".", "a/", "./", "a\x00b", "a\nb", "h3:stream", "a*b", "a|b", "\ud800"])
def test_prefix_that_is_no_name_is_refused(saving, folders, prefix):  # noqa: F811
    with pytest.raises(ValueError, match="expected filename_prefix to be a name"):
        saving.save_target(prefix)
    assert list(folders.output.iterdir()) == []


@pytest.mark.parametrize("prefix", [None, 3, ["a"]])
def test_prefix_of_another_type_is_refused(saving, prefix):
    with pytest.raises(ValueError, match=f"got {type(prefix).__name__}"):
        saving.save_target(prefix)


@pytest.mark.parametrize("prefix", ["link/h3", "link/new/h3", "%year%/h3"])
def test_link_out_of_the_output_folder_is_refused(save, folders, prefix):  # noqa: F811
    for name in ("link", str(time.localtime().tm_year), str(time.localtime().tm_year + 1)):
        (folders.output / name).symlink_to(folders.outside, target_is_directory=True)
    with pytest.raises(ValueError, match="which a link leads out of it"):
        save(prefix)
    assert list(folders.outside.iterdir()) == []


def test_link_inside_and_an_output_folder_that_is_a_link_are_followed(save, folders, comfy, monkeypatch):  # noqa: F811
    (folders.output / "real").mkdir()
    (folders.output / "link").symlink_to(folders.output / "real", target_is_directory=True)
    save("link/h3")
    linked = folders.outside / "output"
    linked.symlink_to(folders.output, target_is_directory=True)
    monkeypatch.setattr(comfy.folder_paths, "output_directory", str(linked))
    save("real/h3")
    assert names(folders.output) == ["real/h3_00001_.safetensors", "real/h3_00002_.safetensors"]


def test_name_that_is_taken_meanwhile_is_never_written_over(saving, folders):  # noqa: F811
    first, second = saving.save_target("h3"), saving.save_target("h3")
    assert first == second
    paths = [saving.placed(each, SUFFIX, [text]) for each, text in ((first, b"1"), (second, b"2"))]
    assert [path.name for path in paths] == ["h3_00001_.safetensors", "h3_00002_.safetensors"]
    assert [path.read_bytes() for path in paths] == [b"1", b"2"]


def test_link_under_the_next_name_is_not_followed(saving, folders):  # noqa: F811
    target = saving.save_target("h3")
    (folders.output / "h3_00001_.safetensors").symlink_to(folders.outside / "victim")
    assert saving.placed(target, SUFFIX, [b"x"]).name == "h3_00002_.safetensors"
    assert list(folders.outside.iterdir()) == []


def test_many_at_once_get_names_of_their_own(save, folders):  # noqa: F811
    barrier, found = threading.Barrier(8), []

    def work(text: bytes) -> None:
        barrier.wait()
        found.extend((save("a/h3", text), text) for _ in range(5))

    threads = [threading.Thread(target=work, args=(f"{i}".encode(),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({path for path, _ in found}) == 40
    assert all(path.read_bytes() == text for path, text in found)
    assert len(names(folders.output)) == 40


def test_file_has_the_usual_rights(save):
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(save("h3").stat().st_mode) == 0o666 & ~umask


def test_full_disk_leaves_nothing_behind(save, saving, folders, monkeypatch):  # noqa: F811
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RuntimeError, match=r"expected to write .*h3_00001_.*No space left on device\. Free space"):
        save("h3")
    assert names(folders.output) == []


def test_failure_in_the_middle_leaves_nothing_behind(saving, folders):  # noqa: F811
    def chunks():
        yield b"x" * 1000
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saving.placed(saving.save_target("h3"), SUFFIX, chunks())
    assert names(folders.output) == []


@pytest.fixture
def no_links(monkeypatch):
    """A disk that gives a file no second name."""

    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)


@pytest.mark.usefixtures("no_links")
def test_disk_without_links_gets_the_same_names(save, saving, folders):  # noqa: F811
    first, second = saving.save_target("h3"), saving.save_target("h3")
    paths = [saving.placed(each, SUFFIX, [text]) for each, text in ((first, b"1"), (second, b"2"))]
    assert [path.name for path in paths] == ["h3_00001_.safetensors", "h3_00002_.safetensors"]
    assert [path.read_bytes() for path in paths] == [b"1", b"2"]
    assert names(folders.output) == ["h3_00001_.safetensors", "h3_00002_.safetensors"]


def test_name_is_never_there_without_the_whole_file(saving, folders, monkeypatch):  # noqa: F811
    """Killed at any call of the system, what stands under the name is whole."""
    seen = []
    for module, call in (("os", "link"), ("os", "unlink"), ("os", "rename"), ("os", "replace"), ("os", "open")):
        real = getattr(__import__(module), call)

        def spied(*arguments, real=real, **options):
            seen.extend(path.read_bytes() for path in folders.output.glob("h3_*"))
            return real(*arguments, **options)

        monkeypatch.setattr(f"{module}.{call}", spied)
    saving.placed(saving.save_target("h3"), SUFFIX, [b"whole"])
    assert set(seen) == {b"whole"}


def test_temporary_files_of_a_killed_process_go_at_a_later_save(save, saving, folders):  # noqa: F811
    save("a/h3")
    old, young, foreign = (f".h3te-{letter * 16}.tmp" for letter in "abz")
    for name in (old, young, foreign):
        (folders.output / "a" / name).write_bytes(b"half")
    for name in (old, foreign):
        os.utime(folders.output / "a" / name, (time.time() - 3600,) * 2)
    save("a/h3")
    left = ["a/" + name for name in (young, foreign)]
    assert names(folders.output) == [*left, "a/h3_00001_.safetensors", "a/h3_00002_.safetensors"]


@pytest.mark.usefixtures("no_links")
def test_name_that_cannot_be_given_leaves_nothing_behind(saving, folders, monkeypatch):  # noqa: F811
    def refuse(self, goal):
        raise PermissionError(errno.EACCES, "in use")

    monkeypatch.setattr(saving.Path, "replace", refuse)
    with pytest.raises(RuntimeError, match="PermissionError: in use"):
        saving.placed(saving.save_target("h3"), SUFFIX, [b"x"])
    assert names(folders.output) == []


@pytest.mark.parametrize("prefix", ["x" * 300, "a/" + "x" * 300, "y" * 300 + "/h3"])
def test_name_beyond_the_systems_limit_is_said(save, folders, prefix):  # noqa: F811
    with pytest.raises(RuntimeError, match="shorten the name"):
        save(prefix)
    assert names(folders.output) == []


def test_file_where_a_folder_belongs_is_said(save, folders):  # noqa: F811
    (folders.output / "a").write_bytes(b"")
    with pytest.raises(RuntimeError, match="expected to write"):
        save("a/h3")
