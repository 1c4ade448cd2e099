"""`mqtool land`: append queues' confirmed records to Delta tables.

A thin face of `python -m mirrorlog.spark.land`.
"""

from __future__ import annotations

from typing import Final

import typer

from mirrorlog.tools.spark_job import SparkJob, become

JOB: Final = SparkJob("mirrorlog.spark.land", what="landing", usage="[QUEUE] [OPTIONS]")


def land(context: typer.Context) -> None:
    """Append a queue's confirmed records to a Delta table, each exactly once; the table tells where to go on.

    It needs Spark and Java (pip install mirrorlog[spark]). With --config a file says which queues go where and from
    which servers: --servers and TLS options, also those of mqtool itself, are refused then, and their variables do not
    count.

    Example: mqtool land flights --to delta:///lake/flights

    Example: mqtool land orders --to /lake/orders --follow --mode raw

    Example: mqtool land --config landings.toml
    """
    become(context, JOB)
