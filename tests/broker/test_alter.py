"""Queues whose place is changed while things go on around them: what was looked at may be otherwise by the time that
the cluster decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.membership.cluster_view import NodeView
from mirrorlog.broker.membership.placing import PlacingSettings
from mirrorlog.broker.moves.alter_requests import AlterRequests, MovingList
from mirrorlog.broker.moves.evening import AGAIN_S, QueueEvening
from mirrorlog.broker.moves.move_service import MoveService
from mirrorlog.broker.moves.wanted_places import AT_ONCE, FIRST_S, REPEATS_PER_MINUTE, UNDER_WAY_MAX, WantedPlaces
from mirrorlog.broker.session.queue_requests import Requests
from mirrorlog.client.operator_admin import all_moves
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.decisions import asked_by
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
from mirrorlog.cluster.state.placements import Placement, Span
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, Outcome
from mirrorlog.cluster.state.topology import ClusterTopology, Permissions, User, VirtualHost
from mirrorlog.cluster.state.topology_commands import PolicySet
from mirrorlog.errors import (
    AccessRefused,
    BadRequest,
    LogUnavailable,
    MirrorlogError,
    NotMaster,
    QueueMoving,
    Refused,
    UnsupportedVersion,
)
from mirrorlog.queues.changes import QueueGoverned, QueueHandedOver, encode_change
from mirrorlog.queues.moving import come_back, leave
from mirrorlog.queues.queue_table import Queue
from mirrorlog.versions import OWN, PLACEMENTS
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import (
    AlteredQueue,
    AlterQueue,
    CancelMove,
    DeclareQueue,
    MoveOfQueue,
    MovesFound,
    Stays,
)
from mirrorlog.wire.policies import Policy
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

    def when_confirmed(self, done: Any, *, on_disk: bool = False) -> None:
        before, self.before = self.before, lambda: None
        before()
        self._of.confirm()
        done(None)


class Node:
    """n0 of a cluster of two, whose state is here: it decides as the cluster does, in an instant. `deciding`: what
    happens before the next decision."""

    def __init__(self, path: Path, placing: PlacingSettings | None = None) -> None:
        nodes = {name: NodeFacts(number, Addresses(), start_id="run") for number, name in enumerate(["n0", "n1"], 1)}
        hosts = ClusterTopology(virtual_hosts={"/": VirtualHost()})
        self.state = ClusterState(CLUSTER_ID, "c", nodes=nodes, homes=False, cluster_version=6, topology=hosts)
        self.deciding: Callable[[], None] = lambda: None
        self.decided: list[Command] = []
        self.now = asyncio.get_running_loop().time()
        self.view = NodeView(placing)
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
        self.logs.spans = self.view.all_spans()
        self.requests = Requests(SETTINGS, self.logs, self.view, cast(Any, None))
        self.alterations = AlterRequests(self.requests, self.view)
        self.requests.handlers |= self.alterations.handlers
        self.moves = MoveService("n0", self.logs, self.view)
        self.wanted = WantedPlaces(
            self.logs,
            self.view,
            lambda log, name: self.alterations.alter(log, name, {}),
            lambda name: name in self.alterations.staying,
        )
        self.evening = QueueEvening("n0", self.logs, self.view)
        self.alterations.stays = self.evening.stays
        self.listed = MovingList(self.logs, self.view, self.moves, self.wanted, evening=self.evening)

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

    async def passes(self, seconds: float) -> None:
        """So long, for what is looked at again and again, a second at a time."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.wanted.tick(self.now)
            for _ in range(20):  # what it asks for comes to its end
                await asyncio.sleep(0)

    def begun(self) -> list[MoveBegun]:
        return [each for each in self.decided if isinstance(each, MoveBegun)]

    async def rows(self) -> list[MoveOfQueue]:
        return (await self.listed.found()).moves

    def arguments(self, name: str) -> dict[str, Any]:
        return self.log.replica.queues.find(name).arguments


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path / "log")
    yield made
    await made.wanted.stop()
    await made.moves.stop()
    made.log.replica.close()


async def test_a_queue_that_is_alone_in_its_log_takes_the_log_along(node: Node) -> None:
    node.declare("q")
    assert (await node.alter("q", copies=1)).copies_change
    assert (node.state.rule(HERE), node.arguments("q")) == (Placement(copies=1), {"copies": 1})
    assert not node.state.placing.moves


