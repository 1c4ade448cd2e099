"""What the Python producer itself costs per record: everything but the socket and the nodes.

A real Producer runs against a connection that confirms every batch on the next turn of the loop. So each number holds
the hand-over of the record, its share of joining, numbering and checksumming the batch, of the pipeline and of the
confirm; not the system calls. Records are distinct and larger in all than a cache, handed over as fast as the window
takes them. Processor time, and the best of the rounds: what else runs on the machine only ever adds.

python -m bench.micro_producer [--rounds 7] [--records 65536]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import uvloop

from bench.measure import Figure, summarise
from mirrorlog.client import Producer
from mirrorlog.client.options import ProducerOptions
from mirrorlog.errors import Overloaded
from mirrorlog.wire.frames import Confirm, Durability, Level
from mirrorlog.wire.messages.handshake import NodeLimits

_MIB: Final = 1024 * 1024
_BURST: Final = 256
_RECORD_BYTES: Final = (100, 1024)


class InstantConnection:
    """Takes batches and confirms each on the next turn of the loop, as one node that has them at once."""

    def __init__(self) -> None:
        limits = NodeLimits(max_record_bytes=4 * _MIB, max_batch_bytes=8 * _MIB)
        self.welcome = SimpleNamespace(limits=limits)
        self.credit_bytes = limits.credit_bytes
        self.usable = True
        self._loop = asyncio.get_running_loop()
        self._queue_offset = 0

    def produce(
        self,
        batch: bytearray,
        *,
        level: int,
        durability: int,
        deadline_ms: int,
        done: Callable[[Any], None],
        routing: int = 0,
    ) -> None:
        records = int.from_bytes(batch[48:52], "little")
        self._loop.call_soon(done, Confirm(0, self._queue_offset, 1, 1, 0, 0))
        self._queue_offset += records


class InstantClient:
    """The part of a Client that a Producer needs."""

    async def master_of(self, queue: str) -> tuple[InstantConnection, Any]:
        return InstantConnection(), SimpleNamespace(queue_id=1, producer_epoch=0, info=SimpleNamespace(effective={}))

    async def vouched(self, found: Any) -> Any:
        return found


class Workload(Protocol):
    """Hands `values` over and returns when all are confirmed."""

    def __call__(self, producer: Producer, values: Any) -> Awaitable[None]: ...


async def send_each(producer: Producer, values: Sequence[bytes]) -> None:
    """By `send_nowait`, no key."""
    for number, value in enumerate(values):
        while True:
            try:
                producer.send_nowait(value)
                break
            except Overloaded:
                await producer.room()
        if number % _BURST == 0:
            await asyncio.sleep(0)
    await producer.flush()


async def send_each_keyed(producer: Producer, values: Sequence[bytes]) -> None:
    """By `send_nowait`, with a key."""
    for number, value in enumerate(values):
        while True:
            try:
                producer.send_nowait(value, key=b"key-0123456789")
                break
            except Overloaded:
                await producer.room()
        if number % _BURST == 0:
            await asyncio.sleep(0)
    await producer.flush()


async def send_awaited(producer: Producer, values: Sequence[bytes]) -> None:
    """By `send`, each awaited before the next: a batch of one record, and a turn of the loop, for each."""
    for value in values:
        await producer.send(value)


async def send_many(producer: Producer, values: Any) -> None:
    await producer.send_many(values)


def cases(record_bytes: int, count: int) -> list[tuple[str, Workload, Any]]:
    """Name, way and values; the values are the same bytes in each form."""
    flat = os.urandom(record_bytes * count)
    listed = [flat[at : at + record_bytes] for at in range(0, len(flat), record_bytes)]
    rows = np.frombuffer(flat, dtype=np.uint8).reshape(count, record_bytes)
    return [
        ("send, awaited", send_awaited, listed[: count // 16]),
        ("send_nowait", send_each, listed),
        ("send_nowait with a key", send_each_keyed, listed),
        ("send_many of a list", send_many, listed),
        ("send_many of pyarrow binary", send_many, pa.array(listed, pa.binary())),
        ("send_many of numpy rows", send_many, rows),
    ]


async def measure(workload: Workload, values: Any) -> float:
    """µs of processor time per record, of one round."""
    producer = Producer(
        InstantClient(),  # type: ignore[arg-type]  # what it needs of one
        "micro",
        ProducerOptions(
            level=Level.ALL,
            durability=Durability.MEMORY,
            batch_bytes=256 * 1024,
            linger_ms=5,
            window_bytes=32 * _MIB,
            max_in_flight=16,
            delivery_timeout_ms=30_000,
        ),
    )
    async with producer:
        started = time.process_time()
        await workload(producer, values)
        elapsed = time.process_time() - started
        assert producer.stats.confirmed == len(values), producer.stats
    return elapsed * 1e6 / len(values)


def run(count: int) -> list[Figure]:
    """One round of everything."""
    figures = []
    for record_bytes in _RECORD_BYTES:
        for name, workload, values in cases(record_bytes, count):
            cost = uvloop.run(measure(workload, values))
            figures.append(Figure("producer", f"{name}, {record_bytes} B", "cost", "µs/record", cost))
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.micro_producer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=65_536)
    options = parser.parse_args(arguments)
    figures = [figure for _ in range(options.rounds) for figure in run(options.records)]
    for each in summarise(figures):
        print(f"{each.case:40} best {each.minimum:6.3f}  median {each.median:6.3f}  {each.unit}")


if __name__ == "__main__":
    main()
