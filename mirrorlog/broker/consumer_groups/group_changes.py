"""How groups end, or are made anew, whoever takes from them: one is deleted or reset, or its queue is gone. Thin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroup, Key
from mirrorlog.broker.consumer_groups.deliveries import Deliveries, GroupContext
from mirrorlog.broker.consumer_groups.leases import Leasing
from mirrorlog.broker.consumer_groups.settlement import PushedTable, Respond, SettlementService
from mirrorlog.errors import BadRequest, MirrorlogError, OutcomeUnknown, SubscriptionCancelled
from mirrorlog.ha.group_transfer import ALL_MEMBERS
from mirrorlog.queues.changes import Change, GroupDeleted, GroupReset, PositionCommitted, Settled, encode_changes
from mirrorlog.queues.groups.table import OWN_GROUP, no_such_group
from mirrorlog.queues.ranges import Range
from mirrorlog.wire.messages.groups import Purged, Redrive, Redriven
from mirrorlog.wire.messages.queues import Done

Replacing = GroupReset | GroupDeleted | PositionCommitted


class GroupEnds:
    """Of the groups of one log. Changes of groups that end together fit into one batch."""

    def __init__(
        self,
        context: GroupContext,
        deliveries: Deliveries,
        pushed: PushedTable,
        settling: SettlementService,
        leasing: Leasing,
    ) -> None:
        self._replica = context.replica
        self._publisher = context.publisher
        self._works = context.works
        self._deliveries = deliveries
        self._pushed = pushed
        self._settling = settling
        self._leasing = leasing
        self._batch_bytes_max = context.limits.max_batch_bytes

    def delete(self, queue_id: int, group: str, respond: Respond) -> None:
        """Forget it, of either kind, whoever is subscribed. Answered with Done once that is confirmed. Raises
        NoSuchGroup, or MirrorlogError: then nothing was changed."""
        streams = self._replica.queues.find_id(queue_id).newest
        if self._replica.groups.get(queue_id, group) is None and group not in streams:
            raise no_such_group(group)
        self.replace(queue_id, [GroupDeleted(group=group)], "deleted", lambda error: respond(error or Done()))

    def replace(
        self, queue_id: int, changes: Sequence[Replacing], what: str, done: Callable[[MirrorlogError | None], None]
    ) -> None:
        """Log what ends, or makes anew, some groups of a queue, all or none: who takes from one, or waits for a lease
        of it, is told that it was `what`, and whatever he has of it is nobody's. `done`: once it is confirmed. Raises
        MirrorlogError: then nothing was changed."""
        groups = [change.group for change in changes]
        batch = encode_changes(changes, queue_id=queue_id)
        if len(batch) > self._batch_bytes_max:
            raise BadRequest(
                f"{len(groups)} groups at once do not fit into a batch (limits.max_batch_bytes); name fewer"
            )
        self.settle_gathered(queue_id, groups)
        end = self._publisher.append_settlement(batch)
        for group in groups:
            work = self._works.get((queue_id, group))
            if work is not None:
                self._cancel(work, SubscriptionCancelled(f"group {group!r} was {what}"))
            self._deliveries.forget_group((queue_id, group))
        self._publisher.wait_at(end, ALL_MEMBERS, done)

    def settle_gathered(self, queue_id: int, groups: Iterable[str]) -> None:
        """What was asked of these groups is logged: it comes before whatever is to be decided now."""
        works = (self._works.get((queue_id, group)) for group in groups)
        for work in [each for each in works if each is not None]:
            self._settling.flush(work)

    def end_queue(self, queue_id: int, error: MirrorlogError) -> None:
        """It is there no more; all who take from it, or wait, are told `error`."""
        for work in self._works.of_queue(queue_id):
            self._cancel(work, error)
        self._deliveries.forget_queue(queue_id)

    def _cancel(self, work: ActiveGroup, error: MirrorlogError) -> None:
        """The group is gone, and with it all who take from it."""
        for number in work.delivery.subscribers.numbers:
            if (pushed := self._pushed.get(number)) is not None:
                self._pushed.end(number, pushed.receiver, error)
            self._leasing.refuse(number, error)
        self._works.remove(work)


# What becomes of records that are with no consumer because somebody asks for it: they are purged, or leave for other
# queues. Thin: `queues.delivery` says which these are.


class ReadyRecords:
    """Of the groups of one log."""

    def __init__(self, context: GroupContext, deliveries: Deliveries, settling: SettlementService) -> None:
        self._replica = context.replica
        self._publisher = context.publisher
        self._log = context.log
        self._deliveries = deliveries
        self._settling = settling
        self._forwardings = context.forwardings

    def purge(self, queue_id: int, group: str, respond: Respond) -> None:
        """Settle what is with no consumer. Answered with Purged once that is confirmed. Raises MirrorlogError: then
        nothing was changed."""
        work = self._deliveries.of((queue_id, group))
        self._purge(work, self._replica.index.next_confirmed(queue_id), 0, 0, respond)

    def redrive(self, message: Redrive, queue_id: int, respond: Respond) -> None:
        """Have ready records of the queue's own group leave. Answered with Redriven once it is confirmed that they do.
        Raises MirrorlogError: then none does."""
        self._forwardings.check_room(queue_id, message.to)
        work = self._deliveries.of((queue_id, OWN_GROUP))
        self._settling.flush(work)
        try:
            ready = work.delivery.free.ready(self._replica.index.next_confirmed(queue_id), message.records_max)
            self._have_leave(work, ready, message.to)
        finally:
            self._deliveries.drop_if_idle(work)
        done = Redriven(records=sum(until - first for first, until in ready))
        self._publisher.wait_at(self._log.end, ALL_MEMBERS, lambda error: respond(error or done))

    # --- inside ---

    def _purge(self, work: ActiveGroup, until: int, since: int, records: int, respond: Respond) -> None:
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

    def _log_purge(self, work: ActiveGroup, change: Settled | None) -> int:
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

    def _have_leave(self, work: ActiveGroup, ready: list[Range], to: str) -> None:
        if ready:
            change = self._forwardings.redriven(work.key[0], ready, to)
            self._log.append(work.key[0], [change])
            work.delivery.settling.done(ready)
