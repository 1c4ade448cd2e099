"""Appending, rolling and reading."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorlog.commitlog.format.header import check_stamped
from mirrorlog.commitlog.segments.chain import SegmentChain
from mirrorlog.errors import BadBatch, BadRequest, BatchTooLarge, LogUnavailable, OffsetOutOfRange
from tests.commitlog.logs import (
    KIB,
    abandon,
    append,
    append_sizes,
    flush,
    make_batch,
    mapped,
    offsets,
    open_log,
    segment_files,
    sized_batch,
    stored,
)


def test_an_appended_batch_is_stamped_and_read_back_as_the_producer_sent_it(tmp_path: Path) -> None:
    """Goal: the broker's part is right and the producer's untouched. Append one batch and compare all bytes."""
    log = open_log(tmp_path, epoch=7)
    batch = make_batch(b"value", records=3)
    header = log.append(batch, base_queue_offset=41, append_time_us=5, flags=0)
    run = log.read(0, 1, until=log.end)
    assert run is not None
    assert bytes(run[36:]) == bytes(batch[36:])
    assert check_stamped(run, 0, log_offset=0, seed=log.seed, max_batch_bytes=1 << 20) == header
    assert (header.log_offset, header.base_queue_offset, header.append_time_us, header.epoch) == (0, 41, 5, 7)
    assert (log.end, log.flushed, log.confirmed) == (len(batch), 0, 0)


def test_the_append_time_never_goes_back(tmp_path: Path) -> None:
    """Goal: a clock set back does not show in the log. Append with falling times, and once more after a restart."""
    log = open_log(tmp_path, epoch=1)
    times = [log.append(make_batch(), base_queue_offset=i, append_time_us=t) for i, t in enumerate([10, 4, 12])]
    assert [header.append_time_us for header in times] == [10, 10, 12]
    log.close()
    log = open_log(tmp_path, epoch=2)
    assert log.last_append_time_us == 12
    assert log.append(make_batch(), base_queue_offset=3, append_time_us=1).append_time_us == 12


def test_a_batch_that_does_not_fit_begins_the_next_file_and_leaves_no_gap(tmp_path: Path) -> None:
    """Goal: offset-dense segments. Fill a file of 1000 bytes with 400s: two fit, the third is in a file named 800."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    headers = append_sizes(log, [400] * 5)
    assert offsets(headers) == [0, 400, 800, 1200, 1600]
    assert [path.name for path in segment_files(tmp_path)] == [f"{start:020d}" for start in (0, 800, 1600)]
    assert all(path.stat().st_size == 1000 for path in segment_files(tmp_path))
    assert stored(log) == mapped(log)
    assert len(stored(log)) == 2000


def test_what_is_left_of_a_file_stays_zero(tmp_path: Path) -> None:
    """Goal: files of equal logs are equal byte by byte. Look at the unused end of a sealed and of the active file."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * 3)
    first, second = segment_files(tmp_path)
    assert first.read_bytes()[800:] == bytes(200)
    assert second.read_bytes()[400:] == bytes(600)


def test_log_offsets_do_not_depend_on_the_segment_size(tmp_path: Path) -> None:
    """Goal: invariant 2 between nodes with other settings. The same batches into two sizes give the same bytes."""
    small = open_log(tmp_path / "small", segment_bytes=1000, epoch=1)
    large = open_log(tmp_path / "large", segment_bytes=64 * KIB, epoch=1)
    sizes = [400, 120, 992, 304, 600, 112] * 5
    assert append_sizes(small, sizes) == append_sizes(large, sizes)
    assert stored(small) == stored(large)


def test_equal_logs_have_byte_equal_files_also_after_restarts_and_cuts(tmp_path: Path) -> None:
    """Goal: an empty file is never kept behind another. Cut one copy at a file's border, append the same to both."""
    one = open_log(tmp_path / "one", segment_bytes=1000, epoch=1)
    two = open_log(tmp_path / "two", segment_bytes=1000, epoch=1)
    append_sizes(one, [400, 400])
    append_sizes(two, [400, 400, 400])
    two.truncate(800, two.epochs.entries)
    for log in (one, two):
        append(log, sized_batch(200))
        log.close()
    names = [path.name for path in segment_files(tmp_path / "one")]
    assert names == [path.name for path in segment_files(tmp_path / "two")]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_mirror_that_appends_runs_holds_the_same_files_as_its_master(tmp_path: Path) -> None:
    """Goal: byte-identical copies. Copy a log in runs of 1500 bytes into another, then compare the files."""
    master = open_log(tmp_path / "master", segment_bytes=2000, epoch=3)
    append_sizes(master, [400, 120, 992, 304, 600, 112] * 6)
    mirror = open_log(tmp_path / "mirror", segment_bytes=2000)
    mirror.adopt_epochs(master.epochs.entries)
    while mirror.end < master.end:
        run = master.read(mirror.end, 1500, until=master.end)
        assert run is not None
        mirror.append_run(run, log_offset=mirror.end)
    assert mirror.last_append_time_us == master.last_append_time_us
    for path in segment_files(tmp_path / "master"):
        assert (tmp_path / "mirror" / path.name).read_bytes() == path.read_bytes()


