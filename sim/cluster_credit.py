"""Credit in a simulated cluster: limits so small that producers meet them all the time, and what is counted of it from
outside: what each account had open whenever a batch was taken, and what is left when all is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

from mirrorlog.errors import Overloaded
from mirrorlog.queues.limits.credit import Credits, Key
from sim.nodes import SimulatedNode

CREDIT_LIMITS: Final[Mapping[str, int]] = {
    "credit_bytes": 8 * 1024,
    "credit_batches": 3,
    "max_unconfirmed_bytes": 64 * 1024,
}

_Open = tuple[int, int, Key]
"""Where a batch ends, its size and whose it is."""


@dataclass(slots=True)
class CreditTap:
    """`beyond`: batches that were taken from who had his grant open already; `counts`: what happened."""

    now: Callable[[], float]
    beyond: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _open: dict[Credits, list[_Open]] = field(default_factory=dict)

    def take(self, counted: Credits, key: Key, end: int, size: int) -> None:
        line = self._open.setdefault(counted, [])
        sizes = [each[1] for each in line if each[2] == key]
        self.counts["credit: batches taken"] += 1
        self.counts["credit: batches taken beside others"] += bool(sizes)
        if sum(sizes) >= CREDIT_LIMITS["credit_bytes"] or len(sizes) >= CREDIT_LIMITS["credit_batches"]:
            self.beyond.append(
                f"{self.now():.3f}: of producer {key.producer_id} in queue {key.queue_id} batches of {sizes} are open, "
                f"and one of {size} is taken"
            )
        line.append((end, size, key))

    def confirm(self, counted: Credits, offset: int) -> None:
        line = self._open.get(counted, [])
        self._open[counted] = [each for each in line if each[0] > offset]


def check_credit(tap: CreditTap) -> None:
    """An account has at most its grant and one batch. Raises AssertionError."""
    assert not tap.beyond, f"an account has at most its grant and one batch: {tap.beyond[0]}"


def still_held(nodes: list[SimulatedNode]) -> str:
    """Who is held, or what is counted, though nobody sends any more; empty: nothing."""
    for node in nodes:
        for held in node.node.logs if node.node is not None else ():
            counted = held.publisher.credits if held.masters and held.publisher is not None else None
            if counted is not None and (counted.blocked or any(each.batches for each in counted.told())):
                return f"{node.name}, log {held.name}: {[(each.key[1:], each.batches) for each in counted.told()]}"
    return ""


_Any = Callable[..., Any]


@contextmanager
def credited(tap: CreditTap) -> Iterator[None]:
    """Whatever is taken on credit is noted meanwhile."""
    with (
        patch.object(Credits, "check", _check(tap, Credits.check)),
        patch.object(Credits, "appended", _appended(tap, Credits.appended)),
        patch.object(Credits, "confirmed", _confirmed(tap, Credits.confirmed)),
    ):
        yield


def _check(tap: CreditTap, original: _Any) -> _Any:
    def check(self: Credits, key: Key, **facts: Any) -> None:
        try:
            original(self, key, **facts)
        except Overloaded as error:
            tap.counts[f"credit: refused by {error.details['limit']}"] += 1
            raise

    return check


def _appended(tap: CreditTap, original: _Any) -> _Any:
    def appended(self: Credits, key: Key, *, end: int, size: int, **facts: Any) -> None:
        tap.take(self, key, end, size)
        original(self, key, end=end, size=size, **facts)
        tap.counts["credit: a producer is held"] += key in self.held

    return appended


def _confirmed(tap: CreditTap, original: _Any) -> _Any:
    def confirmed(self: Credits, offset: int, **facts: Any) -> Any:
        tap.confirm(self, offset)
        return original(self, offset, **facts)

    return confirmed
