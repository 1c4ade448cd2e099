"""mirrorlog as a driver: nodes as processes, their management API, and the Python client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from bench.peers.servers import HOST
from mirrorlog import __version__
from mirrorlog.client.sync import Client
from mirrorlog.client.sync.producer import BlockingProducer
from mirrorlog.testing import Cluster

_QUIET_MS: Final = 1_500
_DELIVERY_MS: Final = 60_000
_AT_ONCE: Final = 1_000


class Mirrorlog:
    """On a cluster that serves the management API and has no users."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = list(cluster.nodes.values())
        self.name, self.version = "mirrorlog", __version__
        self.nodes = tuple(cluster.nodes)

    def api(self, number: int) -> str:
        address = self._nodes[number].http
        assert address is not None
        return address

    def _client(self, number: int) -> Client:
        """Of the whole cluster, the node first, as a client is given one."""
        addresses = [node.client for node in self._nodes]
        return Client(addresses[number], *addresses)

    @contextmanager
    def sender(self, queue: str, number: int) -> Iterator[_Sender]:
        with (
            self._client(number) as client,
            client.producer(queue, confirm="all", delivery_timeout_ms=_DELIVERY_MS) as producer,
        ):
            yield _Sender(producer)

    def fill(self, queue: str, bodies: Sequence[bytes], number: int) -> None:
        with self._client(number) as client, client.producer(queue, confirm="all") as producer:
            for first in range(0, len(bodies), _AT_ONCE):
                producer.send_many(bodies[first : first + _AT_ONCE])

    def drain(self, queue: str, number: int) -> list[bytes]:
        found: list[bytes] = []
        with self._client(number) as client, client.consumer(queue, start="earliest", until="confirmed") as consumer:
            while records := consumer.read(timeout_ms=_QUIET_MS):
                found += [record.value or b"" for record in records]
        return found

    def kill(self, number: int) -> None:
        self._nodes[number].kill()

    def start(self, number: int) -> None:
        self._nodes[number].start()

    def link_ports(self) -> set[int]:
        return {int(node.replication.removeprefix(f"{HOST}:")) for node in self._nodes}


class _Sender:
    def __init__(self, producer: BlockingProducer) -> None:
        self._producer = producer

    def send(self, body: bytes) -> None:
        self._producer.send(body)
