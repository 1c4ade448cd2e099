"""Who takes from a group that acks, and what holds each of them up, as the group's master sees it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from mirrorlog.queues.subscriber import Subscriber

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
    )
