"""The native door: one ClientSession per connection, frames to publishes, fetches and requests."""

from __future__ import annotations

import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.log.host import Host
from mirrorlog.broker.log.unpacking import PublishLine, Unpacking, batch_of
from mirrorlog.broker.membership.exposure import Exposure
from mirrorlog.broker.ports import Receiver
from mirrorlog.broker.resources.memory_watch import close_heaviest
from mirrorlog.broker.resources.user_quotas import ProducerBounds, UserMeter, UserQuotas
from mirrorlog.broker.session.authorization import FAILURES_MAX, Gate
from mirrorlog.broker.session.group_requests import GroupRequests
from mirrorlog.broker.session.hold_requests import HoldRequests
from mirrorlog.broker.session.logins import Gatekeeper
from mirrorlog.broker.session.queue_requests import Requests
from mirrorlog.broker.session.refused_access import CONNECTIONS
from mirrorlog.broker.session.transactions import Transactions
from mirrorlog.cluster.decisions import asked_by
from mirrorlog.commitlog.format.header import is_packed, queue_of, read_header
from mirrorlog.errors import LoginFailed, MirrorlogError, NotCurrent, Overloaded, ProtocolError, StalledFrame
from mirrorlog.wire.endpoint import REST_MS, Endpoint
from mirrorlog.wire.fairness.lines import LoopLines
from mirrorlog.wire.fairness.places import PortPlaces
from mirrorlog.wire.fairness.quotas import CONNECTIONS as USER_CONNECTIONS
from mirrorlog.wire.frames import (
    FRAME_HEADER_SIZE,
    PRODUCE,
    SETTLE,
    SETTLE_RANGE,
    Credit,
    Frame,
    FrameType,
    credit_frame,
    frame,
    read_fetch,
)
from mirrorlog.wire.listening import Port, PortPlace, listen
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import decode, encode, error_frame
from mirrorlog.wire.messages.handshake import Hello, Welcome, check_hello
from mirrorlog.wire.messages.queues import DeclareQueue, Done
from mirrorlog.wire.messages.topology import Login

logger = logging.getLogger(__name__)

_PRODUCE: Final = int(FrameType.PRODUCE)
_PUBLISHES: Final = frozenset({_PRODUCE, int(FrameType.TRANSACT)})
_NO_GREETING: Final = Hello(version_min=0, version_max=0, role="")


