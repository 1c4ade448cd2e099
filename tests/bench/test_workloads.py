"""Each workload on real nodes with very little data: that it ends, loses nothing and gives the figures it promises."""

from __future__ import annotations

import pytest

from bench import (
    grpc_consume,
    grpc_one_outstanding,
    grpc_publish,
    open_loop,
    scale,
    w1_publish,
    w2_one_outstanding,
    w3_consume,
    w5_catch_up,
    w6_work_queue,
    w7_delivery,
)
from bench.measure import Figure
from bench.publishing import WAYS
from bench.workload import KIB, MIB

pytestmark = pytest.mark.process

TOTAL = 2 * MIB


def _names(figures: list[Figure]) -> list[str]:
    assert all(figure.value > 0 for figure in figures), figures
    return [figure.name for figure in figures]


@pytest.mark.long_after(1)
@pytest.mark.parametrize("way", WAYS)
def test_publishing_counts_every_record(way: str) -> None:
    """Two copies, two producers; a record too few or a confirm by too few copies would fail the workload itself."""
    case = w1_publish.Case(2, KIB, TOTAL, way, producers=2)
    assert _names(w1_publish.run(case, str(case))) == ["rate", "throughput"]


def test_one_outstanding_gives_percentiles() -> None:
    """On disk, one copy."""
    case = w2_one_outstanding.Case(1, 100, 0.1, "disk")
    assert _names(w2_one_outstanding.run(case, str(case))) == ["p50", "p90", "p99", "p99.9"]


@pytest.mark.long
def test_a_backlog_is_read_whole_in_both_ways() -> None:
    """The client fails when it reads another number of records than was published."""
    figures = w3_consume.run(w3_consume.Case(KIB, TOTAL, 0.1), "a")
    assert [figure.case for figure in figures] == ["a, batches", "a, batches", "a, records", "a, records"]
    assert _names(figures) == ["rate", "throughput"] * 2


@pytest.mark.long
def test_a_returning_mirror_catches_up_while_records_are_confirmed() -> None:
    """Its rate, the C program's, and confirms before and meanwhile."""
    figures = w5_catch_up.run(w5_catch_up.Case(KIB, 16 * MIB), "a")
    copies = ["sendfile copy, warm file", "sendfile copy, new file"]
    assert _names(figures) == ["catch-up", *("p50", "p99", "max") * 2, *copies]


@pytest.mark.long_after(1)
@pytest.mark.parametrize("way", w6_work_queue.PREFETCH)
def test_a_work_queue_gives_out_every_record_once(way: str) -> None:
    """The consumer fails when it has one twice; the round, when it has too few."""
    figures = w6_work_queue.run(w6_work_queue.Case(KIB, 2_000, way), "a")
    assert _names(figures) == ["rate", "throughput"]


def test_one_outstanding_in_a_work_queue_is_timed_to_the_hand_and_to_its_ack() -> None:
    """The client fails when it is given another record than it has published."""
    figures = w7_delivery.run(w7_delivery.Case(100, 0.1), "a")
    assert [figure.case for figure in figures] == ["a, delivered", "a, delivered", "a, acked", "a, acked"]
    assert _names(figures) == ["p50", "p99"] * 2


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        scale.Case(queues=20, seconds=0.1),
        scale.Case(connections=20, seconds=0.1),
        scale.Case(unsettled=20_000, seconds=0.1),
    ],
)
def test_much_of_everything_is_made_and_held(case: scale.Case) -> None:
    """Figures of so little mean nothing; that there are any means that all of it was there."""
    figures = scale.run(case, "a")
    assert [figure.name for figure in figures] == [
        "memory of a node, each",
        "processor, before",
        "processor, more",
        "threads of a node, more",
        "time to make them",
    ]


@pytest.mark.long
def test_idle_logs_are_looked_at_in_whole() -> None:
    figures = scale.run(scale.Case(logs=3, seconds=0.1), "a")
    assert {figure.name: figure.value for figure in figures}["disk of a node, each"] >= 16 * MIB
    assert [figure.name for figure in figures] == [
        "memory of a node, each",
        "processor",
        "threads of a node",
        "disk of a node, each",
        "time to make them",
    ]


@pytest.mark.long
def test_the_open_loop_times_records_by_their_schedule() -> None:
    """A short schedule at half of the peak that it has found itself."""
    figures = open_loop.run(open_loop.Case(KIB, 4 * MIB, 0.3), "a")
    late = ["late to leave, p50", "late to leave, p99"]
    assert _names(figures) == ["rate", "p50", "p99", "p99.9", "max", *late, "segments filled"]


@pytest.mark.long
@pytest.mark.parametrize("copies", [1, 3])
def test_publishing_through_the_grpc_door_counts_every_batch(copies: int) -> None:
    """A batch too few, a duplicate or a confirm by another number of copies would fail the workload itself."""
    case = grpc_publish.Case(copies, KIB, TOTAL)
    assert case.batches == 2
    assert _names(grpc_publish.run(case, str(case))) == ["rate", "throughput"]


@pytest.mark.long
def test_one_outstanding_through_the_grpc_door_gives_percentiles() -> None:
    """Three copies; an answer to another record, or by too few copies, would fail the workload itself."""
    case = grpc_one_outstanding.Case(100, 0.1)
    assert _names(grpc_one_outstanding.run(case, str(case))) == ["p50", "p90", "p99", "p99.9"]


@pytest.mark.long
def test_a_backlog_is_read_whole_through_the_grpc_door_in_both_ways() -> None:
    """The client fails when it reads another number of records than was published."""
    figures = grpc_consume.run(grpc_consume.Case(KIB, TOTAL, 0.1), "a")
    assert [figure.case for figure in figures] == ["a, raw batches"] * 2 + ["a, records"] * 2
    assert _names(figures) == ["rate", "throughput"] * 2
