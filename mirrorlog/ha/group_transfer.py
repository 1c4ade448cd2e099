"""GroupTransferService: the publishes that wait for copies, each with a deadline of its own.

RocketMQ's service (seed 002, lines 165-253) takes the waiting requests one by one: a request's clock starts at its
turn, so one slow request lets the next ones wait longer than they asked for, and those that were replicated long
ago time out in the queue behind it. Here the waiting stand in heaps by offset, one heap per (copies, durability): an
ack answers all that it covers in one step, and a deadline is a point in time that is fixed when the wait begins.

Pure: `now` comes in (seconds of one monotonic clock), answers go out.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from enum import Enum
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Final, NamedTuple

from mirrorlog.errors import BadRequest, Overloaded
from mirrorlog.ha.in_sync import InSyncSet
from mirrorlog.wire.frames import Durability, Level

# How far each copy of a log is, as its master knows it, and what follows: the confirmed offset.
#
# The confirmed offset is the smallest offset that every member of the in-sync set holds at the log's durability. A
# level that asks for k copies is reached at the k-th largest offset among the members. One slave's largest ack counted
# for all is RocketMQ's flaw that this avoids (seed 002, lines 185 and 229-253).
#
# A member whose acks do not count, because it is away, marked, or linked in another run than the set says, keeps what
# it proved as a member, and holds the confirmed offset still. So does a copy that is proposed to the cluster as a
# member (`in_sync.py`), or is about to be (`CatchUp`).


# Plain numbers: looking up an enum's member costs as much as the comparison's whole function, several times per ack.
_DISK: Final = int(Durability.DISK)
_MEMORY: Final = int(Durability.MEMORY)

ALL_MEMBERS: Final = int(Level.ALL)
"""Instead of a number of copies: every member of the in-sync set, as it is when the question is answered."""


@dataclass(slots=True)
class Held:
    """What one copy proved to hold: log offsets, exclusive; in memory and on disk."""

    written: int = 0
    flushed: int = 0

    def at(self, durability: int) -> int:
        return self.flushed if durability == _DISK else self.written


_AT: Final = {_MEMORY: attrgetter("written"), _DISK: attrgetter("flushed")}
"""By durability, what of a copy counts."""


class Progress:
    """What each copy of one log holds, and whose copies count. Pure."""

    def __init__(self, *, own: str, in_sync: InSyncSet, durability: Durability, confirmed: int) -> None:
        """Nobody's acks count before `count` says so, but the master's."""
        self.confirmed = confirmed
        """Never goes back. A plain attribute: it is looked up several times per ack."""
        self._own = own
        self._durability = int(durability)
        # By node, what it proved over its last link. Acks change this and nothing else, so what is to count shares it,
        # and what is to stay as it is, is taken apart from it.
        self._held = {own: Held()}
        self._proved: dict[str, Held] = {}
        self._proposed: tuple[str, Held] | None = None
        self._in_sync = in_sync
        self._everywhere_now = 0
        self.count(in_sync)

    @property
    def copies(self) -> int:
        """How many a confirm of all needs: the members of the set, the master included, and never fewer than are
        wanted."""
        return max(len(self._proved), self._in_sync.copies_wanted)

    def count(self, in_sync: InSyncSet, *, up: Collection[str] = (), proposed_up: bool = False) -> None:
        """These are the members from now on. The acks of those in `up` count; so do those of the proposed one as such,
        if it is `proposed_up`."""
        self._in_sync = in_sync
        for node in in_sync.replicas:
            self._held.setdefault(node, Held())
        live = {self._own, *up}
        self._proved = {node: self._held[node] if node in live else self._kept(node) for node in in_sync.members}
        if self._proposed is not None:
            node, held = self._proposed
            self._proposed = (node, self._held[node] if proposed_up else self._apart(node, held))
        self._gather()
        self._advance()

    def propose(self, node: str) -> None:
        """Wait for this copy as for a member, until `settle`. `count` is due."""
        self._proposed = (node, self._held[node])

    def settle(self, in_sync: InSyncSet) -> None:
        """By this set, what was proposed is settled: if the copy is a member now, it holds what it proved meanwhile;
        if not, nobody waits for it any more. `count` is due."""
        assert self._proposed is not None
        (node, held), self._proposed = self._proposed, None
        if node in in_sync.whole or node not in self._proved:
            self._proved[node] = held

    def is_member(self, node: str) -> bool:
        """Whether it is a whole member of the set."""
        return node in self._proved and node not in self._in_sync.marked

    def held(self, node: str) -> Held:
        """What a replica proved over its last link, whether it counts or not."""
        return self._held[node]

    def linked(self, node: str, *, written: int) -> None:
        """A link begins, or has proved that its mirror holds everything below `written`. What the one before proved
        stays what it is for whom it counted. `count` is due."""
        self._held[node] = Held(written)

    def appended(self, end: int) -> None:
        """The master's own copy reaches to `end`."""
        self._held[self._own].written = end
        self._advance()

    def flushed(self, end: int) -> None:
        """The master's own copy is on its disk up to `end`."""
        self._held[self._own].flushed = end
        self._advance()

    def acked(self, node: str, *, written: int, flushed: int) -> None:
        """A proven mirror says what it holds of this history; a mirror that lost its end may say less than before."""
        held = self._held[node]
        held.written, held.flushed = written, flushed
        self._advance()

    def reached_by(self, copies: int, durability: int) -> int:
        """Up to which log offset at least `copies` whole members hold every byte; with ALL_MEMBERS every member and the
        proposed one, whoever they are by then."""
        if copies == ALL_MEMBERS:
            return self._everywhere_now if durability == self._durability else self._everywhere(durability)
        offsets = sorted(map(_AT[durability], self._members), reverse=True)
        return offsets[copies - 1] if copies <= len(offsets) else 0

    def copies_of(self, end: int, durability: int) -> int:
        """How many whole members hold everything below `end`."""
        at, count = _AT[durability], 0
        for held in self._members:
            count += at(held) >= end
        return count

    def copies_for(self, level: int) -> int:
        """The number of copies that a confirm level of the wire means here. Raises BadRequest when there are fewer."""
        assigned = len(self._in_sync.replicas)
        if level == Level.ALL:
            return ALL_MEMBERS
        if level == Level.MAJORITY:
            return assigned // 2 + 1
        if level > assigned:
            raise BadRequest(f"confirm level of {level} copies, but this log has {assigned}; ask for fewer or `all`")
        return level

    def holds(self, end: int, copies: int, durability: int) -> bool:
        """Whether a publish that ends there has reached its level (`copies_for`)."""
        return copies == Level.NONE or end <= self.reached_by(copies, durability)

    def _kept(self, node: str) -> Held:
        """What a member whose acks do not count proved as one."""
        return self._apart(node, self._proved.get(node) or Held())

    def _apart(self, node: str, held: Held) -> Held:
        """`held`, which the node's acks change no more."""
        if held is self._held[node]:
            self._held[node] = replace(held)
        return held

    def _gather(self) -> None:
        self._members = [self._proved[node] for node in self._in_sync.whole]
        self._waited = [*self._proved.values(), *([self._proposed[1]] if self._proposed is not None else [])]
        # Fewer than are wanted confirm nothing new (invariant 5); nor does a master that is not in the set.
        self._enough = len(self._members) >= self._in_sync.copies_wanted and self.is_member(self._own)

    def _advance(self) -> None:
        self._everywhere_now = self._everywhere(self._durability)
        self.confirmed = max(self.confirmed, self._everywhere_now)

    def _everywhere(self, durability: int) -> int:
        """What everybody holds who is waited for."""
        return min(map(_AT[durability], self._waited)) if self._enough else 0


