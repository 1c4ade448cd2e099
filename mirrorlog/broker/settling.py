"""What was said of records in a turn of the loop becomes changes of the log, and is answered when that is confirmed.

Settlements of a group are logged together, with the watermark that they make room for: `broker.gathered` says as what.
Thin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from mirrorlog.broker.gathered import Asked, Gathered, Part, ranges_of
from mirrorlog.broker.group_log import GroupLog
from mirrorlog.broker.publish import Publisher
from mirrorlog.broker.pushed import PushedTable
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.watermarks import Watermarks
from mirrorlog.broker.works import Work, WorkTable
from mirrorlog.errors import BadRequest, MirrorlogError, Overloaded
from mirrorlog.queues.changes import Change
from mirrorlog.queues.delivery import Settlement
from mirrorlog.wire.frames import How
from mirrorlog.wire.messages import Message

DELAY_MS_MAX: Final = 366 * 24 * 3600 * 1000

_HOWS: Final = frozenset(map(int, How))

Respond = Callable[[Message | MirrorlogError], None]
"""Answers whoever asked, once."""


class Settling:
    """`waiting_max`: so many settlements wait for a confirm; `now`: the loop's clock in s."""

    def __init__(
        self,
        replica: Replica,
        publisher: Publisher,
        works: WorkTable,
        log: GroupLog,
        *,
        watermarks: Watermarks,
        pushed: PushedTable,
        waiting_max: int,
        now: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._publisher = publisher
        self._works = works
        self._log = log
        self._watermarks = watermarks
        self._pushed = pushed
        self._waiting_max = waiting_max
        self._now = now
        self._waiting = 0

    def gather(self, work: Work, asked: Asked) -> None:
        """It is logged at the end of the turn. Raises Overloaded."""
        if self._waiting >= self._waiting_max:
            raise Overloaded(
                f"{self._waiting} settlements wait for a confirm (limits.max_waiting_confirms); send fewer at once",
                limit="max_waiting_confirms",
            )
        self._waiting += 1
        work.gathered.add(asked)
        if self._log.stopped:
            self.flush(work)
        self._works.wake(work)

    def flush(self, work: Work) -> None:
        """Log what was gathered, and answer it when it is confirmed."""
        gathered = work.gathered
        if not gathered.asked:
            return
        work.gathered = Gathered()
        for part in gathered.parts(work.key[1]):
            self._log_part(work, part)
        self._works.plan(work)
        self._works.wake(work)

    def settled(self, work: Work, settlement: Settlement, now: float) -> None:
        """Its changes are in the log."""
        work.delivery.settled(settlement, now)
        if settlement.how == How.ACK:
            self._replica.counters.queue(work.key[0]).acked.add(settlement.records, now)

    # --- inside ---

    def _log_part(self, work: Work, part: Part) -> None:
        """Log a part of what was gathered; the others go on without it when it is refused."""
        those, changes, logged = part.asked, part.changes, list[Change]()
        watermark = self._watermarks.wanted(work, sum(map(work.delivery.freed, part.settlements)))
        if changes and watermark is not None:
            changes.append(watermark)
        now = self._now()
        try:
            end = self._log.append(work.key[0], changes, logged)
        except MirrorlogError as error:
            self._count_part(work, part, logged, now)
            self._answer([each for each in those if each.settlement.changes], error)
            # What takes no change, as a release, is not refused with the others.
            those, changes, end = [each for each in those if not each.settlement.changes], [], self._log.end
        if changes and watermark is not None:
            self._watermarks.appended(work, end, watermark)
        self._count(work, those, end, now)

    def _count_part(self, work: Work, part: Part, logged: Sequence[Change], now: float) -> None:
        """When some of it is in the log though the rest was refused, it is one settlement alone, and that of it
        counts."""
        if logged:
            counts = replace(part.settlements[0], ranges=ranges_of(logged), changes=tuple(logged))
            work.delivery.settled(counts, now)
            self._pushed.forget_if_done(part.settlements[0].number, work)

    def _count(self, work: Work, those: Sequence[Asked], end: int, now: float) -> None:
        """They are in the log, which ends at `end` with them; each is answered at its own level."""
        by_copies: dict[int, list[Asked]] = {}
        for asked in those:
            self.settled(work, asked.settlement, now)
            by_copies.setdefault(asked.copies, []).append(asked)
            self._pushed.forget_if_done(asked.settlement.number, work)
        for copies, equals in by_copies.items():
            self._publisher.wait_at(end, copies, partial(self._answer, equals))

    def _answer(self, those: Sequence[Asked], error: MirrorlogError | None) -> None:
        self._waiting -= len(those)
        for asked in those:
            asked.done(error)


def check_settle(how: int, delay_ms: int) -> None:
    """Of a settlement, of whatever kind. Raises BadRequest."""
    if how not in _HOWS:
        raise BadRequest(f"how {how} is none of " + ", ".join(f"{each.value} ({each.name.lower()})" for each in How))
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise BadRequest(f"delay_ms {delay_ms} is not within 0 and {DELAY_MS_MAX}")
