"""What a landing's task stages for an upsert: rows with a flag for tombstones, and none without a key. Pure.

A record without value is a tombstone: it deletes its key. A row must have a key to be found again by the next record,
so one without goes to the dead letters (reason NO_KEY), or ends the landing when there is no such table. With the key
in named columns of the value a tombstone has no key either: such a queue knows no deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from mirrorlog.spark.errors import RecordWithoutKey

TOMBSTONE: Final = "_tombstone"
"""Column of staged rows, not of the table."""
NO_KEY: Final = "no key"
"""The reason of a dead letter."""


def staged_rows(rows: pa.RecordBatch, values: pa.Array, key: Sequence[str]) -> tuple[pa.RecordBatch, pa.BooleanArray]:
    """The rows to stage, and for each of the given ones whether it has a key.

    `rows`: as the table has them; `values`: the records' values, null in a tombstone; `key`: columns of `rows`, all of
    which must be there for a row to count.
    """
    with_key = _all(rows.column(name).is_valid() for name in key)
    flagged = rows.append_column(pa.field(TOMBSTONE, pa.bool_()), values.is_null())
    return flagged if with_key.true_count == len(with_key) else flagged.filter(with_key), with_key


def refuse_keyless(rows: pa.RecordBatch, with_key: pa.BooleanArray, *, queue: str, offset: str) -> None:
    """Raise RecordWithoutKey naming the first one. `offset`: the column with queue offsets."""
    if with_key.true_count < len(with_key):
        place = pc.index(with_key, False).as_py()
        raise RecordWithoutKey(
            f"queue {queue!r}: record {rows.column(offset)[place]} has no key, so an upsert cannot place it; set "
            "dead_letters to keep such records there"
        )


def _all(masks: object) -> pa.BooleanArray:
    found = None
    for mask in masks:  # type: ignore[attr-defined]
        found = mask if found is None else pc.and_(found, mask)
    assert found is not None, "an upsert has a key"
    return found
