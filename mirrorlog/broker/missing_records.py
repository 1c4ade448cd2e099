"""Records that are there no more: retention has freed them, or losses have left gaps. Nobody waits for such ones, and
whatever becomes of them is not for a group to say: they are settled. Thin."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from mirrorlog.broker.deliveries import Deliveries
from mirrorlog.broker.group_log import GroupLog
from mirrorlog.broker.pushed import PushedTable
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.works import Key, Work, WorkTable
from mirrorlog.commitlog.gaps import NO_GAP
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Settled
from mirrorlog.queues.outcomes import GONE

logger = logging.getLogger(__name__)

_GAPS_AT_ONCE: Final = 64


class MissingRecords:
    """Of the groups of one log."""

    def __init__(
        self, replica: Replica, works: WorkTable, log: GroupLog, *, deliveries: Deliveries, pushed: PushedTable
    ) -> None:
        self._replica = replica
        self._works = works
        self._log = log
        self._deliveries = deliveries
        self._pushed = pushed
        # Groups that may count what a loss has left a gap of; made when this mastership has begun.
        self._gapped: Iterator[Key] | None = None

    def settle(self, work: Work) -> None:
        """Those of a group that somebody takes from."""
        queue_id, changes = work.key[0], self._missing(work)
        gaps = self._replica.index.gaps_of(queue_id)
        if not changes:
            work.gaps = gaps
            return
        freed = self._freed(*work.key)
        if self._log.append_if_possible(work, changes) is None:
            return
        work.gaps = gaps
        self._replica.counters.queue(queue_id).expired += freed
        numbers = work.delivery.numbers
        for change in changes:
            work.delivery.missing_done(change)
        for number in numbers:
            self._pushed.forget_if_done(number, work)
        self._deliveries.drop_if_idle(work)

    def settle_gaps(self) -> None:
        """Those of groups that nobody takes from, some at a time: once in a mastership, for a loss is declared before
        one."""
        if self._gapped is None:
            queues = [queue_id for queue_id, _ in self._replica.index.gaps()]
            self._gapped = iter([(each, group) for each in queues for group in self._replica.groups.groups(each)])
        for key in islice(self._gapped, _GAPS_AT_ONCE):
            if (work := self._works.get(key)) is not None:
                self._works.wake(work)
            else:
                self._settle_gaps(*key)

    # --- inside ---

    def _missing(self, work: Work) -> list[Settled]:
        """What settles all of it, in order."""
        index, queue_id = self._replica.index, work.key[0]
        begin, gaps = index.begin(queue_id), index.gaps_of(queue_id)
        # Each turn comes here, and nobody takes back what is settled.
        behind = (gap for gap in gaps if gap[1] > begin) if gaps is not work.gaps else ()
        found = [work.delivery.missing(begin, NO_GAP), *(work.delivery.missing(0, gap) for gap in behind)]
        return [change for change in found if change is not None]

    def _freed(self, queue_id: int, group: str) -> int:
        """How many records retention has freed that are not settled. What stood in a gap was none."""
        index, ledger = self._replica.index, self._replica.groups.find(queue_id, group)
        begin = index.begin(queue_id)
        lost = ((max(first, ledger.floor), min(until, begin)) for first, until in index.gaps_of(queue_id))
        freed = ledger.unsettled(ledger.floor, begin) if ledger.floor < begin else 0
        return freed - sum(ledger.unsettled(first, until) for first, until in lost if first < until)

    def _settle_gaps(self, queue_id: int, group: str) -> None:
        ledger, gaps = self._replica.groups.get(queue_id, group), self._replica.index.gaps_of(queue_id)
        if ledger is None:
            return
        unsettled = [each for each in gaps if ledger.unsettled(*each)]
        if not unsettled:
            return
        ranges = [edge for first, until in unsettled for edge in (max(first, ledger.floor), until)]
        change = Settled(group=group, ranges=ranges, why=GONE)
        try:
            self._log.append(queue_id, [change])
        except MirrorlogError as error:  # whoever takes from it has it settled then
            logger.debug("gap_not_settled log=%s reason=%r", self._replica.assignment.name, str(error))
