"""Columns of many records: whatever they are given as, the same bytes leave as for the records one by one."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.client.producer.bulk import Bulk
from mirrorlog.client.producer.columns import BinaryEntries, Chunks
from mirrorlog.client.producer.record import BATCH_OVERHEAD_BYTES
from mirrorlog.commitlog.format.body_reader import check_uncompressed, parse_batch_body
from mirrorlog.commitlog.format.drafts import draft_columns
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.errors import BadInput, RecordTooLarge
from mirrorlog.wire.messages.handshake import NodeLimits

LIMITS = NodeLimits(max_record_bytes=1000, max_batch_bytes=4000)
maybe_bytes = st.none() | st.binary(max_size=30)
value_lists = st.lists(maybe_bytes, min_size=1, max_size=40)


def cut_up(bulk: Bulk, batch_bytes: int) -> list[tuple[int, int]]:
    cuts = []
    start = 0
    while start < len(bulk):
        end = bulk.cut(start, batch_bytes)
        cuts.append((start, end))
        start = end
    return cuts


def same_as_one_by_one(bulk: Bulk, *columns: list[Any], batch_bytes: int = 150) -> None:
    """Every batch of `bulk` is, byte for byte, the one that the lists of plain entries make."""
    cuts = cut_up(bulk, batch_bytes)
    assert [end for _, end in cuts[:-1]] == [start for start, _ in cuts[1:]]
    assert sum(end - start for start, end in cuts) == len(columns[0])
    for start, end in cuts:
        found = bulk.draft(start, end).seal(queue_id=3)
        assert found == draft_columns(*(column[start:end] for column in columns)).seal(queue_id=3)
        assert len(found) <= BATCH_OVERHEAD_BYTES + bulk.size_bytes(start, end)
        assert bulk.size_bytes(start, end) <= batch_bytes or end == start + 1


@given(value_lists, st.data())
def test_a_list_is_cut_between_records(values: list[bytes | None], data: st.DataObject) -> None:
    """Nothing is lost, doubled or too large; keys, headers and timestamps stay with their records."""
    count = len(values)
    keys = data.draw(st.lists(maybe_bytes, min_size=count, max_size=count))
    pairs = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), maybe_bytes), max_size=2)
    headers = data.draw(st.lists(pairs, min_size=count, max_size=count))
    stamps = data.draw(st.lists(st.none() | st.integers(-(2**62), 2**62), min_size=count, max_size=count))
    same_as_one_by_one(Bulk.of(values, keys, headers, stamps), values, keys, headers, stamps)


@given(value_lists, st.integers(0, 5), st.integers(0, 5), st.integers(1, 10))
@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.binary_view()],
    ids=str,
)
def test_an_arrow_array_is_read_where_it_lies(
    kind: Any, values: list[bytes | None], before: int, behind: int, chunk: int
) -> None:
    """Slices with offsets, and chunks; each type, absences included."""
    hidden = [b"not in the slice"] * max(before, behind)
    whole = pa.array([*hidden[:before], *values, *hidden[:behind]], kind)
    array = whole.slice(before, len(values))
    same_as_one_by_one(Bulk.of(array, array, None, None), values, values)
    chunks = pa.chunked_array([array.slice(at, chunk) for at in range(0, len(values), chunk)], kind)
    same_as_one_by_one(Bulk.of(chunks, None, None, None), values)


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=1, max_size=20))
def test_text_in_a_list_is_its_utf8(texts: list[str | None]) -> None:
    """With bytes beside it, and absences."""
    values = [None if text is None else text.encode() for text in texts]
    same_as_one_by_one(Bulk.of([*texts, *values], [*values, *texts], None, None), values * 2, values * 2)


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=1, max_size=20))
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_arrow_text_is_its_utf8(kind: Any, texts: list[str | None]) -> None:
    """By arrays of each type of text."""
    values = [None if text is None else text.encode() for text in texts]
    same_as_one_by_one(Bulk.of(pa.array(texts, kind), None, None, None), values)


@given(st.lists(st.none() | st.binary(min_size=7, max_size=7), min_size=1, max_size=30), st.integers(0, 5))
def test_arrow_entries_of_fixed_size(values: list[bytes | None], skip: int) -> None:
    """With and without absences, from the middle of an array."""
    array = pa.array([b"seven b"] * skip + values, pa.binary(7)).slice(skip)
    same_as_one_by_one(Bulk.of(array, None, None, None), values)


@pytest.mark.parametrize("odd", [None, b"", b"longer than the others", "zwölf"])
@pytest.mark.parametrize("place", [0, 2047, 2048, 4999])
def test_a_long_list_is_read_whole_whatever_stands_in_it(odd: bytes | str | None, place: int) -> None:
    """It is looked at in blocks, and a block of one size faster; by one odd entry in any block, among 5,000."""
    values: list[bytes | None] = [b"%04d" % number for number in range(5000)]
    given = [*values[:place], odd, *values[place + 1 :]]
    values[place] = odd.encode() if isinstance(odd, str) else odd
    same_as_one_by_one(Bulk.of(given, None, None, None), values, batch_bytes=10_000)


@pytest.mark.parametrize("place", [0, 2048, 4999])
@pytest.mark.parametrize("wrong", ["\ud800", bytearray(b"4444"), memoryview(b"4444"), 7])
def test_a_long_list_is_refused_for_one_wrong_entry(wrong: object, place: int) -> None:
    """By its type, even where its size is the others'; in any block."""
    values: list[Any] = [b"four"] * 5000
    values[place] = wrong
    with pytest.raises(BadInput, match=type(wrong).__name__):
        Bulk.of(values, None, None, None)


