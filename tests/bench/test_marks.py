"""The arithmetic of the marks, and that each finds the figures that it means."""

from __future__ import annotations

import pytest

from bench import grpc_consume, registry
from bench.marks import MARKS, Mark, best, judge
from bench.measure import Figure, Summary, summarise
from bench.workload import LIMIT


def _summary(workload: str, case: str, name: str, median: float) -> Summary:
    (summary,) = summarise([Figure(workload, case, name, "", median)])
    return summary


OURS = _summary("W1", "3 copies, send", "throughput", 500.0)
KAFKA = _summary("W1", "Kafka", "throughput", 50.0)
NATS = _summary("W1", "NATS", "throughput", 80.0)


@pytest.mark.parametrize(("bound", "reached"), [(6.25, True), (6.26, False)])
def test_a_throughput_is_compared_with_the_better_of_the_others(bound: float, reached: bool) -> None:
    """500 against 50 and 80 is 6.25, the bound itself counts as reached."""
    (verdict,) = judge([Mark("", "send", r"^W1 \| (Kafka|NATS)", bound)], [OURS], [KAFKA, NATS])
    assert verdict.ratio == 6.25
    assert verdict.reached is reached


def test_a_latency_is_compared_with_the_lower_of_the_others() -> None:
    """300 µs against 900 and 600: half, though a third of the slower one."""
    ours = _summary("W2", "ours", "p50", 300.0)
    others = [_summary("W2", "NATS a", "p50", 900.0), _summary("W2", "NATS b", "p50", 600.0)]
    (verdict,) = judge([Mark("", "ours", "NATS", 0.5, at_least=False)], [ours], others)
    assert verdict.ratio == 0.5
    assert verdict.reached is True


def test_an_absolute_mark_needs_no_other() -> None:
    """200 MB/s are 200 MB/s."""
    (verdict,) = judge([Mark("", "send", None, 200)], [OURS], [])
    assert verdict.ratio == 500.0
    assert verdict.reached is True
    assert verdict.mark.wanted == "≥ 200 MB/s"


def test_an_absolute_mark_says_its_unit() -> None:
    """4,000 bytes of at most 4,096."""
    mark = Mark("", "memory", None, 4096, at_least=False, unit="B")
    (verdict,) = judge([mark], [_summary("scale", "ours", "memory", 4000.0)], [])
    assert verdict.reached is True
    assert verdict.mark.wanted == "≤ 4096 B"


def test_an_own_figure_can_be_what_a_mark_compares_with() -> None:
    """The open loop's p99 against W2's p50."""
    own = [_summary("open loop", "a", "p99", 4000.0), _summary("W2", "a", "p50", 500.0)]
    (verdict,) = judge([Mark("", "^open loop", r"^W2 .*p50", 10, at_least=False)], own, [])
    assert verdict.ratio == 8.0
    assert verdict.reached is True


def test_a_line_without_a_bound_is_told_and_not_judged() -> None:
    """The ratio is there; it is neither reached nor missed, and says nothing of a bound."""
    (verdict,) = judge([Mark("", "send", "Kafka", None)], [OURS], [KAFKA])
    assert verdict.ratio == 10.0
    assert verdict.reached is None
    assert verdict.mark.wanted == ""


def test_the_c_program_and_the_one_in_python_are_told_apart() -> None:
    """Both make W2's hops; each line compares with its own, though one is the better of both."""
    ours = _summary("W2", "3 copies, 1024 B, memory, send", "p50", 200.0)
    others = [
        _summary("limit", f"3 copies, 1024 B, one outstanding, {language}page cache", "p50", p50)
        for language, p50 in (("", 25.0), ("Python and uvloop, ", 100.0))
    ]
    ratios = {verdict.mark.work: verdict.ratio for verdict in judge(MARKS, [ours], others)}
    assert ratios["W2, 3 copies, p50 / C making the same hops"] == 8.0
    assert ratios["W2, 3 copies, p50 / bare Python and uvloop making the same hops"] == 2.0


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    """Without the peer, and without our own."""
    mark = Mark("", "send", "Kafka", 5)
    without_peer, without_own = judge([mark], [OURS], [])[0], judge([mark], [], [KAFKA])[0]
    assert (without_peer.ratio, without_peer.reached) == (None, None)
    assert (without_own.ratio, without_own.reached) == (None, None)


def test_the_best_depends_on_what_is_better() -> None:
    """Of a throughput the largest, of a latency the smallest."""
    both = [KAFKA, NATS]
    assert best(both, "W1", largest=True) is NATS
    assert best(both, "W1", largest=False) is KAFKA
    assert best(both, "RabbitMQ", largest=True) is None


