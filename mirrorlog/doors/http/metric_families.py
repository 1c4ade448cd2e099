"""What there is to tell in a node's answer, behind the values of its labels, and how it becomes metrics: families with
the same labels stand together. Pure.

A series for each of very many queues is of use to nobody and a burden for all who keep it. So the first thousand
queues of a node, and the first thousand pairs of queue and group, have series of their own; what is beyond is one
sum per log, under empty names. So a sum over all series is right with few queues and with many. The first are the
oldest of each log in turn: a queue that is declared takes the series of no older one in its log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mirrorlog.doors.http.answers import NodeReport, StatusScrape
from mirrorlog.wire.messages.queues import HoldInfo
from mirrorlog.wire.messages.status import (
    AckingGroupStatus,
    DurationCounts,
    GroupStatus,
    LogCounts,
    LogStatus,
    MirrorStatus,
    NodeStatus,
    PinStatus,
    PlacedLog,
    QueueCounts,
    QueueStatus,
)

SERIES_MAX: Final = 1_000
"""By default: the setting http.metrics_series. Of queues, and of groups, that have series of their own."""

# The node gives zeros for the offsets of such a log: it cannot tell them.
_WITHOUT_OFFSETS: Final = {"opening", "corrupt"}

_DURATIONS: Final = {"mirrorlog_log_confirm_duration_seconds"}

_T = TypeVar("_T")
Labelled = tuple[tuple[str, ...], _T]
"""What there is, behind the values of its labels; the first one is a log's name where series are limited."""
Value = float | Mapping[str, float] | DurationCounts | None
"""A sample; one for each value of the family's own label; how long something took; or none."""


@dataclass(frozen=True)
class Families(Generic[_T]):
    """Families with the same labels, of everything that `things` finds in an answer: (name, value, meaning). A name
    with a label in braces has that one too: its value is a mapping by it.

    `limited`: to the series of the first so many of all logs; `summed`: what is beyond as a sum.
    """

    labels: tuple[str, ...]
    things: Callable[[StatusScrape], Iterable[Labelled[_T]]]
    families: Sequence[tuple[str, Callable[[_T], Value], str]]
    limited: bool = False
    summed: bool = False

    def metrics(self, answer: StatusScrape, series_max: int) -> Iterator[Metric]:
        """All of its families."""
        first, beyond = _split(list(self.things(answer)), series_max if self.limited else None)
        for name, value, meaning in self.families:
            found = [(labels, told) for labels, thing in first if (told := value(thing)) is not None]
            yield _family(name, meaning, self.labels, found + (self._sums(beyond, value) if self.summed else []))

    def _sums(self, beyond: Sequence[Labelled[_T]], value: Callable[[_T], Any]) -> list[Labelled[Value]]:
        sums: dict[str, float] = {}
        for labels, thing in beyond:
            sums[labels[0]] = sums.get(labels[0], 0) + value(thing)
        nobody = [""] * (len(self.labels) - 1)
        return [((log, *nobody), total) for log, total in sums.items()]


def _split(found: list[Labelled[_T]], most: int | None) -> tuple[list[Labelled[_T]], list[Labelled[_T]]]:
    """The first ones, taken from the logs in turn, and the others."""
    if most is None:
        return found, []
    per_log: Counter[str] = Counter()
    ranks = []
    for labels, _ in found:
        per_log[labels[0]] += 1
        ranks.append(per_log[labels[0]])
    ordered = [each for _, each in sorted(zip(ranks, found, strict=True), key=lambda ranked: ranked[0])]
    return ordered[:most], ordered[most:]


def _family(name: str, meaning: str, labels: Sequence[str], found: Iterable[Labelled[Value]]) -> Metric:
    name, _, own = name.rstrip("}").partition("{")
    made = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family: Metric = made(name, meaning, labels=[*labels, own] if own else labels)
    if name in _DURATIONS:
        family = HistogramMetricFamily(name, meaning, labels=labels)
    for values, told in found:
        if isinstance(told, DurationCounts):
            # Each bucket counts what is in those before it too.
            bounds = [*map(str, told.bounds_s), "+Inf"]
            buckets = list(zip(bounds, accumulate(map(float, told.counts)), strict=True))
            family.add_metric(values, buckets, told.sum_s)  # type: ignore[attr-defined]  # not of every Metric
        elif isinstance(told, Mapping):
            for each, number in told.items():
                family.add_metric((*values, each), float(number))  # type: ignore[attr-defined]
        else:
            family.add_metric(values, float(told or 0))  # type: ignore[attr-defined]
    return family


