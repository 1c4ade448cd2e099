"""A member's state on disk: what was saved is found again, what was not is not, and damage is said."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest

from mirrorlog.cluster.raft import store as store_module
from mirrorlog.cluster.raft.messages import Effects, EntryKind, HardState, Members, RaftEntry, Snapshot, Stored
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.commitlog.files import OsFiles
from mirrorlog.errors import DiskFailed, DiskFull, LogCorrupt, UnsupportedVersion
from sim.disk import DiskModel, Moment, SimulatedFiles

DIRECTORY: Final = Path("/node/raft")
FOUNDING: Final = Snapshot(0, 0, Members((1, 2, 3)), b"")
BLANK: Final = Stored(HardState(), FOUNDING)
MODELS: Final = {
    "sectors": DiskModel(),
    "pages, names in any order": DiskModel(unit_bytes=4096, ordered_names=False),
    "written back in between": DiskModel(ordered_names=False, write_back=0.2),
}


def entries(first: int, last: int, term: int = 1) -> tuple[RaftEntry, ...]:
    return tuple(
        RaftEntry(index, term, EntryKind.COMMAND, b"%d of %d" % (index, term)) for index in range(first, last + 1)
    )


def reopened(files: SimulatedFiles) -> Stored:
    found = RaftStore.open(files, DIRECTORY)
    assert found is not None
    return found[1]


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(DIRECTORY.parent, seed=1)


@pytest.fixture
def store(files: SimulatedFiles) -> RaftStore:
    return RaftStore.create(files, DIRECTORY, own=2, snapshot=FOUNDING)


def test_a_blank_disk_holds_no_member(files: SimulatedFiles) -> None:
    """So that the node joins, or founds."""
    assert RaftStore.open(files, DIRECTORY) is None


def test_what_was_saved_is_found_again(files: SimulatedFiles, store: RaftStore) -> None:
    """After a power loss too; by saving terms, votes and entries, some of which replace others."""
    store.save(Effects(hard_state=HardState(1, 2), entries=entries(1, 5)))
    store.save(Effects(entries=entries(4, 4, term=2)))
    store.save(Effects(hard_state=HardState(3, 0)))
    found = reopened(files.after_power_loss())
    assert found == Stored(HardState(3, 0), FOUNDING, (*entries(1, 3), *entries(4, 4, term=2)))


def test_a_snapshot_takes_the_place_of_what_it_covers(files: SimulatedFiles, store: RaftStore) -> None:
    """Term and vote stay, though nobody says them again; by replacing the journal and opening."""
    store.save(Effects(hard_state=HardState(4, 1), entries=entries(1, 9)))
    snapshot = Snapshot(7, 1, Members((1, 2)), b"state")
    store.replace(snapshot, entries(8, 9))
    store.save(Effects(entries=entries(10, 10)))
    assert reopened(files.after_power_loss()) == Stored(HardState(4, 1), snapshot, entries(8, 10))
    assert sorted(path.name for path in files.tree()) == ["journal-2", "snapshot-2"]


def test_a_snapshot_from_the_leader_replaces_all(files: SimulatedFiles, store: RaftStore) -> None:
    """What was held may be another history; by a bundle with a snapshot and entries behind it."""
    store.save(Effects(hard_state=HardState(2, 2), entries=entries(1, 3)))
    snapshot = Snapshot(20, 5, Members((1, 2)), b"state")
    store.save(Effects(snapshot=snapshot, entries=entries(21, 22, term=5)))
    assert reopened(files.after_power_loss()) == Stored(HardState(2, 2), snapshot, entries(21, 22, term=5))


def test_it_knows_whose_it_is(files: SimulatedFiles, store: RaftStore) -> None:
    """The member's id is on its disk, not in its configuration; by opening twice."""
    store.replace(Snapshot(0, 0, Members((2,)), b"x"), ())
    found = RaftStore.open(files.after_kill(), DIRECTORY)
    assert found is not None
    assert found[0].own == 2


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_at_any_operation_leaves_the_bundle_or_what_was_before(seed: int) -> None:
    """Never something else; by a power loss at each operation of a random run."""
    random = Random(seed)
    files = SimulatedFiles(DIRECTORY.parent, seed=seed)
    crashed: list[tuple[SimulatedFiles, Stored, Stored]] = []
    saved = after = Stored(HardState(), FOUNDING)

    def observe(_: Moment) -> None:
        if random.random() < 0.3:
            files.observer = None
            crashed.append((files.after_power_loss(), saved, after))
            files.observer = observe

    store = RaftStore.create(files, DIRECTORY, own=2, snapshot=FOUNDING)
    for _ in range(12):
        files.observer = observe
        last = after.snapshot.index + len(after.entries)
        if random.random() < 0.25 and after.entries:
            index = random.randint(after.snapshot.index + 1, last)
            snapshot = Snapshot(index, 1, Members((1, 2)), b"s" * random.randrange(5000))
            left = tuple(entry for entry in after.entries if entry.index > index)
            after = Stored(after.hard_state, snapshot, left)
            store.replace(snapshot, left)
        else:
            first = random.randint(after.snapshot.index + 1, last + 1)
            term = after.hard_state.term + random.randrange(2)
            new = entries(first, first + random.randrange(4), term)
            kept = tuple(entry for entry in after.entries if entry.index < first)
            hard_state = HardState(term, random.randrange(3))
            after = Stored(hard_state, after.snapshot, (*kept, *new))
            store.save(Effects(hard_state=hard_state, entries=new))
        files.observer = None
        saved = after
        assert reopened(files.after_power_loss()) == saved
    assert crashed
    for disk, before, wanted in crashed:
        if RaftStore.open(disk, DIRECTORY) is None:
            assert before == BLANK
        else:
            assert reopened(disk) in (before, wanted)
            assert reopened(disk.after_power_loss()) in (before, wanted)


