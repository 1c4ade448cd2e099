"""When a queue goes by itself: with its last subscriber (`auto-delete`), or when nobody has used it for so long
(`x-expires`). Pure: facts and `now` in, why it goes out.

`auto-delete` is of the queue's own group: it goes when nobody is subscribed to it any more, after somebody was. That
somebody was is a fact of the log (`QueueUsed`), so it outlives masters. Leases and named groups do not count.

A queue is used by who is subscribed to any of its groups, who waits for a lease or has one, who waits in a fetch, and
by each declaration, fetch and lease that is asked for. Publishes are no use of it, as with RabbitMQ.

Sessions and times of use are the master's memory. A new one knows nobody: it lets `x-expires` begin anew, in full, and
waits `return_s` for subscribers before their absence counts (invariant 13: durations, and nothing rests on clocks).

Only time counts in which the node was at work: while its process or its machine stands still, nobody can use a queue,
and in the first step after it all waits are over and those who gave up are seen to have gone, before anything is read
that came meanwhile. So whoever keeps the time calls `passed`, many times a second, and a long way between two such
moments is no time.

Rejected: a timer for each queue; one look in a second goes over those that have such arguments, and over no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

AUTO_DELETE: Final = "auto-delete"
EXPIRES: Final = "x-expires"
DURABLE: Final = "durable"
EXCLUSIVE: Final = "exclusive"

STILL_S: Final = 0.25
"""After so long without any sign of time the node has stood still. Far above a tick; what is taken for it by mistake
lets a queue live a little longer."""
RETURNS: Final = 3
"""Absence counts after so many times as long as the node stood still: who gave it up meanwhile dials again in growing
steps, each shorter than what he has waited already."""


class Lifetime(NamedTuple):
    """What a queue was declared with. `expires_ms`: None for never."""

    auto_delete: bool
    expires_ms: int | None


def lifetime_of(arguments: Mapping[str, Any]) -> Lifetime | None:
    """None for a queue that goes only when somebody deletes it."""
    expires = arguments.get(EXPIRES)
    expires_ms = expires if type(expires) is int and expires > 0 else None
    auto_delete = arguments.get(AUTO_DELETE) is True
    return Lifetime(auto_delete, expires_ms) if auto_delete or expires_ms is not None else None


def is_transient(arguments: Mapping[str, Any]) -> bool:
    """Whether the queue lives no longer than a run of its node: it is not durable, or exclusive. Those that are
    exclusive never are durable, whatever they say: they go with their connection, and so with its node."""
    return arguments.get(EXCLUSIVE) is True or arguments.get(DURABLE) is False


@dataclass(frozen=True, slots=True)
class Uses:
    """Of a queue at a moment. `subscribers`: of its own group; `users`: of all groups, with those who wait for records
    or hold leases; `was_used`: somebody was subscribed to its own group."""

    subscribers: int
    users: int
    was_used: bool


class Lifetimes:
    """Of the queues of one log, during one mastership that began at `now` (s, of a clock that only goes forward).
    `return_s`: how long absent subscribers are waited for then."""

    def __init__(self, now: float, *, return_s: float) -> None:
        self._return_s = return_s
        self._absence_counts_at = now + return_s
        # Of the time that counts, as `_worked` is.
        self._used_at: dict[int, float] = {}
        # By queue that came from another log: when absence counts.
        self._returned_by: dict[int, float] = {}
        self._seen_at, self._still_s = now, 0.0

    def passed(self, now: float) -> None:
        """Time passes; asked for several times within STILL_S."""
        gap_s = now - self._seen_at
        self._seen_at = now
        if gap_s >= STILL_S:
            self._still_s += gap_s
            self._absence_counts_at = max(self._absence_counts_at, now + min(self._return_s, RETURNS * gap_s))

    def returning(self, now: float) -> None:
        """All subscribers have to come back: their absence counts when they had the time."""
        self._absence_counts_at = max(self._absence_counts_at, now + self._return_s)

    def came(self, queue_id: int, now: float) -> None:
        """It is in this log from now on: its subscribers have to come after it."""
        self._returned_by[queue_id] = now + self._return_s
        self.used(queue_id, now)

    def used(self, queue_id: int, now: float) -> None:
        """Somebody declared it again, or asked for its records."""
        self._used_at[queue_id] = self._worked(now)

    def ends(self, queue_id: int, lifetime: Lifetime, uses: Uses, now: float) -> str:
        """Why the queue goes now, in words; empty while it stays."""
        worked = self._worked(now)
        if uses.users:
            self._used_at[queue_id] = worked
        counts_at = max(self._absence_counts_at, self._returned_by.get(queue_id, 0.0))
        if lifetime.auto_delete and uses.was_used and not uses.subscribers and now >= counts_at:
            return "its last subscriber has gone (auto-delete)"
        if lifetime.expires_ms is None:
            return ""
        idle_s = worked - self._used_at.setdefault(queue_id, worked)
        if idle_s * 1000 >= lifetime.expires_ms:
            return f"nobody used it for {lifetime.expires_ms} ms (x-expires)"
        return ""

    def _worked(self, now: float) -> float:
        """`now`, without the time in which the node stood still."""
        self.passed(now)
        return now - self._still_s

    def keep(self, queue_ids: Collection[int]) -> None:
        """Forget all others: they are gone."""
        self._used_at = {queue_id: at for queue_id, at in self._used_at.items() if queue_id in queue_ids}
        self._returned_by = {queue_id: at for queue_id, at in self._returned_by.items() if queue_id in queue_ids}
