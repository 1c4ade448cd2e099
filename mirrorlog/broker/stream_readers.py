"""Who reads as a stream group now, as far as a node can know: a stream group is a position and nothing more.

Whoever has asked for the group's position, or stored it, within the last ten seconds, on a connection that is still
there. One that reads on without a word of its position is not seen; nor is one that was last heard by the master before
this one. What is remembered is bounded by time and number: the longest ago goes.

Pure: `now` comes in, in seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Final

ACTIVE_S: Final = 10.0
_REMEMBERED_MAX: Final = 10_000
_NAME_CHARS_MAX: Final = 512


class StreamReaders:
    """Of one node. `session`: a connection."""

    def __init__(self) -> None:
        # The latest one of each queue and group, in the order of their times.
        self._heard: dict[tuple[str, str], tuple[object, float]] = {}

    def note(self, queue: str, group: str, session: object, now: float) -> None:
        """A connection asked for that group's position, or stored it."""
        if len(queue) > _NAME_CHARS_MAX or len(group) > _NAME_CHARS_MAX:
            return  # no group has such a name
        self._heard.pop((queue, group), None)
        self._heard[queue, group] = session, now
        while self._heard:
            oldest = next(iter(self._heard))
            if len(self._heard) <= _REMEMBERED_MAX and self._heard[oldest][1] + ACTIVE_S > now:
                break
            del self._heard[oldest]

    def forget(self, session: object) -> None:
        """A connection is gone."""
        for key in [key for key, (heard, _) in self._heard.items() if heard is session]:
            del self._heard[key]

    def active(self, queue: str, group: str, *, now: float) -> str:
        """Who reads there, in words; empty when nobody does."""
        _, at = self._heard.get((queue, group), (None, -ACTIVE_S))
        return f"heard {now - at:.1f} s ago" if now < at + ACTIVE_S else ""
