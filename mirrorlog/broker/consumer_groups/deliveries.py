"""The deliveries of a log's groups: made from the ledger when somebody comes, and let go when nobody would miss them.

What a delivery knows beyond the ledger outlives it here, for this mastership: up to where another master may have given
records out, and how far this one has. Thin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroups, Key, LeaseNumbers, Work
from mirrorlog.broker.consumer_groups.batch_reader import BatchReader
from mirrorlog.broker.consumer_groups.forwarding import GroupForwarding
from mirrorlog.broker.consumer_groups.group_log import GroupLog
from mirrorlog.broker.log.replica import Replica
from mirrorlog.queues.delivery.group import Delivery, Rules
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.registry import Queue


class Deliveries:
    """`begun`: whether the mastership's first batch is confirmed; `now`: the loop's clock in s."""

    def __init__(
        self,
        replica: Replica,
        works: ActiveGroups,
        log: GroupLog,
        *,
        reached: BatchReader,
        leases: LeaseNumbers,
        departures: GroupForwarding,
        begun: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._works = works
        self._log = log
        self._reached = reached
        self._leases = leases
        self._departures = departures
        self._begun = begun
        self._now = now
        self._leapt = False
        self._found: dict[Key, int] = {}
        """Watermarks as this mastership found them, of the groups that were delivered from in it."""
        self._fronts: dict[Key, int] = {}
        """And how far this one has given them out, of those that nobody takes from now."""

    def begin(self, *, leapt: bool) -> None:
        """See `Deliverer.begin`."""
        self._leapt = leapt
        for queue_id, group, ledger in list(self._replica.groups):
            ledger.drop_volatile()
            # It runs ahead of the queue. What comes from here on nobody has had before.
            following = self._replica.index.next_appended(queue_id)
            self._found[queue_id, group] = following if leapt else min(ledger.watermark, following)
            leased = ledger.leased and ledger.leased > self._departures.departing(queue_id, group)
            if (leased or ledger.parked) and self._replica.queues.has_id(queue_id):
                self._works.plan(self.of((queue_id, group)))

    def of(self, key: Key, *, make: bool = False) -> Work:
        """The group's. `make`: the group too, if there is none yet; the queue's own always. Raises NoSuchGroup,
        LimitReached, BadRequest, or why nothing is taken."""
        work = self._works.get(key)
        if work is not None:
            return work
        queue_id, group = key
        queue, groups = self._replica.queues.find_id(queue_id), self._replica.groups
        if groups.get(queue_id, group) is None and (make or group == OWN_GROUP):
            self._make_group(key, queue)
        work = Work(key, self._delivery(key, queue, groups.find(queue_id, group)))
        self._works.add(work)
        return work

    def drop_if_idle(self, work: Work) -> None:
        """Let it go when nobody takes from it, and nothing of it is under way."""
        if not work.there or work.gathered.asked or not work.delivery.idle:
            return
        self.log_exactly(work)
        work.delivery.let_go()
        self._fronts[work.key] = work.delivery.front
        self._works.remove(work)

    def log_exactly(self, work: Work) -> None:
        """The next master shall know how far it was given out, if it can be logged."""
        change = work.delivery.exact_watermark()
        if change is not None and self._log.append_if_possible(work, [change]) is not None:
            work.delivery.watermark_appended(change.queue_offset)

    def forget_group(self, key: Key) -> None:
        """What is made under this name from here on begins anew."""
        self._found.pop(key, None)
        self._fronts.pop(key, None)

    def forget_queue(self, queue_id: int) -> None:
        """It is there no more."""
        for known in (self._found, self._fronts):
            for key in [key for key in known if key[0] == queue_id]:
                del known[key]

    # --- inside ---

    def _make_group(self, key: Key, queue: Queue) -> None:
        queue_id, group = key
        begin, void = self._replica.index.begin(queue_id), self._leases.last + 1
        made = self._replica.groups.reset(queue_id, group, begin, streams=queue.newest, void=void)
        self._log.append(queue_id, [made])
        if self._leapt:  # it may have been there before, and its making be a part of what was lost
            following = self._replica.index.next_appended(queue_id)
            self._found[key] = self._replica.index.gap(queue_id)[1] if self._begun() else following

    def _delivery(self, key: Key, queue: Queue, ledger: Ledger) -> Delivery:
        queue_id, group = key
        return Delivery(
            group,
            ledger,
            Rules.of(queue.arguments),
            epoch=self._replica.epochs.current,
            found_watermark=self._found.setdefault(key, ledger.watermark),
            reach=partial(self._reached.reach, queue_id),
            next_lease=self._leases.next,
            runs=partial(self._replica.runs.of, queue_id),
            appended=partial(self._replica.index.next_appended, queue_id),
            now=self._now(),
            front=self._fronts.pop(key, 0),
            die=partial(self._departures.die, queue_id),
        )
