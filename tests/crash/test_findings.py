"""What the crash points found, each as the shortest story that shows it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.format.header import stamp
from mirrorlog.commitlog.format.rows import RowCollector
from mirrorlog.commitlog.index.blocks import BLOCK_BYTES
from mirrorlog.commitlog.index.table import table_name
from mirrorlog.commitlog.index.tables import Tables, build_table
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.stored_log import LogCondition
from mirrorlog.errors import DiskFailed, DiskFull, MirrorlogError
from sim.disk import DiskModel, Moment, SimulatedFiles
from tests.commitlog.logs import (
    abandon,
    append,
    append_sizes,
    flush,
    make_batch,
    open_log,
    patch,
    segment_files,
    sized_batch,
    stored,
)
from tests.crash.lines import watching_lines

ROOT = Path("/disk")
DIRECTORY = ROOT / "log"
SEEDS = range(40)


def ends(leave: Callable[[SimulatedFiles], SimulatedFiles], model: DiskModel) -> set[int | str]:
    """Where the log ends, or why it does not open, after a story that leaves a disk, over many seeds."""
    found: set[int | str] = set()
    for seed in SEEDS:
        left = leave(SimulatedFiles(ROOT, seed=seed, model=model))
        try:
            found.add(open_log(DIRECTORY, segment_bytes=1000, files=left).end)
        except MirrorlogError as error:
            found.add(error.code)
    return found


def run_of(log: CommitLog, sizes: list[int]) -> bytes:
    """What a master would send."""
    run = bytearray()
    for size in sizes:
        batch = bytearray(sized_batch(size))
        stamp(
            batch, log_offset=log.end + len(run), base_queue_offset=0, append_time_us=1, epoch=log.epochs.current,
            flags=0, seed=log.seed,
        )  # fmt: skip
        run += batch
    return bytes(run)


class KillAtEachLine:
    """Kills at each line, in the middle of the copy that was made since the line before."""

    def __init__(self, disk: SimulatedFiles) -> None:
        self.left: list[SimulatedFiles] = []
        self._disk = disk
        self._before = disk.caches()

    def kill(self) -> None:
        self.left.append(self._disk.after_kill(copying_since=self._before))
        self._before = self._disk.caches()


def test_names_that_a_killed_process_made_are_synced_by_the_next_flush() -> None:
    """Goal: flushed means on disk, the file's name included. Roll, be killed, reopen as a mirror does, flush, lose
    power."""

    def story(disk: SimulatedFiles) -> SimulatedFiles:
        log = open_log(DIRECTORY, segment_bytes=1000, epoch=1, files=disk)
        append_sizes(log, [400, 400])
        flush(log)
        append_sizes(log, [400])
        disk = disk.after_kill()
        log = open_log(DIRECTORY, segment_bytes=1000, files=disk)
        assert flush(log) == 1200
        return disk.after_power_loss()

    assert ends(story, DiskModel(ordered_names=False)) == {1200}


def test_a_node_restarted_after_a_failed_sync_does_not_call_lost_pages_flushed() -> None:
    """Goal: flushed means on disk. A sync fails, the node ends and is started again, its next flush succeeds, then the
    power goes."""

    def story(disk: SimulatedFiles) -> SimulatedFiles:
        log = open_log(DIRECTORY, segment_bytes=1000, epoch=1, files=disk)
        append_sizes(log, [400])
        disk.faults.fail("fdatasync", errno.EIO, times=1)
        with pytest.raises(DiskFailed):
            flush(log)
        disk = disk.after_kill()
        log = open_log(DIRECTORY, segment_bytes=1000, files=disk)
        flushed.append(flush(log))
        return disk.after_power_loss()

    flushed: list[int] = []
    found = ends(story, DiskModel(forgets=True))
    assert "LOG_CORRUPT" not in found
    assert found <= {0, 400}


def test_pages_that_go_while_a_start_reads_them_are_not_called_flushed() -> None:
    """Goal: what recovery has checked is what is on disk later. A sync fails, the node is started again, and the kernel
    lets go pages that were not written after they were read and before they are written again; flush, lose power."""

    def story(disk: SimulatedFiles) -> SimulatedFiles:
        log = open_log(DIRECTORY, segment_bytes=16384, epoch=1, files=disk)
        append_sizes(log, [4096, 4096, 4096])
        disk.faults.fail("fdatasync", errno.EIO, times=1)
        with pytest.raises(DiskFailed):
            flush(log)
        disk = disk.after_kill()

        def evict(moment: Moment) -> None:
            if moment.path.name == "checkpoint":
                disk.evict()

        disk.observer = evict
        try:
            log = open_log(DIRECTORY, segment_bytes=16384, files=disk)
        except DiskFailed as error:
            refused.append(error.message)
            disk.observer = None
            log = open_log(DIRECTORY, segment_bytes=16384, files=disk)
        flush(log)
        return disk.after_power_loss()

    refused: list[str] = []
    assert "LOG_CORRUPT" not in ends(story, DiskModel(forgets=True, unit_bytes=4096))
    assert refused
    assert "reads differently" in refused[0]


def test_a_sync_that_fails_while_pages_are_prepared_is_not_swallowed() -> None:
    """Goal: flushed means on disk. Append, let the sync of the helper that prepares pages fail, which the kernel tells
    nobody else; flush, lose power."""

    def story(disk: SimulatedFiles) -> SimulatedFiles:
        log = open_log(DIRECTORY, segment_bytes=16384, prepare_bytes=1 << 20, epoch=1, files=disk)
        append_sizes(log, [4096])
        job = log.start_prepare()
        assert job is not None
        disk.faults.fail("fdatasync", errno.EIO, times=1)
        job.run()
        log.complete_prepare(job)
        with pytest.raises(DiskFailed):
            flush(log)
        assert log.state is LogCondition.FAILED
        return disk.after_power_loss()

    assert ends(story, DiskModel(forgets=True)) == {0, 4096}


def test_whole_batches_in_a_spare_whose_first_batch_is_torn_are_reported(tmp_path: Path) -> None:
    """Goal: no whole batch is dropped in silence. Lose the name of a rolled file, and a sector of its first batch."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400, 400, 400, 400])
    abandon(log)
    last = segment_files(tmp_path)[-1]
    patch(last, 200, b"\xff")
    last.rename(tmp_path / "spare-9")
    report = open_log(tmp_path, segment_bytes=1000).recovery
    assert report.end == 800
    assert report.lossy
    assert report.cut_valid is not None
    assert (report.cut_valid.first, report.cut_valid.last) == (1200, 1600)


