"""W2 through the gRPC door: one record outstanding, confirmed by all copies, from a client that knows no batch format.

The door has no call for a single record, so the client keeps one Publish stream open, and each of its messages is one
record (`records`, not a ready batch), sent when the one before it is answered. It numbers them, as the native producer
does: only then can it send one again. The client is grpc.aio on uvloop, a little faster than the blocking one,
whose requests leave from a thread of gRPC's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import grpc
import uvloop

from bench.clients import Pace, run_clients
from bench.grpc_publish import check_confirm
from bench.measure import Figure, latencies
from bench.nodes import prepared_cluster
from bench.records import random_records
from bench.workload import MIB, WorkloadFailed
from mirrorlog.pb.v1 import admin_pb2, admin_pb2_grpc, producer_pb2, producer_pb2_grpc

QUEUE: Final = "w2"
COPIES: Final = 3

_POOL: Final = 1000
_WARM_UP: Final = 200
_PRODUCER_ID: Final = 1
_DEADLINE_S: Final = 100.0


@dataclass(frozen=True, slots=True)
class Case:
    """`seconds`: how long records are sent."""

    record_bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{COPIES} copies, {self.record_bytes} B, memory, gRPC, record"


def run(case: Case, name: str) -> list[Figure]:
    """One round: a fresh cluster of nodes with doors."""
    with prepared_cluster(QUEUE, COPIES, 256 * MIB, grpc=True) as cluster:
        assert cluster.master.grpc is not None
        (latencies_us,) = run_clients(send_one_by_one, [(cluster.master.grpc, case)])
    return latencies("W2", name, latencies_us, ("p50", "p90", "p99", "p99.9"))


def send_one_by_one(pace: Pace, job: tuple[str, Case]) -> list[float]:
    """The client of the door at an address: each record's time to its confirm in µs, after a warm-up."""
    address, case = job
    return uvloop.run(_send_one_by_one(pace, address, case))


async def _send_one_by_one(pace: Pace, address: str, case: Case) -> list[float]:
    records = random_records(case.record_bytes, _POOL, seed=2)
    latencies_us: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        stream = await _Stream.open(channel)
        for record in records[:_WARM_UP]:
            await stream.send(record)
        end = pace.begin() + case.seconds
        while (asked := time.perf_counter()) < end:
            await stream.send(records[len(latencies_us) % _POOL])
            latencies_us.append((time.perf_counter() - asked) * 1e6)
        await stream.close()
    return latencies_us


class _Stream:
    """One Publish stream with an identity. Made by `open`."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._sequence = 0

    @classmethod
    async def open(cls, channel: grpc.aio.Channel) -> _Stream:
        declare = admin_pb2.DeclareQueueRequest(name=QUEUE)
        declared = await admin_pb2_grpc.AdminStub(channel).DeclareQueue(declare, timeout=_DEADLINE_S)
        epoch = declared.queue.producer_epoch
        identity = producer_pb2.ProducerIdentity(producer_id=_PRODUCER_ID, producer_epoch=epoch)
        call = producer_pb2_grpc.ProducerStub(channel).Publish(timeout=_DEADLINE_S)
        opening = producer_pb2.OpenPublish(queue=QUEUE, identity=identity)
        await call.write(producer_pb2.PublishRequest(open=opening))
        await call.read()
        return cls(call)

    async def send(self, value: bytes) -> None:
        """Until the record is confirmed. Raises WorkloadFailed unless that is by all copies."""
        number = self._sequence
        self._sequence += 1
        request = producer_pb2.PublishRequest()
        request.batch.tag = number
        request.batch.sequence = number
        request.batch.records.records.add(value=value)
        await self._call.write(request)
        response = await self._call.read()
        if response is grpc.aio.EOF:
            raise WorkloadFailed(f"the stream ended before the answer to record {number}")
        check_confirm(response, tag=number, copies=COPIES)

    async def close(self) -> None:
        """Raises WorkloadFailed when there is an answer too many."""
        await self._call.done_writing()
        if (response := await self._call.read()) is not grpc.aio.EOF:
            raise WorkloadFailed(f"an answer that nothing was asked for: {response}")
