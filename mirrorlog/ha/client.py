"""HAClient: a mirror's side of its link to the master.

    WAITING --due--> CONNECTING --connected--> GREETING --welcome--> ASKING --history--> ALIGNING --aligned--> TRANSFER
       ^                                                                                                          |
       +--------------------------------- disconnected, from any state ------------------------------------------+

The mirror greets, says what it holds, and learns the master's history. It cuts its log at the common point, takes over
the epoch list, both on disk, and only then asks for bytes: so every ack of X means everything below X, of this history
(invariant 1). Below its own confirmed offset it cuts only what the cluster has declared to be lost, and what may have
been confirmed of that is set aside before. A damaged copy is compared as it was before bytes of it went bad, and is cut
where they begin: then its master has all that goes.

Differences from the seed's HAClient, each a known flaw there (seed 002):
- What it asks for is checked against the master's history first (lines 435-441: it reports its largest offset).
- Bytes must continue its log even when the log is empty (lines 609-623: an empty slave takes any offset).
- Housekeeping looks at what was read from the master (lines 359-375: it looks at the slave's own last write).
- It reports at once after connecting and after each transfer (5 s after connecting in RocketMQ 4).

Pure: frames, events and `now` in, actions out; the log is a small interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol
from uuid import UUID

from mirrorlog.commitlog.epochs import EpochList, common_point
from mirrorlog.commitlog.recovery.recovery import Claim
from mirrorlog.config import HaSettings
from mirrorlog.errors import (
    DiskFailed,
    DiskFull,
    LogRecovering,
    MirrorlogError,
    ProtocolError,
    StalledFrame,
    WrongCluster,
)
from mirrorlog.ha.actions import Action, Align, Close, Connect, FlushSoon, Send
from mirrorlog.ha.links import DeclaredLoss, losses_since, lost_from
from mirrorlog.wire.auth.proof import DialledGreeting
from mirrorlog.wire.frames import TRANSFER, TRANSFER_FLUSH, Frame, FrameType, ack_frame, frame, read_transfer
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import as_error, decode, encode, expect_message
from mirrorlog.wire.messages.handshake import Failure, Hello
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, History, Pull

RECONNECT_FIRST_S: Final = 0.02
"""After the first attempt that failed; twice that after the next one, up to `reconnect_interval_ms`. A master that was
just promoted has yet to open its epoch, and everybody's confirms wait for its mirrors."""

_DOUBLINGS_MAX: Final = 20
"""Six hours: above any interval that is of use."""

DISK_FULL_RETRY_S: Final = 5.0
"""How long a mirror whose own disk kept it from going on waits, unless it is told of space sooner: each attempt may
bring `in_flight_bytes_max` over the network for nothing."""

NO_SPACE_RETRY_S: Final = 30.0
"""The same while no space is measured: a file that the log frees itself is space too, and shows on no disk."""


class HeldLog(Protocol):
    """What the mirror's own copy holds. All offsets are log offsets, and read as attributes."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def flushed(self) -> int: ...
    @property
    def confirmed(self) -> int: ...
    @property
    def epochs(self) -> EpochList: ...
    @property
    def claim(self) -> Claim:
        """What a damaged copy held before bytes of it went bad; its `end` is where they begin. Of a sound one, what it
        holds."""

    def place_for(self, length: int) -> memoryview | None:
        """Memory at the end to receive a run in; None: append it from elsewhere."""

    def drop_placed(self, run: memoryview) -> None:
        """The run will not be completed."""


class MirrorCopy(Protocol):
    """The mirror's own copy."""

    @property
    def log(self) -> HeldLog:
        """Another one when the copy began anew."""

    def append_run(self, run: memoryview, *, log_offset: int) -> object: ...
    def keep_placed(self, run: memoryview, *, log_offset: int) -> object: ...
    def set_confirmed(self, log_offset: int) -> None:
        """Above the end it is the end: a mirror hears of more than it holds."""


