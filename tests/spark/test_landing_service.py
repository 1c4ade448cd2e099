"""The landing service: many landings side by side, each on time, none stopped by another, ended by a signal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mirrorlog.client import Client
from mirrorlog.errors import ConnectionLost, HoldTaken, MirrorlogError
from mirrorlog.spark.errors import SparkFailed
from mirrorlog.spark.landing.definition import Landing, landing
from mirrorlog.spark.landing.holds import NOBODY, Holds, is_gone, this_holder
from mirrorlog.spark.landing.positions import MissedRange
from mirrorlog.spark.landing.results import Observer, QueueStep, StepResult
from mirrorlog.spark.landing.runner import Runner, StepMoment
from mirrorlog.spark.landing.service.display import JsonLines, StepLines
from mirrorlog.spark.landing.service.schedule import Turn
from mirrorlog.spark.landing.service.service import Service
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.messages.queues import HoldInfo
from tests.spark.fake_log import FakeLog
from tests.spark.queues import publish
from tests.spark.test_land import Died, dying_at, landed_offsets, numbered

_CHILD_S = 240
_WAIT_S = 120


def made(servers: Sequence[str], queue: str, table: Path, **keys: Any) -> Landing:
    return landing({"queue": queue, "servers": list(servers), "table": str(table), "max_latency_s": 0.1, **keys})


def holds_of(servers: Sequence[str], queue: str) -> list[HoldInfo]:
    async def ask() -> list[HoldInfo]:
        async with Client(*servers) as client:
            return await client.admin.holds(queue)

    return asyncio.run(ask())


@contextmanager
def running(service: Service) -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(service.run, stop)
        try:
            yield
        finally:
            stop.set()
            done.result(timeout=_WAIT_S)


def eventually(turn: Turn, landed: int) -> None:
    wait_for(
        lambda: (turn.landed or {}).get(turn.landing.queues[0]) == landed or None,
        timeout=_WAIT_S,
        what=lambda: f"{turn.landing.name} has {landed}, not {turn.landed}, {turn.error}",
    )


@pytest.mark.long
def test_one_that_fails_stops_no_other_and_is_told_with_its_reason(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: a refused table and nodes that are away are their landings' alone. Run four once, all at the first look."""
    for name in ("a", "b", "refused"):
        publish(servers, f"{queue}-{name}", numbered(0, 20))
    spark.range(1).write.format("delta").save(str(tmp_path / "refused"))
    landings = [
        made(["127.0.0.1:1"], "away", tmp_path / "away", hold=False),
        made(servers, f"{queue}-refused", tmp_path / "refused", hold=False),
        made(servers, f"{queue}-a", tmp_path / "a", hold=False, max_records=7, read_from="mirror"),
        made(servers, f"{queue}-b", tmp_path / "b", hold=False),
    ]
    out = io.StringIO()
    turns = Service(spark, landings, once=True, observer=JsonLines(out)).run(threading.Event())
    codes = [None if turn.error is None else turn.error.code for turn in turns]
    assert codes == ["CONNECTION_LOST", "TABLE_REFUSED", None, None]
    assert landed_offsets(tmp_path / "a") == landed_offsets(tmp_path / "b") == list(range(20))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert sum(line["rows"] for line in lines if line["event"] == "landed") == 40
    assert {line["landing"] for line in lines if line["event"] == "failed"} == {"away", f"{queue}-refused"}


