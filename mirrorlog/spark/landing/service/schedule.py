"""When which of many landings takes its step. Pure: times come in, in seconds of any clock that never goes back.

A landing is due when as much is pending as one commit takes, when the oldest pending record has waited long enough, or
when nobody knows yet where its table stands. Of those that are due the one that waited longest for its turn is next, so
one with a large rest holds nobody up. One that failed waits, twice as long each time, and is tried again.

How old a pending record is, is counted from the first look that saw it: the nodes' clocks do not come into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.results import StepResult

BACKOFF_S_MIN: Final = 1.0
BACKOFF_S_MAX: Final = 60.0
_RECORD_BYTES: Final = 1024.0


@dataclass(slots=True)
class Turn:
    """Where one landing stands. `landed`: by queue, None before the first step; `pending`: records that are confirmed
    and not landed; `error`: of the last step, None when it went well; `done`: it shall not step any more."""

    landing: Landing
    landed: dict[str, int] | None = None
    pending: int = 0
    pending_since: float | None = None
    last_step: float = float("-inf")
    retry_at: float = float("-inf")
    failures: int = 0
    error: MirrorlogError | None = None
    record_bytes: float = _RECORD_BYTES
    until: dict[str, int] | None = None
    done: bool = False

    def looked(self, ends: Mapping[str, tuple[int, int]], now: float) -> None:
        """What is confirmed of its queues: begin and next, by name."""
        landed = self.landed or {}
        self.pending = sum(max(0, end - landed.get(queue, begin)) for queue, (begin, end) in ends.items())
        if not self.pending:
            self.pending_since = None
        elif self.pending_since is None:
            self.pending_since = now
        if self.until is None:
            self.until = {queue: end for queue, (_, end) in ends.items()}

    def is_due(self, now: float, *, once: bool = False) -> bool:
        """Whether its step should begin now. `once`: whatever is pending, until the end that was seen first."""
        if self.done or now < self.retry_at:
            return False
        if self.landed is None:
            return True
        if once or not self.pending or self.pending_since is None:
            return once
        full = self.pending >= self.landing.max_records
        full = full or self.pending * self.record_bytes >= self.landing.max_bytes
        return full or now - self.pending_since >= self.landing.max_latency_s

    def ended(self, result: StepResult, now: float) -> None:
        """Its step went well."""
        self.landed = {queue.queue: queue.next for queue in result.queues}
        self.pending = result.lag
        # What is left was confirmed before the step looked, so it has waited since then at least.
        self.pending_since = now - result.seconds if self.pending else None
        if result.records:
            self.record_bytes = max(1.0, result.bytes / result.records)
        self.last_step, self.failures, self.error = now, 0, None
        self.retry_at = float("-inf")

    def failed(self, error: MirrorlogError, now: float) -> None:
        """Its step, or the look at its queues, did not."""
        self.retry_at = now + min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(self.failures, 16))
        self.failures += 1
        self.last_step, self.error = now, error

    @property
    def reached(self) -> bool:
        """Whether everything is landed that was there at the first look."""
        landed = self.landed
        return landed is not None and all(landed.get(name, 0) >= end for name, end in (self.until or {}).items())


@dataclass(slots=True)
class Schedule:
    """The turns of all landings."""

    turns: list[Turn] = field(default_factory=list)

    @classmethod
    def of(cls, landings: Iterable[Landing]) -> Schedule:
        return cls([Turn(landing) for landing in landings])

    def next(self, now: float, *, once: bool = False) -> Turn | None:
        """Whose step it is; None while nobody is due."""
        due = [turn for turn in self.turns if turn.is_due(now, once=once)]
        return min(due, key=lambda turn: turn.last_step, default=None)