@pytest.mark.parametrize(
    ("arguments", "copies"),
    [
        ({"copies": 1}, 1),
        ({"copies": 9}, 2),
        ({"copies": "all"}, 2),
        ({"nodes": ["n0", "zz"]}, 1),
        ({"nodes": ["zz", "yy"]}, 1),
        ({"nodes": ["n1", "n0"]}, 2),
    ],
)
async def test_an_alteration_tells_how_many_copies_there_are_and_will_be(
    node: Node, arguments: dict[str, Any], copies: int
) -> None:
    """Goal: whoever names a node that is not there sees that a copy less is made. Method: a queue with two copies in a
    cluster of two; it is only asked, and nothing is decided."""
    node.declare("q")
    node.decided.clear()
    answer = await node.ask(AlterQueue(name="q", arguments=arguments, dry_run=True))
    assert (answer.copies_before, answer.copies, answer.done) == (2, copies, False)
    assert not node.decided


async def test_all_copies_may_be_asked_for_by_that_word(node: Node) -> None:
    """Goal: nobody has to count the nodes, and what is stored is a number. Method: one copy, and then all of them."""
    node.declare("q", copies=1)
    assert (await node.alter("q", copies="all")).rule == (await node.alter("q", copies=255)).rule
    assert node.arguments("q") == {"copies": 255}
    with pytest.raises(BadRequest, match="'copies' is 'most', it must be a whole number from 1 to 255, or 'all'"):
        await node.alter("q", copies="most")


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


def govern(node: Node, pattern: str, definition: dict[str, Any], queue_ids: Iterable[int]) -> None:
    """A policy is decided, and the log says of these queues that it is theirs."""
    node.state = replace(node.state, cluster_version=OWN)
    policy = Policy(pattern=pattern, definition=definition)
    assert not node.apply(PolicySet(virtual_host="/", name="p", policy=policy)).refusal
    for queue_id in queue_ids:
        name = node.log.replica.queues.find_id(queue_id).name
        holds = node.view.effective(name, node.arguments(name))
        said = QueueGoverned(
            queue_id=queue_id, version=1, policy=holds.policy, operator_policy="", arguments=holds.arguments
        )
        node.log.say(encode_change(said))
    node.log.confirm()


@pytest.mark.parametrize("pattern", ["^q", ""])
async def test_a_log_whose_queues_all_go_the_same_way_goes_instead(node: Node, pattern: str) -> None:
    """Goal: a policy of all queues of a log moves its copies, and no record of any queue to another log. Method: a
    policy of all of them, or of all but one: then they move, one by one."""
    ids = [node.declare(f"q{number}") for number in range(3)]
    other = node.declare("other")
    govern(node, pattern, {"ha-mode": "exactly", "ha-params": 1}, [*ids, *([] if pattern else [other])])
    await node.passes(30)
    if pattern:
        assert node.state.rule(HERE) == Placement(copies=2)
        assert set(node.state.placing.moves) == {"q0", "q1", "q2"}
    else:
        assert node.state.rule(HERE) == Placement(copies=1)
        assert node.begun() == []
        assert await node.rows() == []


THERE = str(UUID(int=0xB))
"""Another log, of node n1."""


def make_there(node: Node, rule: Placement) -> None:
    made = LogMade(log_id=THERE, number=2, name="there", flush="memory", replicas=("n1",), copies=1, placement=rule)
    assert not node.apply(made).refusal


@pytest.mark.parametrize("version", [6, OWN])
async def test_a_log_with_records_that_others_left_keeps_its_rule(node: Node, version: int) -> None:
    """Goal: what was confirmed by two copies keeps two. Method: a queue moves away and leaves records; the one that is
    alone in the log now asks for one copy: it moves."""
    node.state = replace(node.state, cluster_version=version)
    node.declare("q")
    node.declare("left")
    make_there(node, Placement(copies=1))
    assert not node.apply(MoveBegun(names=("left",), target=THERE)).refusal
    number = node.state.placing.moves["left"].number
    assert not node.apply(QueuesMoved(number=number, first={"left": 100})).refusal
    assert (await node.alter("q", copies=1)).moves
    assert node.state.rule(HERE) == Placement(copies=2)


