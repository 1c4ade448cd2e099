"""The fast way and the strict way are one function, and what passes is what `json` says. Random records and faults."""

from __future__ import annotations

import base64
import json
import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.spark.decode import widen
from mirrorlog.spark.decode.ddl import parse_ddl
from mirrorlog.spark.decode.decoded import Decoded
from mirrorlog.spark.decode.json.decoder import JsonDecoder
from mirrorlog.spark.decode.json.fast import FastReader

FAST = parse_ddl(
    "a BIGINT, b STRING, c DOUBLE, f FLOAT, i TINYINT, t BOOLEAN, at TIMESTAMP, d DATE, n INT NOT NULL, "
    "s STRUCT<x: INT, y: ARRAY<STRING>, w: TIMESTAMP>, l ARRAY<STRUCT<z: DOUBLE, k: DATE>>, w TIMESTAMP_NTZ"
)
SLOW = parse_ddl(
    "a BIGINT, n INT, m MAP<STRING, DOUBLE>, p DECIMAL(12,3), r BINARY, w TIMESTAMP_NTZ, s STRUCT<x: INT NOT NULL>"
)

TEXTS = st.text(max_size=6)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))


def mostly(good: st.SearchStrategy[Any], *odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One in twelve is odd: a record has many values, and few records would pass."""
    return st.integers(0, 11).flatmap(lambda number: good if number else st.one_of(*odd))


BYTES = mostly(st.integers(-128, 127), st.integers(-130, 130), st.just(-0.0))
INTEGERS = mostly(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63) - 1, 2**63), st.sampled_from([2**31, 10**400]))
FLOATS = mostly(st.floats(allow_nan=False, allow_infinity=False, width=32), st.floats())
NUMBERS = mostly(st.one_of(st.floats(allow_nan=False, allow_infinity=False), INTEGERS), st.floats(), st.just("1"))
TOKENS = st.sampled_from(
    [b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"-0", b"1e400", b"1e-400", b'"a"', b"\n", b" null ",
     b"NaN", b"-Infinity", b"\\u0000", b"\\ud800", b"\xff", b"\xef\xbb\xbf", b"{}", b"[]", b'"~":true,', b"{\"a\":1}",
     b"0", b"1.0", b"\0", b"\r", b"/**/", b"1" * 400, b'"2013-01-31"', b'"2013-02-30T00:00:00Z"', b"3.5e38"]
)  # fmt: skip


FORMS = st.sampled_from(
    [
        "-%m-%dT%H:%M:%SZ",
        "-%m-%dT%H:%M:%S",
        "-%m-%d %H:%M:%S.%f+02:00",
        "-%m-%dT%H:%MZ",
        "-%m-%d %H:%M-05",
        "-%m-%dT%H:%M+0530",
    ]
)
STAMPS = mostly(
    st.builds(lambda at, form: f"{at.year:04}" + at.strftime(form), TIMES, FORMS),
    st.sampled_from(["2013-01-01T00:00:00.1234567Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "x", ""]),
)
DATES = mostly(st.dates().map(date.isoformat), st.sampled_from(["0000-01-01", "2013-02-30", "2013-1-1"]))
DECIMALS = mostly(
    st.decimals(-(10**8), 10**8, places=3).map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    NUMBERS,
)
BASE64 = mostly(st.binary(max_size=9).map(lambda value: base64.b64encode(value).decode()), TEXTS)
LOCAL = st.sampled_from(["2013-01-31T05:15:00", "2013-01-31 05:15:00.25", "0001-01-01T00:00", "2013-01-31T05:15:00Z"])


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(strategy, strategy, st.none())


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional={name: maybe(kind) for name, kind in fields.items()})


RECORDS = {
    "fast": objects(
        a=INTEGERS,
        b=TEXTS,
        c=NUMBERS,
        f=FLOATS,
        i=BYTES,
        t=st.booleans(),
        at=STAMPS,
        d=DATES,
        n=st.integers(-5, 5),
        s=objects(x=INTEGERS, y=st.lists(maybe(TEXTS), max_size=3), w=STAMPS),
        l=st.lists(maybe(objects(z=NUMBERS, k=DATES)), max_size=3),
        w=LOCAL,
    ),
    "slow": objects(
        a=INTEGERS,
        m=st.dictionaries(TEXTS, maybe(NUMBERS), max_size=3),
        p=DECIMALS,
        r=BASE64,
        w=LOCAL,
        s=objects(x=INTEGERS),
    ),
}


@st.composite
def values(draw: st.DrawFn, records: st.SearchStrategy[Any]) -> bytes:
    """Mostly sound records; some cut, some with bytes of others in them."""
    record = draw(records)
    if draw(st.integers(0, 9)):
        record["n"] = 1
    value = bytearray(json.dumps(record, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0] * 8 + [1, 2]))):
        at = draw(st.integers(0, len(value)))
        value[at : at + draw(st.sampled_from([0, 0, 1, 4]))] = draw(TOKENS)
    return bytes(value)


def decoder(schema: pa.Schema, *, evolution: Any = "quarantine", fast: bool = True) -> JsonDecoder:
    made = JsonDecoder(schema, evolution=evolution, tombstones="dead")
    made._fast.suits = made._fast.suits and fast
    return made


def outcome(decoded: Decoded) -> dict[int, Any]:
    """By position: the row, told apart to the bit, or the reason."""
    rows = dict(zip(decoded.kept.to_pylist(), decoded.rows.to_pylist(), strict=True))
    reasons = dict(zip(decoded.dead.to_pylist(), decoded.reasons.to_pylist(), strict=True))
    assert not rows.keys() & reasons.keys()
    return {position: repr(found) for position, found in {**rows, **reasons}.items()}


@settings(max_examples=100, deadline=None, print_blob=True)
@given(st.data())
def test_fast_and_strict_agree_on_every_value_whatever_stands_beside_it(data: st.DataObject) -> None:
    """Goal: which way a batch took cannot be seen. Method: sound and broken records together, the strict way alone, and
    each value by itself."""
    batch = data.draw(st.lists(st.one_of(values(RECORDS["fast"]), st.none()), max_size=5), label="values")
    array = pa.array(batch, pa.binary())
    strict = decoder(FAST, fast=False).decode(array)
    fast = decoder(FAST).decode(array)
    fast.rows.validate(full=True)
    assert outcome(fast) == outcome(strict)
    assert sorted(outcome(fast)) == list(range(len(batch)))
    single = {index: decoder(FAST).decode(array[index : index + 1]) for index in range(len(batch))}
    assert {index: outcome(one)[0] for index, one in single.items()} == outcome(fast)


@settings(max_examples=100, deadline=None, print_blob=True)
@given(st.data())
@pytest.mark.parametrize("kind", ["fast", "slow"])
def test_what_passes_is_what_json_says(kind: str, data: st.DataObject) -> None:
    """Goal: never another value, never a silent null. Method: compare each row with the standard library's reading of
    the same bytes, field by field."""
    schema = FAST if kind == "fast" else SLOW
    batch = data.draw(st.lists(values(RECORDS[kind]), max_size=4), label="values")
    decoded = decoder(schema).decode(pa.array(batch, pa.binary()))
    for position, row in zip(decoded.kept.to_pylist(), decoded.rows.to_pylist(), strict=True):
        said = json.loads(batch[position], parse_float=Decimal)
        assert said.keys() <= row.keys()
        for field in schema:
            assert same(row[field.name], said.get(field.name), field.type), (field, batch[position])


def same(found: Any, said: Any, kind: pa.DataType) -> bool:
    if found is None or said is None:
        return found is None and said is None
    if pa.types.is_struct(kind):
        assert said.keys() <= found.keys()
        return all(same(found[field.name], said.get(field.name), field.type) for field in kind)
    if pa.types.is_map(kind):
        return dict(found).keys() == said.keys() and all(same(one, said[key], kind.item_type) for key, one in found)
    if pa.types.is_list(kind):
        return len(found) == len(said) and all(map(lambda one, two: same(one, two, kind.value_type), found, said))
    return same_scalar(found, said, kind)


def same_scalar(found: Any, said: Any, kind: pa.DataType) -> bool:  # noqa: PLR0911 - a table by type
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(said)
        assert (kind.tz is None) <= (moment.tzinfo is None)
        return found.replace(tzinfo=UTC) - moment.replace(tzinfo=moment.tzinfo or UTC) == timedelta(0)
    if kind == pa.date32():
        return found == date.fromisoformat(said)
    if kind == pa.binary():
        return found == base64.b64decode(said, validate=True)
    if pa.types.is_decimal(kind):
        return found == Decimal(said)
    if kind == pa.float32():
        return found == struct.unpack("f", struct.pack("f", float(said)))[0]
    if kind == pa.float64():
        return math.isfinite(found) and found == float(said)
    return type(found) is type(said) and found == said


@pytest.mark.long
@settings(max_examples=80, deadline=None, print_blob=True)
@given(st.data())
def test_new_fields_settle_after_one_widening(data: st.DataObject) -> None:
    """Goal: a landing that adds columns comes to an end, and nothing is lost on the way. Method: records with whatever
    fields; widen, decode again: nothing new any more, no record without outcome, and all fields are in the rows."""
    scalars = st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(allow_nan=False, allow_infinity=False), TEXTS)
    inner = st.recursive(
        scalars,
        lambda kind: st.one_of(
            st.lists(kind, max_size=3), st.dictionaries(st.sampled_from(["p", "q", "Q", "r s"]), kind, max_size=3)
        ),
        max_leaves=5,
    )
    names = st.sampled_from(["a", "A", "u", "v", "_key", "s"])
    records = data.draw(st.lists(st.dictionaries(names, inner, max_size=4), max_size=5), label="records")
    schema = parse_ddl("a BIGINT, s STRUCT<p: BIGINT>, l ARRAY<STRUCT<p: STRING>>")
    array = pa.array([json.dumps(record).encode() for record in records], pa.binary())
    first = decoder(schema, evolution="add")
    found = first.decode(array)
    second = first.under(widen(first.schema, found.new_fields))
    decoded = second.decode(array)
    assert not len(decoded.new_fields), decoded.new_fields
    assert sorted([*decoded.kept.to_pylist(), *decoded.dead.to_pylist()]) == list(range(len(records)))
    assert set(found.dead.to_pylist()) <= set(decoded.dead.to_pylist())
    for position, row in zip(decoded.kept.to_pylist(), decoded.rows.to_pylist(), strict=True):
        assert_holds(row, records[position])


def assert_holds(found: Any, said: Any) -> None:
    """All that was said is there; what is not there said nothing."""
    if isinstance(said, dict) and isinstance(found, dict):
        for name, inner in said.items():
            assert_holds(found.get(name), inner)
    elif isinstance(said, list) and isinstance(found, list):
        for one, two in zip(found, said, strict=True):
            assert_holds(one, two)
    elif found is None:
        assert nothing(said), said
    else:
        assert type(said) in (type(found), int)
        assert found == said


def nothing(said: Any) -> bool:
    """null, or containers of it."""
    if isinstance(said, dict):
        return all(map(nothing, said.values()))
    return all(map(nothing, said)) if isinstance(said, list) else said is None


def test_sound_records_take_the_fast_way() -> None:
    """Goal: what is compared here are two ways. Method: records with every field, and without any but the one that must
    be there; times with offsets and times without; then the schemas that are left to the strict way."""
    whole = {
        **{"a": 1, "b": "x", "c": 1.5, "f": 1, "i": 1, "t": True, "at": "2013-01-31T05:15:00.25Z", "d": "2013-01-31"},
        **{"n": 1, "s": {"x": 1, "y": ["q", None], "w": "2013-01-31 05:15+01"}, "w": "2013-01-31T05:15:00"},
        "l": [{"z": 1.5, "k": "2013-01-31"}, None, {}],
    }
    local = {**whole, "at": "2013-01-31T05:15:00", "s": None}
    for records in ([whole, {"n": 1}], [local, {"n": 1, "l": []}]):
        rows = FastReader(FAST).read(pa.array([json.dumps(record).encode() for record in records]))
        assert rows is not None
        assert rows.num_rows == 2
    assert FastReader(FAST).read(pa.array([json.dumps(record).encode() for record in (whole, local)])) is None
    assert [parse_ddl(ddl) for ddl in STRICT_ONLY if FastReader(parse_ddl(ddl)).suits] == []


STRICT_ONLY = ("v DECIMAL(5,2)", "v BINARY", "v MAP<STRING, INT>", "v STRUCT<x: ARRAY<BINARY>>")
