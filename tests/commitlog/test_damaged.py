"""A log with bad bytes below its flushed offset: opened up to them, set aside from there on, and cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.commitlog.flush import Checkpoint
from mirrorlog.commitlog.index.table import table_name
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.log_directory import read_log_directory
from mirrorlog.commitlog.quarantine import REPORT_NAME, quarantine_damage, quarantined_copies
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.recovery.recovery import Claim
from mirrorlog.commitlog.stored_log import LogCondition
from mirrorlog.config import LogSettings
from mirrorlog.errors import BadRequest, DiskFailed, LogCorrupt
from tests.commitlog.faulty import FaultyFiles
from tests.commitlog.logs import (
    CLUSTER_ID,
    LOG_ID,
    MAX_BATCH_BYTES,
    abandon,
    append,
    flush,
    open_log,
    patch,
    segment_files,
    sized_batch,
    snapshot,
    stored,
)

SEGMENT_BYTES = 1000
BATCH = 400
BATCHES = 7
END = BATCH * BATCHES
# Two batches to a segment, so a file begins at 0, 800, 1600 and 2400.
PLACES = list(range(0, END, BATCH))


def whole(directory: Path, files: Files = OS_FILES) -> bytes:
    """Seven batches of 400 bytes, all flushed, five confirmed; gives the log's bytes."""
    log = open_log(directory, segment_bytes=SEGMENT_BYTES, epoch=1, files=files)
    for number in range(BATCHES):
        append(log, sized_batch(BATCH, fill=number + 1), number)
    log.set_confirmed(5 * BATCH)
    flush(log)
    content = stored(log)
    log.close()
    return content


def flip(directory: Path, log_offset: int) -> None:
    """One bit, as a disk does it."""
    path = [each for each in segment_files(directory) if int(each.name) <= log_offset][-1]
    at = log_offset - int(path.name)
    patch(path, at, bytes([path.read_bytes()[at] ^ 1]))


def corruption(directory: Path) -> LogCorrupt:
    with pytest.raises(LogCorrupt) as refused:
        open_log(directory, segment_bytes=SEGMENT_BYTES)
    return refused.value


