"""How far work is that goes on for a while, told now and then: copies that are filled, records that are copied. Pure.

Told when it is a tenth further than when it was told last, or has got on and 10 s have passed: so a short one is a few
lines, and of a long one the newest line is never old.
"""

from __future__ import annotations

from typing import Final

STEP_PERCENT: Final = 10
QUIET_S: Final = 10.0


class Milestones:
    """Of one piece of work, from its begin (`now`, s of a clock that only goes on)."""

    def __init__(self, now: float) -> None:
        self._told, self._told_at = 0.0, now

    def due(self, percent: float, now: float) -> bool:
        """Whether it is to be told that so much of it is done; that counts as told then."""
        further = percent - self._told
        if further < STEP_PERCENT and (further <= 0 or now - self._told_at < QUIET_S):
            return False
        self._told, self._told_at = percent, now
        return True