def test_bytes_under_an_absence_do_not_leave() -> None:
    """Arrow lets an absent entry lie over any bytes; by an array that hides a secret so."""
    offsets, data = pa.py_buffer(np.array([0, 1, 7, 8], dtype=np.int32)), pa.py_buffer(b"asecretb")
    array = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    bulk = Bulk.of(array, None, None, None)
    assert b"secret" not in bulk.draft(0, 3).data
    same_as_one_by_one(bulk, [b"a", None, b"b"])


def test_an_arrow_array_of_nothing_but_absences() -> None:
    """Tombstones only; by the type that has no bytes at all."""
    same_as_one_by_one(Bulk.of(pa.nulls(3), None, None, None), [None] * 3)


@given(st.lists(st.binary(min_size=5, max_size=5), min_size=1, max_size=40), st.integers(1, 3))
def test_numpy_entries_of_fixed_size(values: list[bytes], step: int) -> None:
    """V5, and rows of uint8, also when they do not lie side by side; zeros at the end are kept."""
    rows = np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, 5)
    for array in (rows, rows.copy().view("V5").reshape(-1), np.asfortranarray(rows)):
        same_as_one_by_one(Bulk.of(array[::step], None, None, None), values[::step])


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=40))
def test_numpy_strings_end_where_numpy_says(values: list[bytes]) -> None:
    """A dtype of S drops zeros at the end, as its own items do; compared with these, and with an array of objects."""
    array = np.array(values, dtype="S5")
    same_as_one_by_one(Bulk.of(array, None, None, None), array.tolist())
    objects = np.array([*values, None], dtype=object)
    same_as_one_by_one(Bulk.of(objects, None, None, None), [*values, None])


def test_an_array_that_changes_afterwards_changes_no_batch() -> None:
    """The bytes are copied when the batch is made; by writing into the array then."""
    rows = np.zeros((4, 3), dtype=np.uint8)
    draft = Bulk.of(rows, None, None, None).draft(0, 4)
    rows[:] = 255
    assert b"\xff" not in draft.data


def test_one_mapping_is_the_headers_of_every_record() -> None:
    """The same columns as a list that repeats it, and none for an empty one."""
    values: list[bytes | None] = [b"1", b"2", b"3"]
    headers = {"ä": b"v", "none": None}
    same_as_one_by_one(Bulk.of(values, None, headers, None), values, [], [tuple(headers.items())] * 3)
    same_as_one_by_one(Bulk.of(values, None, {}, None), values)
    same_as_one_by_one(Bulk.of(values, None, [headers, None, {}], None), values, [], [tuple(headers.items()), (), ()])


