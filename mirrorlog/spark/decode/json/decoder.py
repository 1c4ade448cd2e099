"""JSON records by a given schema: the fast way where it is sure, else record by record.

A batch that the fast way refuses is halved until the parts that are refused are small: so a few bad records among many
good ones cost little, and where all are odd the tries cost a fraction of the strict way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from mirrorlog.spark.decode.columns import check_schema
from mirrorlog.spark.decode.decoded import (
    Decoded,
    DecodeOutcomes,
    Evolution,
    Tombstones,
    UnknownField,
    Wrong,
    version_of,
)
from mirrorlog.spark.decode.json.discovery import Discovery
from mirrorlog.spark.decode.json.fast import FastReader
from mirrorlog.spark.decode.json.strict import parsed, record_reader
from mirrorlog.spark.decode.types import to_delta_json
from mirrorlog.spark.decode.widening import under

FAST_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one piece for the fast way, which needs about four times as much."""
FAST_ROWS_MIN: Final = 256
"""A refused piece of so many records is not halved again."""


class JsonDecoder:
    """See `decoded.Decoder`."""

    def __init__(self, schema: pa.Schema, *, evolution: Evolution, tombstones: Tombstones) -> None:
        """Raises BadSchema."""
        self.schema = check_schema(schema)
        self.version = version_of("json", to_delta_json(schema), evolution)
        self._evolution: Evolution = evolution
        self._tombstones: Tombstones = tombstones
        self._fast = FastReader(schema)
        self._row = record_reader(schema)

    def __reduce__(self) -> Any:
        return partial(type(self), self.schema, evolution=self._evolution, tombstones=self._tombstones), ()

    def under(self, schema: pa.Schema) -> Self:
        """See `decoded.Decoder`."""
        whole = under(schema, self.schema)
        return type(self)(whole, evolution=self._evolution, tombstones=self._tombstones)

    def decode(self, values: pa.Array) -> Decoded:
        """See `decoded.Decoder`."""
        outcomes = DecodeOutcomes(self.schema, values, self._tombstones)
        discovery = Discovery(self.schema) if self._evolution == "add" else None
        values = values.cast(pa.binary())
        piece = _Piece(values.drop_null(), np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)))
        if len(piece.values):
            self._decode(piece, outcomes, discovery)
        if discovery is None:
            return outcomes.decoded()
        return outcomes.decoded(discovery.new_fields, discovery.untyped)

    def _decode(self, piece: _Piece, outcomes: DecodeOutcomes, discovery: Discovery | None) -> None:
        count = len(piece.values)
        if count == 1 or piece.values.nbytes <= FAST_BYTES_MAX:
            if self._fast.suits and (rows := self._fast.read(piece.values)) is not None:
                outcomes.keep(piece.positions, rows)
                return
            if count <= FAST_ROWS_MIN or not self._fast.suits:
                self._decode_each(piece, outcomes, discovery)
                return
        for half in piece.halves():
            self._decode(half, outcomes, discovery)

    def _decode_each(self, piece: _Piece, outcomes: DecodeOutcomes, discovery: Discovery | None) -> None:
        kept: list[int] = []
        rows: list[dict[str, Any]] = []
        for position, value in zip(piece.positions.tolist(), piece.values.to_pylist(), strict=True):
            try:
                rows.append(self._row_of(value, discovery))
            except Wrong as wrong:
                outcomes.refuse(position, wrong.reason())
            else:
                kept.append(position)
        outcomes.keep_records(kept, rows)

    def _row_of(self, value: bytes, discovery: Discovery | None) -> dict[str, Any]:
        record = parsed(value)
        try:
            return self._row(record)
        except UnknownField:
            if discovery is None:
                raise
        known, found = discovery.explore(record)
        row = self._row(known)
        discovery.add(found)
        return row


@dataclass(frozen=True, slots=True)
class _Piece:
    """Values without nulls, and their positions."""

    values: pa.Array
    positions: np.ndarray[Any, Any]

    def halves(self) -> Iterator[_Piece]:
        middle = len(self.values) // 2
        yield _Piece(self.values[:middle], self.positions[:middle])
        yield _Piece(self.values[middle:], self.positions[middle:])
