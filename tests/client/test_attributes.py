"""Records with a priority, a time to live or a delay: which batches they share, in which order, and who is told no.

On scripted nodes, which keep the batches as they were sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mirrorlog.client import Client, Producer
from mirrorlog.client.consumer.records import ConsumedRecord, GrantedRecord, checked_batches
from mirrorlog.client.producer.accumulator import _OPEN_MAX
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.commitlog.format.attributes import DURATION_MS_MAX, NO_ATTRIBUTES, Attributes, attributes_of
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.header import Codec, read_header
from mirrorlog.errors import BadInput, BadRequest, Overloaded
from tests.client.scripted_nodes import LOG_ID, MIB, QUEUE, Nodes, scripted

Stored = list[tuple[Attributes, list[bytes | None]]]


def stored(nodes: Nodes) -> Stored:
    """Of each batch, in the log's order, its attributes and values."""
    found = []
    for _, batch in nodes.batches:
        body = open_body(batch, body_bytes_max=MIB)
        found.append((attributes_of(read_header(batch), batch), [record.value for record in body.records()]))
    return found


def of(found: Stored, attributes: Attributes) -> list[bytes | None]:
    return [value for each, values in found if each == attributes for value in values]


@asynccontextmanager
async def producing(**options: Any) -> AsyncIterator[tuple[Producer, Nodes]]:
    async with scripted(1) as nodes, Client(*nodes.servers) as client, client.producer(QUEUE, **options) as producer:
        yield producer, nodes


ASKED: dict[str, Any] = {"priority": 7, "ttl_ms": 60_000, "delay_ms": 1_500}
FOUND = Attributes(7, 60_000, 1_500)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("way", ["send", "send with headers", "send_nowait", "send_many", "send_many_nowait", "batch"])
async def test_every_way_of_sending_takes_attributes(way: str, compression: str) -> None:
    """Goal: send, send_nowait, send_many and their kin alike, under every codec. One record, or a hundred."""
    value = b"value" * 50
    async with producing(compression=compression) as (producer, nodes):
        if way == "send":
            await producer.send(value, key=b"k", **ASKED)
        elif way == "send with headers":
            await producer.send(value, headers={"h": b"1"}, timestamp=5, **ASKED)
        elif way == "send_nowait":
            await producer.send_nowait(value, **ASKED)
        elif way == "send_many":
            await producer.send_many([value] * 100, **ASKED)
        elif way == "send_many_nowait":
            await producer.send_many_nowait([value] * 100, keys=[b"k"] * 100, **ASKED)
        else:
            await producer.send_batch_nowait([Record(value)] * 100, **ASKED)
        [(found, values)] = stored(nodes)
    assert found == FOUND
    assert set(values) == {value}
    codec = read_header(nodes.batches[0][1]).codec
    assert compression == "none" or codec == Codec[compression.upper()]


async def test_records_with_the_same_attributes_share_a_batch() -> None:
    """Goal: priorities in turn make no batches of one record; each set keeps its order. 300 records of three sets,
    handed over in turn."""
    async with producing() as (producer, nodes):
        for number in range(300):
            producer.send_nowait(b"%d" % number, priority=number % 3)
        await producer.flush()
        found = stored(nodes)
    assert len(found) == 3
    for priority in range(3):
        assert of(found, Attributes(priority)) == [b"%d" % number for number in range(priority, 300, 3)]


async def test_order_holds_within_one_set_of_attributes_through_full_batches() -> None:
    """Goal: a batch that is full takes the others along, and nothing overtakes within a set. Small batches, a small
    window, records that are awaited, bulks and single ones in turn."""
    sets: list[dict[str, Any]] = [{}, {"priority": 1}, {"ttl_ms": 5}, {"priority": 1, "delay_ms": 9}]
    async with producing(batch_bytes=1024, window_bytes=16 * 1024) as (producer, nodes):
        for number in range(400):
            asked = sets[number % 4]
            value = b"%05d" % number
            if number % 23 == 0:
                await producer.send(value, **asked)
            elif number % 17 == 0:
                await producer.send_many([value], **asked)
            else:
                while True:
                    try:
                        producer.send_nowait(value, **asked)
                        break
                    except Overloaded:
                        await producer.room()
        await producer.flush()
        found = stored(nodes)
    for at, asked in enumerate(sets):
        expected = [b"%05d" % number for number in range(at, 400, 4)]
        assert of(found, Attributes(**asked)) == expected
    assert producer.stats.confirmed == 400


async def test_more_sets_than_may_be_open_leave_earlier() -> None:
    """Goal: what is open is bounded, whatever times to live are asked for. A set of its own for each record."""
    count = 3 * _OPEN_MAX + 1
    async with producing() as (producer, nodes):
        for number in range(count):
            producer.send_nowait(b"%d" % number, ttl_ms=1 + number)
            assert len(producer._accumulator.open) <= _OPEN_MAX
        await producer.flush()
        found = stored(nodes)
    assert found == [(Attributes(0, 1 + number), [b"%d" % number]) for number in range(count)]


