"""A task's files: complete under their names or not there, bounded in size and number, with the right rows."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrorlog.spark.errors import BadLanding
from mirrorlog.spark.landing.write import files, storage
from mirrorlog.spark.landing.write.files import FileFormat, FileWriter
from mirrorlog.spark.landing.write.layout import parse_layout
from mirrorlog.spark.landing.write.storage import Storage, table_uri

KIB = 1024


def rows(first: int, count: int, *, value_bytes: int = 100, days: int = 1) -> pa.RecordBatch:
    offsets = np.arange(first, first + count)
    times = offsets % days * 86_400_000_000
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k%d" % n for n in offsets], pa.binary()),
            "value": pa.array([b"x" * value_bytes] * count, pa.binary()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(times).cast(pa.timestamp("us", "UTC")),
        }
    )


def write(table: Path, batches: list[pa.RecordBatch], **form: Any) -> list[files.DataFile]:
    with FileWriter(FileFormat(str(table), **form), 3) as writer:
        for batch in batches:
            writer.write(batch)
        return writer.finish()


def offsets_of(table: Path, found: list[files.DataFile]) -> list[int]:
    return [n for file in found for n in pq.ParquetFile(table / file.path).read(["offset"])["offset"].to_pylist()]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "lz4"])
def test_what_is_written_is_what_is_read_and_what_the_file_says_of_itself(tmp_path: Path, compression: str) -> None:
    (file,) = write(tmp_path, [rows(0, 50), rows(50, 50)], compression=compression)
    assert offsets_of(tmp_path, [file]) == list(range(100))
    path = tmp_path / file.path
    assert (path.stat().st_size, path.stat().st_mtime_ns // 1_000_000) == (file.size, file.modified_ms)
    assert path.name.startswith("part-00003-")
    stats = json.loads(file.stats)
    assert (file.records, stats["numRecords"]) == (100, 100)
    assert (stats["minValues"]["offset"], stats["maxValues"]["offset"]) == (0, 99)
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    assert not column.is_stats_set, "values have no bounds"
    assert "PLAIN_DICTIONARY" not in column.encodings
    assert "RLE_DICTIONARY" not in column.encodings


def test_a_file_is_closed_at_its_size_and_the_next_one_begins(tmp_path: Path) -> None:
    batches = [rows(n * 10, 10, value_bytes=10 * KIB) for n in range(30)]
    found = write(tmp_path, batches, target_file_bytes=1024 * KIB, compression="none")
    assert len(found) == 3
    assert all(file.size < 1300 * KIB for file in found)
    assert offsets_of(tmp_path, found) == list(range(300))


def test_each_partition_has_a_folder_and_files_that_do_not_hold_its_column(tmp_path: Path) -> None:
    found = write(tmp_path, [rows(0, 30, days=3)], layout=parse_layout(["date(timestamp)"]))
    assert sorted(file.partition_values["date"] or "" for file in found) == ["1970-01-01", "1970-01-02", "1970-01-03"]
    for file in found:
        assert file.path.startswith(f"date={file.partition_values['date']}/")
        assert "date" not in pq.ParquetFile(tmp_path / file.path).schema_arrow.names
    assert sorted(offsets_of(tmp_path, found)) == list(range(30))


def test_many_partitions_do_not_keep_many_files_or_bytes_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: memory and file handles are bounded. 40 days in turn, with room for 8 files and 200 KiB of rows."""
    monkeypatch.setattr(files, "_FILES_MAX", 8)
    monkeypatch.setattr(files, "_HELD_BYTES_MAX", 200 * KIB)
    open_max = held_max = 0
    with FileWriter(FileFormat(str(tmp_path), layout=parse_layout(["date(timestamp)"])), 0) as writer:
        for number in range(50):
            writer.write(rows(number * 40, 40, value_bytes=KIB, days=40))
            open_max = max(open_max, len(writer._open))
            held_max = max(held_max, writer._held)
        found = writer.finish()
    assert open_max <= 8
    assert held_max <= 200 * KIB
    assert sorted(offsets_of(tmp_path, found)) == list(range(2000))


