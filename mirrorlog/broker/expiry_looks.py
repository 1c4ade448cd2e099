"""Records that expire do so whether somebody takes from their group or not: whose groups have to look at that, and when
(`queues.expiries`). Thin.

A group that looks is one that somebody takes from, for that moment. A queue that is declared with something that
expires has its own group as soon as it has such records: nobody has to take from it first.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Set
from typing import Final

from mirrorlog.broker.deliveries import Deliveries
from mirrorlog.broker.log_clock import LogClock
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.works import Key, WorkTable
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.expiries import Expiries
from mirrorlog.queues.groups import OWN_GROUP

logger = logging.getLogger(__name__)

_LOOKED_AT_ONCE: Final = 4096
_EXPIRING_AT_ONCE: Final = 256
"""Groups that look at what has expired, in a turn of the loop."""
_EXPIRING: Final = ("x-message-ttl", "x-dead-letter-exchange")
"""Arguments of queues that have their own group for what expires."""


class ExpiryLooks:
    """Of the queues of one log. `soon`: has `look` called in a turn of the loop to come."""

    def __init__(
        self,
        replica: Replica,
        works: WorkTable,
        *,
        deliveries: Deliveries,
        clock: LogClock,
        soon: Callable[[], None],
    ) -> None:
        self._replica = replica
        self._works = works
        self._deliveries = deliveries
        self._clock = clock
        self._soon = soon
        self._expiries = Expiries(runs=replica.runs.of, confirmed=replica.index.next_confirmed)
        # Groups in whose queues something has expired.
        self._expiring: deque[Key] = deque()

    @property
    def unlooked(self) -> bool:
        """Whether there is something that was not looked at."""
        return self._expiries.unlooked

    @property
    def due(self) -> bool:
        """Whether `look` has something to do."""
        expiries = self._expiries
        return expiries.unlooked or bool(self._expiring) or expiries.next_us <= self._clock()

    def begin(self) -> None:
        """A mastership begins: all queues are to be looked at."""
        self._expiries.gained(self._replica.runs.queue_ids())

    def gained(self, queue_ids: Set[int]) -> None:
        """More of these is confirmed, and groups may have been made."""
        if self._replica.runs.total:
            self._expiries.gained(queue_ids)
        if made := self._replica.groups.made:
            for queue_id in made:
                self._expiries.anew(queue_id)
            made.clear()

    def forget(self, queue_id: int) -> None:
        """It is there no more."""
        self._expiries.forget(queue_id)

    def look(self) -> None:
        """Wake the groups in whose queues something has expired, so many at once."""
        if not self.due:
            return
        not_made = [each for each in self._expiries.look(_LOOKED_AT_ONCE) if not self._make_own(each)]
        groups = self._replica.groups.groups
        for queue_id in self._expiries.come(self._clock()):
            self._expiring += ((queue_id, group) for group in groups(queue_id))
        for _ in range(min(len(self._expiring), _EXPIRING_AT_ONCE)):
            self._let_expire(self._expiring.popleft())
        if self.due:
            self._soon()
        for queue_id in not_made:  # a confirm or a tick comes back to it
            self._expiries.anew(queue_id)

    # --- inside ---

    def _make_own(self, queue_id: int) -> bool:
        """Something of the queue expires. Whether it has its own group, if it is to have one for that."""
        queues = self._replica.queues
        if not queues.has_id(queue_id) or not any(each in queues.find_id(queue_id).arguments for each in _EXPIRING):
            return True
        try:
            self._deliveries.drop_if_idle(self._deliveries.of((queue_id, OWN_GROUP)))
        except MirrorlogError as error:
            logger.debug("group_not_made log=%s reason=%r", self._replica.assignment.name, str(error))
            return False
        return True

    def _let_expire(self, key: Key) -> None:
        """The group looks at what stands in its queue, unless all of that is settled."""
        ledger = self._replica.groups.get(*key)
        if ledger is None or not self._replica.queues.has_id(key[0]):
            return
        if ledger.floor < self._replica.index.next_confirmed(key[0]):
            self._works.wake(self._deliveries.of(key))
