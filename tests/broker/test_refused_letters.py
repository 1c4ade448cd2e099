"""Publishes that a full queue refuses and sends to its dead letters (`x-overflow = reject-publish-dlx`), on real nodes:
what the producer is told, what comes where, once, also to who asks again and behind a failover and a start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mirrorlog.broker.log import unpacking
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.retention import length_limits as lengths
from mirrorlog.broker.session.dead_letter_transport import DeadLetterLinks
from mirrorlog.client import Client
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import HEADER_SIZE, Codec, read_header
from mirrorlog.errors import BadBatch, BadRequest, MirrorlogError, QueueFull, SentToDeadLetters
from mirrorlog.ha.group_transfer import Answer
from mirrorlog.queues.dead_letters.message import deaths_of
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm, Level
from mirrorlog.wire.transaction_frames import transact_payload
from tests.broker.hosting import hand_over, in_sync, running_all, settings_for
from tests.broker.test_lengths import Queue, declared
from tests.ha.nodes import hosted_by, replica_of, until

PRODUCER = 77
WAY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
REFUSING = {"x-max-length": 3, "x-overflow": "reject-publish-dlx"}


def run(test: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(test())  # type: ignore[arg-type]


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes let compressed bodies in as older ones did, which did not look into them."""
    monkeypatch.setattr(unpacking, "check_compressed", lambda *_, **__: None)


class Numbered(Queue):
    """Batches of one producer, of one record each."""

    async def send(self, *numbers: int, level: Level = Level.ALL, size: int = 0) -> list[Confirm | MirrorlogError]:
        """`size`: of each batch, in three records then."""
        assert self.connection is not None
        loop = asyncio.get_running_loop()
        ended: list[asyncio.Future[Confirm | MirrorlogError]] = [loop.create_future() for _ in numbers]
        for number, each in zip(numbers, ended, strict=True):
            records = [Record(b"%d" % number)] if not size else sized(size)
            batch = encode_batch(records, queue_id=self.queue_id, producer_id=PRODUCER, sequence=number)
            self.connection.produce(batch, level=level, durability=0, deadline_ms=0, done=each.set_result)
        async with asyncio.timeout(20):
            return [await each for each in ended]

    async def send_raw(self, batch: bytes | bytearray) -> Confirm | MirrorlogError:
        assert self.connection is not None
        ended: asyncio.Future[Confirm | MirrorlogError] = asyncio.get_running_loop().create_future()
        self.connection.produce(batch, level=Level.ALL, durability=0, deadline_ms=0, done=ended.set_result)
        async with asyncio.timeout(20):
            return await ended


