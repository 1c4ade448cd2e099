"""Transactions in the log: one envelope, all of it or nothing, whatever becomes of the bytes."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest

from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.format.envelope import EnvelopePart, open_envelope
from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, Flag, Kind, is_envelope, is_inner, read_header
from mirrorlog.commitlog.format.rows import RowCollector, pack_row
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.commitlog.index.table import SegmentTable
from mirrorlog.commitlog.index.tables import Tables, build_table
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.segments import scan
from mirrorlog.errors import BadBatch, BadRequest, BatchTooLarge
from tests.commitlog.logs import (
    KIB,
    MAX_BATCH_BYTES,
    abandon,
    append,
    flush,
    make_batch,
    open_log,
    patch,
    segment_files,
    stored,
)


def parts(*queues: int, values: int = 1) -> list[EnvelopePart]:
    """A batch for each queue, of `values` records, the first of them number 10."""
    return [EnvelopePart(make_batch(b"of %d" % queue, queue_id=queue, records=values), 10) for queue in queues]


def transact(log: CommitLog, *queues: int, values: int = 1) -> list[BatchHeader]:
    return log.append_transaction(parts(*queues, values=values), append_time_us=2_000_000)[0]


def walked(log: CommitLog) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    log.scan(log.begin, lambda header, batch: found.append(header))
    return found


def test_an_envelope_is_one_batch_that_holds_batches_with_places_of_their_own(tmp_path: Path) -> None:
    """Goal: the bytes on disk are as they are written down. Store two batches in one and read its parts."""
    log = open_log(tmp_path, epoch=7)
    append(log, make_batch())
    outer, first, second = transact(log, 3, 4)
    assert (outer.kind, outer.record_count, outer.queue_id, outer.flags) == (Kind.TRANSACTION, 2, 0, 0)
    assert first.log_offset == outer.log_offset + HEADER_SIZE
    assert second.log_offset == first.next_log_offset
    assert second.next_log_offset == outer.next_log_offset == log.end
    assert [each.flags for each in (first, second)] == [Flag.INNER] * 2
    assert [each.base_queue_offset for each in (first, second)] == [10, 10]
    assert {each.epoch for each in (outer, first, second)} == {7}
    content = stored(log)[outer.log_offset : outer.next_log_offset]
    assert crc32c(content[40:]) == outer.crc


def test_a_walk_meets_the_envelope_and_then_what_is_inside(tmp_path: Path) -> None:
    """Goal: whoever walks a log is given each batch of a transaction. Compare headers after another opening too."""
    log = open_log(tmp_path, epoch=1)
    append(log, make_batch())
    expected = [*walked(log), *transact(log, 3, 4, 5), append(log, make_batch())]
    assert walked(log) == expected
    abandon(log)
    seen: list[BatchHeader] = []
    log = open_log(tmp_path, on_batch=lambda header, batch: seen.append(header))
    assert seen == expected
    assert log.recovery.clean
    assert log.recovery.batches == 3


def test_a_walk_opens_each_envelope_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a log of transactions is verified and recovered with no more passes over its bytes than it needs. Count how
    often what is inside is checked while a log is walked."""
    log = open_log(tmp_path, epoch=1)
    expected = [*walked(log), *transact(log, 3, 4, 5), *transact(log, 3)]
    opened: list[int] = []

    def counted(envelope: memoryview, header: BatchHeader, *, seed: int) -> list[BatchHeader]:
        opened.append(header.log_offset)
        return open_envelope(envelope, header, seed=seed)

    monkeypatch.setattr(scan, "open_envelope", counted)
    assert walked(log) == expected
    assert opened == [each.log_offset for each in expected if is_envelope(each)]


def test_only_the_envelope_is_a_border_and_what_is_inside_is_read_alone(tmp_path: Path) -> None:
    """Goal: copies and cuts take transactions whole, reads of queues take what they want. Ask for both kinds of run."""
    log = open_log(tmp_path, epoch=1)
    before = append(log, make_batch())
    outer, first, second, third = transact(log, 3, 4, 4)
    after = append(log, make_batch())
    assert log.is_border(outer.log_offset)
    assert not any(log.is_border(each.log_offset) for each in (first, second, third))
    with pytest.raises(BadRequest):
        log.truncate(second.log_offset, log.epochs.entries)

    def run(at: int, size: int, until: int) -> int:
        view = log.read(at, size, until=until)
        assert view is not None
        return at + len(view)

    # From a border on: whole transactions.
    assert run(before.log_offset, second.next_log_offset, log.end) == outer.log_offset
    assert run(outer.log_offset, 1, log.end) == outer.next_log_offset
    assert run(outer.log_offset, outer.length, second.log_offset) == outer.log_offset
    assert run(before.log_offset, 1 << 20, log.end) == log.end
    # From inside: batch by batch.
    assert run(first.log_offset, 1, log.end) == first.next_log_offset
    assert run(second.log_offset, 1 << 20, third.next_log_offset) == third.next_log_offset
    assert run(second.log_offset, second.length, second.next_log_offset) == second.next_log_offset
    assert run(second.log_offset, second.length, second.next_log_offset - 8) == second.log_offset
    assert run(third.log_offset, 1 << 20, log.end) == after.next_log_offset
    assert run(first.log_offset, 1, first.log_offset) == first.log_offset


