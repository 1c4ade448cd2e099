"""A node's events: a bounded ring, and watchers that wait for the next one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlog import versions
from mirrorlog.broker.membership import events as events_module
from mirrorlog.broker.membership.events import KEPT_MAX, EventRing
from mirrorlog.broker.session.operator_requests import Operations
from mirrorlog.cluster.coordination.liveness import Change, Life
from mirrorlog.cluster.decisions import asked_by
from mirrorlog.cluster.raft.messages import EntryKind, Members, RaftEntry, Snapshot
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    LogMade,
    NodeJoined,
    NodeStarted,
    Promoted,
    Seen,
    StartKind,
)
from mirrorlog.cluster.state.machine import Machine
from mirrorlog.cluster.state.state import ClusterState, encode_state
from mirrorlog.cluster.state.topology_commands import PermissionsSet, UserRemoved, UserSet, VirtualHostMade
from mirrorlog.errors import Overloaded
from mirrorlog.wire.messages.operators import Events, GetEvents

WAIT_S = 10.0
HASH = "no real one"


class Watched:
    """A ring, a clock that stands still, and a cluster's log."""

    def __init__(self, *, known_to: int = 0, version: int = versions.FIRST) -> None:
        self.now_us = 1_000_000
        self.ring = EventRing(now_us=lambda: self.now_us, known_to=known_to)
        self._machine = Machine(
            Snapshot(0, 0, Members((1,)), encode_state(ClusterState("id", "testing", cluster_version=version)))
        )

    def decide(self, *commands: Command) -> None:
        for command in commands:
            entry = RaftEntry(self._machine.index + 1, 1, EntryKind.COMMAND, encode_command(command))
            for step in self._machine.apply([entry]):
                self.ring.applied(step)

    def down(self, node: str) -> None:
        self.ring.life_changed(Change(node, Life.DOWN, "1", "refused"))

    def mastered(self) -> None:
        for node in "ab":
            self.decide(NodeJoined(node=node, addresses=Addresses()))
            self.decide(NodeStarted(node=node, start_id="1", kind=StartKind.CLEAN, addresses=Addresses()))
        self.decide(LogMade(log_id="log", number=0, name="main", flush="memory", replicas=("a", "b")))
        self.decide(Promoted(log_id="log", seen=self.seen, holder=Holder("a", "1"), epoch=1))

    @property
    def seen(self) -> Seen:
        return self.state.logs["log"].seen

    @property
    def state(self) -> ClusterState:
        return self._machine.state


def test_events_are_numbered_and_read_from_any_of_them() -> None:
    """By reading all, those behind one, and a few."""
    watched = Watched()
    assert (watched.ring.first, watched.ring.last, watched.ring.behind(0)) == (1, 0, [])
    for node in "abcd":
        watched.down(node)
    assert [event.node for event in watched.ring.behind(0)] == list("abcd")
    assert [event.number for event in watched.ring.behind(2)] == [3, 4]
    assert [event.number for event in watched.ring.behind(0, limit=2)] == [1, 2]
    assert watched.ring.behind(4) == watched.ring.behind(99) == []


def test_the_oldest_are_forgotten() -> None:
    """And who comes late is told where it begins; by more events than are kept."""
    watched = Watched()
    for _ in range(KEPT_MAX + 5):
        watched.down("a")
    assert (watched.ring.first, watched.ring.last) == (6, KEPT_MAX + 5)
    assert watched.ring.behind(0)[0].number == 6
    assert watched.ring.behind(KEPT_MAX + 4)[0].number == KEPT_MAX + 5


def test_what_was_decided_before_the_run_has_no_time() -> None:
    """Nobody knows when that was; by entries that the disk held at the start."""
    watched = Watched(known_to=1)
    watched.decide(NodeJoined(node="a", addresses=Addresses()), NodeJoined(node="b", addresses=Addresses()))
    assert [event.time_us for event in watched.ring.behind(0)] == [0, watched.now_us]


