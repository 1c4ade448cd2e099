"""Who is in sync with a log, as its master knows it, and what the master asks the cluster to change in it.

The set is the cluster's: it is changed by commands that name the version which they saw, and the master learns it from
there (invariant 5). Between a command and what is known of it lies every danger: the cluster may have let a copy in,
and may promote it, before its master knows. So whoever is proposed is waited for from that step on, until the outcome
has been read. When it cannot be read, because the command may still be under way, it is waited for until a higher
version is known: then the command can never be applied any more. An empty shrink, which changes the version and nothing
else, brings that about.

Rejected: to propose the same growth again instead; it would let in a copy that has gone meanwhile.

Pure: what is known and `now` in, a wish out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

RETRY_S: Final = 1.0
"""After a wish that was refused, or of which nothing was heard, nothing is wished for that long, counted from when it
was handed out, unless the set has changed."""


@dataclass(frozen=True, slots=True)
class InSyncSet:
    """What the cluster has decided about one log.

    `version`: the log's, raised by every change of it. `replicas`: nodes that hold copies, the home first. `members`:
    by node, the run (start id) in which it is in sync; the master is always one. `marked`: members that may have lost
    something. `copies_wanted`: whole members without which nothing is confirmed. `starts`: by node, the run that the
    cluster knows of it now; it changes without a new version for a node that is no member. `target`: the nodes that the
    log is on its way to; `paused`: no such copy is filled.
    """

    version: int
    replicas: tuple[str, ...]
    members: Mapping[str, str]
    marked: frozenset[str]
    copies_wanted: int
    starts: Mapping[str, str]
    target: tuple[str, ...] = ()
    paused: bool = False

    @property
    def whole(self) -> tuple[str, ...]:
        """Members that lost nothing: they may be promoted."""
        return tuple(node for node in self.replicas if node in self.members and node not in self.marked)

    def may_leave(self, nodes: Collection[str], *, own: str) -> tuple[str, ...]:
        """Who of `nodes` the cluster would let go together: never the master `own`, and `copies_wanted` stay.

        A marked member fills no place of a whole one: while the whole ones are too few none of them leaves. Marked ones
        leave as far as the others are enough to hold the confirmed offset still.
        """
        leaving = [node for node in self.replicas if node in self.members and node in nodes and node != own]
        marked = [node for node in leaving if node in self.marked]
        spare = len(self.whole) - self.copies_wanted
        if spare > 0:
            return (*marked, *[node for node in leaving if node not in self.marked][:spare])
        return tuple(marked[: max(0, len(self.members) - self.copies_wanted)])


@dataclass(frozen=True, slots=True)
class Grow:
    """Let `node` in, in its run `start_id`. For a log that is still as it was at `version`."""

    node: str
    start_id: str
    version: int


@dataclass(frozen=True, slots=True)
class Shrink:
    """Let `nodes` go. With none it changes nothing but the version, and every command that saw the old one is void."""

    nodes: tuple[str, ...]
    version: int


Wish = Grow | Shrink


class LagClocks:
    """Since when each member has been behind.

    A member has caught up as of a moment when it holds everything up to where the log ended then, whenever it says so:
    one that follows a busy log by a steady second is never behind by more than that, and one that holds everything is
    not behind at all, however long nothing is published. Looked at from time to time, never per ack: at each look one
    end is kept per member, to be reached.

    A look after a long pause starts anew: whoever looks was stopped, and what was said meanwhile is still to be read.
    """

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._looked_at = -math.inf
        self._clocks: dict[str, tuple[float, int, float]] = {}

    def behind(self, now: float, *, end: int, reached: Mapping[str, int | None]) -> list[str]:
        """Who has not caught up for `lag_s`. `end`: the log's; `reached`: how far each member is, None for one whose
        acks do not count, or that is away. A member's clock starts when it is first looked at."""
        if now - self._looked_at > self._lag_s / 2:
            self._clocks = {}
        self._looked_at = now
        clocks = {}
        for node, offset in reached.items():
            caught_up_at, target, target_at = self._clocks.get(node, (now, end, now))
            if offset is not None and offset >= target:
                caught_up_at = now if offset >= end else target_at
                target, target_at = end, now
            clocks[node] = (caught_up_at, target, target_at)
        self._clocks = clocks
        return [node for node, clock in clocks.items() if now - clock[0] >= self._lag_s]

    def restart(self, node: str) -> None:
        """It was let in, perhaps; it is not behind from a time at which it was marked."""
        self._clocks.pop(node, None)


