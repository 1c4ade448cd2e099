"""Epoch lists, common points, and cutting a copy back to one."""

import random
from pathlib import Path

import pytest

from mirrorlog.commitlog.epochs import (
    ENTRIES_MAX,
    LIST_BYTES_MAX,
    Epoch,
    EpochList,
    common_point,
    decode_epochs,
    encode_epochs,
)
from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.commitlog.flush import SLOT_BYTES, Checkpoint, FlushJob
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.errors import BadRequest, DiskFailed
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest
from tests.commitlog.faulty import FaultyFiles
from tests.commitlog.logs import (
    KIB,
    abandon,
    append_sizes,
    flush,
    mapped,
    open_log,
    patch,
    segment_files,
    stored,
)

MIB = 1024 * KIB


def epoch_list(*entries: tuple[int, int]) -> EpochList:
    return EpochList.of(Epoch(*entry) for entry in entries)


def test_the_epoch_at_an_offset_is_that_of_the_last_entry_at_or_below_it() -> None:
    """Goal: at() around borders, an epoch that wrote nothing included."""
    epochs = epoch_list((1, 0), (3, 100), (4, 100), (6, 250))
    assert [epochs.at(offset) for offset in (0, 99, 100, 249, 250, 10**9)] == [1, 1, 4, 4, 6, 6]
    assert EpochList().at(0) == 0
    assert (epochs.current, EpochList().current) == (6, 0)
    assert [epochs.data_epoch(end) for end in (0, 1, 100, 101, 250, 251)] == [0, 1, 1, 4, 4, 6]


@pytest.mark.parametrize(
    "entries", [[(0, 0)], [(2, 0), (2, 8)], [(2, 0), (1, 8)], [(1, 8), (2, 0)], [(1, -8)], [(2**32, 0)]]
)
def test_entries_that_are_no_history_are_refused(entries: list[tuple[int, int]]) -> None:
    """Goal: a list from outside is checked. Zero, repeated, falling and oversized entries."""
    with pytest.raises(BadRequest, match="cannot follow"):
        epoch_list(*entries)


def test_opening_an_epoch_drops_entries_beyond_the_end() -> None:
    """Goal: a promoted mirror forgets what it never received. Its list went on to 200, its bytes to 100."""
    epochs = epoch_list((1, 0), (2, 200))
    assert epochs.opened(3, 100) == epoch_list((1, 0), (3, 100))
    assert epochs.opened(3, 200) == epoch_list((1, 0), (2, 200), (3, 200))
    with pytest.raises(BadRequest, match="not above 2"):
        epochs.opened(2, 300)


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "point"),
    [
        pytest.param([(1, 0)], 80, [(1, 0)], 100, 80, id="behind in the same epoch"),
        pytest.param([(1, 0)], 100, [(1, 0)], 80, 80, id="ahead in the same epoch"),
        pytest.param([(1, 0)], 100, [(1, 0), (2, 80)], 200, 80, id="wrote on in an epoch that ended for the others"),
        pytest.param([(1, 0)], 60, [(1, 0), (2, 80)], 200, 60, id="behind, the other has a new epoch"),
        pytest.param([(1, 0), (2, 50)], 90, [(1, 0), (3, 70)], 90, 50, id="own epoch 2 that nobody saw"),
        pytest.param([(1, 0), (2, 50)], 90, [(1, 0), (2, 60)], 90, 50, id="same number, other start"),
        pytest.param([(1, 0), (2, 200)], 100, [(1, 0), (2, 200), (3, 300)], 400, 100, id="list beyond own end"),
        pytest.param([(1, 0), (2, 200)], 100, [(1, 0), (2, 200)], 150, 100, id="both lists beyond their ends"),
        pytest.param([(1, 0), (2, 100), (3, 100)], 100, [(1, 0), (2, 100), (4, 120)], 150, 100, id="empty epochs"),
        pytest.param([(2, 0)], 100, [(1, 0)], 100, None, id="nothing in common"),
        pytest.param([], 0, [(1, 0)], 100, 0, id="an empty copy"),
        pytest.param([(1, 0)], 100, [], 0, 0, id="an empty other"),
        pytest.param([], 100, [(1, 0)], 100, None, id="bytes without a list"),
    ],
)
def test_the_common_point_is_the_smaller_end_of_the_last_common_epoch(
    own: list[tuple[int, int]], own_end: int, other: list[tuple[int, int]], other_end: int, point: int | None
) -> None:
    """Goal: invariant 1's rule, case by case, and that it is the same seen from either side."""
    assert common_point(epoch_list(*own), own_end, epoch_list(*other), other_end) == point
    assert common_point(epoch_list(*other), other_end, epoch_list(*own), own_end) == point


