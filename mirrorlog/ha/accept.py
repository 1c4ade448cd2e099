"""AcceptSocketService: listens for mirrors and drives an HAConnection for each (seed 002, lines 47-163). Thin.

Frames of a mirror go to its HAConnection, the actions that come back to the socket, acks to the log's Mastership, and
what that answers to whoever published.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence, Set
from concurrent.futures import Executor
from typing import Final
from uuid import UUID

from mirrorlog.commitlog.epochs import LIST_BYTES_MAX
from mirrorlog.config import HaSettings, LimitSettings
from mirrorlog.errors import BadBatch, ConnectionLost, MirrorAhead, MirrorlogError, NoSuchLog, Overloaded, ProtocolError
from mirrorlog.ha import links as about_links
from mirrorlog.ha.actions import Action, Close, ReadCold, Send
from mirrorlog.ha.connection import HAConnection, SourceCopy
from mirrorlog.ha.group_transfer import Answer
from mirrorlog.ha.links import DeclaredLoss, Early, Greeting, MemberLink, log_failure
from mirrorlog.ha.mastership import Mastership
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.dialling import LINK_UNACKED_MS
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.fairness.lines import LoopLines
from mirrorlog.wire.fairness.places import PortPlaces
from mirrorlog.wire.frames import Frame, FrameType, frame, read_ack
from mirrorlog.wire.listening import Port, PortPlace, listen
from mirrorlog.wire.messages.codec import as_error, expect_message
from mirrorlog.wire.messages.handshake import Failure, Hello, Welcome
from mirrorlog.wire.messages.replication import FollowRequest, Pull
from mirrorlog.wire.tls import Refusals

logger = logging.getLogger(__name__)

_SPARE_LINKS: Final = 16
_ACK: Final = int(FrameType.ACK)

ANNOUNCE_S: Final = 0.005
"""How long what is confirmed may wait for bytes that carry it to the mirrors; twice that when bytes have just left."""


class MasterLink:
    """The master's end of one mirror's connection: frames to an HAConnection, its actions to the socket."""

    def __init__(self, service: AcceptSocketService, place: PortPlace) -> None:
        self._service = service
        self._place = place
        self._endpoint: Endpoint | None = None
        self.greeted = False
        """Whether it was let in."""
        self._greeting: Greeting | None = None
        self.log: MasteredLog | None = None
        self._member: MemberLink | None = None
        self.connection: HAConnection | None = None
        self.reading: asyncio.Task[None] | None = None
        """The cold read that is under way, or the last one."""
        self.opened_at = 0.0
        self.waits: Early | None = None
        """What it has asked for while this node has no epoch open of that log."""

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None
        return self._endpoint

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._greeting = Greeting(self._service.welcome, self._service.credentials, endpoint, self._place)
        self.opened_at = time.monotonic()
        self._service.accepted += 1
        self._service.links.add(self)

    def frame(self, frame_: Frame) -> None:
        now = time.monotonic()  # the loop's clock, without the way to the loop
        if frame_.type == _ACK and self.connection is not None:
            self._acked(self.connection, frame_, now)
            return
        if self._member is not None:
            self._member.frame(frame_)
            return
        assert self._greeting is not None
        if frame_.type == FrameType.ERROR and self._greeting.hello is not None:
            reason = as_error(expect_message(frame_, FrameType.ERROR, Failure))
            if isinstance(reason, BadBatch):
                self._bad_bytes_refused()
            raise ConnectionLost(f"mirror {self._greeting.hello.node_id} gave up: {reason}")
        if not self.greeted:
            if self._greeting.heard(frame_):
                self._let_in(self._greeting)
        elif self.connection is None:
            self._follow(expect_message(frame_, FrameType.FOLLOW, FollowRequest), now)
        else:
            self._pull(self.connection, frame_, now)

    def handled(self) -> None:
        pass

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None:
        self.pump(announce=True)

    def disconnected(self, error: MirrorlogError | None) -> None:
        self._service.links.discard(self)
        if not self.greeted and error is not None:
            about_links.tell_refused(self._service.refusals_told, self.endpoint.peer, error)
        if self._member is not None:
            self._service.members.discard(self)
            self._member.disconnected()
        if self.connection is not None and self.log is not None:
            self._service.sent[self.log.log_id, self.connection.node_id] += self.connection.sent_bytes
            self.log.links.remove(self)
            self.log.mastership.leave(self.connection)
            logger.info(
                "mirror_left node=%s log=%s acked=%s reason=%r",
                self.connection.node_id, self.log.name, self.connection.read_half.acked, str(error or "closed"),
            )  # fmt: skip
            self.log.tell_in_sync(str(error or "closed"))

    # --- driving ---

    def pump(self, *, announce: bool) -> None:
        """Push what the log has gained, unless the socket is full; and what is confirmed, if nothing carries it."""
        if self.connection is not None and (announce or self.connection.owes):
            self.push(self.connection, announce=announce)

    def push(self, connection: HAConnection, *, announce: bool = False) -> None:
        """`pump`, of a link that owes something."""
        endpoint = self._endpoint
        if endpoint is None or endpoint.paused or not endpoint.open:
            return
        try:
            self._do(connection.pump(time.monotonic(), announce=announce))
        except MirrorlogError as error:
            # This link's trouble: whoever made it pump, a producer or another mirror, has no part in it.
            endpoint.close(error)

    def tick(self, now: float, limits: LimitSettings) -> None:
        if self.connection is None:
            if self.waits is not None and now - self.waits.since >= about_links.EPOCH_WAIT_S:
                self.endpoint.close(self.waits.refusal)
            elif (now - self.opened_at) * 1000 >= limits.hello_timeout_ms:
                self.endpoint.close(ProtocolError(f"no greeting within {limits.hello_timeout_ms} ms"))
            return
        if not self.endpoint.stalled(now, limits.frame_timeout_ms) and not self.endpoint.starved(now):
            self._do(self.connection.tick(now))

    def _let_in(self, greeting: Greeting) -> None:
        hello = greeting.hello
        assert hello is not None
        if hello.role != "member":
            self._service.check_links()
        self._place.let_in()
        self.greeted = True
        self.endpoint.trust()
        if hello.role == "joiner":
            self.endpoint.known()
        else:
            self.endpoint.unmetered()
        greeting.answer()
        if hello.role == "member":
            # It has no log and no acks; silence is for the cluster to judge.
            self._service.links.discard(self)
            self._service.members.add(self)
            self._member = self._service.member_link(hello, self.endpoint)
        elif hello.role == "joiner":
            # One of the few links that may be open, and for no longer than a greeting may take.
            self._member = self._service.joiner_link(self.endpoint)

    def _follow(self, message: FollowRequest, now: float) -> None:
        assert self._greeting is not None
        node_id, start_id = self._greeting.node_id, self._greeting.start_id
        try:
            log = self._service.log(message.log_id)
        except NoSuchLog as error:
            self.waits = Early(message, now, error)
            return
        self.waits = None
        log.mastership.check_member(node_id)
        connection = log.link(node_id, start_id, now)
        connection.pace = log.mastership.pace_of(node_id)
        try:
            actions = connection.follow(message, now)
        except MirrorAhead as error:
            if log.mastership.ahead(error):  # the mirror comes back every half second
                logger.error("log_recovering log=%s reason=%r", log.name, log.mastership.reason)
            raise
        log.mastership.check_open()
        self.log, self.connection = log, connection
        log.links.append(self)
        self._do(actions)

    def registered(self) -> None:
        """This node has opened an epoch of a log; perhaps of the one that is waited for."""
        if self.waits is None or not self.endpoint.open:
            return
        try:
            self._follow(self.waits.message, time.monotonic())
        except MirrorlogError as error:
            self.endpoint.close(error)

    def _acked(self, connection: HAConnection, frame_: Frame, now: float) -> None:
        assert self.log is not None
        ack, log = read_ack(frame_.payload), self.log.copy.log
        # A copy holds whole batches. An ack within one would make it visible, to readers, before it is there.
        if ack.written < log.end and not log.is_border(ack.written):
            raise ProtocolError(f"an ack of {ack.written}, where no batch ends")
        if ack.flushed != connection.read_half.flushed and ack.flushed < log.end and not log.is_border(ack.flushed):
            raise ProtocolError(f"an ack of {ack.flushed}, where no batch ends")
        self.log.progressed(self.log.mastership.acked(connection, ack, now))
        if connection.owes:
            self.push(connection)

    def _pull(self, connection: HAConnection, frame_: Frame, now: float) -> None:
        assert self.log is not None
        actions = connection.pull(expect_message(frame_, FrameType.PULL, Pull), now)
        # Only now, when this link is proven, may it take the place of an older one of the same mirror.
        if (replaced := self.log.mastership.join(connection)) is not None:
            for link in list(self.log.links):
                if link.connection is replaced:
                    link.endpoint.close(ConnectionLost(f"mirror {replaced.node_id} has opened a newer link"))
        self._do(actions)
        logger.info(
            "mirror_joined node=%s log=%s epoch=%s from=%s end=%s",
            connection.node_id, self.log.name, self.log.copy.log.epochs.current,
            connection.read_half.requested, self.log.copy.log.end,
        )  # fmt: skip
        self.log.progressed(self.log.mastership.proven(connection))
        self.log.tell_in_sync(f"follows from {connection.read_half.requested}")

    def _bad_bytes_refused(self) -> None:
        link, log = self.connection, self.log
        if link is not None and log is not None and link.proven:
            first, sent, node = link.read_half.acked, link.write_half.next_transfer, link.node_id
            logger.warning("bad_bytes_refused node=%s log=%s first=%s sent=%s", node, log.name, first, sent)
            read = log.copy.log.read_cold(first, sent - first, until=sent).run
            self._service.spawn(about_links.read_own_bytes(self._service.helper, read))

    def _do(self, actions: Iterable[Action]) -> None:
        endpoint = self._endpoint
        assert endpoint is not None
        for action in actions:
            if isinstance(action, Send):
                endpoint.send(action.parts)
            elif isinstance(action, Close):
                endpoint.close(action.error)
            elif isinstance(action, ReadCold):
                self.reading = self._service.spawn(self._read_cold(action))

    async def _read_cold(self, action: ReadCold) -> None:
        loop = asyncio.get_running_loop()
        try:
            run = await loop.run_in_executor(self._service.helper, action.job.run)
            if self.connection is not None and self.endpoint.open:
                self._do(self.connection.cold_read(run, time.monotonic()))
        except MirrorlogError as error:
            self.endpoint.close(error)
        except Exception as error:
            self.endpoint.close(ProtocolError(f"internal error: {type(error).__name__}"))
            raise


class MasteredLog:
    """A log that this node masters: its decisions, its bytes, and who is told of confirms."""

    def __init__(
        self,
        *,
        log_id: UUID,
        copy: SourceCopy,
        mastership: Mastership,
        settings: HaSettings,
        answer: Callable[[Answer], None],
        losses: Sequence[DeclaredLoss] = (),
    ) -> None:
        """`losses`: those that the cluster has declared, that of this mastership's own promotion included."""
        self.log_id = log_id
        self.name = mastership.name
        self.copy = copy
        self.mastership = mastership
        self._settings = settings
        self._answer = answer
        self._losses = losses
        self._in_sync: frozenset[str] = frozenset()
        self.links: list[MasterLink] = []
        """Of its mirrors, those that are open."""

    def link(self, node_id: str, start_id: str, now: float) -> HAConnection:
        return HAConnection(
            node_id=node_id, start_id=start_id, copy=self.copy, settings=self._settings, now=now, losses=self._losses
        )

    def progressed(self, answers: Iterable[Answer]) -> None:
        """Copies moved on: producers are answered, then records become visible, which takes longer. Nobody sees it the
        other way round: whatever an answered producer asks for next is read after this.

        One that cannot be told keeps nobody else from it: neither the others who wait, nor the copy that has moved on.
        """
        for each in answers:
            try:
                self._answer(each)
            except Exception:
                logger.exception("answer_failed log=%s", self.name)
        confirmed = self.mastership.progress.confirmed
        if confirmed > self.copy.log.confirmed:
            self.copy.set_confirmed(confirmed)

    def tell_in_sync(self, reason: str) -> None:
        """A line for each mirror that counts as a copy that is up since this was asked last, or no more; `reason`: of
        the change, if there is one."""
        before, self._in_sync = self._in_sync, self.mastership.in_sync
        about_links.tell_in_sync(self.name, self.mastership.own, before, self._in_sync, reason)


