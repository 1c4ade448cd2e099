"""Simulated sockets do what real ones do, and what a network may do to them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sim.machines import Machine
from sim.world import World

WAIT_S = 20.0
MIB = 1024 * 1024


class Recorder(asyncio.BufferedProtocol):
    """Keeps what it is told. `stays`: after the other side's end."""

    def __init__(self, *, stays: bool = False) -> None:
        self.transport: Any = None
        self.got = bytearray()
        self.ended = self.lost = self.paused = False
        self.pauses = 0
        self.error: Exception | None = None
        self._stays = stays
        self._buffer = bytearray(64 * 1024)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self._buffer[:nbytes]

    def eof_received(self) -> bool:
        self.ended = True
        return self._stays

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.error = True, exc

    def pause_writing(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume_writing(self) -> None:
        self.paused = False


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  (protocols tell nobody)
            await asyncio.sleep(0.001)


async def connected(**server_side: Any) -> tuple[Recorder, Recorder, asyncio.AbstractServer]:
    """(the client's end, the server's end, the server), on this machine."""
    loop = asyncio.get_running_loop()
    accepted: list[Recorder] = []

    def accept() -> Recorder:
        accepted.append(Recorder(**server_side))
        return accepted[-1]

    server = await loop.create_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, near = await loop.create_connection(Recorder, "127.0.0.1", port)
    await until(lambda: accepted and accepted[0].transport is not None)
    return near, accepted[0], server


# --- what real ones do, too ---

Story = Callable[[], Awaitable[None]]


def on_real_sockets(story: Story) -> None:
    async def run() -> None:
        await story()

    asyncio.run(run())


def on_simulated_ones(story: Story) -> None:
    done = False

    async def program(machine: Machine) -> None:
        nonlocal done
        await story()
        done = True

    with World("contract") as world:
        world.network.weather.split = 0.5
        world.machine("a").start(program)
        world.run(world.until(lambda: done, within_s=2 * WAIT_S, otherwise="not done"))


both = pytest.mark.parametrize("run", [on_real_sockets, on_simulated_ones])


@both
def test_bytes_arrive_in_order_and_then_the_end(run: Callable[[Story], None]) -> None:
    """All that was written before a close, however it was cut; by writing in parts and closing."""

    async def story() -> None:
        near, far, server = await connected()
        parts = [bytes([number % 256]) * number for number in range(1, 700)]
        near.transport.writelines(parts[:300])
        for part in parts[300:]:
            near.transport.write(memoryview(part))
        near.transport.close()
        await until(lambda: near.lost and far.lost)
        assert bytes(far.got) == b"".join(parts)
        assert (far.ended, far.error, near.error) == (True, None, None)
        server.close()

    run(story)


@both
def test_where_nobody_listens_a_connection_is_refused(run: Callable[[Story], None]) -> None:
    """So a program that is gone shows at once; by connecting to a port that was closed."""

    async def story() -> None:
        near, _, server = await connected()
        port = near.transport.get_extra_info("peername")[1]
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(Recorder, "127.0.0.1", port)
        near.transport.close()

    run(story)


@both
def test_a_port_belongs_to_one(run: Callable[[Story], None]) -> None:
    """The second is told that it is in use; by listening twice."""

    async def story() -> None:
        near, _, server = await connected()
        port = near.transport.get_extra_info("peername")[1]
        with pytest.raises(OSError, match=r"[Aa]ddress") as told:
            await asyncio.get_running_loop().create_server(Recorder, "127.0.0.1", port)
        assert told.value.errno == errno.EADDRINUSE
        near.transport.abort()
        server.close()

    run(story)


@both
def test_who_does_not_read_stops_the_writer(run: Callable[[Story], None]) -> None:
    """It is told to pause, and to go on when there is room; nothing is lost; by reading late."""

    async def story() -> None:
        near, far, server = await connected()
        far.transport.pause_reading()
        near.transport.write(b"x" * 16 * MIB)
        await until(lambda: near.paused and near.transport.get_write_buffer_size() > MIB)
        far.transport.resume_reading()
        await until(lambda: len(far.got) == 16 * MIB)
        await until(lambda: not near.paused)
        assert near.transport.get_write_buffer_size() == 0
        assert near.pauses == 1
        near.transport.close()
        server.close()

    run(story)


@both
def test_an_abort_drops_what_was_not_sent_and_the_other_side_sees_the_end(run: Callable[[Story], None]) -> None:
    """By aborting while the other side does not read."""

    async def story() -> None:
        near, far, server = await connected()
        far.transport.pause_reading()
        near.transport.write(b"x" * 32 * MIB)
        await until(lambda: near.paused)
        near.transport.abort()
        await until(lambda: near.lost)
        far.transport.resume_reading()
        await until(lambda: far.lost)
        assert len(far.got) < 32 * MIB
        server.close()

    run(story)


@both
def test_closing_with_bytes_unread_is_a_reset(run: Callable[[Story], None]) -> None:
    """The writer learns that not all was read; by closing without reading."""

    async def story() -> None:
        near, far, server = await connected()
        far.transport.pause_reading()
        near.transport.write(b"x" * 1000)
        await asyncio.sleep(0.05)  # so that they are there
        far.transport.close()
        await until(lambda: near.lost)
        assert isinstance(near.error, ConnectionResetError)
        assert not near.ended
        server.close()

    run(story)


@both
def test_one_direction_may_end_before_the_other(run: Callable[[Story], None]) -> None:
    """What is answered after the end of the questions arrives; by a half close."""

    async def story() -> None:
        near, far, server = await connected(stays=True)
        near.transport.write(b"question")
        near.transport.write_eof()
        await until(lambda: far.ended)
        assert bytes(far.got) == b"question"
        assert not far.transport.is_closing()
        far.transport.write(b"answer")
        far.transport.close()
        await until(lambda: near.lost)
        assert bytes(near.got) == b"answer"
        assert near.error is None
        server.close()

    run(story)


@both
def test_writing_to_who_is_gone_is_a_reset(run: Callable[[Story], None]) -> None:
    """Not silence; by writing to a side that has closed."""

    async def story() -> None:
        near, far, server = await connected(stays=True)
        near.transport.close()
        await until(lambda: far.ended)

        def write_on() -> bool:
            far.transport.write(b"are you there?")
            return far.lost

        await until(write_on)
        assert isinstance(far.error, ConnectionResetError | BrokenPipeError)
        server.close()

    run(story)


# --- what a network does ---


class Pair:
    """Two machines with one connection: `near` on a, `far` on b, port 1."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.a, self.b = world.machine("a"), world.machine("b")
        self.near: Recorder = Recorder()
        self.accepted: list[Recorder] = []
        self.errors: list[Exception] = []

    @property
    def far(self) -> Recorder:
        return self.accepted[-1]

    async def listen(self, machine: Machine) -> None:
        await asyncio.get_running_loop().create_server(self._accept, "b", 1)
        await asyncio.Event().wait()

    def _accept(self) -> Recorder:
        self.accepted.append(Recorder())
        return self.accepted[-1]

    def dial_anew(self) -> None:
        """In a new run of a's program."""
        self.a.kill()
        self.near = Recorder()
        self.a.start(self._dial)

    async def _dial(self, machine: Machine) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.near, "b", 1)
        except OSError as error:
            self.errors.append(error)
        await asyncio.Event().wait()

    async def connect(self) -> None:
        self.b.start(self.listen)
        await asyncio.sleep(0.01)
        self.dial_anew()
        await self.world.until(lambda: self.accepted and self.near.transport, within_s=1, otherwise="not connected")

    def write(self, recorder: Recorder, data: bytes) -> None:
        """In the name of its process."""
        self.world.loop.call_soon(recorder.transport.write, data, context=recorder.transport.context.copy())


