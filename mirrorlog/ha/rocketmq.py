"""A slave's side of RocketMQ's HA protocol, as its brokers 4.9 and 5.x speak it: classic, and under their controller.

Classic: the slave reports its offset, 8 bytes, again and again; the first report asks, all later ones acknowledge. The
master sends frames, a head of 12 bytes (offset, size) and so many bytes of its commit log; a head without bytes is a
heartbeat. There is no greeting, no version, and no epoch: a master that lost its tail and wrote another cannot be told
from one that did not.

Under the controller the slave greets first, and learns the master's epochs and how far it wrote; frames tell their
epoch. Whoever stands beyond what the master's list gives his epoch has what the master lost, and must stop.

A classic master answers 0 from the start of its last file. Who wants its first byte asks for the second: in front of it
goes the byte that is 0 in every record's size.

Frames cut records anywhere (`mirrorlog.rocketmq.records` finds them). What this slave reports is what its user has
confirmed, and never what it merely received: then a SYNC_MASTER's SEND_OK means so much.

Facts: seed 002, and the sources and wire of 4.9.7 and 5.5.0. Pure: bytes, events and `now` in, actions out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

from mirrorlog.config import HaSettings
from mirrorlog.errors import MirrorlogError, PositionLost, ProtocolError, StalledFrame
from mirrorlog.ha.actions import Close, Connect, Send

FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one transfer. Masters send 32 KiB, and one record of up to 4 MiB, unless they are told otherwise."""
EPOCHS_MAX: Final = 1000
"""As many as RocketMQ keeps."""

_REPORT: Final = struct.Struct(">q")
_TRANSFER_HEAD: Final = struct.Struct(">qi")
_GREETING: Final = struct.Struct(">ihhq")
_WELCOME_HEAD: Final = struct.Struct(">iiqi")
_EPOCH: Final = struct.Struct(">iq")
_STATED_REPORT: Final = struct.Struct(">iq")
_STATED_HEAD: Final = struct.Struct(">iiqiqq")
_HANDSHAKE: Final = 1
_TRANSFER: Final = 2
_ASYNC_LEARNER: Final = 1
_FIRST_BYTE: Final = b"\x00"
_LEARNER_ID: Final = -1
"""A broker id that no controller gives: this slave is no candidate for anything."""


class Dialect(Enum):
    CLASSIC = "classic"
    CONTROLLER = "controller"


class FollowState(Enum):
    WAITING = "waiting"
    CONNECTING = "connecting"
    GREETING = "greeting"
    TRANSFER = "transfer"
    STOPPED = "stopped"


