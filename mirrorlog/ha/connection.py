"""HAConnection: one mirror's link as its master sees it. A read half takes acks, a write half pushes the log.

    GREETED --follow--> FOLLOWED --pull--> TRANSFER          any --close--> CLOSED

The mirror says what it holds (Follow), the master answers what the log is (History), the mirror cuts what is not of
this history and asks for the rest (Pull). From then on the master pushes runs of whole batches and the mirror acks.
The link is *proven* from Pull on: its acks count and it counts towards `min_in_sync`.

Differences from the seed's HAConnection, each a known flaw there (seed 002):
- An ack is believed only in the link's epoch, up to what was sent on this link, and never below an earlier one
  (lines 829-853: the last eight bytes are taken as they come).
- An empty mirror gets all history (lines 945-969: it gets the last file only).
- A heartbeat depends on silence alone, in both directions, and housekeeping looks at what was *read* (the slave of
  lines 359-375 looks at its own last write).

Pure: frames and `now` in, actions out; the log is a small interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from mirrorlog.commitlog.epochs import NO_EPOCH, EpochList, common_point
from mirrorlog.commitlog.segments.cold import ColdRead
from mirrorlog.config import HaSettings
from mirrorlog.errors import (
    AckBeyondEnd,
    BadRequest,
    MirrorAhead,
    NotMaster,
    OffsetOutOfRange,
    ProtocolError,
    StalledFrame,
)
from mirrorlog.ha.actions import Action, Close, ReadCold, Send
from mirrorlog.ha.links import DeclaredLoss, losses_since, lost_from
from mirrorlog.ha.pace import RUN_BYTES_MAX, LinkPace
from mirrorlog.wire.frames import TRANSFER_FLUSH, Ack, FrameType, frame, transfer_head
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, History, Pull

# Bytes per second over the last few seconds, from a handful of numbers.


_WINDOW_S: Final = 2.0


class RateMeter:
    """Counts into a window; the rate is that of the last full window and the running one. Pure."""

    __slots__ = ("_before", "_counted", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._counted = 0
        self._before = 0.0

    def count(self, size: int, now: float) -> None:
        if now - self._since >= _WINDOW_S:
            self._turn(now)
        self._counted += size

    def per_second(self, now: float) -> float:
        if now - self._since >= _WINDOW_S:
            self._turn(now)
        elapsed = now - self._since
        share = elapsed / _WINDOW_S
        return self._before * (1 - share) + self._counted / _WINDOW_S

    def _turn(self, now: float) -> None:
        # A window that ended long ago says nothing about the present.
        self._before = self._counted / _WINDOW_S if now - self._since < 2 * _WINDOW_S else 0.0
        self._since, self._counted = now, 0


class SourceLog(Protocol):
    """The master's log, as the write half reads it. All offsets are log offsets, and read as attributes."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def confirmed(self) -> int: ...
    @property
    def epochs(self) -> EpochList: ...
    @property
    def last_start(self) -> int:
        """Where a copy may begin that wants the newest records only: the state of the queues is told from there on."""

    def read(self, log_offset: int, max_bytes: int, *, until: int) -> memoryview | None: ...
    def read_cold(self, log_offset: int, max_bytes: int, *, until: int) -> ColdRead: ...
    def is_border(self, log_offset: int) -> bool:
        """Whether a batch begins or the log ends there."""


class SourceCopy(Protocol):
    """The master's copy: the log, and what follows from it."""

    @property
    def log(self) -> SourceLog:
        """The same one for as long as this node masters the log."""

    @property
    def begin_ahead(self) -> int:
        """Where the log begins or will begin, by the newest decision that it holds, confirmed or not."""

    def set_confirmed(self, log_offset: int) -> None:
        """Everything below is confirmed, and what follows from that."""


class LinkState(Enum):
    GREETED = "greeted"
    FOLLOWED = "followed"
    TRANSFER = "transfer"
    CLOSED = "closed"


_TRANSFER: Final = LinkState.TRANSFER


