"""Nodes that give out records as they are told, over real sockets: what a real one cannot be made to do on demand.

The test grants, and sees what is settled; a node answers subscriptions while it holds itself for the master, and
settlements as it is told. What it is not asked for it does not do: there are no rules for groups here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.errors import MirrorlogError
from mirrorlog.testing.ports import HOST
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import (
    BATCHES,
    SETTLE_AGAIN,
    Confirm,
    Frame,
    FrameType,
    Grant,
    How,
    deliver_head,
    frame,
    read_fetch,
    read_settle,
    settled_frame,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import decode, encode, error_frame
from mirrorlog.wire.messages.groups import (
    ExtendLease,
    Lease,
    Leases,
    LeasesSettled,
    SetPrefetch,
    SettleLease,
    Subscribe,
    Subscribed,
    SubscriptionEnded,
    Unsubscribe,
)
from mirrorlog.wire.messages.queues import Done
from tests.client.scripted_nodes import LOG_ID, MIB, Link, Node, Nodes


@dataclass(frozen=True, slots=True)
class Settled:
    """What a node was told. `ranges`: flat; `again`: with that flag."""

    node: str
    subscription: int
    epoch: int
    how: How
    level: int
    delay_ms: int
    ranges: tuple[int, ...]
    again: bool = False


@dataclass(eq=False)
class Giver(Node):
    """`settling`: what it answers to settlements: None is a confirm, an error that; `silent`: nothing; `passed_over`:
    records of each that somebody else has. `refuses`: what it answers to Subscribe; `late`: not before `catch_up`;
    `deaf`: Unsubscribe is not answered before that; `left`: subscriptions that it was to end as if their connection
    were gone. `leases`: what it answers to Lease; `keeps`: settlements of leases are
    not answered before `catch_up`."""

    settling: MirrorlogError | None = None
    silent: bool = False
    passed_over: int = 0
    tells_which: bool = True
    refuses: MirrorlogError | None = None
    late: bool = False
    deaf: bool = False
    left: list[int] = field(default_factory=list)
    owed: list[Callable[[], None]] = field(default_factory=list)
    last: int = 0
    subscribes: list[Subscribe] = field(default_factory=list)
    prefetches: list[SetPrefetch] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    asked_of_leases: list[Message] = field(default_factory=list)
    leases: Leases | None = None
    keeps: bool = False
    by_number: dict[int, GiverLink] = field(default_factory=dict)

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(
            lambda: Endpoint(GiverLink(self), frame_bytes_max=64 * MIB, outgoing_bytes_max=64 * MIB), HOST, 0
        )
        self.address = f"{HOST}:{self.server.sockets[0].getsockname()[1]}"

    @property
    def number(self) -> int:
        """Of the subscription that was made last and stands."""
        return max(self.by_number)

    def give(self, *grants: Grant, batches: tuple[int, ...] = (), number: int = 0) -> None:
        """`batches`: which of the stored ones go with them, by their place in the queue."""
        number = number or self.number
        contents = [self.nodes.batches[each][1] for each in batches]
        head = deliver_head(
            subscription=number,
            epoch=self.epoch,
            next_confirmed=len(self.nodes.values),
            grants=grants,
            batch_count=len(contents),
            batches_bytes=sum(map(len, contents)),
        )
        self.by_number[number].endpoint.send([head, *contents])

    def end(self, error: MirrorlogError) -> None:
        """The last subscription ends, by the node's word."""
        number = self.number
        message = SubscriptionEnded(subscription=number, code=error.code, message=error.message, details=error.details)
        self.by_number.pop(number).endpoint.send([frame(FrameType.ENDED, encode(message))])

    def catch_up(self) -> None:
        """Give the answers that are owed."""
        self.late = False
        owed, self.owed = self.owed, []
        for answer in owed:
            answer()

    def drop(self) -> None:
        """All connections end; new ones are taken."""
        for link in list(self.links):
            link.endpoint.abort()

    def answer(self, message: Message) -> Message | MirrorlogError:
        if isinstance(message, Lease | SettleLease | ExtendLease):
            self.asked_of_leases.append(message)
            if (refusal := self.refused()) is not None:
                return refusal
            if isinstance(message, Lease):
                assert self.leases is not None
                return self.leases
            return LeasesSettled(records=sum(each.next - each.first for each in message.receipts))
        return super().answer(message)