async def test_the_window_counts_all_open_batches() -> None:
    """Goal: window_bytes holds over all sets together. Records of two sets until there is no room."""
    async with producing(batch_bytes=MIB, window_bytes=64 * 1024) as (producer, _):
        for number in range(60):
            producer.send_nowait(b"x" * 1000, priority=number % 2)
        more = [producer.send_nowait(b"x" * 1000, priority=number % 2) for number in range(2)]
        with pytest.raises(Overloaded):
            producer.send_nowait(b"x" * 3000)
        assert not any(delivery.done() for delivery in more)
        await producer.flush()


async def test_without_attributes_nothing_changes() -> None:
    """Goal: the defaults are no attributes: no block, one batch."""
    async with producing() as (producer, nodes):
        producer.send_nowait(b"a", priority=0, ttl_ms=None, delay_ms=0)
        producer.send_nowait(b"b")
        await producer.flush()
    assert stored(nodes) == [(NO_ATTRIBUTES, [b"a", b"b"])]
    assert read_header(nodes.batches[0][1]).columns == 0


@pytest.mark.parametrize(
    "asked",
    [{"priority": 256}, {"priority": -1}, {"ttl_ms": -1}, {"delay_ms": DURATION_MS_MAX + 1}, {"ttl_ms": 1.5}],
)
async def test_what_is_outside_its_limits_is_refused_before_anything_leaves(asked: dict[str, Any]) -> None:
    """Goal: told by its name, at once, by every way of sending."""
    name = next(iter(asked))
    async with producing() as (producer, nodes):
        with pytest.raises(BadInput, match=name):
            await producer.send(b"v", **asked)
        with pytest.raises(BadInput, match=name):
            producer.send_nowait(b"v", **asked)
        with pytest.raises(BadInput, match=name):
            await producer.send_many([b"v"], **asked)
        with pytest.raises(BadInput, match=name):
            producer.send_many_nowait([b"v"], **asked)
    assert nodes.batches == []


async def test_an_older_cluster_is_told_of_before_anything_leaves() -> None:
    """Goal: software that does not know attributes would take them for damage. A node that does not offer them: plain
    records go, others are refused with what to do."""
    async with scripted(1) as nodes:
        nodes["n1"].attributes = False
        async with Client(*nodes.servers) as client, client.producer(QUEUE) as producer:
            await producer.send(b"plain")
            with pytest.raises(BadRequest, match=r"takes no priority, ttl_ms or delay_ms before all its nodes"):
                await producer.send(b"v", priority=1)
            with pytest.raises(BadRequest):
                producer.send_many_nowait([b"v"], ttl_ms=0)
    assert stored(nodes) == [(NO_ATTRIBUTES, [b"plain"])]


async def test_an_abandoned_producer_ends_all_open_batches() -> None:
    """Goal: nothing is left waiting. Three sets open, then abandoned."""
    async with scripted(1) as nodes, Client(*nodes.servers) as client:
        producer = await client.producer(QUEUE).start()
        waiting = [producer.send_nowait(b"v", priority=priority) for priority in range(3)]
        producer.abandon()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(error, "code", None) for error in ended] == ["REFUSED"] * 3


async def test_readers_see_them() -> None:
    """Goal: a batch, its records and their times. Sent to a scripted node, read from it, and from bytes."""
    async with producing() as (producer, nodes):
        await producer.send(b"plain")
        await producer.send(b"v", priority=9, ttl_ms=2, delay_ms=1)
        async with Client(*nodes.servers) as client, client.consumer(QUEUE, start=0, until="confirmed") as consumer:
            plain, record = [record async for record in consumer]
    assert (plain.attributes, plain.priority, plain.expires_at_us) == (NO_ATTRIBUTES, 0, None)
    assert plain.not_before_us == plain.append_time_us
    assert record.attributes == Attributes(9, 2, 1)
    assert record.priority == 9
    assert record.expires_at_us == record.append_time_us + 2_000
    assert record.not_before_us == record.append_time_us + 1_000
    [batch] = checked_batches(nodes.batches[1][1], 1, queue=QUEUE, log_id=LOG_ID)
    assert batch.attributes == Attributes(9, 2, 1)
    assert batch.to_arrow().column("value").to_pylist() == [b"v"]


def test_what_a_group_gives_out_shows_them() -> None:
    """Goal: one arithmetic for deliveries and leases."""
    given = GrantedRecord(ConsumedRecord("q", 0, b"v", None, [], None, 1_000_000, Attributes(3, 10, 20)))
    assert (given.priority, given.expires_at_us, given.not_before_us) == (3, 1_010_000, 1_020_000)


async def test_the_synchronous_producer_takes_them_too() -> None:
    """Goal: the same by threads: send, send_nowait, send_many, and limits told at once."""
    async with scripted(1) as nodes:

        def produce() -> None:
            with SyncClient(*nodes.servers) as client, client.producer(QUEUE) as producer:
                producer.send(b"a", **ASKED)
                producer.send_nowait(b"b", priority=1).result()
                producer.send_many([b"c"], ttl_ms=0)
                producer.send_many_nowait([b"d"], delay_ms=4).result()
                with pytest.raises(BadInput, match="priority"):
                    producer.send_nowait(b"e", priority=1000)

        await asyncio.to_thread(produce)
    assert stored(nodes) == [
        (FOUND, [b"a"]),
        (Attributes(1), [b"b"]),
        (Attributes(0, 0), [b"c"]),
        (Attributes(0, None, 4), [b"d"]),
    ]