class NativeDoor:
    """Accepts clients, doors and tools on the client port."""

    def __init__(
        self, *, welcome: Callable[[int], Welcome], host: Host, logs: HostedLogs, requests: Requests, lines: LoopLines
    ) -> None:
        """`welcome`: what is said to whoever connects, by the version that both speak; `lines`: see `listen`."""
        settings, view = host.settings, host.view
        self.settings = settings
        self.welcome = welcome
        self.requests = requests
        requests.handlers |= HoldRequests(requests, view).handlers
        self.groups = GroupRequests(requests, view, host.subscriptions)
        self.transactions = Transactions(logs, host.subscriptions, settings.limits, view.cluster_version)
        self.unpacking = Unpacking(host.helpers.unpack, settings.limits)
        self.push = host.ha.accept.push
        """The publishes of one reception are appended: the mirrors get them now, and not when the loop turns."""
        self._host = host
        self._lines = lines
        self.sessions: set[ClientSession] = set()
        self.accepted = 0
        """Connections since this process began."""
        self.refused: Counter[str] = Counter()
        """Publishes of which nothing was stored, by the error's code."""
        self.log_of = logs.of_queue
        self.log_to_read = logs.to_read
        self._logs = logs
        self.places: PortPlaces[PortPlace] = PortPlaces(
            strangers_max=settings.limits.max_strangers,
            per_address_max=settings.limits.max_strangers_per_address,
            let_in_max=settings.limits.max_connections,
        )
        self._port: Port | None = None
        self.gatekeeper = Gatekeeper(
            view.users,
            self._key_of,
            host.helpers.login,
            view.has_heard,
            tier_locations=settings.log.tier_locations,
            node=settings.node.id,
            renew=view.renew_password,
            cluster_version=view.cluster_version,
        )
        self.quotas = UserQuotas(self.gatekeeper.refused.held)
        self.exposure = Exposure.of(settings)
        self._users = view.users()
        # A node that is cut off is replaced after the whole of it: nobody else has confirmed more before.
        self._alone_s = settings.cluster.node_timeout_ms / 2000
        self.reads_until = time.monotonic() + self._alone_s
        """From then on what is confirmed here may be less than what is confirmed, unless a majority is heard again."""

    async def start(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        """Raises PortTaken."""
        limits = self.settings.limits
        self._port = await listen(address, lambda place: Endpoint(
            ClientSession(self, place),
            frame_bytes_max=FRAME_HEADER_SIZE + max(
                PRODUCE.size + limits.max_batch_bytes, SETTLE.size + SETTLE_RANGE.size * limits.max_ranges_per_settle
            ),
            outgoing_bytes_max=limits.outgoing_bytes_max,
            lines=self._lines,
        ), self.places, tls, lines=self._lines)  # fmt: skip

    def _key_of(self, queue_id: int) -> str:
        return self.log_of(queue_id).replica.queues.name_of(queue_id)

    def forget(self, session: ClientSession) -> None:
        """Its connection is gone."""
        if session in self.sessions:
            self.sessions.remove(session)
            self.groups.forget(session)
            if self.requests.exclusives.forget(session):
                self.requests.lifetimes.look_soon()
            for log in self._logs:
                log.fetcher.forget(session.endpoint)
                log.publisher.forget(session)
                if log.deliverer is not None:
                    log.deliverer.forget(session)

    def look_at_rights(self) -> None:
        """Users may have changed: subscriptions and waits of those who may not read any more end."""
        users = self.gatekeeper.users()
        if users is self._users:
            return
        if users and not self._users:
            self.requests.lifetimes.all_come_back()
        self._users = users
        self.quotas.follow(users)
        by_endpoint = {session.endpoint: session for session in self.sessions}

        def refused(endpoint: Endpoint, queue_id: int) -> MirrorlogError | None:
            session = by_endpoint.get(endpoint)
            return None if session is None else _read_refused(session, queue_id)

        for log in self._logs:
            log.fetcher.end_refused(refused)
            if log.deliverer is not None:
                log.deliverer.end_refused(_read_refused)
        for session in list(self.sessions):
            session.look_at_trust()

    def tick(self, now: float) -> None:
        self.look_at_rights()
        self.reads_until = self._host.view.contact_at(now) + self._alone_s
        for session in list(self.sessions):
            session.tick(now)
        endpoints = [session.endpoint for session in self.sessions]
        close_heaviest(self._host.outgoing, endpoints, self.settings.limits.incoming_bytes_total, now)
        self.quotas.tick(time.monotonic())
        for event in self.gatekeeper.refused.due(now):
            self._host.tell(event)
        for log in self._logs:
            log.fetcher.tick(now)

    def close(self) -> None:
        """No new connections; those that are there end when they have sent what they hold."""
        if self._port is not None:
            self._port.close()
        for session in list(self.sessions):
            session.endpoint.send([frame(FrameType.GOODBYE)])
            session.endpoint.close()


def _read_refused(receiver: Receiver, queue_id: int) -> MirrorlogError | None:
    assert isinstance(receiver, ClientSession)
    if receiver.must_log_in_again():
        return None  # its client comes back, and subscribes again
    return receiver.gate.read_refused(queue_id)


class ClientSession:
    """One client's connection."""

    def __init__(self, door: NativeDoor, place: PortPlace) -> None:
        self._door = door
        self._place = place
        self._endpoint: Endpoint | None = None
        self.greeted = False
        self._asked = False
        self._gate: Gate | None = None
        self.hello = _NO_GREETING
        self.since_us = now_us()
        self._logins = 0
        self._last_read = 0.0
        self._meter_of_user: UserMeter | None = None
        self._bounds = ProducerBounds(door.settings.limits)
        self._line = PublishLine(door.unpacking, door.push)
        self.handled = door.push

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None
        return self._endpoint

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._last_read = time.monotonic()
        self._door.accepted += 1
        self._door.sessions.add(self)

    def frame(self, frame_: Frame) -> None:
        self._last_read = time.monotonic()
        if not self.greeted:
            self._greet(frame_)
            return
        if not self._asked and frame_.type != FrameType.PING:
            self._asked = True
            self._meter()
        assert self._gate is not None
        if self._gate.unproven and frame_.type != FrameType.PING and self.must_log_in_again():
            return
        try:
            self._dispatch(frame_)
        except ProtocolError:
            raise
        except MirrorlogError as error:
            if frame_.type in _PUBLISHES:
                self._refuse_publish(frame_.correlation_id, error)
            else:
                self.refuse(error, frame_.correlation_id)

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None:
        self._door.groups.writable(self)

    def disconnected(self, error: MirrorlogError | None) -> None:
        self._line.close()
        self._door.forget(self)
        if self._meter_of_user is not None:
            self._meter_of_user.forget(self.endpoint)
        if self._gate is not None:
            self._gate.leave()

    # --- Reply ---

    def answer(self, frame_: bytes) -> None:
        assert self._endpoint is not None
        self._endpoint.send((frame_,))

    def refuse(self, error: MirrorlogError, correlation_id: int) -> None:
        self.endpoint.send((error_frame(error, correlation_id),))

    def credited(self, credit: Credit) -> None:
        if self.hello.credit:
            granted = min(credit.granted, self._bounds.bytes_max)
            self.endpoint.send((credit_frame(credit._replace(granted=granted)),))

    # --- queue_lifetimes.Session ---

    @property
    def owner(self) -> Hashable:
        return self.hello.client_id or self

    @property
    def is_open(self) -> bool:
        return self in self._door.sessions

    @property
    def peer(self) -> str:
        return self.endpoint.peer

    def silent_ms(self, now: float) -> int:
        """For how long nothing has come."""
        return max(0, int((now - self._last_read) * 1000))

    # --- inside ---

    @property
    def gate(self) -> Gate:
        """Who it is, after the greeting."""
        assert self._gate is not None
        return self._gate

    def must_log_in_again(self) -> bool:
        """What logged in before there were users is closed, to come back and do so again."""
        if not self.gate.must_log_in:
            return False
        self.endpoint.close(LoginFailed("this cluster has users now; log in again"))
        return True

    def look_at_trust(self) -> None:
        """The last user may have gone."""
        if self.greeted:
            try:
                self._trust()
                self._hold_to_limits()
            except Overloaded as error:
                self.endpoint.close(error)

    def tick(self, now: float) -> None:
        """Close a connection that does not greet, leaves a frame unfinished or has fallen silent."""
        limits = self._door.settings.limits
        if self.endpoint.stalled(now, limits.frame_timeout_ms):
            return
        if self.endpoint.held:
            self._last_read = now
        silent_ms = self.silent_ms(now)
        if silent_ms >= REST_MS:
            self.endpoint.rest()
        if not self.greeted and silent_ms >= limits.hello_timeout_ms:
            self.endpoint.close(ProtocolError(f"no greeting within {limits.hello_timeout_ms} ms"))
        elif self.greeted and self.gate.shut_s(now) * 1000 > limits.hello_timeout_ms:
            self.endpoint.close(LoginFailed("this connection has no user of this cluster; log in"))
        elif silent_ms >= limits.idle_timeout_ms:
            self.endpoint.close(StalledFrame(f"nothing was sent for {limits.idle_timeout_ms} ms, not even PING"))

    def _greet(self, frame_: Frame) -> None:
        hello = decode(frame_.payload) if frame_.type == FrameType.HELLO else None
        if not isinstance(hello, Hello):
            raise ProtocolError("a connection begins with HELLO; is this another protocol's client?")
        welcome = self._door.welcome(check_hello(hello, cluster_id=str(self._door.settings.cluster.cluster_id)))
        if hello.role == "mirror":
            raise ProtocolError("a mirror on the client port; it belongs on the replication port")
        self.greeted = True
        self.hello = hello
        local, served = self._door.exposure.seen(here=self.endpoint.is_local, role=hello.role)
        self._gate = Gate(
            self._door.gatekeeper,
            private=self.endpoint.is_private,
            peer=self.endpoint.peer.rpartition(":")[0],
            local=local,
            welcome=served,
        )
        self._place.went_on()
        self._trust()
        self.answer(frame(FrameType.WELCOME, encode(welcome), frame_.correlation_id))

    def _dispatch(self, frame_: Frame) -> None:
        if frame_.type == _PRODUCE:
            queue_id = queue_of(payload := frame_.payload, PRODUCE.size)
            self.gate.check_publish(queue_id)
            if self._line.waiting or is_packed(payload[PRODUCE.size :]):
                publish = partial(self._produce_opened, queue_id, frame_.correlation_id)
                refuse = partial(self._refuse_publish, frame_.correlation_id)
                self._line.take(payload, batch_of, publish, refuse)
            else:
                self._produce(queue_id, frame_.correlation_id, payload)
        elif frame_.type == FrameType.FETCH:
            if self._last_read >= self._door.reads_until and not self.hello.stale_reads:
                raise NotCurrent(
                    "this node is not in touch with a majority of its cluster, so more may be confirmed than it "
                    "knows; ask again, or read what it has with allow_stale_reads"
                )
            fetch = read_fetch(frame_.payload)
            self.gate.check_fetch(fetch.queue_id)
            if self._meter_of_user is not None:
                fetch = self._meter_of_user.clipped(fetch)
            log = self._door.log_to_read(fetch.queue_id, fetch.queue_offset)
            self._door.requests.lifetimes.read(log, fetch.queue_id, self)
            log.fetcher.fetch(fetch, self.endpoint, frame_.correlation_id)
        elif frame_.type == FrameType.REQUEST:
            self._request(frame_)
        elif frame_.type == FrameType.SETTLE:
            self._door.groups.settle(frame_, self)
        elif frame_.type == FrameType.TRANSACT:
            transactions = self._door.transactions
            batches_of = partial(transactions.batches, connection=self)
            commit = partial(transactions.commit, connection=self, correlation_id=frame_.correlation_id)
            self._line.take(frame_.payload, batches_of, commit, partial(self._refuse_publish, frame_.correlation_id))
        elif frame_.type == FrameType.PING:
            self.answer(frame(FrameType.PONG, b"", frame_.correlation_id))
        else:
            raise ProtocolError(f"frame type {frame_.type} from a client")

    def _produce_opened(self, queue_id: int, correlation_id: int, payload: memoryview) -> None:
        self.gate.check_publish(queue_id)  # again: it may have waited
        self._produce(queue_id, correlation_id, payload)

    def _produce(self, queue_id: int, correlation_id: int, payload: memoryview) -> None:
        self._door.log_of(queue_id).publisher.publish(payload, self, correlation_id)
        if self._meter_of_user is not None:
            for credit in self._bounds.published(read_header(payload[PRODUCE.size :]).producer_id, queue_id):
                self.credited(credit)

    def _hold_to_limits(self, *, is_new: bool = False) -> None:
        """To what its user may take of this node. Raises Overloaded for a connection too many."""
        gate = self.gate
        meter = self._door.quotas.meter(self.endpoint, gate.user, gate.limits, is_new=is_new)
        if self._meter_of_user is not None and meter is not self._meter_of_user:
            self._meter_of_user.forget(self.endpoint)
        self._meter_of_user = self.endpoint.meter = meter
        for credit in self._bounds.hold_to(meter):
            self.credited(credit)

    def _refuse_publish(self, correlation_id: int, error: MirrorlogError) -> None:
        if isinstance(error, ProtocolError):
            self.endpoint.close(error)
            return
        self._door.refused[error.code] += 1
        self.refuse(error, correlation_id)

    async def _login(self, message: Login, respond: Callable[[Message | MirrorlogError], None]) -> None:
        self._logins += 1
        if self._logins <= FAILURES_MAX:  # who asks on and on would drive out all others of his address
            self._place.went_on()
        try:
            await self.gate.login(message)
        except LoginFailed as error:
            respond(error)
            if self.gate.failures >= FAILURES_MAX:
                self.endpoint.close(error)
            return
        try:
            self._trust()
            self._hold_to_limits(is_new=True)
        except Overloaded as error:
            if error.details.get("limit") == USER_CONNECTIONS:
                self._door.gatekeeper.login_failed(CONNECTIONS, self.gate.user, self.endpoint.peer.rpartition(":")[0])
            respond(error)
            self.endpoint.close(error)
            return
        respond(Done())

    def _trust(self) -> None:
        """Who may be here has a place among those that are let in. Frames up to the full limit are taken from him:
        others would fill the node's memory with them. Raises Overloaded."""
        if not self.gate.is_stranger:
            self._place.let_in()
        if self.gate.trusted:
            self.endpoint.trust()
        self._meter()

    def _meter(self) -> None:
        """Strangers have next to no claim on the node's time; nor has who has only ever said that he is there."""
        self.endpoint.known(self._asked and not self.gate.is_stranger)

    def _request(self, frame_: Frame) -> None:
        correlation_id = frame_.correlation_id

        def respond(answer: Message | MirrorlogError) -> None:
            if isinstance(answer, MirrorlogError):
                self.refuse(self.gate.noted(answer), correlation_id)
            else:
                self.answer(frame(FrameType.RESPONSE, encode(answer), correlation_id))

        message = decode(frame_.payload)
        if isinstance(message, Login):
            self._door.requests.later(self._login(message, respond), respond)
        elif isinstance(message, DeclareQueue):
            may, go_on = partial(self._may, respond=respond), partial(self._asked_for, respond=respond)
            self._door.requests.given.named(message, respond, may=may, go_on=go_on)
        else:
            self._asked_for(message, respond)

    def _may(self, message: Message, respond: Callable[[Message | MirrorlogError], None]) -> bool:
        try:
            self.gate.check(message)
        except LoginFailed as error:
            respond(error)  # the connection is sound, and may log in yet
            return False
        return True

    def _asked_for(self, message: Message, respond: Callable[[Message | MirrorlogError], None]) -> None:
        if self._may(message, respond):
            with asked_by(self.gate.user):
                self._handle(message, respond)

    def _handle(self, message: Message, respond: Callable[[Message | MirrorlogError], None]) -> None:
        requests = self._door.requests
        requests.exclusives.check(message, self)
        if isinstance(message, DeclareQueue):
            requests.answer(message, requests.exclusives.declaring(message, self, respond))
            return
        self._door.groups.note(message, self)
        if self._door.groups.handles(message):
            try:
                self._door.groups.handle(message, self, respond)
            finally:
                self._door.requests.lifetimes.asked(message)
        else:
            self._door.requests.handle(message, respond)