# --- Crashes --------------------------------------------------------------------------------------------------------


def long_entries(first: int, last: int) -> tuple[RaftEntry, ...]:
    """Of several pages each."""
    return tuple(RaftEntry(at, 1, EntryKind.COMMAND, Random(at).randbytes(9000)) for at in range(first, last + 1))


SHORT_SNAPSHOT: Final = Snapshot(3, 1, Members((1, 2)), b"state")
LEADERS_SNAPSHOT: Final = Snapshot(20, 5, Members((1, 2)), b"s" * 10_000)
STEPS: Final[tuple[tuple[Callable[[RaftStore], None], Stored], ...]] = (
    (
        lambda store: store.save(Effects(hard_state=HardState(1, 2), entries=long_entries(1, 2))),
        Stored(HardState(1, 2), FOUNDING, long_entries(1, 2)),
    ),
    (
        lambda store: store.save(Effects(hard_state=HardState(2, 0), entries=entries(2, 4))),
        Stored(HardState(2, 0), FOUNDING, (*long_entries(1, 1), *entries(2, 4))),
    ),
    (
        lambda store: store.replace(SHORT_SNAPSHOT, entries(4, 4)),
        Stored(HardState(2, 0), SHORT_SNAPSHOT, entries(4, 4)),
    ),
    (
        lambda store: store.save(Effects(hard_state=HardState(3, 3))),
        Stored(HardState(3, 3), SHORT_SNAPSHOT, entries(4, 4)),
    ),
    (
        lambda store: store.save(Effects(snapshot=LEADERS_SNAPSHOT, entries=entries(21, 21, term=5))),
        Stored(HardState(3, 3), LEADERS_SNAPSHOT, entries(21, 21, term=5)),
    ),
)
"""What a member does, and what must be found after each."""


def found_in(files: SimulatedFiles) -> Stored:
    """As a start finds it; a disk without a member counts as a new one."""
    found = RaftStore.open(files, DIRECTORY)
    return BLANK if found is None else found[1]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(6))
