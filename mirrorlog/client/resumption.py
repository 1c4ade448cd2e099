"""Whether a subscription goes on, and how. Pure: events and `now` in, its state out.

It looks for the queue's master until it is subscribed there, and again whenever that ends: a lost connection, a master
that is none any more, a node on its way down. Only what no master would answer otherwise ends it for good: a deleted
queue, a right that is refused, its own `close`. While nobody answers it goes on trying, and whoever waits for records
is told after `patience_s`: he may wait again.
"""

from __future__ import annotations

from enum import Enum

from mirrorlog.client.same_queue import is_another
from mirrorlog.errors import BadInput, ConnectionLost, MirrorlogError, SubscriptionCancelled


class State(Enum):
    """Of a subscription."""

    SEEKING = "seeking"
    SUBSCRIBED = "subscribed"
    ENDED = "ended"


class Resumption:
    """Of one subscription. `error`: what it ended with, in state ENDED.

    `cancel_on_failover`: the first session that is lost ends it.
    """

    __slots__ = ("_cancel_on_failover", "_last", "_patience_s", "_seeking_since", "_was_subscribed", "error", "state")

    def __init__(self, *, now: float, patience_s: float, cancel_on_failover: bool) -> None:
        self.state = State.SEEKING
        self.error: MirrorlogError | None = None
        self._cancel_on_failover = cancel_on_failover
        self._patience_s = patience_s
        self._seeking_since = now
        self._was_subscribed = False
        self._last: MirrorlogError | None = None

    @property
    def over(self) -> bool:
        return self.state is State.ENDED

    def subscribed(self) -> None:
        """A master has taken it."""
        if not self.over:
            self.state, self._was_subscribed, self._last = State.SUBSCRIBED, True, None

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
        elif self._cancel_on_failover:
            self.end(SubscriptionCancelled(f"the queue's master, or the way to it, was lost: {error}", **error.details))
        else:
            self.state, self._seeking_since, self._last = State.SEEKING, now, error

    def end(self, error: MirrorlogError) -> None:
        """For good. The first reason counts."""
        if not self.over:
            self.state, self.error = State.ENDED, error

    def trouble(self, now: float) -> MirrorlogError | None:
        """What to tell whoever waits for records; None while there is nothing to tell."""
        if self.over:
            return self.error
        if self.state is State.SUBSCRIBED or now < self._seeking_since + self._patience_s:
            return None
        return self._last or ConnectionLost("no master was found yet")

    def _passing(self, error: MirrorlogError, now: float) -> bool:
        """Whether another attempt may end otherwise. What held a moment ago (the queue was there, its right was this
        subscription's) may only not be known yet where it is asked now."""
        if error.retriable:
            return True
        if is_another(error):
            return False
        lately = self._was_subscribed and now < self._seeking_since + self._patience_s
        return lately and not isinstance(error, BadInput)
