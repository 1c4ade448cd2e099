"""The marks: what mirrorlog shall reach, each a ratio of medians of one run.

A mark compares the best of its own figures that fit with the best of the others. `figure` and `other` are regular
expressions on `workload | case | name`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.measure import Summary

_KAFKA: Final = r"Kafka .*confluent-kafka"
_NATS: Final = r"NATS .*Go client"


@dataclass(frozen=True, slots=True)
class Mark:
    """`at_least`: the ratio own / other shall be `bound` or more; else it shall be `bound` or less.

    `other` is None where `bound` is a number of its own, in the figure's unit. Without a `bound` the ratio is told, and
    there is nothing to reach. `unit`: of an absolute bound.
    """

    work: str
    figure: str
    other: str | None
    bound: float | None
    at_least: bool = True
    unit: str = "MB/s"

    @property
    def wanted(self) -> str:
        """The bound, as text."""
        if self.bound is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}" + ("" if self.other else f" {self.unit}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A mark and what was measured. `own`, `other`: the medians compared; None where nothing was measured."""

    mark: Mark
    own: Summary | None
    other: Summary | None

    @property
    def ratio(self) -> float | None:
        """Own median / other median, or the own median where the bound is absolute."""
        if self.own is None:
            return None
        if self.mark.other is None:
            return self.own.median
        if self.other is None or self.other.median == 0:
            return None
        return self.own.median / self.other.median

    @property
    def reached(self) -> bool | None:
        """None when it cannot be said, or there is nothing to reach."""
        ratio = self.ratio
        if ratio is None or self.mark.bound is None:
            return None
        return ratio >= self.mark.bound if self.mark.at_least else ratio <= self.mark.bound


def judge(marks: Sequence[Mark], own: Iterable[Summary], others: Iterable[Summary]) -> list[Verdict]:
    """Every mark with the figures that it compares; a mark against own figures (W2) looks among those too."""
    own_summaries = list(own)
    other_summaries = [*others, *own_summaries]
    return [
        Verdict(
            mark,
            best(own_summaries, mark.figure, largest=mark.at_least),
            best(other_summaries, mark.other, largest=mark.at_least) if mark.other else None,
        )
        for mark in marks
    ]


def best(summaries: Iterable[Summary], pattern: str, *, largest: bool) -> Summary | None:
    """The one with the largest (or smallest) median among those that fit."""
    fitting = [each for each in summaries if re.search(pattern, f"{each.workload} | {each.case} | {each.name}")]
    if not fitting:
        return None
    return (max if largest else min)(fitting, key=lambda each: each.median)


_W1: Final = r"^W1 \| 3 copies, 1024 B, memory, 1 producer, {way}( in \d+ KiB)? \| throughput$"
_W1_DISK: Final = r"^W1 \| 3 copies, 1024 B, disk, 1 producer, .* \| throughput$"
_W1_PEERS: Final = rf"^W1 \| ({_KAFKA}|{_NATS}).* \| throughput$"
_W2: Final = r"^W2 \| 3 copies, 1024 B, memory, send \| p50$"
_W2_ROLLS: Final = r"^W2 \| 3 copies, 1024 B, memory, send, segments of [^|]* \| {name}$"
_W2_RECYCLED: Final = r"^W2 \| 3 copies, 65536 B, memory, send, segments of [^|]* \| {name}$"
_HOPS: Final = r"^limit \| 3 copies, 1024 B, one outstanding, {language} \| p50$"
_GRPC: Final = r"^W1 \| 3 copies, 1024 B, .*gRPC.* \| throughput$"
_W3: Final = r"^W3 \| 3 copies, 1024 B, memory, {way} \| throughput$"
_W6: Final = r"^W6 \| 3 copies, 1024 B, memory, {way} \| rate$"
_W6_DISK: Final = r"^W6 \| 3 copies, 1024 B, disk, {way} \| rate$"
_W6_RABBIT: Final = r"^W6 \| RabbitMQ .*{queue}.* \| rate$"
_W7: Final = r"^W7 \| 3 copies, 1024 B, memory, {what} \| p50$"
_SCALE: Final = r"^scale \| 3 copies, 100 B, memory, [\d,]+ {what} \| {name}$"
_W5: Final = r"^W5 \| 3 copies, 1024 B, memory, [^,]* \| {name}$"


