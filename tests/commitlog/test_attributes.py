"""Attributes of a batch: what goes in comes out, whatever codec; what is not known is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.format.attributes import (
    DURATION_MS_MAX,
    NO_ATTRIBUTES,
    Attributes,
    asked_attributes,
    attributes_of,
    decode_attributes,
    encode_attributes,
)
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import check_uncompressed, parse_batch_body
from mirrorlog.commitlog.format.codec import compress_draft, open_body
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import (
    HEADER_SIZE,
    Codec,
    Column,
    Kind,
    check_producer_part,
    read_header,
    write_producer_part,
)
from mirrorlog.errors import BadBatch, BadInput, RecordTooLarge

LIMIT = 1 << 20
durations = st.sampled_from([1, 1000, DURATION_MS_MAX]) | st.integers(0, DURATION_MS_MAX)
attributes_strategy = st.builds(Attributes, st.integers(0, 255), st.none() | durations, durations)
records_strategy = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=9),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        st.none() | st.integers(-(2**62), 2**62),
    ),
    min_size=1,
    max_size=20,
)


@given(attributes_strategy, records_strategy)
def test_attributes_and_records_come_back(attributes: Attributes, records: list[Record]) -> None:
    """Goal: the block disturbs no column, and the server's checks take it. Any records, any attributes, in the middle
    of a buffer."""
    batch = encode_batch(records, queue_id=3, producer_id=5, sequence=9, attributes=attributes)
    header = check_producer_part(memoryview(batch), max_batch_bytes=LIMIT)
    assert header.columns & Column.ATTRIBUTES
    assert header.body_length == header.length - HEADER_SIZE - 16
    check_uncompressed(
        memoryview(batch), record_count=header.record_count, columns=header.columns, max_record_bytes=LIMIT
    )
    assert attributes_of(header, memoryview(b"12345678" + batch)[8:]) == attributes
    found = [record._replace(headers=list(record.headers)) for record in parse_batch_body(batch).records()]
    assert found == records


@given(attributes_strategy, st.lists(st.binary(max_size=40), min_size=1, max_size=20))
@pytest.mark.parametrize("codec", Codec)
def test_attributes_are_read_without_opening_the_batch(
    codec: Codec, attributes: Attributes, values: list[bytes]
) -> None:
    """Goal: no codec covers them. The same place and bytes under each codec, and the same columns behind them."""
    batch = compress_draft(draft_columns(values * 10, attributes=attributes), codec).seal(queue_id=7)
    header = check_producer_part(memoryview(batch), max_batch_bytes=LIMIT)
    assert bytes(batch[HEADER_SIZE : header.body_at]) == encode_attributes(attributes)
    assert attributes_of(header, memoryview(b"12345678" + batch)[8:]) == attributes
    body = open_body(batch, body_bytes_max=LIMIT)
    assert [record.value for record in body.records()] == values * 10


def test_a_batch_without_attributes_has_no_block() -> None:
    """Goal: who uses none pays nothing. The bytes are those of before, the answer is that there are none."""
    batch = encode_batch([Record(b"v")], queue_id=1)
    header = read_header(batch)
    assert (len(batch), header.columns, header.body_at) == (96 + 8 + 8, 0, 96)
    assert attributes_of(header, batch) is NO_ATTRIBUTES


def test_no_time_to_live_is_not_one_of_zero() -> None:
    """Goal: 0 ms is a promise of its own. Both through the block, with the bytes that stand for them."""
    for ttl_ms, expected in ((None, bytes(8)), (0, b"\xff" * 8), (1, b"\1" + bytes(7))):
        block = encode_attributes(Attributes(1, ttl_ms, 2))
        assert block[:8] == expected
        assert decode_attributes(block) == Attributes(1, ttl_ms, 2)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(struct.pack("<Q6sBB", 0, bytes(6), 0, 1), id="reserved byte"),
        pytest.param(struct.pack("<Q6sBB", DURATION_MS_MAX + 1, bytes(6), 0, 0), id="ttl above ten years"),
        pytest.param(struct.pack("<Q6sBB", 2**64 - 2, bytes(6), 0, 0), id="ttl nearly all ones"),
        pytest.param(
            struct.pack("<Q6sBB", 0, (DURATION_MS_MAX + 1).to_bytes(6, "little"), 0, 0), id="delay above ten years"
        ),
        pytest.param(struct.pack("<Q6sBB", 0, b"\xff" * 6, 0, 0), id="delay of all ones"),
        pytest.param(bytes(15), id="too short"),
    ],
)
def test_a_block_that_says_what_is_not_known_is_refused(block: bytes) -> None:
    """Goal: nothing is guessed. Each field outside its limits."""
    with pytest.raises(BadBatch):
        decode_attributes(block)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"kind": Kind.QUEUE_STATE}, "which only data has", id="no data"),
        pytest.param({"kind": Kind.CONTROL}, "which only data has", id="control"),
    ],
)
def test_only_data_has_attributes(change: dict[str, Kind], message: str) -> None:
    """Goal: a change of the log's own state cannot be delayed or expire."""
    batch = encode_batch([Record(b"v")], queue_id=1, attributes=Attributes(1), **change)  # type: ignore[arg-type]
    with pytest.raises(BadBatch, match=message):
        check_producer_part(memoryview(batch), max_batch_bytes=LIMIT)


