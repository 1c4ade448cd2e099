"""The mesh over real sockets: what arrives, what is answered, and how it is seen that somebody has gone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mirrorlog.cluster import peers
from mirrorlog.cluster.peers import MemberEvents, Mesh, Voice
from mirrorlog.cluster.raft.messages import AnyMessage, Append, EntryKind, RaftEntry, TakeOver
from mirrorlog.errors import BadRequest, ConnectionLost, Overloaded, RequestTimeout
from mirrorlog.wire import endpoint
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import FrameType
from mirrorlog.wire.messages.handshake import Hello, NodeLimits, Welcome
from tests.cluster.ports import WAIT_S, Port, until, way


class Events:
    """Notes what it is told, and answers questions."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.messages: list[AnyMessage] = []
        self.over: list[Voice] = []
        self.let_go = asyncio.Event()

    def heard(self, node: str, start_id: str) -> None:
        self._note("heard", node, start_id)

    def reset(self, node: str) -> None:
        self._note("reset", node)

    def refused(self, node: str) -> None:
        self._note("refused", node)

    def raft(self, message: AnyMessage, link: Voice) -> None:
        self.messages.append(message)
        self.over.append(link)

    async def asked(self, node: str, question: bytes) -> bytes:
        if question == b"no":
            raise BadRequest("nobody may")
        if question == b"later":
            await self.let_go.wait()
        return node.encode() + b" asked " + question

    def _note(self, *note: str) -> None:
        if self.notes[-1:] != [note]:
            self.notes.append(note)


class Node:
    """A node with a port, and a mesh that reaches others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events = Events()
        self.greets = True
        self.endpoints: list[Endpoint] = []
        self.address = ""
        self.mesh = Mesh(hello=self._hello, events=self.events)
        self._server: asyncio.Server | None = None

    async def listen(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._endpoint, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def die(self) -> None:
        """As a process that is killed: its port and its connections are gone."""
        if self._server is not None:
            self._server.close()
        for each in self.endpoints:
            each.abort()
        self.mesh.stop()

    def knows(self, *note: str) -> Callable[[], bool]:
        return lambda: note in self.events.notes

    @property
    def member_events(self) -> MemberEvents:
        return self.events

    @property
    def welcome(self) -> Welcome:
        return Welcome(
            version=1,
            cluster_id="c",
            cluster_name="c",
            node_id=self.name,
            start_id=f"{self.name} 1",
            limits=NodeLimits(max_record_bytes=1, max_batch_bytes=1),
        )

    def _hello(self) -> Hello:
        return Hello(version_min=1, version_max=1, role="member", node_id=self.name, start_id=f"{self.name} 1")

    def _endpoint(self) -> Endpoint:
        return Endpoint(Port(self), frame_bytes_max=1 << 20, outgoing_bytes_max=1 << 20)


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Node, Node]]:
    """a and b, which reach each other."""
    a, b = Node("a"), Node("b")
    try:
        for node in (a, b):
            await node.listen()
            node.mesh.start()
        a.mesh.reach({"b": [b.address]})
        b.mesh.reach({"a": [a.address]})
        await until(lambda: a.mesh.reached() and b.mesh.reached())  # heard of is not enough: that is the other's link
        yield a, b
    finally:
        a.die()
        b.die()


def test_messages_and_questions_reach_the_other_side() -> None:
    """By one of each; an error is an answer too."""

    async def run() -> None:
        async with two() as (a, b):
            a.mesh.send_raft("b", TakeOver(1, 2, 7))
            await until(lambda: b.events.messages == [TakeOver(1, 2, 7)])
            assert await a.mesh.ask("b", b"what", timeout_s=WAIT_S) == b"a asked what"
            with pytest.raises(BadRequest, match="nobody may"):
                await a.mesh.ask("b", b"no", timeout_s=WAIT_S)

    asyncio.run(run())


def test_entries_that_do_not_follow_each_other_end_the_connection() -> None:
    """The core relies on it; by an Append with a gap, after which the next message arrives over another one."""

    async def run() -> None:
        async with two() as (a, b):
            torn = (RaftEntry(8, 1, EntryKind.EMPTY), RaftEntry(10, 1, EntryKind.EMPTY))
            a.mesh.send_raft("b", Append(1, 2, 1, 7, 1, 0, 0, torn))
            await until(b.knows("reset", "a"))
            assert b.events.messages == []

    asyncio.run(run())


def of_raft(data: bytes, change: Callable[[bytearray], bytes]) -> bytes:
    """Whole frames, the first of Raft changed; the others as they were."""
    at = 0
    while at < len(data):
        length, kind = struct.unpack_from("<IH", data, at)
        if kind == FrameType.RAFT:
            return data[:at] + change(bytearray(data[at : at + 16 + length])) + data[at + 16 + length :]
        at += 16 + length
    return data


APPEND = Append(1, 2, 1, 7, 1, 0, 0, (RaftEntry(8, 1, EntryKind.COMMAND, b"x" * 50_000),))


async def said_until_heard(a: Node, b: Node) -> None:
    """An Append, then something else again and again until it is heard: nothing comes that was not said."""
    a.mesh.send_raft("b", APPEND)

    def heard() -> bool:
        a.mesh.send_raft("b", TakeOver(1, 2, 7))
        return TakeOver(1, 2, 7) in b.events.messages

    await until(heard)
    assert all(message in (APPEND, TakeOver(1, 2, 7)) for message in b.events.messages)


@asynccontextmanager
async def with_a_way(change: Callable[[int, bytes], bytes]) -> AsyncIterator[tuple[Node, Node]]:
    """a and b; what a says goes by a way that changes it."""
    async with two() as (a, b), way(change, b.address) as changing:
        a.mesh.reach({"b": [changing.address]})
        await until(a.mesh.reached)
        yield a, b


@pytest.mark.parametrize("byte", [2, 3, 4, 6, 8, 12, 20, 40_000])
def test_a_message_that_was_changed_on_its_way_is_not_heard_and_the_next_one_is(byte: int) -> None:
    """Goal: neither another command than was decided gets into a copy of the cluster's state, nor does a length that is
    none make a member deaf for what follows. Method: flip a bit of an Append's frame; the next message arrives."""
    flipped: list[int] = []

    def change(number: int, data: bytes) -> bytes:
        def flip(content: bytearray) -> bytes:
            if not flipped:
                content[byte] ^= 8
                flipped.append(number)
            return bytes(content)

        return of_raft(data, flip)

    async def run() -> None:
        async with with_a_way(change) as (a, b):
            await said_until_heard(a, b)
            assert flipped

    asyncio.run(run())


