"""What is logged of records that leave: for a piece no more is looked at than the piece."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlog.broker.dead_letters.journal import DeadLetterJournal
from mirrorlog.queues.changes import (
    Addressed,
    Change,
    ForwardingStarted,
    PieceForwarded,
    Returned,
    Settled,
    decode_changes,
)
from mirrorlog.queues.dead_letters.forwarding import HELD, REDRIVEN, REJECTED, Forwarding
from mirrorlog.queues.groups.ledger import LeaseRow, Ledger
from mirrorlog.queues.groups.ledger_chunk import Chunk
from mirrorlog.queues.groups.ledger_update import LedgerUpdate
from mirrorlog.queues.ranges import Range, flat

QUEUE = 5
ROW = LeaseRow("", 0, 1)
SCATTERED = 20_000


def holding(_: int, group: str, ranges: Sequence[Range]) -> ForwardingStarted:
    return ForwardingStarted(
        group=group, departure=9, ranges=flat(ranges), reason=HELD, at_us=1, exchange="", routing_key=None
    )


def log_of(ledger: Ledger) -> tuple[DeadLetterJournal, list[list[Change]]]:
    appended: list[list[Change]] = []
    counters = SimpleNamespace(dead_lettered=lambda *_: None)
    replica: Any = SimpleNamespace(groups=SimpleNamespace(get=lambda *_: ledger), counters=counters)
    publisher: Any = SimpleNamespace(append_settlement=lambda batch: appended.append(decode_changes(batch)))
    forwardings = SimpleNamespace(holding=holding)
    deliverer: Any = SimpleNamespace(dropped=lambda *_: None, stayed=lambda *_: None, forwardings=forwardings)
    return DeadLetterJournal(replica, publisher, deliverer), appended


def departure(number: int, reason: str = REJECTED) -> Forwarding:
    return Forwarding(number, "", reason, 1, "", None)


def test_a_piece_is_settled_but_for_what_is_kept_and_what_others_have() -> None:
    ledger = Ledger()
    LedgerUpdate(ledger).lease(1, ROW, 0, 10)
    LedgerUpdate(ledger).lease(2, ROW, 4, 6)
    log, appended = log_of(ledger)
    piece = Addressed(departure=1, ranges=[0, 8], targets=[], kept=[2, 5])
    log.settle(QUEUE, departure(1, REDRIVEN), piece)
    assert appended == [
        [
            Settled(group="", ranges=[0, 2, 6, 8], why="redriven"),
            Returned(group="", ranges=[2, 4]),
            PieceForwarded(departure=1, last=False),
        ]
    ]


def test_the_last_piece_ends_the_departure_and_one_of_a_group_that_was_reset_does_too() -> None:
    ledger = Ledger()
    LedgerUpdate(ledger).lease(1, ROW, 0, 4)
    log, appended = log_of(ledger)
    piece = Addressed(departure=1, ranges=[0, 4], targets=[])
    log.settle(QUEUE, departure(1), piece)
    log.settle(QUEUE, departure(3), piece)
    assert [each[-1] for each in appended] == [
        PieceForwarded(departure=1, last=True),
        PieceForwarded(departure=3, last=True),
    ]
    assert len(appended[1]) == 1


def test_however_scattered_what_leaves_is_a_piece_costs_as_much_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop would stand still, for each of thousands of pieces."""
    ledger = Ledger()
    for at in range(0, 2 * SCATTERED, 2):
        LedgerUpdate(ledger).lease(1, ROW, at, at + 1)
    looked: list[object] = []
    rows_in = Chunk.rows_in

    def counted(self: Chunk, first: int, until: int) -> Any:
        for row in rows_in(self, first, until):
            looked.append(row)
            yield row

    monkeypatch.setattr(Chunk, "rows_in", counted)
    monkeypatch.setattr(Ledger, "lease_ranges", None)
    log, appended = log_of(ledger)
    ranges = [border for at in range(20_000, 20_512, 2) for border in (at, at + 1)]
    log.settle(QUEUE, departure(1), Addressed(departure=1, ranges=ranges, targets=[]))
    assert appended == [[Settled(group="", ranges=ranges, why="dead"), PieceForwarded(departure=1, last=False)]]
    assert len(looked) == 256


def test_what_a_lease_has_of_a_range_is_what_of_all_that_it_has_is_in_it() -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    ledger = Ledger()
    for _ in range(500):
        first = chance.randrange(20_000)
        LedgerUpdate(ledger).lease(chance.randrange(1, 4), ROW, first, first + chance.randrange(1, 300))
    for _ in range(200):
        low, lease = chance.randrange(20_000), chance.randrange(1, 5)
        high = low + chance.randrange(0, 9000)
        all_of_it = {at for first, until in ledger.lease_ranges(lease) for at in range(first, until)}
        within = [at for first, until in ledger.lease_within(lease, low, high) for at in range(first, until)]
        assert within == sorted(all_of_it & set(range(low, high))), f"seed {seed}"


@pytest.mark.parametrize("reason", [REJECTED, REDRIVEN])
def test_what_cannot_be_sent_is_held_if_it_died_and_free_again_if_somebody_wanted_it_elsewhere(reason: str) -> None:
    """Of a piece, and of what is in none; what others have stays theirs."""
    ledger = Ledger()
    LedgerUpdate(ledger).lease(1, ROW, 0, 10)
    LedgerUpdate(ledger).lease(2, ROW, 4, 6)
    log, appended = log_of(ledger)
    log.keep(QUEUE, departure(1, reason), [(3, 8)])
    log.keep(QUEUE, departure(1, reason), [(20, 30)])
    log.settle(QUEUE, departure(1, reason), Addressed(departure=1, ranges=[0, 3], targets=[], kept=[1, 2]))
    kept = [each for changes in appended for each in changes if isinstance(each, ForwardingStarted | Returned)]
    assert [each.ranges for each in kept] == [[3, 4, 6, 8], [1, 2]]
    assert {type(each) for each in kept} == {ForwardingStarted if reason == REJECTED else Returned}
    assert len(appended) == 2
