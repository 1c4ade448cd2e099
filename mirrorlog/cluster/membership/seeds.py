"""The sockets of a node that looks for a cluster: it asks its seeds, and answers who looks as it does. Thin.

All of it is on replication ports: what listens there is a node of a cluster (`ha.accept`), or one that looks
(`SeekingPort`). A connection is for one question, and short. A node of a configuration, which knows its cluster, asks
its members as one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar
from uuid import UUID

from mirrorlog import __version__
from mirrorlog.cluster.membership.discovery import SEED_CHARS_MAX, Answer, InCluster, Looks, NoAnswer
from mirrorlog.cluster.membership.founding import Told, Untouched
from mirrorlog.cluster.requests import (
    AnyAnswer,
    AnyQuestion,
    Applied,
    AskJoin,
    AskLooking,
    AskState,
    Joined,
    LookingAnswer,
    MemberRequest,
    decode_answer,
    decode_question,
    encode,
)
from mirrorlog.config import SEEDS_MAX, LimitSettings
from mirrorlog.errors import ConnectionLost, MirrorlogError, NotLeader, ProtocolError, RequestTimeout
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.auth.proof import AcceptedGreeting, DialledGreeting
from mirrorlog.wire.dialling import LINK_UNACKED_MS, dial
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.fairness.places import PortPlaces
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, Frame, FrameType, frame
from mirrorlog.wire.listening import Port, PortPlace, listen
from mirrorlog.wire.messages import codec
from mirrorlog.wire.messages.codec import as_error, error_frame, expect_message
from mirrorlog.wire.messages.handshake import Failure, Hello, NodeLimits, Welcome, check_hello
from mirrorlog.wire.tls import Refusals

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How long a seed may take to say what it is."""
JOIN_S: Final = 5.0
"""How long one may take to let somebody in."""
LINK_S: Final = 5.0
"""How long a connection to a node that looks may stay open."""
LINKS_MAX: Final = 4 * SEEDS_MAX
RUNS_MAX: Final = 1_000
"""Of those that have asked a node that looks; more are no news to it."""
FRAME_BYTES_MAX: Final = 64 * 1024
JOINED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The state of a cluster is in it: some megabytes with 10,000 queues."""

_A = TypeVar("_A", Joined, Applied)

_refusals = Refusals()

# --- Asking ---------------------------------------------------------------------------------------------------------


async def look_at(seed: str, *, node: str, run: str, credentials: Credentials = OPEN) -> Answer:
    """What a seed says it is. Raises nothing but cancellation."""
    try:
        async with asyncio.timeout(LOOK_S):
            link = await _dialled(seed, _hello(node, run, None), FRAME_BYTES_MAX, credentials)
            try:
                welcome = await link.welcome
                if welcome.cluster_id:
                    return InCluster(UUID(welcome.cluster_id), welcome.cluster_name[:128], welcome.node_id[:128])
                looking = decode_answer(await link.ask(encode(AskLooking())), LookingAnswer)
            finally:
                link.close()
    except TimeoutError:
        return NoAnswer(f"no answer within {LOOK_S * 1000:.0f} ms")
    except MirrorlogError as error:
        if _refusals.is_news(f"{seed} {error}"):  # who sets its node up waits for it, and wants to know why
            logger.info("seed_not_used seed=%s reason=%r", seed, str(error))
        return NoAnswer(str(error))
    except (OSError, UnicodeError, ValueError) as error:
        return NoAnswer(str(error))
    if len(looking.seeds) > SEEDS_MAX or any(len(each) > SEED_CHARS_MAX for each in (looking.address, *looking.seeds)):
        return NoAnswer("an answer that cannot be")
    return Looks(welcome.start_id, welcome.node_id[:128], looking.address, looking.seeds)


async def look_at_founder(
    address: str, cluster_id: UUID, *, node: str, run: str, credentials: Credentials = OPEN
) -> Told:
    """As `look_at`, and of a member of `cluster_id` whether anything may be decided there. Raises nothing but
    cancellation."""
    answer = await look_at(address, node=node, run=run, credentials=credentials)
    if not isinstance(answer, InCluster) or answer.cluster_id != cluster_id:
        return answer
    asked = AskState(node=node, index=0)
    try:
        told = await ask_member(address, cluster_id, asked, Joined, node=node, run=run, credentials=credentials)
    except MirrorlogError:
        return answer  # whatever the reason, it does not say that nothing is
    return Untouched(answer.node, told.member, told.snapshot.members.voters) if told.snapshot.index == 0 else answer


async def ask_to_join(
    seed: str, cluster_id: UUID, asked: AskJoin, *, run: str, credentials: Credentials = OPEN
) -> Joined:
    """Raises NotAMember when the cluster does not want it; after any other MirrorlogError it may ask again."""
    return await _answered(seed, _hello(asked.node, run, cluster_id), asked, Joined, credentials)


async def ask_member(
    address: str,
    cluster_id: UUID,
    asked: MemberRequest,
    kind: type[_A],
    *,
    node: str,
    run: str,
    credentials: Credentials = OPEN,
) -> _A:
    """As a node of the same cluster, whose run is `run`. Raises what is answered, and ConnectionLost, RequestTimeout,
    ProtocolError."""
    return await _answered(address, _hello(node, run, cluster_id, role="member"), asked, kind, credentials)


async def _answered(address: str, hello: Hello, asked: MemberRequest, kind: type[_A], credentials: Credentials) -> _A:
    try:
        async with asyncio.timeout(JOIN_S):
            link = await _dialled(address, hello, JOINED_BYTES_MAX, credentials)
            try:
                await link.welcome
                return decode_answer(await link.ask(encode(asked)), kind)
            finally:
                link.close()
    except TimeoutError:
        raise RequestTimeout(f"{address} did not answer within {JOIN_S * 1000:.0f} ms") from None
    except (OSError, UnicodeError) as error:
        raise ConnectionLost(f"{address}: {error}") from None


def _hello(node: str, run: str, cluster_id: UUID | None, *, role: str = "joiner") -> Hello:
    """`run`: tells this process from any other."""
    return Hello(
        version_min=PROTOCOL_VERSION_MIN,
        version_max=PROTOCOL_VERSION_MAX,
        role=role,
        software=f"mirrorlog {__version__}",
        cluster_id=None if cluster_id is None else str(cluster_id),
        node_id=node,
        start_id=run,
    )


async def _dialled(seed: str, hello: Hello, frame_bytes_max: int, credentials: Credentials) -> _SeedLink:
    link = _SeedLink(hello, credentials)
    make = lambda: Endpoint(link, frame_bytes_max=frame_bytes_max, outgoing_bytes_max=FRAME_BYTES_MAX)  # noqa: E731
    await dial(seed, make, credentials.dialling)
    return link


class _SeedLink:
    """One connection to a seed: greeted, then asked one thing. `welcome` and the answer are futures that end with the
    connection at the latest."""

    def __init__(self, hello: Hello, credentials: Credentials) -> None:
        loop = asyncio.get_running_loop()
        self.welcome: asyncio.Future[Welcome] = loop.create_future()
        self._answer: asyncio.Future[bytes] = loop.create_future()
        self._hello = hello
        self._credentials = credentials
        self._greeting: DialledGreeting | None = None
        self._endpoint: Endpoint | None = None

    def close(self) -> None:
        """Nobody waits for it any more."""
        for each in (self.welcome, self._answer):
            each.cancel()
        if self._endpoint is not None:
            self._endpoint.abort()

    async def ask(self, question: bytes) -> bytes:
        """Once. Raises MirrorlogError."""
        if self._endpoint is not None:
            self._endpoint.send([frame(FrameType.ASK, question, 1)])
        return await self._answer

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.trust()
        self._greeting = self._credentials.dialled(self._hello, endpoint)
        endpoint.send([frame(FrameType.HELLO, codec.encode(self._greeting.hello))])

    def frame(self, frame_: Frame) -> None:
        if frame_.type == FrameType.ERROR:
            raise as_error(expect_message(frame_, FrameType.ERROR, Failure))
        if not self.welcome.done():
            assert self._greeting is not None
            assert self._endpoint is not None
            answer = self._greeting.received(frame_)
            if isinstance(answer, bytes):
                self._endpoint.send([answer])
            else:
                self.welcome.set_result(answer)
        elif frame_.type == FrameType.TELL and not self._answer.done():
            self._answer.set_result(bytes(frame_.payload))

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None: ...

    def disconnected(self, error: MirrorlogError | None) -> None:
        for each in (self.welcome, self._answer):
            if not each.done():
                each.set_exception(error or ConnectionLost("the seed closed the connection"))
                each.exception()  # whether somebody waits for it or not


# --- Answering ------------------------------------------------------------------------------------------------------


class JoinerLink:
    """From a node that is in no cluster, and has greeted: one question at a time. `answer` raises MirrorlogError."""

    def __init__(self, endpoint: Endpoint, answer: Callable[[AnyQuestion], Awaitable[AnyAnswer]]) -> None:
        self._endpoint = endpoint
        self._answer = answer
        self._answering: asyncio.Task[None] | None = None

    def frame(self, frame_: Frame) -> None:
        """Raises ProtocolError, which closes the connection."""
        if frame_.type != FrameType.ASK:
            raise ProtocolError(f"frame type {frame_.type} from a node that is in no cluster")
        if self._answering is not None and not self._answering.done():
            raise ProtocolError("a node that is in no cluster may ask one thing at a time")
        question = decode_question(bytes(frame_.payload))
        self._answering = asyncio.ensure_future(self._tell(frame_.correlation_id, question))

    def disconnected(self) -> None:
        """The connection is gone."""
        if self._answering is not None:
            self._answering.cancel()

    async def _tell(self, number: int, question: AnyQuestion) -> None:
        try:
            told = frame(FrameType.TELL, encode(await self._answer(question)), number)
        except MirrorlogError as error:
            told = error_frame(error, number)
        except Exception as error:
            logger.exception("joiner_not_answered")
            told = error_frame(MirrorlogError(f"internal error: {type(error).__name__}"), number)
        self._endpoint.send([told])


class SeekingPort:
    """The replication port of a node that looks. `own`: what it answers."""

    cluster_id = ""
    """In which cluster it is: none."""

    def __init__(self, own: Looks, limits: LimitSettings, credentials: Credentials = OPEN) -> None:
        self.own = own
        self.credentials = credentials
        self.links: dict[_SeekerLink, None] = {}
        self.news = asyncio.Event()
        """Set when somebody asks who has not asked before: whoever waits for it looks again, and clears it."""
        self.dialled_by: set[tuple[str, str]] = set()
        """Cluster and node of those who took this node for a member; what they say is not proven."""
        self._asked_by: set[str] = set()
        self._limits = limits
        self._places: PortPlaces[PortPlace] = PortPlaces(
            strangers_max=limits.max_strangers, per_address_max=limits.max_strangers_per_address, let_in_max=LINKS_MAX
        )
        self._port: Port | None = None

    async def start(self, address: str) -> None:
        """Raises PortTaken."""
        self._port = await listen(
            address, self._endpoint, self._places, self.credentials.accepting,
            limit="max_links", unacked_ms=LINK_UNACKED_MS,
        )  # fmt: skip

    async def stop(self) -> None:
        """The port is free when it returns. Idempotent."""
        port, self._port = self._port, None
        if port is not None:
            port.close()
        for link in list(self.links):
            link.abort()

    async def until_known_to(self, runs: Collection[str], timeout_s: float) -> None:
        """Until these have asked and were answered, or for so long: who founds is not there any more for who looks."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._asked_by.issuperset(runs):
                    self.news.clear()
                    await self.news.wait()

    def note_answered(self, run: str) -> None:
        """This run knows now that this node looks."""
        if run not in self._asked_by and len(self._asked_by) < RUNS_MAX:
            self._asked_by.add(run)
            self.news.set()

    def note_member(self, cluster_id: str, node: str) -> None:
        """A member of that cluster has dialled. It will do so again, for as long as it is not taken."""
        if len(self.dialled_by) < RUNS_MAX:
            self.dialled_by.add((cluster_id, node[:128]))

    def welcome(self, version: int) -> Welcome:
        """Of no cluster."""
        limits = NodeLimits(
            max_record_bytes=self._limits.max_record_bytes, max_batch_bytes=self._limits.max_batch_bytes
        )
        return Welcome(
            version=version,
            cluster_id=self.cluster_id,
            cluster_name="",
            node_id=self.own.node,
            start_id=self.own.run,
            limits=limits,
            software=f"mirrorlog {__version__}",
        )

    async def answer(self, question: AnyQuestion) -> AnyAnswer:
        """Raises NotLeader: this node lets nobody in."""
        if isinstance(question, AskLooking):
            return LookingAnswer(address=self.own.address, seeds=self.own.seeds)
        raise NotLeader(f"node {self.own.node} is in no cluster yet")

    def _endpoint(self, place: PortPlace) -> Endpoint:
        return Endpoint(_SeekerLink(self, place), frame_bytes_max=FRAME_BYTES_MAX, outgoing_bytes_max=FRAME_BYTES_MAX)


