"""The simulated disk: what it may do to unsynced bytes and names it does, what it may not it never does."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorlog.commitlog.files import replace_file
from sim.disk import DiskModel, Moment, SimulatedFiles

ROOT = Path("/simulated")
SEEDS = range(60)


def outcomes(story: Callable[[SimulatedFiles], None], look: Callable[[SimulatedFiles], object],
             model: DiskModel | None = None, *, kill: bool = False) -> set[object]:  # fmt: skip
    """What `look` sees after a story that ended in a power loss (or a kill), over many seeds."""
    found: set[object] = set()
    for seed in SEEDS:
        disk = SimulatedFiles(ROOT, seed=seed, model=model)
        story(disk)
        found.add(look(disk.after_kill() if kill else disk.after_power_loss()))
    return found


def made(disk: SimulatedFiles, size: int = 4096) -> memoryview:
    """A durable file `a` of zeros, mapped."""
    file = disk.open(ROOT / "a", create=True)
    file.allocate(size)
    file.fdatasync()
    disk.fsync_directory(ROOT)
    return file.map()


def content(disk: SimulatedFiles) -> bytes:
    return disk.content(ROOT / "a")


def test_synced_bytes_are_there_whatever_happens() -> None:
    """Goal: the promise of fdatasync. Store through the map, sync, lose power under every seed."""

    def story(disk: SimulatedFiles) -> None:
        view = made(disk)
        view[:3] = b"abc"
        disk.open(ROOT / "a").fdatasync()

    assert outcomes(story, lambda disk: content(disk)[:4]) == {b"abc\0"}


@pytest.mark.parametrize(("unit", "combinations"), [(512, 4), (4096, 2)])
def test_unsynced_bytes_are_lost_torn_and_reordered_by_units(unit: int, combinations: int) -> None:
    """Goal: what is written as a whole is whole, in any order. Two stores in two sectors of one page."""

    def story(disk: SimulatedFiles) -> None:
        view = made(disk)
        view[:512] = b"1" * 512
        view[1024:1536] = b"2" * 512

    def look(disk: SimulatedFiles) -> object:
        found = content(disk)
        assert found[:512] in (bytes(512), b"1" * 512)
        assert found[1024:1536] in (bytes(512), b"2" * 512)
        return found[0], found[1024]

    assert len(outcomes(story, look, DiskModel(unit_bytes=unit))) == combinations
    assert outcomes(story, look, DiskModel(unit_bytes=unit), kill=True) == {(ord("1"), ord("2"))}


def test_the_kernel_may_have_written_back_what_was_there_in_between() -> None:
    """Goal: the device may hold a content that is neither the synced nor the last one. Store twice."""

    def story(disk: SimulatedFiles) -> None:
        view = made(disk)
        for value in (b"1", b"2"):
            view[:1] = value
            disk.make_directory(ROOT / "anything")

    found = outcomes(story, lambda disk: content(disk)[:1], DiskModel(write_back=0.5))
    assert found == {b"\0", b"1", b"2"}


def test_a_sync_covers_what_was_stored_before_it_began() -> None:
    """Goal: a store beside a sync that is under way is not covered by it. Store from the observer in the middle."""

    def story(disk: SimulatedFiles) -> None:
        view = made(disk)
        view[:1] = b"1"

        def store(moment: Moment) -> None:
            if moment.when == "during":
                view[512:513] = b"2"

        disk.observer = store
        disk.open(ROOT / "a").fdatasync()
        disk.observer = None

    assert outcomes(story, lambda disk: (content(disk)[:1], content(disk)[512:513])) == {(b"1", b"2"), (b"1", b"\0")}


@pytest.mark.parametrize("ordered", [True, False])
def test_names_are_durable_after_their_directory_was_synced(ordered: bool) -> None:
    """Goal: a made, a renamed and a removed name may each be lost before, and never after fsync_directory."""

    def story(disk: SimulatedFiles) -> None:
        made(disk)
        disk.open(ROOT / "b", create=True)
        disk.rename(ROOT / "a", ROOT / "c")

    def synced(disk: SimulatedFiles) -> None:
        story(disk)
        disk.fsync_directory(ROOT)

    model = DiskModel(ordered_names=ordered)
    all_ways = {("a",), ("a", "b"), ("b", "c")} | (set() if ordered else {("c",)})
    assert outcomes(story, lambda disk: tuple(disk.listdir(ROOT)), model) == all_ways
    assert outcomes(synced, lambda disk: tuple(disk.listdir(ROOT)), model) == {("b", "c")}


def test_a_removed_file_comes_back_with_its_bytes_or_not_at_all() -> None:
    """Goal: an unlink that was not synced. The file was synced before."""

    def story(disk: SimulatedFiles) -> None:
        made(disk)[:1] = b"1"
        disk.open(ROOT / "a").fdatasync()
        disk.unlink(ROOT / "a")

    found = outcomes(story, lambda disk: content(disk)[:1] if disk.exists(ROOT / "a") else None)
    assert found == {None, b"1"}


def test_a_replaced_file_is_the_old_or_the_new_one() -> None:
    """Goal: what `replace_file` promises holds here at every one of its operations."""
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = SimulatedFiles(ROOT, seed=seed, model=DiskModel(ordered_names=seed % 2 == 0, write_back=0.3))
        replace_file(disk, ROOT / "a", b"old" * 1000)
        disk.observer = lambda moment, disk=disk: found.add(content(disk.after_power_loss()))  # type: ignore[misc]
        replace_file(disk, ROOT / "a", b"new" * 2000)
        disk.observer = None
        assert content(disk.after_power_loss()) == b"new" * 2000
    assert found == {b"old" * 1000, b"new" * 2000}


def test_a_recycled_file_may_show_its_old_content_again() -> None:
    """Goal: bytes of an earlier life. Zero a synced file through its map under a new name, lose power."""

    def story(disk: SimulatedFiles) -> None:
        view = made(disk)
        view[:] = b"o" * 4096
        disk.open(ROOT / "a").fdatasync()
        view[:] = bytes(4096)
        view[:512] = b"n" * 512

    def look(disk: SimulatedFiles) -> object:
        found = content(disk)
        return found[0], found[512]

    assert outcomes(story, look) == {(ord("o"), ord("o")), (ord("o"), 0), (ord("n"), ord("o")), (ord("n"), 0)}


@pytest.mark.parametrize("forgets", [False, True])
def test_after_a_failed_sync_the_next_one_may_succeed_without_the_bytes(forgets: bool) -> None:
    """Goal: the kernel that marks pages clean after an error. Fail a sync, sync again, lose power; then the same with a
    store to the page in between, which makes it dirty again."""

    def story(disk: SimulatedFiles, *, touch: bool) -> None:
        view = made(disk)
        view[:1] = b"1"
        file = disk.open(ROOT / "a")
        disk.faults.fail("fdatasync", times=1)
        with pytest.raises(OSError, match="Input/output error"):
            file.fdatasync()
        if touch:
            view[1:2] = b"2"
        file.fdatasync()

    model = DiskModel(forgets=forgets)
    untouched = outcomes(lambda disk: story(disk, touch=False), lambda disk: content(disk)[:1], model)
    assert untouched == ({b"\0", b"1"} if forgets else {b"1"})
    assert outcomes(lambda disk: story(disk, touch=True), lambda disk: content(disk)[:2], model) == {b"12"}
    read_after_restart = outcomes(
        lambda disk: story(disk, touch=False), lambda disk: content(disk)[:1], model, kill=True
    )
    assert read_after_restart == ({b"\0", b"1"} if forgets else {b"1"})


def test_a_killed_copy_leaves_any_part_of_what_it_changed_and_nothing_else() -> None:
    """Goal: a process that dies in a memcpy. Everything before the copy stands, the copy's lines are there or not."""

    def look(seed: int) -> bytes:
        disk = SimulatedFiles(ROOT, seed=seed)
        view = made(disk)
        view[:64] = b"b" * 64
        before = disk.caches()
        view[64:256] = b"c" * 192
        return content(disk.after_kill(copying_since=before))

    found = {look(seed) for seed in SEEDS}
    assert {each[:64] for each in found} == {b"b" * 64}
    assert {bytes((each[64], each[128], each[192])).count(b"c") for each in found} == {0, 1, 2, 3}
    assert not any(any(each[256:]) for each in found)