def test_what_a_start_has_read_is_found_by_all_later_ones(model: DiskModel, seed: int) -> None:
    """The member speaks of it. By crashes at each operation of a run and, after a kill, at each of the start itself;
    then a power loss."""
    files = SimulatedFiles(DIRECTORY.parent, seed=seed, model=model)
    crashed: list[tuple[SimulatedFiles, tuple[Stored, Stored]]] = []
    before = wanted = BLANK

    def observe(_: Moment) -> None:
        files.observer = None
        crashed.extend((each, (before, wanted)) for each in (files.after_kill(), files.after_power_loss()))
        files.observer = observe

    files.observer = observe
    store = RaftStore.create(files, DIRECTORY, own=2, snapshot=FOUNDING)
    for step, wanted in STEPS:
        step(store)
        before = wanted
    assert len(crashed) > 100
    for disk, allowed in crashed:
        again: list[SimulatedFiles] = []

        def observe_start(_: Moment, disk: SimulatedFiles = disk, again: list[SimulatedFiles] = again) -> None:
            disk.observer = None
            again.append(disk.after_power_loss())
            disk.observer = observe_start

        disk.observer = observe_start
        first = found_in(disk)
        disk.observer = None
        assert first in allowed
        assert found_in(disk.after_power_loss()) == first
        assert all(found_in(each) in allowed for each in again)


def test_a_vote_that_was_written_and_not_synced_is_not_forgotten_later(files: SimulatedFiles, store: RaftStore) -> None:
    """The next process reads it from memory and answers by it; by a sync that fails and leaves its pages clean, a
    restart, and a power loss."""
    files.model = DiskModel(forgets=True)
    for round_ in range(2, 30):
        files.faults.fail("fdatasync", times=1)
        with pytest.raises(DiskFailed, match="check the disk"):
            store.save(Effects(hard_state=HardState(round_, 3)))
        files = files.after_kill()
        found = RaftStore.open(files, DIRECTORY)
        assert found is not None
        store, stored = found
        files.evict()
        assert reopened(files.after_power_loss()) == stored


def test_a_torn_frame_gives_way_to_a_shorter_one(files: SimulatedFiles, store: RaftStore) -> None:
    """What it leaves behind that one is no frame; by cutting a long one off at its first page."""
    end = store.journal_bytes
    store.save(Effects(entries=(RaftEntry(1, 1, EntryKind.COMMAND, bytes(20_000)),)))
    files.open(DIRECTORY / "journal-1").pwrite(bytes(4096 - end), end)
    found = RaftStore.open(files, DIRECTORY)
    assert found is not None
    assert found[1] == BLANK
    for index in range(1, 60):
        found[0].save(Effects(entries=entries(index, index)))
        assert reopened(files.after_power_loss()).entries == entries(1, index)


# --- Damage ---------------------------------------------------------------------------------------------------------


def test_damage_before_the_last_bundle_is_refused(files: SimulatedFiles, store: RaftStore) -> None:
    """A vote may be gone; by flipping each byte of all but the last frame."""
    for index in range(1, 4):
        store.save(Effects(hard_state=HardState(index, 1), entries=entries(index, index)))
    before = store.journal_bytes
    store.save(Effects(entries=entries(4, 4)))
    path = DIRECTORY / "journal-1"
    content = files.content(path)
    for at in range(0, before, 5):
        damaged = files.after_kill()
        damaged.open(path).pwrite(bytes([content[at] ^ 0x40]), at)
        with pytest.raises(LogCorrupt, match="as a new member"):
            RaftStore.open(damaged, DIRECTORY)


def test_damage_before_a_torn_bundle_is_refused(files: SimulatedFiles, store: RaftStore) -> None:
    """The torn one was begun after the damaged one was spoken of; by spoiling the end of both."""
    store.save(Effects(hard_state=HardState(1, 1)))
    middle = store.journal_bytes
    store.save(Effects(entries=long_entries(1, 1)))
    files.flip_bit(DIRECTORY / "journal-1", store.journal_bytes - 1, 0)
    assert reopened(files.after_kill()).hard_state == HardState(1, 1)
    files.flip_bit(DIRECTORY / "journal-1", middle - 1, 0)
    with pytest.raises(LogCorrupt, match="are damaged"):
        RaftStore.open(files, DIRECTORY)


