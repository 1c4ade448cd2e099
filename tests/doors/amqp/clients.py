"""pika against a node's AMQP door. Every wait has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika

from mirrorlog.testing import Cluster

DEADLINE_S = 20.0


def parameters(address: str, **more: Any) -> pika.ConnectionParameters:
    host, _, port = address.rpartition(":")
    return pika.ConnectionParameters(host, int(port), blocked_connection_timeout=DEADLINE_S, **more)


@contextmanager
def connected(cluster: Cluster, node: str = "n1", **more: Any) -> Iterator[Any]:
    """A connection of pika's."""
    address = cluster.nodes[node].amqp
    assert address is not None
    connection = pika.BlockingConnection(parameters(address, **more))
    yield connection
    if connection.is_open:  # of a test that failed, its process closes it
        connection.close()


def until(connection: Any, condition: Callable[[], object], what: str) -> None:
    """Let it work until that is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        connection.process_data_events(0.05)


def consumed(connection: Any, channel: Any, queue: str, count: int, **more: Any) -> list[tuple[Any, Any, bytes]]:
    """So many deliveries, not acknowledged."""
    found: list[tuple[Any, Any, bytes]] = []
    channel.basic_consume(queue, lambda _, *delivery: found.append(delivery), **more)
    until(connection, lambda: len(found) >= count, f"{count} of {queue} come")
    return found
