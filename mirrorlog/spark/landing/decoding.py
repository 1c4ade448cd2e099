"""Values become columns: a decoder between the log's rows and a table's files.

A record is either a row of the table or one of the dead letters. When a value has a field that the schema lacks and may
be added, nothing is written any more: the task only looks on for what else is new, and the step is done again under the
wider schema, so all files of a commit have the same columns, whichever task met a field first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mirrorlog.spark.decode.types import nullable_type
from mirrorlog.spark.errors import UndecodableRecord
from mirrorlog.spark.landing.dead_letters import DeadLetterWriter
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.tables import RECORD, RECORD_COLUMNS, prefix_of

if TYPE_CHECKING:
    from mirrorlog.spark.decode import Decoder


def decoder_for(landing: Landing, there: StructType) -> Decoder | None:
    """The landing's decoder, knowing the columns of values that the table has already; None of a raw one.

    Raises BadSchema when a column of the table and one of the schema have other types.
    """
    if not landing.decoded:
        return None
    from mirrorlog.spark.decode import make_decoder, widen

    decoder = make_decoder(landing.mode, settings_of(landing))
    own = {*RECORD.names, *landing.partition_by.columns(prefix_of(landing))}
    values = StructType([column for column in there if column.name not in own])
    if not len(values):
        return decoder
    return decoder.under(widen(to_arrow_schema(values, timezone="UTC"), decoder.schema))


def settings_of(landing: Landing) -> dict[str, str]:
    """Of the decoder, with those that follow from the landing's other keys."""
    tombstones = "pass" if landing.write == "upsert" else "dead"
    return {"evolution": landing.evolution, "tombstones": tombstones, **landing.decoder}


def widened(decoder: Decoder, new_fields: pa.Schema) -> Decoder:
    """The decoder for a table that has these fields too."""
    from mirrorlog.spark.decode import widen

    return decoder.under(widen(decoder.schema, new_fields))


class Write(Protocol):
    """Takes rows as the table has them, and the records that they are of."""

    def __call__(self, rows: pa.RecordBatch, raw: pa.RecordBatch | None = None, /) -> None: ...


class Decoding:
    """Raw rows in; rows and dead letters to those who write them."""

    def __init__(self, decoder: Decoder, write: Write, dead: DeadLetterWriter | None) -> None:
        self._decoder = decoder
        self._write = write
        self._dead = dead
        self.new_fields: pa.Schema | None = None

    def take(self, raw: pa.RecordBatch) -> None:
        """Decode and write. Raises UndecodableRecord when there is no table for dead letters."""
        decoded = self._decoder.decode(raw.column("value"))
        if len(decoded.new_fields):
            self.new_fields = joined_fields([*filter(None, [self.new_fields]), decoded.new_fields])
        if self.new_fields is not None:
            return
        if len(decoded.dead):
            self._bury(raw.take(decoded.dead), decoded.reasons)
        if decoded.rows.num_rows:
            self._pass(decoded.rows, raw, decoded.kept)
        if len(decoded.tombstones):
            nulls = [pa.nulls(len(decoded.tombstones), each.type) for each in decoded.rows.schema]
            rows = pa.RecordBatch.from_arrays(nulls, names=decoded.rows.schema.names)
            self._pass(rows, raw, decoded.tombstones)

    def _pass(self, rows: pa.RecordBatch, raw: pa.RecordBatch, positions: pa.Array) -> None:
        left = raw if len(positions) == raw.num_rows else raw.take(positions)
        self._write(with_record(rows, left), left)

    def _bury(self, rows: pa.RecordBatch, reasons: pa.Array) -> None:
        if self._dead is None:
            queue, offset = rows.column("topic")[0].as_py(), rows.column("offset")[0].as_py()
            raise UndecodableRecord(
                f"queue {queue!r}, record {offset}: {reasons[0].as_py()}; set dead_letters to a table for such records"
            )
        self._dead.bury(rows, reasons)


def with_record(rows: pa.RecordBatch, raw: pa.RecordBatch) -> pa.RecordBatch:
    """The decoded columns, and behind them the rest of the records. All may be null: files are of one schema, whether
    a value or a tombstone came first."""
    columns = [*rows.columns, *(raw.column(name) for name in RECORD_COLUMNS.values())]
    fields = [pa.field(each.name, nullable_type(each.type)) for each in rows.schema]
    fields += [pa.field(name, raw.schema.field(source).type) for name, source in RECORD_COLUMNS.items()]
    cast = [column.cast(field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=pa.schema(fields))


def joined_fields(found: Sequence[pa.Schema]) -> pa.Schema | None:
    """What several found new, as one; None when nobody did."""
    from mirrorlog.spark.decode.widening import merged

    whole = None
    for each in found:
        whole = each if whole is None else merged(whole, each)
    return whole
