"""Queues that may be so long and no longer, on real nodes: what is refused, what goes, and who decides the same after a
restart or a failover. Runs of attributes come along, as they are refused at the same place."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mirrorlog.broker.hosting.roles import MasterRole
from mirrorlog.broker.retention.length_limits import QueueLengths
from mirrorlog.client import Client
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.commitlog.index.past import Past
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.config import Settings
from mirrorlog.errors import BadRequest, MirrorlogError, OutcomeUnknown, Overloaded, QueueFull
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.limits.attributes import Run
from mirrorlog.queues.limits.length import QueueLengthView
from mirrorlog.wire.frames import Confirm, Level
from tests.broker.hosting import KIB, hand_over, in_sync, running_all, settings_for
from tests.broker.test_deliverer import Taker, group
from tests.ha.nodes import Node, hosted_by, replica_of, until

VALUE = b"v" * 100
SIZE = len(encode_batch([Record(VALUE)], queue_id=1))
"""Bytes of a batch with one such record."""


def run(test: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(test())  # type: ignore[arg-type]


class Queue:
    """The queue `q`, of which each record is a batch."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.connection: Connection | None = None
        self.queue_id = 0

    async def find(self) -> None:
        self.connection, found = await self.client.master_of("q")
        self.queue_id = found.queue_id

    async def publish(self, count: int = 1, attributes: Attributes | None = None) -> list[Confirm | MirrorlogError]:
        """One record after the other, sent together; what each came to."""
        assert self.connection is not None
        loop = asyncio.get_running_loop()
        ended: list[asyncio.Future[Confirm | MirrorlogError]] = [loop.create_future() for _ in range(count)]
        for each in ended:
            batch = encode_batch([Record(VALUE)], queue_id=self.queue_id, attributes=attributes)
            self.connection.produce(batch, level=Level.ALL, durability=0, deadline_ms=0, done=each.set_result)
        async with asyncio.timeout(20):
            return [await each for each in ended]

    async def taken(self, count: int = 1) -> int:
        """How many of so many were stored; the others were refused since it is full. What is refused because nobody
        knows that yet is sent again."""
        stored = 0
        async with asyncio.timeout(20):
            while count:
                results = await self.publish(count)
                assert all(isinstance(each, Confirm | QueueFull | Overloaded) for each in results), results
                stored += sum(isinstance(each, Confirm) for each in results)
                count = sum(isinstance(each, Overloaded) for each in results)
        return stored

    def ledger(self, node: Node) -> Ledger | None:
        return replica_of(node).groups.get(self.queue_id, "")

    def ready(self, node: Node) -> list[int]:
        """The queue offsets of what is ready."""
        index = replica_of(node).index
        view = QueueLengthView(self.ledger(node), index.begin(self.queue_id), index.next_confirmed(self.queue_id))
        return [at for first, following in view.ranges() for at in range(first, following)]

    async def ready_is(self, node: Node, *expected: int) -> None:
        try:
            await until(lambda: self.ready(node) == list(expected))
        except TimeoutError:
            raise AssertionError(f"{self.ready(node)} are ready, not {expected}") from None


async def declared(client: Client, **arguments: Any) -> Queue:
    await client.admin.declare("q", arguments=arguments)
    queue = Queue(client)
    await queue.find()
    return queue


async def take(subscription: Subscription, count: int) -> list[Any]:
    async with asyncio.timeout(20):
        return [await anext(subscription) for _ in range(count)]


def limits(**lengths: Any) -> dict[str, Any]:
    return {f"x-{key.replace('_', '-')}": value for key, value in lengths.items()}


