"""Who takes from one acking group on its master, and whose turn it is: subscribers with what is unacknowledged and room
for, those who are gone and have not let go of all of it, and who waits for a lease.

One of them may have the group for itself, by its own wish (exclusive) or by the queue's (single active). Pure: `now`
comes in, s of one monotonic clock. Ranges are [first, until), queue offsets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, Final

from mirrorlog.commitlog.format.attributes import PRIORITY_MAX
from mirrorlog.errors import ExclusiveTaken, NoSuchSubscription
from mirrorlog.queues.ranges import Range, RangeSet

# What a queue's arguments say of its delivery. Pure.


CONSUMER_TIMEOUT_MS: Final = 30 * 60 * 1000
_ATTEMPTS_MAX: Final = 254


@dataclass(frozen=True, slots=True)
class Rules:
    """`delivery_limit`: a record that came back more often is dead. `priority_max`: higher priorities count as that; 0
    tells none apart."""

    single_active: bool = False
    consumer_timeout_s: float = CONSUMER_TIMEOUT_MS / 1000
    delivery_limit: int | None = None
    priority_max: int = 0

    @staticmethod
    def of(arguments: dict[str, Any]) -> Rules:
        """From a queue's arguments, which may be older than their check."""
        timeout, limit = arguments.get("x-consumer-timeout"), arguments.get("x-delivery-limit")
        priority = arguments.get("x-max-priority")
        return Rules(
            single_active=arguments.get("x-single-active-consumer") is True,
            consumer_timeout_s=(timeout if type(timeout) is int and timeout > 0 else CONSUMER_TIMEOUT_MS) / 1000,
            delivery_limit=min(limit, _ATTEMPTS_MAX) if type(limit) is int and limit >= 0 else None,
            priority_max=min(priority, PRIORITY_MAX) if type(priority) is int and priority > 0 else 0,
        )


# Whose turn it is: those who can take records now, by priority, and then by who was served longest ago.
#
# A heap; whoever has no room leaves it and comes back when it has. Equal ones take turns however fast one of them
# settles, and a thousand who wait cost a turn nothing. Pure.


_SPARE: Final = 64