class _SeekerLink:
    """One connection to a node that looks."""

    def __init__(self, port: SeekingPort, place: PortPlace) -> None:
        self._port = port
        self._place = place
        self._endpoint: Endpoint | None = None
        self._link: JoinerLink | None = None
        self._version = 0
        self._greeting: AcceptedGreeting | None = None
        self._end: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        if self._endpoint is not None:
            self._endpoint.abort()

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._port.links[self] = None
        self._end = asyncio.get_running_loop().call_later(LINK_S, self.abort)

    def frame(self, frame_: Frame) -> None:
        assert self._endpoint is not None
        if self._link is not None:
            self._link.frame(frame_)
            return
        if self._greeting is None:
            hello = expect_message(frame_, FrameType.HELLO, Hello)
            if hello.role == "member":
                self._port.note_member(hello.cluster_id or "", hello.node_id or "")
            self._version = check_hello(hello, cluster_id=self._port.cluster_id)
            self._greeting = self._port.credentials.accepted(hello, self._endpoint)
            if self._greeting.challenge is not None:
                self._endpoint.send([self._greeting.challenge])
                return
        else:
            self._greeting.proven(frame_)
        self._place.let_in()
        self._endpoint.trust()
        welcome = self._greeting.sealed(self._port.welcome(self._version))
        self._endpoint.send([frame(FrameType.WELCOME, codec.encode(welcome))])
        if self._greeting.checked:
            self._endpoint.check_frames()
        self._link = JoinerLink(self._endpoint, self._answer)

    async def _answer(self, question: AnyQuestion) -> AnyAnswer:
        assert self._greeting is not None
        answer = await self._port.answer(question)
        self._port.note_answered(self._greeting.hello.start_id or "")
        return answer

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None: ...

    def disconnected(self, error: MirrorlogError | None) -> None:
        self._port.links.pop(self, None)
        if self._end is not None:
            self._end.cancel()
        if self._link is not None:
            self._link.disconnected()
