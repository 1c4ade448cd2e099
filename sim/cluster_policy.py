"""Logs of a simulated cluster whose rule says `always`: who sets it, and what was given up by it.

What is given up is noted as it is decided, with what the log was before. The check is from outside: by what had
befallen the nodes that had everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

from mirrorlog import versions
from mirrorlog.cluster.state import machine as rules
from mirrorlog.cluster.state.commands import Command, LogAltered, MovingPaused, Promoted
from mirrorlog.cluster.state.placements import ALWAYS, PROMOTES, Placement
from mirrorlog.cluster.state.state import ClusterState, Outcome
from sim.cluster_faults import SimulatedCluster
from sim.cluster_plan import Plan
from sim.cluster_troubles import Troubles

ALTER_S: Final = 0.2
SEEN_S: Final = 3.0
"""Who is gone is seen to be so within that; then he is waited for (`promote_always_after_ms`)."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """At that time, in s of the run, a copy was promoted by a key of the log's rule. `whole`: who had everything then,
    as the cluster knew it."""

    at: float
    log: str
    epoch: int
    key: str
    whole: tuple[str, ...]


@dataclass(slots=True)
class Policies:
    """All that was given up, in order."""

    now: Callable[[], float]
    given_up: list[GivenUp] = field(default_factory=list)
    _index: int = 0

    def applied(self, index: int, command: Command, before: ClusterState, after: ClusterState) -> None:
        """An entry was, by some node, maybe not for the first time."""
        if index <= self._index:
            return
        self._index = index
        if isinstance(command, Promoted) and command.by and before is not after:
            log = before.logs[command.log_id]
            self.given_up.append(GivenUp(self.now(), log.name, command.epoch, command.by, log.promotable))


@contextmanager
def noted(policies: Policies) -> Iterator[None]:
    """Every decision is noted meanwhile."""
    original = rules.applied

    def applied(state: ClusterState, index: int, command: Command) -> tuple[ClusterState, Outcome]:
        after, outcome = original(state, index, command)
        policies.applied(index, command, state, after)
        return after, outcome

    with patch.object(rules, "applied", applied):
        yield


async def accept_losses(cluster: SimulatedCluster, plan: Plan) -> None:
    """All logs are by a rule that says `always`, before this returns. Their queues ask for nothing of the kind, and
    shall stay all the same: nothing moves."""
    while (state := cluster.decided()) is None or state.cluster_version < versions.PLACEMENTS:  # noqa: ASYNC110
        await asyncio.sleep(ALTER_S)
    while (now := cluster.decided()) is None or not now.placing.paused:
        cluster.present[0].propose(MovingPaused(paused=True))
        await asyncio.sleep(ALTER_S)
    for log_id, log in state.logs.items():
        rule = Placement(
            copies=plan.copies,
            flush=log.flush,
            min_in_sync=plan.min_in_sync or None,
            promote_on_shutdown=ALWAYS,
            promote_on_failure=ALWAYS,
        )
        while (now := cluster.decided()) is None or now.rule(log_id) != rule:
            if now is not None:
                cluster.present[0].propose(LogAltered(log_id=log_id, seen=now.logs[log_id].seen, placement=rule))
            await asyncio.sleep(ALTER_S)


def nothing_is_given_up_that_somebody_has(policies: Policies, troubles: Troubles, plan: Plan, after_s: float) -> None:
    """A copy that may lack something is promoted by a key of a rule that says so, and only where each of those who had
    everything was in trouble, for as long as he is waited for. Raises AssertionError."""
    for each in policies.given_up:
        says_so = plan.always and each.key in PROMOTES
        assert says_so, f"nothing is given up without a rule that says so: {each}"
        hit = {trouble.node for trouble in troubles.between(each.at - after_s - SEEN_S, each.at)}
        there = [node for node in each.whole if node not in hit]
        assert not there, f"nothing is given up that somebody has: {each}; nothing had befallen {', '.join(there)}"