def open_damaged(directory: Path, error: LogCorrupt, files: Files = OS_FILES) -> CommitLog:
    return CommitLog.open(
        directory,
        log_id=LOG_ID,
        cluster_id=CLUSTER_ID,
        name="main",
        settings=LogSettings.model_construct(
            segment_bytes=SEGMENT_BYTES, populate_bytes=0, prepare_bytes=0, kept_mapped_bytes=0
        ),
        max_batch_bytes=MAX_BATCH_BYTES,
        on_batch=lambda header, batch: None,
        files=files,
        corrupt=error,
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("within", [0, 40, 200])
def test_a_damaged_log_ends_where_its_bad_bytes_begin(tmp_path: Path, place: int, within: int) -> None:
    """Goal: what can be verified is there, and nothing is touched. A bit in the header, the producer's part or the body
    of each batch: the log opens up to that batch, says what it held, takes nothing, and no byte of its directory
    differs after it was read and closed."""
    content = whole(tmp_path / "log")
    flip(tmp_path / "log", place + within)
    error = corruption(tmp_path / "log")
    assert error.details["first"] == place
    before = snapshot(tmp_path / "log")
    log = open_damaged(tmp_path / "log", error)
    assert log.state is LogCondition.DAMAGED
    assert log.lossy
    assert (log.end, log.flushed, log.confirmed) == (place, place, min(place, 5 * BATCH))
    assert log.claim == Claim(end=END, confirmed=5 * BATCH)
    assert stored(log) == content[:place]
    with pytest.raises(LogCorrupt, match="it takes nothing"):
        append(log, sized_batch(BATCH))
    with pytest.raises(LogCorrupt, match="it takes nothing"):
        log.truncate(0, log.epochs.entries, lost=True)
    assert log.start_warm() is None
    assert log.start_prepare() is None
    flush(log)
    log.close()
    assert snapshot(tmp_path / "log") == before


@pytest.mark.parametrize("flushed", [2, 4, 6])
def test_what_was_held_behind_the_flushed_offset_is_known_too(tmp_path: Path, flushed: int) -> None:
    """Goal: a loss that is declared ends where the lost records ended, also those that no checkpoint tells of. A log
    whose process is killed with batches behind its flushed offset, and whose second batch is bad."""
    log = open_log(tmp_path / "log", segment_bytes=SEGMENT_BYTES, epoch=1)
    for number in range(BATCHES):
        append(log, sized_batch(BATCH, fill=number + 1), number)
        if number + 1 == flushed:
            flush(log)
    shutil.copytree(tmp_path / "log", tmp_path / "killed")
    log.close()
    flip(tmp_path / "killed", BATCH)
    damaged = open_damaged(tmp_path / "killed", corruption(tmp_path / "killed"))
    assert (damaged.end, damaged.claim.end) == (BATCH, END)
    damaged.close()


def test_a_file_that_is_missing_is_damage_too(tmp_path: Path) -> None:
    """Goal: as above when a whole file is gone, the first one too."""
    for number in range(4):
        directory = tmp_path / str(number) / "log"
        directory.parent.mkdir()
        content = whole(directory)
        lost = segment_files(directory)[number]
        lost.unlink()
        log = open_damaged(directory, corruption(directory))
        assert (log.end, stored(log)) == (int(lost.name), content[: int(lost.name)])
        path = quarantine_damage(OS_FILES, log, queues={})
        assert [int(each.name) for each in segment_files(path)] == [
            start for start in (0, 800, 1600, 2400) if start > int(lost.name)
        ]
        log.cut_damage(state=0)
        log.close()
        again = open_log(directory, segment_bytes=SEGMENT_BYTES)
        assert (again.end, stored(again)) == (int(lost.name), content[: int(lost.name)])


@pytest.mark.parametrize("place", PLACES)
def test_what_is_set_aside_and_cut_leaves_a_log_that_goes_on(tmp_path: Path, place: int) -> None:
    """Goal: every byte is in one of two places, and the copy becomes what it was. Flip a bit in each batch, set aside
    and cut: behind the cut the log takes the same batches again, to the same files; what is aside holds the bad bytes
    and all behind them, as they stood, and tools read it."""
    content = whole(tmp_path / "log")
    files = {path.name: path.read_bytes() for path in segment_files(tmp_path / "log")}
    flip(tmp_path / "log", place + 200)
    log = open_damaged(tmp_path / "log", corruption(tmp_path / "log"))
    path = quarantine_damage(OS_FILES, log, queues={1: "flights"})
    log.cut_damage(state=0)
    log.close()

    assert quarantined_copies(tmp_path / "log") == [path]
    kept = b"".join(each.read_bytes()[: SEGMENT_BYTES // BATCH * BATCH] for each in segment_files(path))
    expected = bytearray(content)
    expected[place + 200] ^= 1
    assert kept[: END - place] == expected[place:]
    assert read_log_directory(path).checkpoint == Checkpoint(begin=place, flushed=END, confirmed=max(place, 5 * BATCH))
    report = json.loads((path / REPORT_NAME).read_text())
    assert (report["first"], report["end"], report["queues"]) == (place, END, {"1": "flights"})
    assert report["damaged"]["first"] == place

    for _ in range(2):
        again = open_log(tmp_path / "log", segment_bytes=SEGMENT_BYTES)
        assert (again.state, again.end, again.lossy) == (LogCondition.OPEN, place, True)
        assert stored(again) == content[:place]
        again.close()  # it is lossy until somebody settles it
    again = open_log(tmp_path / "log", segment_bytes=SEGMENT_BYTES)
    at = place
    while at < END:
        again.append_run(memoryview(content)[at : at + BATCH], log_offset=at)
        at += BATCH
    again.settle_loss()
    again.close()
    assert {each.name: each.read_bytes() for each in segment_files(tmp_path / "log")} == files
    assert not open_log(tmp_path / "log", segment_bytes=SEGMENT_BYTES).lossy


def test_nothing_is_cut_from_a_log_that_is_sound(tmp_path: Path) -> None:
    """Goal: the cut belongs to damage alone."""
    whole(tmp_path / "log")
    log = open_log(tmp_path / "log", segment_bytes=SEGMENT_BYTES)
    with pytest.raises(BadRequest, match="is not damaged"):
        log.cut_damage(state=0)


def test_a_repair_that_is_cut_short_goes_on(tmp_path: Path) -> None:
    """Goal: at no moment are bytes lost, or does a copy look whole that is not. Each disk call of it fails in turn, and
    what the process leaves is opened: it is damaged at the same place or lossy there, never sound; done to its end,
    all bytes are in the log or aside."""
    steps, place = 0, 400
    for operation in ("create", "open", "pread", "pwrite", "fdatasync", "rename", "unlink", "fsync_directory"):
        for number in range(1, 40):
            directory = tmp_path / f"{operation}-{number}" / "log"
            directory.parent.mkdir()
            content = whole(directory)
            flip(directory, place + 200)
            error = corruption(directory)
            files = FaultyFiles()
            log = open_damaged(directory, error, files)
            files.disk.fail(operation, first=number)
            try:
                quarantine_damage(files, log, queues={})
                log.cut_damage(state=0)
            except (OSError, DiskFailed):
                steps += 1
            else:
                break
            finally:
                abandon(log)
            finish(directory, place)
            check_whole(directory, content, place)
        else:
            raise AssertionError(f"{operation} fails for ever")
    assert steps > 30


def finish(directory: Path, place: int) -> None:
    """As the next start does it."""
    try:
        log = open_log(directory, segment_bytes=SEGMENT_BYTES)
    except LogCorrupt as error:
        log = open_damaged(directory, error)
        quarantine_damage(OS_FILES, log, queues={})
        log.cut_damage(state=0)
        log.close()
        log = open_log(directory, segment_bytes=SEGMENT_BYTES)
    assert (log.end, log.lossy) == (place, True)
    log.close()


def check_whole(directory: Path, content: bytes, place: int) -> None:
    """Nothing that stood behind the bad batch is gone."""
    found = b"".join(each.read_bytes() for path in quarantined_copies(directory) for each in segment_files(path))
    for at in range(place + BATCH, END, BATCH):
        assert content[at : at + BATCH] in found, f"the batch at {at} is nowhere"
    assert all((path / IDENTITY_NAME).exists() for path in quarantined_copies(directory))


def test_bad_bytes_that_a_table_vouches_for_are_found_once_they_are_doubted(tmp_path: Path) -> None:
    """Goal: a start does not read the past, unless it has reason to. Flip a bit in a sealed segment: the log opens as
    ever; a cold read tells of it; after `doubt` the next start refuses; the cut settles the doubt, and so does a start
    that finds nothing."""
    directory = tmp_path / "log"
    content = whole(directory)
    log = open_log(directory, segment_bytes=SEGMENT_BYTES)
    log.set_confirmed(END)
    log.set_state_from(END)
    flush(log)
    log.close()
    open_log(directory, segment_bytes=SEGMENT_BYTES).close()
    assert (directory / table_name(800)).exists()
    flip(directory, 900)
    log = open_log(directory, segment_bytes=SEGMENT_BYTES)
    told: list[LogCorrupt] = []
    log.on_bad = told.append
    with pytest.raises(LogCorrupt):
        log.read_cold(800, END, until=END).run()
    assert told[0].details["first"] == 800
    log.doubt()
    log.close()
    error = corruption(directory)
    assert error.details["first"] == 800
    log = open_damaged(directory, error)
    assert stored(log) == content[:800]
    quarantine_damage(OS_FILES, log, queues={})
    log.cut_damage(state=0)
    log.close()
    assert not (directory / "doubtful").exists()
    log = open_log(directory, segment_bytes=SEGMENT_BYTES)
    assert stored(log) == content[:800]
    log.doubt()
    log.close()
    open_log(directory, segment_bytes=SEGMENT_BYTES).close()
    assert not (directory / "doubtful").exists()
