"""Syncs that a policy asks for, on the node that masters the queue's log: each begins when it should, whoever was to
begin it before, and one that gets nowhere begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from mirrorlog.broker.moves.sync_service import (
    AUTOMATIC_LOOK_S,
    CANCELLED,
    HANGS_S,
    LOOK_S,
    RESTART_MAX_S,
    SyncService,
)
from mirrorlog.cluster.state.commands import LogMade, MoveBegun, QueuesMoved, QueuesPlaced, QueueSyncWished
from mirrorlog.cluster.state.events import Event, line_of
from mirrorlog.cluster.state.placements import Placement
from mirrorlog.errors import LogUnavailable
from mirrorlog.ha.pace import MovePace
from mirrorlog.queues.changes import QueueGoverned, encode_change
from mirrorlog.versions import OWN
from tests.broker.test_alter import HERE, Node

THERE = "00000000-0000-0000-0000-00000000000b"
"""The log that queues come from."""
AUTOMATIC = {"copies": 2, "ha-sync-mode": "automatic"}
MANUAL = {"copies": 2, "ha-sync-mode": "manual"}


class Syncs:
    """Of n0. `asked`: what comes of the next question to the former log, in place of its records."""

    def __init__(self, node: Node) -> None:
        self.node = node
        takes: Any = node.publisher
        takes.data_refused, takes.check_admitted = "", lambda: None
        self.asked: Callable[[], Awaitable[Any]] = never
        self.told: list[Event] = []
        self.questions = 0
        self.service = self._made()

    def _made(self) -> SyncService:
        return SyncService(
            self.node.logs, self.node.view, records=cast(Any, self), pace=MovePace(0), log_bytes_max=None,
            tell=self.told.append,
        )  # fmt: skip

    async def ask(self, asked: Any, kind: Any) -> Any:
        self.questions += 1
        return await self.asked()

    def restarted(self) -> None:
        """The node, or another one masters the log: nothing is remembered."""
        self.service = self._made()

    def comes(self, name: str, **holds: Any) -> None:
        """A queue has come here from a former log, in which it has records; that holds for it by a policy."""
        node = self.node
        assert not node.apply(QueuesPlaced(log_id=THERE, names=(name,))).refusal
        assert not node.apply(MoveBegun(names=(name,), target=HERE)).refusal
        number = node.state.placing.moves[name].number
        assert not node.apply(QueuesMoved(number=number, first={name: 10})).refusal
        queue_id = self.node.log.declare(name)
        self.node.log.replica.queues.moves.firsts[queue_id] = 10
        self.governs(name, **holds)

    def governs(self, name: str, **holds: Any) -> None:
        queue_id = self.node.log.replica.queues.find(name).queue_id
        said = QueueGoverned(queue_id=queue_id, version=1, policy="p", operator_policy="", arguments=holds)
        self.node.log.say(encode_change(said))
        self.node.log.confirm()

    async def passes(self, seconds: float) -> None:
        """So long at once, and a look behind it."""
        for step_s in (seconds, 2 * LOOK_S):
            self.node.now += step_s
            self.service.tick(self.node.now)
            for _ in range(20):  # what it asks for comes to its end
                await asyncio.sleep(0)

    @property
    def wished(self) -> list[str]:
        return list(self.node.state.placing.syncs)


async def never() -> Any:
    await asyncio.get_running_loop().create_future()


async def refused() -> Any:
    raise LogUnavailable("nobody masters log there")


async def broken() -> Any:
    raise RuntimeError("a defect")


@pytest.fixture
async def syncs(tmp_path: Path) -> AsyncIterator[Syncs]:
    node = Node(tmp_path / "log")
    node.state = replace(node.state, cluster_version=OWN)
    made = LogMade(
        log_id=THERE, number=2, name="there", flush="memory", replicas=("n1",), copies=1, placement=Placement()
    )
    assert not node.apply(made).refusal
    made_syncs = Syncs(node)
    yield made_syncs
    await made_syncs.service.stop()
    await node.moves.stop()
    node.log.replica.close()


async def test_what_a_policy_wants_copied_is_wished_for_whenever_it_is_seen(syncs: Syncs) -> None:
    """Goal: nothing hangs on the moment of the move. Method: a queue that nobody has wished a sync of, one that has no
    policy, and one whose manual policy becomes automatic; each is looked at by a service that knows of nothing."""
    syncs.comes("automatic", **AUTOMATIC)
    syncs.comes("manual", **MANUAL)
    syncs.comes("free")
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert syncs.wished == ["automatic"]
    syncs.governs("manual", **AUTOMATIC)
    syncs.restarted()
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert syncs.wished == ["automatic", "manual"]
    decided = len(syncs.node.decided)
    await syncs.passes(10 * AUTOMATIC_LOOK_S)
    assert len(syncs.node.decided) == decided, "each once"


async def test_what_was_cancelled_is_not_wished_for_again(syncs: Syncs) -> None:
    """Also by a node that has just begun; it is told why nothing is copied."""
    syncs.asked = refused
    syncs.comes("q", **AUTOMATIC)
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert not syncs.node.apply(QueueSyncWished(name="q", wished=False)).refusal
    syncs.restarted()
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert syncs.wished == []
    told = await syncs.service.told("q")
    assert (told.wished, told.waits) == (False, CANCELLED)
    assert not syncs.node.apply(QueueSyncWished(name="q")).refusal
    assert syncs.wished == ["q"]


async def test_a_wish_that_the_cluster_does_not_take_is_made_again(syncs: Syncs) -> None:
    syncs.comes("q", **AUTOMATIC)

    def away() -> None:
        raise LogUnavailable("no coordinator")

    syncs.node.deciding = away
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert syncs.wished == []
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert syncs.wished == ["q"]


async def test_a_step_that_hangs_is_begun_anew_and_less_and_less_often(syncs: Syncs) -> None:
    """Goal: no answer that never comes holds a sync up for good, and nothing storms. Method: a former log that never
    answers, looked at for hours; each time there is an event that says so."""
    syncs.comes("q", **AUTOMATIC)
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert syncs.questions == 1
    await syncs.passes(HANGS_S / 2)
    assert (syncs.questions, syncs.told) == (1, [])
    await syncs.passes(HANGS_S)
    assert line_of(syncs.told[0]) == (
        "sync_restarted queue=q restarts=1 rest_s=1.0 reason='nothing came of a step within 30 s'"
    )
    for _ in range(2 * 60 * 6):
        await syncs.passes(10)
    assert [event.kind for event in syncs.told] == ["sync_restarted"] * len(syncs.told)
    rests = [event.details["rest_s"] for event in syncs.told]
    assert rests == [min(RESTART_MAX_S, 2.0**number) for number in range(len(rests))]
    assert 15 <= len(rests) <= 22
    assert syncs.questions in (len(rests), len(rests) + 1)


async def test_an_error_that_nobody_expected_ends_no_sync_for_good(syncs: Syncs) -> None:
    """Goal: a defect in one piece is told, and costs neither other queues nor the rest of this one. Method: a former
    log whose first answer is one; another queue is looked at meanwhile; what waits and says why is no restart."""
    syncs.asked = broken
    syncs.comes("q", **AUTOMATIC)
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert (syncs.questions, syncs.told[0].details["reason"]) == (1, "RuntimeError: a defect")
    syncs.asked = refused
    syncs.comes("p", **AUTOMATIC)
    await syncs.passes(AUTOMATIC_LOOK_S)
    await syncs.passes(AUTOMATIC_LOOK_S)
    assert syncs.questions >= 3
    assert {name: each.waits for name, each in syncs.service.progress.items()} == {
        "q": "nobody masters log there",
        "p": "nobody masters log there",
    }
    await syncs.passes(HANGS_S)
    assert len(syncs.told) == 1
