"""Threads that wait for the disk, shared by all logs of a node: as many as have something to do at a moment.

Each log has a *lane*: what is asked for on it is done in that order, one after the other, and no lane waits for another
as long as fewer than `THREADS_MAX` of them work. A thread takes a lane, does what stands on it, and rests; one that has
rested for `REST_S` ends. The one that rested last is taken first, so that those that are not needed come to their end.

Rejected: a thread for each log (256 logs at rest were 256 threads), and a pool of the standard library (its threads
never end, and jobs of one log would overtake each other).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

THREADS_MAX: Final = 32
"""More waits for one disk at once than this make none of them shorter."""
REST_S: Final = 2.0
"""How long a thread without work is kept for the next one."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Thread(threading.Thread):
    """`first`: the lane that it begins with; `given`: the others, or None when it is to end."""

    def __init__(self, threads: DiskThreads, number: int, first: DiskLane) -> None:
        super().__init__(name=f"{threads.name}-{number}", daemon=True)
        self.given: SimpleQueue[DiskLane | None] = SimpleQueue()
        self._threads = threads
        self._first: DiskLane | None = first

    def run(self) -> None:
        lane, self._first = self._first, None
        while lane is not None:
            lane.work()
            lane = None  # what it holds is not kept alive by a thread at rest
            lane = self._threads.next_for(self) or self._wait()

    def _wait(self) -> DiskLane | None:
        try:
            return self.given.get(timeout=self._threads.rest_s)
        except Empty:
            # Somebody may have taken it just now: then there is something to do.
            return None if self._threads.retire(self) else self.given.get()


class DiskThreads:
    """The threads, for the lanes that are made with it."""

    def __init__(self, name: str, *, threads_max: int = THREADS_MAX, rest_s: float = REST_S) -> None:
        self.name = name
        self.rest_s = rest_s
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._threads: set[_Thread] = set()
        self._resting: list[_Thread] = []
        self._waiting: deque[DiskLane] = deque()
        self._made = 0
        self._ended = False

    @property
    def count(self) -> int:
        """Threads that there are now."""
        return len(self._threads)

    def lane(self) -> DiskLane:
        """A new one, for what is to be done in order."""
        return DiskLane(self)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No lane is begun any more; those that are worked on come to their end. `wait` for that; `cancel_futures`:
        those that wait for a thread are not begun either."""
        with self._lock:
            self._ended = True
            threads = list(self._threads)
            resting, self._resting = self._resting, []
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
        for lane in dropped:
            lane.drop()
        for thread in resting:
            thread.given.put(None)
        if wait:
            for thread in threads:
                thread.join()

    # --- for lanes and threads ---

    def begin(self, lane: DiskLane) -> None:
        """Somebody shall work on it. Raises RuntimeError after the end."""
        with self._lock:
            if self._ended:
                raise RuntimeError(f"the {self.name} threads have ended")
            if self._resting:
                self._resting.pop().given.put(lane)
            elif len(self._threads) < self._threads_max:
                self._made += 1
                thread = _Thread(self, self._made, lane)
                self._threads.add(thread)
                thread.start()
            else:
                self._waiting.append(lane)

    def next_for(self, thread: _Thread) -> DiskLane | None:
        """It has done its work: the lane that waits longest; None when it rests, until something is `given`."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._ended:
                thread.given.put(None)
            else:
                self._resting.append(thread)
            return None

    def retire(self, thread: _Thread) -> bool:
        """Whether it ends: nobody has wanted it."""
        with self._lock:
            if thread not in self._resting:
                return False
            self._resting.remove(thread)
            self._threads.discard(thread)
            return True


class DiskLane(Executor):
    """An executor that does one thing after the other, on whichever of the shared threads is free."""

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = False
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many things were not begun."""
        return len(self._jobs)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """As of any executor. Raises RuntimeError after `shutdown`, also that of the threads."""
        future: Future[_T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("nothing is taken on this lane any more")
            self._jobs.append((future, partial(fn, *args, **kwargs) if args or kwargs else fn))
            begins, self._busy = not self._busy, True
        if begins:
            try:
                self._threads.begin(self)
            except RuntimeError:
                self.drop()
                raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing more is taken. `wait`: for what was; `cancel_futures`: what was not begun is not done."""
        with self._changed:
            self._closed = True
            cancelled = self._taken() if cancel_futures else ()
        for future in cancelled:
            future.cancel()
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: not self._busy)

    # --- for the threads ---

    def work(self) -> None:
        """Do what stands on it, and what comes meanwhile."""
        while True:
            with self._changed:
                if not self._jobs:
                    self._busy = False
                    self._changed.notify_all()
                    return
                future, job = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    result = job()
                except BaseException as error:
                    future.set_exception(error)
                    del error
                else:
                    future.set_result(result)
                    del result
            del future, job  # what they hold is not kept until the next one comes

    def drop(self) -> None:
        """Nobody will work on it."""
        with self._changed:
            dropped, self._busy = self._taken(), False
            self._changed.notify_all()
        for future in dropped:
            future.cancel()

    def _taken(self) -> list[Future[Any]]:
        futures = [future for future, _ in self._jobs]
        self._jobs.clear()
        return futures