async def test_a_log_that_a_queue_is_on_its_way_to_keeps_its_rule(node: Node) -> None:
    """It goes there for the rule; the one that is alone there yet asks for another, and moves."""
    node.declare("q")
    make_there(node, Placement(copies=1))
    assert not node.apply(QueuesPlaced(log_id=THERE, names=("comes",))).refusal
    assert not node.apply(MoveBegun(names=("comes",), target=HERE)).refusal
    assert (await node.alter("q", copies=1)).moves
    assert node.state.rule(HERE) == Placement(copies=2)


async def test_a_queue_that_moves_to_a_log_while_its_rule_is_changed_finds_it_unchanged(node: Node) -> None:
    """Goal: whoever is decided first counts. Method: a move there begins between the last look and the decision; the
    change is refused, and the queue that asked for it moves instead."""
    node.state = replace(node.state, cluster_version=OWN)
    node.declare("q")
    make_there(node, Placement(copies=1))
    assert not node.apply(QueuesPlaced(log_id=THERE, names=("comes",))).refusal
    node.deciding = lambda: node.apply(MoveBegun(names=("comes",), target=HERE)) and None
    assert (await node.alter("q", copies=1)).moves
    assert (node.state.rule(HERE), set(node.state.placing.moves)) == (Placement(copies=2), {"comes", "q"})


async def test_a_queue_that_joins_the_group_while_it_is_altered_comes_along(node: Node) -> None:
    node.declare("q", **{"x-log-group": "g"})
    node.declare("other")
    node.publisher.before = lambda: node.declare("late", **{"x-log-group": "g"}) and None
    assert sorted((await node.alter("q", copies=1)).queues) == ["late", "q"]
    assert set(node.state.placing.moves) == {"q", "late"}
    assert node.arguments("late")["copies"] == 1


@pytest.mark.parametrize("message", [AlterQueue(name="eve-1", arguments={"copies": 1}), CancelMove(name="eve-1")])
async def test_who_may_not_configure_all_of_a_group_does_not_move_it(node: Node, message: Message) -> None:
    """Goal: a queue is altered, or its move cancelled, by who may configure it, not by who has another one in its
    group; and nobody joins the group of others, which they could not alter any more. Method: eve may configure her
    queues, and ann all."""
    node.declare("payments", **{"x-log-group": "g"})
    node.declare("other")
    users = {
        "eve": User("hash", (), {"/": Permissions(configure="^eve-.*")}),
        "ann": User("hash", (), {"/": Permissions(configure=".*")}),
    }
    node.expected = replace(node.state, topology=ClusterTopology(virtual_hosts={"/": VirtualHost()}, users=users))
    joins = DeclareQueue(name="eve-1", arguments={"x-log-group": "g"})
    with asked_by("eve"), pytest.raises(AccessRefused) as refused:
        await node.ask(joins)
    assert "payments" not in str(refused.value)
    node.declare("eve-1", **{"x-log-group": "g"})
    if isinstance(message, CancelMove):
        with asked_by("ann"):
            await node.ask(AlterQueue(name="payments", arguments={"copies": 1}))
    before = node.state
    with asked_by("eve"), pytest.raises(AccessRefused, match="all queues of the x-log-group"):
        await node.ask(message)
    assert node.state is before
    with asked_by("ann"):
        await node.ask(message)
    assert node.state is not before


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


# --- what is wanted, and what is ---


async def test_a_move_that_was_given_up_is_tried_again_less_and_less_often(node: Node) -> None:
    """Goal: a queue comes to where its arguments lead, though a move came to nothing, and nobody is kept busy by one
    that cannot. Method: each attempt is cancelled at once, for a quarter of an hour; then one is not."""
    node.declare("q")
    node.declare("other")
    await node.alter("q", copies=1)
    for _ in range(900):
        for move in list(node.state.placing.moves.values()):
            assert not node.apply(MoveCancelled(number=move.number)).refusal
        await node.passes(1)
    assert 6 <= len(node.begun()) <= 10, "a pause of 5 minutes at last"
    assert {(each.names, each.target) for each in node.begun()} == {(("q",), node.begun()[0].target)}
    await node.passes(310)
    assert set(node.state.placing.moves) == {"q"}


