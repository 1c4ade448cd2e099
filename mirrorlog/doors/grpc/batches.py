"""The content of a batch: its records as columns, or its ready batch checked against the stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorlog.client.producer.batch import as_timestamp_us
from mirrorlog.commitlog.format.attributes import Attributes, asked_attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import MAGIC, NO_PRODUCER, Buffer, read_header
from mirrorlog.doors.grpc.incoming import Batch, Opening
from mirrorlog.errors import BadBatch, BadRequest, BatchTooLarge
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.messages.handshake import NodeLimits


def check_content(batch: Batch, opening: Opening) -> None:
    """The batch has content, and a sequence exactly where one belongs. Raises BadBatch or BadRequest."""
    records = batch.content if isinstance(batch.content, pb.Records) else None
    if batch.content is None or (records is not None and not records.records):
        raise BadBatch("a batch has at least one record")
    numbered = records is not None and opening.identified
    if numbered and (batch.sequence is None or batch.sequence < 0):
        raise BadRequest("records on a stream with an identity have a sequence, from 0")
    if batch.sequence is not None and not numbered:
        raise BadRequest("a sequence is for records on a stream with an identity; a ready batch has it in its header")


def read_records(records: pb.Records) -> list[Record]:
    """The records as the native side has them; what is absent is None. Raises BadInput for an impossible time."""
    return [
        Record(
            record.value if record.HasField("value") else None,
            record.key if record.HasField("key") else None,
            [(header.name, header.value if header.HasField("value") else None) for header in record.headers],
            as_timestamp_us(record.timestamp_us) if record.HasField("timestamp_us") else None,
        )
        for record in records.records
    ]


def read_attributes(records: pb.Records) -> Attributes | None:
    """Of all the records; None for none. Raises BadInput for what is outside its limits."""
    ttl_ms = records.ttl_ms if records.HasField("ttl_ms") else None
    return asked_attributes(records.priority, ttl_ms, records.delay_ms)


def number_records(
    records: Sequence[Record],
    opening: Opening,
    *,
    sequence: int,
    queue_id: int,
    attributes: Attributes | None = None,
) -> bytes:
    """A native batch under the stream's identity: the same records and sequence give the same bytes."""
    encoded = encode_batch(
        records,
        queue_id=queue_id,
        producer_id=opening.producer_id,
        producer_epoch=opening.producer_epoch,
        sequence=sequence,
        attributes=attributes,
    )
    return bytes(encoded)


def check_size(batch: Buffer, limits: NodeLimits) -> None:
    """Raises BatchTooLarge: the node would close the connection, which other streams use too."""
    if len(batch) > limits.max_batch_bytes:
        raise BatchTooLarge(
            f"a batch of {len(batch)} bytes is above the node's max_batch_bytes ({limits.max_batch_bytes})"
        )


def check_ready(batch: Buffer, opening: Opening, *, queue_id: int, limits: NodeLimits) -> bool:
    """Whether the ready batch is idempotent. Raises BatchTooLarge or BadBatch.

    Not whether it is whole: the node checks that at its ingest, and stores nothing of a batch whose header was damaged
    on its way to here, whatever it says.
    """
    check_size(batch, limits)
    header = read_header(batch)
    if header.magic != MAGIC:
        raise BadBatch(f"magic {header.magic:#010x} where a batch has {MAGIC:#010x}")
    if header.queue_id != queue_id:
        raise BadBatch(f"the batch is for queue id {header.queue_id}, the stream for {queue_id} ({opening.queue!r})")
    has, wants = (header.producer_id, header.producer_epoch), (opening.producer_id, opening.producer_epoch)
    if opening.identified and has != wants:
        raise BadBatch(f"the batch is of producer {has[0]} epoch {has[1]}, the stream of {wants[0]} epoch {wants[1]}")
    return header.producer_id != NO_PRODUCER
