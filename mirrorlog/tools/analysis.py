"""`mqtool analysis`: measure a landed queue by its Delta table.

A thin face of `python -m mirrorlog.spark.analysis`.
"""

from __future__ import annotations

from typing import Final

import typer

from mirrorlog.tools.spark_job import SparkJob, become

JOB: Final = SparkJob("mirrorlog.spark.analysis", what="an analysis", usage="JOB --table TABLE [OPTIONS]")


def analysis(context: typer.Context) -> None:
    """Measure a landed queue: throughput, lag, redeliveries, latency; a table, or files and a picture with --out.

    It asks the table and no node. It needs Spark and Java (pip install mirrorlog[spark]).

    Example: mqtool analysis latency --table /lake/flights --out report
    """
    become(context, JOB)