class AcceptSocketService:
    """AcceptSocketService and the links it accepts; one per node, for all logs that the node masters, which come and
    go."""

    def __init__(
        self,
        *,
        welcome: Welcome,
        limits: LimitSettings,
        helper: Executor,
        credentials: Credentials = OPEN,
        lines: LoopLines | None = None,
    ) -> None:
        """`lines`: where wait for their turns those who have not proven who they are."""
        self.welcome = welcome
        self._lines = lines
        self.credentials = credentials
        self.refusals_told = Refusals()
        self.links: set[MasterLink] = set()
        self.members: set[MasterLink] = set()
        """Links of other members of the cluster."""
        self.places: PortPlaces[PortPlace] = PortPlaces(
            strangers_max=limits.max_strangers,
            per_address_max=limits.max_strangers_per_address,
            let_in_max=limits.max_links,
        )
        self.accepted = 0
        """Connections since this process began."""
        self.sent: Counter[tuple[UUID, str]] = Counter()
        """Bytes of a log to a mirror, on links that have ended."""
        self.member_link: Callable[[Hello, Endpoint], MemberLink] = about_links.no_member
        """Makes what takes a member's frames: of its greeting and the endpoint."""
        self.joiner_link: Callable[[Endpoint], MemberLink] = about_links.no_joiner
        """Makes what takes the frames of a node that is in no cluster."""
        self.helper = helper
        self._logs: dict[str, MasteredLog] = {}
        self._refusals: dict[str, MirrorlogError] = {}
        self._limits = limits
        self._port: Port | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_due: dict[MasteredLog, None] = {}
        self._announce_due: dict[MasteredLog, None] = {}

    async def start(self, address: str) -> None:
        """Listen for mirrors. Raises PortTaken."""
        self._port = await listen(address, lambda place: Endpoint(
            MasterLink(self, place),
            frame_bytes_max=LIST_BYTES_MAX,  # a mirror sends greetings and acks; epoch lists are the largest
            outgoing_bytes_max=2**62,  # bounded by in_flight_bytes_max
            lines=self._lines,
        ), self.places, self.credentials.accepting, lines=self._lines, limit="max_links",
            unacked_ms=LINK_UNACKED_MS)  # fmt: skip

    def check_links(self) -> None:
        """Whether there is a place for one more of mirrors and joiners. Each mirror has one link per log; the rest is
        room for those that are being replaced or refused. Raises Overloaded."""
        links_max = 2 * sum(len(log.mastership.mirrors) for log in self._logs.values()) + _SPARE_LINKS
        if sum(link.greeted for link in self.links) >= links_max:
            raise Overloaded(f"{links_max} links are open on this port", limit="links_max")

    def sent_bytes(self, log_id: UUID) -> dict[str, int]:
        """Of a log, to each mirror, since this process began."""
        found = Counter({node: size for (log, node), size in self.sent.items() if log == log_id})
        log = self._logs.get(str(log_id))
        for link in log.links if log is not None else ():
            if link.connection is not None:
                found[link.connection.node_id] += link.connection.sent_bytes
        return dict(found)

    def register(self, log: MasteredLog) -> None:
        """This node masters the log from now on; mirrors that have come for it before are let in."""
        self._logs[str(log.log_id)] = log
        asyncio.get_running_loop().call_soon(self._let_waiting_in)

    def _let_waiting_in(self) -> None:
        for link in list(self.links):
            link.registered()

    def unregister(self, log: MasteredLog, reason: MirrorlogError) -> list[asyncio.Task[None]]:
        """This mastership has ended: its links are closed with `reason`. Gives the cold reads of theirs that are under
        way."""
        if self._logs.get(str(log.log_id)) is log:
            del self._logs[str(log.log_id)]
        links = list(log.links)
        for link in links:
            link.endpoint.close(reason)
        return [link.reading for link in links if link.reading is not None]

    def refuse(self, log_id: UUID, error: MirrorlogError) -> None:
        """The log is one of this node's and is not served, by `error`."""
        self._refusals[str(log_id)] = error

    def log(self, log_id: str) -> MasteredLog:
        """Raises NoSuchLog, or the reason why this node does not serve the log."""
        if log_id in self._refusals:
            raise self._refusals[log_id].with_traceback(None)  # shared: it must not collect its raisers' frames
        if log_id not in self._logs:
            raise NoSuchLog(f"this node is not the master of log {log_id}, or has not opened its epoch yet; ask again")
        return self._logs[log_id]

    def stored(self, log: MasteredLog) -> None:
        """It has grown. A mirror that has all the rest gets it at once, while this node goes on with it; for the others
        one push follows in this turn of the loop, whatever comes in it."""
        owes = False
        for link in list(log.links):  # a link may end in this
            if (connection := link.connection) is not None:
                if connection.all_acked:
                    link.push(connection)
                owes = owes or connection.owes
        if owes:
            if not self._pump_due:
                asyncio.get_running_loop().call_soon(self.push)
            self._pump_due[log] = None

    def push(self) -> None:
        """Push now what `stored` has told of, if anything."""
        if self._pump_due:
            due, self._pump_due = self._pump_due, {}
            for log in due:
                for link in list(log.links):
                    link.pump(announce=False)

    def gained(self, log: MasteredLog, queue_ids: Set[int]) -> None:
        """More of it is confirmed, of these queues: news to its mirrors, that the next bytes carry, or soon a frame of
        its own. A frame at once for each would cost a busy master two sends, and a mirror a turn, per publish."""
        if log.links:
            if not self._announce_due:
                asyncio.get_running_loop().call_later(ANNOUNCE_S, self._announce)
            self._announce_due[log] = None

    def tick(self, now: float) -> None:
        for link in list(self.links):
            link.tick(now, self._limits)
        for member in list(self.members):
            member.endpoint.starved(now)
        for log in self._logs.values():
            log.progressed(log.mastership.expired(now))
            log.tell_in_sync("lacks no record of the log")

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)
        return task

    async def stop(self) -> None:
        """Tell the mirrors the last confirmed offset and goodbye."""
        if self._port is not None:
            self._port.close()
        for link in list(self.links):
            link.pump(announce=True)
            link.endpoint.send([frame(FrameType.GOODBYE)])
            link.endpoint.close()
        for link in list(self.members):
            link.endpoint.close()
        for task in self._tasks:
            task.cancel()

    def _announce(self) -> None:
        due, self._announce_due = self._announce_due, {}
        newest = time.monotonic() - ANNOUNCE_S
        for log in due:
            for link in list(log.links):
                if link.connection is not None and link.connection.write_half.last_write > newest:
                    self.gained(log, frozenset())  # a steady stream tells by itself, and only its end is news
                else:
                    link.pump(announce=True)