LIMITED = [
    limits(max_length=3),
    limits(max_length_bytes=3 * SIZE + SIZE // 2),
    limits(max_length=3, max_length_bytes=10**6),
]


@pytest.mark.parametrize("lengths", LIMITED, ids=["records", "bytes", "both"])
def test_a_queue_that_drops_its_head_keeps_the_newest(tmp_path: Path, lengths: dict[str, Any]) -> None:
    """Goal: of ten records the last three stay, on every copy, whatever was confirmed, and a group that comes later
    finds just these; a stream still reads all."""
    settings = settings_for(tmp_path, 2)

    async def test() -> None:
        async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
            queue = await declared(client, **lengths)
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            assert await queue.taken(10) == 10
            for node in nodes:
                await queue.ready_is(node, 7, 8, 9)
            async with client.subscribe("q", prefetch=10) as subscription:
                assert [each.offset for each in await take(subscription, 3)] == [7, 8, 9]
            async with client.consumer("q", start=0, until="confirmed") as consumer:
                assert len([record async for record in consumer]) == 10

    run(test)


@pytest.mark.parametrize("lengths", LIMITED, ids=["records", "bytes", "both"])
def test_what_is_in_hands_neither_counts_nor_goes(tmp_path: Path, lengths: dict[str, Any]) -> None:
    """Goal: limits are of what is ready. Take two, publish ten: three stay beside the two. Return the two: nothing goes
    before the next publish, and then the oldest do."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await declared(client, **lengths)
            await queue.publish(2)
            async with client.subscribe("q", prefetch=2) as subscription:
                hands = await take(subscription, 2)
                await queue.publish(10)
                await queue.ready_is(node, 9, 10, 11)
                await hands[0].ack()
                ledger = queue.ledger(node)
                assert ledger is not None
                assert ledger.unsettled(1, 2) == 1
            await queue.ready_is(node, 1, 9, 10, 11)
            await queue.publish(1)
            await queue.ready_is(node, 10, 11, 12)

    run(test)


def test_who_has_room_for_all_of_them_is_given_all(tmp_path: Path) -> None:
    """Goal: nothing goes that somebody waits for. A subscriber with room for all gets each of a hundred records, of
    which one may be ready."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as _, Client(settings[0].client_bind) as client:
            queue = await declared(client, **limits(max_length=1))
            async with client.subscribe("q", prefetch=1000) as subscription:
                for at in range(10):
                    await queue.publish(1)
                    assert [each.offset for each in await take(subscription, 1)] == [at]
                await queue.publish(90)
                assert [each.offset for each in await take(subscription, 90)] == list(range(10, 100))

    run(test)


@pytest.mark.parametrize("copies", [1, 2])
def test_nothing_goes_while_more_subscribers_have_room_than_a_turn_serves(tmp_path: Path, copies: int) -> None:
    """Goal: a drop waits for whoever has room. Of a queue that keeps one record, 120 subscribers take one each, which
    are more frames than some turns of the loop give; 120 records come at once and each gets one. Of 50 more, for which
    nobody has room, one stays."""

    async def test() -> None:
        async with group(tmp_path, copies, x_max_length=1) as it, AsyncExitStack() as stack:
            takers = [Taker(await it.connect()) for _ in range(4)]
            takers = [Taker(each.connection) for each in takers for _ in range(30)]
            for each in takers:
                stack.callback(each.connection.close)
                await each.subscribe(prefetch_records=1)
            await it.publish(0, 120)
            await until(lambda: sum(len(each.offsets) for each in takers) == 120)
            await it.publish(120, 170)
            queue_id = replica_of(it.nodes[0]).queues.find("q").queue_id
            ledger = replica_of(it.nodes[0]).groups.find(queue_id, "")
            await until(lambda: (ledger.out, ledger.ready(170)) == (120, 1))
            assert sorted(at for each in takers for at in each.offsets) == list(range(120))

    run(test)


@pytest.mark.parametrize("lengths", LIMITED, ids=["records", "bytes", "both"])
def test_a_full_queue_that_rejects_stores_nothing_more(tmp_path: Path, lengths: dict[str, Any]) -> None:
    """Goal: exact for records that come alone, together too. Of ten sent at once three are stored; one that was acked
    makes room for one. The refusal is retriable, and a producer that waits gets through."""
    settings = settings_for(tmp_path, 2)

    async def test() -> None:
        async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
            queue = await declared(client, **lengths, **{"x-overflow": "reject-publish"})
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            assert await queue.taken(10) == 3
            assert replica_of(nodes[0]).index.next_appended(queue.queue_id) == 3
            (refused,) = await queue.publish()
            assert isinstance(refused, QueueFull)
            assert refused.retriable
            assert "nothing was stored" in refused.message
            async with client.producer("q", delivery_timeout_ms=300) as producer:
                # What of it was on its way when the time was over is not known, if the machine is slow.
                with pytest.raises((QueueFull, OutcomeUnknown), match="the queue is full"):
                    await producer.send(VALUE)
            async with client.producer("q") as producer, client.subscribe("q", prefetch=1) as subscription:
                waiting = asyncio.ensure_future(producer.send(VALUE))
                (hand,) = await take(subscription, 1)
                await hand.ack()
                await waiting

    run(test)


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
@pytest.mark.parametrize("lengths", LIMITED, ids=["records", "bytes", "both"])
def test_a_restart_and_a_failover_decide_the_same(tmp_path: Path, overflow: str, lengths: dict[str, Any]) -> None:
    """Goal: limits go with the log. Fill the queue, ack one, give one out; another master, and then all nodes anew:
    each time the queue takes, or drops, as many as are too many then."""
    settings = settings_for(tmp_path, 2)

    async def fill() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            queue = await declared(client, **lengths, **{"x-overflow": overflow})
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            await queue.publish(5)
            async with client.subscribe("q", prefetch=2) as subscription:
                hands = await take(subscription, 2)
                await hands[0].ack()
                await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
                await hand_over(hosted_by(nodes[0]), hosted_by(nodes[1]))
            await queue.find()
            await check(queue, nodes[1], overflow, hands[1].offset)

    async def again() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            queue = Queue(client)
            await queue.find()
            there = queue.ready(nodes[0])
            assert len(there) == 3
            if overflow == "reject-publish":
                assert await queue.taken(2) == 0
                return
            await queue.publish(2)
            await queue.ready_is(nodes[0], *there[2:], there[-1] + 1, there[-1] + 2)

    run(fill)
    run(again)


async def check(queue: Queue, node: Node, overflow: str, in_hand: int) -> None:
    """At the next master, with one acked and what was in hand back: it is full with one more, or drops until it is."""
    await until(lambda: in_hand in queue.ready(node))
    if overflow == "reject-publish":
        assert queue.ready(node) == [1, 2]
        assert await queue.taken(4) == 1
        assert queue.ready(node) == [1, 2, 3]
    else:
        assert in_hand == 3
        await queue.publish(4)
        await queue.ready_is(node, 6, 7, 8)


def test_what_a_new_master_finds_too_long_goes_with_the_next_publish(tmp_path: Path) -> None:
    """Goal: a failover alone drops nothing, for who had some in hand comes for it again, also when the new master
    hears only then that the records of the one before are confirmed. Two of five in hand, three fit."""
    settings = settings_for(tmp_path, 2)

    async def test() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            queue = await declared(client, **LIMITED[0], **{"x-overflow": "drop-head"})
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            async with client.subscribe("q", prefetch=2) as subscription:
                await queue.publish(5)
                await take(subscription, 2)
                await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
                await hand_over(hosted_by(nodes[0]), hosted_by(nodes[1]))
                await queue.find()
            lengths = role_of(nodes[1]).lengths
            lengths._confirmed({queue.queue_id})
            lengths.tick()
            for _ in range(20):  # turns of the loop
                await asyncio.sleep(0)
            assert queue.ready(nodes[1]) == [0, 1, 2, 3, 4]
            await queue.publish(1)
            await queue.ready_is(nodes[1], 3, 4, 5)

    run(test)


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_bytes_of_what_left_the_memory_are_read_from_the_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overflow: str
) -> None:
    """Goal: a limit of bytes counts what stands in sealed segments, at a new start too, also for who publishes before
    it was read. Three records, then a megabyte of another queue over four segments, then a start whose first publish
    is what has them read: the fourth record does not fit."""
    monkeypatch.setattr(QueueLengths, "tick", lambda self: None)
    settings = settings_for(tmp_path, 1)
    arguments = {**LIMITED[1], "x-overflow": overflow}

    async def test(number: int) -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            if not number:
                queue = await declared(client, **arguments)
                await queue.publish(3)
                await client.admin.declare("other")
                async with client.producer("other", batch_bytes=16 * KIB) as producer:
                    await producer.send_many([b"x" * 4096] * 256)
            else:
                queue = Queue(client)
                await queue.find()
                replica = replica_of(node)
                await until(lambda: replica.index.past_until(queue.queue_id, 0) is not None)
                if overflow == "drop-head":
                    await queue.publish(1)
                    await queue.ready_is(node, 1, 2, 3)
                else:
                    assert await queue.taken(2) == 0

    run(lambda: test(0))
    run(lambda: test(1))


