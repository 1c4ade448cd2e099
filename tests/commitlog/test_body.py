"""Bodies: round trips, refusals, and Arrow arrays that wrap the stored bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.format.body import BinaryColumn, Record
from mirrorlog.commitlog.format.body_reader import check_uncompressed, parse_batch_body, parse_body
from mirrorlog.commitlog.format.checksum import crc32c, crc32c_portable
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    Codec,
    Column,
    Kind,
    aligned,
    check_producer_part,
    read_header,
    write_producer_part,
)
from mirrorlog.errors import BadBatch, RecordTooLarge

small_bytes = st.binary(max_size=20)
record_headers = st.lists(st.tuples(st.text(max_size=5), st.none() | small_bytes), max_size=4)
record_lists = st.lists(
    st.builds(
        Record,
        st.none() | small_bytes,
        st.none() | small_bytes,
        record_headers,
        st.none() | st.integers(-(2**62), 2**62),
    ),
    min_size=1,
    max_size=20,
)


@given(record_lists)
def test_records_come_back_as_they_were_sent(records: list[Record]) -> None:
    """Goal: absent is not empty, header order and repeats stay. Encode, check, parse; Hypothesis prints what fails."""
    batch = encode_batch(records, queue_id=3, producer_id=5, producer_epoch=1, sequence=9)
    header = check_producer_part(memoryview(batch), max_batch_bytes=1 << 20)
    assert (header.record_count, header.queue_id, header.sequence) == (len(records), 3, 9)
    assert header.length % 8 == 0
    stamps = [record.timestamp_us for record in records if record.timestamp_us is not None]
    assert header.max_timestamp_us == max(stamps, default=NO_TIMESTAMP)
    found = [record._replace(headers=list(record.headers)) for record in parse_batch_body(batch).records()]
    assert found == records


@given(record_lists)
def test_absent_columns_take_no_space(records: list[Record]) -> None:
    """Goal: unused columns cost nothing. The header's bits say exactly what the records use."""
    columns = read_header(encode_batch(records, queue_id=1)).columns
    expected = Column.NONE
    values, keys = [r.value for r in records], [r.key for r in records]
    header_values = [value for record in records for _, value in record.headers]
    stamps = [r.timestamp_us for r in records]
    expected |= Column.VALUES_VALIDITY if None in values else 0
    if any(key is not None for key in keys):
        expected |= Column.KEYS | (Column.KEYS_VALIDITY if None in keys else 0)
    if any(record.headers for record in records):
        expected |= Column.HEADERS | (Column.HEADER_VALUES_VALIDITY if None in header_values else 0)
    if any(stamp is not None for stamp in stamps):
        expected |= Column.TIMESTAMPS | (Column.TIMESTAMPS_VALIDITY if None in stamps else 0)
    assert columns == expected


def as_arrow(column: BinaryColumn) -> pa.Array:
    """The column's own bytes as an Arrow array."""
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets_view), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)


@given(record_lists)
def test_arrow_wraps_the_stored_bytes(records: list[Record]) -> None:
    """Goal: no copy and no step per record on the way to Spark. Wrap each column, compare, look at addresses."""
    batch = encode_batch(records, queue_id=1)
    body = parse_batch_body(batch)
    begin = np.frombuffer(batch, dtype=np.uint8).ctypes.data
    values = as_arrow(body.values)
    values.validate(full=True)
    assert values.to_pylist() == [record.value for record in records]
    assert begin <= values.buffers()[1].address < begin + len(batch)
    if body.keys is not None:
        assert as_arrow(body.keys).to_pylist() == [record.key for record in records]
    if body.timestamps is not None:
        validity = body.timestamps.validity
        buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(body.timestamps.values_view)]
        stamps = pa.Array.from_buffers(pa.int64(), len(records), buffers)
        assert stamps.to_pylist() == [record.timestamp_us for record in records]
    if body.headers is not None:
        names, header_values = as_arrow(body.headers.names).cast(pa.string()), as_arrow(body.headers.values)
        entries = pa.StructArray.from_arrays([names, header_values], ["name", "value"])
        offsets = pa.Array.from_buffers(
            pa.int32(), len(records) + 1, [None, pa.py_buffer(body.headers.list_offsets_view)]
        )
        lists = pa.ListArray.from_arrays(offsets, entries).to_pylist()
        assert [[(e["name"], e["value"]) for e in entry] for entry in lists] == [list(r.headers) for r in records]


