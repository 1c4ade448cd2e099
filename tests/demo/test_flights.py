"""The demo's data: read by path, missing values as null, keys, headers and event times as said."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from zipfile import ZipFile

from demo.flights import as_records, data_file, read_rows, row_number

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour\n"
)
ROW = "2013,1,1,NA,1500,NA,NA,1825,NA,AA,1925,N3EVAA,LGA,MIA,NA,1096,15,0,2013-01-01T20:00:00Z\n"


def test_a_row_becomes_a_record(tmp_path: Path) -> None:
    """One row with missing values, through a file of the same shape as the package's."""
    file = tmp_path / "flights.csv.zip"
    with ZipFile(file, "w") as archive:
        archive.writestr("flights.csv", HEADER + ROW)
    (record,) = as_records(read_rows(file))
    value = json.loads(record.value or b"")
    assert value["dep_time"] is None
    assert value["distance"] == 1096
    assert record.key == b"AA1925"
    assert record.timestamp_us == 1_357_070_400_000_000
    assert row_number(record.headers) == 0


def test_the_installed_table_is_the_one_that_is_expected() -> None:
    """The first rows of the package's file, found without importing the package."""
    records = as_records(islice(read_rows(data_file()), 3))
    assert [record.key for record in records] == [b"UA1545", b"UA1714", b"AA1141"]
    assert [row_number(record.headers) for record in records] == [0, 1, 2]
