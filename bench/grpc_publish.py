"""W1 through the gRPC door: one Python gRPC client publishes ready batches, each confirmed by all copies.

The batches are the log's own bytes: bodies that were encoded beforehand, numbered and sealed (one CRC) by the client
before each is sent. Measured from the first write to the last confirm. The door has carried some batches before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import grpc

from bench.clients import Pace, run_clients
from bench.measure import Figure, publish_figures
from bench.nodes import prepared_cluster
from bench.records import POOL_BYTES, random_records
from bench.workload import WorkloadFailed
from mirrorlog.commitlog.format.drafts import Draft, draft_columns
from mirrorlog.pb.v1 import admin_pb2, admin_pb2_grpc, producer_pb2, producer_pb2_grpc

QUEUE: Final = "w1"
BATCH_BYTES: Final = 1024 * 1024

# What the door needs for itself is there afterwards, as its node's pages are.
_WARM_UP_BATCHES: Final = 16
_DEADLINE_S: Final = 100.0
_REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Case:
    """`total_bytes`: of all records, in batches of about BATCH_BYTES."""

    copies: int
    record_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        return f"{self.copies} {'copy' if self.copies == 1 else 'copies'}, {self.record_bytes} B, memory, gRPC, batches"

    @property
    def records_per_batch(self) -> int:
        return max(1, BATCH_BYTES // self.record_bytes)

    @property
    def batches(self) -> int:
        return max(1, self.total_bytes // (self.records_per_batch * self.record_bytes))


def run(case: Case, name: str) -> list[Figure]:
    """One round: a fresh cluster of nodes with doors."""
    # What is stored besides the records: headers and offsets, for the smallest ones a twentieth.
    stored_bytes = (case.total_bytes + _WARM_UP_BATCHES * BATCH_BYTES) * 11 // 10
    with prepared_cluster(QUEUE, case.copies, stored_bytes, grpc=True) as cluster:
        assert cluster.master.grpc is not None
        (seconds,) = run_clients(publish, [(cluster.master.grpc, case)])
    count = case.batches * case.records_per_batch
    return publish_figures("W1", name, count=count, record_bytes=case.record_bytes, seconds=seconds)


def publish(pace: Pace, job: tuple[str, Case]) -> float:
    """The client: publish all batches of the case through the door at an address; the seconds that it took."""
    address, case = job
    drafts = _drafts(case)
    options = [("grpc.max_send_message_length", _REQUEST_BYTES_MAX)]
    with grpc.insecure_channel(address, options=options) as channel:
        declare = admin_pb2.DeclareQueueRequest(name=QUEUE)
        queue = admin_pb2_grpc.AdminStub(channel).DeclareQueue(declare, timeout=_DEADLINE_S).queue
        warm_up, stream = (_Stream(channel, queue, drafts, case.copies, producer_id=number) for number in (1, 2))
        warm_up.publish(_WARM_UP_BATCHES)
        began = pace.begin()
        stream.publish(case.batches)
        return time.perf_counter() - began


def _drafts(case: Case) -> list[Draft]:
    """Different batches, as many as there are different records for, or as are published."""
    distinct = min(case.batches, max(1, POOL_BYTES // BATCH_BYTES))
    size = case.records_per_batch
    records = random_records(case.record_bytes, distinct * size, seed=3)
    return [draft_columns(records[at : at + size]) for at in range(0, len(records), size)]


def check_confirm(response: producer_pb2.PublishResponse, *, tag: int, copies: int) -> None:
    """Raises WorkloadFailed unless it confirms, by all copies and for the first time, the batch that has this tag."""
    result = response.result
    if result.tag != tag or result.confirm.copies != copies or result.confirm.duplicate:
        raise WorkloadFailed(f"batch {tag} is not confirmed by {copies} copies: {response}")


class _Stream:
    """One Publish stream with an identity of its own, whose batches `copies` nodes confirm."""

    def __init__(
        self, channel: grpc.Channel, queue: admin_pb2.QueueInfo, drafts: list[Draft], copies: int, *, producer_id: int
    ) -> None:
        self._stub = producer_pb2_grpc.ProducerStub(channel)
        self._queue = queue
        self._drafts = drafts
        self._copies = copies
        self._producer_id = producer_id

    def publish(self, batches: int) -> None:
        """Send them all and take every answer. Raises WorkloadFailed unless each is a confirm by all copies."""
        confirmed = 0
        for response in self._stub.Publish(self._requests(batches), timeout=_DEADLINE_S):
            if response.WhichOneof("response") == "result":
                check_confirm(response, tag=confirmed, copies=self._copies)
                confirmed += 1
        if confirmed != batches:
            raise WorkloadFailed(f"{confirmed} of {batches} batches were confirmed")

    def _requests(self, batches: int) -> Iterator[producer_pb2.PublishRequest]:
        epoch = self._queue.producer_epoch
        identity = producer_pb2.ProducerIdentity(producer_id=self._producer_id, producer_epoch=epoch)
        yield producer_pb2.PublishRequest(open=producer_pb2.OpenPublish(queue=QUEUE, identity=identity))
        sequence = 0
        for number in range(batches):
            draft = self._drafts[number % len(self._drafts)]
            sealed = draft.seal(
                queue_id=self._queue.queue_id, producer_id=self._producer_id, producer_epoch=epoch, sequence=sequence
            )
            sequence += draft.record_count
            request = producer_pb2.PublishRequest()
            # In place: a message that is given to another one's constructor is copied at fifteen times the cost.
            request.batch.tag = number
            request.batch.ready = bytes(sealed)
            yield request
