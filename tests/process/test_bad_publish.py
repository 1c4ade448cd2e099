"""A publish that cannot be right is refused whole, by name, on a connection that goes on; the log is not touched."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.format.codec import compress, compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import HEADER_SIZE, Codec, Column, Kind, write_producer_part
from mirrorlog.errors import (
    BadBatch,
    BadInput,
    BadRequest,
    BatchTooLarge,
    MirrorlogError,
    NoSuchQueue,
    OutOfSequence,
    ProtocolError,
    RecordTooLarge,
    StaleProducerEpoch,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, PRODUCE, FrameType, Level, frame
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.transaction_frames import transact_payload
from tests.process.clusters import declare, error_of, fast_cluster, log_of
from tests.process.raw import Raw, batch_of

RECORD_MAX = 64 * 1024
BATCH_MAX = 512 * 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1, settings={"limits.max_record_bytes": RECORD_MAX, "limits.max_batch_bytes": BATCH_MAX}) as one:
        yield one


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> QueueInfo:
    return declare(cluster.servers[0], "q")


@pytest.fixture
def raw(cluster: Cluster, queue: QueueInfo) -> Iterator[Raw]:
    """A connection on which the test is refused: afterwards the log is as before and the connection still good."""
    with Raw(cluster.servers[0]) as connection:
        connection.produce(batch_of([b"before"], queue))
        end = log_of(cluster.master).end
        yield connection
        assert log_of(cluster.master).end == end
        confirm = connection.produce(batch_of([b"after"], queue))
        assert connection.values(queue.queue_id, confirm.base_queue_offset) == [b"after"]


def refused(raw: Raw, batch: bytes | bytearray, kind: type[MirrorlogError], match: str) -> MirrorlogError:
    """The node refuses `batch` with exactly this class and a line that says why."""
    error = error_of(lambda: raw.produce(batch))
    assert type(error) is kind, repr(error)
    assert match in error.message
    assert "\n" not in error.message
    return error


def resealed(batch: bytearray) -> bytearray:
    """With a CRC that is right again."""
    struct.pack_into("<I", batch, 36, crc32c(memoryview(batch)[40:]))
    return batch


def with_field(queue: QueueInfo, layout: str, at: int, value: int) -> bytearray:
    """A good batch of three records with one field of its header changed, and its CRC right."""
    batch = batch_of([b"a", b"bb", b"ccc"], queue)
    struct.pack_into(layout, batch, at, value)
    return resealed(batch)


def test_a_queue_that_nobody_declared(raw: Raw) -> None:
    """Goal: NO_SUCH_QUEUE for ids that are free, zero or the largest. Method: publish to each."""
    for queue_id in (0, 99, 2**32 - 1):
        refused(raw, batch_of([b"x"], queue_id), NoSuchQueue, "no queue has the id")


def test_a_record_above_the_limit(raw: Raw, queue: QueueInfo) -> None:
    """Goal: max_record_bytes is exact. Method: one byte above is refused."""
    refused(raw, batch_of([b"x" * (RECORD_MAX + 1)], queue), RecordTooLarge, "max_record_bytes")


def test_a_batch_above_the_limit(raw: Raw, queue: QueueInfo) -> None:
    """Goal: max_batch_bytes is exact on a connection that goes on. Method: eight bytes above it."""
    sizes = [32 * 1024] * 15
    rest = BATCH_MAX + 8 - len(batch_of([bytes(size) for size in (*sizes, 0)], queue))
    batch = batch_of([bytes(size) for size in (*sizes, rest)], queue)
    assert len(batch) == BATCH_MAX + 8
    refused(raw, batch, BadBatch, str(BATCH_MAX))


def test_a_wrong_checksum(raw: Raw, queue: QueueInfo) -> None:
    """Goal: damage on the way is seen. Method: flip one bit of the last byte."""
    batch = batch_of([b"abcdefgh"], queue)
    batch[-1] ^= 1
    refused(raw, batch, BadBatch, "CRC-32C")


@pytest.mark.parametrize("count", [0, 2, 4, 2**32 - 1])
def test_a_wrong_record_count(raw: Raw, queue: QueueInfo, count: int) -> None:
    """Goal: the count in the header is that of the body. Method: three records that say they are others."""
    error = error_of(lambda: raw.produce(with_field(queue, "<I", 48, count)))
    assert type(error) is BadBatch, repr(error)


@pytest.mark.parametrize("offsets", [(0, 2, 1, 6), (1, 2, 3, 6), (0, -1, 3, 6), (0, 1, 3, 9), (0, 1, 3, 2**31 - 1)])
def test_value_offsets_that_overlap_or_leave_the_body(raw: Raw, queue: QueueInfo, offsets: tuple[int, ...]) -> None:
    """Goal: no record can reach into another or outside. Method: offset arrays that decrease or reach too far."""
    batch = batch_of([b"a", b"bb", b"ccc"], queue)
    struct.pack_into("<4i", batch, HEADER_SIZE, *offsets)
    error = error_of(lambda: raw.produce(resealed(batch)))
    assert type(error) is BadBatch, repr(error)


@pytest.mark.parametrize(
    ("field", "match"),
    [
        pytest.param(("<I", 40, 0x31424C4E), "magic", id="magic"),
        pytest.param(("<B", 56, 2), "batch format 2", id="version"),
        pytest.param(("<B", 57, 9), "kind 9", id="kind"),
        pytest.param(("<B", 58, 7), "codec 7", id="codec"),
        pytest.param(("<B", 59, 8), "padding 8", id="padding"),
        pytest.param(("<H", 60, 0x8000), "columns", id="columns"),
        pytest.param(("<H", 62, 1), "reserved", id="reserved"),
        pytest.param(("<I", 44, 96), "bytes", id="length"),
        pytest.param(("<I", 44, 104), "bytes", id="shorter"),
        pytest.param(("<I", 44, 13), "multiple of 8", id="odd-length"),
        pytest.param(("<I", 76, 8), "body", id="body-length"),
    ],
)
def test_a_header_that_is_none(raw: Raw, queue: QueueInfo, field: tuple[str, int, int], match: str) -> None:
    """Goal: each field of the header is checked. Method: change one, with the CRC right."""
    refused(raw, with_field(queue, *field), BadBatch, match)


@pytest.mark.parametrize(
    ("field", "kind", "match"),
    [
        pytest.param(("<I", 76, BATCH_MAX + 1), BatchTooLarge, "max_batch_bytes", id="unpacks-too-large"),
        pytest.param(("<I", 48, 2**32 - 1), BadBatch, "the body", id="more-records-than-fit"),
    ],
)
def test_a_compressed_body_that_claims_too_much(
    raw: Raw, queue: QueueInfo, field: tuple[str, int, int], kind: type[MirrorlogError], match: str
) -> None:
    """Goal: nothing is unpacked beyond the limits. Method: change what its header says of it."""
    layout, at, number = field
    batch = with_field(queue, "<B", 58, Codec.LZ4)
    struct.pack_into(layout, batch, at, number)
    refused(raw, resealed(batch), kind, match)


def packed(queue: QueueInfo, values: list[bytes], codec: Codec, **numbers: int) -> bytearray:
    draft = compress_draft(draft_columns(values), codec)
    assert draft.codec == codec
    return bytearray(draft.seal(queue_id=queue.queue_id, **numbers))


CODECS = pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])


@CODECS
@pytest.mark.parametrize("size", [1_000, 400_000])
def test_a_compressed_body_that_nobody_can_open(raw: Raw, queue: QueueInfo, codec: Codec, size: int) -> None:
    """Goal: garbage under a compression flag comes into no log, however it is opened: at once or by the helper.
    Method: a sound header and checksum over bytes of all kinds that are no body of that size."""
    good = packed(queue, [bytes(size // 10)] * 10, codec)
    for garbage in (b"\xff", b"\0", b"\x28\xb5\x2f\xfd"):
        batch = bytearray(good)
        batch[HEADER_SIZE:] = (garbage * len(batch))[: len(batch) - HEADER_SIZE]
        error = error_of(lambda batch=batch: raw.produce(resealed(batch)))  # type: ignore[misc]
        assert type(error) is BadBatch, repr(error)
    for change in (-1, 1, 4096):
        batch = bytearray(good)
        struct.pack_into("<I", batch, 76, struct.unpack_from("<I", batch, 76)[0] + change)
        error = error_of(lambda batch=batch: raw.produce(resealed(batch)))  # type: ignore[misc]
        assert type(error) is BadBatch, repr(error)
    flipped = bytearray(good)
    flipped[HEADER_SIZE + 8] ^= 0xFF
    refused(raw, flipped, BadBatch, "CRC-32C")


@CODECS
def test_a_compressed_body_is_held_against_the_same_limits(raw: Raw, queue: QueueInfo, codec: Codec) -> None:
    """Goal: a codec is no way around max_record_bytes or sound columns. Method: a value above the limit, offsets that
    leave the body, and names that are no text, all well packed."""
    refused(raw, packed(queue, [bytes(RECORD_MAX + 1)], codec), RecordTooLarge, "max_record_bytes")
    body = struct.pack("<2i", 0, 2**31 - 1) + bytes(1000)
    names = struct.pack("<2i", 0, 0) + struct.pack("<2i", 0, 1) + struct.pack("<2i", 0, 1) + b"\xff" + bytes(7)
    names += struct.pack("<2i", 0, 1000) + bytes(1000)
    for content, columns, match in ((body, 0, "value"), (names, int(Column.HEADERS), "UTF-8")):
        inside = compress(codec, content)
        padding = -len(inside) % 8
        batch = bytearray(HEADER_SIZE) + inside + bytes(padding)
        write_producer_part(
            batch, kind=Kind.DATA, queue_id=queue.queue_id, record_count=1, columns=columns, codec=codec,
            padding=padding, body_length=len(content),
        )  # fmt: skip
        refused(raw, batch, BadBatch, match)


def test_what_is_opened_by_the_helper_is_appended_in_its_order(cluster: Cluster) -> None:
    """Goal: sequences stay in order though only some batches are opened elsewhere. Method: large packed ones and small
    plain ones of one producer in turn, one of them in a transaction, all sent before an answer is read."""
    order = declare(cluster.servers[0], "order")
    wanted: list[bytes] = []
    with Raw(cluster.servers[0]) as raw:
        for number in range(60):
            values = [b"%06d" % number + bytes(40_000)] * 10 if number % 3 == 0 else [b"%06d" % number]
            draft = compress_draft(draft_columns(values), (Codec.LZ4, Codec.ZSTD)[number % 2])
            assert bool(draft.codec) == (number % 3 == 0)
            batch = draft.seal(queue_id=order.queue_id, producer_id=21, sequence=len(wanted))
            wanted += values
            if number == 31:
                payload = transact_payload([], [batch], level=Level.ALL, durability=0, deadline_ms=0)
                raw.send(frame(FrameType.TRANSACT, payload, 1000 + number))
            else:
                raw.send(frame(FrameType.PRODUCE, PRODUCE.pack(Level.ALL, 0, 0, 0) + batch, 1000 + number))
        for number in range(60):
            raw.answer(1000 + number)
        assert raw.values(order.queue_id) == wanted


@pytest.mark.parametrize("kind", [Kind.TRANSACTION, Kind.QUEUE_STATE, Kind.CHECKPOINT, Kind.CONTROL])
@pytest.mark.parametrize("queue_id", [0, 1])
def test_a_kind_that_is_not_a_clients(raw: Raw, kind: Kind, queue_id: int) -> None:
    """Goal: nobody writes control batches but the node. Method: send each other kind, to the log and to a queue."""
    refused(raw, encode_batch([Record(b"x")], queue_id=queue_id, kind=kind), BadBatch, f"not {int(kind)}")


def test_header_names_that_are_not_text(raw: Raw, queue: QueueInfo) -> None:
    """Goal: what is stored can be read by every consumer. Method: names whose bytes are not UTF-8, in whole and cut
    in the middle of a character."""
    for names, cut in ((b"\xff\xfe", 1), ("ä".encode(), 1)):
        body = struct.pack("<2i", 0, 1) + b"v" + bytes(7)  # one value
        body += struct.pack("<2i", 0, 2)  # two headers
        body += struct.pack("<3i", 0, cut, len(names)) + bytes(4) + names + bytes(8 - len(names))
        body += struct.pack("<3i", 0, 0, 0) + bytes(4)
        batch = bytearray(HEADER_SIZE) + body
        write_producer_part(batch, kind=Kind.DATA, queue_id=queue.queue_id, record_count=1, columns=int(Column.HEADERS))
        refused(raw, batch, BadBatch, "UTF-8")


def test_no_batch_at_all(raw: Raw, queue: QueueInfo) -> None:
    """Goal: short and empty payloads are no crash. Method: a header cut off at every interesting place."""
    whole = batch_of([b"x"], queue)
    for size in (0, 1, 95, 96, len(whole) - 8):
        refused(raw, whole[:size], BadBatch, "bytes")


def test_two_batches_in_one_frame(raw: Raw, queue: QueueInfo) -> None:
    """Goal: a publish is exactly one batch. Method: two of them."""
    refused(raw, batch_of([b"x"], queue) * 2, BadBatch, "the frame carries")


@pytest.mark.parametrize("level", [2, 3, 253])
def test_a_level_that_the_log_cannot_reach(raw: Raw, queue: QueueInfo, level: int) -> None:
    """Goal: more copies than there are is a refusal, not a wait. Method: ask one copy for more."""
    error = error_of(lambda: raw.produce(batch_of([b"x"], queue), level=level))
    assert type(error) is BadRequest, repr(error)


def test_a_durability_that_nobody_knows(raw: Raw, queue: QueueInfo) -> None:
    """Goal: a receipt never repeats a made-up durability. Method: ask for number 7."""
    error = error_of(lambda: raw.produce(batch_of([b"x"], queue), durability=7))
    assert type(error) is BadRequest, repr(error)


def test_a_gap_in_the_sequence(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: nothing is skipped, and the error names the last one held. Method: begin not at 0, then leave one out."""
    with Raw(cluster.servers[0]) as raw:
        error = error_of(lambda: raw.produce(batch_of([b"x"], queue, producer_id=11, sequence=5)))
        assert type(error) is OutOfSequence
        assert error.details["last"] == -1
        raw.produce(batch_of([b"0", b"1"], queue, producer_id=11))
        end = log_of(cluster.master).end
        for sequence in (1, 3, 2**63, 2**64 - 1):
            wrong = batch_of([b"x"], queue, producer_id=11, sequence=sequence)
            error = error_of(lambda wrong=wrong: raw.produce(wrong))  # type: ignore[misc]
            assert type(error) is OutOfSequence
            assert error.details["last"] == 1
        assert log_of(cluster.master).end == end
        raw.produce(batch_of([b"2"], queue, producer_id=11, sequence=2))


