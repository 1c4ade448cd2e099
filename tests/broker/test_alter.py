"""Queues whose place is changed while things go on around them: what was looked at may be otherwise by the time that
the cluster decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.membership.cluster_view import NodeView
from mirrorlog.broker.moves.alter_requests import AlterRequests
from mirrorlog.broker.moves.move_service import MoveService
from mirrorlog.broker.session.queue_requests import Requests
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    LogMade,
    MoveBegun,
    MoveCancelled,
    MovingPaused,
    Promoted,
    QueuesMoved,
    QueuesPlaced,
)
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.placements import Placement
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, Outcome
from mirrorlog.cluster.state.topology import ClusterTopology, VirtualHost
from mirrorlog.errors import MirrorlogError, NotMaster, QueueMoving, Refused
from mirrorlog.queues.changes import QueueHandedOver, encode_change
from mirrorlog.queues.moving import leave
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import AlteredQueue, AlterQueue, DeclareQueue
from tests.broker.test_moving import Log
from tests.ha.replicas import settings_of

SETTINGS = settings_of("n0", ["n0"])
HERE = str(UUID(int=0xA))
"""The log that node n0 masters: two copies in memory."""
CLUSTER_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"


class Publisher(LogPublisher):
    """Confirms at once; `before`: what happens in the wait for it."""

    stopping = False

    def __init__(self, log: Log) -> None:
        self._of = log
        self.before: Callable[[], None] = lambda: None

    def append_change(self, batch: bytearray, done: Any) -> None:
        self._of.say(batch)
        self.when_confirmed(done)

    def append_control(self, batch: bytearray) -> None:
        self._of.say(batch)

    def when_confirmed(self, done: Any) -> None:
        before, self.before = self.before, lambda: None
        before()
        self._of.confirm()
        done(None)


class Node:
    """n0 of a cluster of two, whose state is here: it decides as the cluster does, in an instant. `deciding`: what
    happens before the next decision."""

    def __init__(self, path: Path) -> None:
        nodes = {name: NodeFacts(number, Addresses(), start_id="run") for number, name in enumerate(["n0", "n1"], 1)}
        hosts = ClusterTopology(virtual_hosts={"/": VirtualHost()})
        self.state = ClusterState(CLUSTER_ID, "c", nodes=nodes, homes=False, cluster_version=6, topology=hosts)
        self.deciding: Callable[[], None] = lambda: None
        self.decided: list[Command] = []
        self.view = NodeView()
        service: Any = self
        self.view.service = service
        self.identity = SimpleNamespace(node="n0", start_id="run")
        self.registration = SimpleNamespace(is_in=True)
        self.decisions = self
        self.expected = self.state
        rule = Placement(copies=2)
        self.apply(LogMade(log_id=HERE, number=1, name="here", flush="memory", replicas=("n0", "n1"), copies=2,
                           placement=rule))  # fmt: skip
        facts = self.state.logs[HERE]
        self.apply(Promoted(log_id=HERE, seen=facts.seen, holder=Holder("n0", "run"), epoch=1))
        self.log = Log(path, 1, Random(1), epoch=1)
        self.publisher = Publisher(self.log)
        self.hosted = cast(
            HostedLog,
            SimpleNamespace(
                log_id=UUID(HERE), name="here", state=HostedState.MASTER, masters=True, knows_confirmed=True,
                assignment=SimpleNamespace(log_number=1), replica=self.log.replica, publisher=self.publisher,
                deliverer=SimpleNamespace(flush_queue=lambda queue_id: None, end_queue=lambda queue_id, error: None),
                fetcher=SimpleNamespace(end_queue=lambda queue_id, error: None),
            ),
        )  # fmt: skip
        self.logs = HostedLogs()
        self.logs.add(self.hosted)
        self.logs.spans_of = self.view.spans
        self.requests = Requests(SETTINGS, self.logs, self.view, cast(Any, None))
        self.alterations = AlterRequests(self.requests, self.view)
        self.requests.handlers |= self.alterations.handlers
        self.moves = MoveService("n0", self.logs, self.view)

    # --- the cluster ---

    def life(self, node: str) -> Life:
        return Life.UP

    def apply(self, command: Command) -> Outcome:
        self.state, outcome = applied(self.state, self.state.version + 1, command)
        self.decided.append(command)
        return outcome

    async def decide_once(self, command: Command) -> Outcome:
        deciding, self.deciding = self.deciding, lambda: None
        await asyncio.sleep(0)
        deciding()
        return self.apply(command)

    async def decide(self, command: Command, *, timeout_s: float) -> Outcome:
        return await self.decide_once(command)

    # --- queues ---

    def declare(self, name: str, **arguments: Any) -> int:
        """As if it was placed and declared before."""
        group = arguments.get("x-log-group", "")
        self.apply(QueuesPlaced(log_id=HERE, names=(name,), log_group=group))
        queue_id = self.log.declare(name, **arguments)
        self.log.confirm()
        return queue_id

    async def ask(self, message: Message) -> Any:
        """The answer. Raises MirrorlogError."""
        answered = asyncio.get_running_loop().create_future()
        self.requests.handle(message, answered.set_result)
        async with asyncio.timeout(5):
            answer = await answered
        if isinstance(answer, MirrorlogError):
            raise answer
        return answer

    async def alter(self, name: str, **arguments: Any) -> AlteredQueue:
        answer = await self.ask(AlterQueue(name=name, arguments=arguments))
        assert isinstance(answer, AlteredQueue)
        return answer

    def arguments(self, name: str) -> dict[str, Any]:
        return self.log.replica.queues.find(name).arguments


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path / "log")
    yield made
    await made.moves.stop()
    made.log.replica.close()


async def test_a_queue_that_is_alone_in_its_log_takes_the_log_along(node: Node) -> None:
    node.declare("q")
    assert (await node.alter("q", copies=1)).copies_change
    assert (node.state.rule(HERE), node.arguments("q")) == (Placement(copies=1), {"copies": 1})
    assert not node.state.placing.moves


@pytest.mark.parametrize("when", ["logged", "decided"])
async def test_a_log_that_gets_another_queue_meanwhile_keeps_its_rule(node: Node, when: str) -> None:
    """Goal: nobody's queue gets other copies that did not ask for it. Method: another queue is placed in the log while
    the first one's arguments are on their way to all copies, or while its new log is made: it moves then, alone."""
    node.declare("q")
    if when == "logged":
        node.publisher.before = lambda: node.declare("late") and None
        assert (await node.alter("q", copies=1)).moves
    else:
        node.declare("early")
        node.deciding = lambda: node.declare("late") and None
        assert (await node.alter("q", copies=1)).moves
    assert node.state.rule(HERE) == Placement(copies=2)
    assert set(node.state.placing.moves) == {"q"}
    assert node.arguments("late") == {}


