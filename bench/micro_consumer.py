"""What a consumer costs without a network: checking what was fetched, taking records, values and Arrow batches from it.

python -m bench.micro_consumer

One fetch's worth of batches in memory, again and again; the best of several short runs, because the machine is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from mirrorlog.client import Client
from mirrorlog.client.connection.buffers import BufferPool
from mirrorlog.client.consumer.consumer import Consumer
from mirrorlog.client.consumer.records import checked_batches
from mirrorlog.client.consumer.tier import TierOptions
from mirrorlog.client.options import ConsumerOptions
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import log_seed, stamp

_LOG_ID: Final = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
_FETCH_BYTES: Final = 1024 * 1024
_BATCH_BYTES: Final = 256 * 1024
_RUN_S: Final = 0.15
_RUNS: Final = 7
# So many fetches to one event loop, which costs as much as one of them.
_ROUNDS: Final = 16


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.micro_consumer", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024, 64 * 1024], help="bytes of a value")
    for size in parser.parse_args(arguments).sizes:
        measure(size)


def measure(value_bytes: int) -> None:
    """Print the rates for values of one size: of equal size, but for the line that says otherwise."""
    content, count = fetched(value_bytes, jitter=0)
    batches = checked_batches(content, count, queue="q", log_id=_LOG_ID)
    uneven = checked_batches(*fetched(value_bytes, jitter=value_bytes // 2), queue="q", log_id=_LOG_ID)
    records = sum(map(len, batches))
    uneven_records = sum(map(len, uneven))
    steps: list[tuple[str, int, Callable[[], object]]] = [
        ("received into a pooled buffer", records, lambda: _receive(content)),
        ("received into fresh memory", records, lambda: _receive_fresh(content)),
        ("checked", records, lambda: checked_batches(content, count, queue="q", log_id=_LOG_ID)),
        ("values as views", records, lambda: _drain(batch.values for batch in batches)),
        ("values.tolist()", records, lambda: [batch.values.tolist() for batch in batches]),
        ("to_arrow()", records, lambda: [batch.to_arrow() for batch in batches]),
        ("records()", records, lambda: _drain(batch.records() for batch in batches)),
        ("records() of uneven sizes", uneven_records, lambda: _drain(batch.records() for batch in uneven)),
        ("checked, async for record", _ROUNDS * records, lambda: asyncio.run(_iterate(content, count))),
    ]
    for name, step_records, step in steps:
        per_s = step_records / _best_s(step)
        print(
            f"{value_bytes:>7} B  {name:<30} {per_s / 1e3:>10,.0f} k records/s  {per_s * value_bytes / 1e9:>8.2f} GB/s"
        )


def fetched(value_bytes: int, *, jitter: int) -> tuple[bytes, int]:
    """An answer of full batches of values of `value_bytes` more or less by up to `jitter`, and how many there are."""
    content, base = bytearray(), 0
    per_batch = max(1, _BATCH_BYTES // value_bytes)
    for number in range(_FETCH_BYTES // _BATCH_BYTES):
        sizes = [value_bytes - jitter + index * 7919 % (2 * jitter + 1) for index in range(per_batch)]
        batch = encode_batch([Record(bytes(size)) for size in sizes], queue_id=1)
        seed = log_seed(UUID(_LOG_ID))
        stamp(batch, log_offset=number, base_queue_offset=base, append_time_us=1, epoch=1, flags=0, seed=seed)
        content += batch
        base += per_batch
    return bytes(content), _FETCH_BYTES // _BATCH_BYTES


def _best_s(step: Callable[[], object]) -> float:
    """Seconds of one call: of several runs of many calls, the fastest."""
    step()
    best = float("inf")
    for _ in range(_RUNS):
        calls, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < _RUN_S:
            step()
            calls += 1
        best = min(best, elapsed / calls)
    return best


def _drain(parts: Iterable[Iterable[object]]) -> None:
    for items in parts:
        for _ in items:
            pass


_POOL: Final = BufferPool()


# What a reader and its prefetching have in hand.
_HELD: Final[deque[memoryview]] = deque(maxlen=3)


def _receive(content: bytes) -> None:
    room = _POOL.take(len(content))
    room[:] = content
    _HELD.append(room)


def _receive_fresh(content: bytes) -> None:
    room = memoryview(bytearray(len(content)))
    room[:] = content
    _HELD.append(room)


class _Fetched(Consumer):
    """A consumer whose answer is there already."""

    def __init__(self, content: bytes, count: int) -> None:
        options = ConsumerOptions(
            start=0,
            until=None,
            group=None,
            read_from="master",
            turn=0,
            max_bytes=_FETCH_BYTES,
            max_wait_ms=0,
            prefetch_bytes=0,
        )
        super().__init__(Client("127.0.0.1:1"), "q", options, TierOptions())
        self._fetched = content, count

    async def take(self) -> None:
        self.cursor.hold(checked_batches(*self._fetched, queue="q", log_id=_LOG_ID))


async def _iterate(content: bytes, count: int) -> None:
    consumer = _Fetched(content, count)
    last = checked_batches(content, count, queue="q", log_id=_LOG_ID)[-1].next - 1
    for _ in range(_ROUNDS):
        await consumer.seek(0)
        async for record in consumer:
            if record.queue_offset == last:
                break


if __name__ == "__main__":
    main()