def test_a_kill_while_a_received_run_is_dropped_is_no_loss() -> None:
    """Goal: a kill never makes a start lossy. Receive three batches in place, be killed while they are zeroed."""
    lossy: set[bool] = set()
    for seed in SEEDS[:8]:
        disk = SimulatedFiles(ROOT, seed=seed)
        log = open_log(DIRECTORY, epoch=1, files=disk)
        run = run_of(log, [400, 400, 400])
        memory = log.place_for(len(run))
        assert memory is not None
        memory[:] = run
        crash = KillAtEachLine(disk)
        with watching_lines(crash.kill):
            log.drop_placed(memory)
        lossy |= {open_log(DIRECTORY, files=each).recovery.lossy for each in crash.left}
    assert lossy == {False}


def test_a_loss_is_still_reported_after_a_crash_in_recovery() -> None:
    """Goal: recovery says what it dropped, however often it is interrupted. Lose a batch before a whole one, crash at
    each operation of the recovery that finds it, recover again."""
    disk = SimulatedFiles(ROOT)
    log = open_log(DIRECTORY, epoch=1, files=disk)
    append_sizes(log, [400])
    flush(log)
    append_sizes(log, [400, 400])
    left = disk.after_kill()
    for at in range(500, 600):
        left.flip_bit(DIRECTORY / f"{0:020}", at, 0)
    crashed: list[tuple[Moment, SimulatedFiles]] = []
    left.observer = lambda moment: crashed.append((moment, left.after_kill()))
    assert open_log(DIRECTORY, files=left).recovery.lossy
    forgotten = [moment for moment, disk in crashed if not open_log(DIRECTORY, files=disk).recovery.lossy]
    assert not forgotten