def test_the_epoch_file_round_trips_and_refuses_every_changed_byte() -> None:
    """Goal: the file is checked as a whole. Flip each bit-group of it in turn, cut it short, make it longer."""
    epochs = EpochList.of([Epoch(1, 0, "n1", "s-1"), Epoch(5, 4096, "né", "")])
    content = encode_epochs(epochs)
    assert decode_epochs(content) == epochs
    for at in range(len(content)):
        spoiled = bytearray(content)
        spoiled[at] ^= 0x55
        with pytest.raises(ValueError, match=r"\w"):
            decode_epochs(bytes(spoiled))
    for wrong in (content[:-1], content + b"\0", b""):
        with pytest.raises(ValueError, match=r"bytes|checksum"):
            decode_epochs(wrong)


def test_a_list_has_a_limit_that_is_named() -> None:
    """Goal: a list stays within what files and messages hold. The longest one with the longest names fits; one entry
    more is refused."""
    name, start_id = "n" * 128, "0" * 36
    longest = EpochList.of(Epoch(number + 1, 2**62, name, start_id) for number in range(ENTRIES_MAX))
    assert decode_epochs(encode_epochs(longest)) == longest
    assert len(encode_epochs(longest)) < LIST_BYTES_MAX
    entries = [EpochEntry(*entry) for entry in longest.entries]
    assert len(encode(FollowRequest(log_id=start_id, epochs=entries, begin=0, end=2**62, confirmed=0))) < LIST_BYTES_MAX
    with pytest.raises(BadRequest, match=f"limit of {ENTRIES_MAX}: each start of a master adds one"):
        longest.opened(ENTRIES_MAX + 1, 2**62)


@pytest.mark.parametrize("seed", range(30))
def test_lists_agree_where_each_byte_has_the_same_epoch(seed: int) -> None:
    """Goal: `agrees_below` means what it says. Random lists of few numbers and writers, against the entry at each
    offset."""
    rng = random.Random(seed)

    def some_list() -> EpochList:
        count = rng.randint(0, 4)
        starts = sorted(rng.choices(range(6), k=count))
        numbers = sorted(rng.sample(range(1, 6), count))
        return EpochList.of(Epoch(*entry, rng.choice("ab")) for entry in zip(numbers, starts, strict=True))

    for _ in range(300):
        own, other, end = some_list(), some_list(), rng.randint(0, 7)
        naive = all(own.held(at)[-1:] == other.held(at)[-1:] for at in range(end))
        assert own.agrees_below(end, other) == naive, (own, other, end)


def test_epochs_survive_a_kill(tmp_path: Path) -> None:
    """Goal: an opened epoch is on disk when open_epoch returns. Open two, abandon, reopen."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400])
    log.open_epoch(5)
    abandon(log)
    log = open_log(tmp_path)
    assert log.epochs == epoch_list((1, 0), (5, 400))
    with pytest.raises(BadRequest, match="not above 5"):
        log.open_epoch(5)


def test_a_list_that_denies_held_bytes_is_not_adopted(tmp_path: Path) -> None:
    """Goal: a list never disowns bytes without a cut. Offer lists that differ below and above the end."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400, 400])
    with pytest.raises(BadRequest, match="truncate"):
        log.adopt_epochs([Epoch(1, 0), Epoch(2, 400)])
    with pytest.raises(BadRequest, match="truncate"):
        log.adopt_epochs([Epoch(2, 0)])
    log.adopt_epochs([Epoch(1, 0), Epoch(2, 800), Epoch(3, 1200)])
    assert log.epochs.current == 3


