"""Logs whose rule says `always`, in whole clusters: what is lost is declared, what need not be lost is not, and with
`when-synced` nothing is. And that this would be found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from msgspec import structs

from mirrorlog.cluster.coordination.coordinator import Coordinator
from mirrorlog.cluster.state import log_rules, machine
from mirrorlog.cluster.state.commands import Promoted
from mirrorlog.cluster.state.placements import PROMOTE_ON_FAILURE
from mirrorlog.cluster.state.state import ClusterState
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import ALWAYS_KINDS, Event, Plan, draw
from tests.sim.seeded import found_in, small_plan

SEEDS = 4
PROMOTED = "branch: a copy is promoted by a rule"
DECLARED = "branch: a loss is declared"


def stranded(how: str, *, always: bool, seed: int = 0, gone_s: float = 3.0) -> Plan:
    """The master of a log of two copies is hit when its mirror, which is just back, lacks half a second of records."""
    events = (Event(0.5, "strand", (how, 0.5, gone_s)),)
    return replace(small_plan(f"stranded {seed}", events, seconds=4.0, always=always), copies=2, min_in_sync=1)


def come_through(plan: Plan) -> Counter[str]:
    found = attempt(plan)
    assert not isinstance(found, Failure), found.reason
    return found


@pytest.mark.long_after(1)
@pytest.mark.parametrize("how", ["kill", "power", "isolate", "drain"])
def test_a_copy_that_is_left_goes_on_and_says_what_may_be_lost(how: str) -> None:
    """Whatever becomes of the master, and though it comes back later; by all checks of records, readers and losses."""
    found = come_through(stranded(how, always=True))
    assert found[PROMOTED]
    assert found[DECLARED]
    assert found["branch: queue offsets leap"]
    assert found["confirmed and reported as lost"]


@pytest.mark.long_after(1)
@pytest.mark.parametrize("how", ["kill", "isolate", "stop", "drain"])
def test_without_the_word_the_log_waits_for_its_master(how: str) -> None:
    """By the same plans: nothing is promoted that lacks something, and nothing is lost."""
    found = come_through(stranded(how, always=False))
    assert found["fault: strand"]
    assert not found[PROMOTED]
    assert not found[DECLARED]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    [
        "always: anything",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("always: falling masters", "always: power")),
    ],
)
def test_logs_that_accept_a_loss_come_through_any_storm(kind: str) -> None:
    """A few schedules of each kind; all checks hold, and copies are promoted by their rule."""
    assert kind in ALWAYS_KINDS
    total = Counter[str]()
    for seed in range(1, 1 + SEEDS):
        total += come_through(draw(seed, kind=kind))
    assert total[PROMOTED]


def test_a_promotion_while_somebody_has_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a coordinator that goes by the rule as soon as a master is gone, though mirrors are in sync and up."""
    monkeypatch.setattr(
        Coordinator, "_by_policy", lambda self, log_id, log, state, seen: PROMOTE_ON_FAILURE if log.epoch else ""
    )
    plan = small_plan("hasty", (Event(0.5, "kill", ("@master", 1.0)),), always=True)
    assert found_in((plan,), ("nothing is given up that somebody has",))


def test_a_loss_that_is_not_declared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rule that promotes what lacks something and writes no loss down."""

    def silent(state: ClusterState, index: int, command: Promoted) -> ClusterState:
        after = log_rules.promoted(state, index, command)
        if not command.by:
            return after
        losses = state.logs[command.log_id].losses
        log = structs.replace(after.logs[command.log_id], losses=losses)
        return structs.replace(after, logs={**after.logs, command.log_id: log})

    monkeypatch.setitem(machine.HANDLERS, Promoted, silent)
    by = ("nothing confirmed is lost", "the cluster is not whole", "readers see what stays", "nothing is confirmed")
    assert found_in((stranded("kill", always=True, seed=seed) for seed in range(SEEDS)), by)
