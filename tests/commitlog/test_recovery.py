"""Opening a log after every kind of end: clean, torn, corrupt, lossy."""

from pathlib import Path

import pytest

from mirrorlog.commitlog.flush import SLOT_BYTES
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.recovery.opening import NO_CHECKPOINT
from mirrorlog.errors import ForeignDirectory, LogCorrupt
from tests.commitlog.logs import (
    KIB,
    LOG_ID,
    abandon,
    append,
    append_sizes,
    flush,
    offsets,
    open_log,
    patch,
    segment_files,
    sized_batch,
    snapshot,
    stored,
    warm,
)


def make_log(directory: Path, *, batches: int, flushed: int) -> bytes:
    """A log of batches of 400 bytes, two per file, `flushed` of them flushed, abandoned; its bytes."""
    log = open_log(directory, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * flushed)
    flush(log)
    append_sizes(log, [400] * (batches - flushed))
    content = stored(log)
    abandon(log)
    return content


def reopen(directory: Path) -> CommitLog:
    return open_log(directory, segment_bytes=1000)


def assert_nothing_left_to_report(directory: Path) -> None:
    """Recovery is idempotent: another run finds a clean log, but for a loss that nobody has acted on."""
    log = reopen(directory)
    if log.recovery.lossy:
        assert log.recovery.cut_valid is not None
        assert log.recovery.cut_valid.reason == "lost by an earlier start"
        log.settle_loss()
        abandon(log)
        log = reopen(directory)
    assert log.recovery.clean
    abandon(log)


