"""Confirm levels below `all`: what the simulator holds them to, by plans in which one thing happens at a time."""

from __future__ import annotations

from collections import Counter

import pytest

from mirrorlog.ha.group_transfer import ALL_MEMBERS, Progress
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan

SEEDS = 4
ALONE = (Event(1.0, "isolate", ("@master", "nodes", 2.0)), Event(6.0, "isolate", ("@master", "nodes", 2.0)))
"""A master goes on without its mirrors until it notices, and is replaced."""


def masters_alone(seed: int) -> Plan:
    return Plan(
        seed=f"levels {seed}",
        kind="by hand",
        nodes=3,
        copies=3,
        min_in_sync=0,
        logs=("memory",),
        seconds=8.0,
        unit_bytes=512,
        ordered_names=True,
        forgets=False,
        events=ALONE,
    )


@pytest.mark.long
def test_a_master_that_is_cut_off_costs_only_what_it_alone_had() -> None:
    """By producers at every level; what is missing was confirmed by one copy, and something is."""
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        found = attempt(masters_alone(seed))
        assert not isinstance(found, Failure), found.reason
        counts += found
    assert counts["fault: isolate"] == 2 * SEEDS
    assert counts["confirmed below all and lost"]


@pytest.mark.long
def test_a_level_that_is_answered_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By taking the master's own copy for as many as any level below `all` asks for, and saying so in the receipt."""
    reached_by = Progress.reached_by

    def by_the_master(self: Progress, copies: int, durability: int) -> int:
        return reached_by(self, copies if copies == ALL_MEMBERS else 1, durability)

    monkeypatch.setattr(Progress, "reached_by", by_the_master)
    monkeypatch.setattr(Progress, "copies_of", lambda self, end, durability: 3)
    failures = [found for seed in range(SEEDS) if isinstance(found := attempt(masters_alone(seed)), Failure)]
    assert any("below all" in failure.reason for failure in failures), [failure.reason for failure in failures]