def test_a_writer_that_does_not_finish_leaves_no_unfinished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_GROUP_BYTES", 1)
    with FileWriter(FileFormat(str(tmp_path)), 0) as writer:
        writer.write(rows(0, 10))
        assert [path.suffix for path in tmp_path.iterdir()] == [".unfinished"]
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_does_not_finish_leaves_no_full_file_either(tmp_path: Path) -> None:
    """Goal: a file that has reached its size and waits for the others is gone with them."""
    with FileWriter(FileFormat(str(tmp_path), target_file_bytes=64 * KIB, compression="none"), 0) as writer:
        for number in range(3):
            writer.write(rows(number * 10, 10, value_bytes=10 * KIB))
        assert [path.suffix for path in tmp_path.iterdir()] == [".unfinished"] * 3
    assert list(tmp_path.iterdir()) == []


def test_the_disk_works_while_a_task_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no task waits at its end for all that it wrote. Every byte of a file of four row groups is pushed once, in
    order, and all but the last row group before the end."""
    monkeypatch.setattr(files, "_GROUP_BYTES", 1)
    pushed: list[tuple[int, int]] = []
    monkeypatch.setattr(storage, "_push_file", lambda path, first, end: pushed.append((first, end)))
    with FileWriter(FileFormat(str(tmp_path)), 0) as writer:
        for number in range(4):
            writer.write(rows(number * 10, 10))
        before_the_end = list(pushed)
        (file,) = writer.finish()
    edges = [0, *(end for _, end in pushed)]
    assert pushed == list(itertools.pairwise(edges))
    assert edges[-1] == file.size
    assert len(before_the_end) == 4


def test_a_push_leaves_the_bytes_as_they_are(tmp_path: Path) -> None:
    file = Storage(str(tmp_path)).open("part.parquet")
    for number in range(3):
        file.stream.write(bytes([number]) * 5000)
        file.push()
    file.close()
    assert not (tmp_path / "part.parquet").exists()
    assert file.complete()[0] == 15_000
    assert (tmp_path / "part.parquet").read_bytes() == b"".join(bytes([number]) * 5000 for number in range(3))


def test_rows_whose_columns_are_in_chunks_are_written_in_their_order(tmp_path: Path) -> None:
    parts = [rows(first, 10) for first in range(0, 100, 10)]
    with FileWriter(FileFormat(str(tmp_path)), 0) as writer:
        writer.write_unsplit(pa.Table.from_batches(parts[:4]))
        writer.write_unsplit(pa.Table.from_batches(parts[4:]))
        (file,) = writer.finish()
    assert pq.read_table(tmp_path / file.path).equals(pa.Table.from_batches(parts))


def test_a_file_gets_its_name_when_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a commit never names what a power loss takes. Record the order of fsync and rename: the file, its name,
    its folder, and each folder above that is new."""
    done: list[str] = []
    names: dict[int, str] = {}
    real_open, real_sync, real_rename = os.open, os.fsync, Path.rename

    def opened(path: Any, flags: int, *rest: Any) -> int:
        handle = real_open(path, flags, *rest)
        names[handle] = Path(path).name
        return handle

    def synced(handle: int) -> None:
        done.append(f"sync {names[handle]}")
        real_sync(handle)

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"rename {target.name}")
        return real_rename(path, target)

    monkeypatch.setattr(storage.os, "open", opened)
    monkeypatch.setattr(storage.os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    file = Storage(str(tmp_path / "table")).open("date=1/part.parquet")
    file.stream.write(b"12345")
    assert not (tmp_path / "table/date=1/part.parquet").exists()
    assert file.complete()[0] == 5
    parts = [
        "sync part.parquet.unfinished",
        "rename part.parquet",
        "sync date=1",
        "sync table",
        f"sync {tmp_path.name}",
    ]
    assert done == parts


def test_nothing_read_is_no_file(tmp_path: Path) -> None:
    assert write(tmp_path / "t", []) == []
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/a/b", "/a/b"),
        ("delta:///a/b", "/a/b"),
        ("delta://s3://x/y", "s3a://x/y"),
        ("file:///a/b%20c", "/a/b c"),
        ("s3://x/y", "s3a://x/y"),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t"),
    ],
)
def test_a_table_is_named_as_spark_names_it(given: str, expected: str) -> None:
    assert table_uri(given) == expected


@pytest.mark.parametrize("given", ["", " ", "http://x/y", "delta://"])
def test_a_table_elsewhere_is_refused(given: str) -> None:
    with pytest.raises(BadLanding, match="'table'"):
        table_uri(given)
