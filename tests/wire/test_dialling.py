"""A dial is tried anew while nothing comes back, ends as soon as one attempt stands, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mirrorlog.testing.ports import HOST
from mirrorlog.wire.dialling import CLIENT_UNACKED_MS, LINK_UNACKED_MS, dial
from mirrorlog.wire.fairness.places import PortPlaces
from mirrorlog.wire.listening import PortPlace, listen
from tests.process.clusters import eventually

_SYN_SENT = "02"


class Kept(asyncio.Protocol):
    """`made`: done with the transport."""

    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(transport)


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """A listening socket whose queue is full: the system drops what is sent to it, as a network that is cut does."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        while True:
            filling = stack.enter_context(socket.socket())
            filling.settimeout(0.2)
            try:
                filling.connect(listening.getsockname())
            except TimeoutError:
                filling.close()
                break
        yield listening


def attempts_to(listening: socket.socket) -> int:
    """Connections to it that have sent a SYN and heard nothing."""
    wanted = f":{listening.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(wanted) and row[3] == _SYN_SENT for row in rows)


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(eventually, condition, what)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_dial_into_a_cut_sends_again_and_again_and_stands_when_it_heals(
    full: socket.socket, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """Goal: after a heal nobody waits for what the system has backed off to. Method: several attempts are out at once,
    no more than four of them however long it lasts; there is room again: one stands, and none is left."""
    run(stands_when_it_heals(full))


async def stands_when_it_heals(full: socket.socket) -> None:
    protocol = Kept()
    dialling = asyncio.ensure_future(dial(f"{HOST}:{full.getsockname()[1]}", lambda: protocol))
    await until(lambda: attempts_to(full) == 4, "four attempts are out")
    assert not dialling.done()
    full.settimeout(0)
    with ExitStack() as stack:

        def stands() -> bool:
            with suppress(BlockingIOError):
                stack.enter_context(full.accept()[0])
            return dialling.done()

        await until(stands, "the dial has ended")
        await dialling
        (await protocol.made).close()  # type: ignore[attr-defined]
        await until(lambda: not attempts_to(full), "the other attempts are given up")


async def test_a_dial_that_is_given_up_leaves_no_attempt(full: socket.socket) -> None:
    dialling = asyncio.ensure_future(dial(f"{HOST}:{full.getsockname()[1]}", Kept))
    await until(lambda: attempts_to(full) > 1, "it is tried again")
    dialling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialling
    await until(lambda: not attempts_to(full), "nothing is left")


async def test_who_is_refused_is_refused_at_once() -> None:
    """Goal: a refusal says that the process is gone, however many attempts may follow."""
    with socket.create_server((HOST, 0)) as bound:
        port = bound.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.wait_for(dial(f"{HOST}:{port}", Kept), 10)


async def test_a_name_stands_at_the_address_that_answers() -> None:
    """Goal: localhost may be ::1 first, where nobody listens."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, HOST, 0)
    try:
        protocol = Kept()
        await dial(f"localhost:{server.sockets[0].getsockname()[1]}", lambda: protocol)
        (await protocol.made).close()  # type: ignore[attr-defined]
    finally:
        server.close()


async def test_both_ends_are_ended_by_the_system_when_nothing_is_acknowledged() -> None:
    """Goal: neither side sends into a cut for longer than said. Method: what the sockets of both ends are set to."""
    accepted = Kept()
    places: PortPlaces[PortPlace] = PortPlaces(strangers_max=8, per_address_max=8, let_in_max=8)
    port = await listen(f"{HOST}:0", lambda _: accepted, places, unacked_ms=LINK_UNACKED_MS)  # type: ignore[arg-type, return-value]
    try:
        for unacked_ms in (LINK_UNACKED_MS, CLIENT_UNACKED_MS):
            accepted, dialled = Kept(), Kept()
            address = f"{HOST}:{port.address[1]}"
            await dial(address, lambda: dialled, unacked_ms=unacked_ms)  # noqa: B023
            ends = [await dialled.made, await accepted.made]
            assert [_unacked_ms(each) for each in ends] == [unacked_ms, LINK_UNACKED_MS]
            for each in ends:
                each.close()
    finally:
        port.close()


def _unacked_ms(transport: asyncio.BaseTransport) -> int:
    found: int = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    return found
