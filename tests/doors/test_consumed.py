"""What a fetch brought becomes the reader's records, all of them, once, in responses that keep their size."""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import UUID

import pytest

from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import Codec, log_seed, read_header, stamp
from mirrorlog.doors.grpc import consumed
from mirrorlog.doors.grpc.fetched import Fetched, FetchSource, read_fetched
from mirrorlog.errors import BadBatch, ProtocolError
from mirrorlog.pb.v1 import consumer_pb2 as pb
from mirrorlog.wire.frames import Batches

LOG_ID = UUID(int=5)
SOURCE = FetchSource("q", str(LOG_ID), "n1")
BODY_MAX = 1 << 20
VALUES = [b"%d" % number for number in range(10)]


def stamped(batch: bytearray, base: int, *, epoch: int = 3) -> bytearray:
    """As the log has it, at a log offset of ten times its queue offset."""
    stamp(
        batch,
        log_offset=base * 10 * 8,
        base_queue_offset=base,
        append_time_us=1_000 + base,
        epoch=epoch,
        flags=0,
        seed=log_seed(LOG_ID),
    )
    return batch


def batch_at(base: int, values: Sequence[bytes | None]) -> bytearray:
    return stamped(encode_batch([Record(value) for value in values], queue_id=1), base)


def fetched(
    batches: Sequence[bytes | bytearray],
    queue_offset: int = 0,
    *,
    until: int | None = None,
    count: int | None = None,
    body_bytes_max: int = BODY_MAX,
) -> Fetched:
    facts = Batches(begin=0, next=99, confirmed=0, epoch=3, batch_count=len(batches) if count is None else count)
    content = b"".join(batches)
    return read_fetched(
        facts, content, SOURCE, queue_offset=queue_offset, epoch=2, until=until, body_bytes_max=body_bytes_max
    )


def records(found: Fetched, max_bytes: int = BODY_MAX) -> list[pb.ConsumeResponse]:
    return list(consumed.records(found, max_bytes=max_bytes))


def values(responses: Sequence[pb.ConsumeResponse]) -> list[bytes]:
    return [record.value for each in responses for batch in each.batches.batches for record in batch.records]


@pytest.mark.parametrize(
    ("start", "until"), [(start, until) for start in range(11) for until in (None, *range(start + 1, 13))]
)
def test_a_reader_gets_its_range_and_nothing_else(start: int, until: int | None) -> None:
    """Goal: batches are cut at both ends. Method: every range over batches of 3, 3, 3 and 1, with a gap at 9."""
    batches = [batch_at(0, VALUES[0:3]), batch_at(3, VALUES[3:6]), batch_at(6, VALUES[6:9]), batch_at(10, [b"10"])]
    held = [batch for batch in batches if read_header(batch).next_queue_offset > start]
    found = fetched(held, start, until=until)
    expected = [number for number in (*range(9), 10) if start <= number < (until or 11)]
    assert (found.first, found.next) == (start, min(11, until or 11))
    raw = consumed.raw(found)
    assert (raw.first, raw.next.queue_offset, raw.end) == (start, found.next, 99)
    assert raw.raw == b"".join(held[: raw.batch_count])
    if not expected:
        assert not found.batches  # `until` is in the gap
        return
    responses = records(found)
    assert values(responses) == [b"%d" % number for number in expected]
    assert (responses[0].first, responses[-1].next) == (start, raw.next)


def test_records_fill_responses_up_to_their_size_and_lose_nothing() -> None:
    """Goal: a response stays within what was asked. Method: random batches and sizes; seed in the message of a failure.

    The serialized size is compared, since that is what a client's limit counts.
    """
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(20):
        expected: list[bytes] = []
        batches: list[bytearray] = []
        for _ in range(chance.randint(1, 6)):
            some = [bytes(chance.randint(0, 300)) for _ in range(chance.randint(1, 30))]
            batches.append(batch_at(len(expected), some))
            expected += some
        max_bytes = chance.randint(1, 3_000)
        responses = records(fetched(batches), max_bytes)
        assert values(responses) == expected, f"seed {seed}"
        at = 0
        for each in responses:
            count = sum(len(batch.records) for batch in each.batches.batches)
            assert (each.first, each.next.queue_offset) == (at, at + count), f"seed {seed}"
            content = sum(batch.ByteSize() for batch in each.batches.batches)
            assert count == 1 or content <= max_bytes + 40 * len(each.batches.batches), f"seed {seed}"
            at += count


