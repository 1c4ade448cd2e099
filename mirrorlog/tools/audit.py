"""`mqtool audit`: compare all copies of a queue by their bytes.

A thin face of `python -m mirrorlog.spark.audit`.
"""

from __future__ import annotations

from typing import Final

import typer

from mirrorlog.tools.spark_job import SparkJob, become

JOB: Final = SparkJob("mirrorlog.spark.audit", what="an audit", usage="QUEUE [OPTIONS]")


def audit(context: typer.Context) -> None:
    """Compare all copies of a queue by the bytes of their batches; print where they differ or are damaged.

    Every node's copy is read whole. Exit code 15 when one differs or is damaged, 9 when one could not be read. It needs
    the Python package of Spark, not Java (pip install mirrorlog[spark]).

    Example: mqtool audit flights
    """
    become(context, JOB)