class Wishes:
    """One wish under way at a time, and whom it adds to those who are waited for."""

    def __init__(self, own: str) -> None:
        self.proposed: Grow | None = None
        """Waited for like a member: the cluster may have let it in."""
        self._own = own
        self._under_way: Wish | None = None
        self._asked_at = 0.0
        self._resting: tuple[int, float] = (-1, 0.0)
        self._refused = ""

    def next(
        self, now: float, in_sync: InSyncSet, *, behind: Collection[str], ready: Sequence[tuple[str, str]]
    ) -> Wish | None:
        """What to ask for. `behind`: members that should leave; `ready`: (node, run) of copies that may be let in."""
        if not self._may_ask(now, in_sync.version):
            return None
        wish = self._chosen(in_sync, behind, ready)
        if wish is None:
            return None
        self._under_way, self._asked_at = wish, now
        if isinstance(wish, Grow):
            self.proposed = wish
        return wish

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and nobody is proposed."""
        return self._under_way is None and self.proposed is None

    def free(self, now: float, version: int) -> bool:
        """Whether nobody is proposed, and one could be at once. `version`: of the set, as it is known."""
        return self.proposed is None and self._may_ask(now, version)

    def _may_ask(self, now: float, version: int) -> bool:
        rested_version, rests_until = self._resting
        return self._under_way is None and (version != rested_version or now >= rests_until)

    def _chosen(self, in_sync: InSyncSet, behind: Collection[str], ready: Sequence[tuple[str, str]]) -> Wish | None:
        if self.proposed is not None:
            return Shrink((), in_sync.version)
        if leaving := in_sync.may_leave(behind, own=self._own):
            return Shrink(leaving, in_sync.version)
        if ready:
            # One that was refused, for a reason that is not known here yet, does not keep the others out.
            node, start_id = min(ready, key=lambda each: each[0] == self._refused)
            return Grow(node, start_id, in_sync.version)
        return None

    def learned(self, version: int) -> Grow | None:
        """The set is known at `version`: the proposal that is settled by it, in whichever way."""
        if self.proposed is None or self.proposed.version >= version:
            return None
        settled, self.proposed = self.proposed, None
        return settled

    def ended(self, wish: Wish, *, refused: bool) -> Grow | None:
        """The outcome was read, and what it made of the set was learned before: the proposal that came to nothing."""
        if wish != self._under_way:
            return None
        self._under_way = None
        if refused or isinstance(wish, Shrink):
            self._rest(wish)
        if not refused or not isinstance(wish, Grow) or wish != self.proposed:
            return None
        self._refused = wish.node
        self.proposed = None
        return wish

    def unknown(self, wish: Wish) -> None:
        """Nobody can say what came of it, or will."""
        if wish != self._under_way:
            return
        self._under_way = None
        if isinstance(wish, Shrink):
            self._rest(wish)  # who is proposed holds the confirmed offset: that wish is made void at once

    def _rest(self, wish: Wish) -> None:
        self._resting = (wish.version, self._asked_at + RETRY_S)


# Whom a master waits for before it asks the cluster to let it in.
#
# Under steady publishing the confirmed offset runs ahead of the acks of a copy that is further away than the members.
# It follows as well as they do, and yet never holds all that is confirmed, which whoever is let in must. So it is
# *awaited* first: nothing is confirmed without it, as if it were a member, and a round trip later it holds everything.
#
# Publishes wait with it. So only a copy that is near is awaited, one at a time and not for long, and one that did not
# come rests, longer each time. No command names it yet, so it is dropped without asking anybody; once one does, it is
# proposed (`in_sync.py`), and no longer this file's.
#
# Rejected: to let in a copy that lacks some of what is confirmed (it may be promoted at once), and to hold publishes
# back until it is there (who asks for fewer copies than all need not wait for it).
#
# Pure: what is known and `now` in, whom to wait for out.


NEAR_S: Final = 0.25
"""A copy is near that has what was confirmed so long ago: a round trip around the world. Publishes wait about as long
as its acks take, when it is awaited."""
CATCH_UP_S: Final = 1.0
"""So long it is awaited; a healthy copy needs a round trip and the time until the next look."""
REST_S: Final = 5.0
"""One that did not come is not awaited again for so long, and for twice the time after each further failure,"""
REST_MAX_S: Final = 60.0
"""up to this."""


class Candidate(NamedTuple):
    """A copy that may be let in once it holds all that is confirmed, in the run that the cluster knows."""

    node: str
    start_id: str


@dataclass(frozen=True, slots=True)
class _Past:
    """Of a node, when its copy was awaited last. `until`: it rests; `rest_s`: for how long it does, 0 after success."""

    start_id: str
    until: float
    rest_s: float = 0.0


class CatchUp:
    """Looks at the candidates from time to time, and awaits one at a time."""

    def __init__(self) -> None:
        self.awaited: Candidate | None = None
        """Waited for like a member, with no command under way for it."""
        self._since = 0.0
        self._marks: dict[Candidate, tuple[int, float]] = {}
        self._pasts: dict[str, _Past] = {}

    def look(self, now: float, *, confirmed: int, reached: Mapping[Candidate, int], free: bool) -> None:
        """Begin to await, or drop who is awaited. `confirmed`, `reached`: how far the log and each candidate are now;
        `free`: the cluster could be asked at once, and nobody is proposed."""
        near = self._near(now, confirmed, reached)
        if self.awaited is not None:
            if self.awaited not in reached or now - self._since >= CATCH_UP_S:
                self._drop(self.awaited, now)
        elif free and (rested := [copy for copy in near if self._has_rested(copy, now)]):
            # Whoever was not awaited for the longest time: one that never comes does not keep the others out.
            self.awaited = min(rested, key=self._rested_at)
            self._since = now

    def won(self, now: float) -> None:
        """A wish is handed out; whom it names is proposed from here on, and awaited no more."""
        if self.awaited is not None:
            self._pasts[self.awaited.node] = _Past(self.awaited.start_id, now)
            self.awaited = None

    def _drop(self, awaited: Candidate, now: float) -> None:
        past = self._pasts.get(awaited.node)
        before_s = past.rest_s if past is not None and past.start_id == awaited.start_id else 0.0
        rest_s = min(max(REST_S, 2 * before_s), REST_MAX_S)
        self._pasts[awaited.node] = _Past(awaited.start_id, now + rest_s, rest_s)
        self.awaited = None

    def _near(self, now: float, confirmed: int, reached: Mapping[Candidate, int]) -> list[Candidate]:
        """Who reached in time what was confirmed at an earlier look. It is kept per copy until it is reached, so one
        that is slower than the log is found to be late, however far the looks are apart."""
        near, marks = [], {}
        for copy, offset in reached.items():
            mark, marked_at = self._marks.get(copy, (confirmed, now))
            if offset >= mark:
                if now - marked_at <= NEAR_S:
                    near.append(copy)
                mark, marked_at = confirmed, now
            marks[copy] = mark, marked_at
        self._marks = marks
        return near

    def _has_rested(self, copy: Candidate, now: float) -> bool:
        past = self._pasts.get(copy.node)
        return past is None or past.start_id != copy.start_id or now >= past.until

    def _rested_at(self, copy: Candidate) -> float:
        past = self._pasts.get(copy.node)
        return -math.inf if past is None else past.until
