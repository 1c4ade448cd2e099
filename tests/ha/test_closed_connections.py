"""What a node, its mirrors and its clients keep of connections that have ended: nothing."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.broker.session.client_session import ClientSession
from mirrorlog.client.connection.connection import Connection
from mirrorlog.config import HaSettings
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.accept import MasterLink
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.messages.queues import GetMetadata, Metadata
from tests.ha.nodes import cluster_settings, mirrored_by, running, until

QUICK = HaSettings(reconnect_interval_ms=20)
KINDS = (ClientSession, Connection, MasterLink, Endpoint, FrameReader)


def alive() -> Counter[str]:
    """How many there are of what belongs to a connection."""
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KINDS)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What dies in it dies with its last holder."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.long
@pytest.mark.usefixtures("no_collector")
async def test_sessions_and_links_die_with_their_connections(tmp_path: Path) -> None:
    """Goal: what comes and goes leaves nothing, on either side of either port, without the collector's help. Method:
    clients that ask and go, clients that are refused, a mirror that comes and goes; then as many as before."""
    master, mirror = cluster_settings(tmp_path, copies=2, ha=QUICK)
    async with running(master):
        before = alive()
        for _ in range(20):
            client = await Connection.open(master.client_bind)
            await client.request(GetMetadata(), Metadata, timeout_ms=5_000)
            client.close()
            with pytest.raises(MirrorlogError):
                await Connection.open(master.client_bind, cluster_id="another one")
        for _ in range(3):
            async with running(mirror) as second:
                await until(lambda second=second: mirrored_by(second).following)
        client = None  # type: ignore[assignment]  # the last one
        await asyncio.sleep(0)
        await until(lambda: alive()["Endpoint"] <= before["Endpoint"])
        assert alive() == before