@pytest.mark.parametrize("point", [0, 400, 800, 1200, 1600, 2000])
@pytest.mark.parametrize("after", ["kill", "close"])
def test_a_cut_removes_everything_from_its_point_on_for_good(tmp_path: Path, point: int, after: str) -> None:
    """Goal: the cut and the list are on disk when truncate returns. Cut a flushed log of five at each border."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * 5)
    flush(log)
    content = stored(log)
    log.truncate(point, [Epoch(1, 0), Epoch(2, point)] if point else [Epoch(2, 0)])
    assert (log.end, log.flushed, stored(log)) == (point, point, content[:point])
    if after == "kill":
        abandon(log)
    else:
        log.close()
    log = open_log(tmp_path, segment_bytes=1000)
    assert log.recovery.clean
    assert (log.end, log.flushed, stored(log), log.epochs.current) == (point, point, content[:point], 2)
    on_disk = b"".join(path.read_bytes() for path in segment_files(tmp_path))
    assert on_disk.rstrip(b"\0").endswith(content[:point].rstrip(b"\0")[-50:])
    log.open_epoch(3)
    append_sizes(log, [400, 400])
    assert mapped(log) == stored(log)


def test_a_cut_refuses_confirmed_bytes_middles_and_lists_that_do_not_fit(tmp_path: Path) -> None:
    """Goal: invariant 1. Try to cut below the confirmed offset, inside a batch, beyond the end, with a wrong list."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400] * 5)
    log.set_confirmed(800)
    for point, entries, message in [
        (400, [Epoch(1, 0)], "is confirmed"),
        (808, [Epoch(1, 0)], "not where a batch begins"),
        (2400, [Epoch(1, 0)], "not where a batch begins"),
        (1200, [Epoch(1, 0), Epoch(2, 800)], "does not fit"),
    ]:
        with pytest.raises(BadRequest, match=message):
            log.truncate(point, entries)
    assert log.end == 2000
    log.truncate(800, [Epoch(1, 0), Epoch(2, 800)])
    assert log.end == 800


def sealed_log(directory: Path, files: Files = OS_FILES) -> CommitLog:
    """Five batches of 400 bytes, all confirmed and flushed, two to a segment; the first two segments are sealed."""
    log = open_log(directory, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * 5)
    log.set_confirmed(2000)
    log.set_state_from(1600)
    log.close()
    log = open_log(directory, segment_bytes=1000, files=files)
    assert [segment.sealed for segment in log._chain.segments] == [True, True, False]
    return log


@pytest.mark.parametrize("point", [0, 400, 800, 1200, 1600, 2000])
@pytest.mark.parametrize("after", ["kill", "close"])
def test_what_is_declared_lost_is_cut_though_it_is_confirmed_and_sealed(tmp_path: Path, point: int, after: str) -> None:
    """Goal: such a cut is as good as any. Cut at each border; the next start is not lossy, speaks of no more than what
    is left, keeps no table of what is gone, and the log goes on from there."""
    log = sealed_log(tmp_path)
    content = stored(log)
    log.truncate(point, [Epoch(1, 0), Epoch(2, point)] if point else [Epoch(2, 0)], lost=True)
    assert (log.end, log.confirmed, log.flushed, log.state_from) == (point, point, point, 0)
    if after == "kill":
        abandon(log)
    else:
        log.close()
    tables = {int(path.stem) for path in tmp_path.glob("*.table")}
    assert tables == {start for start in (0, 800) if start + 800 <= point}
    log = open_log(tmp_path, segment_bytes=1000)
    assert log.recovery.clean
    assert (log.end, log.confirmed, log.flushed, stored(log)) == (point, point, point, content[:point])
    log.open_epoch(3)
    append_sizes(log, [400] * 5)
    after_all = stored(log)
    assert (after_all[:point], mapped(log), log.end) == (content[:point], after_all, point + 2000)
    abandon(log)
    assert stored(open_log(tmp_path, segment_bytes=1000)) == after_all


