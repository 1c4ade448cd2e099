"""Connections between the members of a cluster: heartbeats, Raft, and questions with answers. Thin.

Every node dials every other one and talks over what it dialled; what it accepted it only answers on. So two that dial
each other at once need no rule, and each side finds out by itself whom it reaches. A Raft message to a member that is
not reached goes back over the link on which that one was heard last: a node that was away may not know yet where its
leader is, or that it exists.

A connection that ends is dialled again at once. If that is refused, the process is gone (`cluster.liveness`); then, and
after any failure, it is tried again every `RETRY_S`. Messages to whom no connection stands are dropped: Raft sends
them again, and who asks gets ConnectionLost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from mirrorlog.cluster.raft.messages import AnyMessage, Append
from mirrorlog.config import RECORD_BYTES_MAX
from mirrorlog.errors import ConnectionLost, MirrorlogError, Overloaded, ProtocolError, RequestTimeout
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.auth.proof import DialledGreeting
from mirrorlog.wire.dialling import dial
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.messages.codec import as_error, encode, error_frame, expect_message
from mirrorlog.wire.messages.handshake import Failure, Hello, Welcome

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.1
CONNECT_S: Final = 1.0
"""How long a connection and its greeting may take."""
BEAT_S: Final = 0.1
FRAME_BYTES_MAX: Final = RECORD_BYTES_MAX + 16 * 1024 * 1024
"""Of one message: a snapshot travels in pieces far below, but for the answer to a node that begins anew. The largest
record that a node may be configured to take goes in one, with what forwarding as a dead letter adds to it."""
SILENT_S: Final = 5.0
"""A link over which no answer to a heartbeat comes for so long, with nothing large under way, is dialled anew. Liveness
does not judge links: the other one of the two may stand, and this one's Raft get lost."""
UNSENT_BYTES_MAX: Final = FRAME_BYTES_MAX + 16 * 1024 * 1024
ASKED_MAX: Final = 1000
"""Questions of one member that are answered at a time; the others are refused. It goes on talking: who asks too much
is not dead, and its link has the heartbeats and Raft in it."""

_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_encode = msgspec.msgpack.Encoder().encode


class MemberEvents(Protocol):
    """What the mesh tells its owner, on the loop."""

    def heard(self, node: str, start_id: str) -> None:
        """Something came from this run of a node."""

    def reset(self, node: str) -> None:
        """A connection with it ended."""

    def refused(self, node: str) -> None:
        """Nobody listens at its address."""

    def raft(self, message: AnyMessage, link: Voice) -> None:
        """A member's message; `link`: what it came over."""

    async def asked(self, node: str, question: bytes) -> bytes:
        """The answer to a node's question. A MirrorlogError is an answer too."""


class Voice(Protocol):
    """A connection that a member speaks over. `incarnation`: of the cluster, as that node knows it, 0 when it did not
    say; `runs`: see `Hello`, None when it did not say."""

    node: str
    start_id: str
    incarnation: int
    runs: tuple[str, ...] | None

    def send_raft(self, message: AnyMessage) -> None:
        """Back to that node; dropped when the connection has ended."""


