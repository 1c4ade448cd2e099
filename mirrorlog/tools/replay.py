"""`mqtool replay`: publish records of a landed Delta table to a queue again.

A thin face of `python -m mirrorlog.spark.replay`.
"""

from __future__ import annotations

from typing import Final

import typer

from mirrorlog.tools.spark_job import SparkJob, become

JOB: Final = SparkJob("mirrorlog.spark.replay", what="a replay", usage="--table TABLE --to-queue NAME [OPTIONS]")


def replay(context: typer.Context) -> None:
    """Publish records of a landed table, or of one of dead letters, to a queue again; nothing is published twice.

    It needs Spark and Java (pip install mirrorlog[spark]).

    Example: mqtool replay --table /lake/flights --to-queue again --dry-run
    """
    become(context, JOB)