def test_a_log_is_as_it_was_after_a_clean_close(tmp_path: Path) -> None:
    """Goal: close and open lose nothing. Compare bytes, offsets, epochs and what was called back."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    headers = append_sizes(log, [400] * 5)
    log.set_confirmed(1200)
    content = stored(log)
    log.close()
    seen: list[tuple[int, bytes]] = []
    log = open_log(tmp_path, segment_bytes=1000, on_batch=lambda h, b: seen.append((h.log_offset, bytes(b))))
    assert [offset for offset, _ in seen] == offsets(headers)
    assert b"".join(batch for _, batch in seen) == content == stored(log)
    assert (log.begin, log.end, log.flushed, log.confirmed) == (0, 2000, 2000, 1200)
    assert log.epochs.current == 1
    assert log.recovery.clean
    assert log.recovery.batches == 5


def test_after_a_kill_every_appended_batch_is_there(tmp_path: Path) -> None:
    """Goal: the page cache outlives a process. Abandon a log with one of five batches flushed, and open it."""
    content = make_log(tmp_path, batches=5, flushed=1)
    log = reopen(tmp_path)
    assert (stored(log), log.end, log.flushed) == (content, 2000, 400)
    assert log.recovery.clean
    assert flush(log) == 2000


def test_an_unflushed_sealed_file_is_synced_by_the_first_flush_after_a_kill(tmp_path: Path) -> None:
    """Goal: `flushed` is never claimed for files that were not synced. Count the synced files after a reopen."""
    make_log(tmp_path, batches=7, flushed=1)
    log = reopen(tmp_path)
    assert len(log._chain.unflushed(log.flushed)) == 4


@pytest.mark.parametrize("left", [8, 40, 96, 200, 392])
def test_a_half_written_batch_at_the_end_is_cut_and_named(tmp_path: Path, left: int) -> None:
    """Goal: a torn tail goes. Leave the first `left` bytes of the last batch: the log ends before it, zeros follow."""
    content = make_log(tmp_path, batches=5, flushed=2)
    last = segment_files(tmp_path)[-1]
    patch(last, left, bytes(400 - left))
    log = reopen(tmp_path)
    assert log.end == 1600
    assert stored(log) == content[:1600]
    torn = log.recovery.torn
    assert torn is not None
    assert torn.first == 1600
    assert 1600 < torn.last <= 1600 + (left + 7) // 8 * 8
    assert torn.reason
    assert not log.recovery.lossy
    abandon(log)
    assert_nothing_left_to_report(tmp_path)
    assert all(path.read_bytes()[800:] == bytes(200) for path in segment_files(tmp_path))


def test_appending_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    """Goal: a cut tail is usable space. Tear a batch, append another there, reopen."""
    make_log(tmp_path, batches=2, flushed=0)
    patch(segment_files(tmp_path)[-1], 500, b"\xff" * 100)
    log = open_log(tmp_path, segment_bytes=1000, epoch=2)
    assert append(log, sized_batch(600)).log_offset == 400
    content = stored(log)
    abandon(log)
    log = reopen(tmp_path)
    assert stored(log) == content
    assert log.recovery.clean


def test_garbage_where_the_next_batch_would_begin_is_cut(tmp_path: Path) -> None:
    """Goal: what looks like the begin of a batch is reported and ends the log no more. Put garbage behind the end."""
    make_log(tmp_path, batches=1, flushed=1)
    patch(segment_files(tmp_path)[-1], 400, b"MLB1" * 76)
    log = reopen(tmp_path)
    assert log.recovery.torn is not None
    assert (log.recovery.torn.first, log.recovery.torn.last) == (400, 704)
    assert not any(segment_files(tmp_path)[0].read_bytes()[400:496])
    abandon(log)
    assert_nothing_left_to_report(tmp_path)


def test_what_stands_behind_zeros_counts_for_nothing(tmp_path: Path) -> None:
    """Goal: the old content of a recycled file neither ends up in the log nor holds it up. Garbage and whole batches of
    other places behind the end; open, append over them batch by batch, and kill after each."""
    make_log(tmp_path, batches=1, flushed=1)
    file = segment_files(tmp_path)[-1]
    patch(file, 520, file.read_bytes()[:400])
    for number in range(4):
        log = reopen(tmp_path)
        assert log.recovery.clean
        assert (log.end, log.recovery.batches) == (400 + 112 * number, 1 + number)
        append(log, sized_batch(112))
        abandon(log)


@pytest.mark.parametrize("place", [8, 90, 120, 399])
def test_corruption_below_the_flushed_offset_is_refused_and_changes_nothing(tmp_path: Path, place: int) -> None:
    """Goal: corruption is named, never repaired by cutting. Flip a byte of a flushed batch, compare all files."""
    make_log(tmp_path, batches=5, flushed=5)
    damaged = segment_files(tmp_path)[1]
    patch(damaged, place, bytes([damaged.read_bytes()[place] ^ 0xFF]))
    before = snapshot(tmp_path)
    with pytest.raises(LogCorrupt) as caught:
        reopen(tmp_path)
    assert caught.value.details == {"first": 800, "last": 1200, "file": str(damaged)}
    assert "from log offset 800 to 1200" in caught.value.message
    assert snapshot(tmp_path) == before


def test_corruption_with_nothing_valid_after_it_is_named_to_the_files_end(tmp_path: Path) -> None:
    """Goal: the named range ends at the file when no batch follows in it. Spoil the last batch of the first file."""
    make_log(tmp_path, batches=5, flushed=5)
    patch(segment_files(tmp_path)[0], 410, b"\xff")
    with pytest.raises(LogCorrupt) as caught:
        reopen(tmp_path)
    assert (caught.value.details["first"], caught.value.details["last"]) == (400, 1000)


def test_zeros_below_the_flushed_offset_are_corruption(tmp_path: Path) -> None:
    """Goal: a log that ends before its flushed offset lost bytes. Zero its last flushed batch."""
    make_log(tmp_path, batches=5, flushed=5)
    patch(segment_files(tmp_path)[-1], 0, bytes(400))
    with pytest.raises(LogCorrupt, match="from log offset 1600 to 2000"):
        reopen(tmp_path)


@pytest.mark.parametrize(("gone", "first", "last"), [(0, 0, 800), (1, 800, 1600), (2, 1600, 2000)])
def test_a_missing_flushed_file_is_corruption(tmp_path: Path, gone: int, first: int, last: int) -> None:
    """Goal: a gap between files is found. Remove one of three flushed files."""
    make_log(tmp_path, batches=5, flushed=5)
    segment_files(tmp_path)[gone].unlink()
    before = snapshot(tmp_path)
    with pytest.raises(LogCorrupt) as caught:
        reopen(tmp_path)
    assert (caught.value.details["first"], caught.value.details["last"]) == (first, last)
    assert snapshot(tmp_path) == before


def test_valid_batches_behind_bad_ones_are_cut_and_make_the_start_lossy(tmp_path: Path) -> None:
    """Goal: a hole above the flushed offset is not a torn tail. Spoil batch 3 of 7, one flushed: both ranges named."""
    content = make_log(tmp_path, batches=7, flushed=1)
    patch(segment_files(tmp_path)[1], 0, b"\xff" * 16)
    log = reopen(tmp_path)
    report = log.recovery
    assert report.lossy
    assert report.torn is not None
    assert report.cut_valid is not None
    assert (report.torn.first, report.torn.last) == (800, 1200)
    assert (report.cut_valid.first, report.cut_valid.last) == (1200, 2800)
    assert stored(log) == content[:800]
    assert [path.name for path in segment_files(tmp_path)] == [f"{0:020d}"]
    abandon(log)
    assert_nothing_left_to_report(tmp_path)


def test_all_valid_batches_behind_several_bad_places_are_counted_in(tmp_path: Path) -> None:
    """Goal: the named range of whole batches reaches to the last one. Spoil two places in one file, seven batches."""
    log = open_log(tmp_path, segment_bytes=4 * KIB, epoch=1)
    append_sizes(log, [400] * 7)
    abandon(log)
    for at in (400, 1600):
        patch(segment_files(tmp_path)[0], at + 100, b"\xff" * 8)
    log = open_log(tmp_path)
    assert log.recovery.torn is not None
    assert log.recovery.cut_valid is not None
    assert (log.recovery.torn.first, log.recovery.torn.last) == (400, 800)
    assert (log.recovery.cut_valid.first, log.recovery.cut_valid.last) == (800, 2800)


def test_a_missing_unflushed_file_makes_the_start_lossy(tmp_path: Path) -> None:
    """Goal: the same rule for a lost file. Remove the second of four files, one batch flushed."""
    content = make_log(tmp_path, batches=7, flushed=1)
    segment_files(tmp_path)[1].unlink()
    log = reopen(tmp_path)
    assert log.recovery.lossy
    assert log.recovery.torn is not None
    assert (log.recovery.torn.first, log.recovery.torn.last) == (800, 1600)
    assert stored(log) == content[:800]
    abandon(log)
    assert_nothing_left_to_report(tmp_path)


def test_an_end_below_the_recorded_confirmed_offset_makes_the_start_lossy(tmp_path: Path) -> None:
    """Goal: a copy that lost confirmed bytes says so. Confirm all, checkpoint while a part is unflushed, lose it."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400])
    job = log.start_flush()
    job.checkpoint = job.checkpoint._replace(confirmed=800)
    job.run()
    abandon(log)
    log = reopen(tmp_path)
    assert log.recovery.lossy
    assert log.recovery.recorded.confirmed == 800
    assert log.confirmed == 400
    abandon(log)
    assert_nothing_left_to_report(tmp_path)


