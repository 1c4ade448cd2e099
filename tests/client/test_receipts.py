"""Receipts of many records: the same as one Receipt for each, without making them."""

from __future__ import annotations

import pytest

from mirrorlog.client.producer.batch import Receipt, ReceiptRange, Receipts
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm

RANGES = [
    ReceiptRange.of(Confirm(4096, 70, 5, 3, 1, CONFIRM_DUPLICATE), 3),
    ReceiptRange.of(Confirm(9000, 80, 6, 2, 0, 0), 1),
    ReceiptRange.of(Confirm(9100, 81, 6, 2, 0, 0), 2),
]
EACH = [
    *(Receipt(offset, 4096, 5, 3, 1, True) for offset in (70, 71, 72)),
    Receipt(80, 9000, 6, 2, 0, False),
    *(Receipt(offset, 9100, 6, 2, 0, False) for offset in (81, 82)),
]


def test_each_record_has_its_receipt() -> None:
    """By index, from the end, and one after another; over batches of 3, 1 and 2 records."""
    receipts = Receipts(RANGES)
    assert len(receipts) == 6
    assert [receipts[index] for index in range(6)] == list(receipts) == EACH
    assert [receipts[index] for index in range(-6, 0)] == EACH
    assert receipts == Receipts(RANGES) != Receipts(RANGES[:2])


@pytest.mark.parametrize("index", [6, -7])
def test_there_is_none_beyond_the_ends(index: int) -> None:
    """By one beyond each."""
    with pytest.raises(IndexError, match="6 receipts"):
        Receipts(RANGES)[index]


def test_nothing_sent_has_no_receipts() -> None:
    """An empty column is no error; by asking the length, the records and the first."""
    assert (len(Receipts([])), list(Receipts([]))) == (0, [])
    with pytest.raises(IndexError):
        Receipts([])[0]


def test_a_receipt_is_shown_with_its_durability_as_a_word() -> None:
    """Goal: 0 does not read as none. Show one in memory, one on disk, a range, and one of a kind that is not known; the
    value stays the number."""
    on_disk, in_memory = EACH[0], EACH[3]
    assert repr(in_memory) == (
        "Receipt(queue_offset=80, log_offset=9000, epoch=6, copies=2, durability=memory, duplicate=False)"
    )
    assert "durability=disk" in repr(on_disk)
    assert "durability=memory" in repr(RANGES[1])
    assert "durability=9" in repr(in_memory._replace(durability=9))
    assert (in_memory.durability, on_disk.durability) == (0, 1)
    assert in_memory == (80, 9000, 6, 2, 0, False)