def test_bytes_that_could_not_be_read_from_the_past_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a node that cannot open a table for a moment keeps the limit all the same. Method: as above, and the first
    two looks into the past end for want of a descriptor."""
    settings = settings_for(tmp_path, 1)
    refused: list[int] = []
    look = Past.entries

    def entries(past: Past, queue_id: int, *arguments: Any, **options: Any) -> list[QueuedBatch]:
        if len(refused) < 2:
            refused.append(queue_id)
            raise OSError(errno.EMFILE, "Too many open files")
        return look(past, queue_id, *arguments, **options)

    async def test(number: int) -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            if not number:
                queue = await declared(client, **LIMITED[1], **{"x-overflow": "drop-head"})
                await queue.publish(3)
                await client.admin.declare("other")
                async with client.producer("other", batch_bytes=16 * KIB) as producer:
                    await producer.send_many([b"x" * 4096] * 256)
            else:
                monkeypatch.setattr(Past, "entries", entries)
                queue = Queue(client)
                await queue.find()
                # Until the segments are sealed, which the node does beside, the memory answers, and nothing is read.
                await until(lambda: replica_of(node).index.past_until(queue.queue_id, 0) is not None)
                await queue.publish(1)
                await queue.ready_is(node, 1, 2, 3)
                assert len(refused) == 2

    run(lambda: test(0))
    run(lambda: test(1))


def role_of(node: Node) -> MasterRole:
    role = hosted_by(node).role
    assert isinstance(role, MasterRole)
    return role


def test_batches_that_are_appended_together_are_counted_together(tmp_path: Path) -> None:
    """Goal: a transaction gets no more into a full queue than its batches one by one would. Three fit, and nothing of
    four does."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await declared(client, **LIMITED[1], **{"x-overflow": "reject-publish"})
            header = read_header(encode_batch([Record(VALUE)], queue_id=queue.queue_id))
            lengths = role_of(node).lengths
            with pytest.raises(QueueFull):
                lengths.admit([header] * 4)
            lengths.admit([header] * 3)

    run(test)


