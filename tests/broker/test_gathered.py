"""What is logged of acking groups fits into batches that every node takes."""

from __future__ import annotations

from mirrorlog.broker.gathered import in_batches, merged
from mirrorlog.queues.changes import (
    RANGES_PER_CHANGE,
    Change,
    Leased,
    Returned,
    Settled,
    encode_changes,
)

SMALLEST_MAX = 64 * 1024
NAME = "\U0001f600" * 255


def scattered(count: int, base: int = 2**62) -> list[int]:
    return [base + each for each in range(2 * count)]


def test_every_batch_fits_whatever_the_changes_are() -> None:
    """Goal: no mirror meets a batch that is too large for it. Method: 20,000 ranges under the longest name, a thousand
    delays of one record each, leases with the longest holder; all batches are below the smallest limit, none is empty,
    and put together they say what was to be said, in order."""
    changes: list[Change] = [
        Settled(group=NAME, ranges=scattered(20_000), why="purged"),
        *(Returned(group=NAME, ranges=scattered(1), delay_ms=each, counted=True) for each in range(1000)),
        *(Leased(group=NAME, lease=each, holder=NAME, ranges=scattered(256), lease_ms=1) for each in range(50)),
        Settled(group="", ranges=[0, 1]),
    ]
    batches = list(in_batches(changes))
    assert all(batches)
    assert max(len(encode_changes(batch, queue_id=1)) for batch in batches) < SMALLEST_MAX
    flat = [change for batch in batches for change in batch]
    pieces = [change for change in flat if isinstance(change, Settled) and change.why == "purged"]
    assert all(len(piece.ranges) <= 2 * RANGES_PER_CHANGE for piece in pieces)
    assert [border for piece in pieces for border in piece.ranges] == scattered(20_000)
    assert flat[len(pieces) :] == changes[1:]


def test_a_few_changes_are_one_batch() -> None:
    """All of them count, or none. And nothing is no batch."""
    changes: list[Change] = [Settled(group="", ranges=scattered(1000)), Returned(group="", ranges=scattered(1000))]
    assert list(in_batches(changes)) == [changes]
    assert list(in_batches([])) == []


def test_changes_of_one_sort_are_one_change_with_ascending_ranges() -> None:
    """Out of order, touching, over one another, and one of 2^32, which takes no longer than any other."""
    changes: list[Change] = [
        Settled(group="g", ranges=[50, 60, 2**33, 2**34]),
        Returned(group="g", ranges=[7, 8], delay_ms=5),
        Settled(group="g", ranges=[0, 5, 60, 70]),
        Settled(group="g", ranges=[3, 9], why="dead"),
        Settled(group="g", ranges=[65, 68]),
        Returned(group="g", ranges=[6, 7], delay_ms=5),
    ]
    assert merged("g", changes) == [
        Settled(group="g", ranges=[0, 5, 50, 70, 2**33, 2**34]),
        Settled(group="g", ranges=[3, 9], why="dead"),
        Returned(group="g", ranges=[6, 8], delay_ms=5),
    ]
