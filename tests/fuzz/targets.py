"""What every parser must do with bytes from a stranger: give what they are, or raise an error of this project.

Each target takes any bytes; the property tests and the coverage-guided fuzzers share them. A `Seeds` function gives
good inputs to begin with. Nothing here may raise anything but AssertionError, and only for a broken property.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirrorlog.commitlog.epochs import Epoch, EpochList, decode_epochs, encode_epochs
from mirrorlog.commitlog.flush import Checkpoint, decode_slot, encode_slot
from mirrorlog.commitlog.format.attributes import (
    NO_ATTRIBUTES,
    Attributes,
    asked_attributes,
    attributes_of,
    encode_attributes,
)
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.format.codec import compress, compress_draft, open_body
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import (
    HEADER_SIZE,
    BatchHeader,
    Codec,
    Column,
    aligned,
    check_body,
    check_producer_part,
    check_stamped,
    log_seed,
    stamp,
    write_producer_part,
)
from mirrorlog.commitlog.format.header import Kind as BatchKind
from mirrorlog.commitlog.log import CommitLog, check_run
from mirrorlog.commitlog.recovery.recovery import EARLIER
from mirrorlog.config import LogSettings
from mirrorlog.errors import BadBatch, MirrorlogError
from mirrorlog.queues.changes import decode_changes
from mirrorlog.queues.checkpoint_states import decode_checkpoint
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.frames import (
    FrameType,
    frame,
    read_ack,
    read_batches,
    read_confirm,
    read_deliver,
    read_fetch,
    read_produce,
    read_settle,
    read_settled,
    read_transfer,
)
from mirrorlog.wire.messages.codec import as_error, decode, encode
from mirrorlog.wire.messages.handshake import Failure, Hello
from mirrorlog.wire.messages.queues import DeclareQueue, GetMetadata
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest
from mirrorlog.wire.transaction_frames import read_transact, read_transacted
from sim.disk import SimulatedFiles
from tests.fuzz.amqp_targets import connection, connection_seeds

LOG_ID: Final = UUID(int=7)
SEED: Final = log_seed(LOG_ID)
BYTES_MAX: Final = 64 * 1024
EPOCHS: Final = EpochList.of([Epoch(1, 0)])

_SLOT: Final = encode_slot(3, Checkpoint(begin=0, flushed=96, confirmed=96), LOG_ID)
_CUTS_MAX: Final = 100
_CRC_AT: Final = 36
_LENGTH_AT: Final = 44
_STRUCTS: Final = {
    FrameType.PRODUCE: read_produce, FrameType.CONFIRM: read_confirm, FrameType.FETCH: read_fetch,
    FrameType.BATCHES: read_batches, FrameType.TRANSFER: read_transfer, FrameType.ACK: read_ack,
    FrameType.DELIVER: read_deliver, FrameType.SETTLE: read_settle, FrameType.SETTLED: read_settled,
    FrameType.TRANSACT: read_transact, FrameType.TRANSACTED: read_transacted,
}  # fmt: skip


# --- Batches ------------------------------------------------------------------------------------------------------


def batch(data: bytes) -> None:
    """One batch from a producer. An odd first byte repairs length and checksum, so that the body is reached."""
    content = bytearray(data[1:])
    if data[:1] and data[0] & 1 and len(content) >= HEADER_SIZE:
        struct.pack_into("<I", content, _LENGTH_AT, len(content))
        struct.pack_into("<I", content, _CRC_AT, crc32c(memoryview(content)[_CRC_AT + 4 :]))
    with suppress(MirrorlogError):
        header = check_producer_part(memoryview(content), max_batch_bytes=BYTES_MAX)
        assert header.length == len(content) <= BYTES_MAX
        _read_attributes(header, bytes(content))
        _read_body(bytes(content), header.record_count)
    _store(content)


def _read_attributes(header: BatchHeader, content: bytes) -> None:
    """What is read is within the limits of what may be asked for, and is written to the same bytes."""
    with suppress(BadBatch):
        found = attributes_of(header, content)
        assert (asked_attributes(*found) or NO_ATTRIBUTES) == found
        if header.columns & Column.ATTRIBUTES:
            assert encode_attributes(found) == content[HEADER_SIZE : header.body_at]


def _read_body(content: bytes, record_count: int) -> None:
    for read in (decode_changes, decode_checkpoint):
        with suppress(MirrorlogError):
            read(content)
    body = open_body(content, body_bytes_max=BYTES_MAX)
    assert len(body) == record_count
    for index in range(min(record_count, 1000)):
        record = body.record(index)
        assert record.value is None or len(record.value) <= BYTES_MAX


def _store(content: bytearray) -> None:
    """Stamped by a master, as a mirror finds it."""
    if len(content) < HEADER_SIZE:
        return
    stamp(content, log_offset=0, base_queue_offset=0, append_time_us=0, epoch=1, flags=0, seed=SEED)
    with suppress(MirrorlogError):
        headers = check_run(
            memoryview(content), log_offset=0, seed=SEED, epochs=EPOCHS, max_batch_bytes=BYTES_MAX
        )  # fmt: skip
        assert sum(header.length for header in headers) == len(content)
        again = check_stamped(content, 0, log_offset=0, seed=SEED, max_batch_bytes=BYTES_MAX)
        check_body(memoryview(content), 0, again)


def batch_seeds() -> list[bytes]:
    record = Record(b"value", b"key", [("name", b"x"), ("other", None)], 1_000_000)
    found = [encode_batch(records, queue_id=1) for records in ([record], [record] * 5, [Record(None), Record(b"")])]
    for codec in (Codec.LZ4, Codec.ZSTD):
        found.append(_compressed(found[1], codec))
    for codec in Codec:
        draft = draft_columns([b"value" * 9] * 5, attributes=Attributes(255, 0, 1_500))
        found.append(bytearray(compress_draft(draft, codec).seal(queue_id=1)))
    return [bytes((flag,)) + bytes(each) for each in found for flag in (0, 1)]


def _compressed(plain: bytearray, codec: Codec) -> bytearray:
    packed = compress(codec, bytes(plain[HEADER_SIZE:]))
    padding = aligned(len(packed)) - len(packed)
    content = bytearray(HEADER_SIZE) + packed + bytes(padding)
    columns = struct.unpack_from("<H", plain, 60)[0]
    write_producer_part(
        content, kind=BatchKind.DATA, queue_id=1, record_count=5, columns=columns, padding=padding, codec=codec,
        body_length=len(plain) - HEADER_SIZE,
    )  # fmt: skip
    assert len(open_body(content, body_bytes_max=BYTES_MAX)) == len(parse_batch_body(plain))
    return content


# --- Frames -------------------------------------------------------------------------------------------------------

Seen = list[tuple[int, int, bytes]]


def frames(data: bytes) -> None:
    """A connection's bytes: the first 8 say how they are cut. However that is, the same comes out."""
    cuts, stream = data[:8], data[8:]
    whole, whole_error = _receive(stream, bytes([255]), place=False)
    for place in (False, True):
        found, error = _receive(stream, cuts or b"\1", place=place)
        assert (found, error) == (whole, whole_error)
    for kind, _, payload in whole:
        with suppress(MirrorlogError):
            reader = _STRUCTS.get(FrameType(kind))
            if reader is not None:
                reader(memoryview(payload))
            else:
                decode(payload)


