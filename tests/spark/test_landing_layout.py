"""Rows are shared out to partitions by whole columns: each row to one, in order, a key always to the same."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from mirrorlog.spark.landing.write.layout import Layout, folder, hash_binary, parse_layout

TIMESTAMP = pa.timestamp("us", "UTC")
DAY_US = 86_400_000_000


def batch(times: list[int | None], keys: list[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(range(len(times)), pa.int64()),
            "timestamp": pa.array(times, TIMESTAMP),
            "key": pa.array(keys, pa.binary()),
        }
    )


def test_each_row_is_in_the_partition_of_its_day_and_key() -> None:
    """Goal: as a plain loop over the rows says. Method: random rows, seed printed; all columns at once against each
    row by itself."""
    seed = 7
    print(f"seed {seed}")
    chosen = random.Random(seed)
    times = [chosen.choice([None, 0, -1, DAY_US - 1, DAY_US, chosen.randrange(10**15)]) for _ in range(500)]
    keys = [chosen.choice([None, b"", b"a", chosen.randbytes(9)]) for _ in times]
    layout = parse_layout(["date(timestamp)", "hash(key, 5)"])
    rows = batch(times, keys)
    found: dict[int, tuple[str | None, ...]] = {}
    for values, piece in layout.split(rows):
        offsets = piece.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        assert piece.schema == rows.schema
        found.update(dict.fromkeys(offsets, values))
    assert sorted(found) == list(range(500))
    for offset, (day, bucket) in found.items():
        time, key = times[offset], keys[offset]
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        assert day == (None if time is None else (epoch + timedelta(microseconds=time)).date().isoformat())
        alone = int(hash_binary(pa.array([key], pa.binary()))[0]) % 5
        assert bucket == (None if key is None else str(alone))


def test_a_time_beyond_the_calendar_has_no_day() -> None:
    layout = parse_layout(["date(timestamp)"])
    last = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z
    found = {values: piece.num_rows for values, piece in layout.split(batch([last, last + 1, -(2**62)], [None] * 3))}
    assert found == {("9999-12-31",): 1, (None,): 2}


def test_a_batch_of_one_partition_is_passed_on_as_it_is() -> None:
    rows = batch([5, 6, 7], [b"a", b"b", b"c"])
    ((values, piece),) = parse_layout(["date(timestamp)"]).split(rows)
    assert values == ("1970-01-01",)
    assert piece is rows
    assert [values for values, _ in Layout().split(rows)] == [()]


def test_a_hash_does_not_depend_on_what_stands_beside_the_key() -> None:
    """Goal: the same key is always in the same bucket. Slices, other keys around it, and the numbers themselves: they
    stand in folders' names of tables that are there."""
    keys = pa.array([b"x", None, b"", b"key", b"key" * 100, b"x"], pa.binary())
    whole = hash_binary(keys)
    assert [int(number) for number in hash_binary(keys.slice(2, 3))] == [int(number) for number in whole[2:5]]
    assert whole[0] == whole[5]
    assert [int(number) for number in hash_binary(pa.array([b"", b"a", b"ab"], pa.binary()))] == HASHES
    assert len(hash_binary(pa.array([], pa.binary()))) == 0


def by_hand(key: bytes) -> int:
    """The definition in the module's docstring, step by step."""
    mask = 2**64 - 1
    number = sum((byte + 1) * 0x100000001B3 ** (place + 1) for place, byte in enumerate(key)) & mask
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & mask
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & mask
    return number ^ (number >> 31)


HASHES = [by_hand(b""), by_hand(b"a"), by_hand(b"ab")]


def test_buckets_are_of_nearly_equal_size() -> None:
    numbers = hash_binary(pa.array([b"user-%d" % number for number in range(16_000)], pa.binary()))
    counts = [int((numbers % 16 == bucket).sum()) for bucket in range(16)]
    assert min(counts) > 850
    assert max(counts) < 1150


@pytest.mark.parametrize(
    ("values", "expected"),
    [(("2026-01-02", "3"), "date=2026-01-02/bucket=3/"), ((None, "3"), "date=__HIVE_DEFAULT_PARTITION__/bucket=3/")],
)
def test_folders_are_named_as_delta_names_them(values: tuple[str | None, ...], expected: str) -> None:
    assert folder(("date", "bucket"), values) == expected
