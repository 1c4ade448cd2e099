"""What a node looks at again and again beside serving, and nobody waits for. An error in it that nobody expected is a
defect, and no reason to end the node: that would take all that it serves along, and the next master would meet the
same. So it is told once, and what else there is goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class ToldOnce:
    """Of work that is done again: each kind is told once, with its traceback on debug."""

    def __init__(self) -> None:
        self._told: set[tuple[str, type[Exception]]] = set()

    def tell(self, what: str, error: Exception) -> None:
        """`what` failed."""
        if (kind := (what, type(error))) in self._told:
            return
        self._told.add(kind)
        logger.error("background_failed what=%s error=%r", what, f"{type(error).__name__}: {error}")
        logger.debug("background_traceback what=%s", what, exc_info=error)


class BackgroundTicks:
    """`ticks`: by name, each told that time passes (s, the loop's clock)."""

    def __init__(self, **ticks: Callable[[float], None]) -> None:
        self._ticks = ticks
        self._failures = ToldOnce()

    def tick(self, now: float) -> None:
        """Each of them, whatever the others come to."""
        for what, tick in self._ticks.items():
            try:
                tick(now)
            except Exception as error:
                self._failures.tell(what, error)
