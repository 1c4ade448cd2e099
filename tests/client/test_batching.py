"""Records in a batch: their sizes, what is refused before it can spoil one, and how deliveries end."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.client.producer.batch import PendingBatch, Receipt
from mirrorlog.client.producer.deliveries import Delivery
from mirrorlog.client.producer.record import (
    BATCH_OVERHEAD_BYTES,
    as_headers,
    as_timestamp_us,
    headers_size,
    record_size,
)
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.drafts import Draft
from mirrorlog.commitlog.format.header import HEADER_SIZE, Codec, check_producer_part, read_header
from mirrorlog.errors import BadInput, BadRequest, DiskFull
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm

_MAYBE_BYTES = st.none() | st.binary(max_size=40)
_RECORDS = st.lists(
    st.builds(
        Record,
        _MAYBE_BYTES,
        _MAYBE_BYTES,
        st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), _MAYBE_BYTES), max_size=4),
        st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
    ),
    min_size=1,
    max_size=20,
)


def batch_of(*records: Record) -> PendingBatch:
    batch = PendingBatch(1.0)
    for value, key, headers, timestamp_us in records:
        batch.add(value, key, headers, timestamp_us, record_size(value, key, headers))
    return batch


@given(_RECORDS)
def test_a_batch_is_never_larger_than_its_records_were_counted(records: list[Record]) -> None:
    """The node's limit on a batch holds whatever is sent; by encoding records with every column."""
    batch = batch_of(*records)
    encoded = batch.encoded(3, 77)
    assert len(encoded) <= BATCH_OVERHEAD_BYTES + batch.size_bytes
    assert [record._replace(headers=list(record.headers)) for record in parse_batch_body(encoded).records()] == [
        record._replace(headers=list(record.headers)) for record in records
    ]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"value": "text"}, "value"),
        ({"value": bytearray(b"x")}, "value"),
        ({"value": 5}, "value"),
        ({"value": b"", "key": "text"}, "key"),
        ({"value": b"", "headers": [("name", 5)]}, "headers"),
        ({"value": b"", "headers": [("name", "\ud800")]}, "value"),
        ({"value": b"", "headers": [(b"name", b"")]}, "headers"),
        ({"value": b"", "headers": [("\ud800", b"")]}, "headers"),
        ({"value": b"", "headers": [("name",)]}, "headers"),
        ({"value": b"", "headers": ["ab"]}, "headers"),
        ({"value": b"", "headers": 7}, "headers"),
    ],
)
def test_what_is_no_bytes_is_refused_at_once(record: dict[str, Any], says: str) -> None:
    """One wrong record must not spoil the batch that it would join; by each kind of wrong."""
    with pytest.raises(BadRequest, match=says):
        record_size(record["value"], record.get("key"), as_headers(record.get("headers")))


def test_headers_are_taken_as_they_are_now() -> None:
    """A caller may go on using its list; by changing it afterwards, and by an iterator that can be read once."""
    given_headers: list[tuple[str, bytes | None]] = [("a", b"1")]
    taken = as_headers(given_headers)
    given_headers.append(("b", b"2"))
    assert taken == (("a", b"1"),)
    assert as_headers({"a": b"1", "b": None}) == (("a", b"1"), ("b", None))
    assert as_headers(None) == as_headers({}) == as_headers([]) == ()


def test_header_pairs_are_taken_as_they_are_now() -> None:
    """A pair may be a list that is used again, or readable once; by changing one, and by an iterator for a pair."""
    pair: list[Any] = ["a", b"1"]
    taken = as_headers([pair])  # type: ignore[list-item]
    pair[1] = "no bytes"
    once = as_headers([iter(("a", b"1"))])  # type: ignore[list-item]
    assert taken == once == (("a", b"1"),)
    assert headers_size(once) == headers_size(once), "it can be read twice"
    assert as_headers(iter([pair])) == (("a", b"no bytes"),)  # type: ignore[arg-type]


@pytest.mark.parametrize("given_headers", [7, [7], [None], (b"a", 5)])
def test_headers_that_are_no_pairs_are_bad_input(given_headers: Any) -> None:
    """With a name of the tree, whatever was given; by what cannot be read as pairs at all."""
    with pytest.raises(BadInput, match="headers"):
        headers_size(as_headers(given_headers))


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (None, None),
        (0, 0),
        (-5, -5),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2013, 1, 1, 5, tzinfo=timezone(timedelta(hours=5))), 1_356_998_400_000_000),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799_999_999),
    ],
)
def test_a_time_is_exact_to_the_microsecond(timestamp: datetime | int | None, expected: int | None) -> None:
    """No float in between; by times at both ends of the calendar."""
    assert as_timestamp_us(timestamp) == expected


