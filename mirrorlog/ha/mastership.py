"""A master's decisions about one log: may a publish be appended, and when is it answered.

It knows the links, the copies' progress and the waiting confirms. `min_in_sync` is checked before the append, on live
proven links (too few is a refusal, nothing is stored); after the append a publish waits for its level until its
deadline. A mirror that holds what this master lost closes the log: `recovering`, nothing is truncated.

Pure: events and `now` in, answers out.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum

from mirrorlog.errors import InSyncReplicasNotEnough, LogRecovering, MirrorAhead, NotAMember
from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.group_transfer import Answer, GroupTransferService, PutStatus
from mirrorlog.ha.progress import Progress
from mirrorlog.wire.frames import Ack, Durability


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
        mirrors: tuple[str, ...],
        durability: Durability,
        min_in_sync: int,
        confirmed: int,
        waiting_max: int,
        lossy: bool = False,
    ) -> None:
        self.state = LogState.SERVING
        self.reason = ""
        self.links: dict[str, HAConnection] = {}
        self.flush_wanted = 0
        """Below it confirms wait for disks that would not be flushed soon by themselves."""
        self.min_in_sync = min_in_sync
        self.durability = durability
        self.mirrors = mirrors
        self.progress = Progress(
            own=own, mirrors=mirrors, durability=durability, confirmed=confirmed, min_in_sync=min_in_sync
        )
        self._name = name
        # A master whose own copy lost bytes takes nothing until every mirror has shown that it does not hold more.
        self._unheard = set(mirrors) if lossy else set()
        self._transfers = GroupTransferService(waiting_max=waiting_max)

    @property
    def copies_up(self) -> int:
        """The master and its live, proven mirrors that are members of the in-sync set."""
        return 1 + sum(map(self._counts, self.links))

    @property
    def in_sync(self) -> frozenset[str]:
        """The mirrors that `copies_up` counts."""
        return frozenset(node for node in self.links if self._counts(node))

    @property
    def heard_all(self) -> bool:
        """Whether no mirror can hold more than this master: none does, or nothing was lost here."""
        return not self._unheard and self.state is LogState.SERVING

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
            raise LogRecovering(f"log {self._name} lost bytes on its master and waits to hear what {waited} holds")
        if self.copies_up < self.min_in_sync:
            missing = ", ".join(node for node in self.mirrors if not self._counts(node))
            raise InSyncReplicasNotEnough(
                f"log {self._name} has {self.copies_up} copies up, min_in_sync is {self.min_in_sync}; "
                f"waiting for {missing}; nothing was stored",
                copies_up=self.copies_up,
                min_in_sync=self.min_in_sync,
            )

    def check_room(self) -> None:
        """Raises Overloaded when no further publish may wait."""
        self._transfers.check_room()

    def wait(self, token: Hashable, *, end: int, copies: int, durability: int, deadline: float) -> list[Answer]:
        """Answer now if the copies have it, else when they do or at the deadline."""
        if self.progress.holds(end, copies, durability):
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
        self.progress.appended(end)
        return self._transfers.progressed(self.progress)

    def flushed(self, end: int) -> list[Answer]:
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
            raise NotAMember(f"node {node!r} is no mirror of log {self._name}; its mirrors are {assigned}")

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
        self.links[link.node_id] = link
        return replaced

    def leave(self, link: HAConnection) -> None:
        link.closed()
        if self.links.get(link.node_id) is link:
            del self.links[link.node_id]

    def proven(self, link: HAConnection) -> list[Answer]:
        """The link's mirror asked for an offset that its history and this one share: it holds all below."""
        self._unheard.discard(link.node_id)
        if not link.complete:
            self.progress.leave(link.node_id)
        self.progress.acked(link.node_id, written=link.read_half.acked, flushed=0)
        self._judge(link)
        return self._transfers.progressed(self.progress)

    def acked(self, link: HAConnection, ack: Ack, now: float) -> list[Answer]:
        """Raises AckBeyondEnd or ProtocolError when the ack cannot be true; it counts for nothing then."""
        link.ack(ack, now)
        self.progress.acked(link.node_id, written=ack.written, flushed=ack.flushed)
        if not self.progress.is_member(link.node_id):
            self._judge(link)
        return self._transfers.progressed(self.progress)

    def _judge(self, link: HAConnection) -> None:
        """A copy that lacks older records leaves the set; it enters when it lacks nothing that is confirmed."""
        if not link.complete:
            self.progress.leave(link.node_id)
        elif self.progress.held(link.node_id).at(self.durability) >= self.progress.confirmed:
            self.progress.enter(link.node_id)

    def ahead(self, error: MirrorAhead) -> None:
        """A mirror holds what this master lost: stay closed until an operator has settled it."""
        self.state = LogState.RECOVERING
        self.reason = f"{error.message}; nothing is truncated: make that node the master, or set its copy aside"

    def _recovering(self) -> LogRecovering:
        return LogRecovering(f"log {self._name} is recovering: {self.reason}")

    def _counts(self, node: str) -> bool:
        link = self.links.get(node)
        return link is not None and link.proven and self.progress.is_member(node)