def test_an_envelope_is_never_read_in_part_behind_one_that_is(tmp_path: Path) -> None:
    """Goal: a run that begins inside of one transaction does not end inside of the next. Limits of every size."""
    log = open_log(tmp_path, epoch=1)
    former = transact(log, 3, 4)
    following = transact(log, 3, 4)
    for size in range(8, log.end, 8):
        view = log.read(former[1].log_offset, size, until=log.end)
        assert view is not None
        end = former[1].log_offset + len(view)
        assert end in (former[1].next_log_offset, former[2].next_log_offset, following[0].next_log_offset)


@pytest.mark.parametrize("write_through", [False, True])
def test_a_crash_at_every_byte_of_an_envelope_leaves_all_of_it_or_nothing(tmp_path: Path, write_through: bool) -> None:
    """Goal: a torn transaction is cut as one, and is no loss. Leave the first so many bytes, or the last so many (the
    header is written last), for every number of them in steps of 8, and open the log."""
    log = open_log(tmp_path, epoch=1, segment_bytes=4 * KIB, write_through=write_through)
    append(log, make_batch())
    begin = log.end
    transact(log, 3, 4, values=3)
    content = stored(log)
    abandon(log)
    file = segment_files(tmp_path)[0]
    for left in range(0, len(content) - begin + 1, 8):
        for from_the_front in (True, False):
            whole = content[begin:]
            at = left if from_the_front else len(whole) - left
            torn = whole[:left] + bytes(len(whole) - left) if from_the_front else bytes(at) + whole[at:]
            patch(file, begin, torn)
            log = open_log(tmp_path, segment_bytes=4 * KIB)
            seen = walked(log)
            is_whole = torn == whole
            assert log.end == (len(content) if is_whole else begin), (left, from_the_front)
            assert len(seen) == (4 if is_whole else 1)
            assert not log.recovery.lossy, (left, from_the_front)
            abandon(log)


