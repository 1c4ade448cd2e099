"""The way of letters to other nodes: what is asked of whom, how much is on its way, and when a queue is gone.

The cluster around it is a few dicts, and other nodes answer when the test lets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast
from uuid import UUID

import pytest

from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.ports import Reply
from mirrorlog.broker.session import dead_letter_transport as letter_roads
from mirrorlog.broker.session.dead_letter_transport import ON_THE_WAY_BYTES, ON_THE_WAY_MAX, DeadLetterLinks
from mirrorlog.cluster.requests import AskTake, Noted, decode_question, encode
from mirrorlog.cluster.state.placements import Span
from mirrorlog.cluster.state.topology import VirtualHost
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.config import Member
from mirrorlog.errors import (
    BatchTooLarge,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NotLeader,
    Overloaded,
    QueueMoving,
    SentToDeadLetters,
)

LOG = UUID(int=7)


class Cluster:
    """Of node a, where the letters leave, and node b, which masters the log."""

    def __init__(self) -> None:
        self.queues: dict[str, UUID] = {"q": LOG}
        self.masters: dict[UUID, str] = {LOG: "b"}
        self.hosts: dict[str, VirtualHost] = {"/": VirtualHost()}
        self.undecided: list[Callable[[], None]] = []
        """Decisions that are not known here yet."""
        self.silent: MirrorlogError | None = None
        """Why nobody says what is decided."""
        self.open = asyncio.Event()
        self.asked: list[AskTake] = []
        self.refusal: MirrorlogError | None = None

    def spans(self, queue: str) -> tuple[Span, ...]:
        return ()

    def placed(self, queue: str) -> UUID | None:
        return self.queues.get(queue)

    def master(self, log_id: UUID) -> Member | None:
        node = self.masters.get(log_id)
        return None if node is None else cast(Member, Named(node))

    def virtual_host(self, name: str) -> VirtualHost | None:
        return self.hosts.get(name)

    async def up_to_date(self) -> None:
        if self.silent is not None:
            raise self.silent
        while self.undecided:
            self.undecided.pop(0)()

    async def ask(self, node: str, question: bytes) -> bytes:
        assert node == "b"
        self.asked.append(cast(AskTake, decode_question(question)))
        await self.open.wait()
        if self.refusal is not None:
            raise self.refusal
        return encode(Noted())

    @property
    def bytes_asked(self) -> int:
        return sum(len(each.batch) for each in self.asked)


class Log:
    """One that this node masters, whose publisher answers when the test does."""

    knows_confirmed = True

    def __init__(self) -> None:
        self.publisher = self
        self.waiting: list[Reply] = []

    def publish(self, payload: memoryview, reply: Reply, correlation_id: int, *, own: bool = False) -> None:
        self.waiting.append(reply)

    def forget(self, reply: Reply) -> None:
        pass


class Named:
    def __init__(self, node: str) -> None:
        self.id = node


def roads(cluster: Cluster, helper: ThreadPoolExecutor) -> DeadLetterLinks:
    return DeadLetterLinks("a", HostedLogs(), cluster, batch_bytes_max=1 << 26, helper=helper, past_helper=helper)


def run(test: Callable[[Cluster, DeadLetterLinks], Any]) -> None:
    async def all_of_it() -> None:
        with ThreadPoolExecutor(1) as helper:
            cluster = Cluster()
            await asyncio.wait_for(test(cluster, roads(cluster, helper)), 20)

    asyncio.run(all_of_it())


async def settle() -> None:
    """Until whoever can go on has."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_what_is_decided_before_a_piece_is_routed_is_known_to_its_routing() -> None:
    """A binding and a queue that this node has not heard of when it is asked."""

    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        bound = VirtualHost(bindings=VirtualHost().bindings, version=2)
        cluster.undecided = [
            lambda: cluster.hosts.update({"/": bound}),
            lambda: cluster.queues.update({"new": LOG}),
        ]
        table = await roads.table("/")
        assert table.version == 2
        assert cluster.placed("new") == LOG

    run(test)


def test_nothing_is_routed_while_nobody_says_what_is_decided() -> None:
    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        cluster.silent = NotLeader("no coordinator")
        with pytest.raises(NotLeader):
            await roads.table("/")

    run(test)


def test_a_queue_whose_log_nobody_masters_any_more_is_gone_once_its_place_is_taken_away() -> None:
    """Not before; not by what this node knows alone; and not when the log is only away."""

    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        cluster.masters.clear()
        with pytest.raises(LogUnavailable):
            await roads.hand_over(str(LOG), b"batch", name="q")
        del cluster.queues["q"]
        cluster.silent = NotLeader("no coordinator")
        with pytest.raises(LogUnavailable):
            await roads.hand_over(str(LOG), b"batch", name="q")
        cluster.silent = None
        with pytest.raises(NoSuchQueue, match="'q' is gone"):
            await roads.hand_over(str(LOG), b"batch", name="q")
        cluster.undecided = [lambda: cluster.queues.update({"q": LOG})]
        with pytest.raises(LogUnavailable):
            await roads.hand_over(str(LOG), b"batch", name="q")

    run(test)


