"""What a process that runs tasks has to load: nothing of the client where records come from files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from mirrorlog.commitlog.format.body import Record
from mirrorlog.spark.landing.dead_letters import DeadLettersOf
from mirrorlog.spark.landing.tasks import TaskWork, write_range
from mirrorlog.spark.landing.write.files import FileFormat
from mirrorlog.spark.options import parse_options
from mirrorlog.spark.source import QueueSource, spark_schema
from tests.spark.offline_logs import StoryLog

RECORDS = 7

WORKER = """
import pickle, sys
task = pickle.loads(sys.stdin.buffer.read())
rows = task()
print(rows, sum(name.partition(".")[2].startswith("client") for name in sys.modules if name.startswith("mirrorlog.")))
"""


def in_a_process(task: object) -> tuple[int, int]:
    """What the task gives, and how many modules of the client were loaded for it."""
    given = cloudpickle.dumps(task)
    done = subprocess.run([sys.executable, "-c", WORKER], input=given, capture_output=True, check=True)
    rows, modules = done.stdout.split()
    return int(rows), int(modules)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    log = StoryLog(tmp_path / "log")
    log.publish(1, [Record(b"value %d" % number) for number in range(RECORDS)])
    log.close()
    return tmp_path / "log"


def test_a_task_that_reads_files_loads_no_client(archive: Path) -> None:
    """Goal: what a worker loads it pays for in each of its processes. A task as Spark sends it, in a process of its
    own: it was 51 modules."""
    options = {"path": str(archive), "subscribe": "q1"}
    reader = QueueSource(options).reader(spark_schema())
    (partition,) = reader.partitions()
    assert in_a_process(lambda: sum(rows.num_rows for rows in reader.read(partition))) == (RECORDS, 0)


def test_a_landings_task_over_files_loads_no_client(archive: Path, tmp_path: Path) -> None:
    """Goal: as above, of a landing. A raw one."""
    options = parse_options({"path": str(archive), "subscribe": "q1"})
    (partition,) = QueueSource({"path": str(archive), "subscribe": "q1"}).reader(spark_schema()).partitions()
    table = str(tmp_path / "table")
    work = TaskWork((partition.wanted,), options, FileFormat(table), DeadLettersOf(table, {}))  # type: ignore[attr-defined]
    assert in_a_process(lambda: write_range(0, work).records) == (RECORDS, 0)
