"""How far a log's begin may move: whole segments that are too old, or too many. Pure.

Deciding is the master's alone; every copy follows the decision once it is logged and confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol


class Aged(Protocol):
    """A segment that is not appended to any more: log offset of its end, and when its last batch was appended (µs
    UTC)."""

    @property
    def end(self) -> int: ...
    @property
    def last_append_time_us(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """`max_age_us`: of a segment's last batch; `max_bytes`: of the log. None: no limit."""

    max_age_us: int | None = None
    max_bytes: int | None = None

    def without_oldest(self, segments: Iterable[Aged], *, begin: int, end: int) -> RetentionLimits:
        """As if the bytes of a log [begin, end) were limited to what follows its oldest segment, or less."""
        oldest = next((segment.end for segment in segments if segment.end > begin), None)
        if oldest is None or (self.max_bytes is not None and self.max_bytes <= end - oldest):
            return self
        return replace(self, max_bytes=end - oldest)


def next_begin(
    segments: Iterable[Aged], *, begin: int, end: int, at_most: int, now_us: int, limits: RetentionLimits
) -> int | None:
    """The new begin of a log [begin, end), at a segment's end not above `at_most`; None when nothing can go.

    Oldest first, and the first one that stays ends it: what is freed is one stretch from the begin on.
    """
    found = None
    for segment in segments:
        too_old = limits.max_age_us is not None and segment.last_append_time_us < now_us - limits.max_age_us
        too_many = limits.max_bytes is not None and end - segment.end >= limits.max_bytes
        if segment.end > at_most or not (too_old or too_many):
            break
        if segment.end > begin:
            found = segment.end
    return found
