"""A node gives away queues of which it has too many: when nothing else moves, and those that cost least."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from mirrorlog.broker.moves.evening import AGAIN_S, AT_ONCE_MAX, LOOK_S, QUIET_S, QueueEvening
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.commands import Addresses, Command, Holder, MoveBegun
from mirrorlog.cluster.state.placements import LogPlaces, MovingQueue
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts, Outcome
from mirrorlog.errors import BadRequest
from mirrorlog.queues.arguments import LOCATOR
from mirrorlog.queues.queue_table import Queue
from mirrorlog.versions import OWN

LOG, OTHER = uuid4(), uuid4()


class Walked(list[Queue]):
    """How often somebody went through them."""

    walks = 0

    def __iter__(self) -> Iterator[Queue]:
        self.walks += 1
        return super().__iter__()


class Given:
    """Node a with a log of queues, whose records are as many as their number; b, which has none. `many`: as the view
    says. `names`: of queues; `begun`: what was decided."""

    def __init__(self, *names: str, many: int = 100, **arguments: Any) -> None:
        nodes = {node: NodeFacts(number, Addresses(), start_id="run") for number, node in enumerate("ab", 1)}
        log = LogFacts(
            number=0, name="log", flush="memory", replicas=("a", "b"), copies=2, copies_wanted=1,
            master=Holder("a", "run"), epoch=1, in_sync={"a": "run", "b": "run"},
        )  # fmt: skip
        self.known = ClusterState(
            "id", "c", homes=False, nodes=nodes, logs={str(LOG): log}, queues=dict.fromkeys(names, str(LOG)),
            cluster_version=OWN,
        )  # fmt: skip
        self.begun: list[MoveBegun] = []
        self._many = many
        self.queues = Walked(Queue(name, number, "i", dict(arguments), 0) for number, name in enumerate(names))
        index = SimpleNamespace(next_confirmed=lambda queue_id: 2 * queue_id, begin=lambda queue_id: queue_id)
        hosted: Any = SimpleNamespace(
            log_id=LOG, name="log", masters=True, knows_confirmed=True,
            replica=SimpleNamespace(queues=self.queues, index=index),
        )  # fmt: skip
        self.service = QueueEvening("a", [hosted], self)  # type: ignore[arg-type]
        self.now = 0.0

    def life(self, node: str) -> Life:
        return Life.UP

    def evening(self, queue: str, arguments: Any, log_id: UUID) -> int:
        if "copies" in arguments:
            raise BadRequest("there can be no such log")
        return 0 if LOCATOR in arguments else self._many

    async def wanted_log(self, queue: str, arguments: Any, log_id: UUID | None, *, make: bool) -> UUID:
        assert log_id is None
        assert make
        return OTHER

    def move_refusal(self, moved: MoveBegun) -> str:
        return ""

    async def decide_once(self, command: Command) -> Outcome:
        assert isinstance(command, MoveBegun)
        self.begun.append(command)
        return Outcome(1, "")

    async def pass_time(self, seconds: float) -> list[tuple[str, ...]]:
        """What began to move in it."""
        self.begun.clear()
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            self.service.tick(self.now)
            await self.service.idle()
        assert all(move.target == str(OTHER) for move in self.begun)
        return [move.names for move in self.begun]


async def test_those_with_the_fewest_records_go_one_by_one_after_a_quiet_time() -> None:
    """As many as may go, a few at once; and not the same ones again as long as it is not known what became of them."""
    given = Given(*(f"q{number}" for number in range(20)), many=3)
    assert await given.pass_time(QUIET_S) == []
    assert await given.pass_time(LOOK_S) == [("q0",), ("q1",), ("q2",)]
    assert await given.pass_time(LOOK_S) == [("q3",), ("q4",), ("q5",)], "those before did not move"
    given = Given(*(f"q{number}" for number in range(20)))
    assert len(await given.pass_time(QUIET_S + LOOK_S)) == AT_ONCE_MAX


async def test_a_queue_that_did_not_move_is_left_alone_for_a_while() -> None:
    """By one alone, for the other one is being deleted."""
    given = Given("q0", "q1")
    given.service.is_being_deleted = lambda name: name == "q1"
    assert await given.pass_time(QUIET_S + 1) == [("q0",)]
    assert await given.pass_time(AGAIN_S - 2) == []
    assert await given.pass_time(3.0) == [("q0",)]


async def test_a_log_group_goes_as_one_or_not_at_all() -> None:
    """Of four queues, where four may go, and where three may."""
    names = [f"q{number}" for number in range(4)]
    group = {"x-log-group": "g"}
    assert await Given(*names, many=4, **group).pass_time(QUIET_S + 1) == [tuple(names)]
    assert await Given(*names, many=3, **group).pass_time(QUIET_S + 5) == []


@pytest.mark.parametrize(
    "state",
    [
        lambda state: replace(state, places=LogPlaces(paused=True)),
        lambda state: replace(state, places=LogPlaces(moves={"q0": MovingQueue(1, str(LOG), str(OTHER))})),
        lambda state: replace(
            state, logs={str(LOG): replace(state.logs[str(LOG)], in_sync={"a": "run"})}
        ),
        lambda state: replace(
            state, logs={str(LOG): replace(state.logs[str(LOG)], master=Holder("b", "run"))}
        ),
        lambda state: replace(state, nodes={**state.nodes, "b": replace(state.nodes["b"], draining=True)}),
    ],
    ids=["paused", "a-move", "a-copy-behind", "not-at-home", "draining"],
)  # fmt: skip
async def test_nothing_goes_while_something_is_not_as_it_should_be(state: Any) -> None:
    """By what there may be."""
    given = Given("q0", "q1")
    given.known = state(given.known)
    assert await given.pass_time(QUIET_S + 5) == []


async def test_a_queue_that_is_being_deleted_or_goes_with_its_node_stays() -> None:
    """The others go."""
    given = Given("q0", "q1")
    given.service.is_being_deleted = lambda name: name == "q0"
    assert await given.pass_time(QUIET_S + 1) == [("q1",)]
    assert await Given("q0", durable=False).pass_time(QUIET_S + 1) == []


async def test_what_would_go_next_is_told_also_while_moving_is_paused() -> None:
    """With the reason; nothing is told while it cannot go for another reason."""
    given = Given(*(f"q{number}" for number in range(5)), many=2)
    why = "a masters 5 queues, b 0"
    assert [(queue.name, reason) for _, queue, reason in given.service.planned()] == [("q0", why), ("q1", why)]
    given.known = replace(given.known, places=LogPlaces(paused=True))
    assert len(list(given.service.planned())) == 2
    behind = replace(given.known.logs[str(LOG)], in_sync={"a": "run"})
    given.known = replace(given.known, logs={str(LOG): behind})
    assert list(given.service.planned()) == []


@pytest.mark.parametrize("arguments", [{"copies": 9}, {LOCATOR: "random"}])
async def test_a_queue_that_may_not_go_keeps_no_others_from_it(arguments: dict[str, Any]) -> None:
    """By the one with the fewest records: there can be no log for it any more, or it was placed by chance."""
    given = Given(*(f"q{number}" for number in range(4)), many=2)
    given.queues[0].arguments.update(arguments)
    assert await given.pass_time(QUIET_S + LOOK_S) == [("q1",), ("q2",)]


async def test_queues_are_not_looked_through_while_nothing_is_to_be_evened() -> None:
    """Goal: a cluster at rest with 100,000 queues pays nothing for it. Method: masters are even; they are not, and
    nothing may go: then the queues are looked through once for each change, and once a minute."""
    given = Given("q0", "q1", "q2", many=0)
    uneven, own = given.known, given.known.logs[str(LOG)]
    other = replace(own, number=1, name="other", replicas=("b", "a"), master=Holder("b", "run"))
    queues = {**uneven.queues, "r0": str(OTHER), "r1": str(OTHER)}
    given.known = replace(uneven, logs={**uneven.logs, str(OTHER): other}, queues=queues)
    await given.pass_time(30)
    assert (list(given.service.planned()), given.queues.walks) == ([], 0)
    given.known = uneven
    await given.pass_time(30)
    assert given.queues.walks == 1
    given.known = replace(uneven, places=LogPlaces(logs_removed=1))
    await given.pass_time(30)
    assert given.queues.walks == 2
    await given.pass_time(AGAIN_S)
    assert given.queues.walks == 3


async def test_a_queue_whose_move_was_cancelled_stays_until_something_changes() -> None:
    """Goal: whoever cancels is not overruled after a minute. Method: it stays, also when others go; not when a node has
    come, nor when it asks for another place."""
    given = Given("q0", "q1", many=1)
    given.service.stays(given.queues[0])
    assert set(await given.pass_time(5 * AGAIN_S)) == {("q1",)}
    given.known = replace(given.known, nodes={**given.known.nodes, "c": NodeFacts(3, Addresses(), start_id="run")})
    assert ("q0",) in await given.pass_time(AGAIN_S)
    given.service.stays(given.queues[0])
    assert ("q0",) not in await given.pass_time(2 * AGAIN_S)
    given.queues[0].arguments["min_in_sync"] = 1
    assert ("q0",) in await given.pass_time(2 * AGAIN_S)
