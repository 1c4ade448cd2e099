"""How changes of groups come into the log: in batches that every node takes, and as they can be. Thin.

What needs a change that is refused is tried again at a tick; whoever asked for a change hears why it was refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroups, Work, in_batches, merged
from mirrorlog.broker.log.publish import Publisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.errors import MirrorlogError, OutcomeUnknown
from mirrorlog.queues.changes import Change, encode_changes

logger = logging.getLogger(__name__)


class GroupLog:
    """Of one mastership. `stopped`: it has ended, or is handed over: nothing is given any more."""

    def __init__(self, replica: Replica, publisher: Publisher, works: ActiveGroups) -> None:
        self._replica = replica
        self._publisher = publisher
        self._works = works
        self.stopped = False

    @property
    def end(self) -> int:
        return self._replica.log.end

    def append(self, queue_id: int, changes: Iterable[Change], logged: list[Change] | None = None) -> int:
        """Where they end in the log. Raises MirrorlogError, OutcomeUnknown when a part of them is there; `logged`: is
        given what is there."""
        begin = end = self._replica.log.end
        for batch in in_batches(changes):
            try:
                end = self._publisher.append_settlement(encode_changes(batch, queue_id=queue_id), batch)
            except MirrorlogError as error:
                if end == begin:
                    raise
                raise OutcomeUnknown(f"the first part of many ranges is logged, the rest is not: {error}") from None
            if logged is not None:
                logged.extend(batch)
        return end

    def append_if_possible(
        self, work: Work, changes: Iterable[Change], logged: list[Change] | None = None
    ) -> int | None:
        """Nobody waits for it, and what needs it is tried again. `logged`: as `append`."""
        try:
            return self.append(work.key[0], merged(work.key[1], changes), logged)
        except MirrorlogError as error:
            logger.debug("group_not_logged log=%s reason=%r", self._replica.assignment.name, str(error))
            self._works.refuse(work)
            return None