def test_what_is_declared_lost_is_cut_at_a_border_and_not_below_the_begin(tmp_path: Path) -> None:
    """Goal: a declared loss excuses the confirmed offset and nothing else. Try within batches, of sealed segments too,
    and below the begin."""
    log = sealed_log(tmp_path)
    for point in (8, 392, 1208, 1608, 2008):
        with pytest.raises(BadRequest, match="not where a batch begins"):
            log.truncate(point, [Epoch(1, 0)], lost=True)
    log.move_start(800)
    with pytest.raises(BadRequest, match="below the begin"):
        log.truncate(400, [Epoch(1, 0)], lost=True)
    assert (log.end, log.confirmed) == (2000, 2000)


def test_a_crash_at_any_step_of_a_cut_of_what_was_confirmed_leaves_a_log_that_opens(tmp_path: Path) -> None:
    """Goal: the order of its steps: the confirmed offset goes down before the bytes go, or a start in between would be
    lossy. Fail each disk call of it in turn, abandon, reopen; what is left is the whole log or less, never below the
    cut."""
    steps = 0
    for operation in ("pwrite", "fdatasync", "rename", "unlink", "fsync_directory", "create", "open"):
        for number in range(1, 14):
            directory = tmp_path / f"{operation}-{number}"
            files = FaultyFiles()
            log = sealed_log(directory, files)
            content = stored(log)
            files.disk.fail(operation, first=number)
            try:
                log.truncate(400, [Epoch(1, 0), Epoch(2, 400)], lost=True)
            except DiskFailed:
                steps += 1
            else:
                abandon(log)
                break
            abandon(log)
            log = open_log(directory, segment_bytes=1000)
            assert content.startswith(stored(log))
            assert log.end >= 400
            assert not log.recovery.lossy
            abandon(log)
            assert open_log(directory, segment_bytes=1000).recovery.clean
    assert steps > 10


def test_a_master_that_lost_its_end_is_not_lossy_for_ever(tmp_path: Path) -> None:
    """Goal: a copy that is promoted though it ends below its own confirmed offset, its loss declared, speaks of that no
    more. Cut the file behind the log's back, start, open an epoch and settle; the next start has nothing to report."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400, 400])
    flush(log)
    append_sizes(log, [400, 400])
    log.set_confirmed(1600)
    checkpoint = Checkpoint(0, 800, 1600, 0)
    log._flusher._checkpoints.write_both(checkpoint)
    abandon(log)
    patch(segment_files(tmp_path)[0], 1200, bytes(400))
    log = open_log(tmp_path)
    assert (log.lossy, log.end, log.confirmed) == (True, 1200, 1200)
    log.open_epoch(2)
    log.settle_loss()
    abandon(log)
    log = open_log(tmp_path)
    assert (log.recovery.lossy, log.recovery.clean, log.confirmed) == (False, True, 1200)


def test_a_cut_believes_in_no_state_checkpoint_that_is_not_on_disk(tmp_path: Path) -> None:
    """Goal: what a start does not walk is told by a state checkpoint that it finds. Cut a log whose newest one is
    confirmed and not flushed: on disk the one before stays."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400] * 4)
    log.set_confirmed(800)
    log.set_state_from(400)
    flush(log)
    append_sizes(log, [400] * 4)
    log.set_confirmed(2800)
    log.set_state_from(2400)
    log.truncate(2800, [Epoch(1, 0), Epoch(2, 2800)])
    assert log.state_from == 2400
    assert log._flusher.stored == Checkpoint(0, 1600, 2800, 400)


