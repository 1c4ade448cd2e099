"""What happened in a run: a digest of all of it, and the last events in words.

The digest is equal for two runs exactly when (but for chance) the same happened in both, in the same order, at the same
times. The words are for whoever looks into a failure; they are put together only when somebody reads them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from zlib import crc32

KEPT: Final = 400

Note = tuple[float, str, str, tuple[object, ...]]
"""When, who, what with % marks, and what belongs there."""


class Trace:
    """`watcher`: given every note as it is made, for a run that shall be written down whole."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self.digest = 0
        self.failures: list[str] = []
        """What must never be in the log of any program: an error that nobody expected."""
        self.over = False
        """Nothing counts any more: what was killed is let go, and says this and that."""
        self.watcher: Callable[[Note], None] | None = None
        self._watchers: list[Callable[[Note], None]] = []
        self._notes: deque[Note] = deque(maxlen=kept)

    def note(self, at: float, who: str, what: str, *facts: object) -> None:
        """An event of which whoever reads the trace should know."""
        note = (at, who, what, facts)
        self._notes.append(note)
        if self.watcher is not None:
            self.watcher(note)
        for watch in self._watchers:
            watch(note)

    def watch(self, watcher: Callable[[Note], None]) -> None:
        """Have it told of every note, as `watcher`."""
        self._watchers.append(watcher)

    def mix(self, *facts: float) -> None:
        """Numbers that belong to what happened."""
        # Hashes of numbers are the same in every process; those of strings are not.
        self.digest = hash((self.digest, *facts))

    def mix_bytes(self, data: bytes | bytearray | memoryview) -> None:
        self.digest = hash((self.digest, crc32(data)))

    def lines(self) -> list[str]:
        """The last events, the oldest first."""
        return [words(note) for note in self._notes]


def words(note: Note) -> str:
    at, who, what, facts = note
    return f"{at:12.6f} {who or '-':8} {what % facts if facts else what}"


class _LogLines(logging.Handler):
    def __init__(self, trace: Trace, now: Callable[[], tuple[float, str]]) -> None:
        super().__init__()
        self._trace = trace
        self._now = now

    def emit(self, record: logging.LogRecord) -> None:
        if self._trace.over:
            return
        at, who = self._now()
        self._trace.note(at, who, "%s", record.getMessage())
        if record.exc_info is not None and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._trace.failures.append(f"{who}: {record.getMessage()}: {type(error).__name__}: {error}")


@contextmanager
def logs_traced(trace: Trace, now: Callable[[], tuple[float, str]]) -> Iterator[None]:
    """The package's log lines go into the trace, with virtual time and the process that wrote them; one with a
    traceback is a failure. `now`: time and process."""
    logger = logging.getLogger("mirrorlog")
    before = logger.level, logger.propagate, logger.disabled
    handler = _LogLines(trace, now)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate, logger.disabled = False, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate, logger.disabled = before[1:]
