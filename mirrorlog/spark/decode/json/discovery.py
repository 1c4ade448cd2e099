"""Fields of JSON records that a schema lacks: their types as far as the values tell, for `evolution = "add"`.

true and false are boolean; a number without point or exponent is long, any other double; a string is string, whatever
it looks like; arrays and objects by what is in them. null, [] and {} tell nothing, so such a field has no type yet.
Nothing is guessed: an integer beyond long, an array of unlike things, or a name that a table cannot have makes the
record a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from mirrorlog.spark.decode.columns import double, name_fault, too_large
from mirrorlog.spark.decode.decoded import NOTHING_NEW, Wrong, path_text
from mirrorlog.spark.decode.json.strict import Fraction, Repeated
from mirrorlog.spark.decode.types import fields_of, list_of, map_of, scalar_name
from mirrorlog.spark.decode.widening import merged, widen

UNTYPED_MAX: Final = 100
"""Paths of fields without type that are remembered."""


class Discovery:
    """What the records of one call bring that `schema` lacks."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._kind = pa.struct(list(schema))
        self.new_fields: pa.Schema = NOTHING_NEW
        self._untyped: dict[str, None] = {}

    @property
    def untyped(self) -> tuple[str, ...]:
        """Paths that never had a type here."""
        return tuple(self._untyped)

    def explore(self, record: Mapping[str, Any]) -> tuple[dict[str, Any], _Found]:
        """The record without the fields that the schema lacks, and these. Raises Wrong."""
        known, found = _explore_struct(record, self._kind, ())
        return known, found

    def add(self, found: _Found) -> None:
        """Take what a record brought, all of it or nothing. Raises Wrong when it does not fit what came before."""
        if found.kind is not None:
            extra = pa.schema(list(fields_of(found.kind)))
            joined = merged(self.new_fields, extra)
            _check_fits(pa.struct(list(joined)), found.kind, ())
            if joined != self.new_fields and (fault := too_large(widen(self._schema, joined))):
                raise Wrong(f"with its new fields {fault}")
            self.new_fields = joined
        for path in found.untyped[: UNTYPED_MAX - len(self._untyped)]:
            self._untyped[path] = None


@dataclass(frozen=True, slots=True)
class _Found:
    """`kind`: a struct of the new fields, or a list or map around one; None without any that has a type."""

    kind: pa.DataType | None = None
    untyped: list[str] = field(default_factory=list)


_Path = tuple[str | int, ...]


def _wrong(path: _Path, text: str) -> Wrong:
    wrong = Wrong(text)
    for step in reversed(path):
        wrong.inside(step)
    return wrong


# --- Beside what is known -------------------------------------------------------------------------------------------


def _explore(value: Any, kind: pa.DataType, path: _Path) -> tuple[Any, _Found]:
    """What does not fit the known type is left as it is: the strict way says so better."""
    if type(value) is dict and pa.types.is_struct(kind):
        return _explore_struct(value, kind, path)
    if type(value) is dict and pa.types.is_map(kind):
        return _explore_map(value, kind, path)
    if type(value) is list and pa.types.is_list(kind):
        return _explore_list(value, kind, path)
    return value, _Found()


def _explore_struct(value: Mapping[str, Any], kind: pa.DataType, path: _Path) -> tuple[dict[str, Any], _Found]:
    types = {known.name: known.type for known in fields_of(kind)}
    spelled = {name.lower(): name for name in types}
    rest: dict[str, Any] = {}
    extra: list[pa.Field] = []
    untyped: list[str] = []
    for name, inner in value.items():
        here = (*path, name)
        if name in types:
            rest[name], found = _explore(inner, types[name], here)
        else:
            found = _infer_field(inner, here, spelled)
        untyped += found.untyped
        if found.kind is not None:
            extra.append(pa.field(name, found.kind))
    return rest, _Found(pa.struct(extra) if extra else None, untyped)


def _infer_field(value: Any, path: _Path, spelled: Mapping[str, str]) -> _Found:
    name = str(path[-1])
    if (known := spelled.get(name.lower())) is not None:
        raise _wrong(path, f"unknown field, one name with {known} to Spark")
    _check_name(path, top=len(path) == 1)
    return _infer(value, path)


