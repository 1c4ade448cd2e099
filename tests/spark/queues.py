"""Queues on real nodes for Spark's tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from mirrorlog.client import Client
from mirrorlog.commitlog.format.body import Record


def publish(
    servers: Sequence[str],
    queue: str,
    records: Sequence[Record],
    *,
    batch_records: int = 100,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Declare the queue and publish `records` in batches of `batch_records`, all confirmed when this returns."""
    asyncio.run(_publish(servers, queue, records, batch_records, tls))


async def _publish(
    servers: Sequence[str], queue: str, records: Sequence[Record], batch_records: int, tls: ssl.SSLContext | None
) -> None:
    async with Client(*servers, tls=tls) as client:
        await client.admin.declare(queue)
        async with client.producer(queue, confirm="all") as producer:
            for start in range(0, len(records), batch_records):
                for record in records[start : start + batch_records]:
                    producer.send_nowait(
                        record.value, key=record.key, headers=record.headers, timestamp=record.timestamp_us
                    )
                await producer.flush()


def every_kind_of_record(count: int) -> list[Record]:
    """Values, keys, headers and event times present, empty and absent in all combinations, over and over."""
    values = [b"value", b"", None, b"\x00\xff" * 50]
    keys = [None, b"", b"key"]
    headers = [(), (("n", b"1"), ("n", None), ("", b"")), (("größe", b"\xfe"),)]
    timestamps = [None, 0, 1_700_000_000_123_456, -1, 253_402_300_799_999_999]
    return [
        Record(
            values[number % 4] and values[number % 4] + str(number).encode(),
            keys[number // 4 % 3],
            headers[number // 12 % 3],
            timestamps[number // 36 % 5],
        )
        for number in range(count)
    ]


def append_times_us(servers: Sequence[str], queue: str) -> list[int]:
    """Of every record of the queue, by queue offset, as a consumer sees them."""
    return asyncio.run(_append_times_us(servers, queue))


async def _append_times_us(servers: Sequence[str], queue: str) -> list[int]:
    async with (
        Client(*servers) as client,
        client.consumer(queue, start="earliest", until="confirmed") as consumer,
    ):
        return [record.append_time_us async for record in consumer]
