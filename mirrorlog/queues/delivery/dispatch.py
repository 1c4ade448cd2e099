"""Who is given which records of one acking group: in turns, each as much as his room and the watermark allow, what goes
first first. Pure: `now` (s, one monotonic clock) in, grants out. Ranges are [first, until), queue offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirrorlog.queues.changes import RecordsLeased, Settled
from mirrorlog.queues.delivery.ready import FreeRecords, Front
from mirrorlog.queues.delivery.settlement import ACKED, GONE, Outcomes
from mirrorlog.queues.delivery.subscribers import LeaseWish, Subscriber, Subscribers
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.ranges import Range
from mirrorlog.wire.frames import GRANT_REDELIVERED, Grant

GRANTS_MAX: Final = 256
"""In one turn of a subscriber, so that scattered records keep nobody else waiting."""
_NO_LIMIT: Final = 1 << 62


class Reach(NamedTuple):
    """Records [first, until), of `size` bytes. `first`: where the next record stands that there is, beyond what was
    asked for too; then there are none. `sent`: bytes of the whole batches that are sent with them; 0: as `size`."""

    first: int
    until: int
    size: int
    sent: int = 0


ReachOut = Callable[[int, int, int], Reach]
"""(at, until, bytes): the records from `at` on, below `until`, that fit into so many bytes, at least one. They stand
one after the other, and end with a batch rather than within one."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """To be sent to `number`, a subscriber or who waits for a lease; 0: to nobody, only the change is to be made.
    `changes`: to be appended before; then nothing is sent without them, and it is taken back when they are refused. Of
    leases: one for all grants, or for each its own."""

    number: int
    grants: tuple[Grant, ...] = ()
    changes: tuple[Settled | RecordsLeased, ...] = ()


class Dispatcher:
    """`next_lease`: numbers a lease."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        subscribers: Subscribers,
        free: FreeRecords,
        front: Front,
        outcomes: Outcomes,
        reach: ReachOut,
        next_lease: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._subscribers = subscribers
        self._free = free
        self._front = front
        self._outcomes = outcomes
        self._reach = reach
        self._next_lease = next_lease

    def give(self, end: int, now: float, *, bytes_max: int) -> Dispatch | None:
        """Whoever's turn it is gets what is there below `end`; None when nobody can be given anything. `bytes_max`: for
        this turn; one record may be larger."""
        while (number := self._subscribers.turns.next()) is not None:
            wish = self._subscribers.wish(number)
            if wish is not None:
                return self._lend(wish, end)
            run = self._free.next_covered(end, self._front.covered)
            if run is None:
                return None
            given = self._push(self._subscribers.find(number), run, end, now, bytes_max)
            if given is not None:
                return given
            self._subscribers.turns.not_ready(number)  # the next record is larger than what it may have beside others
        return None

    def take_back(self, given: Dispatch) -> None:
        """The change that it needed was refused: nobody has it."""
        for grant in given.grants:
            self._ledger.give_back(grant.first, grant.next)
        self._free.came_back([(grant.first, grant.next) for grant in given.grants])

    # --- inside ---

    def _push(self, subscriber: Subscriber, run: Range | None, end: int, now: float, bytes_max: int) -> Dispatch | None:
        """From `run` on; None when the first record does not fit beside what it has."""
        limit = min(end, self._front.covered)
        number = subscriber.facts.number
        equals = self._subscribers.turns.equals(number)
        room_bytes = subscriber.room_bytes
        grants: list[Grant] = []
        size = sent = 0
        left = subscriber.room  # with auto-ack nothing is unacknowledged
        if ordered := self._free.keys.on:
            # Scattered, each the first one of its key: its share is of all of them.
            left = min(left, -(-self._ledger.ready(limit) // equals))
        while run is not None and min(left, subscriber.room) > 0 and len(grants) < GRANTS_MAX:
            share = -(-(run[1] - run[0]) // (1 if ordered else equals))
            wanted = run[0] + min(share, left, subscriber.room)
            reach = self._reach(run[0], wanted, max(1, min(room_bytes - size, bytes_max - sent)))
            if reach.first > run[0] and not grants:
                # Behind the watermark nothing was given: a gap is not gone through step by step of it.
                return self._missing(run[0], reach.first if run[1] == limit else min(run[1], reach.first))
            above = size + reach.size > room_bytes and (grants or subscriber.unacked.count)
            if reach.first > run[0] or above or (grants and sent + (reach.sent or reach.size) > bytes_max):
                break
            given = self._grants_of(reach, GRANTS_MAX - len(grants))
            grants += given
            size += reach.size
            sent += reach.sent or reach.size
            until = given[-1].next
            left -= until - reach.first
            if not subscriber.facts.auto_ack:
                part = reach.size * (until - reach.first) // (reach.until - reach.first)
                subscriber.give(reach.first, until, part, now)
            # One that shares with others gets a part of the first run alone, so that each has its part of the queue;
            # one whose turn has no bytes left goes on with a whole batch at its next.
            whole = (equals == 1 or ordered) and until == wanted
            run = self._free.next_covered(end, self._front.covered) if whole else None
            if run is not None and run[0] < until:
                run = None  # of a lower priority: the grants of a frame rise
        if not grants:
            return None
        self._subscribers.served(subscriber)
        settled = self._outcomes.settle([(each.first, each.next) for each in grants], ACKED)
        return Dispatch(number, tuple(grants), (settled,) if subscriber.facts.auto_ack else ())

    def _lend(self, wish: LeaseWish, end: int) -> Dispatch | None:
        grants: list[Grant] = []
        left = wish.records_max
        while left and len(grants) < GRANTS_MAX and (run := self._free.next(end)) is not None:
            reach = self._reach(run[0], min(run[1], run[0] + left), _NO_LIMIT)
            if reach.first > run[0]:
                if not grants:
                    return self._missing(run[0], min(run[1], reach.first))
                break
            given = self._grants_of(reach, GRANTS_MAX - len(grants))
            left -= given[-1].next - reach.first
            grants += given
        if not grants:
            return None
        self._subscribers.lent(wish)
        if wish.apart:
            grants = [each._replace(first=at, next=at + 1) for each in grants for at in range(each.first, each.next)]
        ranges = [(each.first, each.next) for each in grants]
        leases = [[each] for each in ranges] if wish.apart else [sorted(ranges)]
        leased = [self._outcomes.lease(self._next_lease(), wish.holder, each, wish.lease_ms) for each in leases]
        return Dispatch(wish.number, tuple(grants), tuple(leased))

    def _missing(self, first: int, until: int) -> Dispatch:
        """Records that are there no more, or never were: a gap that a loss has left, or retention went over them."""
        return Dispatch(0, (), (self._outcomes.settle([(first, until)], GONE),))

    def _grants_of(self, reach: Reach, grants_max: int) -> list[Grant]:
        """Take what is reached, as grants in which all records are alike, so many at most."""
        at, grants = reach.first, list[Grant]()
        while at < reach.until and len(grants) < grants_max:
            attempts, end = self._ledger.attempts(at, reach.until)
            again, end = self._front.was_delivered(at, end)
            grants.append(Grant(at, end, GRANT_REDELIVERED if attempts or again else 0, attempts))
            at = end
        self._ledger.take(reach.first, at)
        self._front.gave(at)
        return grants
