"""The producer over a connection that answers as told: what real nodes cannot be made to do on demand.

The node's side is the real producer table; only the socket is missing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace as changed

import mirrorlog
from mirrorlog.client import Client, Producer
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.queue_metadata import FoundQueue
from mirrorlog.client.events import Blocked, ClientEvent, ClientEvents, Unblocked
from mirrorlog.client.options import ProducerOptions
from mirrorlog.client.producer.record import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.header import Codec, read_header
from mirrorlog.errors import (
    BadInput,
    BatchTooLarge,
    Closed,
    ConnectionLost,
    MasterChanged,
    MirrorlogError,
    NoSuchQueue,
    NotMaster,
    OutcomeUnknown,
    Overloaded,
    QueueMoving,
    RecordTooLarge,
)
from mirrorlog.queues.producers import ProducerTable
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm, Durability, Level
from mirrorlog.wire.messages.handshake import NodeLimits
from mirrorlog.wire.messages.queues import QueueInfo

MIB = 1024 * 1024
Answer = Confirm | MirrorlogError | None


@dataclass
class Node:
    """The rules of a node for one queue."""

    table: ProducerTable = field(default_factory=ProducerTable)
    records: list[Record] = field(default_factory=list)

    def __call__(self, batch: bytes) -> Answer:
        header = read_header(batch)
        try:
            landed = self.table.check(header)
        except MirrorlogError as error:
            return error
        if landed is not None:
            return Confirm(landed.log_offset, landed.base_queue_offset, 1, 1, 0, CONFIRM_DUPLICATE)
        base = len(self.records)
        self.table.apply(header._replace(base_queue_offset=base, log_offset=100 * base, epoch=1, append_time_us=1))
        self.records += open_body(batch, body_bytes_max=MIB).records()
        return Confirm(100 * base, base, 1, 1, 0, 0)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


info = QueueInfo(name="q", queue_id=1, log_id="", epoch=1, master="n1", mirrors=[], begin=0, next=0)
found = FoundQueue(info, version=1, told_by="n1", address="n1:1")


class Link:
    """A connection whose answers come on the loop's next turn; None: no answer ever comes."""

    usable = True
    welcome = SimpleNamespace(limits=NodeLimits(max_record_bytes=MIB, max_batch_bytes=2 * MIB))
    credit_bytes = 0
    events = ClientEvents(None)
    request_timeout_ms = 1_000

    def __init__(self, answer: Callable[[bytes], Answer]) -> None:
        self.answer = answer
        self.sent = 0
        self.levels: list[int] = []
        self.found = found

    def produce(
        self,
        batch: bytearray,
        *,
        level: int,
        durability: int,
        deadline_ms: int,
        done: Callable[[Any], None],
        routing: int = 0,
    ) -> None:
        self.sent += 1
        self.levels.append(level)
        result = self.answer(bytes(batch))
        if result is not None:
            asyncio.get_running_loop().call_soon(done, result)

    async def master_of(self, queue: str) -> tuple[Link, FoundQueue]:
        """A client's part: this is the link to the queue's master."""
        return self, self.found

    async def vouched(self, found: FoundQueue) -> FoundQueue:
        """A client's part: the master has said so itself."""
        return found

    async def newer_master(self, than: FoundQueue) -> None:
        """A client's part: nobody knows of another one."""


def producer_on(answer: Callable[[bytes], Answer] | Link, **options: Any) -> Producer:
    usual = {
        "level": Level.ALL,
        "durability": Durability.MEMORY,
        "batch_bytes": MIB,
        "linger_ms": 5,
        "window_bytes": 4 * MIB,
        "max_in_flight": 16,
        "delivery_timeout_ms": 60_000,
        "idempotent": True,
    }
    link = answer if isinstance(answer, Link) else Link(answer)
    return Producer(cast(Client, link), "q", ProducerOptions(**{**usual, **options}))


