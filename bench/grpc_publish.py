"""W1 through the gRPC door: one Python gRPC client publishes ready batches, each confirmed by all copies.

The batches are the log's own bytes: a prepared body, numbered and sealed (one CRC) by the client before each is sent.
Measured from the first write to the last confirm. The client runs in this process, the door in its own, as ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import grpc

from bench.measure import Figure, publish_figures
from mirrorlog.commitlog.body import draft_columns
from mirrorlog.pb.v1 import admin_pb2, admin_pb2_grpc, producer_pb2, producer_pb2_grpc
from mirrorlog.testing import Cluster

COPIES: Final = 3
BATCH_BYTES: Final = 1024 * 1024
_QUEUE: Final = "w1"
_DEADLINE_S: Final = 300.0
_REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024


def run(record_bytes: int, total_bytes: int) -> list[Figure]:
    """One round: a fresh cluster of 3 nodes with doors, about `total_bytes` of records of `record_bytes`."""
    records = max(1, BATCH_BYTES // record_bytes)
    batches = max(1, total_bytes // (records * record_bytes))
    with Cluster(COPIES, min_in_sync=COPIES, grpc=True) as cluster:
        cluster.wait_in_sync()
        assert cluster.master.grpc is not None
        seconds = publish(cluster.master.grpc, record_bytes=record_bytes, records=records, batches=batches)
    case = f"{COPIES} copies, {record_bytes} B, memory, gRPC, batches"
    return publish_figures("W1", case, count=records * batches, record_bytes=record_bytes, seconds=seconds)


def publish(address: str, *, record_bytes: int, records: int, batches: int) -> float:
    """Publish `batches` batches of `records` records through the door at `address`; the seconds that it took."""
    options = [("grpc.max_send_message_length", _REQUEST_BYTES_MAX)]
    with grpc.insecure_channel(address, options=options) as channel:
        declare = admin_pb2.DeclareQueueRequest(name=_QUEUE)
        queue = admin_pb2_grpc.AdminStub(channel).DeclareQueue(declare, timeout=_DEADLINE_S).queue
        warm_up, stream = (
            _Stream(channel, queue, producer_id=number, record_bytes=record_bytes, records=records) for number in (1, 2)
        )
        warm_up.publish(1)
        started = time.perf_counter()
        stream.publish(batches)
        return time.perf_counter() - started


class _Stream:
    """One Publish stream with an identity of its own."""

    def __init__(
        self, channel: grpc.Channel, queue: admin_pb2.QueueInfo, *, producer_id: int, record_bytes: int, records: int
    ) -> None:
        self._stub = producer_pb2_grpc.ProducerStub(channel)
        self._queue = queue
        self._producer_id = producer_id
        self._records = records
        self._draft = draft_columns([bytes(record_bytes)] * records)

    def publish(self, batches: int) -> None:
        """Send them all and take every answer; each must be a confirm by all copies."""
        confirmed = 0
        for response in self._stub.Publish(self._requests(batches), timeout=_DEADLINE_S):
            if response.WhichOneof("response") == "result":
                assert response.result.confirm.copies == COPIES, response
                confirmed += 1
        assert confirmed == batches, f"{confirmed} of {batches} batches were confirmed"

    def _requests(self, batches: int) -> Iterator[producer_pb2.PublishRequest]:
        epoch = self._queue.producer_epoch
        identity = producer_pb2.ProducerIdentity(producer_id=self._producer_id, producer_epoch=epoch)
        yield producer_pb2.PublishRequest(open=producer_pb2.OpenPublish(queue=_QUEUE, identity=identity))
        for number in range(batches):
            sealed = self._draft.seal(
                queue_id=self._queue.queue_id,
                producer_id=self._producer_id,
                producer_epoch=epoch,
                sequence=number * self._records,
            )
            request = producer_pb2.PublishRequest()
            # In place: a message that is given to another one's constructor is copied at fifteen times the cost.
            request.batch.tag = number
            request.batch.ready = bytes(sealed)
            yield request