def test_a_full_disk_refuses_and_keeps_what_there_is() -> None:
    """Goal: a capacity for all files together. Allocate and write up to it and beyond, free, go on."""
    disk = SimulatedFiles(ROOT, model=DiskModel(capacity_bytes=10_000))
    first = disk.open(ROOT / "a", create=True)
    first.allocate(6_000)
    second = disk.open(ROOT / "b", create=True)
    for call in (lambda: second.allocate(6_000), lambda: second.pwrite(bytes(6_000), 0)):
        with pytest.raises(OSError, match="No space left") as failed:
            call()
        assert failed.value.errno == errno.ENOSPC
    assert second.size() == 0
    first.pwrite(b"x" * 6_000, 0)
    disk.unlink(ROOT / "a")
    second.allocate(10_000)


def test_planned_faults_hit_the_calls_they_name() -> None:
    """Goal: the second of three renames fails, nothing else, and nothing has changed then."""
    disk = SimulatedFiles(ROOT)
    made(disk)
    disk.faults.fail("rename", errno.ENOSPC, first=2, times=1)
    disk.rename(ROOT / "a", ROOT / "b")
    with pytest.raises(OSError, match="No space left"):
        disk.rename(ROOT / "b", ROOT / "c")
    assert disk.listdir(ROOT) == ["b"]
    disk.rename(ROOT / "b", ROOT / "c")


def test_flipped_bits_stay_flipped() -> None:
    """Goal: rot on the device. Flip a bit, lose power, read."""
    disk = SimulatedFiles(ROOT)
    made(disk)
    disk.flip_bit(ROOT / "a", 10, 3)
    assert content(disk.after_power_loss())[8:12] == b"\0\0\x08\0"


def test_a_crash_leaves_the_run_as_it_was_and_repeats_by_its_seed() -> None:
    """Goal: one run can be crashed many times, and a seed is a replay. Crash at every operation of two equal runs."""

    def run() -> list[dict[Path, bytes]]:
        disk = SimulatedFiles(ROOT, seed=7, model=DiskModel(write_back=0.2))
        found: list[dict[Path, bytes]] = []
        disk.observer = lambda moment: found.append(disk.after_power_loss().tree())
        for number in range(5):
            replace_file(disk, ROOT / "a", bytes([number]) * 3000)
        found.append(disk.tree())
        return found

    first, second = run(), run()
    assert first == second
    assert first[-1] == {ROOT / "a": bytes([4]) * 3000}
    assert len(first) > 50
