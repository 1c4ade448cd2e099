"""Clients that publish a fixed number of records as fast as they are taken, in one of three ways:

- `send`: `send_nowait` per record, and `await room()` when the window is full.
- `send_many`: the same records as lists of a few hundred.
- `batches`: batches whose bodies were encoded, and compressed, beforehand, numbered and sealed (one CRC) as they
  leave, 16 of them unconfirmed, by `Connection.produce`.

Batches have 256 KiB, a producer's default, unless a job says otherwise.

Every record must be confirmed by as many copies as the job says.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import uvloop

from bench.clients import Pace
from bench.records import halved_records, random_records
from bench.workload import KIB, MIB, WorkloadFailed
from mirrorlog.client import Client, Producer
from mirrorlog.client.connection.connection import Connection
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import Draft, draft_columns
from mirrorlog.commitlog.format.header import Codec
from mirrorlog.errors import MirrorlogError, Overloaded
from mirrorlog.wire.frames import Confirm, Durability, Level

BATCH_BYTES: Final = 256 * KIB
WINDOW: Final = 16
WAYS: Final = ("send", "send_many", "batches")

_BULK_BYTES: Final = MIB
_DEADLINE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Publish:
    """One client's work. `copies`: that each confirm names, and the level asked; `batch_bytes`: at most;
    `compression`: of batches, whose records can be compressed to about a half then."""

    servers: tuple[str, ...]
    queue: str
    way: str
    record_bytes: int
    count: int
    copies: int
    seed: int = 0
    batch_bytes: int = BATCH_BYTES
    compression: str = "none"


@dataclass(frozen=True, slots=True)
class Published:
    """`began`: before the first record was handed over, `ended`: after the last confirm, both by `perf_counter`."""

    count: int
    began: float
    ended: float


def rate_of(published: Sequence[Published]) -> tuple[int, float]:
    """Records of all clients, and the seconds from the first one's begin to the last one's end."""
    seconds = max(each.ended for each in published) - min(each.began for each in published)
    return sum(each.count for each in published), seconds


def publish(pace: Pace, job: Publish) -> Published:
    """The client."""
    return uvloop.run(_publish(pace, job))


async def _publish(pace: Pace, job: Publish) -> Published:
    make = random_records if job.compression == "none" else halved_records
    records = make(job.record_bytes, job.count, seed=job.seed)
    async with Client(*job.servers) as client:
        if job.way == "batches":
            return await _publish_batches(client, pace, job, records)
        return await _publish_records(client, pace, job, records)


# --- By a Producer ----------------------------------------------------------------------------------------------------


async def send_each(producer: Producer, records: Sequence[bytes]) -> None:
    """Hand the records over one by one; the loop turns once for each batch's worth of bytes."""
    burst = max(1, BATCH_BYTES // max(1, len(records[0])))
    send = producer.send_nowait
    for at in range(0, len(records), burst):
        for record in records[at : at + burst]:
            try:
                send(record)
            except Overloaded:
                await _send_with_room(producer, record)
        await asyncio.sleep(0)


async def _send_with_room(producer: Producer, record: bytes) -> None:
    while True:
        await producer.room()
        try:
            producer.send_nowait(record)
        except Overloaded:
            continue
        return


async def send_many(producer: Producer, records: Sequence[bytes]) -> None:
    """Hand the records over in lists of about a MiB, without waiting for each list's confirm."""
    size = max(1, _BULK_BYTES // max(1, len(records[0])))
    for at in range(0, len(records), size):
        values = records[at : at + size]
        while True:
            try:
                producer.send_many_nowait(values)
                break
            except Overloaded:
                await producer.room()
        await asyncio.sleep(0)


_SENDERS: Final[Mapping[str, Callable[[Producer, Sequence[bytes]], Awaitable[None]]]] = {
    "send": send_each,
    "send_many": send_many,
}


async def _publish_records(client: Client, pace: Pace, job: Publish, records: list[bytes]) -> Published:
    async with client.producer(
        job.queue, confirm=job.copies, batch_bytes=job.batch_bytes, compression=job.compression
    ) as producer:
        receipt = await producer.send(records[0])
        if receipt.copies < job.copies:
            raise WorkloadFailed(f"confirmed by {receipt.copies} copies of {job.copies}")
        began = pace.begin()
        await _SENDERS[job.way](producer, records)
        await producer.flush()
        published = Published(job.count, began, time.perf_counter())
        if producer.stats.confirmed != len(records) + 1:
            raise WorkloadFailed(f"{producer.stats.confirmed} of {len(records) + 1} records were confirmed")
    return published


# --- Ready batches ----------------------------------------------------------------------------------------------------


async def _publish_batches(client: Client, pace: Pace, job: Publish, records: list[bytes]) -> Published:
    connection, info = await client.master_of(job.queue)
    codec = Codec[job.compression.upper()]
    drafts = [compress_draft(draft, codec) for draft in draft_batches(records, job.batch_bytes)]
    window = BatchWindow(connection, queue_id=info.queue_id, copies=job.copies)
    began = pace.begin()
    for draft in drafts:
        await window.send(draft)
    await window.drain()
    return Published(job.count, began, time.perf_counter())


def draft_batches(records: Sequence[bytes], batch_bytes: int = BATCH_BYTES) -> list[Draft]:
    """The records in batches of about so many bytes, encoded but for their headers."""
    size = max(1, batch_bytes // max(1, len(records[0])))
    return [draft_columns(records[at : at + size]) for at in range(0, len(records), size)]


class BatchWindow:
    """Sends ready batches of one idempotent producer, WINDOW of them unconfirmed at most."""

    def __init__(
        self, connection: Connection, *, queue_id: int, copies: int, durability: int = Durability.MEMORY
    ) -> None:
        self._connection = connection
        self._queue_id = queue_id
        self._copies = copies
        self._durability = durability
        self._producer_id = secrets.randbits(63) or 1
        self._sequence = 0
        self._in_flight = 0
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    async def send(self, draft: Draft) -> None:
        """Number, seal and send a batch once there is room. Raises what an earlier one ended with."""
        await self._wait_below(WINDOW)
        batch = draft.seal(queue_id=self._queue_id, producer_id=self._producer_id, sequence=self._sequence)
        self._sequence += draft.record_count
        self._in_flight += 1
        level = self._copies or Level.ALL
        self._connection.produce(
            batch, level=level, durability=self._durability, deadline_ms=_DEADLINE_MS, done=self._done
        )

    async def drain(self) -> None:
        """Until every batch is confirmed. Raises what one ended with."""
        await self._wait_below(1)

    async def _wait_below(self, limit: int) -> None:
        while self._in_flight >= limit and self._failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _done(self, outcome: Confirm | MirrorlogError) -> None:
        self._in_flight -= 1
        if isinstance(outcome, MirrorlogError):
            self._failure = outcome
        elif outcome.copies < self._copies:
            self._failure = WorkloadFailed(f"confirmed by {outcome.copies} copies of {self._copies}")
        self._changed.set()