def test_a_damaged_snapshot_is_refused(files: SimulatedFiles, store: RaftStore) -> None:
    """By flipping each byte, and by emptying it."""
    path = DIRECTORY / "snapshot-1"
    for at in range(len(files.content(path))):
        damaged = files.after_kill()
        damaged.flip_bit(path, at, 3)
        with pytest.raises(LogCorrupt, match="its snapshot is damaged"):
            RaftStore.open(damaged, DIRECTORY)
    files.open(path, create=True)
    with pytest.raises(LogCorrupt, match="its snapshot is damaged"):
        RaftStore.open(files, DIRECTORY)


@pytest.mark.parametrize("spoil", ["empty", "missing"])
def test_a_snapshot_without_its_journal_is_refused(files: SimulatedFiles, store: RaftStore, spoil: str) -> None:
    """Term and vote were there; by emptying and by removing it."""
    if spoil == "empty":
        files.open(DIRECTORY / "journal-1", create=True)
    else:
        files.unlink(DIRECTORY / "journal-1")
    with pytest.raises(LogCorrupt, match="as a new member"):
        RaftStore.open(files, DIRECTORY)


def test_a_journal_that_was_used_and_has_no_snapshot_is_refused(files: SimulatedFiles, store: RaftStore) -> None:
    """The node would found or join again under its old number, its votes forgotten; by removing the first snapshot,
    a later one, and one whose predecessor came back."""
    store.save(Effects(hard_state=HardState(1, 1)))
    first = files.after_kill()
    first.unlink(DIRECTORY / "snapshot-1")
    store.replace(Snapshot(0, 0, Members((1,)), b""), ())
    later = files.after_kill()
    later.unlink(DIRECTORY / "snapshot-2")
    store.save(Effects(hard_state=HardState(2, 2)))
    store.close()
    for name in ("snapshot-1", "journal-1"):
        files.open(DIRECTORY / name, create=True)
    files.unlink(DIRECTORY / "snapshot-2")
    for disk in (first, later, files):
        with pytest.raises(LogCorrupt, match="its snapshot is missing"):
            RaftStore.open(disk, DIRECTORY)


def test_what_a_creation_left_that_died_is_no_member(files: SimulatedFiles, store: RaftStore) -> None:
    """It was never spoken of; by a journal as it begins, without its snapshot."""
    files.unlink(DIRECTORY / "snapshot-1")
    assert RaftStore.open(files, DIRECTORY) is None
    RaftStore.create(files, DIRECTORY, own=3, snapshot=FOUNDING)
    assert reopened(files.after_power_loss()) == BLANK


def test_foreign_files_stay_and_count_for_nothing(files: SimulatedFiles, store: RaftStore) -> None:
    """Somebody kept a copy; by names that look like ours."""
    names = {
        "snapshot-9.bak",
        "journal-1 (copy)",
        "snapshot-007",
        "journal-",
        "snapshot-\u0663",
        "notes",
        "snapshot-9x",
    }
    for name in names:
        files.open(DIRECTORY / name, create=True)
    store.replace(Snapshot(0, 0, Members((1,)), b""), ())
    assert reopened(files).snapshot.members == Members((1,))
    assert {path.name for path in files.tree()} == {*names, "journal-2", "snapshot-2"}


def framed(number: int, place: int, payload: bytes, *, version: int = 1) -> bytes:
    """A frame as another version writes it."""
    header = b"mlr" + bytes([version]) + len(payload).to_bytes(4, "little")
    header += store_module.crc32c(payload).to_bytes(4, "little")
    seed = number.to_bytes(8, "little") + place.to_bytes(8, "little")
    return header + store_module.crc32c(header, store_module.crc32c(seed)).to_bytes(4, "little") + payload


@pytest.mark.parametrize("name", ["snapshot-1", "journal-1"])
def test_what_a_newer_version_wrote_is_named_so(files: SimulatedFiles, store: RaftStore, name: str) -> None:
    """Setting the directory aside would be the wrong advice; by a frame of the next format in either file."""
    files.open(DIRECTORY / name).pwrite(framed(1, 0, b"?", version=2), 0)
    with pytest.raises(UnsupportedVersion, match="it has format 2, this version knows 1"):
        RaftStore.open(files, DIRECTORY)