def _receive(stream: bytes, cuts: bytes, *, place: bool) -> tuple[Seen, str | None]:
    """The frames, and the code of the error that ended the connection."""

    def placed(kind: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return memoryview(bytearray(size))

    reader = FrameReader(frame_bytes_max=BYTES_MAX, initial_bytes=64, place=placed if place else None)
    found: Seen = []
    turn = at = 0
    while at < len(stream):
        room = reader.room()
        assert len(room) > 0
        wanted = 1 + cuts[turn % len(cuts)] ** 2 if turn < _CUTS_MAX else len(stream)
        size = min(len(stream) - at, len(room), wanted)
        room[:size] = stream[at : at + size]
        at += size
        reader.received(size)
        turn += 1
        try:
            while (each := reader.next_frame()) is not None:
                body = b"" if each.body is None else bytes(each.body)
                found.append((each.type, each.correlation_id, bytes(each.payload) + body))
        except MirrorlogError as error:
            return found, error.code
    return found, None


def frame_seeds() -> list[bytes]:
    small = [frame(kind, bytes(40), number) for number, kind in enumerate(FrameType)]
    hello = frame(FrameType.HELLO, message_seeds()[0])
    large = frame(FrameType.TRANSFER, bytes(20_000)) + frame(FrameType.ACK, bytes(24))
    cuts = bytes(range(1, 9))
    return [cuts + b"".join(small), cuts + hello * 3, cuts + large, bytes([255] * 8) + large * 2]


# --- Control messages ---------------------------------------------------------------------------------------------


def message(data: bytes) -> None:
    """A control message: what is decoded can be encoded, and is the same then."""
    with suppress(MirrorlogError):
        found = decode(data)
        assert encode(decode(encode(found))) == encode(found)
        if isinstance(found, Failure):
            assert isinstance(as_error(found), MirrorlogError)
        if isinstance(found, FollowRequest):
            EpochList.of(found.epochs)


def message_seeds() -> list[bytes]:
    return [
        encode(each)
        for each in (
            Hello(version_min=1, version_max=1, role="client", credential=b"x"),
            FollowRequest(
                log_id="l", epochs=[EpochEntry(1, 0, "n1", "s"), EpochEntry(2, 96)], begin=0, end=96, confirmed=0
            ),
            Failure(code="NOT_MASTER", message="no", details={"master": "n1", "more": [1, 2.5, None, {"a": b"b"}]}),
            DeclareQueue(name="q", arguments={"x-max": 1}),
            GetMetadata(queues=["a", "b"]),
        )
    ]


# --- Files of a log -----------------------------------------------------------------------------------------------


def epoch_list(data: bytes) -> None:
    """The file of the epochs; an odd first byte repairs the checksum. What is decoded is encoded to the same bytes."""
    content = data[1:]
    if data[:1] and data[0] & 1:
        content += struct.pack("<I", crc32c(content))
    with suppress(ValueError):
        assert encode_epochs(decode_epochs(content)) == content


def epoch_seeds() -> list[bytes]:
    lists = [EpochList(), EPOCHS, EpochList.of([Epoch(1, 0, "n1", "s-1"), Epoch(5, 4096, "né", "")])]
    return [b"\0" + encode_epochs(each) for each in lists] + [b"\1" + encode_epochs(each)[:-4] for each in lists]


def checkpoint_slot(data: bytes) -> None:
    """A slot of the checkpoint; an odd first byte repairs the checksum. What is decoded round-trips."""
    content = bytearray(data[1:])
    covered = len(_SLOT) - 4
    if data[:1] and data[0] & 1 and len(content) >= len(_SLOT):
        struct.pack_into("<I", content, covered, crc32c(bytes(content[:covered])))
    found = decode_slot(bytes(content), LOG_ID)
    if found is not None:
        assert decode_slot(encode_slot(*found, LOG_ID), LOG_ID) == found


def checkpoint_seeds() -> list[bytes]:
    return [bytes((flag,)) + _SLOT for flag in (0, 1)]


def segment_file(data: bytes) -> None:
    """Any bytes as a segment of a log that opens: what stands there whole is found, the rest cut, once and for all."""
    directory = Path("/fuzz/log")
    disk = SimulatedFiles(directory.parent)
    log = _open(disk, directory, [])
    log.open_epoch(1)
    log.close()
    with disk.open(directory / f"{0:020}") as file:
        file.pwrite(data[:4096], 0)
        file.fdatasync()
    first: list[bytes] = []
    with suppress(MirrorlogError):
        report = _open(disk, directory, first).recovery
        assert report.end == sum(map(len, first))
        # Zeros in the place of a header end a log, whatever follows.
        assert report.torn is not None or not any(data[report.end : min(report.end + HEADER_SIZE, 4096)])
        again: list[bytes] = []
        second = _open(disk.after_power_loss(), directory, again).recovery
        # A loss is reported until somebody has acted on it.
        assert (second.lossy, second.torn, second.warnings) == (report.lossy, None, ())
        assert report.cut_valid is None or second.cut_valid == replace(report.cut_valid, reason=EARLIER)
        assert again == first


def _open(disk: SimulatedFiles, directory: Path, found: list[bytes]) -> CommitLog:
    return CommitLog.open(
        directory,
        log_id=LOG_ID,
        cluster_id=LOG_ID,
        name="main",
        settings=LogSettings.model_construct(segment_bytes=4096, populate_bytes=0, prepare_bytes=0),
        max_batch_bytes=BYTES_MAX,
        on_batch=lambda header, content: found.append(bytes(content)),
        files=disk,
    )


def segment_seeds() -> list[bytes]:
    """One batch, three, and three whose second one is damaged."""
    run = bytearray()
    borders = []
    for each in batch_seeds()[::2][:3]:
        content = bytearray(each[1:])
        stamp(content, log_offset=len(run), base_queue_offset=0, append_time_us=0, epoch=1, flags=0, seed=SEED)
        borders.append(len(run))
        run += content
    torn = bytearray(run)
    torn[borders[1] + 100] ^= 1
    return [bytes(run[: borders[1]]), bytes(run), bytes(torn)]


class Target(NamedTuple):
    """`try_bytes` takes anything; `seeds` gives good inputs."""

    try_bytes: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


TARGETS: Final = {
    "batch": Target(batch, batch_seeds),
    "frames": Target(frames, frame_seeds),
    "messages": Target(message, message_seeds),
    "epochs": Target(epoch_list, epoch_seeds),
    "checkpoint": Target(checkpoint_slot, checkpoint_seeds),
    "segment": Target(segment_file, segment_seeds),
    "amqp": Target(connection, connection_seeds),
}
