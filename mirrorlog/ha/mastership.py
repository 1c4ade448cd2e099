"""A master's decisions about one log: may a publish be appended, and when is it answered.

It knows the links, the in-sync set, the copies' progress and the waiting confirms. How many members are up is checked
before the append, on live proven links (too few is a refusal, nothing is stored); after the append a publish waits for
its level until its deadline. A mirror that holds what this master lost closes the log: `recovering`, nothing is
truncated. The set is the cluster's: `learned` tells what it has decided, `wish` what the master asks of it, and
`catch_up` makes up for the way to a copy that is to come in.

Pure: events and `now` in, answers out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from enum import Enum

from mirrorlog.errors import InSyncReplicasNotEnough, LogRecovering, MirrorAhead, NotAMember
from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.group_transfer import Answer, GroupTransferService, Progress, PutStatus
from mirrorlog.ha.in_sync import Candidate, CatchUp, Grow, InSyncSet, LagClocks, Wish, Wishes
from mirrorlog.ha.pace import LinkPace, MovePace
from mirrorlog.wire.frames import Ack, Durability, Level


class LogState(Enum):
    SERVING = "serving"
    RECOVERING = "recovering"


class Mastership:
    """One log, one epoch, one master."""

    def __init__(
        self,
        *,
        name: str,
        own: str,
        durability: Durability,
        confirmed: int,
        waiting_max: int,
        lossy: bool = False,
        in_sync: InSyncSet,
        lag_s: float = math.inf,
        pace: MovePace | None = None,
    ) -> None:
        """`in_sync`: as the cluster decided it, with or after the promotion of this mastership. `lag_s`: how long a
        member may be behind before it is to leave. `pace`: of what this node sends to copies that are made for a move,
        of all its logs."""
        self.state = LogState.SERVING
        self.reason = ""
        self.links: dict[str, HAConnection] = {}
        self.flush_wanted = 0
        """Below it confirms wait for disks that would not be flushed soon by themselves."""
        self.epoch_start_end: int | None = None
        """Where this epoch's first batch ends. Nobody is let into the set before it is known, or without holding it."""
        self.durability = durability
        self.progress = Progress(own=own, in_sync=in_sync, durability=durability, confirmed=confirmed)
        self.name = name
        self.own = own
        self._in_sync = in_sync
        self._pace = pace
        self._up: frozenset[str] = frozenset()
        self.copies_up = 1
        """The master, and the whole members whose live, proven link is of the run in which they are in sync."""
        self._incomplete: set[str] = set()
        # Counts what may be a reason to wish something, or to await somebody.
        self._moves = 0
        self._moves_at_rest = -1
        self._wishes = Wishes(own)
        self._catch_up = CatchUp()
        self._clocks = LagClocks(lag_s)
        # A master whose own copy lost bytes takes nothing until every mirror has shown that it does not hold more.
        self._unheard = set(self.mirrors) if lossy else set()
        self._transfers = GroupTransferService(waiting_max=waiting_max)

    @property
    def mirrors(self) -> tuple[str, ...]:
        """The other nodes that hold copies, whether in sync or not."""
        return tuple(node for node in self._in_sync.replicas if node != self.own)

    @property
    def min_in_sync(self) -> int:
        """Whole members without which nothing is taken and nothing is confirmed."""
        return self._in_sync.copies_wanted

    @property
    def in_sync(self) -> frozenset[str]:
        """The mirrors that `copies_up` counts."""
        return self._up

    @property
    def waiting(self) -> int:
        return len(self._transfers)

    # --- publishes ---

    def admit(self) -> None:
        """Raises LogRecovering, InSyncReplicasNotEnough or Overloaded: then nothing may be appended that waits."""
        self.check_writable()
        self._transfers.check_room()

    def check_writable(self) -> None:
        """Raises LogRecovering or InSyncReplicasNotEnough: then nothing may be appended."""
        if self.state is LogState.RECOVERING:
            raise self._recovering()
        if self._unheard:
            waited = ", ".join(sorted(self._unheard))
            raise LogRecovering(f"log {self.name} lost bytes on its master and waits to hear what {waited} holds")
        if self.copies_up < self._in_sync.copies_wanted:
            missing = ", ".join(node for node in self.mirrors if node not in self._up)
            raise InSyncReplicasNotEnough(
                f"log {self.name} has {self.copies_up} copies up, min_in_sync is {self.min_in_sync}; "
                f"waiting for {missing}; nothing was stored",
                copies_up=self.copies_up,
                min_in_sync=self.min_in_sync,
            )

    def check_room(self) -> None:
        """Raises Overloaded when no further publish may wait."""
        self._transfers.check_room()

    def wait(self, token: Hashable, *, end: int, copies: int, durability: int, deadline: float) -> list[Answer]:
        """Answer now if the copies have it, else when they do or at the deadline."""
        if copies == Level.NONE or end <= self.progress.reached_by(copies, durability):
            return [Answer(token, PutStatus.PUT_OK, self.progress.copies_of(end, durability))]
        self._transfers.wait(token, end=end, copies=copies, durability=durability, deadline=deadline)
        if durability == Durability.DISK and self.durability == Durability.MEMORY:
            # The log's own flushes are in no hurry; this producer is. On a disk log every copy flushes by itself.
            self.want_flush(end)
        return []

    def want_flush(self, end: int) -> None:
        """A confirm waits, or soon will, for the disks of all copies up to `end`."""
        self.flush_wanted = max(self.flush_wanted, end)
        for link in self.links.values():
            link.want_flush(end)

    def appended(self, end: int) -> list[Answer]:
        self._moves += 1
        self.progress.appended(end)
        return self._transfers.progressed(self.progress)

    def flushed(self, end: int) -> list[Answer]:
        self._moves += 1
        self.progress.flushed(end)
        return self._transfers.progressed(self.progress)

    def expired(self, now: float) -> list[Answer]:
        return self._transfers.expired(now, self.progress, links_up=self.copies_up)

    def abandon(self) -> list[Hashable]:
        """This mastership ends: no wait is answered by it any more. Whoever waits, the longest first."""
        return self._transfers.abandon()

    def next_deadline(self) -> float | None:
        return self._transfers.next_deadline()

    # --- links ---

    def check_member(self, node: str) -> None:
        """Raises NotAMember for a node that this log is not assigned to."""
        if node not in self.mirrors:
            assigned = ", ".join(self.mirrors) or "nobody"
            raise NotAMember(f"node {node!r} is no mirror of log {self.name}; its mirrors are {assigned}")

    def check_open(self) -> None:
        """Raises LogRecovering: a master that has lost something cuts nobody, and feeds nobody what may not stay."""
        if self.state is LogState.RECOVERING:
            raise self._recovering()

    def join(self, link: HAConnection) -> HAConnection | None:
        """A mirror's new link; the one it replaces, if any, is to be closed.

        Raises LogRecovering as `check_open`.
        """
        self.check_open()
        link.want_flush(self.flush_wanted)
        replaced = self.links.get(link.node_id)
        if replaced is not None:
            replaced.closed()  # an ack that is still on its way may be of another run
        self.links[link.node_id] = link
        self.progress.linked(link.node_id, written=0)
        self._recount()
        return replaced

    def leave(self, link: HAConnection) -> None:
        link.closed()
        if self.links.get(link.node_id) is link:
            del self.links[link.node_id]
            self._recount()

    def proven(self, link: HAConnection) -> list[Answer]:
        """The link's mirror asked for an offset that its history and this one share: it holds all below."""
        self._unheard.discard(link.node_id)
        self.progress.linked(link.node_id, written=link.read_half.acked)
        self._recount()
        return self._transfers.progressed(self.progress)

    def acked(self, link: HAConnection, ack: Ack, now: float) -> list[Answer]:
        """Raises AckBeyondEnd or ProtocolError when the ack cannot be true; it counts for nothing then."""
        link.ack(ack, now)
        self._moves += 1
        self.progress.acked(link.node_id, written=ack.written, flushed=ack.flushed)
        if link.node_id in self._incomplete and link.complete:
            self._recount()  # it became so without a word, by the log's begin, which has moved
        return self._transfers.progressed(self.progress)

    # --- the in-sync set ---

    def learned(self, in_sync: InSyncSet) -> list[Answer]:
        """The cluster has decided. Only sets of this mastership: of its epoch, with this run as the master. What is not
        newer than what is known changes nothing."""
        if in_sync.version < self._in_sync.version or in_sync == self._in_sync:
            return []
        self._in_sync = in_sync
        self._moves += 1
        self._unheard.intersection_update(in_sync.replicas)
        if (settled := self._wishes.learned(in_sync.version)) is not None:
            self.progress.settle(in_sync)
            self._clocks.restart(settled.node)
        self._recount()
        return self._transfers.progressed(self.progress)

    @property
    def at_rest(self) -> bool:
        """Whether neither `wish` nor `catch_up` has anything to look at, and nothing has happened since they had: each
        member holds everything, and there is no other copy that could be let in. Of many logs most are so."""
        return self._moves == self._moves_at_rest

    def _note_rest(self) -> None:
        end = self.progress.held(self.own).written
        if (
            self.awaited is None
            and self._wishes.idle
            and all(offset == end for offset in self._reached().values())
            and not self._candidates()
        ):
            self._moves_at_rest = self._moves

    def wish(self, now: float) -> Wish | None:
        """What the cluster should change; to be asked for often, from a timer. One wish is under way at a time, until
        `wish_ended` or `wish_unknown`.

        Whoever is to be let in is waited for from here on.
        """
        if self.state is LogState.RECOVERING:
            return None
        behind = self._clocks.behind(now, end=self.progress.held(self.own).written, reached=self._reached())
        wish = self._wishes.next(now, self._in_sync, behind=behind, ready=self._ready())
        if isinstance(wish, Grow):
            self._catch_up.won(now)
            self.progress.propose(wish.node)
            self._recount()
        return wish

    def catch_up(self, now: float) -> list[Answer]:
        """Wait, for a while, for a copy that follows closely, so that it can be let in (`CatchUp`); to be asked for
        after `wish`, but also while one is under way. What one held up that did not come is answered."""
        before = self.awaited
        self._catch_up.look(
            now,
            confirmed=self.progress.confirmed,
            reached=self._candidates() if self.state is LogState.SERVING else {},
            free=self._wishes.free(now, self._in_sync.version),
        )
        if self.awaited == before:
            self._note_rest()
            return []
        if self.awaited is not None:
            self.progress.propose(self.awaited.node)
        else:
            self.progress.settle(self._in_sync)
        self._recount()
        return self._transfers.progressed(self.progress)

    @property
    def paused(self) -> bool:
        """Whether nothing is sent to copies that are made for a move."""
        return self._in_sync.paused

    def pace_of(self, node: str) -> LinkPace | None:
        """For a link to it that begins now; None when nothing holds it back."""
        return LinkPace(self._pace, self, node) if self._pace is not None and self.holds_back(node) else None

    def holds_back(self, node: str) -> bool:
        """Whether a mirror is filled for a move: it is wished, no member, and confirms do not wait for it either."""
        facts, waited = self._in_sync, self._wishes.proposed or self.awaited
        return node in facts.target and node not in facts.members and (waited is None or waited.node != node)

    @property
    def awaited(self) -> Candidate | None:
        """Whom confirms wait for, beside the members, without the cluster having been asked to let it in."""
        return self._catch_up.awaited

    def wish_ended(self, wish: Wish, *, refused: bool) -> list[Answer]:
        """The outcome of a wish was read in the cluster's state, and what the state was then has been `learned`."""
        if self._wishes.ended(wish, refused=refused) is not None:
            self.progress.settle(self._in_sync)
            self._recount()
        return self._transfers.progressed(self.progress)

    def wish_unknown(self, wish: Wish) -> None:
        """The outcome of a wish cannot be read, and the cluster may still apply it. Whom it lets in is waited for until
        a higher version is learned."""
        self._wishes.unknown(wish)

    def _reached(self) -> dict[str, int | None]:
        """By member, how far it is at the log's durability, or None while it proves nothing."""
        return {
            node: self.progress.held(node).at(self.durability) if node in self._up else None
            for node in self._in_sync.members
            if node != self.own
        }

    @property
    def filling(self) -> dict[str, int]:
        """How far each copy is, in the log, that follows and is no whole member of the set."""
        starts = self._in_sync.starts
        return {
            node: self.progress.held(node).written
            for node, link in self.links.items()
            if link.proven and link.start_id == starts.get(node) and self._wanted_in(node)
        }

    def _ready(self) -> list[Candidate]:
        """Copies that may be let in; while one is awaited, that one alone."""
        awaited, confirmed = self.awaited, self.progress.confirmed
        return [copy for copy, offset in self._candidates().items() if offset >= confirmed and awaited in (None, copy)]

    def _candidates(self) -> dict[Candidate, int]:
        """How far each copy is, at the log's durability, that lacks nothing but the newest records, if anything."""
        if self.epoch_start_end is None:
            return {}
        copies = {
            Candidate(node, link.start_id): self.progress.held(node).at(self.durability)
            for node, link in self.links.items()
            if self._wanted_in(node) and _is_of(link, self._in_sync.starts.get(node))
        }
        return {copy: offset for copy, offset in copies.items() if offset >= self.epoch_start_end}

    def _wanted_in(self, node: str) -> bool:
        """Whether it is a replica that runs, and no whole member in that run."""
        facts = self._in_sync
        start_id = facts.starts.get(node, "")
        in_already = node in facts.whole and facts.members[node] == start_id
        return bool(start_id) and node in facts.replicas and not in_already

    def _counting(self) -> tuple[frozenset[str], bool]:
        """Whose acks count as a member's, and whether those of the proposed or awaited one count as such."""
        facts, proposed = self._in_sync, self._wishes.proposed or self.awaited
        up = [
            node
            for node, link in self.links.items()
            if node not in facts.marked and _is_of(link, facts.members.get(node))
        ]
        return frozenset(up), proposed is not None and _is_of(self.links.get(proposed.node), proposed.start_id)

    def _recount(self) -> None:
        self._moves += 1
        self._up, proposed_up = self._counting()
        self.copies_up = 1 + len(self._up)
        self._incomplete = {node for node, link in self.links.items() if link.proven and not link.complete}
        self.progress.count(self._in_sync, up=self._up, proposed_up=proposed_up)

    def ahead(self, error: MirrorAhead) -> bool:
        """A mirror holds what this master lost: stay closed until an operator has settled it. Whether that is news."""
        known, self.state = self.reason, LogState.RECOVERING
        self.reason = f"{error.message}; nothing is truncated: make that node the master, or set its copy aside"
        return self.reason != known

    def _recovering(self) -> LogRecovering:
        return LogRecovering(f"log {self.name} is recovering: {self.reason}")


def _is_of(link: HAConnection | None, start_id: str | None) -> bool:
    """Whether the acks of a link are those of a complete copy in this run."""
    return link is not None and link.proven and link.complete and link.start_id == start_id
