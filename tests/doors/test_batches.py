"""What a PublishBatch carries arrives as it is, or is refused before a node sees it."""

from __future__ import annotations

import pytest

from mirrorlog.commitlog.format.attributes import Attributes, attributes_of
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.doors.grpc.incoming import (
    Batch,
    Opening,
    check_content,
    check_ready,
    check_size,
    number_records,
    read_attributes,
    read_records,
)
from mirrorlog.errors import BadBatch, BadInput, BadRequest, BatchTooLarge
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.frames import Durability, Level
from mirrorlog.wire.messages.handshake import NodeLimits

LIMITS = NodeLimits(max_record_bytes=1024, max_batch_bytes=4096)
QUEUE_ID = 7
ANONYMOUS = Opening("q", Level.ALL, Durability.MEMORY, 1000, 0, 0)
IDENTIFIED = Opening("q", Level.ALL, Durability.MEMORY, 1000, 42, 3)
RECORDS = pb.Records(records=[pb.Record(value=b"v")])
READY = memoryview(b"x")


def ready(**options: int) -> bytes:
    return bytes(encode_batch([Record(b"value")], **{"queue_id": QUEUE_ID, **options}))


def test_absent_and_empty_are_told_apart_on_the_whole_way() -> None:
    """Goal: a tombstone stays one. Method: every part absent, empty and present, through the native encoding."""
    records = pb.Records(
        records=[
            pb.Record(),
            pb.Record(
                value=b"", key=b"", headers=[pb.Header(name="é"), pb.Header(name="é", value=b"")], timestamp_us=0
            ),
            pb.Record(value=b"v", key=b"k", headers=[pb.Header(name="h", value=b"x")], timestamp_us=-5),
        ]
    )
    batch = number_records(read_records(records), IDENTIFIED, sequence=9, queue_id=QUEUE_ID)
    found = list(parse_batch_body(batch).records())
    assert found == [
        Record(None, None, [], None),
        Record(b"", b"", [("é", None), ("é", b"")], 0),
        Record(b"v", b"k", [("h", b"x")], -5),
    ]
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.sequence, header.queue_id) == (42, 3, 9, QUEUE_ID)


def test_attributes_of_the_records_are_those_of_the_batch() -> None:
    """Goal: priority, time to live and delay arrive; a time to live of 0 is not none. Method: through the encoding."""
    for given, expected in (
        (pb.Records(records=RECORDS.records), None),
        (pb.Records(records=RECORDS.records, ttl_ms=0), Attributes(0, 0, 0)),
        (pb.Records(records=RECORDS.records, priority=255, ttl_ms=9, delay_ms=8), Attributes(255, 9, 8)),
    ):
        asked = read_attributes(given)
        assert asked == expected
        batch = number_records(read_records(given), IDENTIFIED, sequence=0, queue_id=QUEUE_ID, attributes=asked)
        assert attributes_of(read_header(batch), batch) == (expected or Attributes())


@pytest.mark.parametrize("asked", [{"priority": 256}, {"ttl_ms": -1}, {"delay_ms": -1}, {"delay_ms": 2**62}])
def test_attributes_outside_their_limits_are_refused(asked: dict[str, int]) -> None:
    """Goal: a wrong value is named before a node sees it."""
    with pytest.raises(BadInput, match=next(iter(asked))):
        read_attributes(pb.Records(**asked))


def test_the_same_records_and_sequence_are_the_same_bytes() -> None:
    """Goal: a retry is recognised by its CRC. Method: encode twice, from messages that were parsed anew."""
    copy = pb.Records.FromString(RECORDS.SerializeToString())
    first, second = (
        number_records(read_records(records), IDENTIFIED, sequence=0, queue_id=QUEUE_ID) for records in (RECORDS, copy)
    )
    assert first == second


@pytest.mark.parametrize(
    ("batch", "opening"),
    [
        (Batch(1, 9, RECORDS), ANONYMOUS),
        (Batch(1, 9, READY), ANONYMOUS),
        (Batch(1, 9, RECORDS, sequence=0), IDENTIFIED),
        (Batch(1, 9, READY), IDENTIFIED),
    ],
)
def test_content_with_its_sequence_where_one_belongs_is_taken(batch: Batch, opening: Opening) -> None:
    """Goal: the four allowed forms. Method: check each."""
    check_content(batch, opening)


@pytest.mark.parametrize(
    ("batch", "opening", "kind"),
    [
        (Batch(1, 9, None), ANONYMOUS, BadBatch),
        (Batch(1, 9, pb.Records()), ANONYMOUS, BadBatch),
        (Batch(1, 9, RECORDS, sequence=0), ANONYMOUS, BadRequest),
        (Batch(1, 9, READY, sequence=0), ANONYMOUS, BadRequest),
        (Batch(1, 9, READY, sequence=0), IDENTIFIED, BadRequest),
        (Batch(1, 9, RECORDS), IDENTIFIED, BadRequest),
        (Batch(1, 9, RECORDS, sequence=-1), IDENTIFIED, BadRequest),
    ],
)
def test_content_without_meaning_is_refused(batch: Batch, opening: Opening, kind: type[Exception]) -> None:
    """Goal: nothing is guessed. Method: every other form."""
    with pytest.raises(kind):
        check_content(batch, opening)


def test_a_ready_batch_is_idempotent_when_its_header_says_who_sends_it() -> None:
    """Goal: `retriable` is right for ready batches. Method: with and without a producer id, on both kinds of stream."""
    own = ready(producer_id=42, producer_epoch=3)
    assert check_ready(own, IDENTIFIED, queue_id=QUEUE_ID, limits=LIMITS)
    assert check_ready(own, ANONYMOUS, queue_id=QUEUE_ID, limits=LIMITS)
    assert not check_ready(ready(), ANONYMOUS, queue_id=QUEUE_ID, limits=LIMITS)


@pytest.mark.parametrize(
    ("batch", "opening", "named"),
    [
        (ready(queue_id=QUEUE_ID + 1), ANONYMOUS, "queue id 8"),
        (ready(), IDENTIFIED, "producer 0"),
        (ready(producer_id=42, producer_epoch=2), IDENTIFIED, "epoch 2"),
        (ready()[:95], ANONYMOUS, "header needs 96"),
        (b"", ANONYMOUS, "header needs 96"),
        (bytes(200), ANONYMOUS, "magic"),
    ],
)
def test_a_ready_batch_that_does_not_fit_the_stream_is_refused(batch: bytes, opening: Opening, named: str) -> None:
    """Goal: one stream writes one queue under one name. Method: another queue, producer, epoch; no batch at all."""
    with pytest.raises(BadBatch, match=named):
        check_ready(batch, opening, queue_id=QUEUE_ID, limits=LIMITS)


def test_a_batch_above_the_node_s_limit_does_not_reach_its_connection() -> None:
    """Goal: the node would close the connection of all streams. Method: one batch at the limit, one above."""
    check_size(bytes(LIMITS.max_batch_bytes), LIMITS)
    with pytest.raises(BatchTooLarge, match="4097"):
        check_size(bytes(LIMITS.max_batch_bytes + 1), LIMITS)