def test_all_columns_come_out_as_they_went_in() -> None:
    """Goal: absent and empty are told apart, for rows in the middle too. Method: a full record between bare ones."""
    full = Record(b"v", b"k", [("h", b"x"), ("h", None)], 7)
    batch = stamped(encode_batch([Record(None), full, Record(b"", b"", [], -1)], queue_id=1), 0)
    (response,) = records(fetched([batch], 1))
    first, second = response.batches.batches[0].records
    assert (first.value, first.key, first.timestamp_us) == (b"v", b"k", 7)
    assert [(header.name, header.HasField("value")) for header in first.headers] == [("h", True), ("h", False)]
    assert (second.value, second.key, len(second.headers), second.timestamp_us) == (b"", b"", 0, -1)
    (whole,) = records(fetched([batch]))
    bare = whole.batches.batches[0].records[0]
    assert not any(bare.HasField(name) for name in ("value", "key", "timestamp_us"))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_batch_is_opened_for_records_and_passed_on_raw(codec: Codec) -> None:
    """Goal: compression by the client passes through. Method: one batch per codec, in both shapes; then too large."""
    some = [b"same" * 100] * 20
    draft = compress_draft(draft_columns(some), codec)
    assert draft.codec == codec
    batch = stamped(draft.seal(queue_id=1), 0)
    found = fetched([batch])
    assert values(records(found)) == some
    assert consumed.raw(found).raw == batch
    with pytest.raises(BadBatch, match="queue 'q', log offset 0"):
        records(fetched([batch], body_bytes_max=100), 1)


def test_damage_is_named_with_its_place() -> None:
    """Goal: nothing damaged is given out as records. Method: a header, a body, the size, the order."""
    header = batch_at(3, VALUES[3:6])
    header[8] ^= 1
    assert fetched([batch_at(0, VALUES[0:3]), header]).next == 3, "what stands before it is good"
    with pytest.raises(BadBatch, match="queue 'q', log offset 240: the header"):
        fetched([header], 3)
    body = batch_at(0, VALUES)
    body[-1] ^= 1
    with pytest.raises(BadBatch, match=r"queue 'q', log offset 0: .*CRC"):
        records(fetched([body]))
    good = batch_at(0, VALUES)
    with pytest.raises(ProtocolError, match="n1"):
        fetched([good, bytes(8)], count=1)
    with pytest.raises(BadBatch, match="96"):
        fetched([], count=1)
    with pytest.raises(ProtocolError, match="below queue offset 10"):
        fetched([good], 10)
    with pytest.raises(ProtocolError, match="below queue offset 10"):
        fetched([good, batch_at(3, VALUES[3:6])])


def test_silence_moves_nobody() -> None:
    """Goal: a response without records keeps the position. Method: a fetch without batches."""
    found = fetched([], 4)
    response = consumed.nothing(found)
    assert (response.first, response.next.queue_offset, response.next.epoch) == (4, 4, 2)
    assert response.WhichOneof("content") is None


def test_records_say_what_their_producer_asked_for() -> None:
    """Goal: the attributes of a batch come with its records, and raw batches as they are. Method: a batch with them,
    one with a time to live of 0, one without; a damaged block is named."""
    asked = [Attributes(9, 8, 7), Attributes(0, 0, 0), None]
    batches = [stamped(encode_batch([Record(b"v")], queue_id=1, attributes=each), at) for at, each in enumerate(asked)]
    found = fetched(batches)
    assert consumed.raw(found).raw == b"".join(batches)
    given = [batch for each in records(found) for batch in each.batches.batches]
    told = [
        Attributes(batch.priority, batch.ttl_ms if batch.HasField("ttl_ms") else None, batch.delay_ms)
        for batch in given
    ]
    assert told == [Attributes(9, 8, 7), Attributes(0, 0, 0), Attributes()]
    unknown = draft_columns([b"v"], attributes=Attributes(1))
    unknown.data[111] = 1
    with pytest.raises(BadBatch, match="log offset 0"):
        records(fetched([stamped(bytearray(unknown.seal(queue_id=1)), 0)]))
