"""One Spark session for all of Spark's tests, and nodes with a queue on them."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from mirrorlog.spark.session import local_session
from mirrorlog.testing import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the session is marked `spark`; the first of them waits for a JVM and a cold Delta."""
    for item in items:
        if "jvm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.process)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def jvm() -> Iterator[None]:
    """A JVM not made for long runs is up a third sooner: that of the session and of the programs that tests start."""
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f'--conf "spark.driver.defaultJavaOptions={options}" pyspark-shell')
        yield


@pytest.fixture(scope="session")
def spark(jvm: None) -> Iterator[SparkSession]:
    """The session; it starts in 10 s and takes 0.9 GiB, so there is one."""
    session = local_session("mirrorlog tests", **{"spark.master": "local[2]"})
    # Tests of other files send this process SIGINT. Spark's handler would ask the JVM to cancel jobs then, from within
    # whatever it interrupts: the session is of no use after that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def servers() -> Iterator[list[str]]:
    """The addresses of a running node with one copy. Tests share it: each uses queues of its own."""
    with Cluster(1) as cluster:
        yield cluster.servers


@pytest.fixture
def queue() -> str:
    """A queue name that nobody else uses."""
    return f"q-{uuid.uuid4().hex}"
