"""Bugs in how copies move, put into real nodes: each is found by a plan that moves some."""

from __future__ import annotations

import pytest

from mirrorlog.cluster.state import log_rules, machine
from mirrorlog.cluster.state.commands import ReplicaRetired
from mirrorlog.cluster.state.state import ClusterState
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event
from tests.sim.seeded import found_in, small_plan

SEEDS = 6
LOGS = ("memory", "disk", "memory")
MOVING = (
    Event(0.1, "join"),
    Event(0.8, "empty", ("b", 0.3)),
    *(
        event
        for number in range(len(LOGS))
        for event in (
            Event(1.5 + number, "wish", (number, "dbc")),
            Event(1.54 + number, "retire", (number, "a")),
            Event(2.0 + number, "wish", (number, "dac")),
            Event(2.04 + number, "retire", (number, "b")),
        )
    ),
)
"""A copy that is not wanted is asked to go as soon as others are wished."""


def test_nothing_is_found_without_a_bug() -> None:
    """By the same plan, with nothing put in; and copies do move."""
    counts = attempt(small_plan("seeded copies 0", MOVING, logs=LOGS, moves=True))
    assert not isinstance(counts, Failure), counts.reason
    assert counts["branch: a copy retires"]


def test_a_removal_below_the_promised_copies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rule that takes one whole copy for as many as are promised, when somebody takes a copy away that is not
    wanted, before the one that is wanted is there."""
    rule, promised = log_rules.replica_retired, log_rules.promised

    def lenient(state: ClusterState, index: int, command: ReplicaRetired) -> ClusterState:
        log_rules.promised = lambda state, log_id: 1
        try:
            return rule(state, index, command)
        finally:
            log_rules.promised = promised

    monkeypatch.setitem(machine.HANDLERS, ReplicaRetired, lenient)
    plans = (small_plan(f"seeded copies {seed}", MOVING, logs=LOGS, moves=True) for seed in range(SEEDS))
    assert found_in(plans, ("copies stay as many as promised",))
