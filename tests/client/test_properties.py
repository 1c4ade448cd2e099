"""Text, properties, delays of retries, and what objects say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mirrorlog.client import Client, RecordProperties
from mirrorlog.client.sync import Client as BlockingClient
from mirrorlog.errors import BadRequest
from mirrorlog.testing import Cluster

GIVEN: dict[str, Any] = {
    "content_type": "text/plain", "correlation_id": "7", "reply_to": "answers", "message_id": "m", "app_id": "shop",
}  # fmt: skip


async def test_text_and_properties_come_back_by_each_way_to_send(client: Client, queue: str) -> None:
    """Goal: what users of AMQP give with a message. Method: alone, in a batch, published, in a transaction; read by a
    consumer and by a subscription. They are headers, behind those given."""
    async with client.producer(queue) as producer, client.publisher("") as publisher:
        await producer.send("grüße", key="k", headers={"h": b"1"}, **GIVEN)
        first = producer.send_nowait("a", key="k", headers={"h": b"1"}, **GIVEN)
        await asyncio.gather(first, producer.send_nowait(b"b"))
        await publisher.publish(queue, "p", key="k", headers={"h": b"1"}, priority=3, **GIVEN)
        async with client.transaction() as transaction:
            transaction.send(queue, "t", key="k", headers={"h": b"1"}, **GIVEN)
        with pytest.raises(BadRequest, match="app_id 5 is int"):
            await producer.send(b"v", app_id=5)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="UTF-8"):
            await producer.send("\ud800")
    async with client.consumer(queue, until="confirmed") as consumer:
        found = [record async for record in consumer]
    assert [record.value for record in found] == ["grüße".encode(), b"a", b"b", b"p", b"t"]
    for record in (*found[:2], *found[3:]):
        assert (record.properties, record.key) == (RecordProperties(**GIVEN), b"k")
        assert record.headers[:2] == [("h", b"1"), ("amqp.content_type", b"text/plain")]
    assert (found[2].properties, found[2].headers, found[3].priority) == (RecordProperties(), [], 3)
    async with client.subscribe(queue) as subscription:
        delivered = await anext(subscription)
        assert delivered.properties.content_type == "text/plain"


async def test_a_record_that_comes_back_waits_as_its_count_says(client: Client, queue: str) -> None:
    """Goal: retries that back off without a word at each nack. Method: two returns by a list of two; the times at which
    it comes again are those of the list, and a delay of its own counts more than the list."""
    loop = asyncio.get_running_loop()
    async with client.producer(queue) as producer:
        await producer.send(b"v")
    async with client.subscribe(queue, retry_delays_ms=[50, 400]) as subscription:
        waited = []
        for delay_ms in (0, 0, 1):
            delivery = await anext(subscription)
            began = loop.time()
            await delivery.nack(delay_ms=delay_ms)
            again = await anext(subscription)
            waited.append(loop.time() - began)
            assert again.attempts == delivery.attempts + 1
            await again.release()
        assert waited[0] >= 0.05
        assert waited[1] >= 0.4
    with pytest.raises(BadRequest, match="retry_delays_ms"):
        client.subscribe(queue, retry_delays_ms=["x"])  # type: ignore[list-item]


def test_the_blocking_client_takes_them_too(shared_cluster: Cluster, new_name: Callable[[], str]) -> None:
    at = datetime(2026, 11, 28, tzinfo=UTC)
    with BlockingClient(*shared_cluster.servers) as client:
        queue = client.admin.declare(new_name()).name
        with client.producer(queue) as producer:
            producer.send("text", key="k", timestamp=at, **GIVEN)
            assert repr(producer) == f"sync.Producer(queue={queue!r})"
        with client.subscribe(queue, retry_delays_ms=[1]) as subscription:
            delivered = next(subscription)
            assert (delivered.value, delivered.key, delivered.properties) == (b"text", b"k", RecordProperties(**GIVEN))
            delivered.nack()
            assert next(subscription).attempts == 1


async def test_what_is_shown_of_objects_names_them_and_no_secret(client: Client, queue: str) -> None:
    """Goal: a line of a log or a prompt says what an object is. Method: all of them, one with a login."""
    consumer, publisher = client.consumer(queue), client.publisher("amq.direct")
    subscription = client.subscribe(queue, "g")
    shown = [repr(each) for each in (client.producer(queue), consumer, publisher, subscription)]
    assert shown == [
        f"Producer(queue={queue!r})",
        f"Consumer(queue={queue!r}, next=0)",
        "Publisher(exchange='amq.direct', virtual_host='/')",
        f"Subscription(queue={queue!r}, group='g')",
    ]
    async with (
        client.producer(queue) as sending,
        client.consumer(queue, until=4) as reading,
        client.transaction() as tx,
    ):
        delivery, bulk = sending.send_nowait(b"v", key=b"k"), sending.send_many_nowait([b"v"] * 3)
        assert (repr(delivery), repr(bulk)) == ("Delivery(under way)", "BulkDelivery(3 records, under way)")
        await delivery, await bulk
        assert (repr(delivery), repr(bulk)) == ("Delivery(confirmed)", "BulkDelivery(3 records, ended)")
        (record,) = await reading.read(1, timeout_ms=10_000)
        assert repr(record) == f"ConsumedRecord(queue={queue!r}, queue_offset=0, value=b'v', key=b'k')"
        batches = [batch async for batch in reading.batches()]
        assert repr(batches[-1]).startswith(f"ConsumedBatch(queue={queue!r}, first=")
        assert repr(tx) == "Transaction(0 sent, 0 settled)"
    info = await client.admin.declare(queue)
    assert repr(info) == (
        f"QueueInfo(name={queue!r}, master={info.master!r}, mirrors={info.mirrors!r}, begin=0, next=4, arguments={{}})"
    )
    assert repr(client.admin.topology) == f"Topology({client!r})"
    secret = repr(Client("h:1", user="u", password="geheim"))
    assert secret.startswith("Client('h:1'")
    assert "geheim" not in secret
    names = {name for name in dir(client) if not name.startswith("_")}
    blocking = BlockingClient("h:1")
    assert {name for name in dir(blocking) if not name.startswith("_")} == names - {
        *("closed", "connected", "servers", "connect_timeout_ms", "request_timeout_ms")
    }
    assert names >= {"producer", "subscribe", "admin", "servers", "closed"}
    assert not names & {"connection_to", "reach", "learn", "background", "leasing"}
