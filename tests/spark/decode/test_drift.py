"""Stories of schemas that drift: producers change, the landing adds columns or quarantines, and nothing is lost in
silence. Each story is told in JSON; a table is played by its schema."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from mirrorlog.spark.decode import make_decoder, to_ddl, widen
from mirrorlog.spark.decode.decoded import Decoded

FLIGHT = "id BIGINT, carrier STRING, delay DOUBLE"


class Table:
    """What a landing does with a decoder, without the landing: widen, decode again, keep rows and dead letters."""

    def __init__(self, schema: str = FLIGHT, *, evolution: str = "add") -> None:
        self._given = schema
        self._evolution = evolution
        self.schema = make_decoder("json", {"schema": schema}).schema
        self.rows: list[dict[str, Any]] = []
        self.dead: list[str] = []
        self.untyped: list[str] = []
        self.restart()

    def restart(self) -> None:
        """A new run: the definition still has the old schema, the table what was added."""
        made = make_decoder("json", {"schema": self._given, "evolution": self._evolution})
        self._decoder = made.under(widen(self.schema, made.schema))

    def land(self, *records: dict[str, Any]) -> Decoded:
        values = pa.array([json.dumps(record).encode() for record in records], pa.binary())
        decoded = self._decoder.decode(values)
        if len(decoded.new_fields):
            self.schema = widen(self.schema, decoded.new_fields)
            self._decoder = self._decoder.under(self.schema)
            decoded = self._decoder.decode(values)
        assert not len(decoded.new_fields)
        assert decoded.rows.schema == self.schema
        assert len(decoded.kept) + len(decoded.dead) == len(records)
        self.rows += decoded.rows.to_pylist()
        self.dead += decoded.reasons.to_pylist()
        self.untyped += decoded.untyped
        return decoded


def test_a_field_added() -> None:
    """Goal: a new column, from its first record on; in quarantine dead letters by its name."""
    table = Table()
    table.land({"id": 1, "carrier": "UA", "delay": 1.5})
    table.land({"id": 2, "gate": "C7"}, {"id": 3})
    assert to_ddl(table.schema) == "id BIGINT, carrier STRING, delay DOUBLE, gate STRING"
    assert [row.get("gate") for row in table.rows] == [None, "C7", None]
    kept = Table(evolution="quarantine")
    kept.land({"id": 2, "gate": "C7"}, {"id": 3, "gate": None})
    assert kept.dead == ["unknown field gate", "unknown field gate"]


def test_a_field_removed() -> None:
    """Goal: its column is null from then on, and one that may not be null says so."""
    table = Table()
    table.land({"id": 1, "delay": 2})
    assert table.rows == [{"id": 1, "carrier": None, "delay": 2.0}]
    strict = Table("id BIGINT, carrier STRING NOT NULL")
    strict.land({"id": 1})
    assert strict.dead == ["field carrier: is NOT NULL, and missing"]


def test_a_field_renamed() -> None:
    """Goal: the new name is a new column beside the old one, whose values stay; another case of it is refused."""
    table = Table()
    table.land({"id": 1, "carrier": "UA"}, {"id": 2, "airline": "UA"}, {"id": 3, "Carrier": "UA"})
    assert [(row["carrier"], row["airline"]) for row in table.rows] == [("UA", None), (None, "UA")]
    assert table.dead == ["field Carrier: unknown field, one name with carrier to Spark"]


def test_int_to_string_and_back() -> None:
    """Goal: the other type is dead letters for as long as it lasts, with no harm to what comes behind."""
    table = Table()
    table.land({"id": 1}, {"id": "2"})
    table.land({"id": "3"})
    table.land({"id": 4})
    assert [row["id"] for row in table.rows] == [1, 4]
    assert table.dead == ["field id: wanted long, found string"] * 2


def test_long_to_double() -> None:
    """Goal: 1.0 is no long, 1 is a double; a new field that is both in one batch is a double."""
    table = Table()
    table.land({"id": 1.0}, {"delay": 3})
    assert table.dead == ["field id: wanted long, found number 1.0"]
    assert [row["delay"] for row in table.rows] == [3.0]
    table.land({"fuel": 1}, {"fuel": 1.5})
    assert [row["fuel"] for row in table.rows[1:]] == [1.0, 1.5]
    table.land({"crew": 5})
    table.land({"crew": 5.5})
    assert table.dead[1:] == ["field crew: wanted long, found number 5.5"]


def test_null_only_then_typed() -> None:
    """Goal: null tells no type, so there is no column until a value comes; then the earlier rows are null, rightly.
    What is left out meanwhile is named."""
    table = Table()
    table.land({"id": 1, "gate": None}, {"id": 2, "stops": [], "note": {}})
    assert to_ddl(table.schema) == to_ddl(Table().schema)
    assert table.untyped == ["gate", "stops", "note"]
    table.land({"id": 3, "gate": "C7", "stops": [None, {"at": "IAH", "x": None}]})
    assert to_ddl(table.schema).endswith("gate STRING, stops ARRAY<STRUCT<at: STRING>>")
    table.land({"id": 4, "stops": []})
    assert [row.get("stops") for row in table.rows] == [None, None, [None, {"at": "IAH"}], []]
    assert table.dead == []


def test_a_nested_field_added() -> None:
    """Goal: structs grow inside columns, lists and maps. Method: three levels, two records with one field each."""
    table = Table("id BIGINT, w STRUCT<lat: DOUBLE>, l ARRAY<STRUCT<a: BIGINT>>, m MAP<STRING, STRUCT<a: BIGINT>>")
    table.land({"w": {"lat": 1, "lon": 2.5}, "m": {"k": {"b": "x"}}}, {"w": {"alt": 3}, "l": [{"a": 1}, {"b": True}]})
    assert to_ddl(table.schema) == (
        "id BIGINT, w STRUCT<lat: DOUBLE, lon: DOUBLE, alt: BIGINT>, l ARRAY<STRUCT<a: BIGINT, b: BOOLEAN>>, "
        "m MAP<STRING, STRUCT<a: BIGINT, b: STRING>>"
    )
    assert table.rows[0]["w"] == {"lat": 1.0, "lon": 2.5, "alt": None}
    assert table.rows[1]["l"] == [{"a": 1, "b": None}, {"a": None, "b": True}]
    quarantine = Table("w STRUCT<lat: DOUBLE>", evolution="quarantine")
    quarantine.land({"w": {"lon": 1}})
    assert quarantine.dead == ["unknown field w.lon"]


def test_a_list_becomes_a_scalar() -> None:
    """Goal: neither is the other. Method: both ways, known and new."""
    table = Table("tags ARRAY<STRING>, one STRING")
    table.land({"tags": "a"}, {"one": ["a"]}, {"tags": ["a"], "one": "a"})
    assert table.dead == ["field tags: wanted array, found string", "field one: wanted string, found array"]
    table.land({"new": [1]}, {"new": 1})
    assert table.dead[2:] == ["field new: wanted array, found number 1"]


def test_half_of_the_producers_on_the_old_schema() -> None:
    """Goal: both halves land in one table, whatever the order. Method: alternating records, both orders of arrival."""
    new, old = {"id": 1, "gate": "C7", "w": {"lat": 1.5}}, {"id": 2, "carrier": "UA"}
    for records in ([new, old] * 400, [old, new] * 400):
        table = Table()
        table.land(*records)
        assert to_ddl(table.schema) == f"{FLIGHT}, gate STRING, w STRUCT<lat: DOUBLE>"
        assert [row["id"] for row in table.rows] == [record["id"] for record in records]
        assert sum(row["gate"] == "C7" for row in table.rows) == 400


def test_restart_with_the_old_schema_given_again() -> None:
    """Goal: what the table has is known, though the definition has it not. Method: add, restart in both modes, land the
    new field again: no second column, no dead letter, no null."""
    table = Table()
    table.land({"id": 1, "gate": "C7"})
    table.restart()
    before = table.schema
    decoded = table.land({"id": 2, "gate": "C8"})
    assert (table.schema, decoded.rows.column("gate").to_pylist()) == (before, ["C8"])
    made = make_decoder("json", {"schema": FLIGHT, "evolution": "quarantine"}).under(before)
    assert made.decode(pa.array([b'{"id": 3, "gate": "C9"}'])).rows.column("gate").to_pylist() == ["C9"]


def test_conflicting_types_of_a_new_field_the_first_wins() -> None:
    """Goal: one column, one type, by order. A record that is refused adds no column, of whatever else it has."""
    table = Table()
    table.land({"new": "x"}, {"new": 1, "other": 2}, {"new": {"deep": 1}}, {"new": "y"})
    assert to_ddl(table.schema) == f"{FLIGHT}, new STRING"
    assert [row["new"] for row in table.rows] == ["x", "y"]
    assert len(table.dead) == 2


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"_offset": 1}, "field _offset: unknown field, and the landing and Delta have a column _offset of their own"),
        ({"_Key": 1}, "have a column _key"),
        ({"a b": 1}, "field a b: unknown field, and Delta refuses"),
        ({"": 1}, "a name has 1 to 255 characters"),
        ({"n" * 256: 1}, "a name has 1 to 255 characters"),
        ({"x": {"a=b": 1}}, "field x.a=b: unknown field, and Delta refuses"),
        ({"x": {"a": 1, "A": 2}}, "field x: fields 'a' and 'A' are one name to Spark"),
        ({"x": 2**63}, "field x: unknown field, and its number is beyond long"),
        ({"x": [1, "a"]}, "field x: unknown field, string here and long before"),
        ({"x": [{"a": 1}, {"a": "b"}]}, "field x.a: unknown field, string here and long before"),
        ({f"c{number}": 1 for number in range(2001)}, "with its new fields the schema has 2005 fields"),
        ({"id": "bad", "x": 1}, "field id: wanted long, found string"),
    ],
)
def test_a_new_field_that_no_table_can_have_is_quarantined(record: dict[str, Any], words: str) -> None:
    """Goal: data cannot break the table's schema. Method: each beside a good record, which lands."""
    table = Table()
    table.land({"id": 1, "fine": True}, record)
    assert table.schema.names == ["id", "carrier", "delay", "fine"]
    assert [row["id"] for row in table.rows] == [1]
    assert words in table.dead[0]


def test_deep_new_fields_are_refused_before_a_table_is_widened_with_them() -> None:
    """Goal: nesting is bounded. Method: an object of 40 levels, which the parser takes."""
    deep: dict[str, Any] = {"x": 1}
    for _ in range(40):
        deep = {"x": deep}
    table = Table()
    table.land(deep)
    assert table.schema == Table().schema
    assert "nested deeper than 32" in table.dead[0]


def test_names_that_differ_in_case_between_records() -> None:
    """Goal: one column for what Spark takes for one name. Method: the first spelling wins, the other is quarantined, in
    this batch and in the next."""
    table = Table()
    table.land({"Gate": "a"}, {"gate": "b"})
    table.land({"gate": "c"})
    assert table.schema.names[-1] == "Gate"
    assert [row["Gate"] for row in table.rows] == ["a"]
    assert table.dead == ["field gate: unknown field, one name with Gate to Spark"] * 2