def test_a_failover_says_how_long_it_took() -> None:
    """From the moment at which the master was seen to go; by its death and a promotion 90 ms later."""
    watched = Watched()
    watched.mastered()
    watched.down("a")
    watched.now_us += 90_000
    watched.decide(
        Promoted(log_id="log", seen=watched.seen, holder=Holder("b", "1"), epoch=2, unclean=True, lost_from=0)
    )
    promoted = watched.ring.behind(0)[-2]
    assert promoted.details["duration_ms"] == 90
    assert promoted.text.endswith("unclean, 90 ms after the one before was gone")


def test_a_handover_has_no_death_to_count_from() -> None:
    """By a master that was down once, and is there again."""
    watched = Watched()
    watched.mastered()
    watched.down("a")
    watched.ring.life_changed(Change("a", Life.UP, "1", "heard"))
    watched.decide(
        Promoted(log_id="log", seen=watched.seen, holder=Holder("b", "1"), epoch=2, unclean=True, lost_from=0)
    )
    assert "duration_ms" not in watched.ring.behind(0)[-2].details


def test_a_watcher_hears_of_the_next_event_at_once() -> None:
    """And one that has not seen all does not wait; by events before, during and after a wait."""

    async def run() -> None:
        watched = Watched()
        watched.down("a")
        async with asyncio.timeout(WAIT_S):
            await watched.ring.wait(0, WAIT_S)
            waiting = asyncio.ensure_future(watched.ring.wait(1, 2 * WAIT_S))
            await asyncio.sleep(0)
            assert not waiting.done()
            watched.down("b")
            await waiting
            await watched.ring.wait(2, 0.001)
        assert watched.ring.last == 2

    asyncio.run(run())


def test_watchers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are answered, not absorbed, and a place is free when one is gone; by one more than may wait."""
    monkeypatch.setattr(events_module, "WATCHERS_MAX", 2)

    async def run() -> None:
        watched = Watched()
        waiting = [asyncio.ensure_future(watched.ring.wait(0, WAIT_S)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 watchers"):
            await watched.ring.wait(0, WAIT_S)
        waiting[0].cancel()
        await asyncio.gather(*waiting[:1], return_exceptions=True)
        more = asyncio.ensure_future(watched.ring.wait(0, WAIT_S))
        await asyncio.sleep(0)
        watched.down("a")
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(waiting[1], more)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("tags", "reads"), [(("administrator",), True), (("monitoring",), False), ((), False), (None, False)]
)
async def test_who_others_are_and_what_they_may_is_for_administrators(
    tags: tuple[str, ...] | None, reads: bool
) -> None:
    """Goal: who may look at events learns no more of users than who may list them. Method: a user and his rights are
    set; an administrator reads that, others the same numbers and kinds without what they say; no name or expression is
    left in them. What is no matter of users everybody reads."""
    watched = Watched(version=versions.ROUTING)
    watched.decide(
        UserSet(name="payroll", password_hash=HASH, tags=("administrator",)),
        PermissionsSet(user="payroll", virtual_host="/", configure="", write="^salaries", read=""),
        VirtualHostMade(name="v"),
    )
    if tags is not None:
        watched.decide(UserSet(name="asker", password_hash=HASH, tags=tags))
    service: Any = SimpleNamespace(state=watched.state, identity=SimpleNamespace(node="a", start_id="1"))
    operations = Operations(service, watched.ring)
    with asked_by("asker"):
        answer = operations.handlers[GetEvents](GetEvents())
    assert isinstance(answer, Events)
    assert [event.number for event in answer.events] == list(range(1, answer.last + 1))
    assert [event.kind for event in answer.events[:3]] == ["user_set", "permissions_set", "virtual_host_added"]
    told = "".join(f"{event.text}{event.details}" for event in answer.events)
    assert ("payroll" in told, "salaries" in told) == (reads, reads)
    assert "virtual host v was added" in told


async def test_without_users_everybody_reads_all_events() -> None:
    """There is nothing to hide from anybody then: the last user has gone."""
    watched = Watched(version=versions.ROUTING)
    watched.decide(UserSet(name="ann", password_hash=HASH, tags=("administrator",)), UserRemoved(name="ann"))
    service: Any = SimpleNamespace(state=watched.state, identity=SimpleNamespace(node="a", start_id="1"))
    answer = Operations(service, watched.ring).handlers[GetEvents](GetEvents())
    assert isinstance(answer, Events)
    assert "user ann was deleted" in answer.events[-1].text
