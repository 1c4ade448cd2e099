"""What a decoder gives: rows, and for every value that is none, what it is instead.

`DecodeOutcomes` collects them in any order of pieces; `Decoded` is the sum. Every position of the values is in exactly
one of kept, dead and tombstones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self

import numpy as np
import pyarrow as pa

REASON_MAX: Final = 500
"""Characters of a dead letter's reason."""
NO_VALUE: Final = "no value"
"""The reason of a tombstone where tombstones are dead letters."""
NOTHING_NEW: Final = pa.schema([])

_ARROW_REFUSES: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)

Evolution = Literal["quarantine", "add"]
Tombstones = Literal["dead", "pass"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """The outcome for an array of values."""

    rows: pa.RecordBatch
    """One row per decoded record, under the decoder's schema."""
    kept: pa.Array
    """int64: the positions in `values` of these rows, rising."""
    dead: pa.Array
    """int64: the positions of the dead letters, rising."""
    reasons: pa.Array
    """string, one per dead letter: what is wrong and where, one line of at most REASON_MAX characters."""
    tombstones: pa.Array
    """int64: the positions of nulls, rising; empty where tombstones are dead letters."""
    new_fields: pa.Schema
    """Fields seen that the schema lacks, nested ones inside their structs; only with evolution `add`. When there are
    any, the rows lack them and must not be kept: widen the schema and decode again."""
    untyped: tuple[str, ...]
    """Paths of unknown fields that held nothing but null, [] or {}, so that no type is known yet; their records are
    rows. Only with evolution `add`."""


class Decoder(Protocol):
    """Values to columns. Picklable; the same values give the same outcome everywhere."""

    @property
    def schema(self) -> pa.Schema:
        """The columns it gives, in order; none of `columns.RESERVED_COLUMNS`."""

    @property
    def version(self) -> str:
        """A short hash of schema and settings, for dead letters."""

    def decode(self, values: pa.Array) -> Decoded:
        """`values`: binary; null is a tombstone."""

    def under(self, schema: pa.Schema) -> Self:
        """The same decoder for a table of these columns, which must have all of its own and may have more: they are
        known from then on. Raises BadSchema where a field is missing or has another type."""


class Wrong(Exception):
    """One value that is not what the schema says. `path` grows outward as it passes through containers."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.path: list[str | int] = []

    def inside(self, step: str | int) -> Self:
        """The same, one container further out."""
        self.path.append(step)
        return self

    def reason(self) -> str:
        """`field a.b[3]: …`; for a fault of the whole record the text alone."""
        path = path_text(reversed(self.path))
        return f"field {path}: {self.text}" if path else self.text


class UnknownField(Wrong):
    """A field that the schema lacks."""

    def __init__(self) -> None:
        super().__init__("")

    def reason(self) -> str:
        return f"unknown field {path_text(reversed(self.path))}"


def path_text(steps: Any) -> str:
    """`a.b[3]` from names and numbers."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


class DecodeOutcomes:
    """Collects the outcomes of `values`, piece by piece, in rising order of the rows."""

    def __init__(self, schema: pa.Schema, values: pa.Array, tombstones: Tombstones) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._kept: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._dead: dict[int, str] = {}
        nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).astype(np.int64)
        self._tombstones = nulls if tombstones == "pass" else nulls[:0]
        if tombstones == "dead":
            self._dead.update(dict.fromkeys(nulls.tolist(), NO_VALUE))

    def keep(self, positions: Sequence[int] | np.ndarray[Any, Any], rows: pa.RecordBatch) -> None:
        """Rows of the values at `positions`."""
        self._batches.append(rows)
        self._kept.append(np.asarray(positions, dtype=np.int64))

    def keep_records(self, positions: Sequence[int], records: Sequence[Mapping[str, Any]]) -> None:
        """Rows of records with Python values. One that Arrow refuses after all is a dead letter and stops nobody."""
        try:
            self.keep(positions, rows_of(records, self._schema))
        except _ARROW_REFUSES as error:
            if len(records) == 1:
                self.refuse(positions[0], f"it fits no row: {error}")
                return
            for position, record in zip(positions, records, strict=True):
                self.keep_records([position], [record])

    def refuse(self, position: int, reason: str) -> None:
        """The value at `position` is a dead letter."""
        self._dead[position] = _one_line(reason)

    def decoded(self, new_fields: pa.Schema = NOTHING_NEW, untyped: tuple[str, ...] = ()) -> Decoded:
        """The sum."""
        dead = sorted(self._dead)
        return Decoded(
            rows=pa.concat_batches(self._batches) if self._batches else empty(self._schema),
            kept=pa.array(np.concatenate(self._kept) if self._kept else [], pa.int64()),
            dead=pa.array(dead, pa.int64()),
            reasons=pa.array([self._dead[position] for position in dead], pa.string()),
            tombstones=pa.array(self._tombstones, pa.int64()),
            new_fields=new_fields,
            untyped=untyped,
        )


def rows_of(records: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Records with Python values as columns; a name that a record lacks is null. Column by column: twice as fast as
    Arrow's own way with dicts."""
    columns = [pa.array([record.get(field.name) for record in records], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """No rows."""
    return rows_of([], schema)


def present(values: pa.Array) -> tuple[list[int], list[bytes]]:
    """Positions and bytes of the values that are not null."""
    listed = values.to_pylist()
    if values.null_count == 0:
        return list(range(len(listed))), listed
    positions = [position for position, value in enumerate(listed) if value is not None]
    return positions, [listed[position] for position in positions]


def version_of(*parts: str) -> str:
    """A short hash of what a decoder is made from."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _one_line(reason: str) -> str:
    """Without line breaks and control characters, clipped, and UTF-8 whatever names the data brought."""
    text = reason[: REASON_MAX * 2].encode("utf-8", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)[
        :REASON_MAX
    ]