class RocketEpoch(NamedTuple):
    """A mastership, and the offset in the commit log at which it begins."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class ReceivedBytes:
    """Bytes of the commit log. They follow what was received before, and may begin and end within a record."""

    offset: int
    epoch: int
    content: bytes


Action = Connect | Close | Send | ReceivedBytes


class RocketFollower:
    """A link to one broker, made again when it ends.

    `position`: the offset of the first byte that is wanted, None to ask for what the master gives of itself (classic:
    from the start of its last file; under the controller: from its first byte). `epoch`: in which that byte's record
    was last seen to end, 0 when unknown.
    """

    def __init__(
        self,
        *,
        position: int | None,
        settings: HaSettings,
        now: float,
        dialect: Dialect = Dialect.CLASSIC,
        epoch: int = 0,
    ) -> None:
        self.state = FollowState.WAITING
        self.dialect = dialect
        self.position = position
        """Up to where everything is confirmed; what is asked for on the next link."""
        self.last_error: MirrorlogError | None = None
        self.last_read = now
        self.last_data = now
        """When bytes of the log came last."""
        self.master_end: int | None = None
        """How far the master had written when it greeted; a classic one does not tell."""
        self._settings = settings
        self._epoch = epoch
        self._expected = position
        self._asked_second = False
        self._last_write = now
        self._retry_at = now
        self._unread = bytearray()

    # --- events ---

    def tick(self, now: float) -> Sequence[Action]:
        """Time passes: connect when due, a heartbeat after our silence, housekeeping after the master's."""
        if self.state is FollowState.WAITING and now >= self._retry_at:
            self.state = FollowState.CONNECTING
            return [Connect()]
        if self.state not in (FollowState.GREETING, FollowState.TRANSFER):
            return []
        interval_ms = self._settings.housekeeping_interval_ms
        if (now - self.last_read) * 1000 >= interval_ms:
            return [Close(StalledFrame(f"the broker said nothing for {interval_ms} ms"))]
        silent_ms = (now - self._last_write) * 1000
        if self.state is FollowState.TRANSFER and silent_ms >= self._settings.send_heartbeat_interval_ms:
            return [self._report(now)]
        return []

    def connected(self, now: float) -> Sequence[Action]:
        """Ask at once: brokers of 4.9 wait for five seconds before they do, which is of no use to anybody."""
        if self.state is FollowState.STOPPED:
            return [Close()]
        self.last_read = self.last_data = now
        self._unread.clear()
        self._asked_second = self.position == 0 and self.dialect is Dialect.CLASSIC
        self._expected = 1 if self._asked_second else self.position
        if self.dialect is Dialect.CONTROLLER:
            self.state = FollowState.GREETING
            self._last_write = now
            return [Send((_GREETING.pack(_HANDSHAKE, 0, _ASYNC_LEARNER, _LEARNER_ID),))]
        self.state = FollowState.TRANSFER
        return [self._report(now)]

    def disconnected(self, now: float, error: MirrorlogError | None = None) -> None:
        """The link is gone, or could not be made."""
        if self.state is not FollowState.STOPPED:
            self.state = FollowState.WAITING
        self.last_error = error or self.last_error
        self._retry_at = now + self._settings.reconnect_interval_ms / 1000

    def received(self, content: bytes, now: float) -> Iterator[Action]:
        """Bytes from the broker. Raises ProtocolError when they are not this protocol's, PositionLost when the broker's
        log is not the one that was followed: the link must be closed with that reason."""
        self.last_read = now
        self._unread += content
        if self.state is FollowState.GREETING:
            if not self._welcomed():
                return
            yield self._report(now)
        while (transfer := self._transfer()) is not None:
            self.last_data = now
            yield transfer

    def confirmed(self, offset: int, now: float) -> Sequence[Action]:
        """All records below are kept where they are wanted: the broker may know. Offsets that go back are no news."""
        if self.position is not None and offset <= self.position:
            return []
        self.position = offset
        return [self._report(now)] if self.state is FollowState.TRANSFER else []

    def stop(self) -> None:
        self.state = FollowState.STOPPED

    # --- inside ---

    def _report(self, now: float) -> Send:
        self._last_write = now
        if self.dialect is Dialect.CONTROLLER:
            return Send((_STATED_REPORT.pack(_TRANSFER, self.position or 0),))
        return Send((_REPORT.pack(1 if self.position == 0 else self.position or 0),))

    def _welcomed(self) -> bool:
        """Whether the master's answer is complete. Its log is the one that was followed, or this raises."""
        if len(self._unread) < _WELCOME_HEAD.size:
            return False
        state, size, end, last = _WELCOME_HEAD.unpack_from(self._unread)
        if state != _HANDSHAKE or size % _EPOCH.size or not 0 <= size <= EPOCHS_MAX * _EPOCH.size:
            raise ProtocolError(
                f"the broker answers a greeting with state {state} and {size} bytes of epochs: it is under no "
                "controller; follow it with --dialect classic"
            )
        if len(self._unread) < _WELCOME_HEAD.size + size:
            return False
        epochs = [RocketEpoch(*entry) for entry in _EPOCH.iter_unpack(self._taken(_WELCOME_HEAD.size, size))]
        ordered = all(one.epoch < other.epoch and one.start <= other.start for one, other in pairwise(epochs))
        if not ordered or (epochs and epochs[-1].epoch != last):
            raise ProtocolError(
                f"the broker is in epoch {last}, and its epochs are {epochs}: they contradict each other"
            )
        self.master_end = end
        self._check_history(epochs, end)
        self.state = FollowState.TRANSFER
        return True

    def _check_history(self, epochs: Sequence[RocketEpoch], end: int) -> None:
        """Everything below the position stands in the master's log, in the same epoch."""
        if self.position is None or not self._epoch:
            return
        starts = dict(epochs)
        until = min([end, *(start for epoch, start in epochs if epoch > self._epoch)]) if self._epoch in starts else 0
        if self.position > until:
            raise PositionLost(
                f"epoch {self._epoch} ends at offset {until} in the broker's log, and is stored here up to "
                f"{self.position}: the broker has lost what stands between; look at it, then go on with --from {until}"
            )

    def _transfer(self) -> ReceivedBytes | None:
        """The next transfer with bytes, taken out; heartbeats are passed. None when there is no whole one."""
        head_size = (_STATED_HEAD if self.dialect is Dialect.CONTROLLER else _TRANSFER_HEAD).size
        while len(self._unread) >= head_size:
            offset, size, epoch = self._head()
            if len(self._unread) < head_size + size:
                return None
            content = self._taken(head_size, size)
            if size:
                self._expected = offset + size
                self._epoch = epoch or self._epoch
                if self._asked_second and offset == 1:
                    return ReceivedBytes(0, epoch, _FIRST_BYTE + content)
                return ReceivedBytes(offset, epoch, content)
        return None

    def _head(self) -> tuple[int, int, int]:
        """Offset, size and epoch of what comes next; it follows what came before."""
        state, epoch = _TRANSFER, 0
        if self.dialect is Dialect.CONTROLLER:
            state, size, offset, epoch, _, _ = _STATED_HEAD.unpack_from(self._unread)
        else:
            offset, size = _TRANSFER_HEAD.unpack_from(self._unread)
        if state != _TRANSFER or not 0 <= size <= FRAME_BYTES_MAX or offset < 0:
            raise ProtocolError(
                f"a head of state {state}, offset {offset} and size {size}, where {FRAME_BYTES_MAX} is the most: it is "
                f"no HA port of a broker that speaks the {self.dialect.value} dialect"
            )
        if self._expected is None and size:
            self.position = self._expected = offset
        if offset != self._expected and self._expected is not None:
            raise ProtocolError(
                f"the broker sends offset {offset} where {self._expected} follows; nothing of it is stored"
            )
        return offset, size, epoch

    def _taken(self, head_size: int, size: int) -> bytes:
        """What stands behind a head, which goes with it."""
        taken = bytes(memoryview(self._unread)[head_size : head_size + size])
        del self._unread[: head_size + size]
        return taken
