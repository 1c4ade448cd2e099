"""Batches as a consumer takes them: proven before any of them is given out, and their records as they were sent."""

from __future__ import annotations

import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.client.consumer.cursor import Cursor
from mirrorlog.client.consumer.records import checked_batches, end_of, headers_in, proven_batches
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import HEADER_SIZE, Codec, log_seed, stamp
from mirrorlog.errors import BadBatch

LOG_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
_MAYBE_BYTES = st.none() | st.binary(max_size=10)
_RECORDS = st.lists(
    st.builds(
        Record,
        _MAYBE_BYTES,
        _MAYBE_BYTES,
        st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), _MAYBE_BYTES), max_size=3),
        st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
    ),
    min_size=1,
    max_size=20,
)


def stored(records: list[Record], *, log_offset: int = 0, base: int = 0, log_id: str = LOG_ID) -> bytes:
    batch = encode_batch(records, queue_id=1)
    stamp(
        batch,
        log_offset=log_offset,
        base_queue_offset=base,
        append_time_us=99,
        epoch=2,
        flags=0,
        seed=log_seed(UUID(log_id)),
    )
    return bytes(batch)


@given(_RECORDS, st.data())
def test_any_stretch_of_a_batch_gives_its_records(records: list[Record], data: st.DataObject) -> None:
    """Every column, with and without absent entries; by cutting random batches anywhere."""
    (batch,) = checked_batches(stored(records, base=100), 1, queue="q", log_id=LOG_ID)
    first = data.draw(st.integers(0, len(records)))
    last = data.draw(st.integers(first, len(records)))
    cut = batch.after(100 + first).before(100 + last)
    assert len(cut) == last - first
    assert [
        (each.queue_offset, each.value, each.key, each.headers, each.timestamp, each.append_time_us, each.queue)
        for each in cut.records()
    ] == [
        (100 + row, record.value, record.key, list(record.headers), record.timestamp_us, 99, "q")
        for row, record in list(enumerate(records))[first:last]
    ]


@given(_RECORDS, st.data())
def test_values_and_keys_are_seen_without_a_copy(records: list[Record], data: st.DataObject) -> None:
    """As a sequence, by index from either end, by slice, and as copies; by cutting random batches anywhere."""
    content = stored(records)
    (batch,) = checked_batches(content, 1, queue="q", log_id=LOG_ID)
    first = data.draw(st.integers(0, len(records)))
    last = data.draw(st.integers(first, len(records)))
    cut = batch.after(first).before(last)
    for views, expected in (
        (cut.values, [record.value for record in records[first:last]]),
        (cut.keys, [record.key for record in records[first:last]]),
    ):
        assert len(views) == len(expected)
        assert list(views) == views.tolist() == expected
        assert [views[index] for index in range(-len(views), len(views))] == 2 * expected
        some = data.draw(st.slices(len(expected)))
        assert list(views[some]) == expected[some]
        with pytest.raises(IndexError):
            views[len(expected)]
        assert all(view is None or (view.obj is content and view.readonly) for view in views)
    assert [cut.value_bytes(index) for index in range(len(cut))] == cut.values.tolist()
    assert [cut.key_bytes(index) for index in range(len(cut))] == cut.keys.tolist()


@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_records_of_one_size_are_cut_where_they_are(size: int) -> None:
    """The quick way for equal sizes gives what the slow one gives; by values that all differ, from any row on."""
    values = [bytes([number]) * size for number in range(9)]
    (batch,) = checked_batches(stored([Record(value) for value in values]), 1, queue="q", log_id=LOG_ID)
    for first in range(10):
        for last in range(first, 10):
            cut = batch.after(first).before(last)
            assert [record.value for record in cut.records()] == cut.values.tolist() == values[first:last]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_batch_is_opened(codec: Codec) -> None:
    """Its records are what was packed, its checksums those of what was stored; by each codec, and by damage."""
    draft = draft_columns([b"value" * 100] * 50, [b"k"] * 50, [()] * 50, [7] * 50)
    packed = compress_draft(draft, codec).seal(queue_id=1, producer_id=0, producer_epoch=0, sequence=0)
    assert len(packed) < 2_000
    seed = log_seed(UUID(LOG_ID))
    stamp(packed, log_offset=0, base_queue_offset=5, append_time_us=99, epoch=2, flags=0, seed=seed)
    (batch,) = checked_batches(bytes(packed), 1, queue="q", log_id=LOG_ID)
    assert [(each.queue_offset, each.value, each.key, each.timestamp) for each in batch.records()] == [
        (offset, b"value" * 100, b"k", 7) for offset in range(5, 55)
    ]
    assert batch.raw == packed
    assert batch.to_arrow().column("value").to_pylist() == [b"value" * 100] * 50
    packed[HEADER_SIZE + 5] ^= 1
    with pytest.raises(BadBatch, match="CRC"):
        checked_batches(bytes(packed), 1, queue="q", log_id=LOG_ID)


