"""The exact bytes on disk: a batch, the epoch list, a checkpoint slot.

Bytes that change here break every log that exists. To write the files anew after a decided change of format, run
`MIRRORLOG_WRITE_GOLDEN=1 pytest tests/commitlog/test_golden.py` and review the difference.
"""

import os
import re
import struct
from pathlib import Path

import pytest

from mirrorlog.commitlog.epochs import Epoch, EpochList, decode_epochs, encode_epochs
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.flush import SLOT_BYTES, SLOT_SIZE, Checkpoint, CheckpointFile, decode_slot, encode_slot
from mirrorlog.commitlog.format.attributes import Attributes, attributes_of
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.checksum import crc32c_portable
from mirrorlog.commitlog.format.codec import compress_draft, open_body
from mirrorlog.commitlog.format.drafts import Draft, draft_columns, encode_batch
from mirrorlog.commitlog.format.envelope import EnvelopePart, open_envelope, seal_envelope
from mirrorlog.commitlog.format.header import (
    Codec,
    Column,
    Kind,
    check_body,
    check_stamped,
    log_seed,
    read_header,
    stamp,
)
from tests.commitlog.logs import LOG_ID, flush, open_log, segment_files

GOLDEN = Path(__file__).parent / "golden"
FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "format.md"

RECORDS = [
    Record(b"hello", b"k1", [("row", b"1"), ("row", None)], 1_700_000_000_000_000),
    Record(None, None, [], None),
    Record(b"", b"", [("", b"")], 1_700_000_000_000_001),
]


def golden_batch() -> bytearray:
    """Three records with everything that a column can have, stamped at log offset 4096 of the test log."""
    batch = encode_batch(RECORDS, queue_id=7, producer_id=0x0102030405060708, producer_epoch=2, sequence=40)
    stamp(
        batch,
        log_offset=4096,
        base_queue_offset=100,
        append_time_us=1_700_000_000_500_000,
        epoch=3,
        flags=0,
        seed=log_seed(LOG_ID),
    )
    return batch


def hex_lines(content: bytes) -> str:
    """16 bytes per line, with the offset in decimal."""
    lines = (f"{at:4}  {content[at : at + 16].hex(' ')}" for at in range(0, len(content), 16))
    return "".join(line + "\n" for line in lines)


def from_hex_lines(text: str) -> bytes:
    return bytes.fromhex("".join(line[4:] for line in text.splitlines()))


def golden(name: str, content: bytes) -> bytes:
    """The bytes of the golden file `name`, written first when asked to."""
    path = GOLDEN / name
    if os.environ.get("MIRRORLOG_WRITE_GOLDEN"):
        path.write_text(hex_lines(content))
    return from_hex_lines(path.read_text())


def test_a_batch_has_exactly_these_bytes() -> None:
    """Goal: header and body layout never change unseen. Compare with the stored bytes, and read those."""
    stored = golden("batch.hex", bytes(golden_batch()))
    assert bytes(golden_batch()) == stored
    header = check_stamped(stored, 0, log_offset=4096, seed=log_seed(LOG_ID), max_batch_bytes=1 << 20)
    check_body(memoryview(stored), 0, header)
    expected = [record._replace(headers=list(record.headers)) for record in RECORDS]
    assert list(parse_batch_body(stored).records()) == expected


def test_header_fields_stand_where_the_format_says() -> None:
    """Goal: offset, size and byte order of each header field, read with struct and not with our code."""
    stored = golden("batch.hex", bytes(golden_batch()))
    columns = sum(Column) & ~Column.ATTRIBUTES
    fields = [
        (0, "<Q", 4096), (8, "<Q", 100), (16, "<q", 1_700_000_000_500_000), (24, "<I", 3), (28, "<I", 0),
        (40, "<4s", b"MLB1"), (44, "<I", len(stored)), (48, "<I", 3), (52, "<I", 7), (56, "<B", 1),
        (57, "<B", int(Kind.DATA)), (58, "<B", 0), (59, "<B", 0), (60, "<H", columns), (62, "<H", 0),
        (64, "<Q", 0x0102030405060708), (72, "<I", 2), (76, "<I", len(stored) - 96), (80, "<Q", 40),
        (88, "<q", 1_700_000_000_000_001),
    ]  # fmt: skip
    assert [struct.unpack_from(layout, stored, at)[0] for at, layout, _ in fields] == [value for *_, value in fields]
    # Both checksums with the independent implementation.
    assert struct.unpack_from("<I", stored, 36)[0] == crc32c_portable(stored[40:])
    unsealed = stored[:32] + bytes(4) + stored[36:96]
    assert struct.unpack_from("<I", stored, 32)[0] == crc32c_portable(unsealed, crc32c_portable(LOG_ID.bytes))