@pytest.mark.long
def test_a_service_lands_what_comes_holds_it_and_hands_its_holds_on(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: continuous, registered, and fenced by name. Publish while it runs; another run of the name is refused while
    this one lives, and gets the hold when it has ended."""
    publish(servers, queue, numbered(0, 10))
    one = made(servers, queue, tmp_path)
    service = Service(spark, [one])
    (turn,) = service.schedule.turns
    with running(service):
        eventually(turn, 10)
        publish(servers, queue, numbered(10, 5))
        eventually(turn, 15)
        with pytest.raises(HoldTaken):
            Holds(one).begin({queue: 0})
        (hold,) = holds_of(servers, queue)
        assert (hold.name, hold.location, hold.ended) == (queue, str(tmp_path), "")
    (hold,) = holds_of(servers, queue)
    assert (hold.holder, hold.queue_offset) == (NOBODY, 15)
    Holds(one).begin({queue: 15})
    assert landed_offsets(tmp_path) == list(range(15))


@pytest.mark.long
def test_a_driver_that_dies_before_it_renews_its_hold_keeps_more_and_loses_nothing(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: a hold never runs ahead of the table. Die between commit and renewal; another run takes the hold and goes
    on; one that was overtaken is told at its next step."""
    publish(servers, queue, numbered(0, 10))
    one = made(servers, queue, tmp_path)
    first = Holds(one)
    with pytest.raises(Died):
        Runner(spark, dying_at(StepMoment.COMMITTED)).step(one, first)
    assert [hold.queue_offset for hold in holds_of(servers, queue)] == [0]
    second = Holds(one, take_over=True)
    assert Runner(spark).step(one, second).rows == 0
    assert [hold.queue_offset for hold in holds_of(servers, queue)] == [10]
    publish(servers, queue, numbered(10, 5))
    with pytest.raises(HoldTaken):
        Runner(spark).step(one, first)
    assert Runner(spark).step(one, second).rows == 0, "the records came with the step that could not renew"
    assert landed_offsets(tmp_path) == list(range(15))


def test_a_step_that_lost_its_hold_commits_nothing(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: who was replaced does not commit. While a step's files are written another run takes over by force, and the
    lease comes to be renewed."""
    publish(servers, queue, numbered(0, 10))
    one = made(servers, queue, tmp_path)
    now_s = 0.0
    first, second = Holds(one, now=lambda: now_s), Holds(one, take_over=True)

    def replaced(moment: StepMoment) -> None:
        nonlocal now_s
        if moment is StepMoment.WRITTEN:
            second.begin({queue: 0})
            now_s += one.lease_s
            first.renew_due()

    with pytest.raises(HoldTaken):
        Runner(spark, replaced).step(one, first)
    assert Runner(spark).step(one, second).rows == 10
    first.end()
    assert [(hold.holder == NOBODY, hold.queue_offset) for hold in holds_of(servers, queue)] == [(False, 10)]
    assert landed_offsets(tmp_path) == list(range(10))


@pytest.mark.long
def test_a_landing_that_failed_goes_on_when_its_reason_is_gone(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: nothing has to be started again. A table that is refused loses the property for which it is."""
    publish(servers, queue, numbered(0, 10))
    one = made(servers, queue, tmp_path, hold=False)
    Service(spark, [one], once=True).run(threading.Event())
    table = f"delta.`{tmp_path}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES (delta.setTransactionRetentionDuration = 'interval 1 days')")
    publish(servers, queue, numbered(10, 5))
    service = Service(spark, [one])
    (turn,) = service.schedule.turns
    with running(service):
        wait_for(lambda: turn.error, timeout=_WAIT_S, what=lambda: "the table is refused")
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES (delta.setTransactionRetentionDuration)")
        eventually(turn, 15)
    assert landed_offsets(tmp_path) == list(range(15))


@pytest.mark.long
def test_the_service_ends_by_sigterm_behind_its_commit(
    jvm: None, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: `python -m mirrorlog.spark.land --config` runs by itself. Two landings of a file; a line for each step;
    SIGTERM ends it with 0 and the tables have what the lines say."""
    config = tmp_path / "landings.toml"
    text = f'[defaults]\nservers = "{servers[0]}"\nmax_latency_s = 0.1\n'
    for name in ("a", "b"):
        publish(servers, f"{queue}-{name}", numbered(0, 20))
        text += f'[[landing]]\nqueue = "{queue}-{name}"\ntable = "{tmp_path / name}"\n'
    config.write_text(text)
    command = [sys.executable, "-m", "mirrorlog.spark.land", "--config", str(config), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert child.stdout is not None
        lines = [json.loads(child.stdout.readline()) for _ in range(2)]
        child.send_signal(signal.SIGTERM)
        assert child.wait(_CHILD_S) == 0
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    assert sorted((line["landing"], line["rows"]) for line in lines) == [(f"{queue}-a", 20), (f"{queue}-b", 20)]
    assert landed_offsets(tmp_path / "a") == landed_offsets(tmp_path / "b") == list(range(20))
    assert [hold.holder for hold in holds_of(servers, f"{queue}-a")] == [NOBODY]


# --- Without Spark --------------------------------------------------------------------------------------------------


class Waits(Observer):
    """Hears what upkeep came to, and stops the service when it has heard it `times` times."""

    def __init__(self, stop: threading.Event, times: int) -> None:
        self.failed: list[str] = []
        self._stop, self._times = stop, times

    def upkeep_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self.failed.append(error.code)
        if len(self.failed) == self._times:
            self._stop.set()


@pytest.mark.parametrize(
    ("error", "code"), [(SparkFailed("OOM"), "SPARK_FAILED"), (OSError(28, "full"), "STORAGE_FAILED")]
)
def test_upkeep_that_fails_is_told_and_tried_again_and_delays_no_landing(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    """Goal: a table that cannot be tidied is landed in. Upkeep fails at every look; the landing is neither failed nor
    put off. A service over a plain list in place of nodes and table."""
    log = FakeLog()
    log.add("q", 10)
    monkeypatch.setattr("mirrorlog.spark.landing.service.service.open_lookup", log.opened)
    monkeypatch.setattr(Service, "_spark_lives", lambda service: True)
    stop = threading.Event()
    heard, times = Waits(stop, 3), iter(range(1_000))

    def fail(landing: Landing) -> None:
        raise error

    spark: Any = None
    service = Service(
        spark, [made(["n1:7401"], "q", Path("/t"), hold=False)], observer=heard, upkeep=fail, now=lambda: next(times)
    )
    (turn,) = service.schedule.turns
    turn.ended(StepResult("q", (QueueStep("q", 0, 10, 10),)), 0.0)
    service.run(stop)
    assert heard.failed == [code] * 3
    assert (turn.error, turn.failures, turn.done, turn.retry_at) == (None, 0, False, float("-inf"))


def test_a_holder_is_gone_when_its_process_is_and_only_on_this_machine() -> None:
    mine = this_holder()
    host, boot, pid, started, number = mine.rsplit("/", 4)
    assert not is_gone(mine)
    assert is_gone(NOBODY)
    assert is_gone(f"{host}/{boot}/{pid}/{int(started) + 1}/{number}"), "another process got the number"
    assert is_gone(f"{host}/{boot}/{2**22 + 1}/5/{number}")
    assert is_gone(f"{host}/another-boot/{pid}/{started}/{number}")
    assert not is_gone(f"other-{mine}")
    assert not is_gone("somebody else's word")


def step() -> StepResult:
    missed = (MissedRange("q", 3, 7, "freed"),)
    queues = (QueueStep("q", 0, 10, 15, landed_time_us=1_000_000, missed=missed),)
    return StepResult(
        "name", queues, rows=10, records=12, bytes=3 << 20, files=2, dead_letters=2, table_version=4, seconds=2
    )


def test_a_line_says_records_rate_lag_and_what_was_missed() -> None:
    out = io.StringIO()
    lines = StepLines(out)
    one = made(["n1:7401"], "q", Path("/t"))
    lines.step_ended(one, StepResult("name"))
    assert out.getvalue() == "", "an idle step is not worth a line"
    lines.step_ended(one, step())
    lines.step_failed(one, ConnectionLost("two\nlines"))
    landed, failed = out.getvalue().splitlines()
    for part in (
        "10 records",
        "5/s",
        "3.0 MiB",
        "2 files",
        "table version 4",
        "lag 5 records",
        "2 dead letters",
        "3 up to 7",
    ):
        assert part in landed
    assert failed == "q: failed: two lines"


def test_lag_in_seconds_is_the_age_of_the_oldest_record_that_waits_at_most() -> None:
    """Goal: one definition. Behind; nothing left; a step that landed nothing and cannot tell; the furthest behind."""
    (behind,) = step().queues
    assert behind.lag_seconds(3_500_000) == 2.5
    assert behind.lag_seconds(500_000) == 0.0, "a node's clock may be ahead of this one's"
    landed, unknown = replace(behind, confirmed=10), replace(behind, landed_time_us=None)
    assert (landed.lag_seconds(3_500_000), unknown.lag_seconds(3_500_000)) == (0.0, None)
    assert StepResult("n", (landed, unknown, behind)).lag_seconds(3_500_000) == 2.5
    assert StepResult("n", (landed, unknown)).lag_seconds(3_500_000) == StepResult("n").lag_seconds(0) == 0.0