@pytest.mark.parametrize(
    ("asked", "says", "sent"),
    [
        (None, {}, Level.ALL),
        (None, {"confirm": "master"}, Level.MASTER),
        (None, {"confirm": 3}, 3),
        (None, {"confirm": "as newer nodes say"}, Level.ALL),
        (None, {"confirm": {"level": 1}}, Level.ALL),
        (Level.ALL, {"confirm": "none"}, Level.ALL),
        (Level.NONE, {"confirm": "all"}, Level.NONE),
    ],
)
async def test_who_asks_for_no_level_gets_that_of_the_queue(asked: int | None, says: dict[str, Any], sent: int) -> None:
    """Goal: a policy says what a confirm means, and never against who asks. Method: a producer with a level or without,
    and what the queue says when it is found."""
    link = Link(Node())
    link.found = changed(found, info=changed(info, effective=says))
    async with producer_on(link, level=asked) as producer:
        await producer.send(b"v")
    assert link.levels == [sent]


def headers_of(node: Node) -> list[list[Any]]:
    return [list(record.headers) for record in node.records]


@pytest.mark.parametrize("way", ["send_nowait", "send_batch_nowait", "send_many_nowait"])
async def test_header_pairs_may_be_used_again(way: str) -> None:
    """Each record keeps what its pairs were when it was handed over; by one list for three of them."""
    node, pair = Node(), ["n", b"?"]
    async with producer_on(node) as producer:
        for number in range(3):
            pair[1] = b"%d" % number
            if way == "send_nowait":
                producer.send_nowait(b"v", headers=[pair])  # type: ignore[list-item]
            elif way == "send_batch_nowait":
                producer.send_batch_nowait([Record(b"v", None, [pair], None)])  # type: ignore[list-item]
            else:
                producer.send_many_nowait([b"v"], headers=[[pair]])
        pair[1] = "no bytes"
    assert headers_of(node) == [[("n", b"0")], [("n", b"1")], [("n", b"2")]]


async def test_header_pairs_may_be_readable_once() -> None:
    """They are read once, when the record is handed over; by iterators, alone and as a ready batch."""
    node = Node()
    async with producer_on(node) as producer:
        producer.send_nowait(b"v", headers=[iter(("a", b"1"))])  # type: ignore[list-item]
        producer.send_batch_nowait([Record(b"v", None, iter([iter(("b", b"2"))]), None)])  # type: ignore[arg-type]
    assert headers_of(node) == [[("a", b"1")], [("b", b"2")]]


async def test_a_batch_that_cannot_be_encoded_ends_alone_and_at_once() -> None:
    """Whatever slipped through the checks must not stop the producer until its deadline; by a text put into the open
    batch behind them."""
    node = Node()
    async with producer_on(node) as producer:
        await producer.send(b"before")
        spoilt = producer.send_nowait(b"with it")
        batch = producer._accumulator.batch
        assert batch is not None
        batch.add(cast(bytes, "text"), None, (), None, 30)
        async with asyncio.timeout(10):
            with pytest.raises(BadInput, match="cannot be sent"):
                await spoilt
            await producer.send(b"after")
    assert node.values == [b"before", b"after"]


async def test_a_batch_that_its_connection_does_not_take_ends_at_once() -> None:
    """No answer will come to it; what left of it is not known. By a connection that raises once."""
    node = Node()
    raising = [ValueError("no room in the frame")]

    def answer(batch: bytes) -> Answer:
        if raising:
            raise raising.pop()
        return node(batch)

    async with producer_on(answer) as producer:
        async with asyncio.timeout(10):
            with pytest.raises(OutcomeUnknown, match="no room in the frame"):
                await producer.send(b"first")
            await producer.send(b"second")
    assert node.values == [b"second"]


@pytest.mark.parametrize("kind", [NotMaster, QueueMoving, MasterChanged])
async def test_a_batch_goes_to_the_next_master(kind: type[MirrorlogError]) -> None:
    """Whatever the former master says of its going, the batch is sent to the next one, and not to it again."""
    node = Node()
    former, following = Link(lambda batch: kind("another node writes the log now")), Link(node)
    links = iter((former, following))

    async def master_of(queue: str) -> tuple[Link, FoundQueue]:
        return next(links), found

    async with producer_on(node) as producer:
        producer._sender._client.master_of = master_of  # type: ignore[method-assign, assignment]
        await producer._sender.connect()
        await producer.send(b"v")
    assert (former.sent, following.sent, node.values) == (1, 1, [b"v"])


