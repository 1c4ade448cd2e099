"""Which batches of a transaction landed before: all of them, or none."""

from __future__ import annotations

import pytest

from mirrorlog.broker.session.transactions import _batches, _landed
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.envelope import EnvelopePart, seal_envelope
from mirrorlog.commitlog.format.header import BatchHeader, read_header
from mirrorlog.errors import BadBatch, OutOfSequence, StaleProducerEpoch
from mirrorlog.queues.producers import ProducerTable


def batch(queue_id: int, sequence: int = 0, *, epoch: int = 0, producer_id: int = 7) -> bytearray:
    return encode_batch(
        [Record(b"v")], queue_id=queue_id, producer_id=producer_id, producer_epoch=epoch, sequence=sequence
    )


def headers(*batches: bytearray) -> list[BatchHeader]:
    return [read_header(each) for each in batches]


def stored(table: ProducerTable, *batches: bytearray, at: int = 0) -> None:
    """Follow a transaction of these, as a log does."""
    parts = [EnvelopePart(each, 0) for each in batches]
    for header in seal_envelope(parts, log_offset=at, append_time_us=1, epoch=1, seed=0)[1]:
        table.apply(header)


def test_what_is_new_is_new_also_in_a_row() -> None:
    """Goal: several batches of one queue follow one another in a transaction. Two of one queue, one of another."""
    table = ProducerTable()
    assert _landed(headers(batch(1), batch(2), batch(1, 1)), table) == []
    stored(table, batch(1), batch(2), batch(1, 1))
    assert _landed(headers(batch(1, 2), batch(2, 1)), table) == []


def test_a_whole_transaction_that_landed_is_found() -> None:
    """Goal: a retry is answered as the first. Ask for it, and again after a later one."""
    table = ProducerTable()
    whole = [batch(1), batch(2), batch(1, 1)]
    stored(table, *whole)
    stored(table, batch(1, 2), at=4096)
    found = _landed(headers(*whole), table)
    assert [each.log_offset for each in found] == [96, 96 + len(whole[0]), 96 + 2 * len(whole[0])]


@pytest.mark.parametrize("numbers", [((1, 1), (2, 1)), ((1, 0), (2, 1)), ((1, 0), (1, 1), (2, 0))])
def test_what_landed_in_part_or_apart_is_refused(numbers: list[tuple[int, int]]) -> None:
    """Goal: all or nothing. Batches of which some landed, and all of which landed in two transactions."""
    table = ProducerTable()
    stored(table, batch(1), batch(1, 1))
    stored(table, batch(2), at=4096)
    with pytest.raises(BadBatch, match="in other ones"):
        _landed(headers(*(batch(*each) for each in numbers)), table)


def test_gaps_and_ended_epochs_are_refused() -> None:
    """Goal: sequences hold inside of a transaction. A gap in it, the same number twice, another epoch, an old one."""
    table = ProducerTable()
    for second in (batch(1, 2), batch(1, 0), batch(1, 1, epoch=1)):
        with pytest.raises(OutOfSequence):
            _landed(headers(batch(1), second), table)
    stored(table, batch(1, epoch=3))
    with pytest.raises(StaleProducerEpoch):
        _landed(headers(batch(1, epoch=2)), table)


def test_batches_are_found_by_their_lengths_and_nothing_else_may_be_there() -> None:
    """Goal: no byte of a frame is passed over. One less, one more, a length of 0, no header."""
    one, two = bytes(batch(1)), bytes(batch(2))
    assert [bytes(each) for each in _batches(memoryview(one + two), 2)] == [one, two]
    for content, count in ((one + two, 1), (one, 2), (one[:-8], 1), (one[:44] + bytes(52), 1), (b"", 1), (bytes(8), 1)):
        with pytest.raises(BadBatch):
            _batches(memoryview(content), count)
