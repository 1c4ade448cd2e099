"""What was sent with auto-ack and not taken."""

from __future__ import annotations

from mirrorlog.broker.consumer_groups.settlement import Unread
from mirrorlog.wire.frames import Grant


def granted(records: int, first: int = 0) -> list[Grant]:
    return [Grant(first, first + records)]


def test_the_prefetch_bounds_what_is_sent_and_not_taken() -> None:
    """Goal: records and bytes both bound it. Method: send to each limit, take some."""
    unread = Unread(records_max=10, bytes_max=100)
    unread.sent(granted(9), 50)
    assert not unread.full
    unread.sent(granted(1), 10)
    assert unread.full
    unread.taken(5)
    assert (unread.records, unread.size, unread.full) == (5, 30, False)
    unread.sent(granted(1), 70)
    assert unread.full


def test_one_record_is_sent_however_large_it_is() -> None:
    """Goal: nothing is stuck. Method: more than all bytes, taken; a count of more than was sent."""
    unread = Unread(records_max=1_000, bytes_max=1)
    assert not unread.full
    unread.sent(granted(2), 5_000)
    assert unread.full
    unread.taken(1)
    assert unread.full
    unread.taken(-3)
    assert (unread.records, unread.full) == (1, True)
    unread.taken(7)
    assert (unread.records, unread.size, unread.full) == (0, 0, False)


def test_bytes_that_came_with_no_record_block_nothing() -> None:
    """Goal: rounding costs no credit. Method: take one by one what has an odd size."""
    unread = Unread(records_max=10, bytes_max=10)
    unread.sent(granted(3), 100)
    for _ in range(3):
        unread.taken(1)
    assert (unread.records, unread.size) == (0, 0)


def test_the_lowest_record_that_may_be_come_for_rises_as_they_are_taken() -> None:
    """Goal: retention keeps what was settled as it was sent until it is taken. Grants out of order, taken in parts."""
    unread = Unread(records_max=100, bytes_max=100)
    assert unread.first is None
    unread.sent([*granted(5, 20), *granted(3, 10)], 8)
    unread.sent(granted(2, 30), 2)
    assert unread.first == 10
    unread.taken(4)
    assert unread.first == 10
    unread.taken(2)
    assert unread.first == 11
    unread.taken(3)
    assert unread.first == 31
    unread.taken(9)
    assert unread.first is None
