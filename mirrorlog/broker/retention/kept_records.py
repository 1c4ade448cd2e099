"""What keeps the records of a log's queues, whatever limits say: landings that hold them, groups that have not settled
them, and logs that their queues have gone to. On the node that masters the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.retention import Queues
from mirrorlog.queues.arguments import tier_keep_us

ALL_DEAD = 2**63 - 1
"""Where a queue begins that was deleted: behind all that it has."""


class KeptRecords:
    """Of one log. Nothing is remembered: all is asked of the log's states as they are. `unread`: by queue, the lowest
    record that was settled as it was sent, and that nobody has taken yet: its client may still come for its bytes."""

    def __init__(self, replica: Replica, unread: Callable[[], Mapping[int, int]]) -> None:
        self._replica = replica
        self._unread = unread

    @property
    def any(self) -> bool:
        """Whether this log has queues that do not live by its limits alone, or had some that were deleted."""
        queues = self._replica.queues
        own = queues.limits or queues.start_offsets or queues.any_gone or self.works
        return bool(own or any(self._replica.holds.live()))

    @property
    def works(self) -> set[int]:
        """Ids of the queues that keep what is not settled, and nothing else."""
        return self._replica.queues.works(self._replica.groups.queue_ids())

    @property
    def lowered(self) -> int:
        """Rises with whatever may have to be kept that was not before."""
        return self._replica.holds.lowered + self._replica.groups.lowered

    def queues(self) -> Queues:
        """As `commitlog.retention.decide` takes them."""
        queues, holds = self._replica.queues, self._replica.holds
        tiers = {
            queue_id: tier_keep_us(queues.find_id(queue_id).arguments)
            for queue_id in holds.tiered()
            if queues.has_id(queue_id)
        }
        works = self.works
        # What all groups have settled is as dead as what a table has that needs no time.
        tiers.update(dict.fromkeys(works, 0))
        known = None
        if queues.any_gone:
            known = {*queues.queue_ids(), *queues.leaving_ids(), *queues.left_ids()}
        return Queues(dict(queues.limits), dict(queues.start_offsets), self._floors(works), tiers, known)

    def floors(self) -> dict[int, int]:
        """The smallest queue offset that a landing holds, or that is not settled in a queue which keeps such."""
        return self._floors(self.works)

    def _floors(self, works: set[int]) -> dict[int, int]:
        replica = self._replica
        floors, settled, unread = replica.holds.floors(), replica.groups.floors(works), self._unread()
        for queue_id in works:
            # Nobody has had anything of a queue without a group.
            floor = min(settled.get(queue_id, 0), unread.get(queue_id, ALL_DEAD))
            floors[queue_id] = min(floor, floors.get(queue_id, floor))
        # What queues have left here stays until the log that they are in says where they begin.
        begins = replica.queues.start_offsets
        floors.update({queue_id: begins.get(queue_id, 0) for queue_id in replica.queues.left_ids()})
        return floors

    def floor(self, queue_id: int) -> int:
        """Nothing of a queue from this offset on may go, whatever its limits say."""
        return self.floors().get(queue_id, ALL_DEAD)
