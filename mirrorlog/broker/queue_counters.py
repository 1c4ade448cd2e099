"""What a node has counted for a queue since its process began, and how fast it goes now. Pure.

A rate is of the last five to ten seconds: what was counted in the present window of five, and the part of the window
before that is not older than five. It is worked out when somebody asks, from two numbers: no timer, and no list of
moments. Rejected: the difference between two questions (whoever asks first, or seldom, is told nothing, and two who ask
take it from each other).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirrorlog.wire.frames import Grant
from mirrorlog.wire.messages import QueueCounts

WINDOW_S: Final = 5.0


class Meter:
    """A count, and its rate. `now`: s, one monotonic clock."""

    __slots__ = ("_before", "_begin", "_current", "total")

    def __init__(self) -> None:
        self.total = 0
        self._begin = 0.0
        self._current = 0
        self._before = 0

    def add(self, count: int, now: float) -> None:
        if now - self._begin >= WINDOW_S:
            self._turn(now)
        self.total += count
        self._current += count

    def rate(self, now: float) -> float:
        """Per second."""
        if now - self._begin >= WINDOW_S:
            self._turn(now)
        left = max(0.0, 1.0 - (now - self._begin) / WINDOW_S)
        return (self._before * left + self._current) / WINDOW_S

    def _turn(self, now: float) -> None:
        self._before = self._current if now - self._begin < 2 * WINDOW_S else 0
        self._current = 0
        self._begin = now - now % WINDOW_S


class QueueCounters:
    """Records. `published`: appended; `delivered`: given to subscribers and with leases, of which `redelivered` perhaps
    not for the first time; `acked`: settled by who had them; `expired`: ended in a group that acks before anybody had
    settled them: freed by retention, lost, too old, or dropped since the queue was too long; once for each such group.
    `timed_out`: subscriptions, not records, that ended because they settled too late. `refused`: not taken because the
    queue was full."""

    __slots__ = ("acked", "delivered", "expired", "published", "redelivered", "refused", "timed_out")

    def __init__(self) -> None:
        self.published = Meter()
        self.delivered = Meter()
        self.redelivered = Meter()
        self.acked = Meter()
        self.refused = Meter()
        self.expired = 0
        self.timed_out = 0

    def given(self, records: int, redelivered: int, now: float) -> None:
        self.delivered.add(records, now)
        if redelivered:
            self.redelivered.add(redelivered, now)

    def granted(self, grants: Iterable[Grant], now: float) -> None:
        """These were given."""
        records = again = 0
        for each in grants:
            records += each.next - each.first
            again += each.next - each.first if each.redelivered else 0
        self.given(records, again, now)

    def told(self, now: float) -> QueueCounts:
        return QueueCounts(
            published=self.published.total,
            delivered=self.delivered.total,
            redelivered=self.redelivered.total,
            acked=self.acked.total,
            expired=self.expired,
            timed_out=self.timed_out,
            publish_rate=self.published.rate(now),
            deliver_rate=self.delivered.rate(now),
            redeliver_rate=self.redelivered.rate(now),
            ack_rate=self.acked.rate(now),
        )