@given(
    st.lists(small_bytes, min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    st.integers(-9, 9),
    st.integers(-2, 2),
)
def test_values_alone_are_judged_as_any_columns_are(
    values: list[bytes], changes: list[tuple[int, int]], grown: int, counted: int
) -> None:
    """The short way for them takes and refuses what the long one does; by bodies that are changed, cut and grown, read
    both ways."""
    body = bytearray(encode_batch([Record(value) for value in values], queue_id=1)[HEADER_SIZE:])
    body = body[:grown] if grown < 0 else body + bytes(grown)
    for at, byte in changes:
        if body:
            body[at % len(body)] = byte
    count = max(1, len(values) + counted)

    def parsed() -> object:
        try:
            column = parse_body(memoryview(body), record_count=count, columns=0).values
        except BadBatch:
            return None
        return column.offsets.tolist(), bytes(column.data), bytes(column.offsets_view)

    short = parsed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirrorlog.commitlog.format.body_reader._values_alone", lambda body, count: None)
        assert short == parsed()


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1), st.integers(0, 300))
def test_both_checksums_are_the_same_function(data: bytes, seed: int, cut: int) -> None:
    """Goal: the fast CRC-32C is CRC-32C, seeded and continued too. Compare with crcmod, and in two parts."""
    assert crc32c(data, seed) == crc32c_portable(data, seed)
    assert crc32c(memoryview(data)[cut:], crc32c(data[:cut])) == crc32c(data)


