"""Nodes that do as they are told, over real sockets: what real ones cannot be made to do on demand.

They share one queue's records, as if replication took no time. Each has its own view of the cluster, which may be
behind or wrong, takes batches only while it holds itself for the master, by the real rules for producers, and may
refuse, hang or die.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.header import log_seed, read_header, stamp
from mirrorlog.errors import LogCorrupt, MirrorlogError, NotMaster
from mirrorlog.queues.producers import ProducerTable
from mirrorlog.testing.ports import HOST
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import (
    BATCHES,
    CONFIRM_DUPLICATE,
    PRODUCE,
    Confirm,
    Frame,
    FrameType,
    confirm_frame,
    frame,
    read_fetch,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import decode, encode, error_frame
from mirrorlog.wire.messages.handshake import NodeLimits, Welcome
from mirrorlog.wire.messages.queues import (
    CommitPosition,
    DeclareQueue,
    Done,
    FindOffset,
    FoundOffset,
    GetMetadata,
    Metadata,
    NodeInfo,
    QueueInfo,
)
from mirrorlog.wire.messages.status import ClusterStatus, GetStatus, NodeStatus, Status

LOG_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
QUEUE = "q"
MIB = 1024 * 1024


@dataclass(eq=False)
class Nodes:
    """All of them, and what the queue holds. `batches`: as stored, with the first queue offset of each."""

    by_id: dict[str, Node] = field(default_factory=dict)
    table: ProducerTable = field(default_factory=ProducerTable)
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)

    def __getitem__(self, node_id: str) -> Node:
        return self.by_id[node_id]

    @property
    def servers(self) -> list[str]:
        return [node.address for node in self.by_id.values()]

    def promote(self, master: str, *, version: int, heard_by: str = "") -> None:
        """The nodes of `heard_by`, separated by blanks, learn of another master; all of them by default."""
        for node_id in heard_by.split() or self.by_id:
            self[node_id].master, self[node_id].version, self[node_id].epoch = master, version, version

    def store(self, content: bytes) -> Confirm | MirrorlogError:
        header = read_header(content)
        try:
            landed = self.table.check(header)
        except MirrorlogError as error:
            return error
        if landed is not None:
            return Confirm(landed.log_offset, landed.base_queue_offset, 1, 1, 0, CONFIRM_DUPLICATE)
        base, log_offset = len(self.values), 4096 * len(self.batches)
        self.table.apply(header._replace(base_queue_offset=base, log_offset=log_offset, epoch=1, append_time_us=1))
        self.values += [record.value for record in open_body(content, body_bytes_max=MIB).records()]
        stored = bytearray(content)
        stamp(
            stored,
            log_offset=log_offset,
            base_queue_offset=base,
            append_time_us=1,
            epoch=1,
            flags=0,
            seed=log_seed(UUID(LOG_ID)),
        )
        self.batches.append((base, bytes(stored)))
        return Confirm(log_offset, base, 1, 1, 0, 0)


@dataclass(eq=False)
class Node:
    """`master`, `version`, `epoch`: as this one knows them. `refusal`: what it answers to batches. `hangs`: it takes
    connections and requests, and answers none. `cuts`: of so many batches and requests that are no questions it takes
    each in, and cuts its connection before it answers. `mute`: it answers all but batches and fetches. `rotten`: by a
    batch's first queue offset, the byte of it that is bad here. `refused_bad`: the first queue offsets of the batches
    that it has found bad itself, and refuses. `damage`: what it answers who asks for the queue. `attributes`: what it
    says of the queue's batches. `known`: how many records it knows to be confirmed, by default all; `current`: whether
    it says that these are all.
    `any_copy`: whether it answers as a mirror where that is enough."""

    nodes: Nodes
    node_id: str
    address: str = ""
    master: str = "n1"
    version: int = 1
    epoch: int = 1
    refusal: MirrorlogError | None = None
    hangs: bool = False
    cuts: int = 0
    mute: bool = False
    rotten: dict[int, int] = field(default_factory=dict)
    refused_bad: set[int] = field(default_factory=set)
    damage: MirrorlogError | None = None
    attributes: bool = True
    known: int | None = None
    current: bool = True
    any_copy: bool = False
    start_id: str = "s"
    taken: int = 0
    asked: int = 0
    fetches: int = 0
    links: set[Link] = field(default_factory=set)
    server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(lambda: Endpoint(
            Link(self), frame_bytes_max=64 * MIB, outgoing_bytes_max=64 * MIB
        ), HOST, 0)  # fmt: skip
        self.address = f"{HOST}:{self.server.sockets[0].getsockname()[1]}"

    def kill(self) -> None:
        """Its connections end, and new ones are refused."""
        assert self.server is not None
        self.server.close()
        for link in list(self.links):
            link.endpoint.abort()

    def info(self) -> QueueInfo:
        others = [node_id for node_id in self.nodes.by_id if node_id != self.master]
        return QueueInfo(
            name=QUEUE,
            queue_id=1,
            log_id=LOG_ID,
            epoch=self.epoch,
            master=self.master,
            mirrors=others,
            begin=0,
            next=len(self.nodes.values) if self.known is None else self.known,
            attributes=self.attributes,
            current=self.current,
        )

    def batches(self, queue_offset: int, max_bytes: int) -> list[bytes]:
        """Those from there on, as this copy has them: one at least, and no more than fit."""
        found: list[bytes] = []
        size = 0
        for base, content in self.nodes.batches:
            size += len(content) if base >= queue_offset else 0
            if base < queue_offset or (found and size > max_bytes):
                continue
            if base in self.refused_bad:
                raise LogCorrupt(f"bad bytes from log offset {4096 * base} on", first=4096 * base, last=4096 * base + 1)
            held = bytearray(content)
            if base in self.rotten:
                held[self.rotten[base]] ^= 0x10
            found.append(bytes(held))
        return found

    def metadata(self, queues: list[str] | None) -> Metadata:
        named = [QUEUE] if queues is None else queues
        return Metadata(
            cluster_id="c",
            cluster_name="c",
            node_id=self.node_id,
            nodes=[
                NodeInfo(node_id=node.node_id, client=node.address, replication=node.address)
                for node in self.nodes.by_id.values()
            ],
            queues=[self.info()] if QUEUE in named else [],
            missing=[name for name in named if name != QUEUE],
            version=self.version,
        )

    def status(self) -> Status:
        """Its master coordinates, too."""
        nodes = [
            NodeStatus(node_id=node.node_id, member=1, client=node.address, replication=node.address, life="up")
            for node in self.nodes.by_id.values()
        ]
        cluster = ClusterStatus(
            version=self.version, incarnation=1, coordinator=self.master, term=1, elections=0, registered=True,
            nodes=nodes, logs=[],
        )  # fmt: skip
        return Status(
            cluster_id="c", cluster_name="c", node_id=self.node_id, start_id="s", now_us=1, logs=[], cluster=cluster
        )

    def refused(self) -> MirrorlogError | None:
        if self.refusal is not None or self.master == self.node_id:
            return self.refusal
        known = {"master": self.nodes[self.master].address} if self.master else {}
        return NotMaster("another node writes the log", **known)

    def answer(self, message: Message) -> Message | MirrorlogError:
        if isinstance(message, GetMetadata):
            self.asked += 1
            return self.damage if self.damage and QUEUE in (message.queues or ()) else self.metadata(message.queues)
        if isinstance(message, FindOffset) and message.any_copy and self.any_copy:
            return FoundOffset(queue_offset=0)
        if (refusal := self.refused()) is not None:
            return refusal
        if isinstance(message, DeclareQueue):
            return self.metadata([QUEUE])
        if isinstance(message, FindOffset):
            return FoundOffset(queue_offset=0)
        assert isinstance(message, CommitPosition)
        return Done()


class Link:
    """One connection of a client."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.endpoint: Endpoint = None  # type: ignore[assignment]  # comes first of all

    def connected(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        endpoint.trust()
        self.node.links.add(self)

    def frame(self, frame: Frame) -> None:
        if self.node.hangs or self._cut(frame):
            return
        if frame.type == FrameType.HELLO:
            self._welcome()
        elif frame.type == FrameType.REQUEST:
            message = decode(frame.payload)
            if self.node.mute and not isinstance(message, GetMetadata | GetStatus):
                return
            asks_status = isinstance(message, GetStatus)
            self._respond(self.node.status() if asks_status else self.node.answer(message), frame.correlation_id)
        elif frame.type == FrameType.PRODUCE:
            self.node.taken += 1
            if not self.node.mute:
                self._produce(bytes(frame.payload[PRODUCE.size :]), frame.correlation_id)
        elif frame.type == FrameType.TRANSACT and (refusal := self.node.refused()) is not None:
            self.endpoint.send([error_frame(refusal, frame.correlation_id)])
        elif frame.type == FrameType.FETCH:
            self.node.fetches += 1
            if not self.node.mute:
                self._fetch(frame)

    def _cut(self, frame: Frame) -> bool:
        if not self.node.cuts or not _changes(frame):
            return False
        self.node.cuts -= 1
        self.endpoint.abort()
        return True

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> None: ...

    def writable(self) -> None: ...

    def disconnected(self, error: MirrorlogError | None) -> None:
        self.node.links.discard(self)

    def _welcome(self) -> None:
        limits = NodeLimits(max_record_bytes=MIB, max_batch_bytes=2 * MIB)
        welcome = Welcome(
            version=1,
            cluster_id="c",
            cluster_name="c",
            node_id=self.node.node_id,
            start_id=self.node.start_id,
            limits=limits,
        )
        self.endpoint.send([frame(FrameType.WELCOME, encode(welcome))])

    def _respond(self, answer: Message | MirrorlogError, correlation_id: int) -> None:
        if isinstance(answer, MirrorlogError):
            self.endpoint.send([error_frame(answer, correlation_id)])
        else:
            self.endpoint.send([frame(FrameType.RESPONSE, encode(answer), correlation_id)])

    def _produce(self, content: bytes, correlation_id: int) -> None:
        outcome = self.node.refused() or self.node.nodes.store(content)
        if isinstance(outcome, MirrorlogError):
            self.endpoint.send([error_frame(outcome, correlation_id)])
        else:
            self.endpoint.send([confirm_frame(correlation_id=correlation_id, **outcome._asdict())])

    def _fetch(self, request: Frame) -> None:
        fetch = read_fetch(request.payload)
        try:
            found = self.node.batches(fetch.queue_offset, fetch.max_bytes)
        except LogCorrupt as error:
            self.endpoint.send([error_frame(error, request.correlation_id)])
            return
        head = BATCHES.pack(0, len(self.node.nodes.values), 0, self.node.epoch, len(found))
        answer = frame(FrameType.BATCHES, head + b"".join(found), request.correlation_id)
        if found:
            self.endpoint.send([answer])
        else:
            asyncio.get_running_loop().call_later(fetch.wait_ms / 1000, self._fetch_late, request)

    def _fetch_late(self, request: Frame) -> None:
        head = BATCHES.pack(0, len(self.node.nodes.values), 0, self.node.epoch, 0)
        if not self.node.hangs and not self.node.mute:
            self.endpoint.send([frame(FrameType.BATCHES, head, request.correlation_id)])


def _changes(frame: Frame) -> bool:
    """Whether it is no mere question."""
    if frame.type == FrameType.REQUEST:
        return not isinstance(decode(frame.payload), GetMetadata | GetStatus)
    return frame.type in (FrameType.PRODUCE, FrameType.TRANSACT)


@asynccontextmanager
async def scripted(count: int = 3) -> AsyncIterator[Nodes]:
    """`n1`, the master, and as many others, all of one mind."""
    nodes = Nodes()
    for number in range(1, count + 1):
        node = nodes.by_id[f"n{number}"] = Node(nodes, f"n{number}")
        await node.start()
    try:
        yield nodes
    finally:
        for node in nodes.by_id.values():
            node.kill()
