"""What the limit programs in Python share: processes that end with their parent, as those in C (common.h)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Final

DEADLINE_S: Final = 60

_SET_DEATH_SIGNAL: Final = 1  # <linux/prctl.h>


def start(work: Callable[[], None]) -> int:
    """Do `work` in a child, which ends with this process and at the deadline; its process id.

    To be called before anything that has threads is imported.
    """
    parent = os.getpid()
    if (pid := os.fork()) != 0:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            signal.alarm(DEADLINE_S)
            work()
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
    raise AssertionError("a child goes on after its end")


def wait() -> None:
    """Until all children have ended by themselves. Ends the program when one has failed."""
    while True:
        try:
            _, status = os.wait()
        except ChildProcessError:
            return
        if status != 0:
            sys.exit("a child process failed")


def end(pid: int) -> None:
    """End a child that serves for ever."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