def sized(size: int) -> list[Record]:
    """Three, whose batch has so many bytes, a multiple of 8."""
    records = [Record(bytes(size // 3 - 100)), Record(bytes(size // 3 - 100))]
    left = size - len(encode_batch([*records, Record(b"")], queue_id=1))
    found = [*records, Record(bytes(left))]
    assert len(encode_batch(found, queue_id=1)) == size
    return found


async def held(client: Client, count: int) -> None:
    """So many records of the queue's own group are to leave, and are held; all others have left."""
    async with asyncio.timeout(20):
        while True:
            (own,) = [each for each in (await client.admin.groups("q")).groups if each.kind == "acking"]
            if own.departing == count and f"{count} records cannot be sent, and are held" in own.departing_waits:
                return
            await asyncio.sleep(0.05)


async def full(client: Client, **arguments: Any) -> Numbered:
    """`q`, with the three records that it may have, of numbers 0 to 2."""
    await client.admin.declare("dead")
    await client.admin.declare("q", arguments={**REFUSING, **WAY, **arguments})
    queue = Numbered(client)
    await queue.find()
    assert all(isinstance(each, Confirm) for each in await queue.send(0, 1, 2))
    return queue


async def letters(client: Client, count: int, queue: str = "dead") -> list[Record]:
    """What came to the queue of dead letters: so many, and no more."""
    found: list[Any] = []
    async with client.consumer(queue, start="earliest") as consumer:
        async with asyncio.timeout(20):
            while len(found) < count:
                found += await consumer.read(100, timeout_ms=200)
        found += await consumer.read(100, timeout_ms=300)
    return [Record(each.value, each.key, list(each.headers)) for each in found]


def values(records: list[Record]) -> list[bytes]:
    return [record.value or b"" for record in records]


def packed(queue_id: int, value: bytes, *, producer_id: int, is_bad: bool = False) -> bytes:
    """A compressed batch of one record, as its producer sealed it; `is_bad`: it opens for nobody."""
    draft = compress_draft(draft_columns([value]), Codec.LZ4)
    assert draft.codec == Codec.LZ4
    if is_bad:
        draft.data[HEADER_SIZE:] = b"\xff" * (len(draft.data) - HEADER_SIZE)
    return bytes(draft.seal(queue_id=queue_id, producer_id=producer_id))


async def settled(node: Any, queue: Queue) -> None:
    """Nothing leaves the queue any more."""
    await until(lambda: queue.queue_id not in replica_of(node).forwardings.leaving)


def test_what_a_full_queue_refuses_comes_to_its_dead_letters_and_the_producer_is_told(tmp_path: Path) -> None:
    """Three fit, two do not: nobody is given those, they come to the other queue once, with reason and queue, and the
    error says that they are not to be sent again. Then there is room, and it takes."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            refused = await queue.send(3, 4)
            assert [type(each) for each in refused] == [SentToDeadLetters] * 2
            assert not any(each.retriable for each in refused if isinstance(each, MirrorlogError))
            dead = await letters(client, 2)
            assert values(dead) == [b"3", b"4"]
            assert [[(each["queue"], each["reason"]) for each in deaths_of(record)] for record in dead] == [
                [("q", "maxlen")], [("q", "maxlen")],
            ]  # fmt: skip
            await settled(node, queue)
            assert queue.ready(node) == [0, 1, 2]
            async with client.subscribe("q", prefetch=10) as subscription:
                async with asyncio.timeout(20):
                    hands = [await anext(subscription) for _ in range(3)]
                assert [each.value for each in hands] == [b"0", b"1", b"2"]
                for each in hands:
                    await each.ack()
                assert isinstance((await queue.send(5))[0], Confirm)
                async with asyncio.timeout(20):
                    assert (await anext(subscription)).value == b"5"
            assert values(await letters(client, 2)) == [b"3", b"4"]

    run(test)


def test_who_asks_again_is_told_the_same_and_nothing_comes_twice(tmp_path: Path) -> None:
    """At once, when they have left, at another master, and after a start of all; and what was taken is still taken."""
    settings = settings_for(tmp_path, 2)

    async def asks(queue: Numbered) -> None:
        await queue.find()
        taken, refused = await queue.send(2, 3)
        assert isinstance(taken, Confirm)
        assert taken.flags & CONFIRM_DUPLICATE
        assert isinstance(refused, SentToDeadLetters)

    async def first() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            queue = await full(client)
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            assert [type(each) for each in await queue.send(3, 3)] == [SentToDeadLetters] * 2
            await asks(queue)
            assert values(await letters(client, 1)) == [b"3"]
            await settled(nodes[0], queue)
            await asks(queue)
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            await hand_over(hosted_by(nodes[0]), hosted_by(nodes[1]))
            await asks(queue)
            assert [type(each) for each in await queue.send(4)] == [SentToDeadLetters]
            assert values(await letters(client, 2)) == [b"3", b"4"]

    async def again() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            queue = Numbered(client)
            await queue.find()
            await asks(queue)
            assert values(await letters(client, 2)) == [b"3", b"4"]
            await until(lambda: queue.ready(nodes[0]) == [0, 1, 2])

    run(first)
    run(again)


def test_a_checkpoint_remembers_who_was_refused(tmp_path: Path) -> None:
    """Segments are filled until a start begins with a checkpoint behind the refusal: asked again, it is the same."""
    settings = settings_for(tmp_path, 1)

    async def first() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            assert [type(each) for each in await queue.send(3)] == [SentToDeadLetters]
            end = replica_of(node).log.end
            await client.admin.declare("other")
            async with client.producer("other", batch_bytes=16 * 1024) as producer:
                await producer.send_many([b"x" * 4096] * 256)
            await until(lambda: replica_of(node).log.state_from > end)

    async def again() -> None:
        async with running_all(settings), Client(settings[0].client_bind) as client:
            queue = Numbered(client)
            await queue.find()
            taken, refused = await queue.send(2, 3)
            assert isinstance(taken, Confirm)
            assert isinstance(refused, SentToDeadLetters)
            assert values(await letters(client, 1)) == [b"3"]

    run(first)
    run(again)


def test_a_refused_batch_that_asks_for_no_copies_is_told_at_once(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings), Client(settings[0].client_bind) as client:
            queue = await full(client)
            assert [type(each) for each in await queue.send(3, level=Level.NONE)] == [SentToDeadLetters]
            assert values(await letters(client, 1)) == [b"3"]

    run(test)


def test_a_producer_goes_on_behind_what_was_refused(tmp_path: Path) -> None:
    """The client's: each record is confirmed or was sent to dead letters, none twice, and no number is given up."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            async with client.producer("q", batch_bytes=1) as producer:
                sent = [asyncio.ensure_future(producer.send(b"p%d" % number)) for number in range(20)]
                ended = await asyncio.gather(*sent, return_exceptions=True)
                assert [type(each) for each in ended] == [SentToDeadLetters] * 20
                async with client.subscribe("q", prefetch=10) as subscription:
                    async with asyncio.timeout(20):
                        for _ in range(3):
                            await (await anext(subscription)).ack()
                    await producer.send(b"room")
                    async with asyncio.timeout(20):
                        assert (await anext(subscription)).value == b"room"
                assert producer.stats.retries == 0
            assert values(await letters(client, 20)) == [b"p%d" % number for number in range(20)]
            await settled(node, queue)

    run(test)


@pytest.mark.parametrize(
    "limit", [{"x-max-length": None, "x-max-length-bytes": 450}, {"x-max-length": 3}], ids=["bytes", "records"]
)
def test_a_refused_batch_counts_no_more_than_one_that_never_came(tmp_path: Path, limit: dict[str, Any]) -> None:
    """A hundred are refused; one is settled: one fits, and the next does not, also while the others still leave."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            await client.admin.declare("dead")
            arguments = {key: value for key, value in {**REFUSING, **WAY, **limit}.items() if value is not None}
            await client.admin.declare("q", arguments=arguments)
            queue = Numbered(client)
            await queue.find()
            taken = [isinstance(each, Confirm) for each in await queue.send(*range(100))]
            fits = taken.count(True)
            assert taken == [True] * fits + [False] * (100 - fits)
            assert 0 < fits < 10
            async with client.subscribe("q", prefetch=1) as subscription:
                async with asyncio.timeout(20):
                    await (await anext(subscription)).ack()
            await until(lambda: len(queue.ready(node)) == fits - 1)
            assert [type(each) for each in await queue.send(100, 101)] == [Confirm, SentToDeadLetters]
            assert len(await letters(client, 100 - fits + 1)) == 100 - fits + 1

    run(test)


def test_what_is_refused_by_bytes_is_so_while_others_that_were_refused_are_not_confirmed(tmp_path: Path) -> None:
    """With a mirror; two that come one after the other, when all that is in the queue has long been confirmed."""
    settings = settings_for(tmp_path, 2)

    async def test() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            await client.admin.declare("dead")
            bytes_max = {"x-max-length-bytes": 10, "x-overflow": "reject-publish-dlx"}
            await client.admin.declare("q", arguments={**bytes_max, **WAY})
            queue = Numbered(client)
            await queue.find()
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            for turn in range(5):
                ended = await queue.send(*range(4 * turn, 4 * turn + 4))
                assert [type(each) for each in ended] == [SentToDeadLetters] * 4
            assert len(await letters(client, 20)) == 20

    run(test)


def test_without_an_exchange_for_dead_letters_it_is_refused_and_no_more(tmp_path: Path) -> None:
    """As in RabbitMQ; nothing is stored, and it may be sent again."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await declared(client, **REFUSING)
            assert await queue.taken(5) == 3
            assert replica_of(node).index.next_appended(queue.queue_id) == 3
            assert queue.queue_id not in replica_of(node).forwardings.leaving

    run(test)


def test_a_batch_that_leaves_no_room_for_the_word_that_it_leaves_is_refused_and_no_more(tmp_path: Path) -> None:
    """One that is as large as a batch may be: nothing is stored. A little smaller, it goes to dead letters."""
    settings = settings_for(tmp_path, 1)
    limit = settings[0].limits.max_batch_bytes

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            (refused,) = await queue.send(3, size=limit)
            assert isinstance(refused, QueueFull)
            assert replica_of(node).index.next_appended(queue.queue_id) == 3
            (refused,) = await queue.send(3, size=limit - 8 * 1024)
            assert isinstance(refused, SentToDeadLetters)
            assert len(await letters(client, 3)) == 3

    run(test)


def test_whatever_a_full_queue_sends_on_fits_a_letter_and_keeps_none_behind_it_back(tmp_path: Path) -> None:
    """One record, as large as a batch with it may be and ever less: each is refused, or it arrives; so do two small
    ones behind them. The queue's name, and the key, are the longest that a letter can tell."""
    settings = settings_for(tmp_path, 1)
    limits = settings[0].limits

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            told = []
            for less in (64, 360, 440, 520, 1024, 2048, 3072, 4096, 5120, 5632):
                key = b"\0" * (limits.max_batch_bytes - limits.max_record_bytes - 120 - less)
                record = Record(bytes(limits.max_record_bytes), key)
                batch = encode_batch([record], queue_id=queue.queue_id, producer_id=5000 + less)
                told.append(type(await queue.send_raw(batch)))
            large = told.count(SentToDeadLetters)
            assert set(told) == {QueueFull, SentToDeadLetters}
            assert [type(each) for each in await queue.send(3, 4)] == [SentToDeadLetters] * 2
            assert values(await letters(client, large + 2))[-2:] == [b"3", b"4"]
            await settled(node, queue)

    run(test)


def test_a_batch_that_opens_for_nobody_is_held_and_those_behind_it_leave(tmp_path: Path, unopened: None) -> None:
    """A full queue takes it for its dead letters unopened, twice. It is held, and told, also by another master and
    behind a start; what comes behind it leaves, each once. A reset of the group makes it ready."""
    settings = settings_for(tmp_path, 2)

    async def first() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            queue = await full(client)
            await in_sync(*map(hosted_by, nodes))
            for producer_id in (98, 99):
                bad = packed(queue.queue_id, bytes(4000), producer_id=producer_id, is_bad=True)
                assert isinstance(await queue.send_raw(bad), SentToDeadLetters)
                await settled(nodes[0], queue)
            assert [type(each) for each in await queue.send(3, 4)] == [SentToDeadLetters] * 2
            assert values(await letters(client, 2)) == [b"3", b"4"]
            await settled(nodes[0], queue)
            await held(client, 2)
            await hand_over(hosted_by(nodes[0]), hosted_by(nodes[1]))
            await queue.find()
            assert [type(each) for each in await queue.send(5)] == [SentToDeadLetters]
            assert values(await letters(client, 3)) == [b"3", b"4", b"5"]
            await held(client, 2)

    async def again() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            await held(client, 2)
            queue = Numbered(client)
            await queue.find()
            await until(lambda: queue.ready(nodes[0]) == [0, 1, 2])
            await client.admin.reset_groups("q", [""], to="earliest")
            await until(lambda: queue.ready(nodes[0]) == [*range(8)])

    run(first)
    run(again)


def test_a_compressed_value_above_the_limit_of_records_leaves_as_others_do(tmp_path: Path, unopened: None) -> None:
    """It was let in unopened; whoever it dies for is no reason to keep it back."""
    settings = settings_for(tmp_path, 1)
    limits = settings[0].limits

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            large = bytes(limits.max_record_bytes + 1000)
            assert isinstance(await queue.send_raw(packed(queue.queue_id, large, producer_id=99)), SentToDeadLetters)
            assert [type(each) for each in await queue.send(3, 4)] == [SentToDeadLetters] * 2
            assert values(await letters(client, 3)) == [large, b"3", b"4"]
            await settled(node, queue)

    run(test)


def test_a_letter_that_is_too_large_for_any_batch_is_held_and_those_behind_it_leave(
    tmp_path: Path, unopened: None
) -> None:
    """Its body is as large as a node opens, and a letter larger: it expires, and stays where it is."""
    settings = settings_for(tmp_path, 1)
    limits = settings[0].limits

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            await client.admin.declare("dead")
            await client.admin.declare("q", arguments={**WAY, "x-max-length": 1})
            queue = Numbered(client)
            await queue.find()
            large = packed(queue.queue_id, bytes(limits.max_batch_bytes - 16), producer_id=99)
            assert isinstance(await queue.send_raw(large), Confirm)
            assert [type(each) for each in await queue.send(0, 1)] == [Confirm] * 2
            assert values(await letters(client, 1)) == [b"0"]
            await settled(node, queue)
            await held(client, 1)

    run(test)


def test_a_transaction_is_refused_whole_and_nothing_of_it_goes_to_dead_letters(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            admitting = hosted_by(node).role.lengths  # type: ignore[union-attr]

            with pytest.raises(QueueFull):
                admitting.admit([read_header(encode_batch([Record(b"3")], queue_id=queue.queue_id))])
            assert queue.queue_id not in replica_of(node).forwardings.leaving

    run(test)


def test_a_letter_for_a_full_queue_that_sends_on_goes_where_that_one_leads(tmp_path: Path) -> None:
    """a is full and leads to b, which is full and leads to c: what a refuses comes to c, and says both."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            await client.admin.declare("c")
            lead = {"x-max-length": 0, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""}
            await client.admin.declare("b", arguments={**lead, "x-dead-letter-routing-key": "c"})
            await client.admin.declare("a", arguments={**lead, "x-dead-letter-routing-key": "b"})
            async with client.producer("a") as producer:
                with pytest.raises(SentToDeadLetters):
                    await producer.send(b"v")
            (record,) = await letters(client, 1, "c")
            assert [each["queue"] for each in deaths_of(record)] == ["b", "a"]
            await until(lambda: not replica_of(node).forwardings.leaving)

    run(test)


def test_while_nobody_takes_its_dead_letters_a_full_queue_stores_no_more_than_may_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One departure may wait: what comes behind it is refused and not stored, until it has left."""
    monkeypatch.setattr(lengths, "FORWARDINGS_MAX", 1)
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            hand_over = DeadLetterLinks.hand_over
            away = asyncio.Event()

            async def later(*args: Any, **more: Any) -> None:
                await away.wait()
                await hand_over(*args, **more)

            monkeypatch.setattr(DeadLetterLinks, "hand_over", later)
            assert [type(each) for each in await queue.send(3)] == [SentToDeadLetters]
            assert [type(each) for each in await queue.send(4)] == [QueueFull]
            assert replica_of(node).index.next_appended(queue.queue_id) == 4
            away.set()
            await settled(node, queue)
            assert [type(each) for each in await queue.send(4)] == [SentToDeadLetters]
            assert values(await letters(client, 2)) == [b"3", b"4"]

    run(test)


@pytest.mark.parametrize(
    "attributes",
    [Attributes(5, 50), Attributes(5, None, 3_600_000), Attributes(0, 50, 20)],
    ids=["ttl", "delay", "both"],
)
def test_what_is_refused_neither_waits_for_its_delay_nor_dies_twice(tmp_path: Path, attributes: Attributes) -> None:
    """It comes to the dead letters at once, for one reason, and is done then."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            ended = await queue.publish(2, attributes)
            assert [type(each) for each in ended] == [SentToDeadLetters] * 2
            dead = await letters(client, 2)
            assert [[each["reason"] for each in deaths_of(record)] for record in dead] == [["maxlen"]] * 2
            await settled(node, queue)
            async with client.subscribe("q", prefetch=10) as subscription:
                async with asyncio.timeout(20):
                    for _ in range(3):
                        await (await anext(subscription)).ack()
            await until(lambda: replica_of(node).groups.find(queue.queue_id, "").floor == 5)
            assert len(await letters(client, 2)) == 2

    run(test)


def test_a_circle_of_full_queues_ends(tmp_path: Path) -> None:
    """a leads to b and b to a, both full: what comes goes nowhere a second time."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            lead = {"x-max-length": 0, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""}
            await client.admin.declare("a", arguments={**lead, "x-dead-letter-routing-key": "b"})
            await client.admin.declare("b", arguments={**lead, "x-dead-letter-routing-key": "a"})
            async with client.producer("a") as producer:
                with pytest.raises(SentToDeadLetters):
                    await producer.send(b"v")
            replica = replica_of(node)
            await until(lambda: not replica.forwardings.leaving)
            assert [replica.index.next_appended(replica.queues.find(name).queue_id) for name in "ab"] == [1, 1]

    run(test)


def test_what_cannot_be_appended_is_not_said_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log refuses the batch with its change: nothing is stored, and the same batch comes through later, once."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as (node,), Client(settings[0].client_bind) as client:
            queue = await full(client)
            replica = replica_of(node)
            append = replica.append_transaction

            def refuse(*args: Any, **more: Any) -> Any:
                monkeypatch.setattr(replica, "append_transaction", append)
                raise BadRequest("not now")

            monkeypatch.setattr(replica, "append_transaction", refuse)
            assert [type(each) for each in await queue.send(3)] == [BadRequest]
            assert replica.index.next_appended(queue.queue_id) == 3
            assert [type(each) for each in await queue.send(3)] == [SentToDeadLetters]
            assert values(await letters(client, 1)) == [b"3"]

    run(test)


def test_the_answer_waits_for_the_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that it was refused before the copies have it: it may be lost yet, and then it comes anew."""
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings), Client(settings[0].client_bind) as client:
            queue = await full(client)
            waiting: list[tuple[LogPublisher, Callable[[], list[Answer]]]] = []
            wait = LogPublisher._wait

            def hold(self: LogPublisher, *args: Any, **more: Any) -> list[Answer]:
                waiting.append((self, partial(wait, self, *args, **more)))
                return []

            monkeypatch.setattr(LogPublisher, "_wait", hold)
            sending = asyncio.ensure_future(queue.send(3))
            await until(lambda: bool(waiting))
            assert queue.connection is not None
            await client.admin.queues()  # whatever was answered before has come by now
            assert not sending.done()
            monkeypatch.setattr(LogPublisher, "_wait", wait)
            for publisher, answers in waiting:
                for answer in answers():
                    publisher.answer(answer)
            assert [type(each) for each in await sending] == [SentToDeadLetters]

    run(test)


@pytest.mark.parametrize("behind", [False, True], ids=["before its confirm", "behind its confirm"])
def test_a_batch_that_was_refused_is_none_of_a_transaction_and_harms_no_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, behind: bool
) -> None:
    """Sent alone and sent on, then once more in a transaction: that is refused, and stores nothing. The mirror's link
    stays, and who waits for the same word of the mirror is told."""
    settings = settings_for(tmp_path, 2)

    async def test() -> None:
        async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
            await in_sync(*map(hosted_by, nodes))
            queue = await full(client)
            other = Numbered(client)
            await other.find()
            assert queue.connection is not None
            batch = encode_batch([Record(b"3")], queue_id=queue.queue_id, producer_id=PRODUCER, sequence=3)
            payload = transact_payload([], [bytes(batch)], level=Level.ALL, durability=0, deadline_ms=1000)
            alone = asyncio.ensure_future(queue.send(3))
            await (alone if behind else asyncio.sleep(0))
            together = asyncio.ensure_future(queue.connection.transact(payload, timeout_ms=5000))
            await asyncio.sleep(0)
            next_one = asyncio.ensure_future(queue.send(4))
            with pytest.raises(BadBatch, match="alone"):
                await together
            assert [type(each) for each in [*await alone, *await next_one]] == [SentToDeadLetters] * 2
            assert "mirror_left" not in caplog.text
            assert values(await letters(client, 2)) == [b"3", b"4"]

    run(test)
