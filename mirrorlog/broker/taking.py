"""Who takes from a group that acks, and what holds each of them up, as the group's master sees it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final

from mirrorlog.queues.departures import NUMBERS
from mirrorlog.queues.ledger import Ledger
from mirrorlog.queues.subscriber import Subscriber
from mirrorlog.wire.messages import ConsumerInfo, LeaseInfo

NAMED_MAX: Final = 20
"""So many are named; the counts are of all."""


@dataclass(frozen=True, slots=True)
class Taking:
    """See `GroupInfo`, whose fields these are."""

    waiting: int = 0
    idle_for_another: int = 0
    without_credit: tuple[str, ...] = ()
    not_reading: tuple[str, ...] = ()
    alone: str = ""
    due_ms: int = -1
    consumers: tuple[ConsumerInfo, ...] = ()


def taking_of(
    subscribers: Iterable[Subscriber],
    *,
    waiting: int,
    alone: int | None,
    due_at: float,
    now: float,
    peer: Callable[[int], str],
) -> Taking:
    """`alone`: the number of the one that has the group for itself. `due_at`, `now`: s. `peer`: whose subscription a
    number is, for people."""
    there = [each for each in subscribers if not each.closing]

    def name(each: Subscriber) -> str:
        return f"{peer(each.facts.number)} ({len(each.hand)} in hand)"

    held_back = [each for each in there if alone and each.facts.number != alone]
    able = [each for each in there if each not in held_back]
    return Taking(
        waiting=waiting,
        idle_for_another=len(held_back),
        without_credit=tuple(name(each) for each in able if not each.held and each.room <= 0)[:NAMED_MAX],
        not_reading=tuple(name(each) for each in able if each.held)[:NAMED_MAX],
        alone=next((name(each) for each in there if each.facts.number == alone), ""),
        due_ms=-1 if due_at == math.inf else max(0, int((due_at - now) * 1000)),
        consumers=tuple(
            ConsumerInfo(
                peer=peer(each.facts.number),
                name=each.facts.name,
                priority=each.facts.priority,
                in_hand=len(each.hand),
                alone=each.facts.number == alone,
            )
            for each in there[:NAMED_MAX]
        ),
    )


def leases_of(ledger: Ledger, *, ends_at: Callable[[int], float | None], now: float) -> tuple[LeaseInfo, ...]:
    """Some that run. Of other numbers are departures: nobody holds these. `ends_at`: when a lease ends, s."""

    def ends_in_ms(lease: int) -> int:
        at = ends_at(lease)
        return -1 if at is None else max(0, int((at - now) * 1000))

    some = islice((each for each in ledger.leases.items() if each[0] >= NUMBERS), NAMED_MAX)
    return tuple(
        LeaseInfo(lease=lease, holder=row.holder, records=ledger.lease_records(lease), ends_in_ms=ends_in_ms(lease))
        for lease, row in sorted(some, key=itemgetter(0))
    )
