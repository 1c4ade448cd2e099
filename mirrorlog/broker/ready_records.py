"""What becomes of records that are in nobody's hands because somebody asks for it: they are purged, or leave for other
queues. Thin: `queues.delivery` says which these are."""

from __future__ import annotations

import asyncio

from mirrorlog.broker.deliveries import Deliveries
from mirrorlog.broker.group_departures import GroupDepartures
from mirrorlog.broker.group_log import GroupLog
from mirrorlog.broker.publish import Publisher
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.settling import Respond, Settling
from mirrorlog.broker.works import Key, Work
from mirrorlog.errors import MirrorlogError, OutcomeUnknown
from mirrorlog.ha.progress import ALL_MEMBERS
from mirrorlog.queues.changes import Change, Settled
from mirrorlog.queues.groups import OWN_GROUP
from mirrorlog.queues.subscriber import Range
from mirrorlog.wire.messages import Purged, Redrive, Redriven


class ReadyRecords:
    """Of the groups of one log."""

    def __init__(
        self,
        replica: Replica,
        publisher: Publisher,
        log: GroupLog,
        *,
        deliveries: Deliveries,
        settling: Settling,
        departures: GroupDepartures,
    ) -> None:
        self._replica = replica
        self._publisher = publisher
        self._log = log
        self._deliveries = deliveries
        self._settling = settling
        self._departures = departures

    def purge(self, queue_id: int, group: str, respond: Respond) -> None:
        """See `Deliverer.purge`."""
        work = self._deliveries.of((queue_id, group))
        self._purge(work, self._replica.index.next_confirmed(queue_id), 0, 0, respond)

    def redrive(self, message: Redrive, queue_id: int, respond: Respond) -> None:
        """See `Deliverer.redrive`."""
        self._departures.check_room(queue_id, message.to)
        work = self._deliveries.of((queue_id, OWN_GROUP))
        self._settling.flush(work)
        try:
            ready = work.delivery.ready(self._replica.index.next_confirmed(queue_id), message.records_max)
            self._have_leave(work, ready, message.to)
        finally:
            self._deliveries.drop_if_idle(work)
        done = Redriven(records=sum(until - first for first, until in ready))
        self._publisher.wait_at(self._log.end, ALL_MEMBERS, lambda error: respond(error or done))

    # --- inside ---

    def _purge(self, work: Work, until: int, since: int, records: int, respond: Respond) -> None:
        """From the queue offset `since` on, behind `records` that were settled; the rest in turns to come."""
        self._settling.flush(work)
        change = work.delivery.purge(until, since)
        end = self._log_purge(work, change)
        if change is None:
            done = Purged(records=records)
            self._publisher.wait_at(end, ALL_MEMBERS, lambda error: respond(error or done))
            return
        records += sum(change.ranges[1::2]) - sum(change.ranges[::2])
        asyncio.get_running_loop().call_soon(self._purge_on, work.key, until, change.ranges[-1], records, respond)

    def _log_purge(self, work: Work, change: Settled | None) -> int:
        """Where it ends in the log. Raises MirrorlogError: what is logged of it counts."""
        logged = list[Change]()
        try:
            return self._log.append(work.key[0], [change], logged) if change is not None else self._log.end
        finally:
            for part in logged:
                if isinstance(part, Settled):
                    work.delivery.purge_done(part)
            self._deliveries.drop_if_idle(work)

    def _purge_on(self, key: Key, until: int, since: int, records: int, respond: Respond) -> None:
        try:
            self._purge(self._deliveries.of(key), until, since, records, respond)
        except MirrorlogError as error:
            respond(OutcomeUnknown(f"{records} records were purged, and the rest was not: {error}"))

    def _have_leave(self, work: Work, ready: list[Range], to: str) -> None:
        if ready:
            change = self._departures.redriven(work.key[0], ready, to)
            self._log.append(work.key[0], [change])
            work.delivery.left(ready)
