"""What was promised in a fence is there ever after: behind crashes, failed syncs and full disks, and never lower."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import msgspec
import pytest

from mirrorlog.cluster.membership.fenced_epochs import EPOCH_MAX, FILE_NAME, SLOT_BYTES, FencedEpochs
from mirrorlog.commitlog.files import OS_FILES, File, Files
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadRequest, DiskFailed, DiskFull, LogCorrupt, Overloaded, UnsupportedVersion
from sim.disk import DiskModel, Moment, SimulatedFiles

_T = TypeVar("_T")

DIRECTORY: Final = Path("/node")
PATH: Final = DIRECTORY / FILE_NAME
LOGS: Final = tuple(f"log-{number}" for number in range(60))
"""So many that a slot has several sectors, of which a power loss may leave some."""
MODELS: Final = {
    "sectors": DiskModel(),
    "pages, names in any order": DiskModel(unit_bytes=4096, ordered_names=False),
    "written back in between": DiskModel(ordered_names=False, write_back=0.2),
}


def told(files: Files, *log_ids: str) -> list[int]:
    """What a start finds for these logs."""
    promises = FencedEpochs.open(files, DIRECTORY)
    return [promises.of(log_id) for log_id in log_ids]


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(DIRECTORY, seed=1)


@pytest.fixture
def promises(files: SimulatedFiles) -> FencedEpochs:
    return FencedEpochs.open(files, DIRECTORY)


# --- Promises -------------------------------------------------------------------------------------------------------


def test_nothing_was_promised_on_a_blank_disk(promises: FencedEpochs) -> None:
    """By asking."""
    assert promises.of("log-a") == 0


def test_a_promise_is_found_after_a_power_loss(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """For each log its own, up to the highest epoch there is; by promises for two logs."""
    assert promises.keep("log-a", 7) == 7
    assert promises.keep("log-b", EPOCH_MAX) == EPOCH_MAX
    assert promises.keep("log-a", 9) == 9
    assert (promises.of("log-a"), promises.of("log-b")) == (9, EPOCH_MAX)
    assert told(files.after_power_loss(), "log-a", "log-b", "log-c") == [9, EPOCH_MAX, 0]


def test_a_promise_is_never_lowered(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """Who asks for a lower epoch is told which one holds; by doing so in this life and in the next."""
    promises.keep("log-a", 9)
    assert promises.keep("log-a", 8) == 9
    next_life = files.after_power_loss()
    assert FencedEpochs.open(next_life, DIRECTORY).keep("log-a", 1) == 9
    assert told(next_life.after_power_loss(), "log-a") == [9]


def test_a_promise_costs_one_sync_and_a_known_one_none(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """A failover waits for it, the first one for a log as well; by counting what changes the disk."""
    for log_id, epoch, syncs in (("log-a", 3, 1), ("log-b", 3, 1), ("log-a", 4, 1), ("log-a", 4, 0), ("log-b", 1, 0)):
        before = files.faults.calls.copy()
        promises.keep(log_id, epoch)
        assert files.faults.calls - before == {"pwrite": syncs, "fdatasync": syncs} or not syncs
        assert files.faults.calls["fdatasync"] - before["fdatasync"] == syncs
    assert files.settled


def test_a_promise_needs_no_space(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """A full disk does not stop a failover; by one that is full."""
    files.model = DiskModel(capacity_bytes=sum(map(len, files.tree().values())))
    for log_id in LOGS:
        promises.keep(log_id, 5)
    assert told(files.after_power_loss(), *LOGS) == [5] * len(LOGS)


def test_a_log_that_is_gone_is_forgotten(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """Alone, and for good; by forgetting one of two, twice."""
    promises.keep("log-a", 3)
    promises.keep("log-b", 4)
    promises.forget("log-a")
    promises.forget("log-a")
    assert promises.of("log-a") == 0
    assert told(files.after_power_loss(), "log-a", "log-b") == [0, 4]


@pytest.mark.parametrize("epoch", [-1, 0, EPOCH_MAX + 1])
def test_an_epoch_that_cannot_be_is_refused(promises: FencedEpochs, epoch: int) -> None:
    """Another node sends it; by those beside the borders."""
    with pytest.raises(BadRequest, match="epochs go from 1"):
        promises.keep("log-a", epoch)
    assert promises.of("log-a") == 0


@pytest.mark.parametrize("log_id", ["", "ü" * 128])
def test_an_id_that_cannot_be_is_refused(promises: FencedEpochs, log_id: str) -> None:
    """By none, and by one that is too long."""
    with pytest.raises(BadRequest, match="has 1 to 255 bytes"):
        promises.keep(log_id, 1)


def test_too_many_logs_are_refused(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """What is there stays, and can still be raised; by as many of the usual length as there is room for."""
    log_ids = [f"{number:036}" for number in range(SLOT_BYTES // 43)]
    for log_id in log_ids[:-1]:
        promises.keep(log_id, EPOCH_MAX - 1)
    with pytest.raises(Overloaded, match="let this node hold fewer logs"):
        promises.keep(log_ids[-1], EPOCH_MAX - 1)
    assert promises.of(log_ids[-1]) == 0
    assert promises.keep(log_ids[0], EPOCH_MAX) == EPOCH_MAX
    expected = [EPOCH_MAX, *[EPOCH_MAX - 1] * (len(log_ids) - 2), 0]
    assert told(files.after_power_loss(), *log_ids) == expected


# --- Threads --------------------------------------------------------------------------------------------------------


def test_two_threads_keep_all_that_they_promise(tmp_path: Path) -> None:
    """By both raising promises of their own logs and of one that they share, on a real disk."""
    promises = FencedEpochs.open(OS_FILES, tmp_path)
    together = threading.Barrier(2)

    def promise(own: str, first: int) -> None:
        together.wait(timeout=10)
        for epoch in range(first, 60, 2):
            assert promises.keep(own, epoch) == epoch
            assert promises.keep("shared", epoch) >= epoch

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(promise, "log-a", 1), pool.submit(promise, "log-b", 2)]:
            each.result(timeout=30)
    promises.close()
    again = FencedEpochs.open(OS_FILES, tmp_path)
    assert [again.of(log_id) for log_id in ("log-a", "log-b", "shared")] == [59, 58, 59]
    again.close()


class _Held:
    """A file system whose next sync waits until it is let go."""

    def __init__(self, files: SimulatedFiles) -> None:
        self.syncing, self.go = threading.Event(), threading.Event()
        self._files = files
        files.observer = self._observe

    def _observe(self, moment: Moment) -> None:
        if moment == Moment("during", "fdatasync", PATH):
            self._files.observer = None
            self.syncing.set()
            assert self.go.wait(timeout=10)


def test_nobody_is_told_of_a_promise_before_it_is_on_disk(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """Neither who asks for the promises nor a second thread that promises the same; by a sync that takes long."""
    held = _Held(files)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(promises.keep, "log-a", 5)
        assert held.syncing.wait(timeout=10)
        assert promises.of("log-a") == 0
        second = pool.submit(promises.keep, "log-a", 5)
        assert not second.done()
        held.go.set()
        assert (first.result(timeout=10), second.result(timeout=10)) == (5, 5)
    assert promises.of("log-a") == 5


# --- Crashes --------------------------------------------------------------------------------------------------------


def crashes(files: SimulatedFiles, step: Callable[[], _T]) -> tuple[_T, list[SimulatedFiles]]:
    """What a step gives, and what kills and power losses at each of its operations leave."""
    left: list[SimulatedFiles] = []

    def observe(_: Moment) -> None:
        files.observer = None
        left.extend((files.after_kill(), files.after_power_loss()))
        files.observer = observe

    files.observer = observe
    result = step()
    files.observer = None
    return result, left


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_operation_leaves_the_old_or_the_new(model: DiskModel, seed: int) -> None:
    """Of the promise that was under way; of the others what was said. By crashes at each operation of starts and
    promises, and in each start after them."""
    random = Random(seed)
    files = SimulatedFiles(DIRECTORY, seed=seed, model=model)
    kept = dict.fromkeys(LOGS, 0)
    for _ in range(2):
        promises, left = crashes(files, lambda: FencedEpochs.open(files, DIRECTORY))
        for disk in left:
            assert_found(disk, [list(kept.values())])
        for log_id in random.sample(LOGS, 50):
            kept[log_id] = promises.keep(log_id, random.randint(1, EPOCH_MAX))
        for log_id in random.sample(LOGS, 3):
            old = list(kept.values())
            epoch = random.randint(1, EPOCH_MAX)
            kept[log_id] = max(epoch, kept[log_id])
            given, left = crashes(files, lambda: promises.keep(log_id, epoch))  # noqa: B023 - called at once
            assert given == kept[log_id]
            for disk in left:
                assert_found(disk, [old, list(kept.values())])
        assert told(files.after_power_loss(), *LOGS) == list(kept.values())


def assert_found(disk: SimulatedFiles, allowed: list[list[int]]) -> None:
    """One of these; and whatever a start has found is found by all after it, wherever that start is crashed."""
    found, left = crashes(disk, lambda: told(disk, *LOGS))
    assert found in allowed
    assert told(disk.after_power_loss(), *LOGS) == found
    for each in left[::3]:
        assert told(each, *LOGS) in allowed


def test_what_was_found_in_memory_only_is_on_disk_before_it_is_told(
    files: SimulatedFiles, promises: FencedEpochs
) -> None:
    """The next process answers by it, and syncs nothing for a promise that it knows; by syncs that fail and leave their
    pages clean, restarts and power losses."""
    files.model = DiskModel(forgets=True)
    seen = set()
    for epoch in range(2, 40):
        files.faults.fail("fdatasync", times=1)
        with pytest.raises(DiskFailed, match="check the disk"):
            promises.keep("log-a", epoch)
        files = files.after_kill()
        promises = FencedEpochs.open(files, DIRECTORY)
        files.evict()
        found = promises.of("log-a")
        assert told(files.after_power_loss(), "log-a") == [found]
        seen.add(found == epoch)
    assert seen == {False, True}, "a restart may find such a promise or not"


# --- Disks that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_promise_that_failed_was_not_given_and_can_be_given_again(
    files: SimulatedFiles, promises: FencedEpochs, operation: str, code: int, forgets: bool
) -> None:
    """What was promised before stays throughout; by several failures in a row, and then none."""
    files.model = DiskModel(forgets=forgets)
    promises.keep("log-a", 2)
    promises.keep("log-b", 2)
    files.faults.fail(operation, code, times=3)
    for _ in range(3):
        with pytest.raises(DiskFull if code == errno.ENOSPC else DiskFailed, match="cannot write"):
            promises.keep("log-a", 3)
        assert promises.of("log-a") == 2
        for disk in (files.after_kill(), *(files.after_power_loss() for _ in range(5))):
            a, b = told(disk, "log-a", "log-b")
            assert a in (2, 3)
            assert b == 2
    promises.keep("log-b", 9)
    assert promises.keep("log-a", 4) == 4
    assert [told(files.after_power_loss(), "log-a", "log-b") for _ in range(5)] == [[4, 9]] * 5


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_behind_a_failed_promise_spoils_no_other(seed: int) -> None:
    """What a failed sync tore may be torn still; by crashes at each operation of the promise after it."""
    files = SimulatedFiles(DIRECTORY, seed=seed, model=DiskModel(forgets=seed % 2 == 0))
    promises = FencedEpochs.open(files, DIRECTORY)
    old = EPOCH_MAX // 2  # a large number, so that a slot has two sectors
    for log_id in LOGS:
        promises.keep(log_id, old)
    files.faults.fail("fdatasync", times=1)
    with pytest.raises(DiskFailed):
        promises.keep(LOGS[0], old + 1)
    _, left = crashes(files, lambda: promises.keep(LOGS[-1], old + 2))
    for disk in left:
        first, *others, last = told(disk, *LOGS)
        assert (first in (old, old + 1), set(others), last in (old, old + 2)) == (True, {old}, True)


FIRST_START: Final = {
    "create": 1,
    "rename": 1,
    "pwrite": 3,
    "fdatasync": 3,
    "fsync_directory": 2,
    "open": 2,
    "pread": 1,
}
"""How often a start on a blank disk does each."""
LATER_START: Final = {"pwrite": 2, "fdatasync": 2, "fsync_directory": 1, "open": 2, "pread": 1}


@pytest.mark.parametrize(
    ("kept", "operation", "first"),
    [
        (kept, operation, first)
        for kept, operations in ((0, FIRST_START), (6, LATER_START))
        for operation, times in operations.items()
        for first in range(1, times + 1)
    ],
)
def test_a_start_that_failed_is_said_and_loses_nothing(kept: int, operation: str, first: int) -> None:
    """By a failure of each of its operations, on a blank disk and on one with a promise."""
    files = SimulatedFiles(DIRECTORY, seed=first, model=DiskModel(forgets=True, ordered_names=False))
    if kept:
        FencedEpochs.open(files, DIRECTORY).keep("log-a", kept)
    files.faults.fail(operation, first=first, times=1)
    with pytest.raises(DiskFailed, match=str(PATH)):
        FencedEpochs.open(files, DIRECTORY)
    assert told(files.after_power_loss(), "log-a") == [kept]
    assert told(files, "log-a") == [kept]


# --- Files that are not as they were written ------------------------------------------------------------------------


def slot(number: int, payload: bytes, *, version: int = 1) -> bytes:
    """As another version writes it."""
    head = b"MLPR" + version.to_bytes(4, "little") + number.to_bytes(8, "little") + len(payload).to_bytes(4, "little")
    return head + crc32c(payload, crc32c(head)).to_bytes(4, "little") + payload


def write(file: File, content: bytes, at: int) -> None:
    file.pwrite(content, at)
    file.close()


def test_one_damaged_slot_is_repaired(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """A start has written both, so either will do; by flipping a bit of each byte of one, and later of the other."""
    promises.keep("log-a", 5)
    promises = FencedEpochs.open(files, DIRECTORY)
    length = len(files.content(PATH)[:SLOT_BYTES].rstrip(b"\0"))
    for at in range(length):
        damaged = files.after_kill()
        for place in (at, SLOT_BYTES + at):
            damaged.flip_bit(PATH, place, at % 8)
            assert told(damaged, "log-a") == [5]


def test_damage_to_both_slots_is_refused(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """A promise may be gone; by flipping a bit of each, and by cutting the file."""
    damaged = files.after_kill()
    damaged.flip_bit(PATH, 3, 1)
    damaged.flip_bit(PATH, SLOT_BYTES + 9, 1)
    short, empty = files.after_kill(), files.after_kill()
    for disk, content in ((short, files.content(PATH)[:20]), (empty, b"")):
        write(disk.open(PATH, create=True), content, 0)
    for disk in (damaged, short, empty):
        with pytest.raises(LogCorrupt, match="remove it and the file `starts`"):
            FencedEpochs.open(disk, DIRECTORY)


def test_what_a_newer_version_wrote_is_named_so(files: SimulatedFiles, promises: FencedEpochs) -> None:
    """Its promises count too; by a slot of the next format, and by promises that are no numbers."""
    for content in (slot(90, b"?", version=2), slot(90, msgspec.msgpack.encode({"log-a": "all"}))):
        write(files.open(PATH), content, 0)
        with pytest.raises(UnsupportedVersion, match="start the version that wrote it"):
            FencedEpochs.open(files, DIRECTORY)


def test_it_works_on_a_real_disk(tmp_path: Path) -> None:
    """By promises of two lives in a real directory."""
    for epoch in (3, 5):
        promises = FencedEpochs.open(OS_FILES, tmp_path)
        assert promises.keep("log-a", epoch) == epoch
        promises.close()
        promises.close()
        with pytest.raises(DiskFailed):
            promises.keep("log-a", 9)
    promises = FencedEpochs.open(OS_FILES, tmp_path)
    assert promises.of("log-a") == 5
    promises.close()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
