"""Of many landings each has its turn: by amount, by age, fairly, and again after a failure."""

from __future__ import annotations

from mirrorlog.errors import ConnectionLost
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.landing.results import QueueStep, StepResult
from mirrorlog.spark.landing.service.schedule import BACKOFF_S_MAX, Schedule, Turn


def turn(name: str = "q", **keys: object) -> Turn:
    given = {"queue": name, "table": f"/lake/{name}", "servers": "n1:7401", "max_latency_s": 10, "max_records": 100}
    return Turn(landing({**given, **keys}))


def step(landed: int, confirmed: int, *, name: str = "q", size: int = 10) -> StepResult:
    queues = (QueueStep(name, 0, landed, confirmed),)
    return StepResult("q", queues, rows=landed, records=landed, bytes=landed * size)


def test_where_nobody_knows_yet_what_is_landed_the_step_comes_at_once() -> None:
    assert turn().is_due(0.0)


def test_what_is_pending_waits_for_its_age_or_its_amount() -> None:
    made = turn()
    made.ended(step(50, 50), 0.0)
    assert not made.is_due(1000.0)
    made.looked({"q": (0, 60)}, 100.0)
    made.looked({"q": (0, 70)}, 105.0)
    assert (made.pending, made.is_due(109.9), made.is_due(110.0)) == (20, False, True)
    made.looked({"q": (0, 150)}, 106.0)
    assert made.is_due(106.0)


def test_bytes_count_as_records_do() -> None:
    made = turn(max_bytes=5_000)
    made.ended(step(50, 50, size=1_000), 0.0)
    made.looked({"q": (0, 54)}, 1.0)
    assert not made.is_due(1.0)
    made.looked({"q": (0, 55)}, 1.0)
    assert made.is_due(1.0)


def test_what_a_step_left_is_as_old_as_the_step() -> None:
    made = turn()
    made.ended(StepResult("q", (QueueStep("q", 0, 50, 60),), seconds=4.0), 20.0)
    assert (made.is_due(25.9), made.is_due(26.0)) == (False, True)


def test_a_new_queue_of_a_pattern_is_pending_from_its_begin() -> None:
    made = turn()
    made.ended(step(50, 50), 0.0)
    made.looked({"q": (0, 50), "new": (5, 9)}, 1.0)
    assert made.pending == 4


def test_who_waited_longest_is_next() -> None:
    """Goal: a landing with a large rest holds nobody up. Two that are always due take turns."""
    schedule = Schedule([turn("a"), turn("b")])
    order = []
    for now in range(6):
        due = schedule.next(float(now))
        assert due is not None
        order.append(due.landing.name)
        due.ended(step(50, 1_000, name=due.landing.name), float(now))
    assert order == ["a", "b"] * 3


def test_a_failed_one_waits_longer_each_time_and_others_go_on() -> None:
    schedule = Schedule([turn("a"), turn("b")])
    bad, good = schedule.turns
    waits = []
    now = 0.0
    for _ in range(10):
        bad.failed(ConnectionLost("away"), now)
        waits.append(bad.retry_at - now)
        assert schedule.next(now) is good
        assert not bad.is_due(bad.retry_at - 0.001)
        now = bad.retry_at
        assert bad.is_due(now)
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == BACKOFF_S_MAX
    bad.ended(step(5, 5), now)
    assert (bad.error, bad.failures, bad.is_due(now)) == (None, 0, False)


def test_once_goes_on_to_the_end_that_was_seen_first() -> None:
    made = turn()
    made.looked({"q": (0, 100)}, 0.0)
    made.ended(step(60, 100), 0.0)
    assert made.is_due(0.0, once=True)
    assert not made.reached
    made.looked({"q": (0, 200)}, 1.0)
    made.ended(step(120, 200), 1.0)
    assert made.reached
