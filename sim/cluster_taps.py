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

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroup, ActiveGroups
from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.consumer_groups.dispatch import DeliverFrames
from mirrorlog.broker.consumer_groups.group_changes import GroupEnds
from mirrorlog.broker.consumer_groups.leases import Leasing
from mirrorlog.broker.consumer_groups.subscriptions import Subscribing
from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.log.replica import Replica
from mirrorlog.wire.frames import Grant, How
from sim.processes import current_process


@dataclass(frozen=True, slots=True)
class Granted:
    """Records [first, next) that a node gave, at `at` s of the run. `way`: push, auto or lease; `number`: the
    subscription's, or the lease's; `clock_us`: what time it was for the node, µs UTC; that never goes back in a log;
    `below`: it might have given any record below."""

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
    clock_us: int
    below: int


_Hand = tuple[int, float]
"""Whose, and until when it has it at least: a lease ends by itself."""


@dataclass(slots=True)
class Tap:
    """`granted`: everything, in order; `twice`: what was given while somebody else had it; `beside`: what was given
    while somebody else had anything of a queue in `alone` (queue id), of which one at a time has records;
    `dropped`: what went because its queue was too long, while somebody had it. A mastership is known by its works."""

    now: Callable[[], float]
    granted: list[Granted] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    alone: set[int] = field(default_factory=set)
    _hands: dict[ActiveGroups, dict[tuple[int, str], dict[int, _Hand]]] = field(default_factory=dict)

    def give(
        self,
        works: ActiveGroups,
        replica: Replica,
        work: ActiveGroup,
        grants: Sequence[Grant],
        *,
        way: str,
        number: int,
        until: float,
    ) -> None:
        """`until`: when its hand lets go by itself; it has nothing in it with `auto`."""
        process, key = current_process(), work.key
        node = process.machine if process is not None else ""
        hands = self._of(works, key)
        clock_us = max(now_us(), replica.log.last_append_time_us)
        below = min(work.delivery.front.covered, replica.index.next_confirmed(key[0]))
        if key[0] in self.alone and (others := {each[0] for each in hands.values()} - {number}):
            self.beside.append(
                f"{self.now():.3f} {node}, epoch {replica.log.epochs.current}, gives {grants[0]} of queue {key[0]} to "
                f"{number}, and {others} have some"
            )
        for grant in grants:
            self.granted.append(
                Granted(
                    self.now(), node, str(replica.log_id), replica.log.epochs.current, *key, way, number,
                    grant.first, grant.next, grant.redelivered, grant.attempts, clock_us, below,
                )
            )  # fmt: skip
            for offset in range(grant.first, grant.next):
                owner = hands.get(offset)
                if owner is not None and owner[1] > self.now():
                    self.twice.append(
                        f"{self.now():.3f} {node}, epoch {replica.log.epochs.current}, gives {offset} of group "
                        f"{key[1]!r} "
                        f"of queue {key[0]} to {number}, and {owner[0]} has it"
                    )
                if way != "auto":
                    hands[offset] = number, until

    def let_go(self, works: ActiveGroups, key: tuple[int, str], number: int, ranges: Sequence[int] | None) -> None:
        """`ranges`: flat; None for everything."""
        hands = self._of(works, key)
        offsets = list(hands) if ranges is None else _offsets(ranges)
        for offset in offsets:
            if hands.get(offset, (None,))[0] == number:
                del hands[offset]

    def drop(self, works: ActiveGroups, key: tuple[int, str], ranges: Sequence[tuple[int, int]]) -> None:
        """They go: nobody is to have them."""
        hands = self._of(works, key)
        for first, until in ranges:
            for offset in range(first, until):
                number, let_go_at = hands.get(offset, (0, -inf))
                if let_go_at > self.now():
                    self.dropped.append(f"{self.now():.3f}: {offset} of {key} is dropped, and {number} has it")

    def forget(self, works: ActiveGroups, queue_id: int, group: str) -> None:
        """The group is made anew, or is no more: what anybody has of it is nobody's."""
        self._of(works, (queue_id, group)).clear()

    def forget_queue(self, works: ActiveGroups, queue_id: int) -> None:
        """It is there no more: who had a lease of it may have settled it elsewhere, when it comes back."""
        for key, hands in self._hands.get(works, {}).items():
            if key[0] == queue_id:
                hands.clear()

    def extend(self, works: ActiveGroups, key: tuple[int, str], lease: int, until: float) -> None:
        hands = self._of(works, key)
        for offset, (number, _) in list(hands.items()):
            if number == lease:
                hands[offset] = lease, until

    def _of(self, works: ActiveGroups, key: tuple[int, str]) -> dict[int, _Hand]:
        return self._hands.setdefault(works, {}).setdefault(key, {})


