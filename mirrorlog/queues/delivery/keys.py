"""Ordered by key: which records of one acking group wait for another one of their key (decision 0060).

Of a key one record at a time is with anybody: the first one that is not settled. Those behind it wait, and are OUT in
the ledger with no subscriber, as what is held back for a delay: so the search for what is free passes over them, and
whoever takes, subscribes or leases needs to know nothing of keys. When the first one is settled, or leaves as a dead
letter, the next one is free; while it is with somebody, waits for its return or for a delay, nothing changes. So there
is nothing to take back from anybody, ever.

Keys are known by a number of 32 bits: two that share one share its order. Records without a key have none.

Records are *met* in the order of the queue, their keys read once, `KEYS_MAX` unsettled ones ahead at most; nothing is
given out that was not met. All of it is this master's memory and follows from the log: another one meets the same.

Pure: `read` says what keys there are. Queue offsets. Rejected: several records of a key with one consumer (what he has
behind one that he returns would have to be taken out of his program's hands, or be done before it); a key that stays
with its consumer (who is slow has all keys that he ever had; who comes gets none); the order as a state in the log.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np

from mirrorlog.commitlog.format.body import BinaryColumn
from mirrorlog.errors import BadRequest
from mirrorlog.queues.groups.ledger import Ledger, State
from mirrorlog.queues.ranges import Range, joined

KEYS_MAX: Final = 32_768
"""Records with a key that are met and not settled. A key with more than these holds up what stands behind them."""
BYTES_MAX: Final = 8 * 1024 * 1024
"""And their bytes: half of what a client keeps of batches that it was sent, by default. Further ahead grants would jump
between more batches than it has, and each of them be sent again and again."""
KEYS_AT_ONCE: Final = 4096
"""Records that are met in one look."""


ORDERED_BY: Final = "key"
"""What a consumer asks for."""


class KeysRead(NamedTuple):
    """Of the records from where it was asked up to `until`: the number of each one's key, None: it has none; nothing
    at all when none of them has one, or they are not there any more. `record_bytes`: of each, in the mean."""

    until: int
    numbers: Sequence[int | None] = ()
    record_bytes: float = 0.0


ReadKeys = Callable[[int, int], KeysRead | None]
"""(at, until): of records from `at` on, below `until`, some at least; None when they are being read: then whoever
drives the group looks at it again when they are there."""


class KeyOrder:
    """Of one group. `on`: whether it is in use; None: nobody has taken from the group yet."""

    def __init__(self, ledger: Ledger, read: ReadKeys) -> None:
        self.on: bool | None = None
        self.met = ledger.floor
        self.behind = False
        """Whether a look ended before it had met what there is, and is to be asked again."""
        self._ledger = ledger
        self._read = read
        # The number of its key, of each record that was met and is not settled.
        self._numbers: dict[int, int] = {}
        self._bytes = 0.0
        # By number: the first record, and those behind it, ascending. What is settled among these is not taken out.
        self._firsts: dict[int, int] = {}
        self._behind: dict[int, deque[int]] = {}

    @property
    def waiting(self) -> int:
        """How many records wait for another one of their key."""
        return len(self._numbers) - len(self._firsts)

    def begin(self) -> None:
        """From here on it is in use, and nobody has anything but leases."""
        self.on, self.met = True, self._ledger.floor

    def end(self) -> list[Range]:
        """It is not in use any more; what waited, and is free by that."""
        waited = self.within(0, self.met) if self.on else []
        self.on, self._bytes = False, 0.0
        for table in (self._numbers, self._firsts, self._behind):
            table.clear()
        for first, until in waited:
            self._ledger.give_back(first, until)
        return waited

    def meet(self, until: int) -> None:
        """Records below `until` are confirmed: some of them are met."""
        left, self.behind = KEYS_AT_ONCE, False
        self.met = max(self.met, self._ledger.floor)
        while self.met < until and len(self._numbers) < KEYS_MAX and self._bytes < BYTES_MAX:
            if left <= 0:
                self.behind = True
                return
            keys = self._read(self.met, min(until, self.met + left))
            if keys is None:
                return
            if keys.numbers:
                self._meet(keys)
                left -= len(keys.numbers)
            self.met = keys.until

    def meet_again(self, ranges: Iterable[Range]) -> None:
        """These were done, and are not after all: they are met once more."""
        if self.on:
            self.met = min([self.met, *(first for first, _ in ranges)])

    def within(self, first: int, until: int) -> list[Range]:
        """Which of these wait for another one of their key."""
        waiting = (at for at in self._known([(first, until)]) if self._firsts[self._numbers[at]] != at)
        return list(joined((at, at + 1) for at in sorted(waiting) if self._state(at) == State.OUT))

    def came_back(self, ranges: Iterable[Range]) -> None:
        """These are free again: one that is not the first of its key waits for it."""
        for at in list(self._known(ranges)):
            if self._firsts[self._numbers[at]] != at:
                self._ledger.take(at, at + 1)

    def settled(self, ranges: Iterable[Range]) -> list[Range]:
        """These are done, or leave: what is free by that."""
        freed, left = list[Range](), set[int]()
        for at in list(self._known(ranges)):
            self._bytes -= self._bytes / len(self._numbers)
            number = self._numbers.pop(at)
            if self._firsts[number] != at:
                left.add(number)
            elif (following := self._following(number)) is not None:
                freed.append((following, following + 1))
        for number in left & self._behind.keys():
            # Kept small: those that are settled behind a first one would be there as long as it.
            self._behind[number] = deque(at for at in self._behind[number] if at in self._numbers)
        freed = [each for each in freed if each[0] in self._numbers]
        for first, until in freed:
            self._ledger.give_back(first, until)
        return freed

    # --- inside ---

    def _known(self, ranges: Iterable[Range]) -> Iterator[int]:
        for first, until in ranges:
            if until - first > len(self._numbers):
                yield from (at for at in self._numbers if first <= at < until)
            else:
                yield from (at for at in range(first, until) if at in self._numbers)

    def _state(self, at: int) -> State:
        return next(self._ledger.runs(at, at + 1))[2]

    def _meet(self, keys: KeysRead) -> None:
        at = keys.until - len(keys.numbers)
        for first, until, state in list(self._ledger.runs(at, keys.until)):
            if state == State.SETTLED:
                continue
            leaves = {each for run in self._ledger.forwarding_within(first, until) for each in range(*run)}
            for offset, number in enumerate(keys.numbers[first - at : until - at], first):
                if number is not None and offset not in leaves and offset not in self._numbers:
                    self._add(offset, number, state)
                    self._bytes += keys.record_bytes

    def _add(self, at: int, number: int, state: State) -> None:
        self._numbers[at] = number
        first = self._firsts.get(number)
        if first is None:
            self._firsts[number] = at
            return
        behind = at
        if (at < first or state == State.LEASED) and self._state(first) == State.FREE:
            # Met once more; or leased before this group was ordered: the other one is in nobody's hands.
            self._firsts[number], behind = at, first
        those = self._behind.setdefault(number, deque())
        if those and behind < those[-1]:
            insort(those, behind)
        else:
            those.append(behind)
        self._ledger.take(behind, behind + 1)

    def _following(self, number: int) -> int | None:
        """The first one of a key is done: who is the first one now, if any."""
        those = self._behind.get(number) or deque()
        while those:
            at = those.popleft()
            if not those:
                del self._behind[number]
            if at in self._numbers:
                self._firsts[number] = at
                return at
        del self._firsts[number]
        return None


def check_ordered(ordered_by: str) -> bool:
    """Whether a consumer wants an order. Raises BadRequest."""
    if ordered_by not in ("", ORDERED_BY):
        raise BadRequest(f"ordered_by {ordered_by[:32]!r} is not {ORDERED_BY!r}, all that there is")
    return bool(ordered_by)


def numbers_of(keys: BinaryColumn, first: int, until: int) -> list[int | None]:
    """Of the keys of records `first` up to `until` of a batch, counted from its first one."""
    borders, data = keys.offsets[first : until + 1].tolist(), keys.data
    numbers: list[int | None] = [crc32(data[begin:end]) for begin, end in pairwise(borders)]
    if keys.validity is None:
        return numbers
    there = np.unpackbits(np.frombuffer(keys.validity, np.uint8), bitorder="little")[first:until].tolist()
    return [number if one else None for number, one in zip(numbers, there, strict=True)]
