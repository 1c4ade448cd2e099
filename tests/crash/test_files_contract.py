"""What the log relies on, asked of the real file system and of the simulated one: a story told by one must hold on the
other, or the simulator proves nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from mirrorlog.commitlog.files import OS_FILES, File, Files, read_file, replace_file
from sim.disk import SimulatedFiles


@pytest.fixture(params=["real", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return OS_FILES if request.param == "real" else SimulatedFiles(tmp_path, seed=1)


def read(file: File, size: int, at: int = 0) -> bytes:
    content = bytearray(size)
    return bytes(content[: file.pread(memoryview(content), at)])


def test_a_created_file_is_empty_and_replaces_what_had_the_name(files: Files, tmp_path: Path) -> None:
    """Goal: `create` starts anew. Create twice, with bytes in between; a file opened before keeps its own or none."""
    first = files.open(tmp_path / "a", create=True)
    first.pwrite(b"old", 0)
    assert files.open(tmp_path / "a").size() == 3
    second = files.open(tmp_path / "a", create=True)
    assert (second.size(), read(second, 10)) == (0, b"")
    assert files.listdir(tmp_path) == ["a"]


def test_what_is_missing_is_file_not_found(files: Files, tmp_path: Path) -> None:
    """Goal: the errors above are told apart by class. Ask each call for a name that is not there."""
    missing = tmp_path / "no" / "file"
    for call in (
        lambda: files.open(tmp_path / "no"),
        lambda: files.open(missing, create=True),
        lambda: files.rename(tmp_path / "no", tmp_path / "other"),
        lambda: files.unlink(tmp_path / "no"),
        lambda: files.listdir(tmp_path / "no"),
        lambda: files.fsync_directory(tmp_path / "no"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert not files.exists(missing)


def test_allocated_space_reads_as_zero_and_keeps_what_is_there(files: Files, tmp_path: Path) -> None:
    """Goal: space is reserved without a trace. Allocate around three bytes, larger and then smaller."""
    file = files.open(tmp_path / "a", create=True)
    file.pwrite(b"abc", 0)
    file.allocate(10_000)
    assert (file.size(), read(file, 20_000)) == (10_000, b"abc" + bytes(9_997))
    file.allocate(5_000)
    assert file.size() == 10_000


def test_a_map_and_reads_see_the_same_bytes(files: Files, tmp_path: Path) -> None:
    """Goal: one page cache. Store through the map, through a second file, and read back by all."""
    file = files.open(tmp_path / "a", create=True)
    file.allocate(8192)
    view = file.map()
    assert (len(view), view.readonly) == (8192, False)
    view[100:103] = b"map"
    other = files.open(tmp_path / "a")
    assert read(other, 3, 100) == b"map"
    other.pwrite(b"pwrite", 5000)
    assert (bytes(view[5000:5006]), read(file, 6, 5000)) == (b"pwrite", b"pwrite")


def test_the_past_is_read_as_anything_is(files: Files, tmp_path: Path) -> None:
    """Goal: a read that leaves the cache alone gives the same bytes. Over a border of pages, over the end, behind it;
    stored through a map a moment before, and not synced."""
    file = files.open(tmp_path / "a", create=True)
    file.allocate(8192)
    file.map()[4000:4200] = bytes(range(200))
    for at, size in ((3990, 220), (8000, 500), (8192, 10), (9000, 10), (0, 0)):
        content = memoryview(bytearray(size))
        assert bytes(content[: file.pread_past(content, at)]) == read(file, size, at)


def test_an_empty_file_cannot_be_mapped(files: Files, tmp_path: Path) -> None:
    """Goal: no view of nothing. Map before anything was allocated."""
    with pytest.raises(ValueError, match="empty file"):
        files.open(tmp_path / "a", create=True).map()


def test_a_view_outlives_its_file_and_its_name(files: Files, tmp_path: Path) -> None:
    """Goal: a reader never loses memory under its feet. Close the file, remove the name, use the view."""
    file = files.open(tmp_path / "a", create=True)
    file.allocate(4096)
    view = file.map()
    file.close()
    files.unlink(tmp_path / "a")
    view[:3] = b"abc"
    assert bytes(view[:4]) == b"abc\0"


def test_a_removed_file_stays_readable_for_who_has_it_open(files: Files, tmp_path: Path) -> None:
    """Goal: as above, without a map. Remove the name, read and write on."""
    file = files.open(tmp_path / "a", create=True)
    file.pwrite(b"abc", 0)
    files.unlink(tmp_path / "a")
    file.pwrite(b"d", 3)
    file.fdatasync()
    assert read(file, 10) == b"abcd"
    assert not files.exists(tmp_path / "a")


def test_a_write_beyond_the_end_leaves_zeros_between(files: Files, tmp_path: Path) -> None:
    """Goal: `pwrite` grows a file. Write at 5000 of an empty one; a read across the end is short, behind it empty."""
    file = files.open(tmp_path / "a", create=True)
    file.pwrite(memoryview(b"xyz"), 5000)
    assert (file.size(), read(file, 8, 4998), read(file, 8, 6000)) == (5003, b"\0\0xyz", b"")
    file.pwrite(b"", 9000)
    assert file.size() == 5003


def test_parts_are_written_one_after_the_other(files: Files, tmp_path: Path) -> None:
    """Goal: a header and a body from two places, in one call. Parts of each kind of buffer, an empty one among them."""
    file = files.open(tmp_path / "a", create=True)
    file.pwritev((b"head", memoryview(b""), bytearray(b"er"), memoryview(bytes(10_000))), 7)
    assert (file.size(), read(file, 8, 6)) == (10_013, b"\0header\0")


@pytest.mark.parametrize("written", [[], [0], [100], [0, 9000], [20_000]])
def test_nothing_stands_behind_the_end_of_the_data(files: Files, tmp_path: Path, written: list[int]) -> None:
    """Goal: `data_end` may be late and never early. Write bytes at some places of an allocated file."""
    file = files.open(tmp_path / "a", create=True)
    file.allocate(32 * 1024)
    for at in written:
        file.pwrite(b"x", at)
    end = file.data_end()
    assert max([0, *(at + 1 for at in written)]) <= end <= file.size()
    assert not any(read(file, file.size(), end))


def test_a_rename_replaces_and_open_files_follow_their_bytes(files: Files, tmp_path: Path) -> None:
    """Goal: replacing is atomic for names and invisible to who has the old one open. Rename over an open file."""
    old = files.open(tmp_path / "a", create=True)
    old.pwrite(b"old", 0)
    new = files.open(tmp_path / "b", create=True)
    new.pwrite(b"new", 0)
    files.rename(tmp_path / "b", tmp_path / "a")
    assert (files.listdir(tmp_path), read(files.open(tmp_path / "a"), 9)) == (["a"], b"new")
    assert read(old, 9) == b"old"
    new.pwrite(b"!", 3)
    assert read(files.open(tmp_path / "a"), 9) == b"new!"


def test_a_directory_is_renamed_with_what_is_in_it(files: Files, tmp_path: Path) -> None:
    """Goal: what was made under a name that is nobody's becomes something at once. Rename a directory that has files
    and another one in it, then try to rename it over one that is not empty."""
    files.make_directory(tmp_path / "old" / "inner")
    with closing(files.open(tmp_path / "old" / "inner" / "file", create=True)) as file:
        file.pwrite(b"kept", 0)
    files.rename(tmp_path / "old", tmp_path / "new")
    assert files.listdir(tmp_path) == ["new"]
    assert read(files.open(tmp_path / "new" / "inner" / "file"), 9) == b"kept"
    files.make_directory(tmp_path / "other")
    with pytest.raises(OSError, match="not empty"):
        files.rename(tmp_path / "other", tmp_path / "new")


def test_directories_are_made_with_their_parents_and_listed(files: Files, tmp_path: Path) -> None:
    """Goal: a data directory can be made anywhere, twice. Names come sorted, directories among them."""
    files.make_directory(tmp_path / "x" / "y")
    files.make_directory(tmp_path / "x" / "y")
    files.open(tmp_path / "x" / "b", create=True)
    files.open(tmp_path / "x" / "a", create=True)
    assert files.listdir(tmp_path / "x") == ["a", "b", "y"]
    assert files.exists(tmp_path / "x" / "y")
    assert files.exists(tmp_path / "x" / "a")
    files.fsync_directory(tmp_path / "x")
    with pytest.raises(OSError, match=r"directory"):
        files.make_directory(tmp_path / "x" / "a" / "under-a-file")


def test_a_lock_excludes_until_it_is_closed(files: Files, tmp_path: Path) -> None:
    """Goal: one holder. Lock, fail to lock again, read the note, close, lock with a shorter note."""
    held = files.lock(tmp_path / "lock", b"first\n")
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path / "lock", b"second\n")
    assert read_file(files, tmp_path / "lock", max_bytes=100) == b"first\n"
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path / "lock", b"reading does not free it\n")
    held.close()
    files.lock(tmp_path / "lock", b"2\n")
    assert read_file(files, tmp_path / "lock", max_bytes=100) == b"2\n"


def test_a_closed_file_refuses_and_closing_twice_is_nothing(files: Files, tmp_path: Path) -> None:
    """Goal: use after close is an error of this file, never of another one that got its number."""
    file = files.open(tmp_path / "a", create=True)
    file.close()
    file.close()
    for call in (
        file.size, file.fdatasync, file.map, lambda: file.allocate(10), lambda: file.pwrite(b"x", 0),
        lambda: file.pread(memoryview(bytearray(1)), 0),
        lambda: file.pread_past(memoryview(bytearray(1)), 0),
    ):  # fmt: skip
        # ValueError: what Python says of a descriptor of -1 before it asks the system.
        with pytest.raises((OSError, ValueError), match=r"descriptor|Invalid argument"):
            call()


def test_populating_changes_nothing(files: Files, tmp_path: Path) -> None:
    """Goal: warming is free of side effects. Populate mapped pages that hold bytes."""
    file = files.open(tmp_path / "a", create=True)
    file.allocate(16 * 1024)
    view = file.map()
    view[:3] = b"abc"
    assert files.populate(view[: 8 * 1024]) in (True, False)
    assert read(file, 16 * 1024) == b"abc" + bytes(16 * 1024 - 3)


def test_a_replaced_file_holds_the_new_content_alone(files: Files, tmp_path: Path) -> None:
    """Goal: what checkpoints and lists are built on. Replace twice, the second time with less."""
    replace_file(files, tmp_path / "a", b"a long first content")
    replace_file(files, tmp_path / "a", b"short")
    assert read_file(files, tmp_path / "a", max_bytes=100) == b"short"
    assert read_file(files, tmp_path / "a", max_bytes=3) == b"sho"
    assert files.listdir(tmp_path) == ["a"]
