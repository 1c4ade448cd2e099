"""What a node's status says of queues and groups, as metrics. Pure.

A series for each of very many queues is of use to nobody and a burden for all who keep it. So the first thousand queues
of a node, and the first thousand pairs of queue and group, have series of their own; what is beyond is one sum per log,
under empty names. So a sum over all series is right with few queues and with many. The first are the oldest of each log
in turn: a queue that is declared takes the series of no older one in its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client.core import Metric

from mirrorlog.doors.http_families import Sample, counter, gauge
from mirrorlog.wire.messages import GroupStatus, HoldInfo, LogStatus, QueueCounts, QueueStatus

SERIES_MAX: Final = 1_000
"""Of queues, and of groups, that have series of their own."""

_T = TypeVar("_T")
_Placed = tuple[str, _T]
"""What a log has, with the log's name."""


def queue_metrics(logs: Sequence[LogStatus]) -> Iterator[Metric]:
    """How far each queue reaches."""
    yield gauge("mirrorlog_log_queues", "Queues in the log", ("log",), (((log.name,), len(log.queues)) for log in logs))
    first, rest = _split([[(log.name, queue) for queue in _oldest_first(log.queues)] for log in logs])

    def offsets(name: str, meaning: str, value: Callable[[QueueStatus], int]) -> Metric:
        own = (((log, queue.name), float(value(queue))) for log, queue in first)
        return gauge(f"mirrorlog_queue_{name}", meaning, ("log", "queue"), [*own, *_sums(rest, value, names=1)])

    yield offsets("begin_offset", "Queue offset of the first record that is kept", lambda queue: queue.begin)
    yield offsets("next_offset", "Queue offset after the last record appended", lambda queue: queue.next)
    yield offsets("confirmed_offset", "Queue offset after the last record confirmed", lambda queue: queue.confirmed)


def flow_metrics(mastered: Sequence[LogStatus]) -> Iterator[Metric]:
    """What went through the queues that the node masters, and who is held up. Rates are whoever's who reads these."""
    held = (((log.name,), float(log.producers_blocked)) for log in mastered)
    meaning = "Producers that may not send more before copies have caught up, by queue and connection"
    yield gauge("mirrorlog_log_blocked_producers", meaning, ("log",), held)
    first, rest = _split(
        [[(log.name, queue) for queue in _oldest_first(log.queues) if queue.counts] for log in mastered]
    )

    def counts(name: str, meaning: str, value: Callable[[QueueCounts], int]) -> Metric:
        def of(queue: QueueStatus) -> int:
            return value(queue.counts or QueueCounts())

        own = (((log, queue.name), float(of(queue))) for log, queue in first)
        return counter(f"mirrorlog_queue_{name}_total", meaning, ("log", "queue"), [*own, *_sums(rest, of, names=1)])

    yield counts("published_records", "Records appended to the queue", lambda each: each.published)
    meaning = "Records given to subscribers and with leases, each time"
    yield counts("delivered_records", meaning, lambda each: each.delivered)
    meaning = "Records given to subscribers and with leases that somebody may have had before"
    yield counts("redelivered_records", meaning, lambda each: each.redelivered)
    yield counts("acked_records", "Records that whoever had them has settled", lambda each: each.acked)
    meaning = "Records that ended before a group that acks had settled them: freed, expired, or dropped"
    yield counts("expired_records", meaning, lambda each: each.expired)
    meaning = "Subscriptions that ended because a record was not settled in time"
    yield counts("consumer_timeouts", meaning, lambda each: each.timed_out)


def group_metrics(logs: Sequence[LogStatus]) -> Iterator[Metric]:
    """How far each group has read."""
    yield gauge("mirrorlog_log_groups", "Groups in the log", ("log",), (((log.name,), len(log.groups)) for log in logs))
    first, rest = _split([[(log.name, group) for group in _in_queue_order(log)] for log in logs])

    def values(name: str, meaning: str, value: Callable[[GroupStatus], int]) -> Metric:
        own = (((log, group.queue, group.group), float(value(group))) for log, group in first)
        labels = ("log", "queue", "group")
        return gauge(f"mirrorlog_group_{name}", meaning, labels, [*own, *_sums(rest, value, names=2)])

    yield values("position_offset", "Queue offset that the group reads next", lambda group: group.position.queue_offset)
    yield values("lag_records", "Confirmed records that the group has not passed", lambda group: group.lag)


def hold_metrics(logs: Sequence[LogStatus]) -> Iterator[Metric]:
    """How far each landing has come, and what it keeps."""
    meaning = "Holds of landings in the log, those that ended by themselves too"
    yield gauge("mirrorlog_log_holds", meaning, ("log",), (((log.name,), len(log.holds)) for log in logs))
    first, rest = _split([[(log.name, hold) for hold in log.holds] for log in logs])

    def values(name: str, meaning: str, value: Callable[[HoldInfo], int]) -> Metric:
        own = (((log, hold.queue, hold.name), float(value(hold))) for log, hold in first)
        labels = ("log", "queue", "landing")
        return gauge(f"mirrorlog_hold_{name}", meaning, labels, [*own, *_sums(rest, value, names=2)])

    yield values(
        "position_offset", "Queue offset below which the landing has everything", lambda hold: hold.queue_offset
    )
    yield values("lag_records", "Confirmed records that the landing has not got", lambda hold: hold.lag)
    yield values("live", "1 while the landing keeps records, 0 when its hold has ended", lambda hold: not hold.ended)
    known = [(log, hold) for log, hold in first if hold.kept_bytes >= 0]
    meaning = "Bytes of the log from the first record that the landing keeps on; told by the log's master"
    labels = ("log", "queue", "landing")
    samples = [((log, hold.queue, hold.name), float(hold.kept_bytes)) for log, hold in known]
    yield gauge("mirrorlog_hold_kept_bytes", meaning, labels, samples)
    meaning = "What is left of the lease of the landing's hold; told by the log's master"
    left = [(log, hold) for log, hold in first if hold.left_ms >= 0]
    samples = [((log, hold.queue, hold.name), hold.left_ms / 1000) for log, hold in left]
    yield gauge("mirrorlog_hold_lease_left_seconds", meaning, labels, samples)


def _oldest_first(queues: Sequence[QueueStatus]) -> list[QueueStatus]:
    return sorted(queues, key=lambda queue: queue.queue_id)


def _in_queue_order(log: LogStatus) -> list[GroupStatus]:
    age = {queue.name: queue.queue_id for queue in log.queues}
    return sorted(log.groups, key=lambda group: (age.get(group.queue, 0), group.group))


def _split(per_log: Sequence[Sequence[_Placed[_T]]]) -> tuple[list[_Placed[_T]], list[_Placed[_T]]]:
    """The first SERIES_MAX, taken from the logs in turn, and the others."""
    ranked = ((rank, placed) for log in per_log for rank, placed in enumerate(log))
    ordered = [placed for _, placed in sorted(ranked, key=lambda each: each[0])]
    return ordered[:SERIES_MAX], ordered[SERIES_MAX:]


def _sums(rest: Iterable[_Placed[_T]], value: Callable[[_T], int], *, names: int) -> list[Sample]:
    sums: dict[str, int] = {}
    for log, each in rest:
        sums[log] = sums.get(log, 0) + value(each)
    return [((log, *[""] * names), float(total)) for log, total in sums.items()]
