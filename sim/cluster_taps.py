"""What nodes give to takers of acking groups, noted at the border of the node: as the frames leave it.

A client may get late what its master sent early, so who has what cannot be told from clients alone. A tap notes each
grant with its time, its node and its epoch, and keeps count of hands: what a subscription, or a lease, was given by
this mastership and has not settled, returned or lost. No record may be in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any
from unittest.mock import patch

from mirrorlog.broker.deliverer import Deliverer
from mirrorlog.wire.frames import Grant, How
from sim.processes import current_process


@dataclass(frozen=True, slots=True)
class Granted:
    """Records [first, next) that a node gave, at `at` s of the run. `way`: push, auto or lease; `number`: the
    subscription's, or the lease's."""

    at: float
    node: str
    log_id: str
    epoch: int
    queue_id: int
    group: str
    way: str
    number: int
    first: int
    next: int
    redelivered: bool
    attempts: int


_Hand = tuple[int, float]
"""Whose, and until when it has it at least: a lease ends by itself."""


@dataclass(slots=True)
class Tap:
    """`granted`: everything, in order; `twice`: what was given while somebody else had it."""

    now: Callable[[], float]
    granted: list[Granted] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    _hands: dict[Deliverer, dict[tuple[int, str], dict[int, _Hand]]] = field(default_factory=dict)

    def give(
        self,
        deliverer: Deliverer,
        key: tuple[int, str],
        grants: Sequence[Grant],
        *,
        way: str,
        number: int,
        until: float,
    ) -> None:
        """`until`: when its hand lets go by itself; it has nothing in it with `auto`."""
        process, replica = current_process(), deliverer._replica
        node = process.machine if process is not None else ""
        hands = self._of(deliverer, key)
        for grant in grants:
            self.granted.append(
                Granted(
                    self.now(), node, str(replica.log_id), replica.epochs.current, *key, way, number,
                    grant.first, grant.next, grant.redelivered, grant.attempts,
                )
            )  # fmt: skip
            for offset in range(grant.first, grant.next):
                owner = hands.get(offset)
                if owner is not None and owner[1] > self.now():
                    self.twice.append(
                        f"{self.now():.3f} {node}, epoch {replica.epochs.current}, gives {offset} of group {key[1]!r} "
                        f"of queue {key[0]} to {number}, and {owner[0]} has it"
                    )
                if way != "auto":
                    hands[offset] = number, until

    def let_go(self, deliverer: Deliverer, key: tuple[int, str], number: int, ranges: Sequence[int] | None) -> None:
        """`ranges`: flat; None for everything."""
        hands = self._of(deliverer, key)
        offsets = list(hands) if ranges is None else _offsets(ranges)
        for offset in offsets:
            if hands.get(offset, (None,))[0] == number:
                del hands[offset]

    def extend(self, deliverer: Deliverer, key: tuple[int, str], lease: int, until: float) -> None:
        hands = self._of(deliverer, key)
        for offset, (number, _) in list(hands.items()):
            if number == lease:
                hands[offset] = lease, until

    def _of(self, deliverer: Deliverer, key: tuple[int, str]) -> dict[int, _Hand]:
        return self._hands.setdefault(deliverer, {}).setdefault(key, {})


def _offsets(ranges: Sequence[int]) -> Iterator[int]:
    for first, until in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(first, until)


@contextmanager
def tapped(tap: Tap) -> Iterator[None]:
    """Every node's deliveries are noted meanwhile."""
    with (
        patch.object(Deliverer, "_send", _send(tap, Deliverer._send)),
        patch.object(Deliverer, "_lend", _lend(tap, Deliverer._lend)),
        patch.object(Deliverer, "_end", _end(tap, Deliverer._end)),
        patch.object(Deliverer, "settle", _settle(tap, Deliverer.settle)),
        patch.object(Deliverer, "settle_lease", _settle_lease(tap, Deliverer.settle_lease)),
        patch.object(Deliverer, "extend_lease", _extend_lease(tap, Deliverer.extend_lease)),
    ):
        yield


_Any = Callable[..., Any]


def _send(tap: Tap, original: _Any) -> _Any:
    def send(self: Deliverer, number: int, pushed: Any, grants: Sequence[Grant]) -> None:
        auto = number in pushed.work.delivery._auto_ack
        tap.give(self, pushed.work.key, grants, way="auto" if auto else "push", number=number, until=inf)
        original(self, number, pushed, grants)

    return send


def _lend(tap: Tap, original: _Any) -> _Any:
    def lend(self: Deliverer, work: Any, given: Any, end: int) -> None:
        until = tap.now() + given.change.lease_ms / 1000
        tap.give(self, work.key, given.grants, way="lease", number=given.change.lease, until=until)
        original(self, work, given, end)

    return lend


def _end(tap: Tap, original: _Any) -> _Any:
    def end(self: Deliverer, number: int, pushed: Any, error: Any) -> None:
        tap.let_go(self, pushed.work.key, number, None)
        original(self, number, pushed, error)

    return end


def _settle(tap: Tap, original: _Any) -> _Any:
    def settle(self: Deliverer, settle: Any, ranges: Sequence[int], receiver: Any, correlation_id: int) -> None:
        key = self._pushed[settle.subscription].work.key
        original(self, settle, ranges, receiver, correlation_id)
        if settle.how != How.EXTEND:
            tap.let_go(self, key, settle.subscription, ranges)

    return settle


def _settle_lease(tap: Tap, original: _Any) -> _Any:
    def settle_lease(self: Deliverer, message: Any, queue_id: int, respond: Any) -> None:
        original(self, message, queue_id, respond)
        for each in message.receipts:
            tap.let_go(self, (queue_id, message.group), each.lease, [each.first, each.next])

    return settle_lease


def _extend_lease(tap: Tap, original: _Any) -> _Any:
    def extend_lease(self: Deliverer, message: Any, queue_id: int, respond: Any) -> None:
        original(self, message, queue_id, respond)
        for each in message.receipts:
            tap.extend(self, (queue_id, message.group), each.lease, tap.now() + message.lease_ms / 1000)

    return extend_lease
