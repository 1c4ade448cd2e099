"""GroupTransferService: the publishes that wait for copies, each with a deadline of its own.

RocketMQ's service (seed 002, lines 165-253) takes the waiting requests one by one: a request's clock starts at its
turn, so one slow request lets the next ones wait longer than they asked for, and those that were replicated long
ago time out in the queue behind it. Here the waiting stand in heaps by offset, one heap per (copies, durability): an
ack answers all that it covers in one step, and a deadline is a point in time that is fixed when the wait begins.

Pure: `now` comes in (seconds of one monotonic clock), answers go out.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from mirrorlog.errors import Overloaded
from mirrorlog.ha.progress import ALL_MEMBERS, Progress
from mirrorlog.wire.frames import Durability

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