SECOND = 1_356_998_400
INSTANT = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given_stamps", "expected"),
    [
        ([INSTANT, None, 5], [SECOND * 1_000_000, None, 5]),
        (np.array([1, -2, 3]), [1, -2, 3]),
        (np.array([1, 9, -2, 9, 3, 9])[::2], [1, -2, 3]),
        (np.array(["2013-01-01", "NaT", "1969-12-31"], dtype="datetime64[D]"), [SECOND * 10**6, None, -86_400 * 10**6]),
        (np.array([1_999, "NaT", -1], dtype="datetime64[ns]"), [1, None, -1]),
        (pa.array([1, None, -3], pa.timestamp("us", "UTC")), [1, None, -3]),
        (pa.array([1, None, -3], pa.timestamp("s", "Europe/Berlin")), [10**6, None, -3 * 10**6]),
        (pa.chunked_array([[1], [None, -3]], pa.timestamp("ms", "UTC")), [1_000, None, -3_000]),
        (pa.array([1, None, -3], pa.int64()), [1, None, -3]),
        ([None] * 3, [None] * 3),
    ],
)
def test_times_of_every_kind_are_microseconds(given_stamps: Any, expected: list[int | None]) -> None:
    """Units and zones of each library; absences stay absent."""
    values: list[bytes | None] = [b"a", b"b", b"c"]
    same_as_one_by_one(Bulk.of(values, None, None, given_stamps), values, [], [], expected)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"values": b"bytes"}, "values are bytes"),
        ({"values": None}, "values are NoneType"),
        ({"values": iter([b"x"])}, "values are list_iterator"),
        ({"values": [b"x", 5]}, "values are int"),
        ({"values": [b"x", bytearray(b"y"), None]}, "values are bytearray"),
        ({"values": np.array(["text"])}, "values are a numpy array of <U4"),
        ({"values": np.array([1, 2])}, "values are a numpy array of int64"),
        ({"values": np.zeros((2, 2, 2), dtype=np.uint8)}, "in 3 dimensions"),
        ({"values": np.ma.masked_array([b"x"], [True])}, "masked"),
        ({"values": np.array([b"x", 5], dtype=object)}, "values are int"),
        ({"values": pa.array([1])}, "pyarrow array of int64"),
        ({"values": pa.table({"a": [b"x"]})}, "pyarrow Table"),
        ({"keys": [b"1", b"2"]}, "keys has 2 entries for 1 values"),
        ({"keys": "k"}, "keys are str"),
        ({"headers": [{}, {}]}, "headers has 2 entries for 1 values"),
        ({"headers": [{"name": 5}]}, "a value in headers is int"),
        ({"headers": {"\ud800": b""}}, "headers"),
        ({"headers": 7}, "headers are a mapping"),
        ({"timestamps": [1, 2]}, "timestamps has 2 entries for 1 values"),
        ({"timestamps": [datetime(2026, 1, 1)]}, "no time zone"),
        ({"timestamps": [1.5]}, "timestamp"),
        ({"timestamps": np.array([1.5])}, "timestamps are a numpy array of float64"),
        ({"timestamps": np.array([-(2**63)])}, "beyond 64 bits"),
        ({"timestamps": np.array([2**62], dtype="datetime64[s]")}, "beyond 64 bits"),
        ({"timestamps": pa.array([1], pa.timestamp("us"))}, "without a time zone; cast"),
        ({"timestamps": pa.array([2**62], pa.timestamp("s", "UTC"))}, "beyond 64 bits"),
        ({"timestamps": pa.array([-(2**63)], pa.int64())}, "beyond 64 bits"),
        ({"timestamps": pa.array(["now"])}, "timestamps are string"),
        ({"timestamps": 5}, "timestamps are int"),
    ],
)
def test_what_is_no_column_is_refused(columns: dict[str, Any], says: str) -> None:
    """Before anything is taken, naming the column and what it is; by each kind of wrong."""
    given_columns = {"values": [b"x"], "keys": None, "headers": None, "timestamps": None, **columns}
    with pytest.raises(BadInput, match=says):
        Bulk.of(**given_columns)


