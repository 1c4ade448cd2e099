"""An end to what would never end: a loop within one callback, in which virtual time stands still and nobody looks on.

By the processor's time and not the clock's, so that a busy machine ends nothing, and pytest keeps its own timer.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Final

_FRAMES: Final = 6


class GoesRound(KeyboardInterrupt):
    """Says where. A KeyboardInterrupt: of all others asyncio ends the callback alone."""


@contextmanager
def alarm(within_s: float) -> Iterator[None]:
    """Raises GoesRound when what is done meanwhile takes longer. In the main thread only."""

    def ring(_: int, frame: FrameType | None) -> None:
        raise GoesRound(" < ".join(islice(_callers(frame), _FRAMES)))

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, within_s, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _callers(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_qualname
        frame = frame.f_back
