"""What links have in common: who comes to the port for nodes and proves it, and tasks that do not fail unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import msgspec

from mirrorlog.errors import MirrorlogError, ProtocolError
from mirrorlog.wire.auth.credentials import Credentials
from mirrorlog.wire.auth.proof import AcceptedGreeting
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.listening import PortPlace
from mirrorlog.wire.messages.codec import encode, expect_message
from mirrorlog.wire.messages.handshake import Hello, Welcome, check_hello
from mirrorlog.wire.messages.replication import FollowRequest
from mirrorlog.wire.tls import Refusals

logger = logging.getLogger(__name__)


def log_failure(task: asyncio.Future[None]) -> None:
    """A task that nobody awaits must not fail unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("task_failed", exc_info=error)


class Greeting:
    """Of one connection that was accepted: HELLO, then the proof, if one is asked for, and the answer. `welcome`: what
    is answered, but for the version that both speak."""

    def __init__(self, welcome: Welcome, credentials: Credentials, endpoint: Endpoint, place: PortPlace) -> None:
        self._welcome = welcome
        self._credentials = credentials
        self._endpoint = endpoint
        self._place = place
        self._accepted: AcceptedGreeting | None = None
        self._version = 0
        self.node_id = self.start_id = ""

    @property
    def hello(self) -> Hello | None:
        """Who it is, proven or not; None before it has said."""
        return self._accepted.hello if self._accepted is not None else None

    def heard(self, frame_: Frame) -> bool:
        """Whether it has said who it is, and has proven it. Raises MirrorlogError, which closes the connection."""
        if self._accepted is not None:
            self._accepted.proven(frame_)
            return True
        hello = expect_message(frame_, FrameType.HELLO, Hello)
        self._version = check_hello(hello, cluster_id=self._welcome.cluster_id)
        if hello.role not in ("mirror", "member", "joiner") or not hello.node_id or not hello.start_id:
            raise ProtocolError(f"role {hello.role!r} on the replication port; clients use the client port")
        self.node_id, self.start_id = hello.node_id, hello.start_id
        self._accepted = self._credentials.accepted(hello, self._endpoint)
        if self._accepted.challenge is None:
            return True
        self._place.went_on()
        self._endpoint.send([self._accepted.challenge])
        return False

    def answer(self) -> None:
        """It is let in; from here on its frames are checked, if that was agreed."""
        assert self._accepted is not None
        welcome = msgspec.structs.replace(self._welcome, version=self._version)
        self._endpoint.send([frame(FrameType.WELCOME, encode(self._accepted.sealed(welcome)))])
        if self._accepted.checked:
            self._endpoint.check_frames()


EPOCH_WAIT_S: Final = 0.25
"""How long a mirror is kept waiting that comes before the epoch of its log was opened: it was told of the promotion as
soon as the master was, and would have to come again."""


class Early(NamedTuple):
    """What such a mirror has asked for, at what time (s, the loop's clock), and what it is told in the end."""

    message: FollowRequest
    since: float
    refusal: MirrorlogError


async def read_own_bytes(helper: Executor, read: Callable[[], object]) -> None:
    """A mirror got bytes that fail their checks: either they are bad here, or they went bad on the way. Who reads them
    tells of the first by himself; after the second the mirror comes again."""
    with suppress(MirrorlogError):  # whoever has to know of it was told by the read
        await asyncio.get_running_loop().run_in_executor(helper, read)


def tell_refused(told: Refusals, peer: str, error: MirrorlogError) -> None:
    """Somebody was not let in. It comes again, many times a second: it is told of now and then."""
    host, reason = peer.rpartition(":")[0], str(error)
    if told.is_news(f"{host} {reason}"):
        logger.warning("link_refused peer=%s reason=%r", host, reason)


def tell_in_sync(name: str, own: str, before: frozenset[str], now: frozenset[str], reason: str) -> None:
    """A line for each mirror of a log that counts as a copy that is up now and did not before, or no more."""
    for node in sorted(before ^ now):
        event = "mirror_in_sync" if node in now else "mirror_not_in_sync"
        in_sync = ",".join([own, *sorted(now)])
        logger.info("%s node=%s log=%s in_sync=%s reason=%r", event, node, name, in_sync, reason)


class MemberLink(Protocol):
    """What takes the frames of another member of the cluster, once it has greeted."""

    def frame(self, frame_: Frame) -> None:
        """Raises MirrorlogError, which closes the connection."""

    def disconnected(self) -> None: ...


def no_joiner(endpoint: Endpoint) -> MemberLink:
    raise ProtocolError("this node lets nobody in")


def no_member(hello: Hello, endpoint: Endpoint) -> MemberLink:
    raise ProtocolError("this node takes no members")


# Losses that the cluster has declared, as the two ends of a link judge by them.
#
# What a copy knows to be confirmed is cut for one reason alone: the cluster has promoted somebody who lacks it, and has
# said so (invariant 1). A loss that was declared for an epoch speaks of bytes of older epochs; a copy that holds bytes
# of that epoch, or of a later one, has followed the history that came of it, and what it knows to be confirmed is that
# history's.


class DeclaredLoss(Protocol):
    """When `epoch` began, confirmed bytes may have been lost from log offset `start` on."""

    @property
    def epoch(self) -> int: ...
    @property
    def start(self) -> int: ...


def losses_since(losses: Iterable[DeclaredLoss], last_epoch: int) -> list[DeclaredLoss]:
    """Those that may concern a copy whose last byte is of `last_epoch`, the earliest first."""
    return sorted((loss for loss in losses if loss.epoch > last_epoch), key=lambda loss: loss.epoch)


def lost_from(losses: Sequence[DeclaredLoss]) -> int | None:
    """The lowest log offset from which on these let a copy be cut; None without any."""
    return min((loss.start for loss in losses), default=None)
