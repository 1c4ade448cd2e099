"""The checkers can fail: bugs put into real nodes are found, each by a plan that gives it an opportunity."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorlog.broker.log.replica import Replica
from mirrorlog.cluster.coordination.promotion import FenceReport, Promotion
from mirrorlog.cluster.state import log_rules, machine
from mirrorlog.cluster.state.commands import Promoted
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.ha import client as ha_client
from mirrorlog.ha.group_transfer import Progress
from mirrorlog.queues.changes import OffsetsJumped, encode_change
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan
from sim.disk import SimulatedFile
from sim.nodes import SMALL

SEEDS = 12

MASTER_CUT_OFF = (Event(0.5, "isolate", ("@master", "nodes", 2.0)),)
BLACKOUT = (Event(1.0, "blackout", (0.2,)), Event(1.9, "blackout", (0.2,)))
GROWING = (Event(0.3, "kill", ("b", 0.5)), Event(0.6, "doubt", (4.0, 3.0)))
STALE_MIRROR = (Event(0.2, "isolate", ("@mirror", "all", 2.5)), Event(2.71, "power", ("@master", 1.0)))


def caught(
    *events: Event,
    nodes: int = 3,
    copies: int = 3,
    flush: str = "memory",
    by: tuple[str, ...],
    begin: int = 0,
    beside: str = "",
) -> bool:
    """Whether one of those checks finds something in the first schedules. `begin`: the first that is tried, since it is
    known to find it. `beside`: what the bug leads to as well, and no check of it: such a schedule does not count."""
    for seed in range(begin, SEEDS):
        found = attempt(_plan(seed, events, nodes, min(copies, nodes), flush))
        if isinstance(found, Failure):
            if any(check in found.reason for check in by):
                return True
            assert beside, found.reason
            assert beside in found.reason, found.reason
    return False


def _plan(seed: int, events: tuple[Event, ...], nodes: int, copies: int, flush: str) -> Plan:
    return Plan(
        seed=f"seeded {seed}",
        kind="by hand",
        nodes=nodes,
        copies=copies,
        min_in_sync=0,
        logs=(flush,),
        seconds=3.0,
        unit_bytes=512,
        ordered_names=True,
        forgets=False,
        events=events,
    )


def test_nothing_is_found_without_a_bug() -> None:
    """By the same plans, with nothing put in."""
    for events, nodes, copies, flush in (
        (MASTER_CUT_OFF, 3, 3, "memory"),
        (STALE_MIRROR, 3, 3, "memory"),
        (GROWING, 5, 2, "memory"),
        (BLACKOUT, 1, 1, "disk"),
        (BLACKOUT, 1, 1, "memory"),
    ):
        found = attempt(_plan(0, events, nodes, copies, flush))
        assert not isinstance(found, Failure), found.reason


@pytest.mark.long
def test_a_confirm_before_the_ack_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By taking what the master holds for what everybody holds."""
    monkeypatch.setattr(Progress, "_everywhere", lambda self, durability: self._held[self._own].at(durability))
    assert caught(*MASTER_CUT_OFF, by=("nothing confirmed is", "readers see what stays", "the cluster is not whole"))


def test_a_stale_mirror_that_is_promoted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By promoting the copy that holds least, of all that there are."""

    def rank(self: Promotion, node: str, *, stays: bool) -> tuple[int, int]:
        report: FenceReport = self._reports[node]
        return -report.last_epoch, -report.end

    monkeypatch.setattr(Promotion, "_rank", rank)
    monkeypatch.setattr(Promotion, "asked", property(lambda self: self.log.replicas))
    monkeypatch.setitem(machine.HANDLERS, Promoted, _promoted_as_if_in_sync)
    assert caught(
        *STALE_MIRROR,
        by=("nothing confirmed is", "readers see what stays", "losses have a reason", "the cluster is not whole"),
    )


def _promoted_as_if_in_sync(before: ClusterState, index: int, command: Promoted) -> ClusterState:
    log = before.logs[command.log_id]
    in_sync = {**log.in_sync, command.holder.node: command.holder.start_id}
    taken_in = replace(before, logs={**before.logs, command.log_id: replace(log, in_sync=in_sync)})
    return log_rules.promoted(taken_in, index, command)


@pytest.mark.long
def test_a_set_that_grows_without_the_union_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By not waiting for a copy that is proposed; the master is cut off when the cluster has let it in, and confirms
    without it."""
    gather = Progress._gather

    def without_the_proposed(self: Progress) -> None:
        gather(self)
        self._waited = list(self._proved.values())

    monkeypatch.setattr(Progress, "_gather", without_the_proposed)
    by = ("nothing confirmed is", "readers see what stays", "the cluster is not whole")
    assert caught(*GROWING, nodes=5, copies=2, by=by)


@pytest.mark.long
def test_an_epoch_that_is_not_looked_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By taking the shorter of two copies for what both have in common, whoever wrote it."""
    monkeypatch.setattr(ha_client, "common_point", lambda own, own_end, other, other_end: min(own_end, other_end))
    assert caught(*MASTER_CUT_OFF, by=("same offset, same byte", "copies read the same", "the cluster is not whole"))


def test_an_fsync_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By syncing no segment, in a log that is confirmed from disk."""
    sync = SimulatedFile.fdatasync

    def fdatasync(self: SimulatedFile) -> None:
        if self.size() < SMALL["log"]["segment_bytes"]:
            sync(self)

    monkeypatch.setattr(SimulatedFile, "fdatasync", fdatasync)
    # Mostly the node sees that its disk lacks what it had flushed, and does not lead: that is right.
    by = ("nothing confirmed is", "losses have a reason")
    assert caught(*BLACKOUT, nodes=1, flush="disk", by=by, begin=4, beside="log main has no master")


def test_queue_offsets_that_do_not_leap_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By numbering records anew behind a loss, as if nobody had seen those that are gone."""

    def jump_batch(self: Replica, *, lost_from: int, queue_ids: int = 0, losses: object = ()) -> bytearray:
        highest = self.index.next_highest()
        return encode_change(OffsetsJumped(epoch=self.log.epochs.current, lost_from=lost_from, go_on_at=highest))

    monkeypatch.setattr(Replica, "jump_batch", jump_batch)
    assert caught(
        *BLACKOUT, nodes=1, by=("queue offsets are never reused", "readers see what stays", "nothing confirmed is")
    )
