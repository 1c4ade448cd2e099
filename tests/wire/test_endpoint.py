"""One end of a framed connection over real sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import uvloop

from mirrorlog.errors import MirrorlogError, ProtocolError
from mirrorlog.wire import endpoint
from mirrorlog.wire.endpoint import Endpoint, named
from mirrorlog.wire.fairness.lines import LoopLines
from mirrorlog.wire.fairness.turns import Share
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.frames import Frame, FrameType, frame


class Recorder:
    """A handler that notes what happens to it."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.gone = 0

    def connected(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def frame(self, frame: Frame) -> None: ...

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None: ...

    def disconnected(self, error: MirrorlogError | None) -> None:
        self.gone += 1


async def test_its_name_is_that_of_both_ends_as_rabbitmq_writes_it() -> None:
    """Goal: a connection is found again by what both sides see of it. Method: a real pair, and addresses of IPv6."""
    handler = Recorder()
    own, other = _tcp_pair()
    with own, other:
        host, port = own.getsockname()
        there_host, there_port = own.getpeername()
        await asyncio.get_running_loop().create_connection(
            lambda: Endpoint(handler, frame_bytes_max=1024, outgoing_bytes_max=1024), sock=own
        )
        endpoint = handler.endpoint
        assert endpoint is not None
        assert endpoint.name == f"{there_host}:{there_port} -> {host}:{port}"
        assert endpoint.tls_version == ""
        endpoint.abort()
    assert named("::1:40312", "fe80::7:7401") == "[::1]:40312 -> [fe80::7]:7401"


async def test_a_close_towards_a_peer_that_is_gone_is_a_close() -> None:
    """Goal: a node that stops does not fail with a peer's reset that it has not heard of yet. Method: reset the
    connection from outside and close this end before the loop turns; the handler is told once."""
    loop = asyncio.get_running_loop()
    handler = Recorder()
    own, other = _tcp_pair()
    await loop.create_connection(lambda: Endpoint(handler, frame_bytes_max=1024, outgoing_bytes_max=1024), sock=own)
    endpoint = handler.endpoint
    assert endpoint is not None
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    endpoint.close()
    assert handler.gone == 1
    assert not endpoint.open


class Worker(Recorder):
    """A handler that takes its time, keeps what it is given, and may answer."""

    def __init__(self, cost_s: float = 0.0, answer: bytes = b"") -> None:
        super().__init__()
        self.cost_s = cost_s
        self.answer = answer
        self.numbers: list[int] = []
        self.bodies: list[bytes] = []
        self.receptions: list[int] = []

    def frame(self, frame: Frame) -> None:
        assert self.endpoint is not None
        until = time.monotonic() + self.cost_s
        while time.monotonic() < until:
            pass
        self.numbers.append(frame.correlation_id)
        self.bodies.append(bytes(frame.payload))
        if self.answer:
            self.endpoint.send((self.answer,))

    def handled(self) -> None:
        self.receptions.append(len(self.numbers))


@pytest.fixture(params=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a coroutine on the node's loop, and on the other one."""

    def run(coroutine: object) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(coroutine)  # type: ignore[arg-type]

    return run


async def _pair(handler: Recorder, lines: LoopLines | None, *, outgoing_bytes_max: int = 1 << 20) -> socket.socket:
    own, other = _tcp_pair()
    make = lambda: Endpoint(  # noqa: E731
        handler, frame_bytes_max=1 << 20, outgoing_bytes_max=outgoing_bytes_max, lines=lines
    )
    await asyncio.get_running_loop().create_connection(make, sock=own)
    assert handler.endpoint is not None
    handler.endpoint.trust()
    handler.endpoint.known()
    return other


async def _until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not met():  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.001)


async def test_a_turn_that_fails_ends_its_connection_and_the_others_have_theirs() -> None:
    """Goal: one fault does not hold up a whole class of connections. Method: of two that wait in line the first to be
    served fails outside of its frames, as its handler's goodbye does; the other's frames are all taken."""

    class Failing(Worker):
        def disconnected(self, error: MirrorlogError | None) -> None:
            raise RuntimeError("goodbye failed")

        def frame(self, frame: Frame) -> None:
            super().frame(frame)
            if len(self.numbers) == 65:
                raise ProtocolError("in its second slice")

    lines = LoopLines()
    bad, good = Failing(), Worker()
    sender, other = await _pair(bad, lines), await _pair(good, lines)
    sent = b"".join(frame(FrameType.PING, b"", number) for number in range(500))
    sender.sendall(sent)
    other.sendall(sent)
    await _until(lambda: len(good.numbers) == 500)
    assert bad.endpoint is not None
    assert not bad.endpoint.open
    assert not lines.known.waiting
    for each in (sender, other):
        each.close()


async def test_the_turn_after_one_that_failed_comes() -> None:
    lines, served = LoopLines(), asyncio.Event()

    def fail() -> None:
        raise RuntimeError("not served")

    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    for serve in (fail, served.set):
        share = lines.newcomer(serve)
        share.line = lines.known
        lines.known.served(share, 0.0, 0.0, more=True)
    lines.look(lines.known)
    async with asyncio.timeout(20):
        await served.wait()
    assert [type(each) for each in told] == [RuntimeError]


def test_frames_keep_their_order_and_others_come_between_them(runner: Callable[..., None]) -> None:
    """Goal: one that sends without end is served whole and in order, and does not hold up another one. Method: 4,000
    frames of one connection in one go, then one frame of another; it is not the last to be served."""

    async def story() -> None:
        lines, loop = LoopLines(), asyncio.get_running_loop()
        busy, quiet = Worker(cost_s=0.00005), Worker()
        sender, other = await _pair(busy, lines), await _pair(quiet, lines)
        sent = b"".join(frame(FrameType.PING, b"%07d!" % number, number) for number in range(4_000))
        sending = loop.run_in_executor(None, sender.sendall, sent)
        await _until(lambda: len(busy.numbers) > 10)
        other.sendall(frame(FrameType.PING, b"", 1))
        await _until(lambda: quiet.numbers == [1])
        assert len(busy.numbers) < 4_000
        await sending
        await _until(lambda: len(busy.numbers) == 4_000)
        assert busy.numbers == list(range(4_000))
        assert busy.bodies == [b"%07d!" % number for number in range(4_000)], "a view was overwritten"
        assert max(each - before for before, each in zip([0, *busy.receptions], busy.receptions, strict=False)) <= 64
        sender.close()
        await _until(lambda: busy.gone == 1)
        other.close()

    runner(story())


def test_a_peer_that_does_not_read_is_asked_nothing_more_and_then_served_on(runner: Callable[..., None]) -> None:
    """Goal: waiting for a peer to read and waiting in line do not undo each other. Method: many small questions with
    large answers that nobody reads for a while."""

    async def story() -> None:
        handler = Worker(answer=frame(FrameType.PONG, bytes(32 * 1024)))
        other = await _pair(handler, LoopLines(), outgoing_bytes_max=1 << 20)
        other.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(other, b"".join(frame(FrameType.PING, b"", number) for number in range(1_000)))
        await _until(lambda: len(handler.numbers) > 10)
        stood_at = -1
        while stood_at != len(handler.numbers):
            stood_at = len(handler.numbers)
            await asyncio.sleep(0.02)
        assert stood_at < 1_000
        received = 0
        while received < 1_000 * len(handler.answer):
            received += len(await loop.sock_recv(other, 1 << 20))
        assert handler.numbers == list(range(1_000))
        assert handler.gone == 0
        other.close()
        await _until(lambda: handler.gone == 1)

    runner(story())


def test_a_close_while_it_is_told_that_it_may_write_again_is_a_close(runner: Callable[..., None]) -> None:
    """Goal: nothing is asked of a handler that has gone. Method: one is congested, and closes as soon as it is not."""

    class Leaving(Worker):
        def writable(self) -> None:
            assert self.endpoint is not None
            self.endpoint.close()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        failed: list[object] = []
        loop.set_exception_handler(lambda loop, context: failed.append(context))
        handler = Leaving(answer=frame(FrameType.PONG, bytes(32 * 1024)))
        other = await _pair(handler, None)
        other.setblocking(False)
        await loop.sock_sendall(other, b"".join(frame(FrameType.PING, b"", number) for number in range(1_000)))
        await _until(lambda: handler.endpoint is not None and handler.endpoint.paused)
        while handler.gone == 0:
            await loop.sock_recv(other, 1 << 20)
        await _until(lambda: handler.endpoint is not None and not handler.endpoint.open)
        other.close()
        assert failed == []

    runner(story())


def test_a_close_while_it_waits_in_line_is_a_close(runner: Callable[..., None]) -> None:
    """Goal: what a closed connection has sent is not served, its last word gets through, and the line forgets it.
    Method: close it from its own frame, and another one from outside, while both have more to say."""

    async def story() -> None:
        lines = LoopLines()

        class Closes(Worker):
            def frame(self, frame: Frame) -> None:
                super().frame(frame)
                if frame.correlation_id == 100:
                    assert self.endpoint is not None
                    self.endpoint.close()

        first, second = Closes(cost_s=0.0001), Worker(cost_s=0.0001)
        sent = b"".join(frame(FrameType.PING, b"", number) for number in range(1_000))
        for handler in (first, second):
            other = await _pair(handler, lines)
            other.sendall(sent)
        await _until(lambda: len(second.numbers) > 20)
        assert second.endpoint is not None
        second.endpoint.close()
        served = len(second.numbers)
        await _until(lambda: first.gone == second.gone == 1)
        assert first.numbers == list(range(101))
        assert len(second.numbers) == served
        assert lines.known.waiting == 0

    runner(story())


def test_a_member_is_served_at_once_also_what_it_sent_before(runner: Callable[..., None]) -> None:
    """Goal: nobody in line comes before a member. Method: it proves itself in its first frame, with a thousand more
    behind that; all are taken in one reception."""

    async def story() -> None:
        class Member(Worker):
            def frame(self, frame: Frame) -> None:
                super().frame(frame)
                assert self.endpoint is not None
                self.endpoint.unmetered()

        handler = Member()
        other = await _pair(handler, LoopLines())
        other.sendall(b"".join(frame(FrameType.PING, b"", number) for number in range(1_000)))
        await _until(lambda: len(handler.numbers) == 1_000)
        assert max(handler.receptions) == 1_000
        assert len(handler.receptions) < 8
        other.close()

    runner(story())


def test_a_stranger_has_a_small_part_of_the_loop(runner: Callable[..., None]) -> None:
    """Goal: next to nothing before the login. Method: one that never stops; its work's part of the time."""

    async def story() -> None:
        handler = Worker(cost_s=0.0001)
        other = await _pair(handler, LoopLines())
        assert handler.endpoint is not None
        handler.endpoint.known(False)
        began = time.monotonic()
        other.sendall(b"".join(frame(FrameType.PING, b"", number) for number in range(1_000)))
        await _until(lambda: len(handler.numbers) >= 200)
        assert handler.cost_s * len(handler.numbers) < 0.4 * (time.monotonic() - began)
        handler.endpoint.known()
        await _until(lambda: len(handler.numbers) == 1_000)
        assert handler.numbers == list(range(1_000))
        other.close()

    runner(story())


def test_a_frame_that_has_begun_is_not_stalled_while_its_rest_may_not_be_read(runner: Callable[..., None]) -> None:
    """Goal: who is made to wait is not blamed for it. Method: a begun frame behind more than a slice; then time passes,
    and only once it is read up to there it counts."""

    async def story() -> None:
        handler = Worker(cost_s=0.0005)
        other = await _pair(handler, LoopLines())
        assert handler.endpoint is not None
        other.sendall(frame(FrameType.PING, b"") * 50 + frame(FrameType.PING, bytes(100))[:50])
        await _until(lambda: len(handler.numbers) > 1)
        if len(handler.numbers) < 50:
            assert not handler.endpoint.stalled(asyncio.get_running_loop().time() + 60, 1_000)
        await _until(lambda: len(handler.numbers) == 50)
        begun = handler.endpoint
        await _until(lambda: begun.stalled(asyncio.get_running_loop().time() + 60, 1_000))
        await _until(lambda: handler.gone == 1)
        other.close()

    runner(story())


class Slow:
    """A frame that is sent a byte at a time, to a class of connections whose turns are used up whenever one comes."""

    def __init__(self, lines: LoopLines, endpoint: Endpoint) -> None:
        self.line = lines.known
        self.endpoint = endpoint

    def come(self, content: bytes) -> None:
        now = time.monotonic()
        self.line.served(Share(self.line, lambda: None), now - 1.0, now, more=False)
        room = self.endpoint.get_buffer(-1)
        room[: len(content)] = content
        self.endpoint.buffer_updated(len(content))


async def test_a_frame_that_never_ends_is_stalled_however_often_it_had_to_wait() -> None:
    """Goal: under load, too, nobody keeps a begun frame for ever. Method: a byte of it comes time and again, each time
    there is no turn left for it, and it is served in the next one; what it was begun at stays, but for its waits."""
    lines, handler = LoopLines(), Worker()
    other = await _pair(handler, lines)
    loop, begun = asyncio.get_running_loop(), handler.endpoint
    assert begun is not None
    slow = Slow(lines, begun)
    slow.come(frame(FrameType.PING, bytes(100))[:50])
    await _until(lambda: not lines.known.waiting)
    began_s = 0.0
    for _ in range(3):
        await _until(lambda before=began_s: begun.begun_s(loop.time()) > before)
        slow.come(b"x")
        assert lines.known.waiting
        assert began_s < begun.begun_s(loop.time() + 60) < 50, "it waits: what was before counts, and this does not"
        began_s = begun.begun_s(loop.time())
        await _until(lambda: not lines.known.waiting)
        assert begun.begun_s(loop.time()) >= began_s
    other.close()


async def test_what_waits_for_its_turn_is_not_begun() -> None:
    """Goal: an honest publisher is not closed for what the node has not come to. Method: a frame that is complete, and
    a part of the next, wait in line; then it is served, and the part alone is what was begun."""
    lines, handler = LoopLines(), Worker()
    other = await _pair(handler, lines)
    assert handler.endpoint is not None
    whole, part = frame(FrameType.PING, bytes(100)), frame(FrameType.PING, bytes(100))[:50]
    Slow(lines, handler.endpoint).come(whole + part)
    assert lines.known.waiting
    assert handler.endpoint.begun_bytes == 0
    await _until(lambda: len(handler.numbers) == 1)
    assert handler.endpoint.begun_bytes == len(part)
    other.close()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    own.setblocking(False)
    return own, other


@pytest.mark.parametrize(
    ("peer", "own", "here"),
    [
        (("127.0.0.1", 1), ("127.0.0.1", 2), True),
        (("127.0.0.5", 1), ("127.0.0.1", 2), True),
        (("::1", 1, 0, 0), ("::1", 2, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), ("::ffff:127.0.0.1", 2, 0, 0), True),
        (("10.0.0.4", 1), ("10.0.0.4", 2), True),
        (("10.0.0.5", 1), ("10.0.0.4", 2), False),
        (("::ffff:10.0.0.5", 1, 0, 0), ("::ffff:10.0.0.4", 2, 0, 0), False),
        (None, None, False),
        ("", "", False),
        ((), (), False),
    ],
)
def test_what_stays_within_this_machine_is_told_by_both_ends(peer: object, own: object, here: bool) -> None:
    """Goal: a node reached over its own address is here, another machine never is. Method: each kind of address."""
    assert endpoint._is_here(peer, own) is here


class Careful(Recorder):
    """A handler that refuses what it gets, and keeps the reason as handlers do."""

    error: MirrorlogError | None = None

    def frame(self, frame: Frame) -> None:
        if frame.type == FrameType.GOODBYE:
            raise ProtocolError(f"no goodbye of {len(frame.payload)} bytes")

    def disconnected(self, error: MirrorlogError | None) -> None:
        super().disconnected(error)
        self.error = error


@pytest.mark.parametrize("ends", ["by itself", "by the peer", "by an error", "aborted"])
async def test_a_closed_connection_keeps_nothing(ends: str) -> None:
    """Goal: what a connection held is free when it has ended, and not when the collector comes. Method: with the
    collector off, a large frame and each way to end; the end, its handler and its buffer die with the last of them."""
    loop = asyncio.get_running_loop()
    handler = Careful()
    own, other = _tcp_pair()
    gc.collect()
    gc.disable()
    try:
        made = Endpoint(handler, frame_bytes_max=1 << 20, outgoing_bytes_max=1024)
        made.trust()
        factory: Callable[[], Endpoint] = partial(_given, made)
        await loop.connect_accepted_socket(factory, own)
        del factory
        await asyncio.to_thread(other.sendall, frame(FrameType.PING, bytes(1 << 19)))
        grown = weakref.ref(made.get_buffer(-1))
        if ends == "by itself":
            made.close()
        elif ends == "by the peer":
            other.close()
        elif ends == "by an error":
            other.sendall(frame(FrameType.GOODBYE))
        else:
            made.abort()
        await _until(lambda: handler.gone == 1)
        assert (handler.error is not None) == (ends == "by an error")
        if ends == "by an error":
            assert isinstance(handler.error, ProtocolError)
            assert handler.error.__traceback__ is None
        other.close()
        end = weakref.ref(made)
        del made
        handler.endpoint = None
        await _until(lambda: end() is None)
        assert grown() is None
    finally:
        gc.enable()


async def test_a_connection_that_rests_gives_its_large_buffer_back() -> None:
    """Goal: one large frame does not cost its size for as long as the connection is there. Method: a large frame, then
    rest; not while another one is under way."""
    reader = FrameReader(frame_bytes_max=1 << 20)
    least = reader.buffer_bytes
    _receive(reader, frame(FrameType.PING, bytes(1 << 19)))
    found = reader.next_frame()
    assert found is not None
    assert reader.buffer_bytes > 1 << 19
    _receive(reader, frame(FrameType.PING, b"second")[:18])
    assert reader.next_frame() is None
    reader.shrink()
    assert reader.buffer_bytes > 1 << 19
    _receive(reader, frame(FrameType.PING, b"second")[18:])
    second = reader.next_frame()
    assert second is not None
    reader.shrink()
    assert reader.buffer_bytes == least
    assert bytes(second.payload) == b"second"
    _receive(reader, frame(FrameType.PING, b"third"))
    third = reader.next_frame()
    assert third is not None
    assert bytes(third.payload) == b"third"


def _given(made: Endpoint) -> Endpoint:
    return made


def _receive(reader: FrameReader, data: bytes) -> None:
    while data:
        room = reader.room()
        piece, data = data[: len(room)], data[len(room) :]
        room[: len(piece)] = piece
        reader.received(len(piece))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.005)
