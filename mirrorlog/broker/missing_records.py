"""Records that are there no more: retention has freed them, or a loss has left a gap. Nobody waits for such ones, and
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
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Settled
from mirrorlog.queues.deaths import EXPIRED

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
        index, queue_id = self._replica.index, work.key[0]
        change = work.delivery.missing(index.begin(queue_id), index.gap(queue_id))
        expired = 0 if change is None else self._unsettled(work, change.ranges[-1])
        if change is None or self._log.append_if_possible(work, [change]) is None:
            return
        expired -= self._unsettled(work, change.ranges[-1])
        self._replica.counters.queue(queue_id).expired += max(0, expired)
        numbers = work.delivery.numbers
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
                self._settle_gap(*key)

    # --- inside ---

    def _unsettled(self, work: Work, below: int) -> int:
        ledger = self._replica.groups.get(*work.key)
        return 0 if ledger is None else ledger.unsettled_total(below)

    def _settle_gap(self, queue_id: int, group: str) -> None:
        ledger, (first, until) = self._replica.groups.get(queue_id, group), self._replica.index.gap(queue_id)
        if ledger is None or not ledger.unsettled(first, until):
            return
        change = Settled(group=group, ranges=[max(first, ledger.floor), until], why=EXPIRED)
        try:
            self._log.append(queue_id, [change])
        except MirrorlogError as error:  # whoever takes from it has it settled then
            logger.debug("gap_not_settled log=%s reason=%r", self._replica.assignment.name, str(error))