async def test_what_waits_says_why(node: Node) -> None:
    """While moving is paused, and when it was given up; and nothing is asked of the cluster."""
    node.declare("q")
    node.declare("other")
    await node.alter("q", copies=1)
    node.apply(MoveCancelled(number=node.state.placing.moves["q"].number))
    node.apply(MovingPaused(paused=True))
    node.moves.given_up["q"] = "its last move was given up: no room"
    await node.passes(2)
    (row,) = await node.rows()
    assert (row.stage, row.why, row.reason) == (
        "wanted",
        "asks for copies 1, its log has 2",
        "its last move was given up: no room",
    )
    decided = len(node.decided)
    await node.passes(FIRST_S + 60)
    (row,) = await node.rows()
    assert (row.reason, len(node.decided)) == ("moving is paused", decided)
    node.apply(MovingPaused(paused=False))
    await node.passes(10)
    (row,) = await node.rows()
    assert (row.stage, row.target, row.number) == ("waits", "1-copies-memory-n1", node.state.placing.moves["q"].number)


async def test_many_queues_that_are_astray_go_some_at_a_time(node: Node) -> None:
    """Goal: no storm of moves, and no hour of waiting. Method: fifty queues are in a log that is not as they ask, by
    whatever way, and moves take three seconds: so many are under way at once; each moves once, and then nothing more is
    asked for."""
    for number in range(50):
        node.declare(f"q{number}", copies=1)
    node.declare("other")
    most = 0
    for second in range(90):
        under_way = {each.number for each in node.state.placing.moves.values()}
        most = max(most, len(under_way))
        for number in under_way if second % 3 == 0 else ():
            names = [name for name, each in node.state.placing.moves.items() if each.number == number]
            assert not node.apply(QueuesMoved(number=number, first=dict.fromkeys(names, 0))).refusal
        await node.passes(1)
    assert 1 < most <= UNDER_WAY_MAX
    assert len(node.begun()) == 50
    assert [name for name, log_id in node.state.queues.items() if log_id == HERE] == ["other"]
    assert (await node.rows()) == []


