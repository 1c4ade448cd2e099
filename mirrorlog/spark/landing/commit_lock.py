"""One commit at a time to a local table, among the landings that reach it, whatever process they run in.

Delta makes a commit by naming a file that must not be there yet. Object stores and HDFS do that in one step. On a local
path it is a look and then a rename, which takes the place of what came in between: of two drivers in that moment both
would be told that their commit is the table's. So a landing holds a lock of the operating system meanwhile (`flock`; it
goes with its process, and works over NFS).

Other writers do not know of it. Rejected: a lock file that is made and removed (it outlives who is killed).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mirrorlog.spark.errors import LandingConflict
from mirrorlog.spark.landing.storage import local_path

NAME: Final = "_delta_log/.mirrorlog-commit"
"""Hidden: Delta and VACUUM pass over it."""

WAIT_S: Final = 30.0
"""A commit takes a fraction of a second; a process that stands still in one must not hold up all others."""

_LOOK_S: Final = 0.01


@contextmanager
def one_commit(table: str, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Alone among landings at the table at that path or URI; elsewhere than on a local path nothing is done.

    Raises LandingConflict when another one has it for `wait_s` s, OSError.
    """
    root = local_path(table)
    if root is None:
        yield
        return
    path = root / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock(handle, table, time.monotonic() + wait_s)
        yield
    finally:
        os.close(handle)  # gives the lock back too


def _lock(handle: int, table: str, give_up_at: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                raise LandingConflict(
                    f"another process has been committing to {table} for long; nothing was added, run again; if it "
                    "stands still, end it"
                ) from None
        time.sleep(_LOOK_S)