async def test_a_record_that_goes_alone_is_the_record_that_was_given() -> None:
    """With nothing else on its way it takes a shorter path; by every column, under each codec, then one by one."""
    records = [
        Record(b"v"),
        Record(b"", b""),
        Record(None),
        Record(None, b"k"),
        Record(b"v", b"k", [("n", b"1"), ("n", None)]),
        Record(b"v", None, (), -5),
        Record(b"long " * 1000, b"key " * 100),
    ]
    for codec in Codec:
        node = Node()
        async with producer_on(node, codec=codec) as producer:
            for value, key, headers, timestamp_us in records:
                await producer.send(value, key=key, headers=list(headers), timestamp=timestamp_us)
            assert producer._window.free
        assert [each._replace(headers=list(each.headers)) for each in node.records] == [
            each._replace(headers=list(each.headers)) for each in records
        ]
        assert producer.stats.sent == producer.stats.confirmed == producer.stats.batches == len(records)


async def test_what_goes_alone_is_checked_and_counted_as_the_others() -> None:
    """By a wrong value, one above each limit, and a producer that was closed; nothing of them leaves."""
    node = Node()
    producer = await producer_on(node).start()
    with pytest.raises(BadInput):
        await producer.send(cast(bytes, 5))
    with pytest.raises(RecordTooLarge, match="max_record_bytes"):
        await producer.send(bytes(MIB + 1))
    with pytest.raises(RecordTooLarge, match="max_batch_bytes"):
        await producer.send(b"", key=bytes(2 * MIB))
    await producer.send(bytes(MIB))
    await producer.close()
    with pytest.raises(Closed, match="closed"):
        await producer.send(b"late")
    assert [len(value or b"") for value in node.values] == [MIB]


async def test_an_awaited_record_costs_few_calls() -> None:
    """Goal: who sends one record at a time waits for the node, not for the client. Calls that the package makes are
    counted, of Python and of C: unlike times they are the same on every machine. 178 before this path was made."""
    package = str(Path(mirrorlog.__file__).parent)
    rounds, calls = 50, 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call") and frame.f_code.co_filename.startswith(package)

    confirmed = Confirm(0, 0, 1, 1, 0, 0)
    async with producer_on(lambda batch: confirmed) as producer:
        await producer.send(b"warm")
        sys.setprofile(count)
        try:
            for _ in range(rounds):
                await producer.send(b"v" * 1000)
        finally:
            sys.setprofile(None)
    assert calls / rounds < 85


async def test_a_batch_without_an_answer_ends_in_time_whatever_others_do() -> None:
    """Its deadline is kept though nothing is left to send when the others end; by answering every batch but one."""
    node = Node()

    def answer(batch: bytes) -> Answer:
        return None if open_body(batch, body_bytes_max=MIB).record(0).value == b"lost" else node(batch)

    async with producer_on(answer, delivery_timeout_ms=300, idempotent=False) as producer:
        async with asyncio.timeout(20):
            lost = producer.send_batch_nowait([Record(b"lost")])
            others = [producer.send_batch_nowait([Record(b"fine")]) for _ in range(5)]
            assert len([await other for other in others]) == 5
            with pytest.raises(OutcomeUnknown):
                await lost
            await producer.send(b"on")
    assert node.values == [b"fine"] * 5 + [b"on"]


def silent(batch: bytes) -> Answer:
    return None


async def test_a_send_that_finds_no_room_ends_within_the_delivery_timeout() -> None:
    """Not after one timeout for each window's worth of senders before it; by twenty, each needing all of the window."""
    async with producer_on(silent, delivery_timeout_ms=300, window_bytes=1000) as producer:
        sends = [producer.send(b"x" * 900) for _ in range(20)]
        ended = await asyncio.gather(*sends, return_exceptions=True)
    refused = [error for error in ended if isinstance(error, Overloaded)]
    assert len(refused) >= 17, "the others found room, and have their own timeout from then on"
    assert all(isinstance(error, Overloaded | OutcomeUnknown) for error in ended)
    assert refused[0].details == {"limit": "window_bytes"}
    assert "delivery_timeout_ms" in str(refused[0])


