"""How far each copy of a log is, as its master knows it, and what follows: the confirmed offset.

The confirmed offset is the smallest offset that every member of the in-sync set holds at the log's durability. A
level that asks for k copies is reached at the k-th largest offset among the members. One slave's largest ack counted
for all is RocketMQ's flaw that this avoids (seed 002, lines 185 and 229-253).

A member whose acks do not count, because it is away, marked, or linked in another run than the set says, keeps what it
proved as a member, and holds the confirmed offset still. So does a copy that is proposed to the cluster as a member
(`in_sync.py`), or is about to be (`court.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from mirrorlog.errors import BadRequest
from mirrorlog.ha.in_sync import InSyncSet
from mirrorlog.wire.frames import Durability, Level

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
