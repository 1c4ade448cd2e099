"""Whether a subscription goes on, and how. Pure: events and `now` in, its state out.

It looks for the queue's master until it is subscribed there, and again whenever that ends: a lost connection, a master
that is none any more, a node on its way down. Only what no master would answer otherwise ends it for good: a deleted
queue, a right that is refused, its own `close`. While nobody answers it goes on trying, and whoever waits for records
is told after `patience_s`: he may wait again.

Whoever wants to know of failovers is not told of lost connections: it is the epoch of the next master that says whether
there was one. A door's link to its node, which its users never see, may break and cancel nobody.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from mirrorlog.client.connection.queue_metadata import is_another, is_outage
from mirrorlog.errors import (
    BadInput,
    ConnectionLost,
    MirrorlogError,
    NotMaster,
    PreconditionFailed,
    SubscriptionCancelled,
)

_LASTING: Final = ("max_groups_per_queue",)
"""Limits of what is stored: waiting takes nothing away from it."""


class ResumptionState(Enum):
    """Where a subscription stands with the masters of its queue."""

    SEEKING = "seeking"
    SUBSCRIBED = "subscribed"
    ENDED = "ended"


class Resumption:
    """Decides whether one subscription goes on. `error`: what it ended with, in state ENDED.

    `cancel_on_failover`: another mastership than that of its first session ends it.
    """

    __slots__ = ("_cancel_on_failover", "_last", "_mastership", "_patience_s", "_seeking_since", "error", "state")

    def __init__(self, *, now: float, patience_s: float, cancel_on_failover: bool) -> None:
        self.state = ResumptionState.SEEKING
        self.error: MirrorlogError | None = None
        self._cancel_on_failover = cancel_on_failover
        self._patience_s = patience_s
        self._seeking_since = now
        # Log and epoch of the newest session.
        self._mastership = ("", 0)
        self._last: MirrorlogError | None = None

    @property
    def over(self) -> bool:
        return self.state is ResumptionState.ENDED

    def sees(self, log_id: str, epoch: int) -> None:
        """A node names such a master, which is to be asked. Raises what that ends it with."""
        known_log, known = self._mastership
        if self._cancel_on_failover and log_id == known_log and epoch > known:
            self._cancel(epoch)

    def subscribed(self, log_id: str, epoch: int) -> None:
        """A master has taken it. Raises NotMaster for one of the past, SubscriptionCancelled for one that it does not
        go on at."""
        if self.over:
            return
        known_log, known = self._mastership
        if log_id == known_log and epoch < known:
            raise NotMaster(f"that node was master before epoch {known} began")
        if self._cancel_on_failover and known_log and (log_id, epoch) != self._mastership:
            self._cancel(epoch)
        self._mastership = log_id, epoch
        self.state, self._last = ResumptionState.SUBSCRIBED, None

    def refused(self, error: MirrorlogError, now: float) -> None:
        """An attempt to subscribe has failed."""
        if self.over:
            return
        self._last = error
        if not self._passing(error, now):
            self.end(error)

    def lost(self, error: MirrorlogError, now: float) -> None:
        """The session is over."""
        if self.over:
            return
        if not error.retriable:
            self.end(error)
        else:
            self.state, self._seeking_since, self._last = ResumptionState.SEEKING, now, error

    def end(self, error: MirrorlogError) -> None:
        """For good. The first reason counts."""
        if not self.over:
            self.state, self.error = ResumptionState.ENDED, error

    def trouble(self, now: float) -> MirrorlogError | None:
        """What to tell whoever waits for records; None while there is nothing to tell."""
        if self.over:
            return self.error
        if self.state is ResumptionState.SUBSCRIBED or now < self._seeking_since + self._patience_s:
            return None
        return self._last or ConnectionLost("no master was found yet")

    @property
    def _was_subscribed(self) -> bool:
        return bool(self._mastership[0])

    def _cancel(self, epoch: int) -> None:
        cancelled = SubscriptionCancelled(
            f"the queue was mastered in epoch {self._mastership[1]}, and is in epoch {epoch}; subscribe again"
            + (f"; the former master was left because of this: {self._last}" if self._last is not None else "")
        )
        self.end(cancelled)
        raise cancelled

    def _passing(self, error: MirrorlogError, now: float) -> bool:
        """Whether another attempt may end otherwise. What held a moment ago (the queue was there, its right was this
        subscription's) may only not be known yet where it is asked now."""
        if (is_outage(error) or error.details.get("limit") in _LASTING) and not self._was_subscribed:
            return False
        if error.retriable:
            return True
        if is_another(error):
            return False
        lately = self._was_subscribed and now < self._seeking_since + self._patience_s
        return lately and (not isinstance(error, BadInput) or isinstance(error, PreconditionFailed))
