"""What a queue's takers were given, and what became of it: each of the promises of delivery, held to at every event.

Pure. Records have a number of their own in their value, so that one is known again in another queue. Whoever is given
one says so before it settles it, and says that a settlement was confirmed behind its confirm: so what this book says is
never earlier than what has happened, and what it calls wrong is wrong.

A master that is cut off may give out, for a moment, what its successor has given out, flagged, or even had settled:
its deliveries are of an earlier epoch, and known by that (docs/use/settling.md: two may have the same record).
They are counted as `stale`, and are no error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

ACK: Final = "ack"
REJECT: Final = "reject"
MOVE: Final = "move"
NEWEST: Final = 2**63
"""The epoch of what is confirmed by all before it is given out, as leases are: no earlier master can give it."""
OVER: Final = -1
"""That of a lease that was over when it was heard of."""

WRONG: Final = ("came_again", "unflagged", "out_of_turn")
"""What `Book.wrong` is counted by: what was acknowledged comes; what was given out comes, not flagged; what comes for
the first time comes behind what is newer."""


@dataclass(slots=True)
class Fate:
    """Of one record. `epoch`: the last one it was given out in; `first`: it came unflagged; `settled`: the epoch in
    which a settlement was confirmed; `tried`, `confirmed`: which settlements were; `story`: what happened, in order."""

    given: int = 0
    epoch: int = -1
    first: bool = False
    settled: int | None = None
    tried: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    story: list[str] = field(default_factory=list)


class Book:
    """Of one queue. `fates`: by number; `wrong`: what must not be, in words; `stale`: the numbers of records that came
    as from the past; `counts`: of each of `WRONG`, and of what is `stale`."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.fates: dict[int, Fate] = {}
        self.wrong: list[str] = []
        self.stale: list[int] = []
        self.counts: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._unordered_below = 0

    def gave(
        self,
        taker: str,
        offset: int,
        number: int,
        *,
        redelivered: bool,
        epoch: int,
        numbered: int | None = None,
        when: float = 0.0,
    ) -> None:
        """`taker` was given the record, in `epoch`; `numbered`: the epoch that a lease's number begins with."""
        fate = self.fates.setdefault(number, Fate())
        flag = " redelivered" if redelivered else ""
        self._tell(fate, when, f"{taker} was given offset {offset} in epoch {epoch}{flag}")
        self._check_settled(number, fate, epoch)
        if not redelivered:
            self._check_first(number, fate, epoch)
            self._check_turn(taker, offset, number, fate)
            fate.first = True
        fate.given += 1
        fate.epoch = max(fate.epoch, epoch if numbered is None else numbered)

    def tries(self, taker: str, numbers: Sequence[int], how: str, when: float = 0.0) -> None:
        """Settling them is asked for."""
        for number in numbers:
            fate = self.fates[number]
            fate.tried.add(how)
            self._tell(fate, when, f"{taker} asks to {how}")

    def ended(self, taker: str, numbers: Sequence[int], how: str, error: str, when: float = 0.0) -> None:
        """It was not confirmed."""
        for number in numbers:
            self._tell(self.fates[number], when, f"{taker} failed to {how}: {error}")

    def confirmed(self, taker: str, numbers: Sequence[int], how: str, *, epoch: int, when: float = 0.0) -> None:
        """It was confirmed, in `epoch`."""
        for number in numbers:
            fate = self.fates[number]
            fate.confirmed.add(how)
            self._tell(fate, when, f"{taker} did {how} in epoch {epoch}")
            if how in (ACK, REJECT, MOVE):
                fate.settled = epoch if fate.settled is None else min(epoch, fate.settled)

    def unordered_below(self, offset: int) -> None:
        """A lease's answer has failed, and its client gave back what came with it, as if nobody had seen it: what is
        below `offset` may come for the first time behind what is newer."""
        self._unordered_below = offset

    def story(self, number: int) -> str:
        """What happened to a record, in one line."""
        fate = self.fates.get(number)
        return f"record {number} of {self.queue}: " + ("nothing" if fate is None else "; ".join(fate.story))

    # --- inside ---

    def _check_settled(self, number: int, fate: Fate, epoch: int) -> None:
        if fate.settled is None:
            return
        if epoch < fate.settled:
            self._excuse(number)
        else:
            self._say("came_again", number)

    def _check_first(self, number: int, fate: Fate, epoch: int) -> None:
        if fate.first or (fate.given and fate.epoch <= epoch):
            self._say("unflagged", number)
        elif fate.given:
            self._excuse(number)

    def _check_turn(self, taker: str, offset: int, number: int, fate: Fate) -> None:
        last = self._last.get(taker, -1)
        if offset < last and offset >= self._unordered_below:
            self._say("out_of_turn", number)
        self._last[taker] = max(last, offset)

    def _say(self, kind: str, number: int) -> None:
        self.counts[kind] += 1
        self.wrong.append(f"{kind}: {self.story(number)}")

    def _excuse(self, number: int) -> None:
        self.counts["stale"] += 1
        self.stale.append(number)

    @staticmethod
    def _tell(fate: Fate, when: float, what: str) -> None:
        fate.story.append(f"{when:.3f} {what}")