class ReadHalf:
    """What came from the mirror: its request and its acks."""

    __slots__ = ("acked", "flushed", "last_read", "requested")

    def __init__(self, now: float) -> None:
        self.requested = -1
        self.acked = -1
        self.flushed = -1
        self.last_read = now

    def take(self, ack: Ack, *, epoch: int, sent: int) -> None:
        """Believe an ack, or raise AckBeyondEnd (above what was sent) or ProtocolError (another epoch, or back)."""
        if ack.epoch != epoch:
            raise ProtocolError(f"an ack of epoch {ack.epoch} on a link of epoch {epoch}")
        if ack.written > sent:
            raise AckBeyondEnd(f"an ack of {ack.written}, but only bytes below {sent} were sent on this link")
        if ack.flushed > ack.written:
            raise AckBeyondEnd(f"an ack of {ack.flushed} on disk, but of {ack.written} in memory")
        if ack.written < self.acked:
            raise ProtocolError(f"an ack of {ack.written} after one of {self.acked}; the mirror must ask again")
        self.acked, self.flushed = ack.written, ack.flushed


class WriteHalf:
    """What goes to the mirror: runs of whole batches from `next_transfer` on, or a heartbeat when nothing follows.

    `flush_wanted`: up to which log offset a confirm waits for the mirror's disk; told once all below is sent.
    """

    __slots__ = (
        "confirmed_told", "flush_told", "flush_wanted", "last_write", "next_transfer", "rate", "reading_cold",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.next_transfer = -1
        self.confirmed_told = -1
        self.flush_wanted = 0
        self.flush_told = 0
        self.last_write = now
        self.rate = RateMeter(now)
        self.reading_cold = False

    def transfer(self, log: SourceLog, run: bytes | memoryview, epoch: int, now: float) -> Send:
        """The frame that carries `run` (or nothing) and every fact a mirror needs to trust it."""
        size, confirmed = len(run), log.confirmed
        flags = TRANSFER_FLUSH if self.flush_told < self.flush_wanted <= self.next_transfer + size else 0
        if flags:
            self.flush_told = self.flush_wanted
        head = transfer_head(
            log_offset=self.next_transfer, confirmed=confirmed, end=log.end, epoch=epoch, flags=flags, run_bytes=size
        )
        self.next_transfer += size
        self.confirmed_told = confirmed
        self.last_write = now
        self.rate.count(size, now)
        return Send((head, run) if size else (head,))


class HAConnection:
    """One mirror's link."""

    def __init__(
        self,
        *,
        node_id: str,
        copy: SourceCopy,
        settings: HaSettings,
        now: float,
        start_id: str,
        losses: Sequence[DeclaredLoss] = (),
    ) -> None:
        """`start_id`: the mirror's run, as it greeted. `losses`: of the log, those of this epoch included."""
        self.node_id = node_id
        self.start_id = start_id
        self.state = LinkState.GREETED
        self.read_half = ReadHalf(now)
        self.write_half = WriteHalf(now)
        self._copy = copy
        self._log = log = copy.log
        self._losses = losses
        self._settings = settings
        self._transfer_bytes = settings.transfer_batch_bytes
        self._in_flight_bytes_max = settings.in_flight_bytes_max
        # A link lives in one epoch: a new mastership starts with new links.
        self._epoch = log.epochs.current
        self._from = 0
        self._begin = 0
        self.pace: LinkPace | None = None
        """Of a mirror that is filled for a move, until that is over."""

    @property
    def proven(self) -> bool:
        return self.state is _TRANSFER

    @property
    def complete(self) -> bool:
        """Whether the mirror holds the log from its begin on. One that began at the last segment does so only when
        older records are gone; until then it is in no in-sync set."""
        # Each copy moves its begin in its own time, and a restarted master its own once more: what is decided counts.
        return self._begin <= self._copy.begin_ahead

    @property
    def owes(self) -> bool:
        """Whether the log has something for the mirror that was not sent; asked after every ack."""
        half = self.write_half
        return half.next_transfer < self._log.end or half.flush_told < half.flush_wanted

    @property
    def sent_bytes(self) -> int:
        """Of the log, on this link."""
        return self.write_half.next_transfer - self.read_half.requested

    @property
    def all_acked(self) -> bool:
        """Whether nothing that was sent is still to be acked."""
        return self.write_half.next_transfer == self.read_half.acked

    # --- read half ---

    def follow(self, message: FollowRequest, now: float) -> list[Action]:
        """What the mirror holds. Raises NotMaster when it has heard of a later master, MirrorAhead when it holds what
        this master has lost, BadRequest when no copy can be so."""
        self._expect(LinkState.GREETED, "Follow")
        if not (0 <= message.begin <= message.end and 0 <= message.confirmed <= message.end):
            raise BadRequest(
                f"a copy from {message.begin} to {message.end}, confirmed up to {message.confirmed}, cannot be"
            )
        self.read_half.last_read = now
        theirs = EpochList.of(message.epochs)
        point = self._common_point(theirs, message)
        start_at = self._start_at(point, message)
        self._from = point if start_at is None else start_at
        self._begin = message.begin if start_at is None else start_at
        self.state = LinkState.FOLLOWED
        history = History(
            epoch=self._epoch,
            epochs=[EpochEntry(*entry) for entry in self._log.epochs.entries],
            begin=self._log.begin,
            end=self._log.end,
            confirmed=self._log.confirmed,
            start_at=start_at,
        )
        self.write_half.last_write = now
        return [Send((frame(FrameType.HISTORY, encode(history)),))]

    def pull(self, message: Pull, now: float) -> list[Action]:
        """Where the mirror wants to go on: exactly where its history and this one part."""
        self._expect(LinkState.FOLLOWED, "Pull")
        self.read_half.last_read = now
        if message.log_offset != self._from:
            raise OffsetOutOfRange(
                f"the mirror asks for log offset {message.log_offset}, its history agrees up to {self._from}",
                begin=self._log.begin,
                next=self._log.end,
            )
        self.read_half.requested = message.log_offset
        self.read_half.acked = message.log_offset
        self.read_half.flushed = 0
        self.write_half.next_transfer = message.log_offset
        # Proven only after the first run was found: an offset at which no batch begins is refused there.
        actions = self._push(now, announce=True)
        self.state = LinkState.TRANSFER
        return actions

    def ack(self, ack: Ack, now: float) -> None:
        """Raises AckBeyondEnd or ProtocolError; then the link must be closed and the ack not be counted."""
        if self.state is not _TRANSFER:
            self._expect(_TRANSFER, "an ack")
        self.read_half.last_read = now
        self.read_half.take(ack, epoch=self._epoch, sent=self.write_half.next_transfer)

    # --- write half ---

    def pump(self, now: float, *, announce: bool = True) -> list[Action]:
        """As much of the log as the window allows; then, with `announce` and if the mirror does not know it yet, the
        confirmed offset in a frame of its own."""
        if self.state is not _TRANSFER:
            return []
        return self._push(now, announce=announce and self.write_half.confirmed_told < self._log.confirmed)

    def want_flush(self, log_offset: int) -> None:
        """A confirm waits until the mirror has everything below on its disk; told with the next `pump`."""
        self.write_half.flush_wanted = max(self.write_half.flush_wanted, log_offset)

    def cold_read(self, run: bytes | memoryview, now: float) -> list[Action]:
        """The run that a ReadCold brought."""
        self.write_half.reading_cold = False
        if self.state is not LinkState.TRANSFER:
            return []
        if self.pace is not None:
            self.pace.spend(len(run))
        return [self.write_half.transfer(self._log, run, self._epoch, now), *self.pump(now)]

    def tick(self, now: float) -> list[Action]:
        """Heartbeat after silence of ours, housekeeping after silence of theirs."""
        if self.state is LinkState.CLOSED:
            return []
        interval_ms = self._settings.housekeeping_interval_ms
        if (now - self.read_half.last_read) * 1000 >= interval_ms:
            return [Close(StalledFrame(f"mirror {self.node_id} said nothing for {interval_ms} ms"))]
        if self.pace is not None and self.proven and (actions := self._push(now, announce=False)):
            return actions  # nothing else tells when it may go on
        silent_ms = (now - self.write_half.last_write) * 1000
        if self.state is LinkState.TRANSFER and silent_ms >= self._settings.send_heartbeat_interval_ms:
            return [self.write_half.transfer(self._log, b"", self._epoch, now)]
        return []

    def closed(self) -> None:
        self.state = LinkState.CLOSED

    # --- inside ---

    def _push(self, now: float, *, announce: bool) -> list[Action]:
        actions: list[Action] = []
        log, half = self._log, self.write_half
        end = log.end
        if self.pace is not None and self.pace.over:
            self.pace = None
        while half.next_transfer < end and half.next_transfer - self.read_half.acked < self._in_flight_bytes_max:
            if half.reading_cold:
                return actions
            if self.pace is not None and self.pace.holds(now):
                break
            most = self._transfer_bytes if self.pace is None else min(self._transfer_bytes, RUN_BYTES_MAX)
            run = log.read(half.next_transfer, most, until=end)
            if run is None:
                half.reading_cold = True
                job = log.read_cold(half.next_transfer, most, until=end)
                return [*actions, ReadCold(job)]
            actions.append(half.transfer(log, run, self._epoch, now))
            if self.pace is not None:
                self.pace.spend(len(run))
        flush_due = half.flush_told < half.flush_wanted <= half.next_transfer
        if flush_due or (announce and not actions):
            actions.append(half.transfer(log, b"", self._epoch, now))
        return actions

    def _expect(self, state: LinkState, what: str) -> None:
        if self.state is not state:
            raise ProtocolError(f"{what} on a link that is {self.state.value}")

    def _common_point(self, theirs: EpochList, message: FollowRequest) -> int:
        """Where the histories part. What the mirror holds beyond it must be of a former epoch, and not confirmed."""
        self._check_newest(theirs)
        if message.end > 0 and theirs.at(0) == NO_EPOCH:
            raise BadRequest(f"mirror {self.node_id} holds {message.end} bytes, but its epochs do not say from when")
        found = common_point(self._log.epochs, self._log.end, theirs, message.end)
        point = 0 if found is None else found
        if point < message.end and not self._may_cut(theirs, point, message):
            raise MirrorAhead(
                f"mirror {self.node_id} holds log offsets {point} to {message.end} that this master has lost",
                first=point,
                last=message.end,
            )
        return point

    def _check_newest(self, theirs: EpochList) -> None:
        """Raises NotMaster: who opens an epoch was promoted, so this master is deposed and has not heard of it yet."""
        # Epochs that the mirror opened itself say nothing: a cluster that was recovered by hand may not know of them.
        newer = [each for each in theirs.entries if each.epoch > self._epoch and each.node_id != self.node_id]
        if newer:
            raise NotMaster(
                f"mirror {self.node_id} knows epoch {newer[-1].epoch} of the log, this node masters it in epoch "
                f"{self._epoch}: another one was promoted since; ask again"
            )

    def _start_at(self, point: int, message: FollowRequest) -> int | None:
        """Where a mirror begins anew of whose copy nothing is of use (invariant 1); None when it goes on."""
        of_no_use = point < max(self._log.begin, message.begin)
        if of_no_use or (message.end == 0 and message.start == "last-segment"):
            return self._log.last_start if message.start == "last-segment" else self._log.begin
        return None

    def _may_cut(self, theirs: EpochList, point: int, message: FollowRequest) -> bool:
        """Who was promoted holds everything that was confirmed before (invariant 6). So what a mirror has beyond it, of
        former epochs, is not confirmed, unless the cluster has declared a loss; and a mirror that knows it to be
        confirmed without such a loss shows that this master has lost it. A master never sends what it has not appended:
        what a mirror has more of the present epoch, this master lost too.
        """
        written = theirs.covering(point, message.end)
        if any(each.epoch == self._epoch and each.node_id != self.node_id for each in written):
            return False
        lost = lost_from(losses_since(self._losses, theirs.data_epoch(message.end)))
        return point >= message.confirmed or (lost is not None and point >= lost)