def test_files_are_freed_only_below_a_begin_that_is_on_disk() -> None:
    """Goal: a freed file is never missed. Move the begin, be killed between the checkpoint's write and its sync,
    reopen, lose power."""

    def story(disk: SimulatedFiles) -> SimulatedFiles:
        log = open_log(DIRECTORY, segment_bytes=1000, epoch=1, files=disk)
        append_sizes(log, [400] * 6)
        flush(log)
        log.set_confirmed(1600)
        log.set_state_from(1600)
        log.move_start(1600)
        killed: list[SimulatedFiles] = []

        def kill(moment: Moment) -> None:
            if (moment.when, moment.operation, moment.path.name) == ("after", "pwrite", "checkpoint"):
                killed.append(disk.after_kill())

        disk.observer = kill
        flush(log)
        open_log(DIRECTORY, segment_bytes=1000, files=killed[0])
        return killed[0].after_power_loss()

    assert ends(story, DiskModel()) == {2400}


def test_a_run_that_cannot_be_taken_back_ends_the_log() -> None:
    """Goal: what is refused is not there. Deny the next file to the third batch of a run, and the zeros to the cut."""
    disk = SimulatedFiles(ROOT)
    log = open_log(DIRECTORY, segment_bytes=1000, epoch=1, files=disk)
    disk.faults.fail("allocate", errno.ENOSPC)
    disk.faults.fail("pwrite", errno.ENOSPC)
    with pytest.raises((DiskFull, DiskFailed)):
        log.append_run(memoryview(run_of(log, [400, 400, 400])), log_offset=0)
    assert log.end == 0 or log.state is LogCondition.FAILED


def test_a_table_that_a_kill_left_half_made_is_made_anew(tmp_path: Path) -> None:
    """Goal: a kill while a segment is sealed costs nothing. Leave the replacement file of a table, reopen."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * 6)
    flush(log)
    log.set_confirmed(2400)
    log.set_state_from(2400)
    flush(log)
    abandon(log)
    (tmp_path / f"{0:020}.table.new").write_bytes(b"half of a table")
    assert open_log(tmp_path, segment_bytes=1000).recovery.clean


def test_a_run_received_in_place_and_kept_survives_a_kill() -> None:
    """Goal: receiving in place keeps the order that a kill needs. Receive, keep, be killed."""
    disk = SimulatedFiles(ROOT)
    log = open_log(DIRECTORY, epoch=1, files=disk)
    run = run_of(log, [400, 400])
    memory = log.place_for(len(run))
    assert memory is not None
    memory[:] = run
    log.keep_placed(memory, log_offset=0)
    after = open_log(DIRECTORY, files=disk.after_kill())
    assert (stored(after), after.recovery.clean, after.epochs) == (run, True, EpochList.of(log.epochs.entries))


def test_an_epoch_list_that_a_killed_process_stored_is_on_disk_once_the_log_is_open() -> None:
    """Goal: a log never acts on a list that a power loss takes back. Be killed between the renaming of the list and the
    sync of its name, reopen, lose power."""
    disk = SimulatedFiles(ROOT)
    open_log(DIRECTORY, epoch=1, files=disk)
    killed: list[SimulatedFiles] = []

    def kill(moment: Moment) -> None:
        if (moment.when, moment.operation, moment.path.name) == ("after", "rename", "epochs"):
            killed.append(disk.after_kill())

    disk.observer = kill
    open_log(DIRECTORY, epoch=2, files=disk)
    seen = open_log(DIRECTORY, files=killed[0]).epochs
    assert seen.current == 2
    for _ in SEEDS:
        assert open_log(DIRECTORY, files=killed[0].after_power_loss()).epochs == seen


def full_at(disk: SimulatedFiles, operation: str, number: int) -> None:
    disk.faults.fail(operation, errno.ENOSPC, first=number, times=1)


def test_an_epoch_list_that_may_be_on_disk_after_all_ends_the_log() -> None:
    """Goal: nothing is appended under another list than the one that a restart reads. A full disk at the sync of the
    list's name is a failure; before the list has its name it is not, and the old one stands."""
    for operation, number in (("fsync_directory", 1), ("rename", 1), ("pwrite", 1), ("fdatasync", 1)):
        disk = SimulatedFiles(ROOT)
        log = open_log(DIRECTORY, epoch=1, files=disk)
        full_at(disk, operation, number)
        named = operation == "fsync_directory"
        with pytest.raises(DiskFailed if named else DiskFull):
            log.open_epoch(2)
        assert log.state is (LogCondition.FAILED if named else LogCondition.OPEN)
        if not named:
            append_sizes(log, [400])
            assert open_log(DIRECTORY, files=disk.after_kill()).end == 400


