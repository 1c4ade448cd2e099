"""What a node has counted since its process began. Pure.

Plain numbers, added to by whoever does the work: a few steps per batch, none per record. Nobody looks at them until the
node is asked for its status. They begin at 0 with the process; those of a log, when the node takes a copy of it in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from mirrorlog.wire.frames import Grant
from mirrorlog.wire.messages.status import DurationCounts, LogCounts, QueueCounts

# What a node has counted for a queue since its process began, and how fast it goes now. Pure.
#
# A rate is of the last five to ten seconds: what was counted in the present window of five, and the part of the window
# before that is not older than five. It is worked out when somebody asks, from two numbers: no timer, and no list of
# moments. Rejected: the difference between two questions (whoever asks first, or seldom, is told nothing, and two who
# ask take it from each other).


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
    queue was full. `dead_lettered`: that have left as dead letters."""

    __slots__ = ("acked", "dead_lettered", "delivered", "expired", "published", "redelivered", "refused", "timed_out")

    def __init__(self) -> None:
        self.published = Meter()
        self.delivered = Meter()
        self.redelivered = Meter()
        self.acked = Meter()
        self.refused = Meter()
        self.dead_lettered = 0
        self.expired = 0
        self.timed_out = 0

    def given(self, records: int, redelivered: int, now: float) -> None:
        self.delivered.add(records, now)
        if redelivered:
            self.redelivered.add(redelivered, now)

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
            dead_lettered=self.dead_lettered,
        )


class GroupCounters:
    """The same of one group with a name; the queue's own has what is left of the queue's."""

    __slots__ = ("acked", "dead_lettered", "delivered")

    def __init__(self) -> None:
        self.delivered = Meter()
        self.acked = Meter()
        self.dead_lettered = 0


BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Up to and with which time each bucket counts; one more has what took longer. They stay as they are: who compares
today with last month needs the same ones."""


class Durations:
    """How long something took, how often. Fixed buckets: they can be added up over nodes and over time."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def note(self, duration_s: float) -> None:
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sum_s += duration_s

    def told(self) -> DurationCounts:
        return DurationCounts(bounds_s=list(BOUNDS_S), counts=list(self._counts), sum_s=self._sum_s)


class LogCounters:
    """Of one log on one node, whatever roles it has had in it.

    `published_…`: what producers sent and this node appended as the master; a batch that was sent again is not appended
    again. `confirms`: from a publish's arrival to its confirm. `unknown`: publishes by the code of the error that told
    their producer that nobody knows what became of them. `received_bytes`: of the log, as a mirror. `fetches`: answers
    to readers, empty ones included. `flushes`: those that brought more of the log to the disk. `queues`: by queue id,
    of those that anything was counted for; `groups`: by queue id and name, of those that have one. `oldest`: of groups,
    the first queue offset that was not settled when somebody looked, and when that was appended (µs UTC).
    """

    __slots__ = (
        "confirms", "fetched_bytes", "fetches", "flushed_bytes", "flushes", "groups", "oldest", "promotions",
        "published_batches", "published_bytes", "published_records", "queues", "received_bytes", "unknown",
    )  # fmt: skip

    def __init__(self) -> None:
        self.published_batches = 0
        self.published_records = 0
        self.published_bytes = 0
        self.confirms = Durations()
        self.unknown: Counter[str] = Counter()
        self.received_bytes = 0
        self.fetches = 0
        self.fetched_bytes = 0
        self.flushes = 0
        self.flushed_bytes = 0
        self.promotions = 0
        self.queues: dict[int, QueueCounters] = {}
        self.groups: dict[tuple[int, str], GroupCounters] = {}
        self.oldest: dict[tuple[int, str], tuple[int, int]] = {}

    def queue(self, queue_id: int) -> QueueCounters:
        """Of a queue; it is made."""
        found = self.queues.get(queue_id)
        if found is None:
            found = self.queues[queue_id] = QueueCounters()
        return found

    def group(self, key: tuple[int, str]) -> GroupCounters:
        """Of a group that has a name; it is made."""
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = GroupCounters()
        return found

    def forget(self, queue_ids: Collection[int]) -> None:
        """These queues are gone."""
        for queue_id in queue_ids:
            self.queues.pop(queue_id, None)
        self.groups = {key: each for key, each in self.groups.items() if key[0] not in queue_ids}

    def granted(self, key: tuple[int, str], grants: Iterable[Grant], now: float) -> None:
        """These were given, to a group by queue id and name."""
        records = again = 0
        for each in grants:
            records += each.next - each.first
            again += each.next - each.first if each.redelivered else 0
        self.queue(key[0]).given(records, again, now)
        if key[1]:
            self.group(key).delivered.add(records, now)

    def settled(self, key: tuple[int, str], records: int, now: float) -> None:
        """So many were acknowledged."""
        self.queue(key[0]).acked.add(records, now)
        if key[1]:
            self.group(key).acked.add(records, now)

    def dead_lettered(self, key: tuple[int, str], records: int) -> None:
        """So many have left."""
        self.queue(key[0]).dead_lettered += records
        if key[1]:
            self.group(key).dead_lettered += records

    def published(self, records: int, size: int) -> None:
        """A batch was appended; `size`: bytes."""
        self.published_batches += 1
        self.published_records += records
        self.published_bytes += size

    def fetched(self, size: int) -> None:
        """A reader was answered; `size`: of the answer, bytes."""
        self.fetches += 1
        self.fetched_bytes += size

    def flushed(self, size: int) -> None:
        """`size` more bytes of the log are on the disk."""
        self.flushes += 1
        self.flushed_bytes += size

    def told(self, log: str, *, sent_bytes: dict[str, int]) -> LogCounts:
        """`log`: its name. `sent_bytes`: of the log, to each mirror that ever had a link."""
        return LogCounts(
            log=log,
            published_batches=self.published_batches,
            published_records=self.published_records,
            published_bytes=self.published_bytes,
            confirms=self.confirms.told(),
            unknown=dict(self.unknown),
            sent_bytes=sent_bytes,
            received_bytes=self.received_bytes,
            fetches=self.fetches,
            fetched_bytes=self.fetched_bytes,
            flushes=self.flushes,
            flushed_bytes=self.flushed_bytes,
            promotions=self.promotions,
        )