def with_pair(seed: object, story: Callable[[Pair], Any]) -> World:
    with World(f"pair {seed}") as world:
        pair = Pair(world)

        async def run() -> None:
            await pair.connect()
            await story(pair)

        world.run(run())
    return world


def test_a_cut_holds_bytes_back_and_loses_none() -> None:
    """In its direction only; what was under way comes after it is mended, in order; by writing through a cut."""

    async def story(pair: Pair) -> None:
        pair.world.network.cut("a", "b")
        pair.write(pair.near, b"1")
        pair.write(pair.far, b"2")
        await asyncio.sleep(30)
        assert (bytes(pair.far.got), bytes(pair.near.got)) == (b"", b"2")
        assert not pair.near.lost
        pair.world.network.mend("a", "b")
        pair.write(pair.near, b"3")
        await pair.world.until(lambda: pair.far.got == b"13", within_s=3, otherwise="not sent again")

    with_pair("cut", story)


def test_without_acknowledgements_only_so_much_gets_through() -> None:
    """As the kernel holds until it hears that they arrived; by cutting the way back."""

    async def story(pair: Pair) -> None:
        pair.world.network.cut("b", "a")
        pair.write(pair.near, bytes(MIB))
        await asyncio.sleep(30)
        assert 0 < len(pair.far.got) < MIB
        pair.world.network.heal()
        await pair.world.until(lambda: len(pair.far.got) == MIB, within_s=5, otherwise="not all arrived")

    with_pair("acknowledgements", story)


def test_connecting_through_a_cut_waits() -> None:
    """Nobody refuses; it comes about when the cut is over; by dialling through one."""

    async def story(pair: Pair) -> None:
        pair.world.network.cut_off({"a"}, {"b"})
        pair.dial_anew()
        await asyncio.sleep(10)
        assert (pair.near.transport, pair.errors) == (None, [])
        pair.world.network.heal()
        await pair.world.until(lambda: pair.near.transport, within_s=10, otherwise="not connected")

    with_pair("dial", story)


