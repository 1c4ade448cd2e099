"""`mqtool reconcile`: compare a queue's log with the Delta table that it was landed in.

A thin face of `python -m mirrorlog.spark.reconcile`.
"""

from __future__ import annotations

from typing import Final

import typer

from mirrorlog.tools.spark_job import SparkJob, become

JOB: Final = SparkJob("mirrorlog.spark.reconcile", what="reconciling", usage="QUEUE --table TABLE [OPTIONS]")


def reconcile(context: typer.Context) -> None:
    """Compare a queue's log with its table: each record once, with the same content; print the ranges that differ.

    Exit code 15 when they differ. It needs Spark and Java (pip install mirrorlog[spark]).

    Example: mqtool reconcile flights --table /lake/flights
    """
    become(context, JOB)
