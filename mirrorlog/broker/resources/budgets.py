"""What all client connections of a node together may hold of its memory. Pure.

Each connection has limits of its own, and a thousand within theirs are a node's death. So bytes that were read from
disk for a reader and not taken by it, and frames that were begun and not completed, have a budget of the node each.

Backpressure comes before the axe: from half of the first budget on nothing more is read for who has not taken what it
has. Only at all of it, while somebody who has taken everything waits, the connection that holds most goes. Of begun
frames nothing can be held back, they are the sender's: there whoever has held most for longest goes, which is who has
stopped, and not who is about to complete one. What is sent out of mapped segments counts in neither: it is page cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class BudgetedConnection(Protocol):
    """A connection that is answered."""

    @property
    def unsent_bytes(self) -> int: ...


class ReceivingConnection(Protocol):
    """A connection that may have begun a frame: with how many bytes, and how long ago, in s."""

    @property
    def begun_bytes(self) -> int: ...

    def begun_s(self, now: float) -> float: ...


_H = TypeVar("_H", bound=BudgetedConnection)
_B = TypeVar("_B", bound=ReceivingConnection)


class OutgoingBudget(Generic[_H]):
    """Of what was read for connections and waits to be sent. `limit_bytes`: of all together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._reading_bytes = 0
        # What was given since it had taken everything: what it holds is no more than that, and than what is unsent.
        self._given: dict[_H, int] = {}
        self._held_bytes = 0
        self._refused_bytes = 0

    def begin(self, holder: _H, size: int) -> bool:
        """Whether so much may be read for it now; then it is to be told that it `ended`."""
        held, own = self._held_bytes + self._reading_bytes, self._held(holder)
        room = self._limit_bytes // 2 if own else self._limit_bytes
        if held and held + size > room:  # an answer that is larger than all comes alone
            if not own:
                self._refused_bytes = max(self._refused_bytes, size)
            return False
        self._reading_bytes += size
        return True

    def gave(self, holder: _H, size: int) -> None:
        """So much was read for it, and handed to its connection."""
        self._given[holder] = self._given.get(holder, 0) + size
        self._held_bytes += size

    def ended(self, size: int) -> None:
        """What was begun with `size` is over, however."""
        self._reading_bytes -= size

    def forget(self, holder: _H) -> None:
        """It is gone."""
        self._given.pop(holder, None)

    def look(self) -> _H | None:
        """Count anew what they have not taken, as is to be done some times a second; and who has to go, because
        somebody waits who holds nothing and there is no room for him. None while there is, or when there is none only
        for what is still being read, or nobody holds a real share: then nobody is to blame."""
        held = {holder: self._held(holder) for holder in self._given}
        self._given = {holder: given for holder, given in self._given.items() if held[holder]}
        self._held_bytes = sum(held.values())
        wanted, self._refused_bytes = self._refused_bytes, 0
        if not wanted or self._held_bytes + wanted <= self._limit_bytes or not self._given:
            return None
        most = max(self._given, key=held.__getitem__)
        return most if 2 * held[most] * len(self._given) >= self._limit_bytes else None

    def _held(self, holder: _H) -> int:
        given = self._given.get(holder, 0)
        return min(given, holder.unsent_bytes) if given else 0


def longest_begun(connections: Iterable[_B], limit_bytes: int, now: float) -> _B | None:
    """Who has to go, because all together have begun more than the limit: who has held most for longest. None below."""
    begun = [(each.begun_bytes, each) for each in connections]
    if sum(size for size, _ in begun) <= limit_bytes:
        return None
    return max(begun, key=lambda each: (each[0] * each[1].begun_s(now), each[0]))[1]