def _offsets(ranges: Sequence[int]) -> Iterator[int]:
    for first, until in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(first, until)


@contextmanager
def tapped(tap: Tap) -> Iterator[None]:
    """Every node's deliveries are noted meanwhile."""
    with (
        patch.object(DeliverFrames, "send", _send(tap, DeliverFrames.send)),
        patch.object(Leasing, "lend", _lend(tap, Leasing.lend)),
        patch.object(Subscribing, "end", _end(tap, Subscribing.end)),
        patch.object(Subscribing, "settle", _settle(tap, Subscribing.settle)),
        patch.object(Leasing, "settle", _settle_lease(tap, Leasing.settle)),
        patch.object(Leasing, "extend", _extend_lease(tap, Leasing.extend)),
        patch.object(GroupEnds, "replace", _replace(tap, GroupEnds.replace)),
        patch.object(Deliverer, "end_queue", _end_queue(tap, Deliverer.end_queue)),
        patch.object(Deliverer, "dropped", _dropped(tap, Deliverer.dropped)),
        patch.object(Subscribing, "logged_within", _logged_within(tap, Subscribing.logged_within)),
    ):
        yield


_Any = Callable[..., Any]


def _send(tap: Tap, original: _Any) -> _Any:
    def send(self: DeliverFrames, number: int, pushed: Any, grants: Sequence[Grant]) -> None:
        work, deliverer = pushed.work, self._book.serving(number)
        assert deliverer is not None
        auto = number in work.delivery.subscribers.auto_ack
        tap.give(
            deliverer._works, self._replica, work, grants, way="auto" if auto else "push", number=number, until=inf
        )
        original(self, number, pushed, grants)

    return send


def _lend(tap: Tap, original: _Any) -> _Any:
    def lend(self: Leasing, work: Any, given: Any, end: int) -> None:
        for at, change in enumerate(given.changes):
            grants = given.grants if len(given.changes) == 1 else given.grants[at : at + 1]
            until = tap.now() + change.lease_ms / 1000
            tap.give(self._works, self._replica, work, grants, way="lease", number=change.lease, until=until)
        original(self, work, given, end)

    return lend


def _end(tap: Tap, original: _Any) -> _Any:
    def end(self: Subscribing, number: int, pushed: Any, error: Any) -> None:
        tap.let_go(self._works, pushed.work.key, number, None)
        original(self, number, pushed, error)

    return end


def _settle(tap: Tap, original: _Any) -> _Any:
    def settle(self: Subscribing, settle: Any, ranges: Sequence[int], receiver: Any, correlation_id: int) -> None:
        key = self._pushed[settle.subscription].work.key
        original(self, settle, ranges, receiver, correlation_id)
        if settle.how != How.EXTEND:
            tap.let_go(self._works, key, settle.subscription, ranges)

    return settle


def _settle_lease(tap: Tap, original: _Any) -> _Any:
    def settle_lease(self: Leasing, message: Any, queue_id: int, respond: Any) -> None:
        original(self, message, queue_id, respond)
        for each in message.receipts:
            tap.let_go(self._works, (queue_id, message.group), each.lease, [each.first, each.next])

    return settle_lease


def _extend_lease(tap: Tap, original: _Any) -> _Any:
    def extend_lease(self: Leasing, message: Any, queue_id: int, respond: Any) -> None:
        original(self, message, queue_id, respond)
        for each in message.receipts:
            tap.extend(self._works, (queue_id, message.group), each.lease, tap.now() + message.lease_ms / 1000)

    return extend_lease


def _replace(tap: Tap, original: _Any) -> _Any:
    def replace(self: GroupEnds, queue_id: int, changes: Sequence[Any], what: str, done: _Any) -> None:
        original(self, queue_id, changes, what, done)
        for change in changes:
            tap.forget(self._works, queue_id, change.group)

    return replace


def _end_queue(tap: Tap, original: _Any) -> _Any:
    def end_queue(self: Deliverer, queue_id: int, error: Any) -> None:
        original(self, queue_id, error)
        tap.forget_queue(self._works, queue_id)

    return end_queue


def _dropped(tap: Tap, original: _Any) -> _Any:
    def dropped(self: Deliverer, queue_id: int, group: str, ranges: Sequence[Any]) -> None:
        tap.drop(self._works, (queue_id, group), ranges)
        original(self, queue_id, group, ranges)

    return dropped


def _logged_within(tap: Tap, original: _Any) -> _Any:
    def logged_within(self: Subscribing, within: Any) -> None:
        original(self, within)
        ranges = [border for each in within.settlement.ranges for border in each]
        tap.let_go(self._works, within.work.key, within.settlement.number, ranges)

    return logged_within