def test_body_columns_stand_in_order_and_aligned() -> None:
    """Goal: the columns' places, written out by hand, padding included."""
    stored = golden("batch.hex", bytes(golden_batch()))
    columns = [
        bytes([0b101]).ljust(8, b"\0"),  # value validity: the second is absent
        struct.pack("<4i", 0, 5, 5, 5),
        b"hello".ljust(8, b"\0"),
        bytes([0b101]).ljust(8, b"\0"),  # key validity
        struct.pack("<4i", 0, 2, 2, 2),
        b"k1".ljust(8, b"\0"),
        struct.pack("<4i", 0, 2, 2, 3),  # headers per record
        struct.pack("<4i", 0, 3, 6, 6),  # their names
        b"rowrow".ljust(8, b"\0"),
        bytes([0b101]).ljust(8, b"\0"),  # header value validity
        struct.pack("<4i", 0, 1, 1, 1),
        b"1".ljust(8, b"\0"),
        bytes([0b101]).ljust(8, b"\0"),  # timestamp validity
        struct.pack("<3q", 1_700_000_000_000_000, 0, 1_700_000_000_000_001),
    ]
    assert stored[96:] == b"".join(columns)


ATTRIBUTES = Attributes(priority=5, ttl_ms=60_000, delay_ms=1_500)


def attributed_batch(codec: Codec = Codec.NONE) -> bytearray:
    """Two records of 20 bytes with a priority, a time to live and a delay, as a producer sends them."""
    draft: Draft = compress_draft(draft_columns([b"a" * 20, b"b" * 20], attributes=ATTRIBUTES), codec)
    return bytearray(draft.seal(queue_id=7, producer_id=9, sequence=3))


def test_a_batch_with_attributes_has_exactly_these_bytes() -> None:
    """Goal: the block of attributes never changes unseen. Stored bytes, and the block read with struct."""
    stored = golden("batch-attributes.hex", bytes(attributed_batch()))
    assert bytes(attributed_batch()) == stored
    assert struct.unpack_from("<Q", stored, 96) == (60_000,)
    assert int.from_bytes(stored[104:110], "little") == 1_500
    assert stored[110:112] == bytes([5, 0])
    columns = struct.pack("<3i", 0, 20, 40).ljust(16, b"\0") + b"a" * 20 + b"b" * 20
    assert stored[112:] == columns
    assert struct.unpack_from("<I", stored, 44) == (len(stored),)
    assert struct.unpack_from("<BH", stored, 59) == (0, int(Column.ATTRIBUTES))
    assert struct.unpack_from("<I", stored, 76) == (len(columns),)  # the body's size: without them
    header = read_header(stored)
    assert attributes_of(header, stored) == ATTRIBUTES
    assert [record.value for record in parse_batch_body(stored).records()] == [b"a" * 20, b"b" * 20]


def test_no_codec_covers_the_attributes() -> None:
    """Goal: the server reads them in a compressed batch at the same place, and body_length is the same."""
    plain = attributed_batch()
    for codec in (Codec.LZ4, Codec.ZSTD):
        packed = attributed_batch(codec)
        header = read_header(packed)
        assert header.codec == codec
        assert len(packed) < len(plain)
        assert packed[96:112] == plain[96:112]
        assert attributes_of(header, packed) == ATTRIBUTES
        assert header.body_length == len(plain) - 112
        body = open_body(packed, body_bytes_max=1000)
        assert [record.value for record in body.records()] == [b"a" * 20, b"b" * 20]


def test_the_epoch_file_has_exactly_these_bytes() -> None:
    """Goal: the epoch list's layout. Compare with the stored bytes and with struct."""
    epochs = EpochList.of([Epoch(1, 0, "n1", "s-a"), Epoch(3, 4096, "n2", "s-b"), Epoch(4, 2**40)])
    stored = golden("epochs.hex", encode_epochs(epochs))
    assert encode_epochs(epochs) == stored
    assert decode_epochs(stored) == epochs
    first = struct.pack("<IQ", 1, 0) + b"\2n1\3s-a"
    second = struct.pack("<IQ", 3, 4096) + b"\2n2\3s-b"
    third = struct.pack("<IQ", 4, 2**40) + b"\0\0"
    content = struct.pack("<4sII", b"MLEP", 1, 3) + first + second + third
    assert stored == content + struct.pack("<I", crc32c_portable(content))