def _explore_map(value: Mapping[str, Any], kind: pa.DataType, path: _Path) -> tuple[dict[str, Any], _Found]:
    explored = {name: _explore(inner, kind.item_type, (*path, name)) for name, inner in value.items()}
    joined = _joined([found for _, found in explored.values()], path)
    wrapped = None if joined.kind is None else map_of(kind.key_type, joined.kind)
    return {name: rest for name, (rest, _) in explored.items()}, _Found(wrapped, joined.untyped)


def _explore_list(value: list[Any], kind: pa.DataType, path: _Path) -> tuple[list[Any], _Found]:
    explored = [_explore(inner, kind.value_type, (*path, index)) for index, inner in enumerate(value)]
    joined = _joined([found for _, found in explored], path)
    wrapped = None if joined.kind is None else list_of(joined.kind)
    return [rest for rest, _ in explored], _Found(wrapped, joined.untyped)


# --- What is new ----------------------------------------------------------------------------------------------------


def _infer(value: Any, path: _Path) -> _Found:
    if isinstance(value, dict):
        return _infer_object(value, path)
    if isinstance(value, list):
        return _infer_list(value, path)
    kind = _scalar(value, path)
    return _Found(kind, [] if kind is not None else [path_text(path)])


def _scalar(value: Any, path: _Path) -> pa.DataType | None:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise _wrong(path, "unknown field, and its number is beyond long")
        return pa.int64()
    if isinstance(value, Fraction):
        return pa.float64()
    return pa.string() if isinstance(value, str) else None


def _infer_object(value: dict[str, Any], path: _Path) -> _Found:
    if isinstance(value, Repeated):
        raise _wrong(path, f"the key {value.key[:60]!r} twice in one object")
    if pair := double(value):
        raise _wrong(path, f"fields {pair[0]!r} and {pair[1]!r} are one name to Spark")
    fields: list[pa.Field] = []
    untyped: list[str] = []
    for name, inner in value.items():
        _check_name((*path, name), top=False)
        found = _infer(inner, (*path, name))
        untyped += found.untyped
        if found.kind is not None:
            fields.append(pa.field(name, found.kind))
    return _Found(pa.struct(fields), untyped) if fields else _Found(None, untyped or [path_text(path)])


def _infer_list(value: list[Any], path: _Path) -> _Found:
    joined = _joined([_infer(inner, (*path, index)) for index, inner in enumerate(value)], path)
    if joined.kind is None:
        return _Found(None, [path_text(path)])
    return _Found(list_of(joined.kind), joined.untyped)


def _joined(found: list[_Found], path: _Path) -> _Found:
    """One type for all elements. Raises Wrong when there is none."""
    kinds = [one.kind for one in found if one.kind is not None]
    untyped = [path for one in found for path in one.untyped]
    if not kinds:
        return _Found(None, untyped)
    whole = pa.schema([pa.field("_", kinds[0])])
    for kind in kinds[1:]:
        whole = merged(whole, pa.schema([pa.field("_", kind)]))
    for kind in kinds:
        _check_fits(whole.field(0).type, kind, path)
    return _Found(whole.field(0).type, untyped)


def _check_name(path: _Path, *, top: bool) -> None:
    if fault := name_fault(str(path[-1]), top=top):
        raise _wrong(path, f"unknown field, and {fault}")


def _check_fits(whole: pa.DataType, part: pa.DataType, path: _Path) -> None:
    """Raises Wrong where a value of type `part` could not be one of type `whole`."""
    if pa.types.is_struct(whole) and pa.types.is_struct(part):
        for inner in fields_of(part):
            here = (*path, inner.name)
            if whole.get_field_index(inner.name) < 0:
                raise _wrong(here, "unknown field, one name to Spark with a field of another record")
            _check_fits(whole.field(inner.name).type, inner.type, here)
    elif pa.types.is_map(whole) and pa.types.is_map(part):
        _check_fits(whole.item_type, part.item_type, path)
    elif pa.types.is_list(whole) and pa.types.is_list(part):
        _check_fits(whole.value_type, part.value_type, path)
    elif whole != part and (whole, part) != (pa.float64(), pa.int64()):
        raise _wrong(path, f"unknown field, {scalar_name(part)} here and {scalar_name(whole)} before")
