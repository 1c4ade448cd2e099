"""A batch of JSON records by Arrow's own reader, whenever its outcome is provably that of `json_strict`.

Arrow reads a stream of objects and does not say which record an object came from. So the first brace of each record is
replaced by `{"~":true,`: a key `~` anywhere but in a row of its own is an unexpected field, a second one in a row is
refused, and so, when there are as many rows as records and each has the mark, each record is one row, all of it.

What Arrow takes and JSON has not (NaN, Infinity, a byte order mark, bytes that are no UTF-8) is found before or after.
Left to the strict way, because Arrow's outcome differs or there is none: decimals (Arrow does not check their
precision), binary, maps. Timestamps and dates are read as strings, held against the forms that Arrow's parser and ours
take alike, and cast. A stream that begins with `null` crashes Arrow's reader, so each record must begin with a brace.
In doubt the answer is None, and the strict way decides.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from mirrorlog.spark.decode.json.strict import FLOAT_MAX
from mirrorlog.spark.decode.texts import DATE_MAX, DATE_MIN, TIMESTAMP_MAX_US, TIMESTAMP_MIN_US
from mirrorlog.spark.decode.types import TIMESTAMP, TIMESTAMP_NTZ, fields_of, list_of

_CLOCK: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_LOCAL: Final = _CLOCK + r"\z"
_ZONED: Final = _CLOCK + r"(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)\z"
_DATES: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_AS_IS: Final = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.string())
_READ_AS: Final = {
    **{kind: kind for kind in _AS_IS},
    # Rounded twice like the strict way's, through the double.
    pa.float32(): pa.float64(),
    pa.date32(): pa.string(),
    TIMESTAMP: pa.string(),
    TIMESTAMP_NTZ: pa.string(),
}


class FastReader:
    """Reads batches under one schema; `suits` says whether it can at all."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._mark = "~"
        while self._mark in schema.names:
            self._mark += "~"
        self._opening = b'{"' + self._mark.encode() + b'":true,'
        types = [_reading(field.type) for field in schema]
        self.suits = None not in types
        if self.suits:
            fields = [pa.field(name, kind) for name, kind in zip(schema.names, types, strict=True)]
            self._parse = pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([pa.field(self._mark, pa.bool_()), *fields]),
                unexpected_field_behavior="error",
            )

    def read(self, values: pa.Array) -> pa.RecordBatch | None:
        """Binary without nulls and below 2 GiB as rows, one for each; None when any of it is in doubt."""
        try:
            marked = self._marked(values)
            return None if marked is None else self._rows(marked, len(values))
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None

    def _marked(self, values: pa.Array) -> pa.Buffer | None:
        if not pc.all(pc.starts_with(values, b"{")).as_py():
            return None
        opened = pc.binary_replace_slice(values, 0, 1, self._opening)
        whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), opened)
        return pc.binary_join(whole, b"\n")[0].as_buffer()

    def _rows(self, marked: pa.Buffer, count: int) -> pa.RecordBatch | None:
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=marked.size + 1)
        table = pyarrow.json.read_json(pa.BufferReader(marked), read_options=reading, parse_options=self._parse)
        marks, *columns = (column.combine_chunks() for column in table.columns)
        if table.num_rows != count or marks.null_count:
            return None
        finished = [_finished(column, field) for column, field in zip(columns, self._schema, strict=True)]
        rows = pa.RecordBatch.from_arrays(finished, schema=self._schema)
        rows.validate(full=True)  # raises for a string that is no UTF-8
        return rows


def _reading(kind: pa.DataType) -> pa.DataType | None:
    """The type to read it as, None when it is left to the strict way."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _reading(field.type)) for field in fields_of(kind)]
        return None if None in (found for _, found in fields) else pa.struct(fields)
    if pa.types.is_list(kind):
        element = _reading(kind.value_type)
        return None if element is None else list_of(element)
    return _READ_AS.get(kind)


def _finished(array: pa.Array, field: pa.Field) -> pa.Array:
    """The column under its own type. Raises ArrowInvalid where the strict way might see it differently."""
    if not field.nullable and array.null_count:
        raise pa.ArrowInvalid("null")
    kind = field.type
    if pa.types.is_struct(kind):
        return _struct(array, kind)
    if pa.types.is_list(kind):
        return _list(array, kind)
    if pa.types.is_floating(kind):
        return _floats(array, kind)
    if pa.types.is_timestamp(kind):
        return _within(_times(array, kind), pa.int64(), TIMESTAMP_MIN_US, TIMESTAMP_MAX_US)
    if kind == pa.date32():
        _check_form(array, _DATES)
        return _within(array.cast(kind), pa.int32(), DATE_MIN, DATE_MAX)
    return array


def _struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A field that is NOT NULL may be null where its whole struct is; that is left to the strict way."""
    fields = list(fields_of(kind))
    children = [_finished(array.field(index), field) for index, field in enumerate(fields)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    items = _finished(array.values, kind.value_field)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=mask)


def _floats(array: pa.Array, kind: pa.DataType) -> pa.Array:
    most = pc.max(pc.abs(array)).as_py()
    sure = pc.all(pc.is_finite(array)).as_py() is not False
    if not sure or (kind == pa.float32() and most is not None and most > FLOAT_MAX):
        raise pa.ArrowInvalid("no finite number of this width")
    return array.cast(kind, safe=False)


def _times(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """All with an offset, or all without; with both in one batch the strict way is asked."""
    if kind == TIMESTAMP and _has_form(array, _ZONED):
        return array.cast(kind)
    _check_form(array, _LOCAL)
    local = array.cast(TIMESTAMP_NTZ)
    return local if kind == TIMESTAMP_NTZ else pc.assume_timezone(local, "UTC")


def _has_form(array: pa.Array, form: str) -> bool:
    return pc.all(pc.match_substring_regex(array, form)).as_py() is not False


def _check_form(array: pa.Array, form: str) -> None:
    if not _has_form(array, form):
        raise pa.ArrowInvalid("another form")


def _within(array: pa.Array, number: pa.DataType, least: int, most: int) -> pa.Array:
    found = pc.min_max(array.cast(number)).as_py()
    if found["min"] is not None and not least <= found["min"] <= found["max"] <= most:
        raise pa.ArrowInvalid("beyond the years 1 to 9999")
    return array