def test_a_checkpoint_slot_has_exactly_these_bytes() -> None:
    """Goal: the slot's layout. Compare with the stored bytes and with struct; another log's slot is none."""
    checkpoint = Checkpoint(begin=4096, flushed=8192, confirmed=12288, state=6144)
    stored = golden("checkpoint-slot.hex", encode_slot(9, checkpoint, LOG_ID))
    assert encode_slot(9, checkpoint, LOG_ID) == stored
    assert decode_slot(stored, LOG_ID) == (9, checkpoint)
    content = struct.pack("<4sIQQQQQ16s", b"MLCP", 2, 9, 4096, 8192, 12288, 6144, LOG_ID.bytes)
    assert stored == content + struct.pack("<I", crc32c_portable(content))
    assert decode_slot(stored, type(LOG_ID)(int=1)) is None


def test_a_checkpoint_slot_of_version_1_is_read() -> None:
    """Goal: a log of the first version opens. A slot packed by struct; a damaged one is none."""
    content = struct.pack("<4sIQQQQ16s", b"MLCP", 1, 9, 4096, 8192, 12288, LOG_ID.bytes)
    slot = content + struct.pack("<I", crc32c_portable(content))
    padded = slot + bytes(SLOT_SIZE - len(slot))
    assert decode_slot(padded, LOG_ID) == (9, Checkpoint(4096, 8192, 12288, 0))
    assert decode_slot(padded[:40] + b"x" + padded[41:], LOG_ID) is None


def test_checkpoints_are_written_in_turn_into_two_blocks(tmp_path: Path) -> None:
    """Goal: the newest slot is never overwritten. Write three times and look which block changed."""
    CheckpointFile.create(OS_FILES, tmp_path, LOG_ID, Checkpoint(0, 0, 0))
    file = CheckpointFile.open(OS_FILES, tmp_path, LOG_ID)
    for number in (2, 3, 4):
        before = (tmp_path / "checkpoint").read_bytes()
        file.write(Checkpoint(0, number, 0))
        after = (tmp_path / "checkpoint").read_bytes()
        at = number % 2 * SLOT_BYTES
        assert decode_slot(after[at : at + SLOT_SIZE], LOG_ID) == (number, Checkpoint(0, number, 0))
        other = SLOT_BYTES - at
        assert after[other : other + SLOT_BYTES] == before[other : other + SLOT_BYTES]
    assert len(after) == 2 * SLOT_BYTES


def test_a_log_directory_has_exactly_these_files(tmp_path: Path) -> None:
    """Goal: names are part of the format. A log with one epoch and one roll."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    batch = memoryview(encode_batch([Record(b"x" * 600)], queue_id=1))
    for offset in range(2):
        log.append(batch, base_queue_offset=offset, append_time_us=0)
    flush(log)
    log.close()
    assert [path.name for path in segment_files(tmp_path)] == ["00000000000000000000", "00000000000000000704"]
    others = sorted(path.name for path in tmp_path.iterdir() if not path.name.isdigit())
    assert others == ["checkpoint", "epochs", "log.json"]


@pytest.mark.parametrize("name", ["batch.hex", "batch-attributes.hex", "epochs.hex", "checkpoint-slot.hex"])
def test_the_format_page_shows_the_real_bytes(name: str) -> None:
    """Goal: the worked examples of the format are true. Its hex lines, put together, contain the golden bytes."""
    lines = re.findall(r"^ *\d+ {2}((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {2}.*)?$", FORMAT_PAGE.read_text(), re.MULTILINE)
    shown = bytes.fromhex("".join(lines))
    assert from_hex_lines((GOLDEN / name).read_text()) in shown


def test_a_transaction_has_exactly_these_bytes() -> None:
    """Goal: envelopes never change unseen. Compare one with two batches with the stored bytes, and open those."""
    first = encode_batch([Record(b"a")], queue_id=7, producer_id=9, sequence=1)
    second = encode_batch([Record(b"b", b"k")], queue_id=8, producer_id=9)
    seed = log_seed(LOG_ID)
    built, headers = seal_envelope(
        [EnvelopePart(first, 100), EnvelopePart(second, 5)],
        log_offset=4096,
        append_time_us=1_700_000_000_500_000,
        epoch=3,
        seed=seed,
    )
    stored = golden("transaction.hex", bytes(built))
    assert bytes(built) == stored
    outer = check_stamped(stored, 0, log_offset=4096, seed=seed, max_batch_bytes=1 << 20)
    check_body(memoryview(stored), 0, outer)
    assert [outer, *open_envelope(memoryview(stored), outer, seed=seed)] == headers
    assert [each.queue_id for each in headers] == [0, 7, 8]
    assert crc32c_portable(stored[40:]) == outer.crc