async def test_a_bulk_that_finds_no_room_ends_within_the_delivery_timeout() -> None:
    """As one record does, and nothing of it is sent; by a window in which others hold their place."""
    node = Node()
    async with producer_on(node, delivery_timeout_ms=200, window_bytes=1000) as producer:
        producer._window.take(900)
        async with asyncio.timeout(20):
            with pytest.raises(Overloaded, match="delivery_timeout_ms"):
                await producer.send_many([b"x" * 200] * 3)
        assert node.records == []
        producer._window.release(900)
        assert len(await producer.send_many([b"x" * 200] * 3)) == 3


async def test_a_bulk_that_is_stored_in_part_is_not_refused() -> None:
    """Goal: nobody stores twice what he was told was not. One batch of three is confirmed, the next is refused; and the
    producer is closed while the rest waits for room."""
    node = Node()

    def first_alone(batch: bytes) -> Answer:
        return BatchTooLarge("the limit of another node") if node.records else node(batch)

    async with producer_on(first_alone, batch_bytes=300) as producer:
        with pytest.raises(OutcomeUnknown, match="1 of 3 records are confirmed; last: the limit of another node"):
            await producer.send_many([b"x" * 200] * 3)
    async with producer_on(silent, batch_bytes=300, window_bytes=600) as producer:
        sending = asyncio.ensure_future(producer.send_many([b"x" * 200] * 3))
        while not producer.stats.batches:
            assert not sending.done()
            await asyncio.sleep(0)
        producer.abandon()
        with pytest.raises(OutcomeUnknown):
            await sending