# --- What there is in an answer ---------------------------------------------------------------------------------------


def node(answer: StatusScrape) -> list[Labelled[NodeReport]]:
    status, software = answer.told.status, answer.told.software.removeprefix("mirrorlog ")
    return [((status.cluster_name, status.cluster_id, status.node_id, status.start_id, software), answer.told)]


def one(thing: _T | None) -> list[Labelled[_T]]:
    """Without samples where the node does not tell, or could not measure."""
    return [] if thing is None else [((), thing)]


def all_logs(answer: StatusScrape) -> list[Labelled[LogStatus]]:
    return [((log.name,), log) for log in answer.told.status.logs]


def readable(answer: StatusScrape) -> list[Labelled[LogStatus]]:
    return [(labels, log) for labels, log in all_logs(answer) if log.state not in _WITHOUT_OFFSETS]


def mastered(answer: StatusScrape) -> list[Labelled[LogStatus]]:
    """Of copies and mirrors only a log's master knows."""
    return [(labels, log) for labels, log in readable(answer) if log.role == "master"]


def mirrors(answer: StatusScrape) -> list[Labelled[MirrorStatus]]:
    """Each as its master sees it. Offsets are left out before the first, times before there is a link."""
    return [((*labels, mirror.node_id), mirror) for labels, log in mastered(answer) for mirror in log.mirrors]


def queues(answer: StatusScrape) -> list[Labelled[QueueStatus]]:
    return [((*labels, queue.name), queue) for labels, log in readable(answer) for queue in _oldest_first(log)]


def flows(answer: StatusScrape) -> list[Labelled[QueueCounts]]:
    """Rates are whoever's who reads these."""
    return [
        ((*labels, queue.name), queue.counts)
        for labels, log in mastered(answer)
        for queue in _oldest_first(log)
        if queue.counts
    ]


def own_groups(answer: StatusScrape) -> list[Labelled[QueueStatus]]:
    """Of queues whose master tells of them: an older node's does not."""
    return [(labels, queue) for labels, queue in queues(answer) if queue.ready >= 0]


def acking(answer: StatusScrape) -> Iterator[Labelled[AckingGroupStatus]]:
    """Those with names: the queue's own is told as the queue's."""
    for labels, log in mastered(answer):
        age = {queue.name: queue.queue_id for queue in log.queues}
        for group in sorted(log.acking, key=lambda each: (age.get(each.queue, 0), each.group)):
            if group.group:
                yield (*labels, group.queue, group.group), group


def groups(answer: StatusScrape) -> Iterator[Labelled[GroupStatus]]:
    for labels, log in readable(answer):
        age = {queue.name: queue.queue_id for queue in log.queues}
        for group in sorted(log.groups, key=lambda each: (age.get(each.queue, 0), each.group)):
            yield (*labels, group.queue, group.group), group


def pins(answer: StatusScrape) -> list[Labelled[PinStatus]]:
    return [((*labels, log.pin.queue), log.pin) for labels, log in mastered(answer) if log.pin is not None]


def holds(answer: StatusScrape) -> list[Labelled[HoldInfo]]:
    return [((*labels, hold.queue, hold.name), hold) for labels, log in readable(answer) for hold in log.holds]


def _oldest_first(log: LogStatus) -> list[QueueStatus]:
    return sorted(log.queues, key=lambda queue: queue.queue_id)


def members(answer: StatusScrape) -> list[Labelled[NodeStatus]]:
    cluster = answer.told.status.cluster
    return [] if cluster is None else [((node.node_id,), node) for node in cluster.nodes]


def starts(answer: StatusScrape) -> list[Labelled[NodeStatus]]:
    return [((*labels, node.start_id, node.kind, str(node.witness).lower()), node) for labels, node in members(answer)]


def placed(answer: StatusScrape) -> list[Labelled[PlacedLog]]:
    cluster = answer.told.status.cluster
    return [] if cluster is None else [((log.name,), log) for log in cluster.logs]


def counted(answer: StatusScrape) -> list[Labelled[LogCounts]]:
    counts = answer.told.status.counts
    return [] if counts is None else [((log.log,), log) for log in counts.logs]