def test_the_same_sequence_with_other_content(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a retry is identical or refused. Method: the same batch (answered as a duplicate), then another one."""
    with Raw(cluster.servers[0]) as raw:
        batch = batch_of([b"one"], queue, producer_id=12)
        first = raw.produce(batch)
        again = raw.produce(batch)
        assert again == first._replace(flags=CONFIRM_DUPLICATE)
        end = log_of(cluster.master).end
        refused(raw, batch_of([b"two"], queue, producer_id=12), BadBatch, "identical bytes")
        assert log_of(cluster.master).end == end


def test_a_producer_that_was_succeeded(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: an old instance cannot write on. Method: epoch 1 after epoch 2 of one producer."""
    with Raw(cluster.servers[0]) as raw:
        raw.produce(batch_of([b"new"], queue, producer_id=13, producer_epoch=2))
        refused(raw, batch_of([b"old"], queue, producer_id=13, producer_epoch=1), StaleProducerEpoch, "up to 2 are")


def test_a_publish_shorter_than_its_own_fields(cluster: Cluster) -> None:
    """Goal: no payload is too short to be answered. Method: each length below that of the fixed part."""
    for size in range(PRODUCE.size):
        with Raw(cluster.servers[0]) as raw:
            raw.send(frame(FrameType.PRODUCE, bytes(size), 5))
            error = error_of(lambda raw=raw: raw.answer(5))  # type: ignore[misc]
            assert isinstance(error, BadInput | ProtocolError), repr(error)
            assert "bytes" in error.message


def test_nothing_is_lost_by_all_this(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: what every record of this file left is whole. Method: read the queue, verify it against its own log."""
    with Raw(cluster.servers[0]) as raw:
        everything = raw.values(queue.queue_id)
    assert set(everything) <= {b"before", b"after", b"0", b"1", b"2", b"one", b"new"}