def test_a_drop_that_the_log_refuses_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the first changes of the queue's group: they come with a tick."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await declared(client, **limits(max_length=1))
            publisher = hosted_by(node).publisher
            append, refused = publisher.append_settlement, []  # type: ignore[union-attr]

            def refuse(batch: bytearray, changes: Any = None) -> int:
                if len(refused) < 2:
                    refused.append(batch)
                    raise Overloaded("not now", limit="test")
                return append(batch, changes)

            monkeypatch.setattr(publisher, "append_settlement", refuse)
            await queue.publish(5)
            await queue.ready_is(node, 4)
            assert len(refused) == 2

    run(test)


# --- what batches ask for, and what a queue asks for all of them ---


def runs_of(node: Node, queue_id: int) -> list[Run]:
    runs = replica_of(node).runs.of(queue_id)
    return list(runs) if runs is not None else []


def test_every_copy_knows_the_attributes_of_batches_after_a_failover_and_a_start(tmp_path: Path) -> None:
    """Goal: what a new master delivers by is what the old one did, also of what stands below the checkpoint with which
    a start begins. Publish with and without attributes to a queue with a time to live of its own, fill segments until
    a checkpoint is confirmed, hand over, start all anew: the runs are the same on all."""
    settings = settings_for(tmp_path, 2)
    known: list[Run] = []
    asked = [Attributes(7), Attributes(1, 1_000), Attributes(0, None, 5_000), None]

    async def first() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            queue = await declared(client, **{"x-message-ttl": 3_600_000})
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            for each in asked:
                await queue.publish(1, each)
            known.extend(runs_of(nodes[0], queue.queue_id))
            assert [each.priority for each in known] == [7, 1, 0, 0]
            assert [each.not_before_us is not None for each in known] == [False, False, True, False]
            assert all(each.expires_at_us is not None for each in known)
            await client.admin.declare("other")
            async with client.producer("other", batch_bytes=16 * KIB) as producer:
                await producer.send_many([b"x" * 4096] * 256)
            declared_at = replica_of(nodes[0]).queues.find("q").declared_at
            await until(lambda: all(replica_of(each).log.state_from > declared_at + 2000 for each in nodes))
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            await hand_over(hosted_by(nodes[0]), hosted_by(nodes[1]))
            assert runs_of(nodes[1], queue.queue_id) == known

    async def again() -> None:
        async with running_all(settings) as nodes:
            for node in nodes:
                assert runs_of(node, replica_of(node).queues.find("q").queue_id) == known

    run(first)
    run(again)