def test_a_run_may_be_spread_over_several_files(tmp_path: Path) -> None:
    """Goal: a run is placed batch by batch by the roll rule. Append 20 batches in one run into files that hold two."""
    master = open_log(tmp_path / "master", epoch=1)
    append_sizes(master, [400] * 20)
    mirror = open_log(tmp_path / "mirror", segment_bytes=1000)
    mirror.adopt_epochs(master.epochs.entries)
    headers = mirror.append_run(memoryview(stored(master)), log_offset=0)
    assert offsets(headers) == list(range(0, 8000, 400))
    assert [path.name for path in segment_files(tmp_path / "mirror")] == [f"{at:020d}" for at in range(0, 8000, 800)]
    assert mapped(mirror) == stored(master)


def _spoil_body(run: bytearray) -> None:
    run[-1] ^= 1


def _spoil_header(run: bytearray) -> None:
    run[8] ^= 1


def _spoil_length(run: bytearray) -> None:
    del run[-8:]


@pytest.mark.parametrize("spoil", [_spoil_body, _spoil_header, _spoil_length])
def test_a_run_with_a_bad_batch_keeps_nothing(tmp_path: Path, spoil: Callable[[bytearray], None]) -> None:
    """Goal: nothing unchecked is stored. Spoil the last (or first) batch of a run of three: end and files stay."""
    master = open_log(tmp_path / "master", epoch=1)
    append_sizes(master, [400, 400, 400])
    run = bytearray(stored(master))
    spoil(run)
    mirror = open_log(tmp_path / "mirror")
    mirror.adopt_epochs(master.epochs.entries)
    with pytest.raises(BadBatch):
        mirror.append_run(memoryview(run), log_offset=0)
    assert mirror.end == 0
    assert segment_files(tmp_path / "mirror")[0].read_bytes().count(0) == 256 * KIB
    assert len(mirror.append_run(memoryview(stored(master)), log_offset=0)) == 3


def test_a_run_of_another_place_epoch_or_log_is_refused(tmp_path: Path) -> None:
    """Goal: only this log's next bytes fit. Offer a run at a wrong offset, of an unknown epoch, of another log."""
    master = open_log(tmp_path / "master", epoch=2)
    append_sizes(master, [400, 400])
    run = memoryview(stored(master))
    mirror = open_log(tmp_path / "mirror")
    with pytest.raises(BadBatch, match="epoch 2 at log offset 0, the epoch list has 0"):
        mirror.append_run(run, log_offset=0)
    mirror.adopt_epochs(master.epochs.entries)
    with pytest.raises(BadBatch, match="does not follow the end"):
        mirror.append_run(run, log_offset=400)
    with pytest.raises(BadBatch, match="a batch of log offset 400 stands at 0"):
        mirror.append_run(run[400:], log_offset=0)
    with pytest.raises(BadBatch):
        mirror.append_run(run[:0], log_offset=0)
    foreign = open_log(tmp_path / "foreign", log_id=type(master.log_id)(int=9))
    foreign.adopt_epochs(master.epochs.entries)
    with pytest.raises(BadBatch, match="checksum"):
        foreign.append_run(run, log_offset=0)


def test_read_gives_whole_batches_within_the_limit_one_file_and_until(tmp_path: Path) -> None:
    """Goal: the run rules of read. Ask with limits around the borders of batches of 400 in files of two."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * 5)

    def length(log_offset: int, max_bytes: int, until: int = 2000) -> int:
        run = log.read(log_offset, max_bytes, until=until)
        assert run is not None
        return len(run)

    assert length(0, 399) == 400, "the first batch is given even when it is larger"
    assert length(0, 799) == 400
    assert length(0, 800) == 800
    assert length(0, 10_000) == 800, "within one file"
    assert length(800, 10_000, until=1200) == 400
    assert length(800, 10_000, until=1199) == 0, "a batch that reaches beyond until is not given"
    assert length(800, 10_000, until=800) == 0
    assert length(2000, 10_000) == 0
    assert length(2000, 10_000, until=9999) == 0


def test_read_refuses_places_where_no_batch_begins(tmp_path: Path) -> None:
    """Goal: bad positions are named, not answered with bytes. Ask inside a batch and below the begin."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400, 400])
    with pytest.raises(BadRequest, match="8 is not where a batch begins"):
        log.read(8, 1000, until=log.end)
    with pytest.raises(OffsetOutOfRange):
        log.read(-8, 1000, until=log.end)