def test_a_batch_too_short_for_its_attributes_is_refused() -> None:
    """Goal: nothing is read behind a batch's end. The bit on a batch of 96, and of 104 bytes with a right checksum."""
    for length in (96, 104):
        batch = bytearray(length)
        write_producer_part(batch, kind=Kind.DATA, queue_id=1, record_count=1, columns=Column.ATTRIBUTES, body_length=0)
        with pytest.raises(BadBatch, match="no room for attributes"):
            check_producer_part(memoryview(batch), max_batch_bytes=LIMIT)


def test_every_flipped_byte_of_the_block_is_noticed() -> None:
    """Goal: the producer's CRC covers it."""
    good = encode_batch([Record(b"v")], queue_id=1, attributes=Attributes(1, 2, 3))
    for at in range(96, 112):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(BadBatch, match="CRC"):
            check_producer_part(memoryview(bad), max_batch_bytes=LIMIT)


@pytest.mark.parametrize("records", [[Record(b"x" * 100)], [Record(b"x" * 100, b"k")], [Record(b"x" * 100)] * 40])
def test_the_limit_of_a_record_holds_behind_attributes(records: list[Record]) -> None:
    """Goal: the server's check of values finds the body; by the quick way and the thorough one."""
    batch = memoryview(encode_batch(records, queue_id=1, attributes=Attributes(9)))
    header = read_header(batch)
    checks = {"record_count": header.record_count, "columns": header.columns}
    check_uncompressed(batch, max_record_bytes=100, **checks)
    with pytest.raises(RecordTooLarge):
        check_uncompressed(batch, max_record_bytes=99, **checks)


def test_times_follow_from_the_append_time() -> None:
    """Goal: durations count from the log's own clock, in µs."""
    asked = Attributes(0, ttl_ms=1_000, delay_ms=250)
    assert asked.expires_at_us(5_000_000) == 6_000_000
    assert asked.not_before_us(5_000_000) == 5_250_000
    assert NO_ATTRIBUTES.expires_at_us(5_000_000) is None
    assert NO_ATTRIBUTES.not_before_us(5_000_000) == 5_000_000


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ((-1, None, 0), "priority"), ((256, None, 0), "priority"), ((True, None, 0), "priority"),
        ((1.0, None, 0), "priority"), (("1", None, 0), "priority"),
        ((0, -1, 0), "ttl_ms"), ((0, DURATION_MS_MAX + 1, 0), "ttl_ms"), ((0, 1.5, 0), "ttl_ms"),
        ((0, None, -1), "delay_ms"), ((0, None, DURATION_MS_MAX + 1), "delay_ms"), ((0, None, None), "delay_ms"),
    ],
)  # fmt: skip
def test_what_is_asked_for_has_limits(asked: tuple[int, int | None, int], name: str) -> None:
    """Goal: a wrong value is told by its name before anything leaves."""
    with pytest.raises(BadInput, match=name):
        asked_attributes(*asked)


def test_asking_for_nothing_is_no_attributes() -> None:
    """Goal: the defaults make no block, a time to live of 0 does."""
    assert asked_attributes(0, None, 0) is None
    assert asked_attributes(0, 0, 0) == Attributes(0, 0, 0)
