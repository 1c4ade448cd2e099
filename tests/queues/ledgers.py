"""What is known of ledgers, in a form that can be compared: whatever chunks and rows they keep it in."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Final

from mirrorlog.queues.changes import SETTLED_WHYS, Change, GroupDeleted, RecordsLeased, Returned, Settled, Watermark
from mirrorlog.queues.groups.ledger import CHUNK_RECORDS, Ledger, State
from mirrorlog.queues.groups.table import GroupTable

END: Final = 3 * CHUNK_RECORDS + 100


def random_range(random: Random, floor: int = 0) -> tuple[int, int]:
    """Within [0, END), and often at the borders of chunks; half of them near a group's `floor`, over which it moves."""
    first = random.choice([random.randrange(END), random.randrange(4) * CHUNK_RECORDS, 0])
    if random.random() < 0.5:
        first = max(0, min(END - 1, floor + random.choice([0, 0, 0, 1, random.randrange(-40, 200)])))
        return first, min(END, first + random.choice([1, 2, random.randrange(1, 200), random.randrange(1, 3000)]))
    length = random.choice([1, 1, 2, random.randrange(1, 600), CHUNK_RECORDS, 2 * CHUNK_RECORDS])
    return first, min(END, first + length)


def random_change(random: Random, group: str, at: int, floor: int = 0) -> Change:
    """Of a group that is there, and whose floor is that."""
    first, until = random_range(random, floor)
    ranges = [first, until]
    if until + 7 < END and random.random() < 0.3:
        ranges += [until + 5, until + 7]
    changes: list[tuple[Change, int]] = [
        (Settled(group=group, ranges=ranges, why=random.choice(SETTLED_WHYS)), 10),
        (Returned(group=group, ranges=ranges, counted=random.random() < 0.5), 5),
        (Returned(group=group, ranges=ranges, counted=random.random() < 0.5, delay_ms=random.randrange(1, 4)), 4),
        (Watermark(group=group, queue_offset=random.randrange(END)), 2),
        (RecordsLeased(group=group, lease=random.randrange(3), holder=f"h{at}", ranges=ranges, lease_ms=1000), 5),
        (RecordsLeased(group=group, lease=random.randrange(3), holder=f"h{at}", ranges=[], lease_ms=2000), 2),
        (GroupDeleted(group=group), 1),
    ]
    return random.choices([each for each, _ in changes], [weight for _, weight in changes])[0]


def merged(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows (first, until, …), with those put together that touch and are equal in all else."""
    found: list[tuple[Any, ...]] = []
    for row in rows:
        if found and found[-1][1] == row[0] and found[-1][2:] == row[2:]:
            found[-1] = (found[-1][0], *row[1:])
        else:
            found.append(tuple(row))
    return found


def attempts_of(ledger: Ledger, first: int, until: int) -> list[tuple[int, int, int]]:
    """(first, until, count) of what came back and is not settled."""
    found = []
    for low, high, state in ledger.runs(first, until):
        at = low
        while state != State.SETTLED and at < high:
            count, end = ledger.attempts(at, high)
            found.append((at, end, count))
            at = end
    return merged(row for row in found if row[2])


def verdicts_of(ledger: Ledger, until: int) -> list[tuple[Any, ...]]:
    """(first, until, what it stands as) of what is settled."""
    settled = [(low, high) for low, high, state in ledger.runs(0, until) if state == State.SETTLED]
    return merged(part for each in settled for part in ledger.verdicts.parts(*each))


def facts(ledger: Ledger, until: int) -> dict[str, Any]:
    """All that a copy knows of a group below `until`; what is out is free to a copy."""
    runs = [(low, high, 0 if state == State.OUT else int(state)) for low, high, state in ledger.runs(0, until)]
    return {
        "floor": ledger.floor,
        "watermark": ledger.watermark,
        "runs": merged(runs),
        "attempts": attempts_of(ledger, 0, until),
        "parked": merged(ledger.parked_rows()),
        "leases": {number: (row, merged(ledger.lease_ranges(number))) for number, row in sorted(ledger.leases.items())},
        "verdicts": verdicts_of(ledger, until),
        "counts": (ledger.parked, ledger.leased, ledger.unsettled_total(until), ledger.ready(until) + ledger.out),
    }


def table_facts(table: GroupTable, until: int) -> dict[tuple[int, str], dict[str, Any]]:
    """Of all groups."""
    return {
        (queue_id, group): facts(ledger, until) for queue_id, group, ledger in sorted(table, key=lambda each: each[:2])
    }