def test_a_run_that_was_read_outlives_rolls_and_the_log(tmp_path: Path) -> None:
    """Goal: a transport may hold a view. Read, roll, flush, close, and look at the bytes again; views are read-only."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400])
    run = log.read(0, 400, until=400)
    assert run is not None
    before = bytes(run)
    append_sizes(log, [400] * 5)
    flush(log)
    log.close()
    assert bytes(run) == before
    assert run.readonly


def test_files_far_behind_the_end_are_read_cold(tmp_path: Path) -> None:
    """Goal: only the neighbourhood of the end stays mapped. Keep little, then read the first file."""
    log = open_log(tmp_path, segment_bytes=1000, kept_mapped_bytes=1000, epoch=1)
    append_sizes(log, [400] * 10)
    before = [log.read(at, 800, until=log.end) for at in (0, 3200)]
    assert all(run is not None for run in before)
    flush(log)
    assert log.read(0, 800, until=log.end) is None
    assert log.read(3200, 800, until=log.end) is not None
    job = log.read_cold(0, 800, until=log.end)
    assert job.run() == bytes(before[0] or b"")
    assert log.read_cold(400, 10_000, until=600).run() == b""


def test_a_run_is_stored_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a process killed while it copies leaves no whole batch behind bytes that are none. A large memcpy writes
    pages out of order, so each copy is of one batch. Watch what a run of five stores."""
    master = open_log(tmp_path / "master", epoch=1)
    headers = append_sizes(master, [400, 800, 400, 1200, 400])
    mirror = open_log(tmp_path / "mirror")
    mirror.adopt_epochs(master.epochs.entries)
    lengths: list[int] = []
    place = SegmentChain.place

    def watched(chain: SegmentChain, header: memoryview, body: memoryview) -> None:
        lengths.append(len(header) + len(body))
        place(chain, header, body)

    monkeypatch.setattr(SegmentChain, "place", watched)
    mirror.append_run(memoryview(stored(master)), log_offset=0)
    assert lengths == [header.length for header in headers]
    assert stored(mirror) == stored(master)


def test_a_log_written_through_holds_the_same_bytes(tmp_path: Path) -> None:
    """Goal: pwrite and the map are two ways to one file. Roll through three files both ways, with a mirror of each."""
    logs = {}
    for through in (False, True):
        log = open_log(tmp_path / f"{through}", segment_bytes=1000, epoch=1, write_through=through)
        append_sizes(log, [400, 200, 800, 112, 600])
        mirror = open_log(tmp_path / f"{through}-mirror", segment_bytes=1000, write_through=through)
        mirror.adopt_epochs(log.epochs.entries)
        mirror.append_run(memoryview(stored(log)), log_offset=0)
        assert mirror.place_for(112) is None or not through, "no map of it is written"
        assert mapped(log) == mapped(mirror) == stored(log)
        logs[through] = [path.read_bytes() for path in segment_files(tmp_path / f"{through}")]
        abandon(log)
        assert open_log(tmp_path / f"{through}", segment_bytes=1000).recovery.clean
    assert logs[True] == logs[False]


def test_a_log_without_an_open_epoch_takes_no_batch(tmp_path: Path) -> None:
    """Goal: every batch has an epoch. Append to a fresh log, and to one whose list goes on beyond its end."""
    log = open_log(tmp_path)
    with pytest.raises(BadRequest, match="no epoch is open"):
        append(log, make_batch())
    master = open_log(tmp_path / "master", epoch=1)
    append_sizes(master, [400])
    master.open_epoch(2)
    log.adopt_epochs(master.epochs.entries)
    with pytest.raises(BadRequest, match="no epoch is open"):
        append(log, make_batch())


def test_a_batch_above_the_segment_size_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Goal: a batch is never split. Append one larger than a file, then one that fits."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    with pytest.raises(BatchTooLarge, match="segment_bytes"):
        append(log, sized_batch(1008))
    with pytest.raises(BadBatch):
        append(log, sized_batch(400)[:-8])
    assert append(log, sized_batch(1000)).log_offset == 0


def test_confirmed_rises_and_stops_at_the_end(tmp_path: Path) -> None:
    """Goal: the confirmed offset never goes back and never passes the bytes. Set it below, above and far above."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400, 400])
    log.set_confirmed(400)
    log.set_confirmed(0)
    assert log.confirmed == 400
    log.set_confirmed(10_000)
    assert log.confirmed == 800


def test_a_closed_log_answers_that_it_is_closed(tmp_path: Path) -> None:
    """Goal: no use after close. Close twice, then append and read."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400])
    log.close()
    log.close()
    with pytest.raises(LogUnavailable, match="closed"):
        append(log, make_batch())
    with pytest.raises(LogUnavailable, match="closed"):
        log.read(0, 1, until=400)


def test_scan_gives_the_batches_of_a_range(tmp_path: Path) -> None:
    """Goal: state can be rebuilt from any batch on. Scan from the third batch up to the sixth, over three files."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    headers = append_sizes(log, [400] * 8)
    seen: list[tuple[int, int]] = []
    log.scan(800, lambda header, batch: seen.append((header.log_offset, len(batch))), until=2400)
    assert seen == [(offset, 400) for offset in (800, 1200, 1600, 2000)]
    assert log.read_batch_at(1200)[0] == headers[3]