class ClientState(Enum):
    WAITING = "waiting"
    CONNECTING = "connecting"
    GREETING = "greeting"
    ASKING = "asking"
    ALIGNING = "aligning"
    TRANSFER = "transfer"
    STOPPED = "stopped"


_TRANSFERRING: Final = ClientState.TRANSFER
_TRANSFER_TYPE: Final = int(FrameType.TRANSFER)


class HAClient:
    """One log's link to its master. `greeting` is sent first on every connection; `epoch_min`: a master that is in an
    older epoch is none any more; `losses`: those of the log that the cluster has declared, up to that epoch."""

    def __init__(
        self,
        *,
        log_id: UUID,
        copy: MirrorCopy,
        greeting: Hello,
        master: str,
        settings: HaSettings,
        now: float,
        epoch_min: int = 0,
        losses: Sequence[DeclaredLoss] = (),
    ) -> None:
        self.state = ClientState.WAITING
        self.master = master
        self.requested = -1
        self.last_read = now
        self.last_write = now
        self.last_error: MirrorlogError | None = None
        self.waits_for_space = False
        self._log_id = log_id
        self._copy = copy
        self.greeting = greeting
        self._dialled = DialledGreeting(greeting)
        self._settings = settings
        self.retry_at = now
        """When the next attempt is due, while it waits (s)."""
        self._failed_attempts = 0
        # So many links in a row agreed on the histories, brought nothing, and ended for a reason that does not pass.
        self._barren_links = 0
        self._brought = False
        self._room = True
        self.align_out = False
        """Whether a cut is with the helper, on whatever link it was asked for."""
        self._epoch = 0
        self._epoch_min = epoch_min
        self._losses = losses
        self._placed: memoryview | None = None
        self._said = -1
        self._handlers: dict[tuple[ClientState, int], Callable[[Frame, float], Sequence[Action]]] = {
            (ClientState.GREETING, FrameType.CHALLENGE): self._welcome,
            (ClientState.GREETING, FrameType.WELCOME): self._welcome,
            (ClientState.ASKING, FrameType.HISTORY): self._history,
        }

    # --- events ---

    def tick(self, now: float) -> Sequence[Action]:
        """Time passes: connect when due, heartbeat after our silence, housekeeping after the master's.

        While a cut is still with the helper no new link is opened: what the mirror says it holds must be what it holds,
        and a cut that comes late must not remove what was acked on another link meanwhile.
        """
        if self.state is ClientState.WAITING and now >= self.retry_at and not self.align_out:
            self.state = ClientState.CONNECTING
            return [Connect()]
        if self.state in (ClientState.WAITING, ClientState.CONNECTING, ClientState.STOPPED):
            return []
        interval_ms = self._settings.housekeeping_interval_ms
        if (now - self.last_read) * 1000 >= interval_ms:
            return [Close(StalledFrame(f"master {self.master} said nothing for {interval_ms} ms"))]
        silent_ms = (now - self.last_write) * 1000
        if self.state is ClientState.TRANSFER and silent_ms >= self._settings.send_heartbeat_interval_ms:
            return [self._ack(now)]
        return []

    def connected(self, now: float, greeting: DialledGreeting | None = None) -> Sequence[Action]:
        """The connection is there: greet. `greeting`: for this connection, of `self.greeting`; None: nothing is
        proven."""
        if self.state is ClientState.STOPPED:
            return [Close()]
        self.state = ClientState.GREETING
        self.last_read = now
        self._dialled = greeting or DialledGreeting(self.greeting)
        return [self._say(FrameType.HELLO, self._dialled.hello, now)]

    def disconnected(self, now: float, error: MirrorlogError | None = None) -> None:
        """The connection is gone or could not be made; the next attempt is due soon, later after each that failed, or,
        when the own disk was full, as soon as there is space."""
        self._count_barren(error)
        if self.state is not ClientState.STOPPED:
            self.state = ClientState.WAITING
        if self._placed is not None:
            self._copy.log.drop_placed(self._placed)
            self._placed = None
        self.last_error = error or self.last_error
        self.waits_for_space = isinstance(error, DiskFull)
        retry_s = self._retry_s()
        if self.waits_for_space:
            retry_s = DISK_FULL_RETRY_S if self._room else NO_SPACE_RETRY_S
        self.retry_at = now + retry_s

    def _count_barren(self, error: MirrorlogError | None) -> None:
        """A master that cannot read what stands where this copy ends agrees on the histories every time, and cannot
        send. One that was stopped, was deposed or is out of reach is none of these, and is missed as soon as ever."""
        if error is None or (error.retriable and not isinstance(error, DiskFailed)):
            self._barren_links = 0
        elif self.state is ClientState.TRANSFER and not self._brought:
            self._barren_links += 1

    def _retry_s(self) -> float:
        doublings = min(self._failed_attempts + max(self._barren_links - 1, 0), _DOUBLINGS_MAX)
        self._failed_attempts += 1
        return min(self._settings.reconnect_interval_ms / 1000, RECONNECT_FIRST_S * (1 << doublings))

    def space_measured(self, *, room: bool, now: float) -> None:
        """The own disk was looked at: whether there is room for another segment, on it or in a file made before."""
        self._room = room
        if room and self.waits_for_space:
            self.retry_at = min(self.retry_at, now)

    def received(self, frame_: Frame, now: float) -> Sequence[Action]:
        """A frame from the master. Raises MirrorlogError when the link must be closed with that reason."""
        self.last_read = now
        if frame_.type == FrameType.ERROR:
            message = decode(frame_.payload)
            raise (
                as_error(message) if isinstance(message, Failure) else ProtocolError("an ERROR frame without a failure")
            )
        if frame_.type == FrameType.GOODBYE:
            return [Close()]
        if self.state is _TRANSFERRING and frame_.type == _TRANSFER_TYPE:
            return self._transfer(frame_, now)
        handler = self._handlers.get((self.state, frame_.type))
        if handler is None:
            raise ProtocolError(f"frame type {frame_.type} while {self.state.value}")
        return handler(frame_, now)

    def place(self, frame_type: int, facts: memoryview, size: int) -> memoryview | None:
        """Where the bytes of a large frame shall be received (`frames.Place`): at the log's end, if they fit."""
        if self.state is not ClientState.TRANSFER or frame_type != FrameType.TRANSFER:
            return None
        transfer = read_transfer(facts)
        if (transfer.epoch, transfer.log_offset) == (self._epoch, self._copy.log.end):
            self._placed = self._copy.log.place_for(size)
        return self._placed

    def aligned(self, now: float) -> Sequence[Action]:
        """The cut and the epoch list are on disk: ask for the rest, and say what is held."""
        self.align_out = False
        if self.state is not ClientState.ALIGNING:
            return []
        self.state = ClientState.TRANSFER
        self.requested = self._copy.log.end
        self._failed_attempts = 0
        self._brought = False
        if not self._barren_links:
            self.last_error = None
        return [self._say(FrameType.PULL, Pull(log_offset=self._copy.log.end), now), self._ack(now)]

    def align_failed(self) -> None:
        """The helper could not align; the link is to be closed with its error."""
        self.align_out = False

    def stored(self, now: float) -> Sequence[Action]:
        """Bytes stand in the log, before what follows from them is worked out: its master waits to hear of it."""
        return [self._ack(now)] if self.state is _TRANSFERRING else []

    def flushed(self, now: float) -> Sequence[Action]:
        """More of the log is on this disk."""
        return [self._ack(now)] if self.state is ClientState.TRANSFER else []

    def stop(self) -> None:
        self.state = ClientState.STOPPED

    # --- frames ---

    def _welcome(self, frame_: Frame, now: float) -> Sequence[Action]:
        welcome = self._dialled.received(frame_)
        if isinstance(welcome, bytes):
            return [Send((welcome,))]
        if welcome.cluster_id != self.greeting.cluster_id:
            raise WrongCluster(
                f"the master at {self.master} is of cluster {welcome.cluster_name} ({welcome.cluster_id})"
            )
        follow = FollowRequest(
            log_id=str(self._log_id),
            epochs=[EpochEntry(*entry) for entry in self._copy.log.epochs.entries],
            begin=self._copy.log.begin,
            end=self._copy.log.end,
            confirmed=self._copy.log.confirmed,
            start=self._settings.start,
        )
        self.state = ClientState.ASKING
        return [self._say(FrameType.FOLLOW, follow, now)]

    def _history(self, frame_: Frame, now: float) -> Sequence[Action]:
        history = expect_message(frame_, FrameType.HISTORY, History)
        theirs = EpochList.of(history.epochs)
        own_epochs = self._copy.log.epochs.entries
        # Its own epochs, from when it was the master, end with that; those of others make an older history stale.
        others = (each.epoch for each in own_epochs if each.node_id != self.greeting.node_id)
        newest = max(self._epoch_min, *others, 0)
        if theirs.current != history.epoch or history.epoch < newest:
            raise ProtocolError(f"a history of epoch {history.epoch} that is not the newest one known here, {newest}")
        align = self._align(history, theirs)
        self._epoch = history.epoch
        self.state = ClientState.ALIGNING
        self.align_out = True
        return [align]

    def _align(self, history: History, theirs: EpochList) -> Align:
        """What this copy has to become. Raises LogRecovering when it would lose what is confirmed without a word of the
        cluster's."""
        # Of a damaged copy: as if it were whole. What it cannot show any more its master has to have, or it was lost.
        own, (end, confirmed) = self._copy.log.epochs, self._copy.log.claim
        found = common_point(own, end, theirs, history.end)
        point = 0 if found is None else found
        losses = losses_since(self._losses, own.data_epoch(end))
        lost = lost_from(losses)
        declared = lost is not None and lost <= point < end
        if point < confirmed and not declared:
            raise LogRecovering(
                f"the master's history agrees with this copy up to {point}, "
                f"but log offset {confirmed} is confirmed here, and the cluster has declared no loss of it; "
                "nothing is cut",
                first=point,
                last=end,
            )
        # The confirmed offset that is known here is a little late: all of it may have been confirmed.
        loss = losses[0].epoch if declared else 0
        if history.start_at is None:
            return Align(min(point, self._copy.log.end), theirs.entries, loss=loss)
        return Align(history.start_at, theirs.entries, anew=True, loss=loss)

    def _transfer(self, frame_: Frame, now: float) -> Sequence[Action]:
        facts = read_transfer(frame_.payload)
        if facts.epoch != self._epoch:
            raise ProtocolError(f"bytes of epoch {facts.epoch} on a link of epoch {self._epoch}")
        if facts.log_offset != self._copy.log.end:
            raise ProtocolError(
                f"the master pushes log offset {facts.log_offset}, this copy ends at {self._copy.log.end}"
            )
        run = frame_.payload[TRANSFER.size :]
        if frame_.body is not None:
            run, self._placed = frame_.body, None
            self._copy.keep_placed(run, log_offset=facts.log_offset)
        elif len(run):
            self._copy.append_run(run, log_offset=facts.log_offset)
        self._copy.set_confirmed(facts.confirmed)
        if not self._brought and (len(run) or self._copy.log.end >= facts.end):
            self._brought = True
            self._barren_links = 0
            self.last_error = None
        actions: list[Action] = [self._ack(now)] if self._said < self._copy.log.end else []
        if facts.flags & TRANSFER_FLUSH and self._copy.log.flushed < self._copy.log.end:
            actions.append(FlushSoon())
        return actions

    # --- inside ---

    def _ack(self, now: float) -> Send:
        self.last_write = now
        self._said = self._copy.log.end
        return Send((ack_frame(self._said, self._copy.log.flushed, self._epoch),))

    def _say(self, kind: FrameType, message: Message, now: float) -> Send:
        self.last_write = now
        return Send((frame(kind, encode(message)),))
