"""A Spark master with two worker processes: reading and landing where the tasks are in other processes than the driver.

The workers get mirrorlog as a zip by `--py-files`, as the manual says, and Delta's jars by `--jars`. Everything is a
process of its own; the job says where its tasks ran and from where they had mirrorlog.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable

from mirrorlog.commitlog.format.body import Record
from mirrorlog.spark import land
from mirrorlog.spark.jars import default_directory, delta_jars, java_home_or_raise
from mirrorlog.spark.py_files import write_py_files
from tests.spark.queues import publish

COUNT = 5000
LANDING = Path(land.__file__)
HOST = "127.0.0.1"

JOB = """
import json, os, sys
from mirrorlog.spark.session import any_session

def where(_):
    import mirrorlog
    yield os.getpid(), mirrorlog.__file__

servers, queue = sys.argv[1:]
spark = any_session("two workers")
read = spark.read.format("mirrorlog").options(servers=servers, subscribe=queue, minPartitions="8").load()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
tasks = spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect()
print(json.dumps({"read": read.count(), "executors": executors, "tasks": tasks}))
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_queue_is_read_and_landed_by_the_workers_of_a_standalone_master(
    jvm: None, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """The landing itself and a job are submitted. Two executors, mirrorlog from the zip in each task, nothing twice."""
    publish(servers, queue, [Record(b"value %d" % number) for number in range(COUNT)])
    zipped, job, table = tmp_path / "mirrorlog.zip", tmp_path / "job.py", tmp_path / "table"
    write_py_files(zipped)
    job.write_text(JOB)

    with standalone_master(tmp_path) as master:
        where = ["--servers", ",".join(servers), "--to", str(table), "--json"]
        step = submit(master, tmp_path, ["--py-files", str(zipped), str(LANDING), queue, *where])
        told = submit(master, tmp_path, ["--py-files", str(zipped), str(job), ",".join(servers), queue])

    assert (step["rows"], told["read"], told["executors"]) == (COUNT, COUNT, 2)
    assert all("mirrorlog.zip" in file for _, file in told["tasks"])
    landed = DeltaTable(str(table)).to_pyarrow_table(columns=["offset"])
    assert sorted(landed["offset"].to_pylist()) == list(range(COUNT))


def submit(master: str, directory: Path, words: list[str]) -> dict[str, Any]:
    """The JSON that it printed last. Fails with what spark-submit said."""
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.executor.instances": "2",
        "spark.driver.host": HOST,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }
    command = [program("spark-submit"), "--master", master]
    command += ["--jars", ",".join(map(str, delta_jars(default_directory())))]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    run = subprocess.run(
        [*command, *words], env=environment(), cwd=directory, capture_output=True, text=True, timeout=240, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    assert lines, f"spark-submit ended with {run.returncode}:\n{run.stderr[-4000:]}"
    return dict(json.loads(lines[-1]))


@contextmanager
def standalone_master(directory: Path) -> Iterator[str]:
    """A master and two workers of one core each; the master's address."""
    with ExitStack() as stack:
        where = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        log = stack.enter_context(daemon(directory, "master", ["org.apache.spark.deploy.master.Master", *where]))
        address = first_match(log, rf"spark://{re.escape(HOST)}:\d+")
        for number in (1, 2):
            worker = ["org.apache.spark.deploy.worker.Worker", *where, "--cores", "1", "--memory", "1g"]
            worker += ["--work-dir", str(directory / f"work-{number}"), address]
            log = stack.enter_context(daemon(directory, f"worker-{number}", worker))
            first_match(log, "Successfully registered with master")
        yield address


@contextmanager
def daemon(directory: Path, name: str, words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """One of Spark's daemons, in the foreground of its own process, killed at the end."""
    with subprocess.Popen(
        [program("spark-class"), *words],
        env=environment(),
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_match(process: subprocess.Popen[str], pattern: str) -> str:
    """What fits in its log, which is read until then; the test's own timeout ends a wait for nothing."""
    assert process.stderr is not None
    read = []
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found[0]
        read.append(line)
    raise AssertionError(f"it ended:\n{''.join(read[-20:])}")


def program(name: str) -> str:
    """One of the scripts that pyspark brings."""
    return str(Path(pyspark.__file__).parent / "bin" / name)


def environment() -> dict[str, str]:
    """Without what belongs to the session of the other tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    return {
        **kept,
        "JAVA_HOME": str(java_home_or_raise()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