class DialledLink:
    """To one node: dialled, and dialled again, until it is closed. What it sends is greeted first.

    An address that fails is followed by the next one. Only what the cluster knows, and where the node stood last, tells
    that nobody is there.
    """

    def __init__(
        self,
        node: str,
        addresses: Sequence[str],
        *,
        hello: Callable[[], Hello],
        events: MemberEvents,
        welcomed: Callable[[Welcome], None],
        credentials: Credentials = OPEN,
    ) -> None:
        """`addresses`: the one that the cluster knows first, then where the node may be as well."""
        self.addresses = tuple(addresses)
        self.address = self.addresses[0]
        """Where it is dialled now, or stands."""
        self.node = node
        self.start_id = ""
        self.incarnation = 0
        self.runs: tuple[str, ...] | None = None
        self._hello = hello
        self._events = events
        self._welcomed = welcomed
        self._credentials = credentials
        self._greeting: DialledGreeting | None = None
        self._loop = asyncio.get_running_loop()
        self._endpoint: Endpoint | None = None
        self._greeted = False
        self._ended = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._last_id = 0
        self._told = ""
        self._stood_at = ""
        self._heard_at = self._looked_at = self._loop.time()
        self._task = asyncio.ensure_future(self._keep())

    @property
    def up(self) -> bool:
        """Greeted, and not ended."""
        return self._greeted and self._endpoint is not None and self._endpoint.open

    def close(self) -> None:
        """Idempotent."""
        self._task.cancel()
        if self._endpoint is not None:
            self._endpoint.abort()

    def beat(self) -> None:
        """A heartbeat, every `BEAT_S`; and an end for a link that is deaf, or whose other end is."""
        now = self._loop.time()
        if now - self._looked_at > SILENT_S / 2:  # it was this node that stood still
            self._heard_at = now
        self._looked_at = now
        endpoint = self._endpoint
        if not self.up or endpoint is None or endpoint.starved(now):
            return
        if now - self._heard_at > SILENT_S and not endpoint.begun_bytes and not endpoint.unsent_bytes:
            endpoint.abort(ConnectionLost(f"node {self.node} said nothing on this link for {SILENT_S:g} s"))
        else:
            self.send(FrameType.BEAT)

    def send_raft(self, message: AnyMessage) -> None:
        """Dropped when no connection stands."""
        self.send(FrameType.RAFT, _encode(message))

    def send(self, kind: FrameType, payload: bytes = b"") -> None:
        """Dropped when no connection stands."""
        if self.up:
            assert self._endpoint is not None
            self._endpoint.send([frame(kind, payload)])

    async def ask(self, question: bytes, *, timeout_s: float) -> bytes:
        """The answer. Raises ConnectionLost, RequestTimeout, Overloaded, or the error that the other side answered."""
        if not self.up:
            raise ConnectionLost(f"no connection to node {self.node} at {self.address}")
        assert self._endpoint is not None
        unsent = self._endpoint.unsent_bytes
        if unsent + len(question) > UNSENT_BYTES_MAX:  # one more would end the connection, with Raft in it
            raise Overloaded(
                f"{unsent} bytes have not left for node {self.node}; ask again", limit="bytes on the way to a member"
            )
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[number] = answer
        self._endpoint.send([frame(FrameType.ASK, question, number)])
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise RequestTimeout(f"node {self.node} did not answer within {timeout_s * 1000:.0f} ms") from None
        finally:
            self._waiting.pop(number, None)

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.trust()
        self._greeting = self._credentials.dialled(self._hello(), endpoint)
        endpoint.send([frame(FrameType.HELLO, encode(self._greeting.hello))])

    def frame(self, frame_: Frame) -> None:
        if frame_.type == FrameType.ERROR and not frame_.correlation_id:
            raise ConnectionLost(str(as_error(expect_message(frame_, FrameType.ERROR, Failure))))
        if not self._greeted:
            assert self._greeting is not None
            assert self._endpoint is not None
            welcome = self._greeting.received(frame_)
            if isinstance(welcome, bytes):
                self._endpoint.send([welcome])
                return
            if welcome.node_id != self.node:
                raise ProtocolError(f"node {welcome.node_id} answers at {self.address}, where {self.node} should be")
            self._greeted, self._told, self._stood_at = True, "", self.address
            self.start_id, self.incarnation, self.runs = welcome.start_id, welcome.incarnation, welcome.runs
            self._welcomed(welcome)
        elif frame_.type == FrameType.RAFT:
            self._events.raft(_decoded(frame_.payload), self)
        elif (answer := self._waiting.get(frame_.correlation_id)) is not None and not answer.done():
            if frame_.type == FrameType.TELL:
                answer.set_result(bytes(frame_.payload))
            else:
                answer.set_exception(as_error(expect_message(frame_, FrameType.ERROR, Failure)))
        self._heard_at = self._loop.time()
        self._events.heard(self.node, self.start_id)

    def handled(self) -> None:
        pass

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None:
        pass

    def disconnected(self, error: MirrorlogError | None) -> None:
        was_up, self._greeted, self._endpoint = self._greeted, False, None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(f"the connection to node {self.node} ended: {error or 'closed'}"))
        self._ended.set()
        if was_up:
            self._events.reset(self.node)
        elif error is not None or not self._told:
            self._tell(
                str(error or "the connection ended before the greeting; see tls.replication and that node's log")
            )

    # --- inside ---

    async def _keep(self) -> None:
        while True:
            self._ended.clear()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await dial(self.address, self._make_endpoint, self._credentials.dialling)
            except ConnectionRefusedError as error:
                if self.address in (self.addresses[0], self._stood_at):
                    self._events.refused(self.node)
                self._tell(str(error))
            except (OSError, TimeoutError, UnicodeError, ConnectionLost) as error:
                self._tell(str(error) or "no answer")
            else:
                await self._until_ended()
                if not self._told:
                    continue  # it stood: whether its process is gone shows at once
            self._turn()
            await asyncio.sleep(RETRY_S)

    def _turn(self) -> None:
        """To the next address."""
        places = self.addresses
        self.address = places[(places.index(self.address) + 1) % len(places)] if self.address in places else places[0]

    async def _until_ended(self) -> None:
        """A connection that is not greeted in time is none."""
        greeting = self._loop.call_later(CONNECT_S, self._check_greeted, self._endpoint)
        await self._ended.wait()
        greeting.cancel()

    def _check_greeted(self, endpoint: Endpoint | None) -> None:
        if not self._greeted and endpoint is not None and endpoint is self._endpoint:
            self._told = "no greeting"
            endpoint.abort()

    def _make_endpoint(self) -> Endpoint:
        return Endpoint(self, frame_bytes_max=FRAME_BYTES_MAX, outgoing_bytes_max=UNSENT_BYTES_MAX)

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            logger.info("member_not_reached node=%s address=%s reason=%r", self.node, self.address, reason)
        self._told = reason


