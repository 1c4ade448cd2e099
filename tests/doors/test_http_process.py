"""The node's watch over its HTTP door: it is there when the node says so, comes back when it dies, and ends with it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.broker.door_process import DoorProcess
from mirrorlog.errors import PortTaken
from mirrorlog.testing import Cluster
from mirrorlog.testing.ports import free_ports
from tests.doors.http_door import HOST, Page, get
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process

DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1) as started:
        yield started


def page(bind: str) -> Page | None:
    """What /health answers; None when nobody serves."""
    try:
        return get(bind, "/health")
    except OSError:
        return None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(0.02)


def pid_of(bind: str) -> int:
    """The one process that serves there, by its command line."""
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and bind in _command(entry)]
    assert len(found) == 1, found
    return found[0]


def _command(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text().split("\0")
    except OSError:  # it has ended meanwhile
        return []


@pytest.mark.long
async def test_a_door_that_dies_is_started_again_and_one_that_is_stopped_is_not(cluster: Cluster) -> None:
    """Goal: a node is never blind for long. Method: SIGKILL its door, wait for the next one, stop that."""
    bind = f"{HOST}:{free_ports(1)[0]}"
    process = DoorProcess("http", node=cluster.nodes["n1"].client, bind=bind)
    try:
        await process.start()
        first = pid_of(bind)
        os.kill(first, signal.SIGKILL)
        await until(lambda: page(bind) is None)
        await until(lambda: (found := page(bind)) is not None and found.status == 200)
        assert pid_of(bind) != first
    finally:
        await process.stop()
    assert page(bind) is None
    await process.stop()


async def test_a_door_whose_address_is_taken_says_so_at_its_start(cluster: Cluster) -> None:
    """Goal: its node ends as for any other port. Method: hold the address; and look whom a node waits for."""
    with socket.create_server((HOST, 0)) as holder:
        bind = f"{HOST}:{holder.getsockname()[1]}"
        process = DoorProcess("http", node=cluster.nodes["n1"].client, bind=bind)
        try:
            with pytest.raises(PortTaken, match=f"cannot listen on {bind}"):
                await process.start()
            assert not process.serves
        finally:
            await process.stop()


async def test_a_door_that_hangs_does_not_hold_up_the_stop(cluster: Cluster) -> None:
    """Goal: a node's stop ends. Method: SIGSTOP the door, which no SIGTERM ends; it is gone after the stop."""
    bind = f"{HOST}:{free_ports(1)[0]}"
    process = DoorProcess("http", node=cluster.nodes["n1"].client, bind=bind)
    try:
        await process.start()
        os.kill(pid_of(bind), signal.SIGSTOP)
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await process.stop()
    assert page(bind) is None


async def test_a_process_that_cannot_be_started_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: no descriptor just now is no door for ever. Method: the first start of the process fails."""
    real = asyncio.create_subprocess_exec
    failures = iter([OSError(24, "Too many open files")])

    async def start(*command: str, **options: Any) -> asyncio.subprocess.Process:
        for failure in failures:
            raise failure
        return await real(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    process = DoorProcess("http", node=cluster.nodes["n1"].client, bind=f"{HOST}:{free_ports(1)[0]}")
    try:
        await process.start()
    finally:
        await process.stop()
    assert "http_door_not_started" in caplog.text


async def test_a_door_that_does_not_serve_yet_reads_new_files_when_it_does(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Goal: a signal to a process that does not know it yet ends none. Method: ask for a renewal at the moment of its
    start; it comes up in one attempt, and has read."""
    bind = f"{HOST}:{free_ports(1)[0]}"
    process = DoorProcess("http", node=cluster.nodes["n1"].client, bind=bind)
    told: list[str] = []

    def has_read(times: int) -> bool:
        told.append(capfd.readouterr().err)
        return "".join(told).count("tls_reloaded contexts=0") == times

    try:
        starting = asyncio.ensure_future(process.start())
        await asyncio.sleep(0)  # so that there is somebody to ask
        process.renew()
        await starting
        await until(lambda: has_read(1))
        process.renew()
        await until(lambda: has_read(2))
    finally:
        await process.stop()
    assert "http_door_ended" not in caplog.text