_IDLE_LOGS: Final = tuple(
    Mark(
        f"scale, idle logs, {name}", _SCALE.format(what="idle logs", name=name), None, bound, at_least=False, unit=unit
    )
    for name, bound, unit in (
        ("memory of a node, each", 1_000_000, "B"),
        ("processor", 40, "%"),
        ("threads of a node", 32, "threads"),
        ("disk of a node, each", 17 * 1024 * 1024, "B"),
    )
)
"""What 256 logs in which nothing happens may cost: of the node that pays most, and the processor of all together."""


def _scale_marks(what: str, *, each_bytes: int) -> tuple[Mark, ...]:
    """What much of something may cost, of the node that pays most, and of all while nobody does anything."""
    return tuple(
        Mark(f"scale, {what}, {name}", _SCALE.format(what=what, name=name), None, bound, at_least=False, unit=unit)
        for name, bound, unit in (
            ("memory of a node, each", each_bytes, "B"),
            ("processor, more", 2, "%"),
            ("threads of a node, more", 8, "threads"),  # helpers that begin when they are first needed
        )
    )


MARKS: Final[tuple[Mark, ...]] = (
    Mark("W1, 3 copies, send per record / the better of Kafka and NATS", _W1.format(way="send"), _W1_PEERS, 5),
    Mark("W1, 3 copies, send_many / the better of Kafka and NATS", _W1.format(way="send_many"), _W1_PEERS, 10),
    Mark("W1, 3 copies, ready batches / the better of Kafka and NATS", _W1.format(way="batches"), _W1_PEERS, 10),
    Mark("W1, 3 copies, disk / three streams on the disk alone", _W1_DISK, r"^limit \| 3 files, fdatasync", 0.7),
    Mark("W1, 3 copies, disk / RabbitMQ quorum queue", _W1_DISK, r"^W1 \| RabbitMQ .*quorum.* \| throughput$", 20),
    Mark("W2, 3 copies, p50 / Kafka", _W2, rf"^W2 \| {_KAFKA}.* \| p50$", 0.3, at_least=False),
    Mark("W2, 3 copies, p50 / NATS", _W2, r"^W2 \| NATS .* \| p50$", 0.5, at_least=False),
    Mark("W2, 3 copies, p50 / Redis with WAIT 2", _W2, r"^W2 \| Redis .* \| p50$", 1, at_least=False),
    Mark("W2, 3 copies, p50 / C making the same hops", _W2, _HOPS.format(language="page cache"), 2, at_least=False),
    Mark(
        "W2, 3 copies, p50 / bare Python and uvloop making the same hops",
        _W2,
        _HOPS.format(language="Python and uvloop, page cache"),
        None,
        at_least=False,
    ),
    Mark(
        "W2 through segment rolls, p99.9 / its p50",
        _W2_ROLLS.format(name=r"p99\.9"),
        _W2_ROLLS.format(name="p50"),
        5,
        at_least=False,
    ),
    Mark(
        "W2, the record that begins a recycled segment, p90 / p50 of all",
        _W2_RECYCLED.format(name="first of a segment, p90"),
        _W2_RECYCLED.format(name="p50"),
        5,
        at_least=False,
    ),
    Mark("W3, batches / confluent-kafka", _W3.format(way="batches"), rf"^W3 \| {_KAFKA}.* \| throughput$", 3),
    Mark(
        "W3, records / confluent-kafka, value of each",
        _W3.format(way="records"),
        rf"^W3 \| {_KAFKA}.*value\(\).* \| throughput$",
        1,
    ),
    Mark(
        "W6, publish, consume, ack, each record / RabbitMQ mirrored queue",
        _W6.format(way="records"),
        _W6_RABBIT.format(queue="mirrored"),
        5,
    ),
    Mark(
        "W6, publish, consume, ack, each record / RabbitMQ quorum queue",
        _W6.format(way="records"),
        _W6_RABBIT.format(queue="quorum"),
        2,
    ),
    Mark(
        "W6, publish, consume, ack, each record / NATS work queue",
        _W6.format(way="records"),
        rf"^W6 \| {_NATS}.* \| rate$",
        2,
    ),
    Mark(
        "W6, on disk, each record / RabbitMQ quorum queue",
        _W6_DISK.format(way="records"),
        _W6_RABBIT.format(queue="quorum"),
        2,
    ),
    Mark(
        "W6, on disk, each record / RabbitMQ mirrored queue",
        _W6_DISK.format(way="records"),
        _W6_RABBIT.format(queue="mirrored"),
        5,
    ),
    Mark(
        "W6, in batches / the best of RabbitMQ and NATS",
        _W6.format(way="batches"),
        r"^W6 \| (RabbitMQ|NATS) .* \| rate$",
        None,
    ),
    Mark(
        "W7, confirmed ack, p50 / NATS, DoubleAck",
        _W7.format(what="acked"),
        r"^W7 \| NATS .*acked.* \| p50$",
        None,
        at_least=False,
    ),
    Mark(
        "W7, delivered, p50 / NATS",
        _W7.format(what="delivered"),
        r"^W7 \| NATS .*delivered.* \| p50$",
        None,
        at_least=False,
    ),
    *_scale_marks("idle queues", each_bytes=4096),
    *_scale_marks("connections with a subscription each", each_bytes=100_000),
    *_scale_marks("records in hand", each_bytes=4),
    *_IDLE_LOGS,
    Mark("W5 / sendfile copy", _W5.format(name="catch-up"), _W5.format(name="sendfile copy, .* file"), 0.8),
    Mark(
        "open loop at half of peak, p99 / W2 p50",
        r"^open loop \| 3 copies, 1024 B, .* \| p99$",
        _W2,
        10,
        at_least=False,
    ),
    Mark("gRPC door, W1", _GRPC, None, 200),
    Mark("gRPC door, W1 / bare gRPC stream, nothing stored", _GRPC, r"^limit \| gRPC stream, .* \| throughput$", None),
    Mark(
        "W1, one node without mirrors / loopback stream",
        r"^W1 \| 1 copy, 1024 B, memory, 1 producer, .* \| throughput$",
        r"^limit \| loopback stream, .*nothing stored \| throughput$",
        0.7,
    ),
)