def test_a_batch_of_a_cut_epoch_does_not_come_back(tmp_path: Path) -> None:
    """Goal: bytes count only under the epoch the list gives there. Put an old epoch's batch behind a truncated log."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400, 400])
    old = stored(log)
    log.truncate(400, [*log.epochs.entries, type(log.epochs.entries[0])(2, 400)])
    log.close()
    patch(segment_files(tmp_path)[0], 400, old[400:])
    log = open_log(tmp_path)
    assert log.end == 400
    assert log.recovery.torn is not None
    assert "epoch 1 where the epoch list has 2" in log.recovery.torn.reason
    assert not log.recovery.lossy


def test_a_torn_checkpoint_slot_is_survived(tmp_path: Path) -> None:
    """Goal: one bad slot is no event. Spoil the newest: the older one counts, and is replaced by the next flush."""
    log = open_log(tmp_path, epoch=1)
    for _ in range(3):
        append_sizes(log, [400])
        flush(log)
    abandon(log)
    numbers = [int.from_bytes((tmp_path / "checkpoint").read_bytes()[at + 8 : at + 16], "little") for at in (0, 4096)]
    newest = numbers.index(max(numbers))
    patch(tmp_path / "checkpoint", newest * SLOT_BYTES + 30, b"\xff\xff")
    log = open_log(tmp_path)
    assert log.recovery.clean
    assert log.flushed == 800
    assert flush(log) == 1200
    abandon(log)
    assert open_log(tmp_path).flushed == 1200


@pytest.mark.parametrize("how", ["spoiled", "missing"])
def test_without_any_checkpoint_the_log_opens_with_a_warning(tmp_path: Path, how: str) -> None:
    """Goal: nothing is claimed to be flushed then, and that is named. Spoil both slots, or remove the file."""
    content = make_log(tmp_path, batches=5, flushed=5)
    if how == "spoiled":
        (tmp_path / "checkpoint").write_bytes(b"\xff" * 2 * SLOT_BYTES)
    else:
        (tmp_path / "checkpoint").unlink()
    log = reopen(tmp_path)
    assert log.recovery.warnings == (NO_CHECKPOINT,)
    assert (stored(log), log.flushed, log.begin) == (content, 0, 0)
    abandon(log)
    assert_nothing_left_to_report(tmp_path)


@pytest.mark.parametrize("content", [b"", b"MLEP", b"\0" * 40, None])
def test_an_unreadable_epoch_list_is_corruption(tmp_path: Path, content: bytes | None) -> None:
    """Goal: no log is served without its epochs. Replace or remove the file."""
    make_log(tmp_path, batches=1, flushed=1)
    if content is None:
        (tmp_path / "epochs").unlink()
    else:
        (tmp_path / "epochs").write_bytes(content)
    with pytest.raises(LogCorrupt, match="epochs"):
        reopen(tmp_path)


def test_leftover_spares_and_replacements_are_removed(tmp_path: Path) -> None:
    """Goal: a crash leaves no rubbish. Abandon a log with a spare ready, add a half-written replacement, reopen."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [600])
    assert warm(log)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("spare-")]
    abandon(log)
    (tmp_path / "epochs.new").write_bytes(b"half")
    log = reopen(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{0:020d}", "checkpoint", "epochs", "log.json"]
    assert log.recovery.clean
    assert log.end == 600


def test_a_spare_that_holds_the_next_batches_is_adopted(tmp_path: Path) -> None:
    """Goal: a power loss that forgot a rename loses no bytes that were there. Give the last file a spare's name."""
    content = make_log(tmp_path, batches=5, flushed=4)
    segment_files(tmp_path)[-1].rename(tmp_path / "spare-1")
    log = reopen(tmp_path)
    assert stored(log) == content
    assert log.recovery.clean
    assert [path.name for path in segment_files(tmp_path)] == [f"{at:020d}" for at in (0, 800, 1600)]


def test_a_file_in_which_nothing_was_stored_yet_is_removed(tmp_path: Path) -> None:
    """Goal: where the next batch goes depends on the bytes alone. Kill between a roll and its first byte."""
    content = make_log(tmp_path, batches=2, flushed=2)
    (tmp_path / f"{800:020d}").write_bytes(bytes(1000))
    log = open_log(tmp_path, segment_bytes=1000, epoch=2)
    assert stored(log) == content
    assert [path.name for path in segment_files(tmp_path)] == [f"{0:020d}"]
    assert append(log, sized_batch(200)).log_offset == 800


def test_a_changed_segment_size_applies_to_new_files_only(tmp_path: Path) -> None:
    """Goal: the setting may change. Write with 1000, reopen with 2000, go on."""
    make_log(tmp_path, batches=3, flushed=3)
    log = open_log(tmp_path, segment_bytes=2000, epoch=2)
    append_sizes(log, [400] * 6)
    content = stored(log)
    log.close()
    assert [path.stat().st_size for path in segment_files(tmp_path)] == [1000, 1000, 2000]
    assert stored(open_log(tmp_path)) == content


def test_a_directory_of_another_log_is_refused(tmp_path: Path) -> None:
    """Goal: no log writes into another's files. Open with another id, another cluster, and without log.json."""
    make_log(tmp_path, batches=1, flushed=1)
    other = type(LOG_ID)(int=5)
    with pytest.raises(ForeignDirectory, match=f"log_id '{LOG_ID}'.*'{other}'"):
        open_log(tmp_path, log_id=other)
    with pytest.raises(ForeignDirectory, match="cluster_id"):
        open_log(tmp_path, cluster_id=other)
    (tmp_path / "log.json").write_text("{")
    with pytest.raises(ForeignDirectory, match="not JSON"):
        open_log(tmp_path)
    (tmp_path / "log.json").unlink()
    with pytest.raises(ForeignDirectory, match=r"no log\.json"):
        open_log(tmp_path)


def test_large_and_many_batches_are_recovered_across_read_blocks(tmp_path: Path) -> None:
    """Goal: block borders of the reader lose nothing. Mixed sizes up to 200 KiB over 5 MiB in one file."""
    log = open_log(tmp_path, segment_bytes=6 * 1024 * KIB, epoch=1)
    sizes = [112, 200 * KIB, 1000, 70 * KIB, 31 * KIB + 8] * 16
    append_sizes(log, sizes)
    content = stored(log)
    abandon(log)
    log = open_log(tmp_path, segment_bytes=6 * 1024 * KIB)
    assert (log.recovery.batches, log.end) == (80, sum(sizes))
    assert stored(log) == content
