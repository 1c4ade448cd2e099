"""A session without the Delta that a landing needs is told so, in one line, by what is needed. No JVM is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import PySparkAttributeError

from mirrorlog.errors import MirrorlogError, MissingDependency
from mirrorlog.spark.errors import SparkFailed
from mirrorlog.spark.jars import DELTA_VERSION
from mirrorlog.spark.landing.commit.delta_log import TableState, commit, table_state


class NoClasses:
    """The JVM's answer to any name is that it is a package: so it is for a class that it does not have."""

    def send_command(self, command: str) -> str:
        return "yp"


class Connect:
    """As a session of Spark Connect."""

    @property
    def _jvm(self) -> NoReturn:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "_jvm"})


def without_classes() -> Any:
    return SimpleNamespace(_jvm=SimpleNamespace(org=JavaPackage("org", NoClasses(), "j")), _jsparkSession=None)


def other_version(message: str) -> Any:
    """A session in whose Delta the first call that is made ends with this error of py4j's."""

    def refuse(session: object, table: str) -> NoReturn:
        raise Py4JError(message)

    delta = SimpleNamespace(DeltaLog=SimpleNamespace(forTable=refuse))
    org = SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=SimpleNamespace(delta=delta))))
    return SimpleNamespace(_jvm=SimpleNamespace(org=org), _jsparkSession=None)


SESSIONS = {
    "Spark Connect": Connect(),
    "no JVM": SimpleNamespace(_jvm=None),
    "no Delta": without_classes(),
    "another Delta": other_version(
        "Trace: py4j.Py4JException: Method forTable([class java.lang.String]) does not exist"
    ),
}


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_a_session_without_the_needed_delta_is_told_what_is_needed(session: Any) -> None:
    """Goal: no traceback out of py4j. Read a table and commit to it, in sessions of every such kind."""
    with pytest.raises(MissingDependency) as read:
        table_state(session, "/t", ["app"])
    with pytest.raises(MissingDependency) as written:
        commit(session, "/t", seen=TableState(None, {"app": None}), sets={"app": 1}, note={})
    for refused in (read.value, written.value):
        assert "\n" not in refused.message
        assert f"jars of Delta {DELTA_VERSION}" in refused.message
        assert refused.exit_code == 11


def test_a_session_that_has_ended_is_no_missing_dependency() -> None:
    """Goal: a service must know that its JVM is gone. An error of py4j's that sounds alike: an object that is not there
    any more."""
    gone = other_version("Target Object ID does not exist for this gateway :o42")
    with pytest.raises(MirrorlogError) as found:
        table_state(gone, "/t", [])
    assert type(found.value) is SparkFailed
