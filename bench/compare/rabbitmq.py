"""RabbitMQ as a driver: nodes of Debian's package, its management API, and pika for AMQP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.compare.driver import LOGIN
from bench.peers import versions
from bench.peers.install import client_version, installed
from bench.peers.peer import PeerFailed, Skipped
from bench.peers.rabbitmq import Nodes
from bench.peers.servers import HOST, Servers

_QUIET_S: Final = 1.5
"""Nothing has come for so long: there is no more."""
_FILLED_S: Final = 120.0
_DEFINITIONS: Final[Mapping[str, object]] = {
    "vhosts": [{"name": "/"}],
    "users": [{"name": LOGIN, "password": LOGIN, "tags": "administrator"}],
    "permissions": [{"user": LOGIN, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
}


def program() -> Path:
    """Where RabbitMQ is: unpacked by `bench.peers.install`, or installed. Raises Skipped."""
    client_version("pika")
    try:
        return installed("rabbitmq")
    except Skipped:
        if any(Path("/usr/lib/rabbitmq/lib").glob(f"rabbitmq_server-{versions.RABBITMQ}/sbin")):
            return Path("/")
        raise


class RabbitMq:
    """A cluster of as many nodes as there are names."""

    def __init__(self, servers: Servers, names: Sequence[str]) -> None:
        found = program()
        self._nodes = servers.started(
            lambda: Nodes(servers, found, names, definitions=_DEFINITIONS, management=True).start()
        )
        self.name, self.version = "RabbitMQ", versions.RABBITMQ
        self.nodes = self._nodes.names

    def api(self, number: int) -> str:
        return f"{HOST}:{self._nodes.management[number]}"

    @contextmanager
    def _channel(self, number: int) -> Iterator[Any]:
        import pika

        parameters = pika.ConnectionParameters(HOST, self._nodes.ports[number], heartbeat=0)
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection.channel()
        finally:
            connection.close()

    @contextmanager
    def sender(self, queue: str, number: int) -> Iterator[_Sender]:
        with self._channel(number) as channel:
            channel.confirm_delivery()
            yield _Sender(channel, queue)

    def fill(self, queue: str, bodies: Sequence[bytes], number: int) -> None:
        """Without confirms, until the queue counts them: one confirm each would take minutes."""
        with self._channel(number) as channel:
            held = channel.queue_declare(queue, passive=True).method.message_count + len(bodies)
            sender = _Sender(channel, queue)
            for body in bodies:
                sender.send(body)
            until = time.monotonic() + _FILLED_S
            while channel.queue_declare(queue, passive=True).method.message_count < held:
                if time.monotonic() > until:
                    raise PeerFailed(f"RabbitMQ's queue {queue} is not filled after {_FILLED_S:g} s")
                time.sleep(0.1)

    def drain(self, queue: str, number: int) -> list[bytes]:
        with self._channel(number) as channel:
            channel.basic_qos(prefetch_count=1000)
            taken = channel.consume(queue, auto_ack=True, inactivity_timeout=_QUIET_S)
            found = []
            for method, _, body in taken:
                if method is None:
                    break
                found.append(body)
            channel.cancel()
            return found

    def kill(self, number: int) -> None:
        self._nodes.kill_node(number)

    def start(self, number: int) -> None:
        self._nodes.start_node(number)
        self._nodes.wait_node(number)

    def link_ports(self) -> set[int]:
        return set(self._nodes.distribution)


class _Sender:
    def __init__(self, channel: Any, queue: str) -> None:
        import pika

        self._channel, self._queue = channel, queue
        self._persistent = pika.BasicProperties(delivery_mode=2)

    def send(self, body: bytes) -> None:
        self._channel.basic_publish("", self._queue, body, self._persistent, mandatory=True)