def test_a_later_frame_of_a_newer_version_is_no_torn_one(files: SimulatedFiles, store: RaftStore) -> None:
    """It would be cut; by one behind a frame of this version."""
    end = store.journal_bytes
    files.open(DIRECTORY / "journal-1").pwrite(framed(1, end, b"?", version=9), end)
    with pytest.raises(UnsupportedVersion, match="format 9"):
        RaftStore.open(files, DIRECTORY)


def test_more_fields_are_ignored_and_unknown_kinds_named(files: SimulatedFiles, store: RaftStore) -> None:
    """A newer version may add to the end; by such payloads in frames of this format."""
    end = store.journal_bytes
    more = msgspec.msgpack.encode([[7, 2, "new"], [[1, 7, 0, b"x", "new"]], "new"])
    frame = framed(1, end, more)
    journal = files.open(DIRECTORY / "journal-1")
    journal.pwrite(frame, end)
    assert reopened(files) == Stored(HardState(7, 2), FOUNDING, (RaftEntry(1, 7, EntryKind.COMMAND, b"x"),))
    end += len(frame)
    journal.pwrite(framed(1, end, msgspec.msgpack.encode([None, [[2, 7, 99, b""]]])), end)
    with pytest.raises(UnsupportedVersion, match="Start the version that wrote it"):
        RaftStore.open(files, DIRECTORY)


def test_entries_that_leave_a_gap_are_refused(files: SimulatedFiles, store: RaftStore) -> None:
    """By a bundle that goes on too far."""
    store.save(Effects(entries=entries(5, 6)))
    with pytest.raises(LogCorrupt, match="entry 5 does not follow"):
        RaftStore.open(files, DIRECTORY)


# --- Disks that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_save_nothing_more_is_taken(
    files: SimulatedFiles, store: RaftStore, operation: str, code: int
) -> None:
    """The next sync would pass over what is missing; a new start finds what was there. By one failure of each kind."""
    store.save(Effects(hard_state=HardState(1, 1)))
    files.faults.fail(operation, code, times=1)
    with pytest.raises(DiskFull if code == errno.ENOSPC else DiskFailed):
        store.save(Effects(entries=long_entries(1, 3)))
    with pytest.raises(DiskFailed, match="start the node again"):
        store.save(Effects(entries=entries(1, 1)))
    with pytest.raises(DiskFailed, match="start the node again"):
        store.replace(SHORT_SNAPSHOT, ())
    assert reopened(files.after_power_loss()).hard_state == HardState(1, 1)


def test_a_disk_that_fills_up_in_a_snapshot_leaves_the_member_as_it_was(
    files: SimulatedFiles, store: RaftStore
) -> None:
    """It can go on, take the snapshot later, and start again on the full disk; by filling it up at each byte."""
    store.save(Effects(hard_state=HardState(4, 2), entries=entries(1, 4)))
    used = sum(map(len, files.tree().values()))
    for room in range(0, 12_000, 250):
        files.model = DiskModel(capacity_bytes=used + room)
        try:
            store.replace(LEADERS_SNAPSHOT, ())
        except DiskFull:
            assert {path.name for path in files.tree()} == {"journal-1", "snapshot-1"}
            assert reopened(files).entries == entries(1, 4)
        else:
            assert room > 10_000
            break
    store.save(Effects(hard_state=HardState(5, 1)))
    assert reopened(files.after_power_loss()) == Stored(HardState(5, 1), LEADERS_SNAPSHOT)


