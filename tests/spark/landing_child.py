"""A driver that dies by SIGKILL, or that stands still while another one lands: lands a queue in a process of its own.

    python landing_child.py SERVERS QUEUE TABLE MOMENT [SETTINGS as JSON [MEETING]]

MOMENT: one of `runner.Moment`, when the step comes there; or `writing`: as soon as a data file stands in the table, be
it unfinished. There it kills itself with all that it started. With MEETING, a directory, it makes the file `there` in
it instead, and goes on when there is a file `go`; its exit code is then that of the error that it ended with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.land import land
from mirrorlog.spark.landing.runner import Moment
from mirrorlog.spark.session import local_session

WRITING = "writing"
_DEADLINE_S = 120


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


def main(  # noqa: PLR0917  (a command line)
    servers: str, queue: str, table: str, moment: str, settings: str = "{}", meeting: str = ""
) -> int:
    # The group is this process and the JVM, so that neither outlives the other.
    os.setpgid(0, 0)
    spark = local_session("landing that dies", **{"spark.master": "local[2]"})
    if moment == WRITING:
        die_on_new(Path(table), "**/*.parquet*")

    def reached(now: Moment) -> None:
        if now == moment:
            meet(Path(meeting)) if meeting else die()

    try:
        land(spark, servers.split(","), queue, table, on_moment=reached, **json.loads(settings))
    except MirrorlogError as error:
        return error.exit_code
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