class GiverLink(Link):
    """One connection of a client."""

    node: Giver

    def frame(self, frame: Frame) -> None:
        if self.node.hangs:
            return
        message = decode(frame.payload) if frame.type == FrameType.REQUEST else None
        if isinstance(message, Subscribe):
            self._subscribe(message, frame.correlation_id)
        elif isinstance(message, SetPrefetch):
            self.node.prefetches.append(message)
            self._respond(Done(), frame.correlation_id)
        elif isinstance(message, Unsubscribe):
            self._unsubscribe(message, frame.correlation_id)
        elif frame.type == FrameType.SETTLE:
            self._settle(frame)
        elif frame.type == FrameType.PING:
            self.endpoint.send([_pong(frame)])
        else:
            super().frame(frame)

    def disconnected(self, error: MirrorlogError | None) -> None:
        super().disconnected(error)
        numbers = [number for number, link in self.node.by_number.items() if link is self]
        for number in numbers:
            del self.node.by_number[number]

    def _respond(self, answer: Message | MirrorlogError, correlation_id: int) -> None:
        if self.node.keeps and isinstance(answer, LeasesSettled):
            self.node.owed.append(partial(super()._respond, answer, correlation_id))
        else:
            super()._respond(answer, correlation_id)

    def _subscribe(self, message: Subscribe, correlation_id: int) -> None:
        node = self.node
        refusal = node.refused() or node.refuses
        if refusal is not None:
            self.endpoint.send([error_frame(refusal, correlation_id)])
            return
        node.subscribes.append(message)
        node.last += 1
        node.by_number[node.last] = self
        answer = Subscribed(
            subscription=node.last,
            log_id=LOG_ID,
            epoch=node.epoch,
            queue_id=1,
            prefetch_records=message.prefetch_records,
            prefetch_bytes=message.prefetch_bytes,
            secret=f"secret of {node.node_id} {node.last}",
        )
        if node.late:
            node.owed.append(lambda: self._respond(answer, correlation_id))
        else:
            self._respond(answer, correlation_id)

    def _unsubscribe(self, message: Unsubscribe, correlation_id: int) -> None:
        if message.leaves:
            self.node.left.append(message.subscription)

        def done() -> None:
            self.node.by_number.pop(message.subscription, None)
            self._respond(Done(), correlation_id)

        if self.node.deaf:
            self.node.owed.append(done)
        else:
            done()

    def _fetch(self, request: Frame) -> None:
        """From the batch that holds the record on; only one, so that who wants more asks again."""
        fetch = read_fetch(request.payload)
        behind = [(base, each) for base, each in self.node.nodes.batches if _next_of(each) > fetch.queue_offset]
        if not behind:
            asyncio.get_running_loop().call_later(fetch.wait_ms / 1000, self._fetch_late, request)
            return
        head = BATCHES.pack(0, len(self.node.nodes.values), 0, self.node.epoch, 1)
        self.endpoint.send([frame(FrameType.BATCHES, head + behind[0][1], request.correlation_id)])

    def _settle(self, request: Frame) -> None:
        facts, ranges = read_settle(request.payload)
        node = self.node
        node.settled.append(
            Settled(
                node.node_id,
                facts.subscription,
                facts.epoch,
                How(facts.how),
                facts.level,
                facts.delay_ms,
                ranges,
                bool(facts.flags & SETTLE_AGAIN),
            )
        )
        if node.silent:
            return
        if node.settling is not None:
            self.endpoint.send([error_frame(node.settling, request.correlation_id)])
        else:
            records = sum(following - first for first, following in zip(ranges[::2], ranges[1::2], strict=True))
            gone = node.passed_over
            elsewhere = [(ranges[0], ranges[0] + gone)] if gone and node.tells_which else []
            self.endpoint.send([settled_frame(records - gone, request.correlation_id, gone, elsewhere)])


def _next_of(batch: bytes) -> int:
    return read_header(batch).next_queue_offset


def _pong(ping: Frame) -> bytes:
    return frame(FrameType.PONG, correlation_id=ping.correlation_id)


def stored(nodes: Nodes, *values: bytes) -> int:
    """A batch of records in the queue; its place there."""
    number = len(nodes.batches)
    batch = encode_batch(
        [Record(value) for value in values], queue_id=1, producer_id=number + 1, producer_epoch=0, sequence=0
    )
    assert isinstance(nodes.store(bytes(batch)), Confirm)
    return number


@asynccontextmanager
async def givers(count: int = 2) -> AsyncIterator[Nodes]:
    """`n1`, the master, and as many others, all of one mind."""
    nodes = Nodes()
    for number in range(1, count + 1):
        node = nodes.by_id[f"n{number}"] = Giver(nodes, f"n{number}")
        await node.start()
    try:
        yield nodes
    finally:
        for node in nodes.by_id.values():
            node.kill()