def test_a_reader_holds_one_batch_open() -> None:
    """An answer may open to a thousand times its size; by the memory for ten large batches that packed well."""
    draft = draft_columns([bytes(1 << 20)])
    seed = log_seed(UUID(LOG_ID))
    content = b""
    for base in range(10):
        packed = compress_draft(draft, Codec.ZSTD).seal(queue_id=1, producer_id=0, producer_epoch=0, sequence=0)
        stamp(packed, log_offset=len(content), base_queue_offset=base, append_time_us=1, epoch=1, flags=0, seed=seed)
        content += bytes(packed)
    cursor = Cursor()
    tracemalloc.start()
    try:
        cursor.hold(proven_batches(content, 10, queue="q", log_id=LOG_ID))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        for base in range(10):
            batch = cursor.current()
            assert batch is not None
            assert batch is cursor.current()  # not opened again
            assert batch.first == base
            assert len(batch.values[0] or b"") == 1 << 20
            cursor.passed(batch)
            del batch
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_a_body_above_the_limit_is_not_opened_and_the_position_stays() -> None:
    """The node's limit holds for what a batch opens to; by one that is a byte too large, behind one that is not."""
    draft = draft_columns([bytes(1 << 16)])
    packed = compress_draft(draft, Codec.LZ4).seal(queue_id=1, producer_id=0, producer_epoch=0, sequence=0)
    seed = log_seed(UUID(LOG_ID))
    stamp(packed, log_offset=0, base_queue_offset=3, append_time_us=1, epoch=1, flags=0, seed=seed)
    limit = draft.body_length
    (whole,) = proven_batches(bytes(packed), 1, queue="q", log_id=LOG_ID, body_bytes_max=limit)
    assert len(whole.opened()) == 1
    cursor = Cursor()
    cursor.seek(3)
    cursor.hold(proven_batches(bytes(packed), 1, queue="q", log_id=LOG_ID, body_bytes_max=limit - 1))
    for _ in range(2):
        with pytest.raises(BadBatch, match=r"queue 'q', log offset 0: a body of .* above the limit"):
            cursor.current()
        assert cursor.next == 3
        assert not cursor.lacks


def test_the_end_is_found_in_headers_alone() -> None:
    """Where the next fetch begins; by batches back to back, and by answers that say nothing of use."""
    first = stored([Record(b"a")] * 3, base=7)
    content = memoryview(first + stored([Record(b"b" * 99)] * 2, log_offset=len(first), base=10))
    assert end_of(content, 1) == 10
    assert end_of(content, 2) == 12
    assert end_of(content, 3) is None
    assert end_of(content, 0) is None
    assert end_of(content[: HEADER_SIZE - 1], 1) is None
    assert end_of(memoryview(bytes(HEADER_SIZE)), 1) is None


def test_batches_stand_back_to_back() -> None:
    """Each is found behind the one before; by three of different sizes."""
    content, base = b"", 0
    for count in (1, 5, 2):
        content += stored([Record(b"v" * count)] * count, log_offset=1_000 + len(content), base=base)
        base += count
    found = checked_batches(content, 3, queue="q", log_id=LOG_ID)
    assert [(batch.first, batch.next) for batch in found] == [(0, 1), (1, 6), (6, 8)]
    assert b"".join(batch.raw for batch in found) == content


def test_one_damaged_byte_anywhere_is_found_and_its_place_named() -> None:
    """Both checksums together cover every byte; by turning a bit in each byte of the second of two batches."""
    good = stored([Record(b"good")])
    bad = stored([Record(b"value", b"key", [("name", b"content")], 5)], log_offset=len(good), base=1)
    for at in range(len(bad)):
        damaged = bytearray(bad)
        damaged[at] ^= 0x10
        with pytest.raises(BadBatch) as caught:
            checked_batches(good + bytes(damaged), 2, queue="flights", log_id=LOG_ID)
        assert "queue 'flights', log offset" in str(caught.value)
        if at >= 8:  # the log offset itself is whole
            assert f"log offset {len(good)}" in str(caught.value)


@pytest.mark.parametrize("size", [0, 8, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 8])
def test_missing_bytes_are_a_bad_batch(size: int) -> None:
    """By answers that end early."""
    with pytest.raises(BadBatch):
        checked_batches(stored([Record(b"x" * 100)])[:size], 1, queue="q", log_id=LOG_ID)


def test_a_batch_of_another_log_is_refused() -> None:
    """The broker's checksum is seeded with the log id; by a batch that another log stored."""
    other = stored([Record(b"x")], log_id="00000000-0000-0000-0000-000000000001")
    with pytest.raises(BadBatch, match="header"):
        checked_batches(other, 1, queue="q", log_id=LOG_ID)


@pytest.mark.parametrize("cut", [1, HEADER_SIZE, 10])
def test_headers_are_only_read_where_batches_can_stand(cut: int) -> None:
    """Goal: what a node sends is not believed. Method: two batches, whole and cut short, and a length of nothing."""
    whole = stored([Record(b"a"), Record(b"b")]) + stored([Record(b"c")], base=2)
    size = len(stored([Record(b"c")], base=2))
    assert headers_in(memoryview(whole), 2) == [(0, 2, len(whole) - size), (2, 3, size)]
    assert headers_in(memoryview(b""), 0) == []
    with pytest.raises(BadBatch):
        headers_in(memoryview(whole[:-cut]), 2)
    with pytest.raises(BadBatch):
        headers_in(memoryview(bytes(len(whole))), 1)
