"""Reading and landing beside Parquet, as `make bench-spark` measures them, with very little data: that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.results import Results
from bench.workload import LIMIT, OWN

pytestmark = [pytest.mark.spark, pytest.mark.process]

ROOT = Path(__file__).parents[2]
RECORDS = 20_000
# One of each way to move rows: the rest differs from these in options alone.
CASES = {
    OWN: ["mirrorlog source to noop, 1024 B, random", "writeStream to Delta, 1024 B, text, snappy"],
    LIMIT: ["Python source that only hands over to noop, 1024 B, random", "Parquet to Delta, 1024 B, text, snappy"],
}


@pytest.mark.long
def test_a_short_run_lands_every_row_and_gives_the_figures_of_the_marks(tmp_path: Path) -> None:
    """Goal: what `make bench-spark` compares is measured, and a stream that lands nothing is no figure. Method: own and
    limiting ways without Kafka, in a process and a JVM of their own; what does not land whole is an error there."""
    out = tmp_path / "spark.json"
    cases = [case for group in CASES.values() for case in group]
    command = ["-m", "bench.spark", "--without-kafka", "--rounds", "1", "--records", str(RECORDS), "--out", str(out)]
    # A JVM not made for long runs is up a third sooner.
    submit = '--conf "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" pyspark-shell'
    done = subprocess.run(
        [sys.executable, *command, "--only", "|".join(f" {case}$" for case in cases)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": submit},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = Results.load(out)
    assert not results.errors()
    for group, wanted in CASES.items():
        found = {(row.summary.case, row.summary.name) for row in results.rows(group)}
        assert found == {(case, name) for case in wanted for name in ("rate", "throughput")}
        assert all(row.summary.minimum > 0 for row in results.rows(group))
