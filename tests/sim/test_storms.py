"""Whole clusters in storms: schedules by the number, and what is around them (plans, shrinking, totals)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sim.cluster_main import Batch, Totals, attempt, coverage, report, shrunk
from sim.cluster_plan import (
    ALL_KINDS,
    COPY_KINDS,
    CREDIT_KINDS,
    GROUP_KINDS,
    LETTER_KINDS,
    LIFETIME_KINDS,
    MOVE_KINDS,
    POLICY_KINDS,
    QUEUE_KINDS,
    RECORD_KINDS,
    TRANSACTION_KINDS,
    USED_COPY_KINDS,
    Event,
    Plan,
    draw,
)
from sim.cluster_run import run
from sim.cluster_shrink import shrink
from sim.trace import Trace

PIECES = [
    range(1, 9),
    range(9, 25),
    *(pytest.param(range(first, first + 44), marks=pytest.mark.slow) for first in (25, 69, 113, 157)),
]
"""Seeds of schedules; the first piece is the short one."""
GROUP_SCHEDULES = 3
RECORD_SCHEDULES = 2


@pytest.mark.timeout(600)
@pytest.mark.long_after(1)
@pytest.mark.parametrize("seeds", PIECES, ids=str)
def test_nothing_is_lost_in_any_storm(seeds: range, tmp_path: Path) -> None:
    """Schedules of all kinds, on two processes; each with 24 faults, then peace, then all checks."""
    totals = Totals()
    batch = Batch(totals, tmp_path / "totals.json", kind=None)
    batch.run(seeds, until=time.monotonic() + 500, workers=2)
    print(coverage(totals.counts))
    reasons = "\n".join(failure.reason for failure in batch.failures)
    assert not batch.failures, (
        f"{reasons}\nreplay: python -m sim.cluster_main --n 1 --seed {batch.failures[0].plan.seed}"
    )
    assert totals.counts["schedules"] == len(seeds)


def _come_through(kind: str, schedules: int, tmp_path: Path) -> Counter[str]:
    """Run the first ones, on two processes; none fails. What was met in them."""
    totals = Totals()
    batch = Batch(totals, tmp_path / "totals.json", kind=kind)
    batch.run(range(1, 1 + schedules), until=time.monotonic() + 200, workers=2)
    print(coverage(totals.counts))
    reasons = "\n".join(failure.reason for failure in batch.failures)
    assert not batch.failures, (
        f"{reasons}\nreplay: python -m sim.cluster_main --kind '{kind}' --n 1 --seed {batch.failures[0].plan.seed}"
    )
    return totals.counts


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind", ["groups: anything", "groups: falling masters", "queues: anything", "queues: falling masters"]
)
def test_acking_groups_come_through_any_storm(kind: str, tmp_path: Path) -> None:
    """Schedules with takers of acking groups, on two processes, also of queues that are purged, reset and deleted, of
    which one at a time has records, or whose begin follows; everything comes to somebody, and what was acknowledged
    stays so."""
    assert kind in {**GROUP_KINDS, **QUEUE_KINDS}
    counts = _come_through(kind, GROUP_SCHEDULES, tmp_path)
    assert counts["groups: ack confirmed"]
    assert counts["groups: ledgers compared"]


@pytest.mark.long_after(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["records: anything", "transactions: falling masters"])
def test_records_with_limits_and_transactions_come_through_any_storm(kind: str, tmp_path: Path) -> None:
    """Schedules with queues whose records have times, priorities and limits, or with takers who settle by transactions,
    on two processes; nothing is given out at the wrong time, nothing is done twice or by half."""
    assert kind in {**RECORD_KINDS, **TRANSACTION_KINDS}
    counts = _come_through(kind, RECORD_SCHEDULES, tmp_path)
    assert counts["groups: ack confirmed"]
    assert counts["groups: ledgers compared"]
    assert kind in RECORD_KINDS or counts["transactions: confirmed"]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["letters: anything", "letters: falling masters"])
def test_dead_letters_come_through_any_storm(kind: str, tmp_path: Path) -> None:
    """Schedules with queues whose dead records leave for others, on two processes; each letter comes once, in order,
    and all of them do."""
    assert kind in LETTER_KINDS
    counts = _come_through(kind, RECORD_SCHEDULES, tmp_path)
    assert counts["letters: rejected"]
    assert counts["fault: intercept"]
    assert counts["groups: ledgers compared"]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["lifetimes: anything", "lifetimes: falling masters"])
def test_queues_go_by_themselves_in_any_storm(kind: str, tmp_path: Path) -> None:
    """Schedules with queues that go with their last subscriber, or when nobody uses them, on two processes; none goes
    too early, and all of them do."""
    assert kind in LIFETIME_KINDS
    counts = _come_through(kind, RECORD_SCHEDULES, tmp_path)
    assert counts["lifetimes: party goes"]
    assert counts["lifetimes: brittle goes"]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["credit: anything", "credit: network"])
def test_producers_with_little_credit_come_through_any_storm(kind: str, tmp_path: Path) -> None:
    """Schedules in which producers are held all the time, on two processes; they have no more open than they may, go on
    when copies have caught up, and nothing of it is left."""
    assert kind in CREDIT_KINDS
    counts = _come_through(kind, GROUP_SCHEDULES, tmp_path)
    assert counts["credit: a producer is held"]


@pytest.mark.long_after(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["copies: operators", "copies: anything", "used copies: falling masters"])
def test_copies_move_in_any_storm(kind: str, tmp_path: Path) -> None:
    """Schedules in which logs are wished elsewhere at random, nodes are emptied, join and leave, and moving is paused,
    on two processes; as many copies stay as are promised, and in peace the cluster's plan comes to its end."""
    assert kind in {**COPY_KINDS, **USED_COPY_KINDS}
    counts = _come_through(kind, RECORD_SCHEDULES, tmp_path)
    assert counts["branch: a copy retires"]
    assert counts["branch: a log goes to other nodes"]
    assert counts["fault: wish"]