def test_the_checksum_is_castagnolis() -> None:
    """Goal: the right polynomial. The check value of RFC 3720, B.4: 32 zero bytes, and the digits."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"123456789") == crc32c_portable(b"123456789") == 0xE3069283


def body_of(*parts: bytes) -> memoryview:
    return memoryview(b"".join(part.ljust(aligned(len(part)), b"\0") for part in parts))


def offsets(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


@pytest.mark.parametrize(
    ("body", "record_count", "columns", "message"),
    [
        pytest.param(body_of(offsets(0, 5, 3, 8), b"x" * 8), 3, 0, "overlap", id="decreasing offsets"),
        pytest.param(body_of(offsets(1, 2, 3, 8), b"x" * 8), 3, 0, "begin at 0", id="offsets begin above 0"),
        pytest.param(body_of(offsets(0, -4, 4, 8), b"x" * 8), 3, 0, "overlap", id="negative offset"),
        pytest.param(body_of(offsets(0, 4, 8, 100), b"x" * 8), 3, 0, "needs bytes up to", id="reaches outside"),
        pytest.param(body_of(offsets(0, 4, 8, 2**31 - 1), b"x" * 8), 3, 0, "needs bytes up to", id="huge"),
        pytest.param(body_of(offsets(0, 4, 8, 8), b"x" * 8), 40, 0, "needs bytes up to", id="count too high"),
        pytest.param(body_of(offsets(0, 4, 8, 8), b"x" * 8), 1, 0, r"\w", id="count too low"),
        pytest.param(body_of(offsets(0, 8, 8, 8), b"x" * 8, b"more"), 3, 0, "the columns end at", id="left over"),
        pytest.param(body_of(offsets(0, 8)), 1, 0, "value column needs", id="data missing"),
        pytest.param(memoryview(b""), 1, 0, "value offsets", id="nothing"),
        pytest.param(body_of(offsets(0, 1), b"x"), 1, Column.KEYS, "key offsets", id="a column is missing"),
        pytest.param(body_of(offsets(0, 1), b"x"), 1, Column.TIMESTAMPS, "timestamp", id="no timestamps"),
        pytest.param(body_of(offsets(0, 1), b"x"), 1, Column.HEADERS, "header list", id="no headers"),
        pytest.param(
            body_of(offsets(0, 1), b"x", offsets(0, 2**30)), 1, Column.HEADERS, "header name", id="too many headers"
        ),
        pytest.param(
            body_of(offsets(0, 1), b"x", offsets(0, 1), offsets(0, 9), b"name"),
            1,
            Column.HEADERS,
            "header name",
            id="header name reaches outside",
        ),
    ],
)
def test_a_body_that_does_not_add_up_is_refused(
    body: memoryview, record_count: int, columns: int, message: str
) -> None:
    """Goal: no record can reach outside its batch. Each wrong thing by itself."""
    with pytest.raises(BadBatch, match=message):
        parse_body(body, record_count=record_count, columns=columns)


@given(st.binary(max_size=200), st.integers(1, 30), st.integers(0, 127))
def test_any_bytes_are_a_body_or_refused(body: bytes, record_count: int, columns: int) -> None:
    """Goal: nothing but BadBatch comes out of parsing garbage, and what is accepted can be read whole."""
    try:
        parsed = parse_body(memoryview(body), record_count=record_count, columns=columns)
    except BadBatch:
        return
    with suppress(BadBatch):  # a header's name that is no text
        assert len(list(parsed.records())) == record_count


def resealed(change: Callable[[bytearray], None]) -> memoryview:
    """A good batch with a change, its CRC made right again."""
    batch = encode_batch([Record(b"12345678")], queue_id=1)
    change(batch)
    struct.pack_into("<I", batch, 36, crc32c(memoryview(batch)[40:]))
    return memoryview(batch)


def put(at: int, layout: str, value: int | bytes) -> Callable[[bytearray], None]:
    return lambda batch: struct.pack_into(layout, batch, at, value)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        pytest.param(resealed(put(40, "<4s", b"MLB2")), "magic", id="magic"),
        pytest.param(resealed(put(56, "<B", 2)), "batch format 2 is not known", id="version"),
        pytest.param(resealed(put(57, "<B", 77)), "kind 77", id="kind"),
        pytest.param(resealed(put(58, "<B", 9)), "codec 9", id="codec"),
        pytest.param(resealed(put(48, "<I", 0)), "at least one record", id="no records"),
        pytest.param(resealed(put(60, "<H", 256)), "columns 0x100", id="unknown column"),
        pytest.param(resealed(put(62, "<H", 1)), "reserved bits 0x1", id="reserved"),
        pytest.param(resealed(put(59, "<B", 8)), "padding 8", id="padding"),
        pytest.param(resealed(put(44, "<I", 64)), "length 64", id="length below the header"),
        pytest.param(resealed(put(44, "<I", 113)), "length 113", id="length unaligned"),
        pytest.param(resealed(put(44, "<I", 1 << 30)), "length 1073741824", id="length above the limit"),
        pytest.param(resealed(put(44, "<I", 120)), "the header says 120 bytes", id="length beyond the frame"),
        pytest.param(resealed(lambda batch: batch.extend(bytes(8))), "the frame carries 120", id="longer frame"),
        pytest.param(resealed(lambda batch: None)[:50], "a batch header needs 96 bytes", id="half a header"),
    ],
)
def test_a_producers_header_that_is_wrong_is_refused(batch: memoryview, message: str) -> None:
    """Goal: each field is checked and named, also when the checksum is right."""
    with pytest.raises(BadBatch, match=message):
        check_producer_part(batch, max_batch_bytes=1 << 20)


def test_every_flipped_byte_is_noticed() -> None:
    """Goal: the CRC covers all that the producer wrote. Flip each byte from 36 on in turn."""
    good = encode_batch([Record(b"value", b"key")], queue_id=1)
    for at in range(36, len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        with pytest.raises(BadBatch):
            check_producer_part(memoryview(bad), max_batch_bytes=1 << 20)
    assert check_producer_part(memoryview(good), max_batch_bytes=1 << 20).record_count == 1


def test_a_value_above_the_limit_is_refused_and_many_small_ones_are_not() -> None:
    """Goal: max_record_bytes is per value. One of 101 bytes, and three of 100, against 100."""

    def check(*values: bytes) -> None:
        batch = memoryview(encode_batch([Record(value) for value in values], queue_id=1))
        header = read_header(batch)
        check_uncompressed(batch, record_count=header.record_count, columns=header.columns, max_record_bytes=100)

    check(b"x" * 100, b"y" * 100, b"z" * 100)
    with pytest.raises(RecordTooLarge, match="101 bytes is above max_record_bytes"):
        check(b"x", b"y" * 101)


def test_a_compressed_body_is_not_taken_for_columns() -> None:
    """Goal: a codec is never ignored. Mark a batch as lz4 and parse it."""
    batch = encode_batch([Record(b"x")], queue_id=1)
    write_producer_part(batch, kind=Kind.DATA, queue_id=1, record_count=1, columns=0, codec=Codec.LZ4)
    with pytest.raises(BadBatch, match="decompress it first"):
        parse_batch_body(batch)


def test_a_header_name_that_is_no_utf8_is_refused_when_it_is_read() -> None:
    """Goal: bad text is BadBatch, not UnicodeDecodeError."""
    batch = encode_batch([Record(b"x", headers=[("name", b"v")])], queue_id=1)
    at = bytes(batch).index(b"name")
    batch[at] = 0xFF
    with pytest.raises(BadBatch, match="not UTF-8"):
        list(parse_body(memoryview(batch)[HEADER_SIZE:], record_count=1, columns=Column.HEADERS).records())
