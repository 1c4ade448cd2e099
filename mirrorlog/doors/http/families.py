"""Families of metrics from plain values: a name, what it means, and a sample for each set of labels.

The names are public: dashboards and alerts are written against them. They follow Prometheus' conventions: units are
bytes and seconds and stand last, what only grows ends in `_total`, a state is a gauge of 0 or 1 for each of its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mirrorlog.wire.messages.status import DurationCounts

Sample = tuple[Sequence[str], float]
"""The values of the labels, in the order of their names, and the value."""


def gauge(name: str, meaning: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """What goes up and down. Without a sample the family is there with its meaning alone."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def counter(name: str, meaning: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """What only grows, from 0 at a start on. `name` ends in `_total`."""
    family = CounterMetricFamily(name, meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def histogram(
    name: str, meaning: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], DurationCounts]]
) -> Metric:
    """How long something took, how often: each bucket counts what is in those before it too. `name` ends in
    `_seconds`."""
    family = HistogramMetricFamily(name, meaning, labels=labels)
    for values, told in samples:
        bounds = [*map(str, told.bounds_s), "+Inf"]
        buckets = list(zip(bounds, accumulate(map(float, told.counts)), strict=True))
        family.add_metric(values, buckets, told.sum_s)
    return family


def states(labels: Sequence[str], known: Sequence[str], now: str) -> Iterable[Sample]:
    """A sample for each state, 1 for that of now. One that is not known, of a newer node, is told as well."""
    every = known if now in known else (*known, now)
    return (((*labels, state), float(state == now)) for state in every)
