"""What a worker of Spark's loads is passed over by the collections between its tasks."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from mirrorlog.spark.reading.rows import spare_modules


def _walked(_: Iterator[int]) -> Iterator[tuple[int, int, int]]:
    """(process, objects set aside, after asking again)."""
    spare_modules()
    first, kept = gc.get_freeze_count(), [[i] for i in range(100)]
    spare_modules()
    yield os.getpid(), first, gc.get_freeze_count() - len(kept)


def test_a_worker_sets_its_modules_aside_once(spark: SparkSession) -> None:
    """Goal: the next task does not wait for a walk over all modules, and no task's own objects are kept for good.
    Method: tasks in reused workers count what is set aside; a second call with new objects adds none of them."""
    found: list[Any] = spark.sparkContext.parallelize(range(4), 4).mapPartitions(_walked).collect()
    assert all(first > 10_000 and again < first for _, first, again in found), found


def test_a_process_that_runs_no_task_is_left_alone() -> None:
    """Goal: a program that calls a reader by itself keeps its collections as they are. Here is no task."""
    before = gc.get_freeze_count()
    spare_modules()
    assert gc.get_freeze_count() == before
