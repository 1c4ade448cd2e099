"""The reserve: the end of a segment that data leaves to acks and control while no next segment is there."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from mirrorlog.commitlog.format.envelope import EnvelopePart, envelope_bytes
from mirrorlog.commitlog.format.header import BatchHeader, Kind
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.segments.preallocation import Preparer
from mirrorlog.commitlog.segments.segment import make_spare_file
from mirrorlog.errors import BatchTooLarge, DiskFull
from tests.commitlog.faulty import FaultyFiles
from tests.commitlog.logs import KIB, append, make_batch, open_log, sized_batch, stored, warm

SEGMENT = 4000
RESERVE = 800
CONTROL = make_batch(b"c" * 96, queue_id=0, kind=Kind.CONTROL)
assert len(CONTROL) == 200


def reserved(directory: Path, files: FaultyFiles, *, write_through: bool = False) -> CommitLog:
    log = open_log(directory, segment_bytes=SEGMENT, epoch=1, files=files, write_through=write_through)
    log.keep_reserve(RESERVE)
    return log


def append_until_refused(log: CommitLog, batch: memoryview) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    while len(found) < 1000:
        try:
            found.append(append(log, batch))
        except DiskFull:
            return found
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("write_through", [False, True])
def test_data_leaves_the_reserve_on_a_full_disk_and_control_takes_it(tmp_path: Path, write_through: bool) -> None:
    """Goal: what frees space still lands. Deny space, append data until it is refused, then control until that is."""
    files = FaultyFiles()
    log = reserved(tmp_path, files, write_through=write_through)
    files.disk.fail("allocate", errno.ENOSPC)
    assert len(append_until_refused(log, sized_batch(400))) == (SEGMENT - RESERVE) // 400
    with pytest.raises(DiskFull, match="No space left on device; free space on its disk"):
        append(log, sized_batch(400))
    assert append(log, CONTROL).log_offset == SEGMENT - RESERVE
    append_until_refused(log, sized_batch(400))
    assert len(append_until_refused(log, CONTROL)) == RESERVE // 200 - 1
    assert log.end == SEGMENT
    files.disk.heal()
    append(log, sized_batch(400))
    assert log.end == SEGMENT + 400
    content = stored(log)
    log.close()
    log = open_log(tmp_path, segment_bytes=SEGMENT)
    assert log.recovery.clean
    assert stored(log) == content


def test_a_transaction_that_only_acknowledges_lands_where_acks_do(tmp_path: Path) -> None:
    """Goal: on a full disk a subscriber goes on, alone or in a transaction. Method: append data until it is refused;
    acks alone, a transaction of acks, and one with data, at a master, then all of it at a mirror on a full disk."""
    files = FaultyFiles()
    log = reserved(tmp_path / "master", files)
    copy_files = FaultyFiles()
    copy = open_log(tmp_path / "copy", segment_bytes=SEGMENT, epoch=1, files=copy_files)
    copy.keep_reserve(1)
    files.disk.fail("allocate", errno.ENOSPC)
    append_until_refused(log, sized_batch(400))
    ack, data = make_batch(b"a", kind=Kind.QUEUE_STATE), sized_batch(200)
    with pytest.raises(DiskFull):
        log.append_transaction([EnvelopePart(ack, 0), EnvelopePart(data, 0)], append_time_us=1)
    transaction = [EnvelopePart(ack, 0), EnvelopePart(ack, 0)]
    # It ends the segment: behind data the next one would have to be there.
    rest = SEGMENT - log.end - envelope_bytes([part.batch for part in transaction])
    append(log, make_batch(b"c" * (rest - 104), queue_id=0, kind=Kind.CONTROL))
    outer, *_ = log.append_transaction(transaction, append_time_us=1)[0]
    assert log.end == SEGMENT
    content = memoryview(stored(log))
    copy.append_run(content[: outer.log_offset], log_offset=0)
    copy_files.disk.fail("allocate", errno.ENOSPC)
    copy.append_run(content[outer.log_offset :], log_offset=outer.log_offset)
    assert copy.end == SEGMENT


def test_data_takes_the_reserve_when_the_next_file_is_there(tmp_path: Path) -> None:
    """Goal: with space the reserve costs nothing. Prepare ahead and append: every file is used up, nothing is made on
    the loop."""
    files = FaultyFiles()
    log = reserved(tmp_path, files)
    for _ in range(5 * SEGMENT // 400):
        append(log, sized_batch(400))
        while warm(log):
            pass
    assert log.stalls == 0
    assert [segment.start for segment in log.segments()] == [0, SEGMENT, 2 * SEGMENT, 3 * SEGMENT]


def test_a_file_that_is_there_is_used_up_on_a_full_disk(tmp_path: Path) -> None:
    """Goal: no byte that is allocated already is refused to data, but for one reserve. Prepare a file, deny more."""
    files = FaultyFiles()
    log = reserved(tmp_path, files)
    for _ in range(6):
        append(log, sized_batch(400))
    while warm(log):
        pass
    files.disk.fail("allocate", errno.ENOSPC)
    append_until_refused(log, sized_batch(400))
    assert log.end == 2 * SEGMENT - RESERVE
    append(log, CONTROL)


def test_a_batch_that_leaves_no_reserve_in_a_new_file_needs_one_more(tmp_path: Path) -> None:
    """Goal: a batch nearly as long as a segment is no way around the reserve. Allow one more file, not two."""
    files = FaultyFiles()
    log = reserved(tmp_path, files)
    append(log, sized_batch(400))
    files.disk.fail("allocate", errno.ENOSPC, first=2)
    with pytest.raises(DiskFull):
        append(log, sized_batch(SEGMENT))
    assert log.end == 400
    append(log, CONTROL)
    files.disk.heal()
    append(log, sized_batch(SEGMENT))
    with pytest.raises(BatchTooLarge):
        append(log, sized_batch(SEGMENT + 8))


def test_no_file_is_made_for_data_beyond_what_is_allowed(tmp_path: Path) -> None:
    """Goal: a disk that is to keep some space is not asked, and control is not held to that. Allow a byte less than a
    segment, then a segment; count the attempts."""
    files = FaultyFiles()
    log = reserved(tmp_path, files)
    log.allow_bytes(SEGMENT - 1)
    made = files.disk.calls["allocate"]
    while log.end < SEGMENT - RESERVE:
        append(log, sized_batch(400))
        assert not warm_spare(log)
    append_until_refused(log, sized_batch(400))
    assert files.disk.calls["allocate"] == made
    with pytest.raises(DiskFull, match=r"log\.disk_full_percent"):
        append(log, sized_batch(400))
    for _ in range(RESERVE // 200 + 1):
        append(log, CONTROL)
    assert files.disk.calls["allocate"] == made + 1, "control has made its file"
    append_until_refused(log, sized_batch(400))
    log.allow_bytes(SEGMENT)
    append_until_refused(log, sized_batch(400))
    assert files.disk.calls["allocate"] == made + 2, "one file, and what it took counts"


def test_a_log_says_why_its_disk_gives_it_no_file_for_as_long_as_it_does(tmp_path: Path) -> None:
    """Goal: who looks sees a full disk while data is refused. Refused for what is to be kept free, then by the system,
    which says that it has space: only a file proves it."""
    files = FaultyFiles()
    log = reserved(tmp_path, files)
    log.allow_bytes(SEGMENT - 1)
    assert log.disk_refusal == ""
    append_until_refused(log, sized_batch(400))
    log.allow_bytes(SEGMENT - 1)
    assert "log.disk_full_percent" in log.disk_refusal
    log.allow_bytes(1 << 40)
    assert log.disk_refusal == ""
    files.disk.fail("allocate", errno.ENOSPC)
    append_until_refused(log, sized_batch(400))
    log.allow_bytes(1 << 40)
    assert "No space left" in log.disk_refusal
    files.disk.heal()
    append(log, sized_batch(400))
    assert log.disk_refusal == ""


def warm_spare(log: CommitLog) -> bool:
    warm(log)
    return log._preparer.spare is not None


def test_a_full_disk_is_asked_once_per_measurement(tmp_path: Path) -> None:
    """Goal: a storm of retries does not make the loop try for space each time. Deny, retry often, measure, retry."""
    files = FaultyFiles()
    log = reserved(tmp_path, files)
    files.disk.fail("allocate", errno.ENOSPC)
    for measurement in (1, 2):
        log.allow_bytes(1 << 40)
        before = files.disk.calls["allocate"]
        append_until_refused(log, sized_batch(400))
        append_until_refused(log, sized_batch(400))
        assert files.disk.calls["allocate"] == before + 1, measurement


@pytest.mark.parametrize("seed", range(20))
def test_control_is_never_refused_before_it_has_used_up_a_reserve(tmp_path: Path, seed: int) -> None:
    """Goal: the reserve holds whatever came before. Random data and control of any size, with the disk full and not,
    helpers in between: in each segment control is taken until it has used up a reserve, less one batch."""
    rng = random.Random(seed)
    files = FaultyFiles()
    log = reserved(tmp_path, files)
    full = False
    used, segment = 0, 0
    for _ in range(400):
        action = rng.random()
        if action < 0.06:
            full = not full
            if full:
                files.disk.fail("allocate", errno.ENOSPC)
            else:
                files.disk.heal()
        elif action < 0.3:
            warm(log)
            log.allow_bytes(rng.choice([0, SEGMENT, 1 << 40]))
        elif action < 0.7:
            with_refusal(log, sized_batch(8 * rng.randint(14, SEGMENT // 8)))
        else:
            length = 8 * rng.randint(14, 25)
            taken = with_refusal(log, make_batch(b"c" * (length - 104), queue_id=0, kind=Kind.CONTROL))
            used, segment = used * (log.active_start == segment) + length, log.active_start
            # What is left at the end may be too small for the next batch: 200 bytes at most.
            assert taken or (full and used > RESERVE - 200), (seed, used)


def with_refusal(log: CommitLog, batch: memoryview) -> bool:
    try:
        append(log, batch)
    except DiskFull:
        return False
    return True


def test_a_file_that_is_being_made_is_taken_from_what_is_allowed(tmp_path: Path) -> None:
    """Goal: a roll and a helper do not both use the same allowance. Ask for a file while a job makes one, measure the
    disk meanwhile, and let a job fail."""
    files = FaultyFiles()
    preparer = Preparer(files, tmp_path, segment_bytes=KIB, prepare_bytes=0)
    active = make_spare_file(files, tmp_path / "active", KIB).as_segment(0, tmp_path / "active")
    active.append_border(KIB - 96)
    preparer.allow(KIB * 3 // 2)
    job = preparer.start(active, idle=False)
    assert job is not None
    with pytest.raises(DiskFull):
        preparer.check_allowed()
    preparer.allow(KIB * 3 // 2)
    with pytest.raises(DiskFull):
        preparer.check_allowed()
    job.run()
    preparer.complete(job)
    assert preparer.take() is not None
    preparer.allow(KIB * 3 // 2)
    job = preparer.start(active, idle=False)
    assert job is not None
    files.disk.fail("allocate", errno.ENOSPC)
    job.run()
    preparer.complete(job)
    assert preparer.take() is None
    preparer.check_allowed()
