"""The pieces of a queue's state on their way between two nodes: whatever is lost, or fails, on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from mirrorlog import versions
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.moves.move_service import MoveService
from mirrorlog.cluster.requests import AskArrival, QueueArrival
from mirrorlog.cluster.state.placements import MovingQueue
from mirrorlog.errors import InSyncReplicasNotEnough, RequestTimeout
from tests.broker.test_moving import MOVE, Log, Story

PIECE_BYTES = 240
"""So a small state comes in several pieces."""


class Publisher(LogPublisher):
    """Of the target: the `fails`-th append is refused."""

    stopping = False

    def __init__(self, log: Log, fails: int) -> None:
        self._of = log
        self._fails = fails
        self._count = 0

    def append_control(self, batch: bytearray) -> None:
        self._count += 1
        if self._count == self._fails:
            raise InSyncReplicasNotEnough("a copy is gone for a moment")
        self._of.say(batch)

    def when_confirmed(self, done: Any, *, on_disk: bool = False) -> None:
        self._of.confirm()
        done(None)


class Ways:
    """A queue that left one log for another, and the services of both logs' masters. `loses`: the number of the answer
    that is lost; `fails`: of the append that is refused; 0 for none. `resets`: the target's node forgets what came
    before the question of that number, as a new master has."""

    def __init__(self, path: Path, *, loses: int = 0, fails: int = 0, resets: int = 0) -> None:
        self.story = Story(path, 3)
        self.story.source.confirm()
        log_id = uuid4()
        target = SimpleNamespace(
            log_id=log_id,
            name="target",
            replica=self.story.target.replica,
            publisher=Publisher(self.story.target, fails),
            knows_confirmed=True,
        )
        self.move = MovingQueue(MOVE, "source", str(log_id))
        view: Any = SimpleNamespace(
            moves=lambda: {"q": self.move},
            log_facts=lambda log_id: SimpleNamespace(master=None, epoch=1),
        )
        logs: Any = SimpleNamespace(get=lambda log_id: target)
        self._make = lambda: quiet(MoveService("target", logs, view))
        self._target = self._make()
        self.source = quiet(MoveService("source", logs, view))
        self.source.ask_there = self._ask  # type: ignore[method-assign, assignment]  # the network
        self.asked: list[int] = []
        self._loses, self._resets = loses, resets

    async def _ask(self, asked: AskArrival, kind: type[QueueArrival]) -> QueueArrival:
        self.asked.append(asked.piece)
        if len(self.asked) == self._resets:
            self._target = self._make()
        answer = await self._target.asked(asked)
        if len(self.asked) == self._loses:
            raise RequestTimeout("the answer was lost")
        assert isinstance(answer, QueueArrival)
        return answer

    async def give(self) -> None:
        log: Any = SimpleNamespace(
            log_id=uuid4(), name="source", replica=self.story.source.replica, knows_confirmed=True
        )
        async with asyncio.timeout(10):
            await self.source.give(log, "q", self.story.queue_id, self.move)


def quiet(service: MoveService) -> MoveService:
    """It is asked, and looks at nothing by itself."""
    cast(Any, service).soon = lambda: None
    service.piece_bytes, service.retry_s = PIECE_BYTES, 0.0
    return service


async def test_all_pieces_come_one_after_the_other(tmp_path: Path) -> None:
    """And are opened there: the state is the same (`test_moving` holds in detail what that is)."""
    ways = Ways(tmp_path)
    await ways.give()
    assert ways.asked == list(range(len(ways.asked)))
    assert len(ways.asked) > 3
    arriving = ways.story.target.replica.queues.moves.arriving[ways.story.queue_id]
    assert arriving.arrived


async def test_what_fails_for_a_reason_of_its_own_is_not_begun_again_at_once(tmp_path: Path) -> None:
    """It was, within the same turn of the loop, for ever: the node did nothing else."""
    story, log_id, asked = Story(tmp_path, 3), uuid4(), list[object]()
    story.source.confirm()
    log = SimpleNamespace(
        log_id=log_id,
        name="source",
        replica=story.source.replica,
        publisher=Publisher(story.source, 0),
        knows_confirmed=True,
    )
    view: Any = SimpleNamespace(
        moves=lambda: {"q": MovingQueue(MOVE, str(log_id), "target")},
        log_facts=lambda log_id: None,
        lost_from=lambda log_id: None,
        placed=lambda name: log_id,
        all_spans=dict,
        cluster_version=lambda: versions.PLACEMENTS,
        has_heard=lambda: True,
    )
    service = MoveService("source", cast(Any, [log]), view)

    async def ask_there(message: object, kind: object) -> QueueArrival:
        asked.append(message)
        raise ValueError("nobody has thought of that")

    service.ask_there = ask_there  # type: ignore[method-assign, assignment]
    service.tick(asyncio.get_running_loop().time())
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(asked) == 1
    await service.stop()


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("trouble", ["loses", "fails", "resets"])
async def test_whatever_is_lost_on_the_way_it_arrives_whole(tmp_path: Path, trouble: str, number: int) -> None:
    """Goal: no piece is left out, and nobody waits for ever. Method: the n-th answer is lost, the n-th append is
    refused, or the target's node forgets what came before the n-th question, as one that has just become master."""
    ways = Ways(tmp_path / "ways", **{trouble: number})
    await ways.give()
    plain = Ways(tmp_path / "plain")
    await plain.give()
    for each in (ways, plain):
        moves = each.story.target.replica.queues.moves
        assert moves.arriving[each.story.queue_id].arrived
        assert moves.name(each.story.queue_id)
    queue_id = ways.story.queue_id
    assert told(ways, queue_id) == told(plain, queue_id)


def told(ways: Ways, queue_id: int) -> Any:
    """Of the groups that came: where they stand, and how much is not settled."""
    groups = ways.story.target.replica.groups.groups(queue_id)
    return {group: (ledger.floor, ledger.watermark) for group, ledger in groups.items()}
