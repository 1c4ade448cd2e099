"""A driver that dies by SIGKILL: lands a queue and kills itself with all that it started.

    python landing_child.py SERVERS QUEUE TABLE MOMENT

MOMENT `committed`: as soon as a commit that is not there yet stands in the table's log, before anything after it.
MOMENT `written`: as soon as a data file of it stands there, before the commit.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from mirrorlog.spark.land import land
from mirrorlog.spark.session import local_session

PATTERNS = {"committed": "_delta_log/*.json", "written": "*.parquet"}
_DEADLINE_S = 120


def kill_self_on_new(table: Path, pattern: str) -> None:
    """Watch from now on; what is there already does not count."""
    known = set(table.glob(pattern))
    end = time.monotonic() + _DEADLINE_S

    def watch() -> None:
        while time.monotonic() < end:
            if set(table.glob(pattern)) - known:
                os.killpg(0, signal.SIGKILL)
            time.sleep(0.001)

    threading.Thread(target=watch, daemon=True).start()


def main(servers: str, queue: str, table: str, moment: str) -> None:
    # The group is this process and the JVM, so that neither outlives the other.
    os.setpgid(0, 0)
    spark = local_session("landing that dies", **{"spark.master": "local[2]"})
    kill_self_on_new(Path(table), PATTERNS[moment])
    land(spark, servers.split(","), queue, table)


if __name__ == "__main__":
    main(*sys.argv[1:])
