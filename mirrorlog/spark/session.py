"""A Spark session that can read queues and write Delta tables, on this machine or under spark-submit."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from mirrorlog.spark.command_line import OnStep, status
from mirrorlog.spark.errors import translated
from mirrorlog.spark.jars import default_directory, delta_jars, java_home_or_raise
from mirrorlog.spark.source import register

_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_SMALL: Final = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Of Spark's own catalog, which nothing here uses; else it may make a folder in the working directory.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "mirrorlog-spark-warehouse"),
}
_SET_BY_SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
UNIX_SOCKETS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
"""Setting for jobs that read much: between the JVM and its Python workers bytes cost a quarter less than over TCP. Not
the default: Spark 4.2 prints a traceback (BrokenPipeError) whenever it ends a worker that was idle for a minute."""

_APP_NAME_MAX: Final = 200
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


def local_session(app_name: str, jars_dir: Path | None = None, **conf: str) -> SparkSession:
    """The session of this process, made when there is none: local, small, quiet, with Delta and the mirrorlog format.

    `jars_dir` holds Delta's jars (by default `jars.default_directory()`). `conf` goes above all settings made here;
    names with dots are given as `**{"spark.driver.memory": "2g"}`. Raises MissingDependency without Java or a jar.
    """
    # Comes from an import inside PySpark; nothing here uses pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    settings = {**_DELTA, **_SMALL, **_java_settings(jars_dir or default_directory()), **conf}
    return _build(app_name, settings)


def any_session(app_name: str) -> SparkSession:
    """Under spark-submit its session, with Delta switched on; else a local one. Raises as `local_session`."""
    # Then the JVM is there already, with the settings that were given to it.
    return _build(app_name, _DELTA) if _SET_BY_SPARK_SUBMIT in os.environ else local_session(app_name)


@contextmanager
def spark_session(app_name: str) -> Iterator[tuple[SparkSession, OnStep]]:
    """A session that ends with the block, and how to say what is under way; the first is that Spark starts.

    Raises MissingDependency, SparkFailed; what Spark raises in the block becomes one of ours.
    """
    with status("starting Spark") as on_step, started_spark(app_name) as spark:
        yield spark, on_step


@contextmanager
def started_spark(app_name: str) -> Iterator[SparkSession]:
    """As `spark_session`, for those who show by themselves what is under way."""
    with translated():
        with _ctrl_c_later():
            spark = any_session(app_name[:_APP_NAME_MAX])
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Ctrl-C in the block raises KeyboardInterrupt at its end: a JVM that loses its driver while it starts lives on.

    Behind it, Python's own handler counts: Spark's asks the JVM to cancel jobs, over the connection that was just
    interrupted, and the end of the session cancels them too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = threading.Event()
    signal.signal(signal.SIGINT, lambda number, frame: asked.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked.is_set():
        raise KeyboardInterrupt


def _build(app_name: str, settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.Builder().appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _java_settings(jars_dir: Path) -> dict[str, str]:
    """Settings that only count before the JVM starts; its environment is prepared too."""
    os.environ["JAVA_HOME"] = str(java_home_or_raise())
    # Otherwise workers of a virtual environment that is not activated run the system's Python.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {
        "spark.jars": ",".join(map(str, delta_jars(jars_dir))),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
    }
