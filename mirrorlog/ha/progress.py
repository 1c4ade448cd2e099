"""How far each copy of a log is, as its master knows it, and what follows: the confirmed offset.

The confirmed offset is the smallest offset that every member of the in-sync set holds at the log's durability. A
level that asks for k copies is reached at the k-th largest offset among the members. One slave's largest ack counted
for all is RocketMQ's flaw that this avoids (seed 002, lines 185 and 229-253).

The set is the assignment and does not shrink: a member that is away keeps what it proved, and holds the confirmed
offset still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mirrorlog.errors import BadRequest
from mirrorlog.wire.frames import Durability, Level

# Plain numbers: looking up an enum's member costs as much as the comparison's whole function, several times per ack.
_DISK: Final = int(Durability.DISK)

ALL_MEMBERS: Final = int(Level.ALL)
"""Instead of a number of copies: every member of the in-sync set, as it is when the question is answered."""


@dataclass(slots=True)
class Held:
    """What one copy proved to hold: log offsets, exclusive; in memory and on disk."""

    written: int = 0
    flushed: int = 0

    def at(self, durability: int) -> int:
        return self.flushed if durability == _DISK else self.written


class Progress:
    """The members of one log's in-sync set and what each holds. Pure."""

    def __init__(
        self,
        *,
        own: str,
        mirrors: tuple[str, ...],
        durability: Durability,
        confirmed: int,
        min_in_sync: int = 1,
    ) -> None:
        self.confirmed = confirmed
        """Never goes back. A plain attribute: it is looked up several times per ack."""
        self._own = own
        self._durability = int(durability)
        self._held = {node: Held() for node in (own, *mirrors)}
        self._min_in_sync = min_in_sync
        self._absent: set[str] = set()
        self._members = list(self._held.values())
        self._everywhere_now = 0

    @property
    def copies(self) -> int:
        """Members of the set, the master included."""
        return len(self._members)

    def leave(self, node: str) -> None:
        """A mirror that began at the last segment lacks older records: it is no member, and nobody waits for it."""
        self._absent.add(node)
        self._gather()
        self._advance()

    def enter(self, node: str) -> None:
        """The mirror holds everything from the log's begin to the confirmed offset."""
        self._absent.discard(node)
        self._gather()
        self._advance()

    def is_member(self, node: str) -> bool:
        return node not in self._absent

    def held(self, node: str) -> Held:
        return self._held[node]

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
        """Up to which log offset at least `copies` members hold every byte; with ALL_MEMBERS every one of them, whoever
        they are by then."""
        if copies == ALL_MEMBERS:
            return self._everywhere_now if durability == self._durability else self._everywhere(durability)
        offsets = sorted(self._offsets(durability), reverse=True)
        return offsets[copies - 1] if copies <= len(offsets) else 0

    def copies_of(self, end: int, durability: int) -> int:
        """How many members hold everything below `end`."""
        return sum([offset >= end for offset in self._offsets(durability)])

    def copies_for(self, level: int) -> int:
        """The number of copies that a confirm level of the wire means here. Raises BadRequest when there are fewer."""
        assigned = len(self._held)
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

    def _gather(self) -> None:
        self._members = [held for node, held in self._held.items() if node not in self._absent]

    def _advance(self) -> None:
        self._everywhere_now = self._everywhere(self._durability)
        self.confirmed = max(self.confirmed, self._everywhere_now)

    def _everywhere(self, durability: int) -> int:
        """What every member holds; nothing is new while there are fewer than `min_in_sync` (invariant 5)."""
        return min(self._offsets(durability)) if len(self._members) >= self._min_in_sync else 0

    def _offsets(self, durability: int) -> list[int]:
        if durability == _DISK:
            return [held.flushed for held in self._members]
        return [held.written for held in self._members]