async def test_a_queue_that_joins_the_group_while_it_is_altered_comes_along(node: Node) -> None:
    node.declare("q", **{"x-log-group": "g"})
    node.declare("other")
    node.publisher.before = lambda: node.declare("late", **{"x-log-group": "g"}) and None
    assert sorted((await node.alter("q", copies=1)).queues) == ["late", "q"]
    assert set(node.state.placing.moves) == {"q", "late"}
    assert node.arguments("late")["copies"] == 1


async def test_a_move_that_would_tear_a_group_is_cancelled_before_anything_left(node: Node) -> None:
    """Goal: the queues of a group stay together, whichever moment one is declared in. Method: one joins between the
    last look and the decision."""
    node.declare("q", **{"x-log-group": "g"})
    node.declare("other")
    # The log for one copy is there already, so nothing else is decided.
    target = str(await node.view.wanted_log("q", {"copies": 1}, UUID(HERE), make=True))
    node.deciding = lambda: node.declare("late", **{"x-log-group": "g"}) and None
    await node.alter("q", copies=1)
    assert set(node.state.placing.moves) == {"q"}
    node.moves.ask_there = lambda asked, kind: asyncio.sleep(0)  # type: ignore[method-assign, assignment]  # it is ready
    async with asyncio.timeout(5):
        while node.state.placing.moves:
            node.moves.soon()
            await asyncio.sleep(0)
    assert isinstance(node.decided[-1], MoveCancelled)
    assert not node.log.replica.queues.moves.left
    assert node.state.queues == dict.fromkeys(("q", "other", "late"), HERE)
    assert target in node.state.logs


async def test_who_declares_into_a_group_that_moves_is_told_to_ask_again(node: Node) -> None:
    """Goal: a client repeats it, and the queue comes to the others. Method: the queue has a place from before the
    group moved, or none; once the group is elsewhere, it is placed there."""
    node.declare("q", **{"x-log-group": "g"})
    node.declare("other")
    node.apply(QueuesPlaced(log_id=HERE, names=("placed",), log_group="g"))
    await node.alter("q", copies=1)
    move = node.state.placing.moves["q"]
    for name in ("placed", "new"):
        with pytest.raises(QueueMoving, match="are moving to another log"):
            await node.ask(DeclareQueue(name=name, arguments={"x-log-group": "g"}))
    assert not node.apply(QueuesMoved(number=move.number, first={"q": 0})).refusal
    for name in ("placed", "new"):
        with pytest.raises(NotMaster):  # the node that has it answers
            await node.ask(DeclareQueue(name=name, arguments={"x-log-group": "g"}))
        assert node.state.queues[name] == move.target


async def test_a_queue_that_has_just_left_is_altered_where_it_is(node: Node) -> None:
    """Goal: whoever changes a queue's place in the moment of its move is told to ask again, and not that it is done or
    that there is no such queue. Method: it leaves while its arguments are logged; then it has left; then it is handed
    over, and placed elsewhere."""
    queue_id = node.declare("q")
    node.declare("other")
    queues = node.log.replica.queues
    node.publisher.before = lambda: node.log.say(leave(queues, queue_id, 9, "there", next_queue_offset=0)) and None
    for _ in range(2):
        with pytest.raises(QueueMoving):
            await node.alter("q", copies=1)
    await begin_move(node, "q")
    node.log.say(encode_change(QueueHandedOver(queue_id=queue_id, move=9)))
    with pytest.raises(NotMaster):
        await node.alter("q", copies=1)
    assert node.state.queues["q"] != HERE


async def begin_move(node: Node, name: str) -> None:
    """And end it at once, in the cluster alone."""
    target = str(await node.view.wanted_log(name, {"copies": 1}, UUID(HERE), make=True))
    assert not node.apply(MoveBegun(names=(name,), target=target)).refusal
    assert not node.apply(QueuesMoved(number=node.state.placing.moves[name].number, first={name: 0})).refusal


async def test_a_move_that_would_be_refused_changes_nothing(node: Node) -> None:
    """Not its arguments either: they would lead it away later."""
    node.declare("q")
    node.declare("other")
    node.apply(MovingPaused(paused=True))
    with pytest.raises(Refused, match="moving is paused"):
        await node.alter("q", copies=1)
    assert node.arguments("q") == {}
