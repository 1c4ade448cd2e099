"""One acking group of one queue on its master: who is given which records, and what becomes of them.

The ledger says which records are free; this says who gets them: subscribers in turn, each as much as its prefetch
allows, in the order of the queue; what returns is found again at its place. What was given is OUT in the ledger, and in
the hand of one subscriber here. Both are this master's memory. What outlives it is logged: settlements, returns,
leases, and the watermark, ahead of which nothing is given (docs/decisions/0033).

Nothing here changes the ledger but its volatile states: decisions go out as changes, and count when they were appended.
So a change whose append is refused leaves everything as it was: first ask (`settle`, `expired`, …), then append, then
tell (`settled`, `expired_done`, …), in one step of the loop.

Each thing that is decided has a file, with the state that it needs: who takes, and whose turn it is (`takers`), what is
free and goes first (`free_records`), what the attributes of batches ask for (`attributed`), how far was given out and
may be (`front`), the grants (`giving`), the changes (`outcomes`), what subscribers and holders of leases say
(`settling`, `leases`), what ends without them (`clearing`), what time does (`times`, `endings`). This puts them
together, and is all that others know.

What may be much (a hand of a million scattered records, a purge, leases that end together) comes in parts, and who
drives this asks for the next part in another turn of the loop.

Pure: events, `now` (s, one monotonic clock) and `now_us` (µs UTC) in, grants and changes out. Ranges are [first,
until), queue offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from mirrorlog.queues.changes import Change, Leased, Settled, Watermark
from mirrorlog.queues.delivery.deadlines import Endings
from mirrorlog.queues.delivery.dispatch import GRANTS_MAX, Given, Giving, Reach, ReachOut
from mirrorlog.queues.delivery.outcomes import Deaths, Outcomes, Settlement, deaths
from mirrorlog.queues.delivery.priorities import Attributed
from mirrorlog.queues.delivery.ready import RANGES_AT_ONCE, FreeRecords, Front
from mirrorlog.queues.delivery.rules import Rules
from mirrorlog.queues.delivery.settlement import EPOCH_BITS, Clearing, Leases, Receipt, Settling
from mirrorlog.queues.delivery.subscribers import LeaseWish, Subscriber, Subscribers, Subscription
from mirrorlog.queues.delivery.times import Times
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.limits.attributes import QueueRuns
from mirrorlog.queues.ranges import Range
from mirrorlog.wire.frames import How

__all__ = [
    "EPOCH_BITS",
    "GRANTS_MAX",
    "RANGES_AT_ONCE",
    "Delivery",
    "Given",
    "LeaseWish",
    "Reach",
    "ReachOut",
    "Receipt",
    "Rules",
    "Settlement",
]


class Delivery:
    """`epoch`: of the mastership; `found_watermark`: as it was when that began: what is below may have been given out
    by another master. `next_lease`: numbers a lease; `runs`: those of the queue, as far as they are known now;
    `appended`: where the queue ends now, confirmed or not, needed where there are runs. `front`: of the delivery of
    this group that this mastership had before, see `front`. `die`: how records end."""

    def __init__(
        self,
        group: str,
        ledger: Ledger,
        rules: Rules,
        *,
        epoch: int,
        found_watermark: int,
        reach: ReachOut,
        next_lease: Callable[[], int],
        now: float,
        runs: Callable[[], QueueRuns | None] = lambda: None,
        appended: Callable[[], int] = lambda: 0,
        front: int = 0,
        die: Deaths = deaths,
    ) -> None:
        self.group = group
        self.rules = rules
        self.ledger = ledger
        self._appended = appended
        self._nothing_to_give = False
        self._takers = takers = Subscribers(rules)
        self._attributed = attributed = Attributed(ledger, priority_max=rules.priority_max, runs=runs)
        self._free = free = FreeRecords(ledger, attributed)
        self._front = fronted = Front(group, ledger, found=found_watermark, given=front)
        self._outcomes = outcomes = Outcomes(group, ledger, rules, die)
        self._giving = Giving(
            ledger,
            takers=takers, free=free, front=fronted, outcomes=outcomes, reach=reach, next_lease=next_lease,
        )  # fmt: skip
        self._endings = endings = Endings(ledger, now)
        self._settling = settling = Settling(
            ledger, attributed, endings,
            takers=takers, free=free, front=fronted, outcomes=outcomes, epoch=epoch,
        )  # fmt: skip
        self._leases = Leases(ledger, attributed, outcomes)
        self._clearing = Clearing(ledger, attributed, takers=takers, outcomes=outcomes, settling=settling)
        self._times = Times(
            attributed, endings, takers=takers, free=free, outcomes=outcomes, settling=settling, now=now
        )  # fmt: skip

    # --- who is there ---

    @property
    def subscribers(self) -> int:
        """How many that do not end."""
        return len(self._takers)

    @property
    def takers(self) -> list[Subscriber]:
        """The subscribers, those that give back what they have and end among them."""
        return list(self._takers)

    @property
    def alone(self) -> int | None:
        """Who has this group for itself, if anybody does."""
        return self._takers.alone

    @property
    def waiting(self) -> int:
        """How many wait for leases."""
        return self._takers.waiting

    @property
    def numbers(self) -> list[int]:
        """All who take records, or have some in hand: subscribers, and who waits for a lease."""
        return self._takers.numbers

    def knows(self, number: int) -> bool:
        """Whether it takes records, or has some in hand."""
        return self._takers.knows(number)

    @property
    def taken(self) -> bool:
        """Whether there is anybody who takes records, or has some in hand."""
        return self._takers.any

    @property
    def idle(self) -> bool:
        """Whether nobody would miss this: it can be made again from the ledger."""
        if self.taken or self.behind or not self._endings.idle:
            return False
        return self._front.idle and (self._attributed.plain or self._attributed.idle)

    @property
    def behind(self) -> bool:
        """Whether some of what `grant` was asked about was not looked at, for there is much: it is to be asked again,
        though nothing happens."""
        return self._free.behind

    @property
    def held_back(self) -> int:
        """How many records are OUT in the ledger and in nobody's hands: they wait for their time, or are too old."""
        return self._attributed.taken

    def let_go(self) -> None:
        """It is idle, and is let alone."""
        self._attributed.let_go()

    def subscribe(self, facts: Subscription) -> None:
        """Who is the first is not given what had no time to live and came before. Raises ExclusiveTaken."""
        was_taken = self.taken
        self._takers.subscribe(facts)
        self._came(was_taken)

    def lease(self, wish: LeaseWish) -> None:
        """Somebody waits for records, as who subscribes; `gone` ends that. Raises ExclusiveTaken."""
        was_taken = self.taken
        self._takers.lease(wish)
        self._came(was_taken)

    def _came(self, was_taken: bool) -> None:
        if not was_taken:
            self._attributed.taken_from(self._appended())

    def unsubscribe(self, number: int) -> None:
        """It is given nothing more; what it has in hand stays there. Raises NoSuchSubscription."""
        self._takers.unsubscribe(number)

    def hold(self, number: int, held: bool) -> None:
        """Whether its connection takes no more at the moment."""
        self._takers.hold(number, held)

    def gone(self, number: int) -> list[Change]:
        """It is there no more, nor is who waited for a lease under that number: the changes that count what it had as
        returned, some thousand ranges of it; `leave` gives the next ones while `leaving`. They are free at once,
        whether these can be appended or not; `not_counted` follows when not."""
        subscriber = self._takers.gone(number)
        return self._leave(subscriber) if subscriber is not None else []

    @property
    def leaving(self) -> bool:
        """Whether somebody who is gone has not let go of everything."""
        return bool(self._takers.leaving)

    def leave(self) -> list[Change]:
        """The next part of what `gone` began."""
        leaving = self._takers.leaving
        return self._leave(leaving[0]) if leaving else []

    def _leave(self, subscriber: Subscriber) -> list[Change]:
        part = list(islice(subscriber.hand, RANGES_AT_ONCE))
        for first, until in part:
            self.ledger.give_back(first, until)
        self._takers.let_go(subscriber, part)
        self._free.came_back(part)
        return self._outcomes.come_back(part, 0)

    def not_counted(self, changes: Iterable[Change]) -> None:
        """What `gone` gave could not be appended: these records stay flagged all the same."""
        self._front.not_counted(changes)

    # --- giving ---

    @property
    def front(self) -> int:
        """Nothing from there on was ever given to a subscriber in this mastership."""
        return self._front.given

    @property
    def watermark(self) -> int:
        """As it was asked for last."""
        return self._front.asked

    @property
    def covered(self) -> int:
        """The watermark that is on all copies: below it records are given to subscribers."""
        return self._front.covered

    def watermark_wanted(self, end: int, freed: int = 0) -> Watermark | None:
        """The watermark to be logged now, if it is time; then `watermark_appended`. It is ahead of what was given by
        what subscribers have room for, and will have when they have settled `freed` records. `end`: as of `grant`."""
        room = self._takers.room + freed
        return self._front.wanted(self._free, end, room=room, auto_ack=bool(self._takers.auto_ack))

    def freed(self, settlement: Settlement) -> int:
        """For how many records more its subscriber will have room."""
        subscriber = self._takers.get(settlement.number)
        if subscriber is None or subscriber.closing or settlement.how == How.EXTEND:
            return 0
        return sum(until - first for first, until in settlement.ranges)

    def exact_watermark(self) -> Watermark | None:
        """Below which something may have been given out, to be logged before another one masters the log; None when it
        is logged so."""
        return self._front.exact()

    def watermark_appended(self, queue_offset: int) -> None:
        """It is logged."""
        self._front.appended(queue_offset)

    def watermark_confirmed(self, queue_offset: int, end: int) -> bool:
        """It is on all copies. Whether somebody may be given something by that; `end`: as of `grant`."""
        before = self._front.covered
        self._front.confirmed(queue_offset)
        return before < end or not self._attributed.plain

    def grant(self, end: int, now: float, *, bytes_max: int) -> Given | None:
        """Whoever's turn it is gets what is there below `end`, where what is confirmed ends; None when nobody can be
        given anything. To be asked until then. `bytes_max`: for this turn; one record may be larger."""
        met = self._free.met(end, self._times.now_us, taken=self._takers.turns.next() is not None)
        given = self._giving.give(met, now, bytes_max=bytes_max)
        self._nothing_to_give = given is None and not self._free.uncovered
        if self._nothing_to_give and not self._attributed.plain and self._front.is_covered and not self.behind:
            self._attributed.had_chance()
        return given

    def served(self, watermark: int) -> bool:
        """Whether everybody who had room when `watermark` was asked for has been given what there is; as of the last
        `grant`."""
        if not self._nothing_to_give or self.behind:
            return False
        return self._takers.turns.next() is None or self._front.covered >= min(watermark, self._front.asked)

    def take_back(self, given: Given) -> None:
        """The change that it needed was refused: nobody has it."""
        self._giving.take_back(given)

    # --- what becomes of it ---

    def settle(
        self, number: int, epoch: int, how: int, ranges: Sequence[int], delay_ms: int = 0, *, again: bool = False
    ) -> Settlement:
        """What a subscriber says of records that it has, or had: in an older epoch, or (`again`) on a connection that
        was lost. `how`: see `How`; `ranges`: flat, first, until, first, until, ….

        Of what it had only that counts which nobody else has by now. Raises BadRequest, NotGranted or
        NoSuchSubscription; then nothing of it counts.
        """
        return self._settling.settle(number, epoch, how, ranges, delay_ms, again=again)

    def given(self, ranges: Sequence[int]) -> list[Range]:
        """What somebody says that he has, flat, as ranges. Before anything else is asked of them: they may name what
        there never was. Raises BadRequest or NotGranted."""
        return self._settling.given(ranges)

    def settled(self, settlement: Settlement, now: float) -> None:
        """The changes of a settlement are appended."""
        self._settling.settled(settlement, now)

    def purge(self, end: int, since: int = 0) -> Settled | None:
        """Settles what stands below `end` and is in nobody's hands, from `since` on, some thousand ranges; None when
        there is nothing more. Then `purge_done`."""
        return self._clearing.purge(end, since)

    def purge_done(self, change: Settled) -> None:
        """What `purge` gave is appended, or this part of it."""
        self._clearing.purge_done(change)

    def missing(self, begin: int, gap: Range) -> Settled | None:
        """Settles what is not there any more, in whosever hands it is: what stands below `begin`, where the queue
        begins now, or in the `gap` that a loss left; None when there is nothing. Then `missing_done`."""
        return self._clearing.missing(begin, gap)

    def missing_done(self, change: Settled) -> None:
        """What `missing` gave is appended: nobody has these in hand any more."""
        self._clearing.missing_done(change)

    def left(self, ranges: Sequence[Range]) -> None:
        """What lay free is settled, or leaves, by others; that is appended."""
        self._settling.done(ranges)

    def stayed(self, ranges: Sequence[Range]) -> None:
        """What was to leave is free again; that is appended."""
        self._free.came_back(ranges)

    def ready(self, end: int, records_max: int) -> list[Range]:
        """The first ready records below `end`, so many at most, some thousand ranges; then `left`."""
        return self._free.ready(end, records_max)

    # --- leases ---

    def lease_ends_at(self, lease: int) -> float | None:
        """When it ends; None while that is not known yet."""
        return self._endings.ends_at(lease)

    def lease_began(self, lease: int, lease_ms: int, now: float) -> None:
        """It was given, or extended: it ends `lease_ms` from now."""
        self._endings.began(lease, lease_ms, now)

    def settle_leased(self, receipts: Iterable[Receipt], how: int, delay_ms: int = 0, *, end: int) -> Settlement:
        """What a holder says. A receipt of a lease that has ended acks what nobody has, and returns nothing. `end`:
        where what is confirmed ends. Raises BadRequest, or ReceiptStale; then nothing of it counts."""
        return self._leases.settle(receipts, how, delay_ms, end=end)

    def extend_leased(self, receipts: Iterable[Receipt], lease_ms: int) -> list[Leased]:
        """A lease begins anew as a whole, whichever of its receipts says so; then `lease_began`. Raises NotGranted when
        one has ended."""
        return self._leases.extend(receipts, lease_ms)

    # --- time ---

    def clock(self, now: float, now_us: int) -> None:
        """A look at this group begins. What has had its one chance, or has come to its time, is known from here on."""
        self._times.look(now, now_us)

    @property
    def due_at(self) -> float:
        """When there is something to ask of `expired` or `overdue`, or it is time for a look; perhaps a little
        earlier."""
        return self._times.due_at

    def overdue(self, now: float) -> list[int]:
        """The subscribers that have had a record for too long."""
        return self._takers.overdue(now)

    def expired(self, now: float) -> list[Change]:
        """The changes that end the delays and leases whose time has come, and records whose time to live is over, some
        thousand ranges at a time; then `expired_done`."""
        return self._times.expired(now)

    def expired_done(self, changes: Iterable[Change], *, whole: bool = True) -> None:
        """What `expired` gave is appended; not `whole`: this part of it, and `expired` gives the rest again."""
        self._times.expired_done(changes, whole=whole)
