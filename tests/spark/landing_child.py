"""A driver of its own that dies by SIGKILL, or that stands still while another one lands.

    python landing_child.py '[{"moment": MOMENT, "queue": …, "table": …, …}, …]' [MEETING]

Each object is a landing's definition with the moment at which it ends. MOMENT is one of `runner.StepMoment`, where the
landing stops and waits; `writing`: as soon as a data file stands in the table, be it unfinished; `streamed`: it is
Spark's own stream to Delta instead, with the key `checkpoint`, as soon as Delta has made a commit (Spark writes into
its own log of commits after that). At most one of the last two is given, and begins when all others wait where they
should: then one SIGKILL takes the process, with the JVM that it started, at all of these places. A JVM per place would
prove no more and take most of the time.

With MEETING, a directory, there is one landing, and no kill: at its moment it makes the file `there`, and goes on when
there is a file `go`; its exit code is then that of the error that it ended with.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.land import land_all
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.landing.holds import Holds
from mirrorlog.spark.landing.runner import Runner, StepMoment
from mirrorlog.spark.session import local_session
from mirrorlog.spark.source import FORMAT, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITING = "writing"
STREAMED = "streamed"
_WATCHED = {WRITING: "**/*.parquet*", STREAMED: "_delta_log/*.json"}
_DEADLINE_S = 120

Case = dict[str, Any]


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def die_on_new(table: Path, pattern: str) -> None:
    """Watch from now on; what is there already does not count."""
    known = set(table.glob(pattern))
    end = time.monotonic() + _DEADLINE_S

    def watch() -> None:
        while time.monotonic() < end:
            if set(table.glob(pattern)) - known:
                die()
            time.sleep(0.001)

    threading.Thread(target=watch, daemon=True).start()


def meet(meeting: Path) -> None:
    (meeting / "there").touch()
    end = time.monotonic() + _DEADLINE_S
    while not (meeting / "go").exists():
        assert time.monotonic() < end, "nobody let this landing go on"
        time.sleep(0.01)


def run(spark: SparkSession, case: Case, stop: Callable[[], None]) -> None:
    """Land until the case's moment, and call `stop` there. A definition with `hold` is landed as a service does."""
    keys = {"hold": False, "read_from": "master", **case}
    moment = keys.pop("moment")
    made = landing(keys)

    def reached(now: StepMoment) -> None:
        if now == moment:
            stop()

    land_all(Runner(spark, reached), made, Holds(made) if made.hold else None)


def stream(spark: SparkSession, case: Case) -> None:
    register(spark)
    options = {"servers": ",".join(case["servers"]), "subscribe": case["queue"], "startingOffsets": "earliest"}
    writing = spark.readStream.format(FORMAT).options(**options).load().writeStream.format("delta")
    query = writing.option("checkpointLocation", case["checkpoint"]).trigger(availableNow=True).start(case["table"])
    query.awaitTermination(_DEADLINE_S)


def stop_all(spark: SparkSession, cases: list[Case]) -> None:
    """Until each waits at its moment. Raises what one ended with instead."""
    arrivals: queue.Queue[str | None] = queue.Queue()

    def stopped() -> None:
        arrivals.put(None)
        threading.Event().wait()

    def one(case: Case) -> None:
        try:
            run(spark, case, stopped)
            arrivals.put(f"{case} ended before its moment")
        except BaseException:
            arrivals.put(f"{case}: {traceback.format_exc()}")

    for case in cases:
        threading.Thread(target=one, args=(case,), daemon=True).start()
    for _ in cases:
        wrong = arrivals.get(timeout=_DEADLINE_S)
        assert wrong is None, wrong


def land_and_die(spark: SparkSession, cases: list[Case]) -> None:
    stop_all(spark, [case for case in cases if case["moment"] not in _WATCHED])
    for case in cases:
        if case["moment"] in _WATCHED:
            die_on_new(Path(case["table"]), _WATCHED[case["moment"]])
            stream(spark, case) if case["moment"] == STREAMED else run(spark, case, lambda: None)
            raise AssertionError(f"{case} ended, and nobody saw its file")
    die()


def main(cases: str, meeting: str = "") -> int:
    # The group is this process and the JVM, so that neither outlives the other.
    os.setpgid(0, 0)
    spark = local_session("landing that dies", **{"spark.master": "local[2]"})
    given: list[Case] = json.loads(cases)
    if not meeting:
        try:
            land_and_die(spark, given)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            die_quietly(spark)
        return 1
    try:
        (case,) = given
        run(spark, case, lambda: meet(Path(meeting)))
    except MirrorlogError as error:
        return error.exit_code
    finally:
        spark.stop()
    return 0


def die_quietly(spark: SparkSession) -> None:
    """Landings may wait for ever in threads: end without them, and not by the signal that a test expects."""
    spark.stop()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