@pytest.mark.parametrize(
    ("values", "keys", "says"),
    [
        ([b"x", b"x" * 1001], None, r"value 1 of 1001 bytes is above the node's max_record_bytes \(1000\)"),
        ([b"x", b"x" * 1000], [None, b"k" * 3000], r"record 1 of 4024 bytes is above max_batch_bytes"),
    ],
)
def test_a_record_above_a_limit_is_named(values: Any, keys: Any, says: str) -> None:
    """One look at all sizes finds it; by a value and by a record too large."""
    with pytest.raises(RecordTooLarge, match=says):
        Bulk.of(values, keys, None, None).check(LIMITS)


def test_the_largest_record_that_is_allowed_is_taken_by_the_node() -> None:
    """The limits mean what the node checks; by its own check of the batch."""
    bulk = Bulk.of([b"x" * 1000], [b"k" * 2700], None, None)
    bulk.check(LIMITS)
    batch = bulk.draft(0, 1).seal(queue_id=1)
    header = read_header(batch)
    assert len(batch) <= LIMITS.max_batch_bytes
    check_uncompressed(
        memoryview(batch), record_count=1, columns=header.columns, max_record_bytes=LIMITS.max_record_bytes
    )


def test_nothing_is_a_column_too() -> None:
    """No records and no error; by an empty one of each kind."""
    for nothing in ([], (), np.zeros((0, 4), dtype=np.uint8), np.zeros(0, dtype="S3"), pa.array([], pa.binary())):
        assert len(Bulk.of(nothing, None, None, None)) == 0
    assert len(Bulk.of(pa.chunked_array([], pa.binary()), None, None, None)) == 0


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=30), st.integers(1, 400))
def test_batches_are_as_large_as_they_may_be(values: list[bytes], batch_bytes: int) -> None:
    """A batch ends only where one record more would not fit; by asking for the next one's size."""
    bulk = Bulk.of(values, None, None, None)
    cuts = cut_up(bulk, batch_bytes)
    for start, end in cuts[:-1]:
        assert bulk.size_bytes(start, end + 1) > batch_bytes
    stored = [
        record.value
        for start, end in cuts
        for record in parse_batch_body(bulk.draft(start, end).seal(queue_id=1)).records()
    ]
    assert stored == values


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), st.integers(1, 200))
def test_a_small_rest_goes_with_the_last_batch(values: list[bytes], batch_bytes: int) -> None:
    """Where it fits under its limit; no other batch is above the usual one. By cutting all ways there are."""
    bulk = Bulk.of(values, None, None, None)
    last_bytes = batch_bytes + batch_bytes // 8
    starts = [0, *bulk.cuts(batch_bytes, last_bytes=last_bytes)]
    assert starts[-1] == len(values)
    for start, end in pairwise(starts):
        fits = batch_bytes if end < len(values) else last_bytes
        assert bulk.size_bytes(start, end) <= fits or end == start + 1
        assert end == len(values) or bulk.size_bytes(start, len(values)) > last_bytes


def test_pyarrow_is_not_needed_for_other_columns() -> None:
    """It is an extra; by sending lists and numpy arrays in a process of its own that may not import it."""
    program = """
import sys
sys.modules["pyarrow"] = None
import numpy as np
import mirrorlog.client
from mirrorlog.client.producer.bulk import Bulk
from mirrorlog.client.producer.columns import BinaryEntries, Chunks
Bulk.of([b"x"], np.array([b"k"]), {"h": b""}, np.array([5])).draft(0, 1)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_offsets_beyond_two_gib_are_cut_to_their_batch() -> None:
    """One `send_many` may be larger than what a batch's offsets can say; by offsets with no data behind them."""
    offsets = np.array([0, 3_000_000_000, 3_000_000_100, 5_000_000_000, 5_000_000_050], dtype=np.int64)
    entries = BinaryEntries(offsets, Chunks([]))
    for start, size in ((1, 100), (3, 50)):
        found = entries.cut(start, start + 1).offsets
        assert found.dtype == np.int32
        assert found.tolist() == [0, size]
