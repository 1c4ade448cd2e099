"""The session: what it needs is asked for in one line, and its workers run where the driver runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirrorlog.errors import MissingDependency
from mirrorlog.spark.session import local_session


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Goal: no stack of Java errors. A JAVA_HOME without a Java."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"Java 17 is needed: install") as missing:
        local_session("never")
    assert "\n" not in missing.value.message


def test_without_jars_the_error_says_how_to_get_them(tmp_path: Path) -> None:
    """Goal: the same for the jars. A directory without any."""
    with pytest.raises(MissingDependency, match="make jars") as missing:
        local_session("never", tmp_path)
    assert "\n" not in missing.value.message


def test_workers_run_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    """Goal: a virtual environment need not be activated. Ask a worker who it is."""
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect() == [sys.executable]