_NOOP: Final = r"^S1 \| {way} to noop, 1024 B, random \| throughput$"
_LANDED: Final = r"^S2 \| {way}, 1024 B, {rows} \| throughput$"


def _landing_marks(rows: str) -> tuple[Mark, ...]:
    limit = _LANDED.format(way="Parquet to Delta", rows=rows)
    return (
        Mark(
            f"writeStream to Delta / Spark's Parquet to Delta, {rows}",
            _LANDED.format(way="writeStream to Delta", rows=rows),
            limit,
            1,
        ),
        Mark(f"landing / Spark's Parquet to Delta, {rows}", _LANDED.format(way="landing", rows=rows), limit, 2),
        Mark(
            f"landing / deltalake in one process, {rows}",
            _LANDED.format(way="landing", rows=rows),
            _LANDED.format(way="deltalake, one process", rows=rows),
            None,
        ),
    )


SPARK_MARKS: Final[tuple[Mark, ...]] = (
    Mark(
        "source / Spark's Parquet source, noop",
        _NOOP.format(way="mirrorlog source"),
        _NOOP.format(way="Parquet source"),
        2,
    ),
    Mark(
        "source / a Python source that only hands over, noop",
        _NOOP.format(way="mirrorlog source"),
        _NOOP.format(way="Python source that only hands over"),
        None,
    ),
    Mark(
        "source over path / Spark's Parquet source, noop",
        _NOOP.format(way="mirrorlog source over path"),
        _NOOP.format(way="Parquet source"),
        None,
    ),
    Mark(
        "source / Spark's Kafka source, noop",
        _NOOP.format(way="mirrorlog source"),
        _NOOP.format(way="Kafka source"),
        None,
    ),
    *_landing_marks("random, uncompressed"),
    *_landing_marks("text, snappy"),
    Mark(
        "landing / Kafka's source into Delta",
        _LANDED.format(way="landing", rows="random, uncompressed"),
        _LANDED.format(way="Kafka writeStream to Delta", rows="random, uncompressed"),
        None,
    ),
)
"""Of `python -m bench.spark`."""
