"""`mqtool upkeep`: tidy a landed Delta table by hand.

A thin face of `python -m mirrorlog.spark.landing.upkeep`.
"""

from __future__ import annotations

from typing import Final

import typer

from mirrorlog.tools.spark_job import SparkJob, become

JOB: Final = SparkJob("mirrorlog.spark.landing.upkeep", what="upkeep", usage="--table TABLE [OPTIONS]")


def upkeep(context: typer.Context) -> None:
    """Tidy a landed table, also while landings run: join small files, write a checkpoint, remove old files.

    It asks the table and no node. It needs Spark and Java (pip install mirrorlog[spark]).

    Example: mqtool upkeep --table /lake/flights --compact --checkpoint
    """
    become(context, JOB)
