"""What a client tells of what happens between its calls, and reading on through an outage."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.client.connection.outages import read_on
from mirrorlog.client.events import ClientEvent, Connected, Disconnected, FailedOver
from mirrorlog.client.sync import Client as BlockingClient
from mirrorlog.errors import (
    Closed,
    ConnectionLost,
    LogCorrupt,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NotMaster,
)
from mirrorlog.testing import Cluster
from tests.client.scripted_nodes import QUEUE, scripted
from tests.process.clusters import fast_cluster


async def test_what_happens_to_a_client_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a program sees its connections come and go, and failovers. Method: a master dies, another one is named; the
    function raises each time, and nothing is the worse for it."""
    told: list[ClientEvent] = []

    def tell(event: ClientEvent) -> None:
        told.append(event)
        raise ValueError("mine")

    caplog.set_level(logging.INFO, "mirrorlog.client.events")
    async with (
        scripted() as nodes,
        Client(*nodes.servers, on_event=tell) as client,
        client.producer(QUEUE) as producer,
    ):
        await producer.send(b"1")
        assert set(told) >= {Connected(nodes["n1"].address)}
        nodes["n1"].kill()
        nodes.promote("n2", version=2)
        await producer.send(b"2")
        assert FailedOver(QUEUE, "n2", 2) in told
        assert [each for each in told if isinstance(each, FailedOver)] == [FailedOver(QUEUE, "n2", 2)]
        (lost,) = [each for each in told if isinstance(each, Disconnected)]
        assert lost.node_address == nodes["n1"].address
    assert sum(isinstance(each, Disconnected) for each in told) == 1, "who closes is not told that he is disconnected"
    lines = [record.getMessage() for record in caplog.records]
    assert f"client_failedover queue='{QUEUE}' node='n2' epoch=2" in lines
    assert lines.count("client_callback_failed event=FailedOver") == 1


async def test_reading_goes_on_behind_an_outage_and_what_is_none_is_raised() -> None:
    """Goal: an outage of any length, or of so much. Method: reads that fail as then, and for good."""
    failures: list[MirrorlogError] = [ConnectionLost("1"), NotMaster("2"), LogUnavailable("3", since=1)]

    async def read() -> str:
        if failures:
            raise failures.pop(0)
        return "found"

    assert await read_on(read, queue="q", patience_ms=10, outage_timeout_ms=None) == "found"
    for final in (NoSuchQueue("gone"), LogCorrupt("bad"), Closed("closed")):
        failures[:] = [ConnectionLost("1"), final]
        with pytest.raises(type(final)):
            await read_on(read, queue="q", patience_ms=10, outage_timeout_ms=None)
    failures[:] = [ConnectionLost(str(number)) for number in range(1_000)]
    with pytest.raises(ConnectionLost):
        await read_on(read, queue="q", patience_ms=10, outage_timeout_ms=100)
    assert len(failures) > 900


@pytest.mark.long
async def test_iterations_read_on_through_an_outage_unless_told_a_limit() -> None:
    """Goal: a program that reads need not be written against outages. Method: the only node dies while a consumer and a
    subscription wait, longer than they would wait for an answer; it comes back with another record. Others, with a
    limit, are told."""
    with fast_cluster(1, min_in_sync=1) as cluster:
        async with Client(*cluster.servers, request_timeout_ms=300) as client:
            await client.admin.declare("q")
            async with client.producer("q") as producer:
                await producer.send(b"1")
            async with (
                client.consumer("q") as lasting,
                client.consumer("q", outage_timeout_ms=400) as limited,
                client.subscribe("q") as subscription,
            ):
                reading, short = aiter(lasting), aiter(limited)
                found: list[Any] = [await anext(reading), await anext(short), await anext(subscription)]
                assert [each.value for each in found] == [b"1"] * 3
                waiting = [asyncio.ensure_future(anext(each)) for each in (reading, subscription)]  # type: ignore[type-var]
                await asyncio.to_thread(cluster.master.kill)
                with pytest.raises((ConnectionLost, NotMaster)):
                    await anext(short)
                assert not any(each.done() for each in waiting)
                await asyncio.to_thread(cluster.nodes["n1"].start)
                async with client.producer("q") as producer:
                    await producer.send(b"2")
                async with asyncio.timeout(30):
                    records: list[Any] = await asyncio.gather(*waiting)
                # What was given out and not settled comes again.
                assert (records[0].value, records[1].value in (b"1", b"2")) == (b"2", True)


def test_the_blocking_client_tells_on_its_own_thread(shared_cluster: Cluster) -> None:
    told: list[tuple[ClientEvent, str]] = []
    client = BlockingClient(
        *shared_cluster.servers, on_event=lambda event: told.append((event, threading.current_thread().name))
    )
    with client:
        client.admin.status()
    assert {name for _, name in told} == {"mirrorlog-client"}
    assert all(isinstance(event, Connected) for event, _ in told)