class Turns:
    """Of subscribers by their numbers."""

    __slots__ = ("_heap", "_ready", "_serial", "_served", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._ready: dict[int, tuple[int, int]] = {}
        self._served: dict[int, int] = {}
        self._serial = 0
        self._waiting: Counter[int] = Counter()

    def __len__(self) -> int:
        """How many can take something."""
        return len(self._ready)

    def ready(self, number: int, priority: int) -> None:
        """It can take something now; again is no change."""
        if number in self._ready:
            return
        if number not in self._served:
            self.served(number)
        serial = self._served[number]
        self._ready[number] = (priority, serial)
        self._waiting[priority] += 1
        heappush(self._heap, (-priority, serial, number))
        if len(self._heap) > 2 * len(self._ready) + _SPARE:
            # Entries of those who left it while a higher priority stayed on top.
            self._heap = [(-priority, serial, each) for each, (priority, serial) in self._ready.items()]
            heapify(self._heap)

    def served(self, number: int) -> None:
        """It was given something, and is the last of its equals from now on. While it is not `ready`."""
        self._serial += 1
        self._served[number] = self._serial

    def not_ready(self, number: int) -> None:
        """It can take nothing now."""
        known = self._ready.pop(number, None)
        if known is not None:
            self._waiting[known[0]] -= 1

    def forget(self, number: int) -> None:
        """It is gone."""
        self.not_ready(number)
        self._served.pop(number, None)

    def next(self) -> int | None:
        """Whose turn it is; it stays ready."""
        while self._heap:
            priority, serial, number = self._heap[0]
            if self._ready.get(number) == (-priority, serial):
                return number
            heappop(self._heap)
        return None

    def equals(self, number: int) -> int:
        """How many of its priority are ready, itself among them."""
        known = self._ready.get(number)
        return self._waiting[known[0]] if known is not None else 0


# One subscriber of an acking group: what it has unacknowledged, for how long, and what it may have beside that.
#
# How long is known by generations, an eighth of the consumer timeout each: a record is overdue when its generation is,
# never early and at most an eighth late. So a million unacknowledged records are a few sets of ranges, not a million
# times.  Pure: `now` comes in, in seconds of one monotonic clock.


_GENERATIONS: Final = 8


@dataclass(frozen=True, slots=True)
class SubscriberOptions:
    """What somebody subscribes with. `prefetch_records`, `prefetch_bytes`: unacknowledged at most; a single record
    may be larger. No records: it is paused. `name`: for people; `since_us`: when it came, µs UTC.
    `ordered`: by key, see `keys`."""

    number: int
    prefetch_records: int
    prefetch_bytes: int
    auto_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    name: str = ""
    since_us: int = 0
    ordered: bool = False


@dataclass(slots=True)
class Subscriber:
    """`held`: its connection does not take more at the moment. `closing`: it is given nothing any more."""

    facts: SubscriberOptions
    timeout_s: float = math.inf
    held: bool = False
    closing: bool = False
    unacked: RangeSet = field(default_factory=RangeSet)
    unacked_bytes: int = 0
    """Of its records: of a batch that it has in part, in proportion."""
    # When each began, with which record, and what is left of it.
    _generations: list[tuple[float, int, RangeSet]] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many records more it may have."""
        has = self.unacked.count
        if self.held or self.closing or (has and self.unacked_bytes >= self.facts.prefetch_bytes):
            return 0
        return max(0, self.facts.prefetch_records - has)

    @property
    def room_bytes(self) -> int:
        return self.facts.prefetch_bytes - self.unacked_bytes

    def give(self, first: int, until: int, size: int, now: float) -> None:
        """It has them now; `size`: bytes."""
        self.unacked.add(first, until)
        self.unacked_bytes += size
        self._begin(first, until, now)

    def take(self, first: int, until: int) -> None:
        """It has them no more."""
        before = self.unacked.count
        taken = self.unacked.remove(first, until)
        if taken:
            self.unacked_bytes -= self.unacked_bytes * taken // before
            self._forget(first, until)

    def extend(self, ranges: Iterable[Range], now: float) -> None:
        """Its time for these begins anew."""
        for first, until in ranges:
            self._forget(first, until)
            self._begin(first, until, now)

    @property
    def overdue_at(self) -> float:
        """When the oldest unacknowledged record has been so for too long."""
        if not self._generations:
            return math.inf
        return self._generations[0][0] + self.timeout_s * (1 + 1 / _GENERATIONS)

    def held_at(self, now: float) -> float | None:
        """Since when it has had its oldest record, at the latest; None: it has none, or that is not known. Exact while
        it has the first one of that generation, else up to the length of one late."""
        if not self._generations:
            return None
        began, first, generation = self._generations[0]
        at = began if generation.meets(first, first + 1) else began + self.timeout_s / _GENERATIONS
        return at if at < now else None

    def _begin(self, first: int, until: int, now: float) -> None:
        if self.timeout_s == math.inf:
            return
        if not self._generations or now - self._generations[-1][0] >= self.timeout_s / _GENERATIONS:
            self._generations.append((now, first, RangeSet()))
        self._generations[-1][2].add(first, until)

    def _forget(self, first: int, until: int) -> None:
        empty = False
        for _, _, generation in self._generations:
            generation.remove(first, until)
            empty = empty or not generation.count
        if empty:
            self._generations = [each for each in self._generations if each[2].count]


_NOBODY: Final = 0


@dataclass(frozen=True, slots=True)
class LeaseWish:
    """Somebody waits for up to `records_max` records, for `lease_ms`. `ordered`: by key, see `keys`.
    `apart`: each is a lease of its own."""

    number: int
    holder: str
    records_max: int
    lease_ms: int
    ordered: bool = False
    apart: bool = False


class Subscribers:
    """Of one group. `room`: for how many records more subscribers have room, but for those with auto-ack."""

    def __init__(self, rules: Rules) -> None:
        self.room = 0
        self._rules = rules
        self.turns = Turns()
        self._subscribers: dict[int, Subscriber] = {}
        # Those whose connection is gone, and who had much.
        self._leaving: dict[int, Subscriber] = {}
        self._wishes: dict[int, LeaseWish] = {}
        self._active: int | None = None
        # Those that are not closing, and the one of them that is alone, if any.
        self._open: set[int] = set()
        self.auto_ack: set[int] = set()
        """Those with auto-ack: nothing of theirs is unacknowledged."""
        self._alone = _NOBODY
        self._rooms: dict[int, int] = {}
        self.overdue_at = math.inf
        """When there is something to ask of `overdue`; perhaps a little earlier."""

    # --- who is there ---

    def __len__(self) -> int:
        """How many subscribers that do not end."""
        return len(self._open)

    def __iter__(self) -> Iterator[Subscriber]:
        """The subscribers, those that give back what they have and end among them."""
        return iter(list(self._subscribers.values()))

    @property
    def alone(self) -> int | None:
        """Who has this group for itself, if anybody does."""
        return self._alone if self._alone in self._open else self._active

    @property
    def waiting(self) -> int:
        """How many wait for leases."""
        return len(self._wishes)

    @property
    def numbers(self) -> list[int]:
        """All who take records, or have unacknowledged ones: subscribers, and who waits for a lease."""
        return [*self._subscribers, *self._wishes]

    @property
    def any(self) -> bool:
        """Whether there is anybody who takes records, or has unacknowledged ones."""
        return bool(self._subscribers or self._wishes)

    def knows(self, number: int) -> bool:
        """Whether it takes records, or has unacknowledged ones."""
        return number in self._subscribers or number in self._wishes

    def get(self, number: int) -> Subscriber | None:
        return self._subscribers.get(number)

    def find(self, number: int) -> Subscriber:
        """Raises NoSuchSubscription."""
        subscriber = self._subscribers.get(number)
        if subscriber is None:
            raise NoSuchSubscription(f"subscription {number} is not there; subscribe again")
        return subscriber

    # --- coming and going ---

    def subscribe(self, facts: SubscriberOptions) -> None:
        """Raises ExclusiveTaken."""
        if self._alone in self._open:
            raise ExclusiveTaken("another subscriber has this group for itself; wait until it is gone")
        if facts.exclusive and self._open:
            raise ExclusiveTaken(f"{len(self._open)} others are subscribed to this group: none can have it for itself")
        if facts.exclusive and self._wishes:
            raise ExclusiveTaken(f"{len(self._wishes)} wait for leases of this group: none can have it for itself")
        if facts.exclusive:
            self._alone = facts.number
        if facts.auto_ack:
            self.auto_ack.add(facts.number)
        self._open.add(facts.number)
        subscriber = self._subscribers[facts.number] = Subscriber(facts, self._rules.consumer_timeout_s)
        self._choose()
        self.look(subscriber)

    def lease(self, wish: LeaseWish) -> None:
        """Somebody waits for records. Raises ExclusiveTaken."""
        if self._rules.single_active or self._alone in self._open:
            raise ExclusiveTaken("one subscriber has this group for itself, so nothing of it is leased")
        self._wishes[wish.number] = wish
        self.turns.ready(wish.number, 0)

    def unsubscribe(self, number: int) -> None:
        """It is given nothing more; what it has unacknowledged stays so. Raises NoSuchSubscription."""
        subscriber = self.find(number)
        subscriber.closing = True
        self._open.discard(number)
        self.auto_ack.discard(number)
        self.look(subscriber)

    def bound(self, number: int, records: int, size: int) -> None:
        """So many records and bytes at most from now on; what it has it keeps. Raises NoSuchSubscription."""
        subscriber = self.find(number)
        subscriber.facts = replace(subscriber.facts, prefetch_records=records, prefetch_bytes=size)
        self.look(subscriber)

    def hold(self, number: int, held: bool) -> None:
        """Whether its connection takes no more at the moment."""
        subscriber = self._subscribers.get(number)
        if subscriber is not None and subscriber.held != held:
            subscriber.held = held
            self.look(subscriber)

    def gone(self, number: int) -> Subscriber | None:
        """It is there no more, nor is who waited for a lease under that number; who is still to let go of what it
        has: then `let_go`."""
        self._forget(number)
        self._wishes.pop(number, None)
        subscriber = self._subscribers.get(number)
        if subscriber is not None:
            subscriber.closing = True
            self._leaving[number] = subscriber
        return subscriber

    @property
    def leaving(self) -> Sequence[Subscriber]:
        """Who is gone and has not let go of everything."""
        return list(self._leaving.values()) if self._leaving else ()

    def let_go(self, subscriber: Subscriber, ranges: Iterable[Range]) -> None:
        """Of these; who has nothing more is forgotten."""
        for first, until in ranges:
            subscriber.take(first, until)
        if not subscriber.unacked.count:
            number = subscriber.facts.number
            self._forget(number)
            del self._subscribers[number]
            self._choose()

    # --- turns ---

    def wish(self, number: int) -> LeaseWish | None:
        return self._wishes.get(number)

    def served(self, subscriber: Subscriber) -> None:
        """It was given something."""
        number = subscriber.facts.number
        self.overdue_at = min(self.overdue_at, subscriber.overdue_at)
        self.turns.not_ready(number)
        self.turns.served(number)
        self.look(subscriber)

    def lent(self, wish: LeaseWish) -> None:
        """It was given its lease."""
        del self._wishes[wish.number]
        self.turns.forget(wish.number)

    def look(self, subscriber: Subscriber) -> None:
        """Whether it can take something now, or is done."""
        number = subscriber.facts.number
        if subscriber.closing and not subscriber.unacked.count:
            self._forget(number)
            self._subscribers.pop(number, None)
            self._choose()
            return
        room = subscriber.room if self._active in (None, number) else 0
        if room > 0:
            self.turns.ready(number, subscriber.facts.priority)
        else:
            self.turns.not_ready(number)
        if not subscriber.facts.auto_ack:
            self.room += room - self._rooms.get(number, 0)
            self._rooms[number] = room

    def take(self, ranges: Iterable[Range]) -> None:
        """No subscriber has these any more."""
        taken_from(self._subscribers.values(), ranges)
        for subscriber in self:
            self.look(subscriber)

    # --- times ---

    def overdue(self, now: float) -> list[int]:
        """The subscribers that have had a record for too long."""
        if now < self.overdue_at:
            return []
        there = {number: each for number, each in self._subscribers.items() if number not in self._leaving}
        found = [number for number, each in there.items() if each.overdue_at <= now]
        left = (each.overdue_at for number, each in there.items() if number not in found)
        self.overdue_at = min(left, default=math.inf)
        return found

    # --- inside ---

    def _forget(self, number: int) -> None:
        self.turns.forget(number)
        self._leaving.pop(number, None)
        self._open.discard(number)
        self.auto_ack.discard(number)
        self.room -= self._rooms.pop(number, 0)

    def _choose(self) -> None:
        """With a single active subscriber: who it is. It stays so until it is gone, its records with it: the next one
        gets none before, so the order of the queue is kept over the change."""
        if not self._rules.single_active or self._active in self._subscribers:
            return
        # The first of those with the highest priority.
        self._active = max(
            self._subscribers, key=lambda number: self._subscribers[number].facts.priority, default=_NOBODY
        )
        if (subscriber := self._subscribers.get(self._active)) is not None:
            self.look(subscriber)  # the others had no room before either


def taken_from(those: Iterable[Subscriber], ranges: Iterable[Range]) -> None:
    """What of these they have they have no more."""
    ranges = list(ranges)
    for subscriber in those:
        for first, until in ranges:
            subscriber.take(first, until)