def test_a_flush_that_began_before_a_cut_does_not_claim_the_cut_bytes(tmp_path: Path) -> None:
    """Goal: jobs from before a cut are void. Start a flush, cut, then run and complete it, and reopen."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400, 400])
    job = log.start_flush()
    log.truncate(400, [Epoch(1, 0), Epoch(2, 400)])
    job.run()
    assert log.complete_flush(job) == 0
    abandon(log)
    log = open_log(tmp_path)
    assert (log.end, log.flushed) == (400, 0)


def test_a_flush_that_begins_during_a_cut_does_not_claim_the_cut_bytes(tmp_path: Path) -> None:
    """Goal: the loop goes on while a helper cuts. Start a flush at every disk call of a cut, run them all, reopen."""
    files = FaultyFiles()
    log = open_log(tmp_path, epoch=1, files=files)
    append_sizes(log, [400, 400])
    jobs: list[FlushJob] = []
    count = files.disk.call

    def call_and_start_a_flush(operation: str) -> None:
        count(operation)
        jobs.append(log.start_flush())

    with pytest.MonkeyPatch.context() as patch_disk:
        patch_disk.setattr(files.disk, "call", call_and_start_a_flush)
        log.truncate(400, [Epoch(1, 0), Epoch(2, 400)])
    assert len(jobs) > 3
    for job in jobs:
        job.run()
        assert log.complete_flush(job) <= log.end
    abandon(log)
    log = open_log(tmp_path)
    assert (log.end, log.flushed) == (400, 0)


@pytest.mark.parametrize("same_list", [False, True])
def test_a_crash_at_any_step_of_a_cut_leaves_a_log_that_opens(tmp_path: Path, same_list: bool) -> None:
    """Goal: the order of a cut's steps. Fail each disk call of it in turn, abandon, reopen."""
    steps = 0
    for operation in ("pwrite", "fdatasync", "rename", "unlink", "fsync_directory", "create", "open"):
        for number in range(1, 10):
            directory = tmp_path / f"{operation}-{number}"
            files = FaultyFiles()
            log = open_log(directory, segment_bytes=1000, epoch=1, files=files)
            append_sizes(log, [400] * 7)
            flush(log)
            content = stored(log)
            files.disk.fail(operation, first=number)
            try:
                log.truncate(400, [Epoch(1, 0)] if same_list else [Epoch(1, 0), Epoch(2, 400)])
            except DiskFailed:
                steps += 1
            else:
                abandon(log)
                break
            abandon(log)
            log = open_log(directory, segment_bytes=1000)
            assert content.startswith(stored(log))
            assert log.end >= 400
            assert not log.recovery.lossy
            abandon(log)
            assert open_log(directory, segment_bytes=1000).recovery.clean
    assert steps > 10


def test_a_cut_that_was_interrupted_while_zeroing_is_finished_by_recovery(tmp_path: Path) -> None:
    """Goal: under the new list the cut bytes are no batches, so there is no hole. Fail the second zeroing write."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=6 * MIB, epoch=1, files=files)
    append_sizes(log, [256 * KIB] * 20)
    flush(log)
    content = stored(log)
    zeroing = 2 + 1 + 1  # after two checkpoint slots and the epoch list
    files.disk.fail("pwrite", first=zeroing + 1)
    with pytest.raises(DiskFailed):
        log.truncate(256 * KIB, [Epoch(1, 0), Epoch(2, 256 * KIB)])
    abandon(log)
    log = open_log(tmp_path, segment_bytes=6 * MIB)
    assert log.recovery.clean
    assert stored(log) == content[: 256 * KIB]
    log.open_epoch(3)
    append_sizes(log, [112, 256 * KIB, 400])
    after = stored(log)
    abandon(log)
    log = open_log(tmp_path, segment_bytes=6 * MIB)
    assert (log.recovery.clean, stored(log)) == (True, after), "what the cut left is never taken for batches"


def test_after_a_cut_no_older_checkpoint_claims_the_cut_bytes(tmp_path: Path) -> None:
    """Goal: a lowered flushed offset is in both slots. Cut, spoil the newest slot, reopen: no corruption is seen."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400, 400])
    flush(log)
    flush(log)
    log.truncate(400, [Epoch(1, 0), Epoch(2, 400)])
    abandon(log)
    content = (tmp_path / "checkpoint").read_bytes()
    numbers = [int.from_bytes(content[at + 8 : at + 16], "little") for at in (0, SLOT_BYTES)]
    patch(tmp_path / "checkpoint", numbers.index(max(numbers)) * SLOT_BYTES, bytes(16))
    log = open_log(tmp_path)
    assert (log.end, log.flushed) == (400, 400)
