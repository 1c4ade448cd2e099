"""A machine that is set back to a snapshot of its disk, in a cluster that goes on."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan

SEEDS = 4


def set_back(seed: int) -> Plan:
    """A snapshot is taken early; its node dies and runs again, another one's machine loses power."""
    return Plan(
        seed=f"restored {seed}",
        kind="by hand",
        nodes=3,
        copies=3,
        min_in_sync=0,
        logs=("memory", "disk"),
        seconds=3.0,
        unit_bytes=512,
        ordered_names=seed % 2 == 0,
        forgets=False,
        events=(
            Event(0.5, "restore", ("abc"[seed % 3], 0.1)),
            Event(1.0, "kill", ("abc"[seed % 3], 0.3)),
            Event(2.0, "power", ("@mirror", 0.3)),
        ),
    )


@pytest.mark.long
def test_a_machine_that_was_set_back_comes_in_again_and_costs_nothing() -> None:
    """Whatever it had answered for since: it notices, is another Raft member, and its copies are filled up. By all
    checks; a disk log and one in memory."""
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        found = attempt(set_back(seed))
        assert not isinstance(found, Failure), found.reason
        counts += found
    assert counts["operator: restored"] == counts["branch: a disk was set back"] == SEEDS
    assert not counts["confirmed and reported as lost"]
