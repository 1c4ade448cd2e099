"""Serves a node's connections on its loop when their turns come; whose turn it is, `turns` decides. Thin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mirrorlog.wire.fairness.turns import KNOWN, STRANGER, Budget, LoopLine, Share


class LoopLines:
    """One per node, for all its ports."""

    def __init__(self, *, known: Budget = KNOWN, stranger: Budget = STRANGER) -> None:
        self.known = LoopLine(known)
        self.strangers = LoopLine(stranger)
        self._coming: set[LoopLine] = set()

    def newcomer(self, serve: Callable[[], None]) -> Share:
        """Of a new connection: a stranger's, until it has another line."""
        return Share(self.strangers, serve)

    def look(self, line: LoopLine) -> None:
        """Have its next turn come, if it must."""
        if line.due and line not in self._coming:
            self._coming.add(line)
            loop = asyncio.get_running_loop()
            if line.budget.pause_s:
                loop.call_later(line.budget.pause_s, self._turn, line)
            else:
                loop.call_soon(self._turn, line)

    def _turn(self, line: LoopLine) -> None:
        self._coming.discard(line)
        try:
            for share in line.turn():
                share.serve()
        finally:
            self.look(line)  # else nobody of the class would ever have a turn again
