"""W3 through the gRPC door: one Python gRPC client reads a backlog, served by the master, all of it in the page cache.

The backlog is that of W3, published by the native door. `raw batches` (SHAPE_RAW): the client takes the log's batches,
checks both checksums of each and takes its header and length, as the native consumer does. `records` (SHAPE_RECORDS):
the door checks and opens the batches, the client takes every record's value in `bytes`. A call of Consume reads it from
the first record to the last, again and again for the measured time; connecting and the first fetch are part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from bench import w3_consume
from bench.clients import Pace, run_clients
from bench.measure import Figure
from bench.w3_consume import QUEUE, backlog, check_all_read, read_figures
from bench.workload import KIB, MIB
from mirrorlog.client.consumer.records import checked_batches
from mirrorlog.pb.v1 import consumer_pb2 as pb
from mirrorlog.pb.v1 import consumer_pb2_grpc as pb_grpc

RAW: Final = "raw batches"
RECORDS: Final = "records"
WAYS: Final = (RAW, RECORDS)

_DEADLINE_S: Final = 100.0
# The largest batch that a node takes by default, and what a response has around it.
_RESPONSE_BYTES_MAX: Final = 8 * MIB + 4 * KIB
_SHAPES: Final = {RAW: pb.SHAPE_RAW, RECORDS: pb.SHAPE_RECORDS}


class Case(w3_consume.Case):
    """W3's, read through the door."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{w3_consume.Case.__str__(self)}, gRPC"


@dataclass(frozen=True, slots=True)
class Consume:
    """One client's work: `count` records are in the queue, the door is at `address`."""

    address: str
    way: str
    record_bytes: int
    count: int
    seconds: float


def run(case: Case, name: str) -> list[Figure]:
    """One round: publish the backlog, then read it in both ways."""
    figures: list[Figure] = []
    with backlog(case, grpc=True) as cluster:
        assert cluster.master.grpc is not None
        for way in WAYS:
            job = Consume(cluster.master.grpc, way, case.record_bytes, case.count, case.seconds)
            figures += read_figures(case, f"{name}, {way}", *run_clients(consume, [job]))
    return figures


def consume(pace: Pace, job: Consume) -> tuple[int, float]:
    """The client: how many records it has read, and the seconds that it took."""
    request = pb.ConsumeRequest(
        queue=QUEUE,
        start=pb.Start(edge=pb.EDGE_EARLIEST),
        until=pb.Until(edge=pb.EDGE_LATEST),
        shape=_SHAPES[job.way],
    )
    consumed = 0
    options = [("grpc.max_receive_message_length", _RESPONSE_BYTES_MAX)]
    with grpc.insecure_channel(job.address, options=options) as channel:
        stub = pb_grpc.ConsumerStub(channel)
        began = pace.begin()
        while time.perf_counter() - began < job.seconds:
            count, value_bytes = _READERS[job.way](stub.Consume(request, timeout=_DEADLINE_S))
            check_all_read(count, value_bytes, wanted=job.count, record_bytes=job.record_bytes)
            consumed += count
        return consumed, time.perf_counter() - began


def _read_raw(responses: Iterable[pb.ConsumeResponse]) -> tuple[int, int]:
    count = stored_bytes = 0
    for response in responses:
        batches = checked_batches(response.raw, response.batch_count, queue=QUEUE, log_id=response.next.log_id)
        for batch in batches:
            count += len(batch)
            stored_bytes += batch.header.length
    return count, stored_bytes


def _read_records(responses: Iterable[pb.ConsumeResponse]) -> tuple[int, int]:
    count = value_bytes = 0
    for response in responses:
        for batch in response.batches.batches:
            for record in batch.records:
                count += 1
                value_bytes += len(record.value)
    return count, value_bytes


_READERS: Final[Mapping[str, Callable[[Iterable[pb.ConsumeResponse]], tuple[int, int]]]] = {
    RAW: _read_raw,
    RECORDS: _read_records,
}
