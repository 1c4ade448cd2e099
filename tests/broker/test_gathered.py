"""What is logged of acking groups fits into batches that every node takes."""

from __future__ import annotations

from mirrorlog.broker.consumer_groups.active_groups import (
    PendingSettlements,
    SettlementRequest,
    in_batches,
    merged,
    ranges_of,
)
from mirrorlog.queues.changes import (
    RANGES_PER_CHANGE,
    Change,
    RecordsLeased,
    Returned,
    Settled,
    Watermark,
    encode_changes,
)
from mirrorlog.queues.delivery.group import Settlement
from mirrorlog.wire.frames import How

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
        *(RecordsLeased(group=NAME, lease=each, holder=NAME, ranges=scattered(256), lease_ms=1) for each in range(50)),
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


def asked(*changes: Change) -> SettlementRequest:
    ranges = ranges_of(changes)
    records = sum(until - first for first, until in ranges)
    return SettlementRequest(Settlement(1, int(How.RETURN), ranges, changes, records), 1, lambda error: None)


def test_what_is_gathered_is_logged_in_parts_of_one_batch_each() -> None:
    """Goal: one whose append is refused is refused alone, and who is logged is told so. Method: 1,300 returns with
    another delay each under the longest name, and among them one of 4,096 ranges; each part but that one's fits into
    one batch beside a watermark; every settlement is in one part, in order, with all of its ranges."""
    gathered = PendingSettlements()
    for each in range(1300):
        ranges = scattered(4096 if each == 700 else 1, base=2**62 + 10_000 * each)
        gathered.add(asked(Returned(group=NAME, ranges=ranges, delay_ms=1 + each, counted=True)))
    parts = list(gathered.parts(NAME))
    assert [each for part in parts for each in part.asked] == gathered.asked
    for part in parts:
        assert ranges_of(part.changes) == tuple(each for one in part.asked for each in one.settlement.ranges)
        batches = list(in_batches([*part.changes, Watermark(group=NAME, queue_offset=2**63)]))
        assert len(batches) == 1 or len(part.asked) == 1
        assert max(len(encode_changes(batch, queue_id=1)) for batch in batches) < SMALLEST_MAX
    assert len(parts) > 20
    assert [len(part.asked) for part in parts if len(part.changes[0].ranges) > 2] == [1]


def test_a_thousand_acks_are_one_part_and_one_change() -> None:
    """Of one record each. And nothing is no part."""
    gathered = PendingSettlements()
    assert list(gathered.parts("")) == []
    for each in range(300):
        gathered.add(asked(Settled(group="", ranges=[each, each + 1])))
    (part,) = gathered.parts("")
    assert part.changes == [Settled(group="", ranges=[0, 300])]


def test_whether_anything_is_being_settled_is_asked_in_as_many_steps_as_there_is() -> None:
    """Whatever is asked for: 2^63 records are no more than ten."""
    gathered = PendingSettlements()
    assert not gathered.meets([0, 2**63])
    gathered.add(asked(Settled(group="", ranges=[5, 6, 2**40, 2**41])))
    assert gathered.meets([0, 2**63])
    assert gathered.meets([2**41 - 1, 2**62])
    assert not gathered.meets([0, 5, 6, 2**40, 2**41, 2**63])