def test_a_member_to_whom_bytes_were_lost_hears_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what follows does not become a part of what is waited for, and get lost. Method: take most of an answer
    away; what comes next is little."""
    monkeypatch.setattr(endpoint, "LINK_FRAME_MS", 50)
    taken: list[int] = []

    def take(number: int, data: bytes) -> bytes:
        if taken or len(data) < 10_000:
            return data
        taken.append(number)
        return data[:1000]

    async def run() -> None:
        async with two() as (a, b), way(to=b.address, back=take) as losing:
            a.mesh.reach({"b": [losing.address]})
            await until(a.mesh.reached)
            with pytest.raises(ConnectionLost):
                await a.mesh.ask("b", b"x" * 20_000, timeout_s=WAIT_S)
            assert taken
            await until(a.mesh.reached)
            assert await a.mesh.ask("b", b"what", timeout_s=WAIT_S) == b"a asked what"

    asyncio.run(run())


def test_a_link_by_which_nothing_is_answered_is_dialled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: Raft does not get lost for ever on one link while the other one says that the node lives; under TLS nothing
    shows that a record is waited for. Method: all that is said on the first connection disappears from a moment on."""
    monkeypatch.setattr(peers, "SILENT_S", 0.3)
    deaf = False

    async def run() -> None:
        nonlocal deaf
        async with with_a_way(lambda number, data: b"" if deaf and not number else data) as (a, b):
            deaf = True
            await said_until_heard(a, b)
            assert ("refused", "b") not in a.events.notes

    asyncio.run(run())


def test_who_is_killed_resets_and_is_refused() -> None:
    """In that order, at once, and a question that waits ends; by closing the port and its connections."""

    async def run() -> None:
        async with two() as (a, b):
            waiting = asyncio.ensure_future(a.mesh.ask("b", b"later", timeout_s=WAIT_S))
            await asyncio.sleep(0)
            b.die()
            await until(a.knows("refused", "b"))
            notes = a.events.notes
            assert notes.index(("reset", "b")) < notes.index(("refused", "b"))
            with pytest.raises(ConnectionLost):
                await waiting
            with pytest.raises(ConnectionLost, match="no connection to node b"):
                await a.mesh.ask("b", b"what", timeout_s=WAIT_S)

    asyncio.run(run())


def test_who_comes_back_is_reached_again() -> None:
    """By listening again where it did."""

    async def run() -> None:
        async with two() as (a, b):
            port = int(b.address.rpartition(":")[2])
            b.die()
            await until(a.knows("refused", "b"))
            a.events.notes.clear()
            b.greets = True
            await b.listen(port)
            await until(a.mesh.reached)
            assert a.knows("heard", "b", "b 1")()
            assert await a.mesh.ask("b", b"what", timeout_s=WAIT_S) == b"a asked what"

    asyncio.run(run())


def test_a_question_that_is_not_answered_in_time_ends() -> None:
    """And the connection stays; by an answer that is held back."""

    async def run() -> None:
        async with two() as (a, b):
            with pytest.raises(RequestTimeout, match="node b did not answer"):
                await a.mesh.ask("b", b"later", timeout_s=0.01)
            b.events.let_go.set()
            assert await a.mesh.ask("b", b"what", timeout_s=WAIT_S) == b"a asked what"

    asyncio.run(run())


