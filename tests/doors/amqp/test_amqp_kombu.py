"""What Celery does by kombu and py-amqp: its worker's prefetch, which changes while it consumes, and its broadcasts."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import kombu
import pytest
from kombu.pidbox import Mailbox

from mirrorlog.testing import Cluster
from tests.doors.amqp.clients import DEADLINE_S
from tests.process.clusters import fast_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1, amqp=True) as found:
        yield found


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Any]:
    with kombu.Connection(f"pyamqp://guest:guest@{cluster.nodes['n1'].amqp}//") as found:
        yield found


def until(connection: Any, condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        with suppress(socket.timeout):
            connection.drain_events(timeout=0.05)


def test_a_workers_prefetch_changes_while_it_consumes(connection: Any) -> None:
    """Goal: Celery's qos of a living consumer. Method: two of ten come; with six, four more do."""
    queue = kombu.Queue(f"q-{uuid.uuid4()}", kombu.Exchange("tasks", type="direct"), "k", max_priority=5)
    channel = connection.channel()
    found: list[Any] = []
    producer = kombu.Producer(channel)
    consumer = kombu.Consumer(channel, [queue], callbacks=[lambda body, message: found.append((body, message))])
    for number in range(10):
        producer.publish({"n": number}, exchange="tasks", routing_key="k", declare=[queue])
    consumer.qos(prefetch_count=2)
    consumer.consume()
    until(connection, lambda: len(found) == 2, "two come")
    with suppress(socket.timeout):
        connection.drain_events(timeout=0.3)
    assert [body for body, _ in found] == [{"n": 0}, {"n": 1}]
    consumer.qos(prefetch_count=6)
    until(connection, lambda: len(found) == 6, "four more come")
    for _, message in found:
        message.ack()
    until(connection, lambda: len(found) == 10, "the rest comes")


def test_a_broadcast_reaches_every_worker_and_each_answers(cluster: Cluster, connection: Any) -> None:
    """Goal: Celery's remote control. Method: its mailbox, as kombu has it: fanout, and a queue for answers."""
    for number in range(2):
        node = Mailbox("control", type="fanout")(connection).Node(f"w{number}", channel=connection.channel())
        node.handlers["ping"] = lambda state, **_: "pong"
        node.listen()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with suppress(socket.timeout):
                connection.drain_events(timeout=0.05)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with kombu.Connection(connection.as_uri(include_password=True)) as asking:
            answers = Mailbox("control", type="fanout")(asking).multi_call("ping", limit=2, timeout=DEADLINE_S)
    finally:
        stop.set()
        worker.join()
    assert sorted(next(iter(each)) for each in answers) == ["w0", "w1"]