def test_a_cut_that_a_full_disk_stops_ends_the_log() -> None:
    """Goal: the bytes of a history that was cut are never taken for those of the next. Fill the disk at each write of a
    truncation: either nothing has happened, or the log takes nothing more and a restart ends what was begun."""
    stopped: set[LogCondition] = set()
    for operation, number in [("pwrite", number) for number in range(1, 6)] + [("unlink", 1), ("fsync_directory", 2)]:
        disk = SimulatedFiles(ROOT)
        log = open_log(DIRECTORY, segment_bytes=1000, epoch=1, files=disk)
        append_sizes(log, [400, 400, 400])
        flush(log)
        full_at(disk, operation, number)
        try:
            log.truncate(400, [*log.epochs.entries, Epoch(2, 400)])
        except DiskFull:
            assert (log.end, log.epochs.current) == (1200, 1)
        except DiskFailed:
            assert open_log(DIRECTORY, segment_bytes=1000, files=disk.after_kill()).end == 400
        stopped.add(log.state)
    assert stopped == {LogCondition.OPEN, LogCondition.FAILED}


COPIED_AT = 144
"""Where the copy stands in the batch of `append_copy`."""


def append_copy(log: CommitLog, log_offset: int) -> None:
    """A record that holds a batch of the log, as of a user who keeps copies of its files."""
    append(log, make_batch(bytes(40) + log.read_batch_at(log_offset)[1]))


def lose_name(file: Path, *, keep: bool = False) -> None:
    """The file's first header is torn, and it has the name of a spare; `keep`: a copy of it has."""
    content = bytearray(file.read_bytes())
    content[80] ^= 1
    file.with_name("spare-9").write_bytes(content)
    if not keep:
        file.unlink()


def test_a_file_whose_name_was_lost_is_found_by_its_own_batches(tmp_path: Path) -> None:
    """Goal: no whole batch is dropped in silence. Store a copy of a batch as a record, tear the batch that holds it and
    lose its file's name: the whole batch behind it, smaller than the copy, is reported."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400, 400])
    append_copy(log, 400)
    append_sizes(log, [120])
    abandon(log)
    lose_name(segment_files(tmp_path)[-1])
    report = open_log(tmp_path, segment_bytes=1000).recovery
    assert report.end == 800
    assert report.cut_valid is not None
    assert (report.cut_valid.first, report.cut_valid.last) == (log.end - 120, log.end)


def test_a_copy_of_a_batch_in_a_lost_file_hides_no_segment(tmp_path: Path) -> None:
    """Goal: nothing whole is cut because of what a user stored. A spare holds nothing whole but the copy of a batch of
    an earlier segment, which would stand in the middle of that one; the segment behind it is there."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400, 400])
    append_copy(log, 400)
    abandon(log)
    lose_name(segment_files(tmp_path)[-1], keep=True)
    report = open_log(tmp_path, segment_bytes=1000).recovery
    assert (report.end, report.lossy) == (log.end, False)


def test_a_copy_of_a_batch_in_a_lost_file_is_no_loss(tmp_path: Path) -> None:
    """Goal: what is reported as lost was not there before the place. The log is torn behind the batch whose copy a
    spare holds."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [200, 200, 400])
    append_copy(log, 200)
    abandon(log)
    first, last = segment_files(tmp_path)
    patch(first, 500, b"\xff")
    lose_name(last)
    report = open_log(tmp_path, segment_bytes=1000).recovery
    assert (report.end, report.lossy) == (400, False)
    assert report.torn is not None


def test_a_copy_of_a_batch_in_a_lost_file_ends_no_sealed_segment(tmp_path: Path) -> None:
    """Goal: a segment of the past ends where the next one is named. The copy makes a spare look like a file that begins
    at the flushed offset, in the middle of a segment."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400, 400, 400])
    flush(log)
    log.set_confirmed(1200)
    log.set_state_from(1200)
    flush(log)
    append_sizes(log, [COPIED_AT, 400])
    append_copy(log, 1200 + COPIED_AT)
    abandon(log)
    lose_name(segment_files(tmp_path)[-1])
    assert open_log(tmp_path, segment_bytes=1000).end == 1200 + COPIED_AT + 400