@pytest.mark.parametrize("timestamp", [datetime(2026, 1, 1), 2**63, -(2**63), 1.5, "now"])
def test_a_time_without_one_meaning_is_refused(timestamp: Any) -> None:
    """No zone, beyond 64 bits, or no time at all; by each."""
    with pytest.raises(BadInput, match="timestamp"):
        as_timestamp_us(timestamp)


async def test_a_delivery_gives_the_receipt_of_its_own_record() -> None:
    """The batch's confirm, and the record's place in it; before and after it came."""
    batch = PendingBatch(1.0)
    first, second = (Delivery(batch, batch.add(b"", None, (), None, 1)) for _ in range(2))
    assert not first.done()
    batch.resolve(Confirm(4096, 70, 5, 3, 1, CONFIRM_DUPLICATE))
    assert await second == second.result() == Receipt(71, 4096, 5, 3, 1, True)
    assert (await first).queue_offset == 70


def test_an_outcome_stands() -> None:
    """A batch ends once; by resolving it twice."""
    batch = batch_of(Record(b""))
    batch.resolve(DiskFull("full"))
    batch.resolve(Confirm(0, 0, 1, 3, 0, 0))
    assert isinstance(batch.outcome, DiskFull)


def test_each_raise_is_an_error_of_its_own() -> None:
    """Thousands of records may end with one batch's error, which would drag all tracebacks along; by raising twice."""
    batch = PendingBatch(1.0)
    deliveries = [Delivery(batch, batch.add(b"", None, (), None, 1)) for _ in range(2)]
    batch.resolve(DiskFull("full", free=0))
    raised = []
    for delivery in deliveries:
        with pytest.raises(DiskFull, match="full") as caught:
            delivery.result()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert raised[1].details == {"free": 0}


def test_bytes_that_may_still_be_on_their_way_are_left_alone() -> None:
    """A connection that was lost may hold on to them; by numbering a batch anew and looking at the old bytes."""
    batch = batch_of(Record(b"value", key=b"key"))
    first = batch.encoded(3, 77)
    before = bytes(first)
    batch.number(producer_epoch=1, sequence=0)
    second = batch.encoded(3, 77)
    assert bytes(first) == before
    assert read_header(second).producer_epoch == 1
    assert second[HEADER_SIZE:] == before[HEADER_SIZE:]
    check_producer_part(memoryview(second), max_batch_bytes=1 << 20)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_is_compressed_when_it_is_encoded(codec: Codec) -> None:
    """The same records come out under any codec, and under any number; by a batch that is numbered twice."""
    records = [Record(b"value" * 10, key=b"%d" % number) for number in range(100)]
    batch = PendingBatch(1.0, codec=codec)
    for record in records:
        batch.add(record.value, record.key, (), None, record_size(record.value, record.key, ()))
    for sequence in (0, 40):
        batch.number(producer_epoch=2, sequence=sequence)
        encoded = batch.encoded(3, 77)
        header = check_producer_part(memoryview(encoded), max_batch_bytes=1 << 20)
        assert (header.codec, header.sequence, header.record_count) == (codec, sequence, 100)
        assert list(open_body(encoded, body_bytes_max=1 << 20).records()) == records


@pytest.mark.parametrize("encode", [False, True])
def test_a_batch_that_has_ended_keeps_no_records(encode: bool) -> None:
    """A handle that is kept for its receipt must not keep a window of values alive; by what the batch refers to."""
    value = b"value"
    batch = batch_of(Record(value))
    if encode:
        batch.encoded(3, 77)
    assert any(value in bytes(each) for each in held(batch))
    batch.resolve(DiskFull("full"))
    assert len(batch) == 1
    assert held(batch) == []


def held(batch: PendingBatch) -> list[Any]:
    """The bytes that the batch keeps, as values or encoded."""
    near = gc.get_referents(batch)
    near += [each for one in near if isinstance(one, list | Draft) for each in gc.get_referents(one)]
    return [each for each in near if isinstance(each, bytes | bytearray)]
