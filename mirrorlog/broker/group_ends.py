"""How groups end, or are made anew, whoever takes from them: one is deleted or reset, or its queue is gone. Thin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mirrorlog.broker.deliveries import Deliveries
from mirrorlog.broker.leasing import Leasing
from mirrorlog.broker.publish import Publisher
from mirrorlog.broker.pushed import PushedTable
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.settling import Respond, Settling
from mirrorlog.broker.works import Work, WorkTable
from mirrorlog.errors import BadRequest, MirrorlogError, SubscriptionCancelled
from mirrorlog.ha.progress import ALL_MEMBERS
from mirrorlog.queues.changes import GroupDeleted, GroupReset, PositionCommitted, encode_changes
from mirrorlog.queues.groups import no_such_group
from mirrorlog.wire.messages import Done

Replacing = GroupReset | GroupDeleted | PositionCommitted


class GroupEnds:
    """Of the groups of one log. `batch_bytes_max`: changes of groups that end together fit into one batch."""

    def __init__(
        self,
        replica: Replica,
        publisher: Publisher,
        works: WorkTable,
        *,
        deliveries: Deliveries,
        pushed: PushedTable,
        settling: Settling,
        leasing: Leasing,
        batch_bytes_max: int,
    ) -> None:
        self._replica = replica
        self._publisher = publisher
        self._works = works
        self._deliveries = deliveries
        self._pushed = pushed
        self._settling = settling
        self._leasing = leasing
        self._batch_bytes_max = batch_bytes_max

    def delete(self, queue_id: int, group: str, respond: Respond) -> None:
        """See `Deliverer.delete_group`."""
        streams = self._replica.queues.find_id(queue_id).newest
        if self._replica.groups.get(queue_id, group) is None and group not in streams:
            raise no_such_group(group)
        self.replace(queue_id, [GroupDeleted(group=group)], "deleted", lambda error: respond(error or Done()))

    def replace(
        self, queue_id: int, changes: Sequence[Replacing], what: str, done: Callable[[MirrorlogError | None], None]
    ) -> None:
        """See `Deliverer.replace`."""
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

    def _cancel(self, work: Work, error: MirrorlogError) -> None:
        """The group is gone, and with it all who take from it."""
        for number in work.delivery.numbers:
            if (pushed := self._pushed.get(number)) is not None:
                self._pushed.end(number, pushed.receiver, error)
            self._leasing.refuse(number, error)
        self._works.remove(work)
