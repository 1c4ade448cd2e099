"""Where nodes are: behind one address for all, and somewhere else than before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process

CHUNK_BYTES = 64 * 1024


class Balancer:
    """A TCP load balancer that knows nothing of what it passes on: each connection goes to the next node that takes
    it."""

    def __init__(self, backends: Sequence[str]) -> None:
        self.address = ""
        self.taken: list[str] = []
        """Which node each connection went to."""
        self._backends = list(backends)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._backends:
            self._backends.append(backend := self._backends.pop(0))
            host, _, port = backend.rpartition(":")
            try:
                inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
            except OSError:
                continue
            self.taken.append(backend)
            for source, sink in ((reader, inner_writer), (inner_reader, writer)):
                task = asyncio.ensure_future(self._pass_on(source, sink))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return
        writer.close()

    @staticmethod
    async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(CHUNK_BYTES):
                sink.write(chunk)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@asynccontextmanager
async def balanced(cluster: Cluster) -> AsyncIterator[Balancer]:
    balancer = Balancer(cluster.servers)
    await balancer.start()
    try:
        yield balancer
    finally:
        await balancer.stop()


async def test_a_client_that_knows_one_load_balancer_uses_the_whole_cluster() -> None:
    """Goal: one address for all nodes is enough to begin with, also while one of them is gone. Method: clients that are
    given only the balancer's declare, publish, read and ask, each over whichever node it gets; then the master is
    killed, and others do the same."""
    async with fast_cluster(3, min_in_sync=2) as cluster, balanced(cluster) as balancer:
        await asyncio.to_thread(cluster.wait_in_sync)

        async def publish(value: bytes) -> None:
            async with Client(balancer.address) as client, client.producer("q") as producer:
                await producer.send(value)

        async def read() -> list[bytes]:
            async with Client(balancer.address) as client:
                assert {node.node_id for node in (await client.admin.metadata()).nodes} == set(cluster.nodes)
                async with client.consumer("q", until="confirmed") as consumer:
                    return [record.value async for record in consumer]

        async with Client(balancer.address) as client:
            await client.admin.declare("q")
        for value in (b"a", b"b", b"c"):  # each begins at another node
            await publish(value)
        assert await read() == [b"a", b"b", b"c"]
        assert set(balancer.taken) == set(cluster.servers)
        cluster.nodes[await asyncio.to_thread(cluster.wait_master)].kill()
        for value in (b"d", b"e", b"f"):
            await publish(value)
        assert await read() == [b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.long
async def test_nodes_that_have_all_moved_find_each_other(tmp_path: Path) -> None:
    """Goal: a cluster survives new addresses for all its nodes at once. Method: stop three nodes, give each of them
    other ports in everybody's configuration, and start them: what was confirmed is there, and more is."""
    async with fast_cluster(3, data_dir=tmp_path) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q")
            async with client.producer("q") as producer:
                await producer.send(b"a")
        before = set(cluster.servers)
    (tmp_path / "addresses.json").unlink()  # where they were; without it they get other ones
    async with fast_cluster(3, data_dir=tmp_path) as moved:
        assert not before & set(moved.servers)
        await asyncio.to_thread(moved.wait_in_sync)
        async with Client(moved.servers[0]) as client:
            assert {node.client for node in (await client.admin.metadata()).nodes} == set(moved.servers)
            async with client.producer("q") as producer:
                await producer.send(b"b")
            async with client.consumer("q", until="confirmed") as consumer:
                assert [record.value async for record in consumer] == [b"a", b"b"]