def test_who_asks_too_much_is_refused_and_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link has heartbeats and Raft in it; by more questions than are answered at a time."""

    async def run() -> None:
        monkeypatch.setattr(peers, "ASKED_MAX", 3)
        async with two() as (a, b):
            waiting = [asyncio.ensure_future(a.mesh.ask("b", b"later", timeout_s=WAIT_S)) for _ in range(3)]
            await asyncio.sleep(0)  # they are sent before the one that is too much
            with pytest.raises(Overloaded, match="3 questions of node a wait"):
                await a.mesh.ask("b", b"what", timeout_s=WAIT_S)
            assert a.mesh.reached() == {"b"}
            b.events.let_go.set()
            assert await asyncio.gather(*waiting) == [b"a asked later"] * 3
            assert await a.mesh.ask("b", b"what", timeout_s=WAIT_S) == b"a asked what"
            assert a.mesh.opened == 1

    asyncio.run(run())


def test_a_question_that_would_end_the_connection_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """So much has not left that one more is too much: who asks is told, and everything else goes on."""

    async def run() -> None:
        monkeypatch.setattr(peers, "UNSENT_BYTES_MAX", 1000)
        async with two() as (a, _):
            with pytest.raises(Overloaded, match="have not left for node b"):
                await a.mesh.ask("b", bytes(1001), timeout_s=WAIT_S)
            assert await a.mesh.ask("b", b"what", timeout_s=WAIT_S) == b"a asked what"
            assert a.mesh.opened == 1

    asyncio.run(run())


def test_another_node_at_an_address_is_not_taken_for_the_one() -> None:
    """Nothing of it is heard; by reaching for c where b is."""

    async def run() -> None:
        async with two() as (a, b):
            a.mesh.reach({"b": [b.address], "c": [b.address]})
            before = len(b.endpoints)
            await until(lambda: len(b.endpoints) >= before + 2)  # it is tried again
            assert not [note for note in a.events.notes if note[1] == "c"]

    asyncio.run(run())


def test_who_does_not_greet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs accepts connections; by a port that never answers HELLO."""
    monkeypatch.setattr("mirrorlog.cluster.peers.CONNECT_S", 0.05)

    async def run() -> None:
        async with two() as (a, b):
            b.greets = False
            for endpoint in list(b.endpoints):
                endpoint.abort()
            before = len(b.endpoints)
            await until(lambda: len(b.endpoints) >= before + 2)
            b.greets = True
            a.events.notes.clear()
            await until(a.knows("heard", "b", "b 1"))

    asyncio.run(run())


def test_who_is_not_in_any_more_is_left_alone() -> None:
    """Its connection is closed and not dialled again; by reaching for nobody."""

    async def run() -> None:
        async with two() as (a, b):
            a.mesh.reach({})
            await until(b.knows("reset", "a"))
            with pytest.raises(ConnectionLost, match="not in the cluster"):
                await a.mesh.ask("b", b"what", timeout_s=WAIT_S)

    asyncio.run(run())


def test_an_answer_reaches_a_node_that_is_not_dialled() -> None:
    """Over the connection that the question came by; by b, which was away when a joined and knows no address of it."""

    async def run() -> None:
        async with two() as (a, b):
            b.mesh.reach({})
            a.mesh.send_raft("b", TakeOver(1, 2, 7))
            await until(lambda: b.events.messages == [TakeOver(1, 2, 7)])
            assert not b.mesh.send_raft("a", TakeOver(2, 1, 7))
            (link,) = b.events.over
            assert (link.node, link.start_id) == ("a", "a 1")
            link.send_raft(TakeOver(2, 1, 8))
            await until(lambda: a.events.messages == [TakeOver(2, 1, 8)])
            assert [(link.node, link.start_id) for link in a.events.over] == [("b", "b 1")]

    asyncio.run(run())


def test_a_node_that_moved_is_found_where_it_may_be_as_well() -> None:
    """And that nobody is there does not tell that it is gone, where it never stood; by b behind two addresses that
    nobody listens at, of which the cluster knows the first."""

    async def run() -> None:
        async with two() as (a, b):
            gone, never = "127.0.0.1:1", "127.0.0.1:2"
            a.events.notes.clear()
            a.mesh.reach({"b": [gone, never, b.address]})  # it stands at one of these: it stays
            assert a.mesh.reached() == {"b"}
            a.mesh.reach({})
            a.mesh.reach({"b": [gone, never, b.address]})
            await until(a.mesh.reached)
            assert a.events.notes.count(("refused", "b")) == 1
            a.events.notes.clear()
            b.die()
            await until(a.knows("refused", "b"))

    asyncio.run(run())