class AcceptedLink:
    """From one node, which has greeted already: what it says is taken, what it asks is answered."""

    def __init__(self, hello: Hello, *, endpoint: Endpoint, events: MemberEvents) -> None:
        """`hello`: with a node id and a start id."""
        endpoint.trust(FRAME_BYTES_MAX)
        self.node = hello.node_id or ""
        self.start_id = hello.start_id or ""
        self.incarnation = hello.incarnation
        self.runs = hello.runs
        self._endpoint = endpoint
        self._events = events
        self._answering: dict[asyncio.Task[None], None] = {}
        events.heard(self.node, self.start_id)

    def frame(self, frame_: Frame) -> None:
        """Raises ProtocolError, which closes the connection."""
        self._events.heard(self.node, self.start_id)
        if frame_.type == FrameType.RAFT:
            self._events.raft(_decoded(frame_.payload), self)
        elif frame_.type == FrameType.ASK:
            self._answer_soon(frame_.correlation_id, bytes(frame_.payload))
        elif frame_.type == FrameType.BEAT:
            self._endpoint.send([frame(FrameType.BEAT)])
        else:
            raise ProtocolError(f"frame type {frame_.type} from a member")

    def send_raft(self, message: AnyMessage) -> None:
        """Back to that node; dropped when the connection has ended."""
        if self._endpoint.open:
            self._endpoint.send([frame(FrameType.RAFT, _encode(message))])

    def disconnected(self) -> None:
        """The connection is gone."""
        for task in list(self._answering):
            task.cancel()
        self._events.reset(self.node)

    def _answer_soon(self, number: int, question: bytes) -> None:
        if len(self._answering) >= ASKED_MAX:
            refusal = Overloaded(
                f"{ASKED_MAX} questions of node {self.node} wait for their answers; ask again",
                limit="questions at once",
            )
            self._endpoint.send([error_frame(refusal, number)])
            return
        task = asyncio.ensure_future(self._answer(number, question))
        self._answering[task] = None
        task.add_done_callback(self._answering.pop)

    async def _answer(self, number: int, question: bytes) -> None:
        try:
            told = frame(FrameType.TELL, await self._events.asked(self.node, question), number)
        except MirrorlogError as error:
            told = error_frame(error, number)
        except Exception as error:
            logger.exception("answer_failed node=%s", self.node)
            told = error_frame(MirrorlogError(f"internal error: {type(error).__name__}"), number)
        self._endpoint.send([told])


class Mesh:
    """The dialled links of one node. `welcomed`: called with what another one says of itself."""

    def __init__(self, *, hello: Callable[[], Hello], events: MemberEvents, credentials: Credentials = OPEN) -> None:
        self.welcomed: Callable[[Welcome], None] = lambda welcome: None
        self._hello = hello
        self._events = events
        self._credentials = credentials
        self._links: dict[str, DialledLink] = {}
        self.opened = 0
        """Links that were greeted, in this run."""
        self.failed = 0
        """Questions that were answered by an error or not at all."""
        self._beat: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._beat_all()

    def stop(self) -> None:
        """Idempotent."""
        if self._beat is not None:
            self._beat.cancel()
        self.reach({})

    def reach(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Exactly these nodes from now on, each at one of its addresses, see `DialledLink`; one that stands at an
        address that is its no more is dialled anew."""
        for node, link in list(self._links.items()):
            if link.address not in addresses.get(node, ()):
                self._links.pop(node).close()
            else:
                link.addresses = tuple(addresses[node])
        for node, places in addresses.items():
            if node not in self._links:
                self._links[node] = DialledLink(
                    node,
                    places,
                    hello=self._hello,
                    events=self._events,
                    welcomed=self._say_welcomed,
                    credentials=self._credentials,
                )

    def reached(self) -> frozenset[str]:
        """To whom a greeted connection stands, so that messages and questions arrive."""
        return frozenset(node for node, link in self._links.items() if link.up)

    def send_raft(self, node: str, message: AnyMessage) -> bool:
        """Whether a connection stands that it leaves by."""
        link = self._links.get(node)
        if link is None or not link.up:
            return False
        link.send_raft(message)
        return True

    async def ask(self, node: str, question: bytes, *, timeout_s: float) -> bytes:
        """As `DialledLink.ask`."""
        link = self._links.get(node)
        if link is None:
            raise ConnectionLost(f"node {node} is not in the cluster")
        try:
            return await link.ask(question, timeout_s=timeout_s)
        except MirrorlogError:
            self.failed += 1
            raise

    def _say_welcomed(self, welcome: Welcome) -> None:
        self.opened += 1
        self.welcomed(welcome)

    def _beat_all(self) -> None:
        for link in self._links.values():
            link.beat()
        self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._beat_all)


def _decoded(payload: memoryview) -> AnyMessage:
    try:
        message = _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a Raft message does not fit: {error}") from None
    if isinstance(message, Append):
        indexes = [entry.index for entry in message.entries]
        if indexes != list(range(message.before_index + 1, message.before_index + 1 + len(indexes))):
            raise ProtocolError("the entries of an Append do not follow each other")
    return message