@pytest.mark.long_after(1)
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "kind",
    ["moves: anything", "group moves: falling masters", "transaction moves: network", "group policies: anything"],
)
def test_queues_move_in_any_storm(kind: str, tmp_path: Path) -> None:
    """Schedules in which queues go from log to log while they are used, because somebody alters them, or what policies
    say of them, on two processes; what is held to queues that stay is held to them, and in peace every move has come to
    its end."""
    assert kind in {**MOVE_KINDS, **POLICY_KINDS}
    counts = _come_through(kind, RECORD_SCHEDULES, tmp_path)
    assert counts["moves: come about"]
    assert counts["fault: alter"]
    assert kind in MOVE_KINDS or counts["moves: policy confirmed"]


def test_a_plan_survives_being_saved() -> None:
    """Of every kind, by writing and reading it; and a seed always gives the same plan."""
    for kind in ALL_KINDS:
        plan = draw(7, kind=kind)
        assert Plan.from_json(plan.to_json()) == plan == draw(7, kind=kind)
        assert len(plan.events) >= 20


def test_a_plan_is_replayed_to_the_last_callback() -> None:
    """Twice in one process, by the digest of everything that happened."""
    digests = set()
    for _ in range(2):
        trace = Trace()
        run(draw(3), trace=trace)
        digests.add(trace.digest)
    assert len(digests) == 1


@pytest.mark.long
def test_a_plan_with_acking_groups_gives_the_same_run_everywhere() -> None:
    """In processes whose strings have other hashes, by the same digest: a fault is found again by its seed."""
    script = (
        "from sim.cluster_plan import draw; from sim.cluster_run import run; from sim.trace import Trace; "
        "trace = Trace(); run(draw(3, kind='groups: anything'), trace=trace); print(trace.digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(digests) == 1


def test_a_plan_that_fails_is_shrunk_to_what_it_takes() -> None:
    """By a failure that takes two of many events."""
    plan = draw(1, kind="network")
    first, second = plan.events[3], plan.events[17]

    def fails(smaller: Plan) -> str:
        both = first in smaller.events and second in smaller.events
        return "seed 1: AssertionError: nothing confirmed is lost: p0 7" if both else ""

    found = shrink(plan, "seed 1: AssertionError: nothing confirmed is lost: p1 9", fails, go_on=lambda: True)
    assert found.plan.events == (first, second)


def test_a_failure_is_reported_with_its_plans(tmp_path: Path) -> None:
    """By a plan whose event nobody knows; the saved plan fails in the same way."""
    plan = replace(
        draw(1), nodes=1, copies=1, min_in_sync=0, events=(Event(0.1, "nobody_knows"), Event(0.2, "rebalance"))
    )
    failure = attempt(plan)
    assert not isinstance(failure, Counter)
    smaller = shrunk(failure, within_s=20)
    assert smaller.plan.events == plan.events[:1]
    assert "nobody_knows" in report(failure, smaller, tmp_path)
    saved = Plan.from_json((tmp_path / "failed-1-shrunk.json").read_text())
    assert saved == smaller.plan


def test_totals_go_on_where_they_stopped(tmp_path: Path) -> None:
    """By two batches with one file."""
    path = tmp_path / "totals.json"
    for _ in range(2):
        totals = Totals.read(path)
        totals.counts.update({"schedules": 5})
        totals.next_seed += 5
        totals.write(path)
    assert json.loads(path.read_text())["counts"] == {"schedules": 10}
    assert Totals.read(path).next_seed == 11