async def test_what_came_to_nothing_is_tried_again_so_many_times_a_minute(node: Node) -> None:
    """Goal: what cannot be done keeps nobody busy, however many want it. Method: fifty queues, each of whose moves is
    cancelled at once."""
    for number in range(50):
        node.declare(f"q{number}", copies=1)
    node.declare("other")
    for second in range(240):
        for move in list(node.state.placing.moves.values()):
            assert not node.apply(MoveCancelled(number=move.number)).refusal
        await node.passes(1)
        assert len(node.begun()) <= 50 + REPEATS_PER_MINUTE * (1 + second // 60)
    assert len(node.begun()) > 50


async def test_so_many_queues_are_looked_at_in_a_turn_of_however_many_logs(node: Node) -> None:
    """Goal: a look stops nobody's work. Method: forty logs of a hundred queues each; each turn so many are looked at,
    and in the end each of them once."""
    looked: list[str] = []
    logs: list[Any] = []
    for number in range(40):
        by_id = {at: Queue(f"q{number}-{at}", at, "i", {}, 0) for at in range(100)}
        queues = SimpleNamespace(by_id=by_id, queue_ids=lambda by_id=by_id: list(by_id))
        logs.append(
            SimpleNamespace(log_id=UUID(int=number), knows_confirmed=True, replica=SimpleNamespace(queues=queues))
        )
    view: Any = SimpleNamespace(
        cluster_version=lambda: OWN, has_heard=lambda: True, is_transient=lambda log_id: False, moves=dict,
        placed=looked.append,
    )  # fmt: skip
    wanted = WantedPlaces(cast(Any, logs), view, node.alterations.alter, lambda name: False)
    for turn in range(1, 9):
        wanted.tick(node.now + turn)
        assert len(looked) == turn * AT_ONCE
    assert len(set(looked)) == len(looked) == 4_000


@pytest.mark.parametrize("left", [False, True])
async def test_a_cancelled_move_leaves_the_queue_where_it_is_for_good(node: Node, left: bool) -> None:
    """Goal: who cancels a move finds the queue in use where it was, asking for what it has, and it stays there. Method:
    before it has left, and after; asked twice."""
    queue_id = node.declare("q")
    node.declare("other")
    await node.alter("q", copies=1)
    number = node.state.placing.moves["q"].number
    if left:
        node.log.say(leave(node.log.replica.queues, queue_id, number, "there", next_queue_offset=0))
        node.log.confirm()
        back = come_back(node.log.replica.queues, queue_id, number)
        node.deciding = lambda: asyncio.get_running_loop().call_soon(node.log.say, back) and None
    answer = await node.ask(CancelMove(name="q"))
    assert answer == Stays(queues=["q"], log="here", cancelled=True, arguments={"copies": 2})
    assert not node.state.placing.moves
    assert node.arguments("q") == {"copies": 2}
    assert not (await node.ask(CancelMove(name="q"))).cancelled
    await node.passes(60)
    assert (len(node.begun()), (await node.rows())) == (1, [])


async def test_a_move_that_has_come_about_is_not_cancelled(node: Node) -> None:
    node.declare("q")
    node.declare("other")
    await node.alter("q", copies=1)
    move = node.state.placing.moves["q"]
    node.deciding = lambda: node.apply(QueuesMoved(number=move.number, first={"q": 0})) and None
    with pytest.raises(Refused, match="has just moved"):
        await node.ask(CancelMove(name="q"))
    assert node.arguments("q") == {"copies": 1}


async def test_a_queue_that_is_on_its_way_is_not_altered_back_in_silence(node: Node) -> None:
    """Goal: whoever is told that nothing moves finds it so. Method: alter it back while its move is under way, with
    others in its log and alone: that is refused, and says how to let it stay; then it can be altered."""
    node.declare("q")
    node.declare("other")
    assert (await node.alter("q", copies=1)).moves
    assert (await node.alter("q", copies=1)).moves, "an answer may be lost"
    for _ in range(2):
        with pytest.raises(Refused, match="cancel it"):
            await node.alter("q", copies=2)
        assert node.arguments("q") == {"copies": 1}
        node.state = replace(node.state, queues={"q": HERE})
    assert (await node.ask(CancelMove(name="q"))).cancelled
    assert not (await node.alter("q", copies=2)).moves
    assert not node.state.placing.moves


async def test_nothing_is_cancelled_before_queues_move(node: Node) -> None:
    """Software of before would stop at what the log says then."""
    node.declare("q", copies=1)
    node.state = replace(node.state, cluster_version=PLACEMENTS - 1)
    with pytest.raises(UnsupportedVersion, match="update all nodes"):
        await node.ask(CancelMove(name="q"))
    assert node.arguments("q") == {"copies": 1}


async def test_why_a_move_was_given_up_is_kept_for_queues_that_are_here(node: Node) -> None:
    """Nobody keeps names of queues that are gone for ever."""
    node.declare("q")
    for name in ("q", "gone"):
        node.moves.given_up[name] = "no room"
    node.moves.tick(node.now)
    assert node.moves.given_up == {"q": "no room"}


async def test_a_queue_that_asks_for_nothing_is_left_where_it_is(node: Node) -> None:
    """Whatever the settings say by now: here three copies, and the log has two."""
    node.declare("q")
    node.declare("locator", **{"queue-master-locator": "random"})
    await node.passes(60)
    assert (node.begun(), (await node.rows())) == ([], [])


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_queue_whose_policy_is_cleared_goes_back_unless_somebody_stops_it(node: Node, cancelled: bool) -> None:
    """Goal: what a policy has moved goes to where it would be without. It asks for nothing itself, so its log
    is listed as what it does not name; and who stops it has it stay for good."""
    queue_id = node.declare("q")
    node.declare("other")
    cleared = QueueGoverned(queue_id=queue_id, version=2, policy="", operator_policy="", arguments={})
    node.log.say(encode_change(cleared))
    node.log.confirm()
    node.apply(MovingPaused(paused=True))
    await node.passes(5)
    (row,) = await node.rows()
    assert (row.queue, row.stage, row.why) == ("q", "wanted", "names no copies, its log has 2")
    if cancelled:
        answer = await node.ask(CancelMove(name="q"))
        assert answer == Stays(queues=["q"], log="here", cancelled=False, arguments={"copies": 2})
    node.apply(MovingPaused(paused=False))
    await node.passes(60)
    assert len(node.begun()) == (0 if cancelled else 1)


async def test_a_move_is_told_by_the_master_of_its_log(node: Node) -> None:
    """By others that it moves, and no more, or why nobody can say."""
    node.declare("q")
    node.declare("other")
    await node.alter("q", copies=1)
    node.moves.waits["q"] = "nobody masters that log at the moment"
    (row,) = await node.rows()
    assert (row.told, row.records, row.reason) == (True, 0, "nobody masters that log at the moment")
    cast(Any, node.hosted).knows_confirmed = False
    (row,) = await node.rows()
    assert (row.queue, row.told, row.reason, row.source) == ("q", False, "", "here")
    expected = "nobody who answers masters log here; node n1: is down"
    assert [each.reason for each in all_moves([MovesFound(moves=[row])], {"n1": LogUnavailable("is down")})] == [
        expected
    ]
    (silent,) = all_moves([MovesFound(moves=[])], {"n1": LogUnavailable("is down"), "n2": NotMaster("x")}, ["n1"])
    expected = "node n1: is down; what shall move from the logs that it masters is not known"
    assert (silent.queue, silent.stage, silent.reason, silent.told) == ("", "unknown", expected, False)
    known = MoveOfQueue(queue="q", source="here", target="t", number=row.number, told=True)
    later = MoveOfQueue(queue="q", source="t", target="here", number=row.number + 1, told=True)
    for found in ([row, known], [known, row], [row, known, row]):
        assert all_moves([MovesFound(moves=[each]) for each in found], {}) == [known]
    assert all_moves([MovesFound(moves=[known]), MovesFound(moves=[later])], {}) == [later]


async def at_rest(node: Node) -> None:
    """There are two logs without rules, of which the other node masters the empty one; all copies are in sync."""
    log = replace(node.state.logs[HERE], in_sync={"n0": "run", "n1": "run"}, copies_wanted=1)
    node.state = replace(node.state, logs={HERE: log}, places=None)
    made = LogMade(log_id=THERE, number=2, name="there", flush="memory", replicas=("n1", "n0"), copies=2)
    assert not node.apply(made).refusal
    there = replace(node.state.logs[THERE], in_sync={"n0": "run", "n1": "run"}, master=Holder("n1", "run"), epoch=1)
    node.state = replace(node.state, logs={HERE: log, THERE: there})


async def evened(node: Node) -> set[str]:
    """What moves after some seconds."""
    for _ in range(40):
        node.now += 0.1
        node.evening.tick(node.now)
        node.wanted.tick(node.now)
        await node.evening.idle()
    return set(node.state.placing.moves)


@pytest.mark.parametrize(("name", "value"), [("min_in_sync", 2), ("nodes", 5), ("copies", "many")])
async def test_arguments_that_fit_no_more_are_passed_over(tmp_path: Path, name: str, value: Any) -> None:
    """Goal: one odd queue stops nothing. Method: a queue that wants two in sync, in a cluster whose settings say one
    copy by now, or one with an argument of a shape that an older version took, has the fewest records of many."""
    node = Node(tmp_path / "log", PlacingSettings(copies=1))
    await at_rest(node)
    node.declare("odd")
    node.arguments("odd")[name] = value
    for number in range(6):
        node.declare(f"q{number}")
    assert {"q0", "q1"} <= {row.queue for row in await node.rows()}
    assert {"q0", "q1"} <= await evened(node)
    await node.wanted.stop()
    node.log.replica.close()


async def test_a_queue_whose_move_was_cancelled_is_not_evened_out_again(node: Node) -> None:
    """Others go in its place."""
    await at_rest(node)
    for number in range(2):
        node.declare(f"q{number}")
    assert await evened(node) == {"q0"}
    assert (await node.ask(CancelMove(name="q0"))).cancelled
    node.now += 2 * AGAIN_S
    assert await evened(node) == {"q1"}


class Walked(dict[str, tuple[Span, ...]]):
    """Spans of queues, and how often somebody went through them."""

    walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()


async def test_queues_that_have_left_nothing_are_not_looked_through_again(node: Node) -> None:
    """Goal: a cluster in which many queues have moved once pays nothing for it. Method: of those that have records in
    former logs, the spans are found by one walk, until the cluster changes some."""
    ended = Walked({f"q{number}": (Span("A", 0, ended=True), Span("B", 5)) for number in range(9)})
    live = Walked({**ended, "live": (Span("A", 0), Span("B", 5)), "one": (Span("B", 0),)})
    spans = ended
    view: Any = SimpleNamespace(all_spans=lambda: spans)
    service = MoveService("n0", node.logs, view)
    for found, expected in ((ended, set()), (live, {"live"})):
        spans = found
        for _ in range(5):
            assert service.with_former_records().keys() == expected
        assert found.walks == 1