def test_above_the_limit_of_runs_only_what_asks_for_something_is_refused(tmp_path: Path) -> None:
    """Goal: memory is bounded, and who asks for nothing is not held up. With room for two runs the third batch of
    another priority is refused, nothing of it is stored, and plain ones go on; what is settled makes room."""
    (node_settings,) = settings_for(tmp_path, 1)
    few = node_settings.limits.model_copy(update={"attribute_runs_max": 2})
    settings: list[Settings] = [node_settings.model_copy(update={"limits": few})]

    async def test() -> None:
        async with AsyncExitStack() as stack:
            (node,) = await stack.enter_async_context(running_all(settings))
            client = await stack.enter_async_context(Client(settings[0].client_bind))
            queue = await declared(client)
            for priority in (1, 2):
                assert isinstance((await queue.publish(1, Attributes(priority)))[0], Confirm)
            (refused,) = await queue.publish(1, Attributes(3))
            assert isinstance(refused, Overloaded)
            assert (refused.details["limit"], "nothing was stored" in refused.message) == ("attribute_runs_max", True)
            assert replica_of(node).index.next_appended(queue.queue_id) == 2
            assert isinstance((await queue.publish(1))[0], Confirm)
            async with client.subscribe("q", prefetch=10) as subscription:
                for each in await take(subscription, 3):
                    await each.ack()
            await until(lambda: replica_of(node).runs.total == 0)
            assert isinstance((await queue.publish(1, Attributes(3)))[0], Confirm)

    run(test)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x-max-length": -1}, "'x-max-length' is -1, it must be a whole number from 0 to"),
        ({"x-max-length-bytes": "5"}, "'x-max-length-bytes' is '5', it must be a whole number"),
        ({"x-max-priority": 256}, "'x-max-priority' is 256, it must be a whole number from 0 to 255"),
        ({"x-message-ttl": 10**15}, "'x-message-ttl' is 1000000000000000, it must be a whole number from 0 to"),
        ({"x-overflow": "drop"}, "it must be 'drop-head', 'reject-publish' or 'reject-publish-dlx'"),
        ({"x-dead-letter-exchange": 5}, "'x-dead-letter-exchange' is 5, it must be a text"),
        ({"x-dead-letter-exchange": "a\nb"}, "without control characters"),
        ({"x-dead-letter-routing-key": "k"}, "needs 'x-dead-letter-exchange'"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_the_declare(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as _, Client(settings[0].client_bind) as client:
            with pytest.raises(BadRequest) as refused:
                await client.admin.declare("q", arguments=arguments)
            assert message in refused.value.message

    run(test)