def test_one_flipped_byte_anywhere_in_an_unflushed_envelope_cuts_all_of_it(tmp_path: Path) -> None:
    """Goal: no part of a transaction counts without the others. Flip each byte of it in turn."""
    log = open_log(tmp_path, epoch=1, segment_bytes=4 * KIB)
    append(log, make_batch())
    begin = log.end
    transact(log, 3, 4)
    content = stored(log)
    abandon(log)
    file = segment_files(tmp_path)[0]
    for at in range(begin, len(content)):
        patch(file, begin, content[begin:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        log = open_log(tmp_path, segment_bytes=4 * KIB)
        assert (log.end, log.recovery.lossy) == (begin, False), at
        abandon(log)


def test_a_batch_behind_a_torn_envelope_makes_the_start_lossy(tmp_path: Path) -> None:
    """Goal: a whole batch that is cut is reported, in a transaction as elsewhere. Damage one with a batch behind it."""
    log = open_log(tmp_path, epoch=1)
    outer = transact(log, 3, 4)[0]
    after = append(log, make_batch())
    abandon(log)
    patch(segment_files(tmp_path)[0], outer.log_offset + 10, b"\xff")
    log = open_log(tmp_path)
    assert (log.end, log.recovery.lossy) == (0, True)
    valid = log.recovery.cut_valid
    assert valid is not None
    assert (valid.first, valid.last) == (after.log_offset, after.next_log_offset)


def test_a_mirror_takes_whole_transactions_and_knows_what_is_inside(tmp_path: Path) -> None:
    """Goal: a copy is byte for byte its master's, and tells of each batch. Copy runs of every size, received both
    ways."""
    log = open_log(tmp_path / "master", epoch=1)
    append(log, make_batch())
    expected = transact(log, 3, 4)
    append(log, make_batch())
    expected += transact(log, 5, 3)
    for number, placed in enumerate((False, True)):
        mirror = open_log(tmp_path / f"mirror{number}", first_epochs=log.epochs.entries)
        headers: list[BatchHeader] = []
        while mirror.end < log.end:
            run = log.read(mirror.end, 600, until=log.end)
            assert run
            if placed:
                place = mirror.place_for(len(run))
                assert place is not None
                place[:] = run
                headers += mirror.keep_placed(place, log_offset=mirror.end)
            else:
                headers += mirror.append_run(run, log_offset=mirror.end)
        assert stored(mirror) == stored(log)
        assert headers == walked(log)
        assert [mirror.is_border(each.log_offset) for each in expected] == [is_envelope(each) for each in expected]
        second = expected[2]
        assert mirror.read(second.log_offset, second.length, until=second.next_log_offset)


def test_a_mirror_refuses_what_begins_inside_of_a_transaction_or_is_not_whole(tmp_path: Path) -> None:
    """Goal: no copy holds a part of one. Send its batches alone, and an envelope whose inside is not what it says."""
    log = open_log(tmp_path / "master", epoch=1)
    outer, first, _ = transact(log, 3, 4)
    content = stored(log)
    late = open_log(tmp_path / "late", begin=HEADER_SIZE, first_epochs=[Epoch(1, 0)])
    with pytest.raises(BadBatch, match="transaction"):
        late.append_run(memoryview(content)[first.log_offset : first.next_log_offset], log_offset=first.log_offset)
    mirror = open_log(tmp_path / "mirror", first_epochs=log.epochs.entries)
    for at in (outer.log_offset + 44, first.log_offset, first.log_offset + 28, first.log_offset + 100):
        broken = bytearray(content)
        broken[at] ^= 1
        with pytest.raises(BadBatch):
            mirror.append_run(memoryview(broken), log_offset=0)
    assert mirror.end == 0


def test_an_envelope_above_the_limit_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    """Goal: max_batch_bytes bounds transactions. Two batches that fit alone."""
    log = open_log(tmp_path, epoch=1, segment_bytes=4 * MAX_BATCH_BYTES)
    half = make_batch(b"x" * (MAX_BATCH_BYTES // 2))
    with pytest.raises(BatchTooLarge, match="transaction"):
        log.append_transaction([EnvelopePart(half, 0), EnvelopePart(half, 0)], append_time_us=1)
    assert log.end == 0


def test_a_cut_before_a_transaction_forgets_all_of_it(tmp_path: Path) -> None:
    """Goal: truncation takes envelopes whole, in memory too. Cut, append anew, and read where the old parts stood."""
    log = open_log(tmp_path, epoch=1)
    before = append(log, make_batch())
    outer, first, second = transact(log, 3, 4)
    log.truncate(outer.log_offset, log.epochs.entries)
    assert log.end == before.next_log_offset
    append(log, make_batch(b"y" * 400))
    for each in (first, second):
        with pytest.raises(BadRequest):
            log.read(each.log_offset, 1, until=log.end)


def test_memory_and_tables_know_the_batches_inside_and_borders_only_the_envelope(tmp_path: Path) -> None:
    """Goal: what the index says of a segment and what a walk says are one table, and it finds what is inside. Make it
    both ways and look up records, states and borders."""
    log = open_log(tmp_path, epoch=1)
    index = QueueIndex()
    headers = [append(log, make_batch(queue_id=3), 0)]
    change = make_batch(queue_id=4, kind=Kind.QUEUE_STATE)
    inside = [
        EnvelopePart(make_batch(queue_id=3, records=2), 1),
        EnvelopePart(make_batch(queue_id=4, records=3), 0),
        EnvelopePart(change, 0),
    ]
    headers += log.append_transaction(inside, append_time_us=2)[0]
    headers.append(append(log, make_batch(queue_id=4), 3))
    for header in headers:
        index.add(header)
    outer = headers[1]
    assert index.confirm(outer.log_offset) == {3}
    assert index.next_confirmed(4) == 0
    assert index.confirm(log.end) == {3, 4}
    run = index.find(4, 2)
    assert (run.log_offset, run.record_count) == (headers[3].log_offset, 3)
    walk = RowCollector()
    log.scan(0, walk)
    table = build_table(index.rows(0, log.end), start=0, end=log.end, seed=log.seed)
    assert bytes(table) == bytes(build_table(walk.rows(), start=0, end=log.end, seed=log.seed))
    tables = Tables(OS_FILES, tmp_path, seed=log.seed)
    head = tables.store(0, log.end, table)
    found: SegmentTable = tables.get(0)
    assert head.borders == 3
    assert [found.is_border(each.log_offset) for each in headers] == [not is_inner(each) for each in headers]
    state = found.states()
    assert [(each.log_offset, each.kind) for each in state] == [(headers[4].log_offset, Kind.QUEUE_STATE)]
    assert found.entries(4, 0, 1 << 20, until=9)[0].log_offset == headers[3].log_offset
    tables.close()


def test_a_cut_takes_the_whole_transaction_from_the_index(tmp_path: Path) -> None:
    """Goal: numbers are given out again as they stood before. Cut an index before an envelope."""
    log = open_log(tmp_path, epoch=1)
    index = QueueIndex()
    for header in [append(log, make_batch(queue_id=3), 0), *transact(log, 3, 4)]:
        index.add(header)
    index.cut(HEADER_SIZE + 16)
    assert (index.next_appended(3), index.next_appended(4)) == (1, 0)


def test_a_batch_of_a_transaction_is_copied_without_it(tmp_path: Path) -> None:
    """Goal: what lives on of a freed segment stands alone. Append one from inside once more: no flag, its number."""
    log = open_log(tmp_path, epoch=1)
    _, first, _ = transact(log, 3, 4)
    _, batch = log.read_batch_at(first.log_offset)
    copied = log.append_copied(memoryview(batch)[: first.length])
    assert (copied.flags, copied.base_queue_offset, copied.queue_id) == (Flag.COPIED, 10, 3)
    assert log.is_border(copied.log_offset)
    abandon(log)
    assert open_log(tmp_path).recovery.clean


@pytest.mark.parametrize("sealed", [False, True])
def test_cold_reads_find_what_is_inside(tmp_path: Path, sealed: bool) -> None:
    """Goal: the past gives a queue its batches out of transactions, and mirrors the transactions. Read both from a
    segment that is no longer mapped."""
    log = open_log(tmp_path, epoch=1, segment_bytes=2 * KIB, kept_mapped_bytes=0)
    outer, first, second = transact(log, 3, 4)
    while log.active_start == 0:
        append(log, make_batch(b"z" * 300))
    log.set_confirmed(log.end)
    flush(log)
    end = log.segments()[0].end
    if sealed:
        log.seal(end)
    read = bytes(log.read_cold(second.log_offset, second.length, until=second.next_log_offset).run())
    assert read == stored(log)[second.log_offset : second.next_log_offset]
    whole = log.read_cold(outer.log_offset, 1, until=end).run()
    assert read_header(whole) == outer
    assert len(whole) == outer.length
    both = log.read_cold(first.log_offset, 1 << 20, until=second.next_log_offset).run()
    assert len(both) == first.length + second.length


def test_rows_of_random_logs_leave_no_gap(tmp_path: Path) -> None:
    """Goal: every place of the log is told by exactly one row, whatever stands in it. Logs of random batches and
    transactions, over several files and openings."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    log = open_log(tmp_path, epoch=1, segment_bytes=4 * KIB)
    for epoch in range(2, 8):
        for _ in range(chance.randrange(20)):
            if chance.random() < 0.5:
                append(log, make_batch(b"a" * chance.randrange(200)))
            else:
                transact(log, *(chance.randrange(1, 5) for _ in range(chance.randrange(1, 5))))
        content = stored(log)
        abandon(log)
        log = open_log(tmp_path, epoch=epoch, segment_bytes=4 * KIB)
        rows = walked(log)
        assert stored(log) == content
        at = 0
        for header in rows:
            assert header.log_offset == at
            at += int.from_bytes(pack_row(header)[32:36], "little")
        assert at == log.end


def test_a_transaction_of_another_log_counts_for_nothing(tmp_path: Path) -> None:
    """Goal: an envelope is bound to its log. Put the bytes of one into the place of another's."""
    log = open_log(tmp_path / "one", epoch=1)
    transact(log, 3, 4)
    content = stored(log)
    other = open_log(tmp_path / "other", epoch=1, log_id=UUID(int=5))
    abandon(other)
    patch(segment_files(tmp_path / "other")[0], 0, content)
    assert open_log(tmp_path / "other", log_id=UUID(int=5)).end == 0


def test_what_is_said_of_a_batch_stands_in_its_header_beside_that_it_is_inside(tmp_path: Path) -> None:
    """One that its queue refused, and one of which nothing is said; read again from the disk they are the same."""
    log = open_log(tmp_path, epoch=7)
    refused, plain = parts(3, 4)
    stamped, envelope = log.append_transaction([refused._replace(flags=int(Flag.REFUSED)), plain], append_time_us=1)
    assert [header.flags for header in stamped] == [0, Flag.INNER | Flag.REFUSED, Flag.INNER]
    assert open_envelope(memoryview(envelope), stamped[0], seed=log.seed) == stamped[1:]