@pytest.mark.parametrize("operation", ["create", "pwrite", "fdatasync", "fsync_directory"])
def test_a_snapshot_that_failed_before_it_was_decided_can_be_taken_again(
    files: SimulatedFiles, store: RaftStore, operation: str
) -> None:
    """The journal before still holds and goes on; by one failure of each operation that comes before the rename."""
    for first in range(1, files_needed(operation) + 1):
        files.faults.fail(operation, errno.ENOSPC, first=first, times=1)
        with pytest.raises(DiskFull):
            store.replace(FOUNDING, ())
        files.faults.heal()
    store.save(Effects(hard_state=HardState(2, 1)))
    assert reopened(files.after_power_loss()).hard_state == HardState(2, 1)
    store.replace(SHORT_SNAPSHOT, ())
    assert reopened(files.after_power_loss()) == Stored(HardState(2, 1), SHORT_SNAPSHOT)


def files_needed(operation: str) -> int:
    """How often a snapshot does it before its rename."""
    return 1 if operation == "fsync_directory" else 2


def test_a_snapshot_whose_name_was_not_synced_ends_the_store(files: SimulatedFiles, store: RaftStore) -> None:
    """Nobody knows which of both will be found, so neither may be written to; by a failing second sync of names."""
    files.model = DiskModel(ordered_names=False)
    store.save(Effects(hard_state=HardState(1, 1), entries=entries(1, 4)))
    files.faults.fail("fsync_directory", first=2, times=1)
    with pytest.raises(DiskFailed, match="write a snapshot to"):
        store.replace(SHORT_SNAPSHOT, entries(4, 4))
    with pytest.raises(DiskFailed, match="start the node again"):
        store.save(Effects(hard_state=HardState(2, 2)))
    old, new = (
        Stored(HardState(1, 1), FOUNDING, entries(1, 4)),
        Stored(HardState(1, 1), SHORT_SNAPSHOT, entries(4, 4)),
    )
    assert reopened(files.after_kill()) == new
    assert all(reopened(files.after_power_loss()) in (old, new) for _ in range(20))


def test_a_creation_that_failed_can_be_tried_again(files: SimulatedFiles) -> None:
    """By a failure of each operation in turn."""
    for operation, times in (("make_directory", 1), ("create", 2), ("pwrite", 2), ("fdatasync", 2), ("rename", 1)):
        for first in range(1, times + 1):
            files.faults.fail(operation, errno.ENOSPC, first=first, times=1)
            with pytest.raises(DiskFull):
                RaftStore.create(files, DIRECTORY, own=2, snapshot=FOUNDING)
            files.faults.heal()
            assert RaftStore.open(files, DIRECTORY) is None
    RaftStore.create(files, DIRECTORY, own=2, snapshot=FOUNDING)
    assert reopened(files.after_power_loss()) == BLANK


# --- Size -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [b"mlr\x01", b"\x00\x00\x01\x00", b"mlr\x01\x00\x00\x40\x00"])
def test_a_long_torn_frame_does_not_hold_up_a_start(tmp_path: Path, torn: bytes) -> None:
    """Looking for frames behind it takes as long as reading does; by 8 MB of what looks like headers."""
    store = RaftStore.create(OsFiles(), tmp_path / "raft", own=1, snapshot=FOUNDING)
    end = store.journal_bytes
    store.save(Effects(entries=(RaftEntry(1, 1, EntryKind.COMMAND, torn * (8 * 1024 * 1024 // len(torn))),)))
    store.close()
    with OsFiles().open(tmp_path / "raft" / "journal-1") as journal:
        journal.pwrite(b"\xff", end)
    begun = time.process_time()
    found = RaftStore.open(OsFiles(), tmp_path / "raft")
    assert time.process_time() - begun < 5
    assert found is not None
    assert found[1] == BLANK
    found[0].close()


def test_it_works_on_a_real_disk(tmp_path: Path) -> None:
    """By the same steps in a real directory."""
    store = RaftStore.create(OsFiles(), tmp_path / "raft", own=1, snapshot=FOUNDING)
    store.save(Effects(hard_state=HardState(1, 1), entries=entries(1, 3)))
    store.replace(Snapshot(2, 1, Members((1,)), b"state"), entries(3, 3))
    store.close()
    found = RaftStore.open(OsFiles(), tmp_path / "raft")
    assert found is not None
    assert found[1] == Stored(HardState(1, 1), Snapshot(2, 1, Members((1,)), b"state"), entries(3, 3))
    found[0].close()
