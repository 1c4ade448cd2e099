"""Jobs reach nodes that speak TLS: planning on the driver, reading in the workers, landing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import ConfigError, ConnectionLost
from mirrorlog.spark.access import Access
from mirrorlog.spark.errors import from_spark
from mirrorlog.spark.land import land
from mirrorlog.testing import Cluster
from tests.spark.queues import publish


@pytest.fixture(scope="module")
def secured() -> Iterator[Cluster]:
    """A node that asks for certificates."""
    with Cluster(1, tls="mutual") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def files(secured: Cluster) -> Access:
    certificates = secured.certificates
    return Access(*map(str, (certificates.ca, certificates.certificate, certificates.key)))


@pytest.mark.long
def test_a_read_and_a_landing_over_tls_have_every_record(
    spark: SparkSession, secured: Cluster, files: Access, queue: str, tmp_path: Path
) -> None:
    """Goal: files are all that a job needs. Method: publish, read in three tasks by the options, and land."""
    values = [b"%d" % number for number in range(300)]
    publish(secured.servers, queue, [Record(value) for value in values], tls=secured.tls)
    frame = (
        spark.read.format("mirrorlog")
        .options(servers=secured.servers[0], subscribe=queue, minPartitions="3", **files.options())
        .load()
    )
    assert [bytes(row.value) for row in frame.orderBy("offset").collect()] == values
    assert land(spark, secured.servers, queue, tmp_path / "table", access=files).rows == 300


def test_without_the_files_the_error_says_so(
    spark: SparkSession, secured: Cluster, files: Access, queue: str, tmp_path: Path
) -> None:
    """Goal: an error to act on. Method: no options at all, and a file that is not there."""
    with pytest.raises(ConnectionLost, match="does that port want TLS"):
        land(spark, secured.servers, queue, tmp_path / "table")
    options = {**files.options(), "tls_ca": "/nowhere/ca.pem"}
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's classes; what counts is what is inside
        spark.read.format("mirrorlog").options(servers=secured.servers[0], subscribe=queue, **options).load().collect()
    error = from_spark(raised.value)
    assert isinstance(error, ConfigError)
    assert "/nowhere/ca.pem: No such file" in error.message
