"""Values as programs have them: serializers where records are sent, deserializers where they are read."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mirrorlog.client import Client
from mirrorlog.client.sync import Client as BlockingClient
from mirrorlog.errors import BadInput, BadRequest
from mirrorlog.testing import Cluster

ORDER = {"id": 7, "lines": [1, 2]}
STORED = json.dumps(ORDER).encode()


async def test_values_go_out_and_come_back_as_objects(client: Client, queue: str) -> None:
    """Goal: a pair of callables is enough. Method: alone, in a batch, published, and a tombstone; read by a
    consumer, as records and in batches, and by a subscription, in both ways. `value` is what was stored."""
    async with client.producer(queue, serializer=json.dumps) as producer:
        await producer.send(ORDER)
        await producer.send_nowait(ORDER)
        await producer.send(None)
    async with client.publisher("", serializer=json.dumps) as publisher:
        await publisher.publish(queue, ORDER)
    expected = [(STORED, ORDER), (STORED, ORDER), (None, None), (STORED, ORDER)]
    async with client.consumer(queue, until="confirmed", deserializer=json.loads) as consumer:
        found = [record async for record in consumer]
        assert [(record.value, record.data) for record in found] == expected
        assert pickle.loads(pickle.dumps(found[0])) == found[0]
        await consumer.seek(0)
        batches = [batch async for batch in consumer.batches()]
        assert [each.data for batch in batches for each in batch.records()] == [data for _, data in expected]
    async with client.subscribe(queue, deserializer=json.loads) as subscription:
        given = await subscription.receive(4, timeout_ms=10_000)
        assert [(each.value, each.data) for each in given] == expected
        await given[-1].release()
        batch = await subscription.next_batch()
        assert [record.data for record in batch.records()] == [ORDER]
    async with client.consumer(queue, until="confirmed") as consumer:
        assert [record.data async for record in consumer] == [value for value, _ in expected]


async def test_what_cannot_be_read_is_told_by_its_place_and_can_be_rejected(client: Client, queue: str) -> None:
    """Goal: one bad record stops nobody. Method: text that is no JSON between two that are; whoever asks for its data
    hears queue and offset, rejects it, and has the next one."""
    async with client.producer(queue) as producer:
        for value in (b"1", b"{", b"3"):
            await producer.send(value)
    found: list[Any] = []
    async with client.subscribe(queue, deserializer=json.loads) as subscription:
        for _ in range(3):
            delivery = await anext(subscription)
            try:
                found.append(delivery.data)
                await delivery.ack()
            except BadInput as error:
                found.append(error)
                await delivery.reject()
    first, bad, last = found
    assert (first, last) == (1, 3)
    assert (bad.details["queue"], bad.details["queue_offset"]) == (queue, 1)
    assert isinstance(bad.__cause__, json.JSONDecodeError)
    async with client.consumer(queue, start=1, deserializer=json.loads) as consumer:
        broken, well = await consumer.read(2, timeout_ms=10_000)
        with pytest.raises(BadInput, match="queue offset 1"):
            _ = broken.data
        assert well.data == 3


async def test_values_of_a_bulk_and_of_a_transaction_are_serialized_too(
    client: Client, queue: str, new_name: Callable[[], str]
) -> None:
    """Goal: a serializer is for whatever is sent. Method: both bulks, with properties of all of them and headers of
    each; a transaction that sends and publishes. A column of bytes is refused before anything of it is sent."""
    async with client.producer(queue, serializer=json.dumps) as producer:
        await producer.send_many([ORDER, None], headers=[{"h": b"1"}, None], content_type="application/json")
        await producer.send_many_nowait((ORDER,), app_id="shop")
        for column in (np.array([b"a"], dtype="S"), pa.array([b"a"])):
            for send in (producer.send_many, producer.send_many_nowait):
                with pytest.raises(BadInput, match=r"column of bytes.*give a list of values"):
                    await send(column)
        with pytest.raises(BadInput, match="TypeError"):
            await producer.send_many([ORDER, object()])
    await client.admin.topology.declare_exchange(exchange := new_name(), "fanout")
    await client.admin.topology.bind(exchange, queue)
    async with client.transaction(serializer=json.dumps) as transaction:
        transaction.send(queue, ORDER)
        transaction.publish(exchange, "", ORDER)
        with pytest.raises(BadInput, match=f"serializer for exchange '{exchange}' failed"):
            transaction.publish(exchange, "", object())
    async with client.consumer(queue, until="confirmed", deserializer=json.loads) as consumer:
        found = [record async for record in consumer]
    assert [record.data for record in found] == [ORDER, None, ORDER, ORDER, ORDER]
    assert [record.properties.content_type for record in found[:3]] == ["application/json"] * 2 + [None]
    assert (dict(found[0].headers)["h"], found[2].properties.app_id) == (b"1", "shop")


async def test_a_value_that_waits_for_room_is_serialized_once(client: Client, queue: str) -> None:
    """Goal: what a program makes of its value costs once, and is as it was when it was sent. Method: a window for one
    record, many that wait for it."""
    made: list[int] = []

    def serialize(number: int) -> bytes:
        made.append(number)
        return b"%d" % number * 1000

    async with client.producer(queue, serializer=serialize, window_bytes=8192, batch_bytes=4096) as producer:
        await asyncio.gather(*(producer.send(number) for number in range(200)))
    assert sorted(made) == list(range(200))


async def test_what_cannot_be_written_is_not_sent(client: Client, queue: str) -> None:
    async with client.producer(queue, serializer=json.dumps) as producer:
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(BadInput, match=f"serializer for queue '{queue}' failed: TypeError"):
                await send(object())
    with pytest.raises(BadRequest, match="serializer 5 is int"):
        client.producer(queue, serializer=5)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="deserializer 5 is int"):
        client.subscribe(queue, deserializer=5)  # type: ignore[arg-type]


def test_the_blocking_client_has_them_too(shared_cluster: Cluster, new_name: Callable[[], str]) -> None:
    """Each value is made into bytes once, by the thread that sends it."""
    made: list[object] = []

    def dumps(value: object) -> str:
        made.append(value)
        return json.dumps(value)

    with BlockingClient(*shared_cluster.servers) as client:
        queue = client.admin.declare(new_name()).name
        with client.producer(queue, serializer=dumps) as producer, client.publisher("", serializer=dumps) as publisher:
            producer.send(ORDER)
            producer.send_nowait([1]).result()
            publisher.publish(queue, ORDER)
            producer.send_many([ORDER])
            assert len(producer.send_many_nowait([[2]]).result()) == 1
            with pytest.raises(BadInput, match="column of bytes"):
                producer.send_many(np.array([b"a"], dtype="S"))
        assert made == [ORDER, [1], ORDER, ORDER, [2]]
        with pytest.raises(BadRequest, match="serializer 5 is int"):
            client.producer(queue, serializer=5)  # type: ignore[arg-type]
        with client.consumer(queue, until="confirmed", deserializer=json.loads) as consumer:
            assert [record.data for record in consumer] == [ORDER, [1], ORDER, ORDER, [2]]
        with client.subscribe(queue, deserializer=json.loads) as subscription:
            delivery = next(subscription)
            assert (delivery.value, delivery.data) == (STORED, ORDER)
            delivery.ack()
