"""A process that Spark runs tasks in, again and again.

After each task such a process collects its garbage and answers nothing meanwhile: the next task waits. With all modules
loaded that walk takes 23 ms, whatever the task did, and most of it is over what the modules are made of, which never
goes. The collector's own looks during a task pass over the same, for a twentieth of its time. So what is there at the
first task is set aside, once. Rejected: to switch the collection off (it is Spark's, and it is what ends a task's own
garbage).
"""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


def spare_modules() -> None:
    """Have later collections pass over what this process has loaded. Only in a task of Spark's; only once."""
    if TaskContext.get() is not None:
        _set_aside()


@cache
def _set_aside() -> None:
    # What is garbage already would be kept for good.
    gc.collect()
    gc.freeze()