PEER_FIGURES = (
    ("W1", "Kafka 4, 3 copies, 1024 B, page cache, confluent-kafka 2, linger 5 ms", "throughput"),
    ("W1", "NATS JetStream 2, 3 copies (majority confirms), 1024 B, page cache, Go client 1", "throughput"),
    ("W1", "RabbitMQ 3, quorum queue, 3 copies (majority confirms), 1024 B, fsync, PerfTest", "throughput"),
    ("W2", "Kafka 4, 3 copies, 1024 B, page cache, confluent-kafka 2, linger 0", "p50"),
    ("W2", "NATS JetStream 2, 3 copies (majority confirms), 1024 B, page cache, Go client 1", "p50"),
    ("W2", "Redis 7 stream, 3 copies, 1024 B, page cache, redis-py 5, XADD and WAIT", "p50"),
    ("W3", "Kafka 4, 3 copies, 1024 B, page cache, confluent-kafka 2, consume(1000)", "throughput"),
    ("W3", "Kafka 4, 3 copies, 1024 B, page cache, confluent-kafka 2, consume(1000), value() of each", "throughput"),
    ("W6", "RabbitMQ 3, classic mirrored queue, 3 copies, 1024 B, fsync, PerfTest, window 2000", "rate"),
    ("W6", "RabbitMQ 3, quorum queue, 3 copies (majority confirms), 1024 B, fsync, PerfTest, window 2000", "rate"),
    ("W6", "NATS JetStream 2, 3 copies (majority confirms), 1024 B, page cache, Go client 1, ack of each", "rate"),
    ("W7", "NATS JetStream 2, 3 copies (majority confirms), 1024 B, page cache, Go client 1, delivered", "p50"),
    ("W7", "NATS JetStream 2, 3 copies (majority confirms), 1024 B, page cache, Go client 1, acked, DoubleAck", "p50"),
)
_PARTS = {"W3": ("batches", "records"), "W7": ("delivered", "acked")}
_NAMES = {
    "W1": ("throughput",),
    "W2": ("p50", "p99.9", "first of a segment, p90"),
    "W3": ("throughput",),
    "W5": ("catch-up", "sendfile copy, warm file"),
    "W6": ("rate",),
    "W7": ("p50",),
    "scale": (
        "memory of a node, each",
        "processor, more",
        "threads of a node, more",
        "processor",
        "threads of a node",
        "disk of a node, each",
    ),
    "open loop": ("p99",),
    "limit": ("throughput", "p50"),
}


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.work)
def test_only_the_marks_of_the_grpc_door_look_at_its_rows(mark: Mark) -> None:
    """Goal: the native door is not judged by the other one's figures, nor the other way round. Method: both sides of
    each mark are looked for among the door's rows alone, all of them; of these one is judged, W1 on three copies."""
    rows = [
        _summary(each.workload, case, name, 1.0)
        for each in registry.own(quick=True)
        if "gRPC" in each.case
        for case in ([f"{each.case}, {way}" for way in grpc_consume.WAYS] if each.workload == "W3" else [each.case])
        for name in _NAMES[each.workload]
    ]
    (judged,) = (row for row in rows if (row.workload, row.case) == ("W1", "3 copies, 1024 B, memory, gRPC, batches"))
    found = {
        side: [row for row in rows if best([row], side, largest=True)] for side in (mark.figure, mark.other) if side
    }
    assert found.pop(mark.figure) == ([judged] if mark.work.startswith("gRPC door, W1") else [])
    assert not any(found.values()), found


def test_every_mark_finds_both_of_its_sides_among_what_is_compared() -> None:
    """Of the workloads that run beside peers, with the names that they file their figures under."""
    own: list[Summary] = []
    others = [_summary(*each, 1.0) for each in PEER_FIGURES]
    for each in registry.select(quick=True, peers=False, everything=False):
        if not getattr(each, "compared", False):
            continue
        parts = _PARTS.get(each.workload)
        cases = [f"{each.case}, {part}" for part in parts] if parts else [each.case]
        figures = [_summary(each.workload, case, name, 1.0) for case in cases for name in _NAMES[each.workload]]
        (others if each.group == LIMIT else own).extend(figures)
    for verdict in judge(MARKS, own, others):
        assert verdict.own is not None, verdict.mark.work
        assert verdict.mark.other is None or verdict.other is not None, verdict.mark.work