def sealed_log(directory: Path) -> CommitLog:
    """Two sealed segments, 0..800 and 800..1600, and the active one."""
    log = open_log(directory, segment_bytes=1000, epoch=1, kept_mapped_bytes=0)
    append_sizes(log, [400] * 6)
    flush(log)
    log.set_confirmed(2400)
    log.set_state_from(2400)
    for start, end in ((0, 800), (800, 1600)):
        assert log.next_to_seal() == (start, end)
        rows = RowCollector()
        log.scan(start, rows, until=end)
        log.tables.store(start, end, build_table(rows.rows(), start=start, end=end, seed=log.seed))
        log.seal(end)
    return log


def test_a_segment_that_is_freed_while_its_table_is_made_is_passed_over(tmp_path: Path) -> None:
    """Goal: the loop goes on beside the helper. Free a segment between its table and its sealing."""
    log = sealed_log(tmp_path)
    log.move_start(800)
    flush(log)
    log.seal(800)
    assert log.next_to_seal() is None


def test_the_table_of_a_freed_segment_is_removed_by_a_check(tmp_path: Path) -> None:
    """Goal: rebuilding an index never takes a freed segment for a damaged one, nor makes a table without its batches,
    which a crash that takes the begin back would believe. Check tables below the begin, before and after the files
    go."""
    log = sealed_log(tmp_path)
    tables = [tmp_path / table_name(start) for start in (0, 800)]
    for freed in (False, True):
        log.move_start(1600 if freed else 800)
        if freed:
            flush(log)
        patch(tables[freed], 0, b"rotten")
        log.check_table(800 if freed else 0)
        assert [table.exists() for table in tables] == [False, not freed]


def test_a_rotten_table_is_made_anew_when_the_index_stumbles_on_it(tmp_path: Path) -> None:
    """Goal: what is derived keeps no log from opening. Damage a block behind a table's head, and read it as an index
    does."""
    log = sealed_log(tmp_path)
    flush(log)
    abandon(log)
    patch(tmp_path / table_name(800), BLOCK_BYTES + 8, b"rotten")
    seen: list[int] = []

    def read(tables: Tables) -> None:
        seen.append(sum(len(tables.get(start).stretches()) for start in sorted(tables.heads)))

    assert open_log(tmp_path, segment_bytes=1000, on_past=read).recovery.clean
    assert len(seen) == 1
    assert seen[0] >= 2


def test_an_interrupted_recovery_does_not_shrink_the_loss() -> None:
    """Goal: what was lost is said in full, however often a start is interrupted. Lose a file before two whole ones, be
    killed at each operation of the recovery that removes them, recover again, twice."""
    disk = SimulatedFiles(ROOT)
    log = open_log(DIRECTORY, segment_bytes=500, epoch=1, files=disk)
    append_sizes(log, [400])
    flush(log)
    append_sizes(log, [400, 400, 400])
    left = disk.after_kill()
    left.flip_bit(DIRECTORY / f"{400:020}", 200, 0)
    crashed: list[SimulatedFiles] = []
    left.observer = lambda moment: crashed.append(left.after_kill())
    assert open_log(DIRECTORY, segment_bytes=500, files=left).recovery.lossy
    cuts = [open_log(DIRECTORY, segment_bytes=500, files=each).recovery.cut_valid for each in crashed * 2]
    assert {(cut.first, cut.last) if cut else None for cut in cuts} == {(800, 1600)}


def test_an_empty_segment_file_is_a_leftover(tmp_path: Path) -> None:
    """Goal: a name without its space holds up nothing. Leave one behind the last segment, and one alone."""
    log = open_log(tmp_path / "full", segment_bytes=1000, epoch=1)
    append_sizes(log, [400, 400])
    abandon(log)
    (tmp_path / "full" / f"{800:020}").touch()
    log = open_log(tmp_path / "full", segment_bytes=1000)
    assert (log.end, log.recovery.clean, len(segment_files(tmp_path / "full"))) == (800, True, 1)
    abandon(open_log(tmp_path / "empty"))
    segment_files(tmp_path / "empty")[0].write_bytes(b"")
    log = open_log(tmp_path / "empty", epoch=1)
    append_sizes(log, [400])
    assert open_log(tmp_path / "empty").end == 400
