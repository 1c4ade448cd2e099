"""How far each copy of a log is, as its master knows it, and what follows: the confirmed offset.

The confirmed offset is the smallest offset that every member of the in-sync set holds at the log's durability. A
level that asks for k copies is reached at the k-th largest offset among the members. One slave's largest ack counted
for all is RocketMQ's flaw that this avoids (seed 002, lines 185 and 229-253).

The set is the assignment and does not shrink: a member that is away keeps what it proved, and holds the confirmed
offset still.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlog.errors import BadRequest
from mirrorlog.wire.frames import Durability, Level


@dataclass(slots=True)
class Held:
    """What one copy proved to hold: log offsets, exclusive; in memory and on disk."""

    written: int = 0
    flushed: int = 0

    def at(self, durability: int) -> int:
        return self.flushed if durability == Durability.DISK else self.written


class Progress:
    """The members of one log's in-sync set and what each holds. Pure."""

    def __init__(self, *, own: str, mirrors: tuple[str, ...], durability: Durability, confirmed: int) -> None:
        self._own = own
        self._durability = durability
        self._held = {node: Held() for node in (own, *mirrors)}
        self._confirmed = confirmed
        self._absent: set[str] = set()

    @property
    def confirmed(self) -> int:
        """Never goes back."""
        return self._confirmed

    @property
    def copies(self) -> int:
        """Members of the set, the master included."""
        return len(self._held) - len(self._absent)

    def leave(self, node: str) -> None:
        """A mirror that began at the last segment lacks older records: it is no member, and nobody waits for it."""
        self._absent.add(node)
        self._advance()

    def enter(self, node: str) -> None:
        """The mirror holds everything from the log's begin to the confirmed offset."""
        self._absent.discard(node)

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
        """Up to which log offset at least `copies` members hold every byte."""
        offsets = sorted((held.at(durability) for held in self._members()), reverse=True)
        return offsets[copies - 1] if copies <= len(offsets) else 0

    def copies_of(self, end: int, durability: int) -> int:
        """How many members hold everything below `end`."""
        return sum(held.at(durability) >= end for held in self._members())

    def copies_for(self, level: int) -> int:
        """The number of copies that a confirm level of the wire means here. Raises BadRequest when there are fewer."""
        if level == Level.ALL:
            return self.copies
        if level == Level.MAJORITY:
            return self.copies // 2 + 1
        if level > self.copies:
            raise BadRequest(f"confirm level of {level} copies, but this log has {self.copies}; ask for fewer or `all`")
        return level

    def _members(self) -> list[Held]:
        if not self._absent:
            return list(self._held.values())
        return [held for node, held in self._held.items() if node not in self._absent]

    def _advance(self) -> None:
        everywhere = min(held.at(self._durability) for held in self._members())
        self._confirmed = max(self._confirmed, everywhere)