# A heap may hold this many answered waits, beside as many as there are open ones, before it is built anew.
_STALE_MAX: Final = 256


class PutStatus(Enum):
    """How a wait ended; the names are RocketMQ's. All but PUT_OK mean: stored on the master, outcome unknown."""

    PUT_OK = "PUT_OK"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class Answer(NamedTuple):
    """`token` is what the waiter was registered under; `copies` held everything below its end at the answer."""

    token: Hashable
    status: PutStatus
    copies: int


class _Waiter(NamedTuple):
    end: int
    serial: int
    token: Hashable
    deadline: float
    copies: int
    durability: int


class GroupTransferService:
    """Waiting confirms of one log, answered in offset order; at most `waiting_max` of them."""

    def __init__(self, *, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._by_need: dict[tuple[int, int], list[_Waiter]] = {}
        self._by_deadline: list[tuple[float, int, _Waiter]] = []
        self._open: dict[int, _Waiter] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._open)

    def check_room(self) -> None:
        """Raises Overloaded when no further publish may wait; asked before the append, so that nothing is stored."""
        if len(self._open) >= self._waiting_max:
            raise Overloaded(
                f"{self._waiting_max} publishes wait for a confirm (limits.max_waiting_confirms); send fewer at once",
                limit="max_waiting_confirms",
            )

    def wait(self, token: Hashable, *, end: int, copies: int, durability: int, deadline: float) -> None:
        """Answer `token` when `copies` members hold everything below `end`, or at `deadline`."""
        self._serial += 1
        waiter = _Waiter(end, self._serial, token, deadline, copies, durability)
        self._open[waiter.serial] = waiter
        heappush(self._by_need.setdefault((copies, durability), []), waiter)
        heappush(self._by_deadline, (deadline, waiter.serial, waiter))

    def progressed(self, progress: Progress) -> list[Answer]:
        """The confirms that the copies' progress allows."""
        answers = []
        for (copies, durability), heap in self._by_need.items():
            if not heap:
                continue
            reached = progress.reached_by(copies, durability)
            while heap and heap[0].end <= reached:
                waiter = heappop(heap)
                if self._open.pop(waiter.serial, None) is not None:
                    answers.append(Answer(waiter.token, PutStatus.PUT_OK, progress.copies_of(waiter.end, durability)))
        if len(self._by_deadline) > 2 * len(self._open) + _STALE_MAX:
            self._by_deadline = [entry for entry in self._by_deadline if entry[1] in self._open]
            heapify(self._by_deadline)
        return answers

    def expired(self, now: float, progress: Progress, *, links_up: int) -> list[Answer]:
        """The waits whose deadline has come. `links_up`: live proven copies, the master included."""
        answers = []
        while self._by_deadline and self._by_deadline[0][0] <= now:
            waiter = heappop(self._by_deadline)[2]
            if self._open.pop(waiter.serial, None) is None:
                continue
            answers.append(self._timed_out(waiter, progress, links_up))
        if answers:
            self._forget_expired()
        return answers

    def next_deadline(self) -> float | None:
        """When `expired` is due; None while nothing waits."""
        while self._by_deadline and self._by_deadline[0][1] not in self._open:
            heappop(self._by_deadline)
        return self._by_deadline[0][0] if self._by_deadline else None

    def abandon(self) -> list[Hashable]:
        """End all waits without an answer: their tokens, in the order in which they began to wait."""
        tokens = [waiter.token for waiter in self._open.values()]
        self._open.clear()
        self._by_need.clear()
        self._by_deadline.clear()
        return tokens

    def _forget_expired(self) -> None:
        """A mirror that stays away must not make the waits that ended by their deadline pile up behind it.

        Each pass removes more than half of a heap, so it costs a constant share of what has put them there.
        """
        for need, heap in self._by_need.items():
            if len(heap) > 2 * len(self._open) + _STALE_MAX:
                self._by_need[need] = [waiter for waiter in heap if waiter.serial in self._open]
                heapify(self._by_need[need])

    def _timed_out(self, waiter: _Waiter, progress: Progress, links_up: int) -> Answer:
        copies = progress.copies_of(waiter.end, waiter.durability)
        needed = progress.copies if waiter.copies == ALL_MEMBERS else waiter.copies
        if links_up < needed:
            status = PutStatus.SLAVE_NOT_AVAILABLE
        elif progress.copies_of(waiter.end, Durability.MEMORY) >= needed:
            status = PutStatus.FLUSH_DISK_TIMEOUT
        else:
            status = PutStatus.FLUSH_SLAVE_TIMEOUT
        return Answer(waiter.token, status, copies)