@dataclass(slots=True)
class Move:
    """A transaction. `outcome`: "confirmed"; "refused": nothing of it counts; "unknown". `not_granted`: refused because
    somebody else has some of its records."""

    numbers: list[int]
    outcome: str = "unknown"
    not_granted: bool = False


ENDS: Final = (
    "lost", "moved_twice", "moved_missing", "moved_torn", "moved_unasked", "dead_twice", "dead_missing", "dead_unasked",
    "settled_twice", "never_given",
)  # fmt: skip
"""What `check_ends` counts."""


def check_ends(
    work: Book, *, published: Sequence[int], moves: dict[int, Move], moved: Sequence[tuple[int, int]],
    dead: Sequence[int], given: dict[str, Book],
) -> dict[str, int]:  # fmt: skip
    """What is wrong with the records of a queue in which all is settled, how many of each kind.

    `published`: numbers whose publish was confirmed; `moves`: transactions by number; `moved`: (record, transaction) as
    they stand in the target; `dead`: records as they stand in the dead letter queue; `given`: the books of both, by
    `moved` and `dead`. In those all is settled, too.
    """
    at_target, at_dead = Counter(number for number, _ in moved), Counter(dead)
    return {
        "lost": sum(not _has_ended(work, number, at_target, at_dead) for number in published),
        "moved_twice": sum(count > 1 for count in at_target.values()),
        **_check_moves(moves, Counter(move for _, move in moved)),
        "dead_twice": sum(count > 1 for count in at_dead.values()),
        "dead_missing": sum(_is_missing(fate, at_dead[number]) for number, fate in work.fates.items()),
        "dead_unasked": sum(number not in work.fates or REJECT not in work.fates[number].tried for number in at_dead),
        "settled_twice": len(at_target.keys() & at_dead.keys())
        + sum(_acked_alone(work, number) for number in at_target.keys() | at_dead.keys()),
        "never_given": sum(number not in given["moved"].fates for number in at_target)
        + sum(number not in given["dead"].fates for number in at_dead),
    }


def _has_ended(work: Book, number: int, moved: Counter[int], dead: Counter[int]) -> bool:
    """Whether somebody wanted it to end, or it is elsewhere: one that nobody was given, or that everybody only gave
    back, is lost when its queue has nothing left."""
    fate = work.fates.get(number)
    return moved[number] > 0 or dead[number] > 0 or (fate is not None and ACK in fate.tried)


def _check_moves(moves: dict[int, Move], stored: Counter[int]) -> dict[str, int]:
    return {
        "moved_missing": sum(each.outcome == "confirmed" and stored[move] == 0 for move, each in moves.items()),
        "moved_torn": sum(stored[move] not in (0, len(each.numbers)) for move, each in moves.items()),
        "moved_unasked": sum(move not in moves or moves[move].outcome == "refused" for move in stored),
    }


def _is_missing(fate: Fate, letters: int) -> bool:
    """One that was rejected is no letter. Who rejected it again, unanswered, behind somebody who settled it, is
    answered as the first time; then somebody else has tried."""
    return REJECT in fate.confirmed and letters == 0 and not fate.tried & {ACK, MOVE}


def _acked_alone(work: Book, number: int) -> bool:
    """Given to one only, who acknowledged it: nobody else had it."""
    fate = work.fates.get(number)
    return fate is not None and ACK in fate.confirmed and fate.given == 1