def test_what_is_for_a_queue_that_has_moved_goes_where_it_is_and_there_it_is_told_whether_it_is_another_one() -> None:
    """By a node that hears of the move only when the log that the queue was in refuses the batch."""

    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        moved = UUID(int=8)
        cluster.masters[moved] = "b"
        cluster.open.set()
        cluster.undecided.append(lambda: cluster.queues.update(q=moved))
        cluster.refusal = QueueMoving("it has left")
        with pytest.raises(QueueMoving):
            await roads.hand_over(str(LOG), b"batch", name="q")
        cluster.refusal = None
        await roads.hand_over(str(LOG), b"batch", name="q")
        assert [each.log_id for each in cluster.asked] == [str(LOG), str(moved)]
        cluster.refusal = NoSuchQueue("no queue has that id")
        with pytest.raises(NoSuchQueue):
            await roads.hand_over(str(LOG), b"batch", name="q")

    run(test)


@pytest.mark.parametrize(
    ("size", "count"), [(100, ON_THE_WAY_MAX), (ON_THE_WAY_BYTES // 4, 4), (3 * ON_THE_WAY_BYTES, 1)]
)
def test_no_more_than_a_part_of_what_a_link_takes_is_on_its_way_to_a_node(size: int, count: int) -> None:
    """Three times as many as that are handed over at once: the others wait, and all of them arrive in the end."""

    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        batch = bytes(size)
        sent = [asyncio.ensure_future(roads.hand_over(str(LOG), batch, name="q")) for _ in range(3 * count)]
        await settle()
        assert len(cluster.asked) == count
        cluster.open.set()
        await asyncio.gather(*sent)
        assert len(cluster.asked) == 3 * count

    run(test)


def test_a_batch_that_would_end_the_link_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_roads, "_BATCH_BYTES_MAX", 100)

    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        cluster.open.set()
        with pytest.raises(BatchTooLarge):
            await roads.hand_over(str(LOG), bytes(101), name="q")
        await roads.hand_over(str(LOG), bytes(100), name="q")
        assert len(cluster.asked) == 1

    run(test)


def test_who_gives_up_waiting_for_the_way_leaves_it_to_the_others() -> None:
    """One that waits, and one that is on its way; a large one keeps its place before those that would fit."""

    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        sizes = [ON_THE_WAY_BYTES, ON_THE_WAY_BYTES, 10, 20]
        sent = [asyncio.ensure_future(roads.hand_over(str(LOG), bytes(size), name="q")) for size in sizes]
        await settle()
        assert [len(each.batch) for each in cluster.asked] == sizes[:1]
        sent[1].cancel()
        sent[0].cancel()
        await settle()
        assert [len(each.batch) for each in cluster.asked] == [sizes[0], 10, 20]
        cluster.open.set()
        for each in sent:
            with suppress(asyncio.CancelledError):
                await each

    run(test)


def test_no_more_than_so_many_are_taken_at_once_and_the_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are: the third is told to ask again, until one of them has ended, in whatever way."""
    monkeypatch.setattr(letter_roads, "TAKEN_MAX", 2)

    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        log = Log()
        roads._logs = cast(HostedLogs, {str(LOG): log})
        question = AskTake(log_id=str(LOG), batch=encode_batch([Record(b"v")], queue_id=1))
        first, second = (asyncio.ensure_future(roads.asked(question)) for _ in range(2))
        await settle()
        with pytest.raises(Overloaded, match="ask again"):
            await roads.asked(question)
        log.waiting[0].refuse(LogUnavailable("not now"), 1)
        with pytest.raises(LogUnavailable):
            await first
        third = asyncio.ensure_future(roads.asked(question))
        await settle()
        assert len(log.waiting) == 3
        for each in log.waiting[1:]:
            each.answer(b"")
        assert await asyncio.gather(second, third) == [Noted(), Noted()]

    run(test)


def test_what_a_full_queue_sends_on_has_arrived() -> None:
    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        log = Log()
        roads._logs = cast(HostedLogs, {str(LOG): log})
        question = AskTake(log_id=str(LOG), batch=encode_batch([Record(b"v")], queue_id=1))
        asked = asyncio.ensure_future(roads.asked(question))
        await settle()
        log.waiting[0].refuse(SentToDeadLetters("full"), 1)
        assert await asked == Noted()

    run(test)


def test_a_way_that_was_left_is_as_free_as_a_new_one() -> None:
    async def test(cluster: Cluster, roads: DeadLetterLinks) -> None:
        cluster.open.set()
        cluster.refusal = LogUnavailable("not now")
        for _ in range(3 * ON_THE_WAY_MAX):
            with pytest.raises(LogUnavailable):
                await roads.hand_over(str(LOG), b"batch", name="q")

    run(test)