async def test_the_window_counts_what_a_batch_takes_besides_its_records() -> None:
    """Else bulks of one empty record would fill the memory long before the window; by counting how many fit."""
    limit = 100 * BATCH_OVERHEAD_BYTES
    async with producer_on(silent, window_bytes=limit) as producer:
        for _ in range(limit // (BATCH_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES)):
            producer.send_many_nowait([b""])
        with pytest.raises(Overloaded):
            producer.send_many_nowait([b""])
        producer.abandon()


async def test_the_window_is_empty_once_all_has_ended() -> None:
    """What was counted is given back to the byte; by records, ready batches and bulks of several batches."""
    async with producer_on(Node(), batch_bytes=100) as producer:
        for _ in range(5):
            producer.send_nowait(b"x" * 30)
        producer.send_batch_nowait([Record(b"v")])
        delivery = producer.send_many_nowait([b"x" * 60] * 5)
        await producer.flush()
        assert len(await delivery) == 5
        assert producer.stats.batches > 5
        assert producer._window._pending() == 0


async def test_a_bulk_is_refused_whole_by_what_all_its_batches_take() -> None:
    """Nothing of it is handed over; by one whose records fit, but not its batches."""
    async with producer_on(silent, batch_bytes=1, window_bytes=10 * BATCH_OVERHEAD_BYTES) as producer:
        producer.send_many_nowait([b""])
        with pytest.raises(Overloaded):
            producer.send_many_nowait([b""] * 10)
        assert producer.stats.batches == 1
        producer.abandon()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Held(Link):
    """A node that grants little, confirms at level `master`, and never says that anything is confirmed by all. `next`:
    who has replaced it, as other nodes know."""

    def __init__(self, node: Node, credit_bytes: int) -> None:
        super().__init__(node)
        limits = NodeLimits(
            max_record_bytes=MIB, max_batch_bytes=2 * MIB, credit_bytes=credit_bytes, credit_batches=100
        )
        self.welcome = SimpleNamespace(limits=limits)
        self.credit_bytes = credit_bytes
        self.address = "n1:1"
        self.next: Link | None = None

    def on_credit(self, *told: object) -> None:
        """Nobody will be told."""

    off_credit = on_credit

    async def newer_master(self, than: FoundQueue) -> FoundQueue | None:  # type: ignore[override]
        return changed(found, version=2, address="n2:1") if self.next is not None else None

    async def reach(self, address: str) -> Link | None:
        return self.next


async def test_a_producer_that_is_held_looks_for_another_master() -> None:
    """Goal: a node that hangs or was replaced gives no credit, and nothing is in flight that would tell. Method: one
    that grants a batch and says no more; then other nodes know of a new master: what waited is sent there. Whoever
    listens is told of both."""
    node, told = Node(), list[ClientEvent]()
    hanging = Held(node, credit_bytes=100)
    hanging.events = ClientEvents(told.append)
    async with producer_on(
        hanging, level=Level.MASTER, batch_bytes=200, linger_ms=0, delivery_timeout_ms=15_000
    ) as producer:
        await producer.send(b"1")
        waits = producer.send_nowait(b"2")
        await asyncio.sleep(0)
        assert (hanging.sent, waits.done()) == (1, False)
        await until(lambda: bool(told))
        hanging.next = Link(node)
        await asyncio.wait_for(waits, 10)
        await until(lambda: len(told) > 1)
    assert isinstance(told[0], Blocked)
    assert "the node grants 100 bytes" in told[0].reason
    assert told[1:] == [Unblocked("q")]
    assert node.values == [b"1", b"2"]
    assert hanging.sent == 1


async def test_what_is_sent_to_a_queue_that_went_with_its_node_ends_at_once() -> None:
    """Goal: nobody waits out his delivery timeout for a queue that is gone for good. Method: the connection goes with
    an unanswered batch and one that waits; then a node says that the queue has gone: the first may be stored, the
    second is not. So says it of a third; and once the queue is declared anew a fourth lands, first of a new epoch."""
    node, anew = Link(lambda batch: None), Node()
    gone, looked = NoSuchQueue("it has gone with its node", queue="q", ended=True), asyncio.Event()
    following: list[Link] = []

    async def master_of(queue: str) -> tuple[Link, FoundQueue]:
        await looked.wait()
        if following:
            return following[0], changed(found, info=changed(info, queue_id=2, incarnation="new"))
        raise gone

    async with producer_on(node, max_in_flight=1, delivery_timeout_ms=10_000) as producer:
        sender = producer._sender
        unanswered, waits = (producer.send_many_nowait([value]) for value in (b"1", b"2"))
        assert (node.sent, len(sender.unresolved())) == (1, 2)
        sender._client.master_of = master_of  # type: ignore[method-assign, assignment]
        node.usable = False
        [first, *_] = sender.unresolved()
        sender._answered(cast(Connection, node), first, sender._pipeline.allowance, 0, ConnectionLost("gone"))
        looked.set()
        async with asyncio.timeout(5):
            with pytest.raises(OutcomeUnknown, match="gone with its node"):
                await unanswered
            with pytest.raises(NoSuchQueue, match="gone with its node"):
                await waits
            with pytest.raises(NoSuchQueue, match="gone with its node"):
                await producer.send(b"3")
        following.append(Link(anew))
        await producer.send(b"4")
    assert anew.values == [b"4"]


@pytest.mark.parametrize("ended", [False, True])
async def test_a_queue_that_is_not_found_is_looked_for_unless_it_is_gone_for_good(ended: bool) -> None:
    """A mirror may answer that has not heard of it yet, while its master is away."""
    node, looks = Node(), list[int]()

    async def master_of(queue: str) -> tuple[Link, FoundQueue]:
        looks.append(1)
        if len(looks) == 1:
            raise NoSuchQueue("no queue", queue="q", **{"ended": True} if ended else {})
        return Link(node), found

    async with producer_on(node) as producer:
        producer._sender._client.master_of = master_of  # type: ignore[method-assign, assignment]
        producer._sender._leave()
        if ended:
            with pytest.raises(NoSuchQueue):
                await producer.send(b"v")
        else:
            await producer.send(b"v")
    assert (len(looks), len(node.values)) == ((1, 0) if ended else (2, 1))
