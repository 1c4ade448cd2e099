"""Jobs log in where nodes have users: planning, reading and writing in tasks; and nobody sees the password."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirrorlog.client import Client
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadInput, LoginFailed
from mirrorlog.spark.access import NO_ACCESS, PASSWORD_VARIABLE, USER_VARIABLE, Access, login_of
from mirrorlog.spark.errors import BadLanding, BadOption, from_spark
from mirrorlog.spark.land import land
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.options import parse_options
from mirrorlog.spark.writing.writer import parse_writer_options
from mirrorlog.testing import Cluster
from mirrorlog.wire.auth.passwords import hashed
from tests.spark.queues import publish

PASSWORD = "correct-horse"
LEAST = {"servers": "a:1", "subscribe": "q"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """A node with a queue of 300 records and users."""
    with Cluster(1) as cluster:
        publish(cluster.servers, "guarded", [Record(b"%d" % number) for number in range(300)])
        asyncio.run(_give_users(cluster))
        yield cluster


async def _give_users(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        await client.admin.declare("written")
        await client.admin.topology.set_user("admin", password_hash=hashed("a"), tags=["administrator"])
    async with Client(*cluster.servers, user="admin", password="a") as client:
        await client.admin.topology.set_user("spark", password_hash=hashed(PASSWORD))
        await client.admin.topology.set_permissions("spark", configure="", write="^written$", read=".*")


@pytest.mark.long
def test_a_job_logs_in_on_the_driver_and_in_its_tasks_and_no_plan_shows_the_password(
    spark: SparkSession, guarded: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Goal: options are all that a job needs. Method: read in three tasks, write, read that, and land; look at the
    plans, and at what was printed."""
    options = {"servers": guarded.servers[0], "user": "spark", "password": PASSWORD}
    frame = spark.read.format("mirrorlog").options(subscribe="guarded", minPartitions="3", **options).load()
    assert frame.count() == 300
    frame.explain(True)
    plans = str(frame._jdf.queryExecution()) + capfd.readouterr().out  # type: ignore[operator]
    assert "MirrorlogDataSource" in plans or "mirrorlog" in plans.lower()
    assert PASSWORD not in plans
    frame.select("value").write.format("mirrorlog").options(queue="written", **options).mode("append").save()
    written = spark.read.format("mirrorlog").options(subscribe="written", **options).load()
    assert written.count() == 300
    access = Access(user="spark", password=PASSWORD)
    assert land(spark, guarded.servers, "guarded", tmp_path / "table", access=access).rows == 300
    assert PASSWORD not in "".join(capfd.readouterr())


@pytest.mark.long
def test_without_a_login_and_with_a_wrong_one_the_error_says_so(spark: SparkSession, guarded: Cluster) -> None:
    for login in ({}, {"user": "spark", "password": "wrong"}):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's classes; what counts is what is inside
            spark.read.format("mirrorlog").options(
                servers=guarded.servers[0], subscribe="guarded", **login
            ).load().collect()
        assert isinstance(from_spark(raised.value), LoginFailed)
        assert "wrong" not in str(raised.value)


def test_a_password_travels_to_tasks_and_into_no_text() -> None:
    """Goal: logs and errors show no secret. Method: every text that is made of one, and the way to a task and back."""
    access = Access(user="u", password=PASSWORD)
    options = parse_options({**LEAST, "user": "u", "password": PASSWORD})
    assert options.access == access
    assert pickle.loads(pickle.dumps(options)) == options
    assert all(PASSWORD not in text for text in (repr(options), str(access), repr(access), str(access.options())))
    assert access.options() == {"user": "u"}
    writer = parse_writer_options({"servers": "a:1", "queue": "q", "user": "u", "password": PASSWORD})
    assert writer.access == access
    assert PASSWORD not in repr(writer)


def test_the_environment_has_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given, the environment's, none; a password alone, a user alone, and log directories, which have no users."""
    monkeypatch.delenv(USER_VARIABLE, raising=False)
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    assert parse_options(LEAST).access == NO_ACCESS
    with pytest.raises(BadOption, match="'password' is given without option 'user'"):
        parse_options({**LEAST, "password": "p"})
    with pytest.raises(BadOption, match=f"no password of user 'u'; set the variable {PASSWORD_VARIABLE}"):
        parse_options({**LEAST, "user": "u"})
    with pytest.raises(BadInput, match="no password"):
        login_of("u", None, "key")
    monkeypatch.setenv(PASSWORD_VARIABLE, "env's")
    assert parse_options(LEAST).access == NO_ACCESS
    assert parse_options({**LEAST, "user": "u"}).access == Access(user="u", password="env's")
    monkeypatch.setenv(USER_VARIABLE, "env")
    assert parse_options(LEAST).access == Access(user="env", password="env's")
    assert parse_options({**LEAST, "user": "u", "password": ""}).access == Access(user="u", password="")
    assert parse_options({"path": "/d", "subscribe": "q"}).access == NO_ACCESS
    with pytest.raises(BadOption, match="for reading from nodes"):
        parse_options({"path": "/d", "subscribe": "q", "user": "u"})


def test_a_landing_names_its_user_and_never_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: definitions lie in repositories. Method: the key `user` with the password of the environment, and without;
    a key `password` is none."""
    given = {"queue": ["q"], "table": "/t", "servers": ["a:1"], "user": "u"}
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    with pytest.raises(BadLanding, match="key 'user': no password of user 'u'"):
        landing(given)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    made = landing(given)
    assert made.access == Access(user="u", password=PASSWORD)
    assert PASSWORD not in repr(made)
    with pytest.raises(BadLanding, match="key 'password' is not known"):
        landing({**given, "password": "p"})