def test_a_killed_program_ends_its_connections_and_refuses() -> None:
    """At once, for the kernel does it; what the kernel was given arrives; by killing a side that has just written."""

    async def story(pair: Pair) -> None:
        pair.write(pair.far, b"last words")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pair.b.kill()
        assert not pair.near.lost
        await pair.world.until(lambda: pair.near.lost, within_s=0.1, otherwise="nothing was heard")
        assert bytes(pair.near.got) == b"last words"
        pair.dial_anew()
        await pair.world.until(lambda: pair.errors, within_s=0.1, otherwise="not refused")
        assert isinstance(pair.errors[0], ConnectionRefusedError)

    with_pair("kill", story)


def test_a_machine_without_power_says_nothing() -> None:
    """No end, no refusal; who sends to it learns when it is back; by cutting its power."""

    async def story(pair: Pair) -> None:
        pair.b.lose_power()
        pair.write(pair.near, b"hello?")
        await asyncio.sleep(30)
        assert not pair.near.lost
        pair.b.start(pair.listen)
        await pair.world.until(lambda: pair.near.lost, within_s=2, otherwise="nothing was heard")
        assert isinstance(pair.near.error, ConnectionResetError)

    with_pair("power", story)


def test_a_paused_program_loses_nothing() -> None:
    """Its kernel takes connections and bytes for it; by pausing, dialling and writing."""

    async def story(pair: Pair) -> None:
        pair.b.pause()
        pair.write(pair.near, b"1")
        pair.dial_anew()
        await pair.world.until(lambda: pair.near.transport, within_s=1, otherwise="not connected")
        pair.write(pair.near, b"2")
        await asyncio.sleep(5)
        assert len(pair.accepted) == 1
        pair.b.resume()
        await pair.world.until(lambda: len(pair.accepted) == 2, within_s=1, otherwise="not accepted")
        await pair.world.until(lambda: pair.far.got == b"2", within_s=1, otherwise="bytes are lost")
        await pair.world.until(lambda: pair.accepted[0].lost, within_s=1, otherwise="the old one stands")

    with_pair("pause", story)


@pytest.mark.parametrize("seed", range(20))
def test_a_reset_from_outside_ends_both_sides(seed: int) -> None:
    """Each has a beginning of what was under way; by resetting in the middle of a stream."""

    async def story(pair: Pair) -> None:
        sent = bytes(number % 251 for number in range(3000))
        for at in range(0, 3000, 100):
            pair.world.loop.call_later(at / 1e6, pair.write, pair.near, sent[at : at + 100])
        await asyncio.sleep(0.002)
        assert pair.world.network.reset("a", "b") == 1
        await pair.world.until(lambda: pair.near.lost and pair.far.lost, within_s=1, otherwise="one of them stands")
        assert sent.startswith(pair.far.got)

    with_pair(seed, story)


@pytest.mark.parametrize("shuffled", range(5))
def test_bytes_of_one_connection_never_overtake_each_other(shuffled: int) -> None:
    """Hiccups, splits and cuts or not; by a stream through all of them."""

    async def story(pair: Pair) -> None:
        weather = pair.world.network.weather
        weather.split, weather.hiccups, weather.hiccup_s = 0.5, 0.3, 0.05
        sent = bytes(pair.world.random.randrange(256) for _ in range(2000))
        for at in range(0, 2000, 10):
            pair.world.loop.call_later(at / 1000, pair.write, pair.near, sent[at : at + 10])
        for at in (0.3, 0.9, 1.1):
            pair.world.loop.call_later(at, pair.world.network.cut, "a", "b")
            pair.world.loop.call_later(at + 0.1, pair.world.network.mend, "a", "b")
        await pair.world.until(lambda: len(pair.far.got) == 2000, within_s=10, otherwise="not all arrived")
        assert bytes(pair.far.got) == sent

    world = with_pair(shuffled, story)
    assert {"split", "hiccup", "stood still"} <= set(world.network.seen)


def test_an_old_connections_bytes_may_come_after_a_new_ones() -> None:
    """Its end is as late as they are; by dialling anew while bytes are under way for long."""

    async def story(pair: Pair) -> None:
        weather = pair.world.network.weather
        weather.hiccups, weather.hiccup_s = 1.0, 5.0
        pair.write(pair.near, b"old")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        weather.hiccups = 0.0
        old = pair.far
        pair.dial_anew()
        await pair.world.until(lambda: pair.near.transport, within_s=1, otherwise="not connected")
        pair.write(pair.near, b"new")
        await pair.world.until(lambda: pair.far.got == b"new", within_s=0.1, otherwise="the new one is late, too")
        assert not old.got
        await pair.world.until(lambda: old.lost, within_s=6, otherwise="no end")
        assert bytes(old.got) == b"old"

    with_pair("late", story)
