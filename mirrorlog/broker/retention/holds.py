"""The holds of one log, on the node that masters it: whose lease runs, who keeps too much, and who is told. Thin:
`queues.holds` decides.

A lease is a duration on this node's monotonic clock (invariant 13). It begins anew when the landing renews it, and with
every mastership, for nobody knows how long the one before was away. A renewal that changes nothing else is not written
to the log: it is answered once this node is known to be the master still, and what a master forgets when it goes is
given again in full by the next one. Only the end is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple

from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.cluster.state.events import Event
from mirrorlog.errors import MirrorlogError, OffsetOutOfRange
from mirrorlog.queues.changes import HoldEnded, encode_change
from mirrorlog.queues.limits.holds import EXPIRED, TOO_MUCH, Hold

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1
"""How often the leases are looked at."""
MEASURE_S: Final = 1.0
"""How often it is measured what the holds keep, at most; a look at a record of the past is a question to the index."""
PAUSE: Final = 20
"""And then a pause of so many times as long as it took."""

_Key = tuple[int, str]
_UNKNOWN: Final = -1


class _Lease(NamedTuple):
    epoch: int
    lease_ms: int
    ends_at: float


class _Kept(NamedTuple):
    """How many bytes of the log a hold kept, when it stood so."""

    epoch: int
    queue_offset: int
    size: int


class HoldKeeper:
    """The holds of a log that this node masters. `hold_bytes`: see `log.hold_bytes`; `past_helper`: the one that has
    the past for itself; `tell`: the node's chronicle."""

    def __init__(
        self,
        replica: Replica,
        publisher: LogPublisher,
        *,
        hold_bytes: int,
        past_helper: Executor,
        tell: Callable[[Event], None],
    ) -> None:
        self._replica = replica
        self._publisher = publisher
        self._hold_bytes = hold_bytes
        self._past_helper = past_helper
        self._tell = tell
        self._leases: dict[_Key, _Lease] = {}
        self._kept: dict[_Key, _Kept] = {}
        self._look_at = self._measure_at = 0.0
        self._measuring: asyncio.Task[None] | None = None

    # --- leases ---

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock): end what has run out or keeps too much."""
        if now < self._look_at or self._publisher.stopping or self._publisher.cut_off:
            return
        self._look_at = now + LOOK_S
        live = {(queue_id, hold.name): hold for queue_id, hold in self._replica.holds.live()}
        self._leases = {key: lease for key, lease in self._leases.items() if key in live}
        self._kept = {key: kept for key, kept in self._kept.items() if key in live}
        for key, hold in live.items():
            if self._lease(key, hold, now).ends_at <= now:
                self._end(key, EXPIRED)
            elif 0 <= self._hold_bytes < self._kept_now(key, hold):
                self._end(key, TOO_MUCH)
        if live and now >= self._measure_at and (self._measuring is None or self._measuring.done()):
            self._measuring = asyncio.ensure_future(self._measure(live))

    def renewed(self, queue_id: int, name: str, now: float) -> None:
        """The landing is there: its lease begins anew."""
        hold = self._replica.holds.newest(queue_id).get(name)
        if hold is not None and hold.live:
            self._leases[queue_id, name] = _begun(hold, now)

    def left_ms(self, queue_id: int, hold: Hold, now: float) -> int:
        """What is left of a lease; all of it before this mastership has looked at it, 0 of a hold that has ended."""
        if not hold.live:
            return 0
        lease = self._leases.get((queue_id, hold.name))
        if lease is None or lease.epoch != hold.epoch:
            return hold.lease_ms
        return max(0, round((lease.ends_at - now) * 1000))

    def kept_bytes(self, queue_id: int, name: str) -> int:
        """From the first record that the hold keeps to the log's end, when it was last measured; -1 before."""
        kept = self._kept.get((queue_id, name))
        hold = self._replica.holds.newest(queue_id).get(name)
        return kept.size if kept is not None and hold is not None and hold.epoch == kept.epoch else _UNKNOWN

    async def stop(self) -> None:
        """Wait for the look at the past that is under way. After `LogPublisher.stopping`."""
        if self._measuring is not None:
            await self._measuring

    def _lease(self, key: _Key, hold: Hold, now: float) -> _Lease:
        lease = self._leases.get(key)
        if lease is None or (lease.epoch, lease.lease_ms) != (hold.epoch, hold.lease_ms):
            lease = self._leases[key] = _begun(hold, now)
        return lease

    def _end(self, key: _Key, reason: str) -> None:
        queue_id, name = key
        holds = self._replica.holds
        change = holds.end(queue_id, name, reason)
        if change is None:
            return
        hold = holds.newest(queue_id)[name]
        try:
            self._publisher.append_control(encode_change(change, queue_id=queue_id))
        except MirrorlogError as error:
            # The next look tries again; meanwhile the log keeps more than it must.
            logger.debug("hold_not_ended log=%s reason=%r", self._replica.assignment.name, str(error))
            return
        self.ended(queue_id, hold, change)

    # --- telling ---

    def was_set(self, queue_id: int, old: Hold | None, hold: Hold) -> None:
        """A landing was given the hold: it is new, or another one had it before, or the same one after an end."""
        if old is not None and old.live and old.epoch == hold.epoch:
            return
        taken = old is not None and old.live and old.holder != hold.holder
        came = f", which {old.holder} had" if taken and old is not None else ""
        kind = "hold_taken_over" if taken else "hold_set"
        logger.info(
            "%s log=%s queue=%r landing=%r holder=%r epoch=%s queue_offset=%s lease_ms=%s tiered=%s",
            kind, self._replica.assignment.name, self._name(queue_id), hold.name, hold.holder, hold.epoch,
            hold.queue_offset, hold.lease_ms, hold.tiered,
        )  # fmt: skip
        text = (
            f"landing {hold.name} ({hold.holder}) holds queue {self._name(queue_id)} from {hold.queue_offset} on{came}"
        )
        self._event(kind, text, queue_id, hold, {})

    def ended(self, queue_id: int, hold: Hold, change: HoldEnded) -> None:
        """A hold keeps nothing any more, or will not once that is confirmed."""
        logger.info(
            "hold_ended log=%s queue=%r landing=%r holder=%r epoch=%s queue_offset=%s reason=%s",
            self._replica.assignment.name, self._name(queue_id), hold.name, hold.holder, hold.epoch,
            hold.queue_offset, change.reason,
        )  # fmt: skip
        text = f"landing {hold.name} ({hold.holder}) holds queue {self._name(queue_id)} no more: {change.reason}"
        self._event("hold_ended", text, queue_id, hold, {"reason": change.reason})

    def _event(self, kind: str, text: str, queue_id: int, hold: Hold, more: Mapping[str, object]) -> None:
        details = {
            "queue": self._name(queue_id),
            "landing": hold.name,
            "holder": hold.holder,
            "epoch": hold.epoch,
            "queue_offset": hold.queue_offset,
            **more,
        }
        self._tell(Event(kind=kind, text=text, log=self._replica.assignment.name, details=details))

    def _name(self, queue_id: int) -> str:
        queues = self._replica.queues
        return queues.find_id(queue_id).name if queues.has_id(queue_id) else str(queue_id)

    # --- what is kept ---

    def _kept_now(self, key: _Key, hold: Hold) -> int:
        """What this hold keeps, as it stands now. One that was registered again, or that has moved on, is not judged by
        what it, or another one, kept before."""
        kept = self._kept.get(key)
        if kept is None or (kept.epoch, kept.queue_offset) != (hold.epoch, hold.queue_offset):
            return _UNKNOWN
        return kept.size

    async def _measure(self, live: Mapping[_Key, Hold]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            for key, hold in live.items():
                if self._publisher.stopping or not self._replica.usable:
                    return
                size = await self._kept_by(key[0], hold.queue_offset)
                # At once: one that moves often would not stand there any more when all are measured.
                self._kept[key] = _Kept(hold.epoch, hold.queue_offset, size)
        except MirrorlogError as error:
            logger.debug("holds_not_measured log=%s reason=%r", self._replica.assignment.name, str(error))
        except Exception:
            # What is not known ends no hold.
            logger.exception("holds_not_measured log=%s", self._replica.assignment.name)
        self._measure_at = loop.time() + max(MEASURE_S, PAUSE * (loop.time() - began))

    async def _kept_by(self, queue_id: int, queue_offset: int) -> int:
        replica, index = self._replica, self._replica.index
        at = max(queue_offset, index.begin(queue_id))
        while at < index.next_confirmed(queue_id):
            until = index.past_until(queue_id, at)
            if until is None:
                try:
                    return replica.log.end - index.find(queue_id, at).log_offset
                except OffsetOutOfRange:
                    break  # behind the last record: a gap
            past = replica.past
            assert past is not None
            look = partial(past.entries, queue_id, at, 1, until=until)
            runs = await asyncio.get_running_loop().run_in_executor(self._past_helper, look)
            if runs:
                return replica.log.end - runs[0].log_offset
            at = until
        return 0


def _begun(hold: Hold, now: float) -> _Lease:
    return _Lease(hold.epoch, hold.lease_ms, now + hold.lease_ms / 1000)
