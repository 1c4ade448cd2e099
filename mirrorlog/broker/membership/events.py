"""What happened in the cluster, as this node came to know it: a ring of events, and those who wait for the next one.

Kept in memory, for as long as the run lasts: what counts is in the cluster's state, and the logs have the rest. The
newest `KEPT_MAX` are held; who comes later is told where the ring begins. A watcher asks again and again, each time for
what is behind the last number that it has; it is answered by a future of its own, so a slow one delays nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mirrorlog.cluster.coordination.liveness import Change, Life
from mirrorlog.cluster.state.events import Event, events_of
from mirrorlog.cluster.state.machine import AppliedEntry
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.errors import Overloaded
from mirrorlog.wire.messages.operators import ClusterEvent

KEPT_MAX: Final = 10_000
WATCHERS_MAX: Final = 100
"""How many may wait at a time."""
WAIT_MS_MAX: Final = 30_000
ANSWER_MAX: Final = 1_000
"""Events in one answer."""


class EventRing:
    """`Chronicle` of the cluster service. `now_us`: µs UTC; `known_to`: entries up to this index were on the disk when
    the run began, so nobody knows when they were decided."""

    def __init__(self, *, now_us: Callable[[], int], known_to: int = 0) -> None:
        self.known_to = known_to
        self._now_us = now_us
        self._events: deque[ClusterEvent] = deque(maxlen=KEPT_MAX)
        self._last = 0
        self._left_at: dict[str, int] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}

    # --- Chronicle ---

    def applied(self, step: AppliedEntry) -> None:
        """One more entry."""
        time_us = self._now_us() if step.entry.index > self.known_to else 0
        for event in events_of(step):
            self._add(event, time_us)

    def restored(self, state: ClusterState, index: int) -> None:
        """The state was taken over as a whole: what happened on the way to it is not known here."""
        text = f"this node took over what was decided up to entry {index}, view {state.version}"
        self._add(Event(kind="caught_up", text=text, index=index), self._now_us())

    def life_changed(self, change: Change) -> None:
        """Another node is up or down, as seen from here."""
        time_us = self._now_us()
        if change.life is Life.DOWN:
            self._left_at[change.node] = time_us
        text = f"node {change.node} is {change.life.value}, as seen from here: {change.reason}"
        event = Event(kind=f"node_{change.life.value}", text=text, node=change.node, details={"reason": change.reason})
        self._add(event, time_us)

    def coordinated(self, node: str, term: int) -> None:
        """Another node coordinates."""
        text = f"{node or 'a node'} coordinates the cluster, term {term}"
        self._add(Event(kind="coordinator_changed", text=text, node=node, details={"term": term}), self._now_us())

    # --- what a log's master has to tell ---

    def happened(self, event: Event) -> None:
        """Something that this node decided in a log that it masters."""
        self._add(event, self._now_us())

    # --- for who asks ---

    @property
    def first(self) -> int:
        """Number of the oldest event that is held."""
        return self._events[0].number if self._events else self._last + 1

    @property
    def last(self) -> int:
        """Number of the newest; 0 for none."""
        return self._last

    def behind(self, number: int, limit: int = ANSWER_MAX) -> list[ClusterEvent]:
        """Those behind `number`, the oldest first, `limit` of them at most."""
        limit = min(limit, ANSWER_MAX)
        start = max(0, number + 1 - self.first)
        return [self._events[at] for at in range(start, min(start + limit, len(self._events)))]

    async def wait(self, number: int, timeout_s: float) -> None:
        """Until there is an event behind `number`, or `timeout_s` is over. Raises Overloaded."""
        if self._last > number or timeout_s <= 0:
            return
        if len(self._waiting) >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} watchers wait for events already", limit="watchers_max")
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[told] = None
        try:
            await asyncio.wait([told], timeout=timeout_s)
        finally:
            self._waiting.pop(told, None)

    # --- inside ---

    def _add(self, event: Event, time_us: int) -> None:
        self._last += 1
        details = {**event.details, **self._failover(event, time_us)}
        text = event.text
        if "duration_ms" in details:
            text = f"{text}, {details['duration_ms']:.0f} ms after the one before was gone"
        self._events.append(
            ClusterEvent(
                number=self._last,
                time_us=time_us,
                kind=event.kind,
                text=text,
                index=event.index,
                node=event.node,
                log=event.log,
                details=details,
            )
        )
        for told in self._waiting:
            if not told.done():
                told.set_result(None)

    def _failover(self, event: Event, time_us: int) -> dict[str, Any]:
        """How long a log was without its master, where this node saw that one go."""
        if not time_us:
            return {}
        if event.kind in ("node_stopped", "node_left"):
            self._left_at[event.node] = time_us
        elif event.kind in ("node_started", "node_up"):
            self._left_at.pop(event.node, None)
        elif event.kind == "promoted" and (left := self._left_at.get(event.details["from"])) is not None:
            return {"duration_ms": (time_us - left) / 1000}
        return {}
