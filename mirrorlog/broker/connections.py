"""The connections of a node's clients, one by one: listed for whoever may know of them, and closed by administrators.

Whatever door they came by is one list: a door gives an `OpenConnection` for each of those that it has. Nothing is
counted for it: what a row says is looked up when somebody asks, of so many at once that the loop is not held up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from heapq import nsmallest
from operator import attrgetter
from typing import Final, NamedTuple

from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.membership.exposure import DOOR
from mirrorlog.broker.session.client_session import ClientSession
from mirrorlog.broker.session.queue_requests import Handler, Respond
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.cluster.decisions import asker
from mirrorlog.cluster.state.events import Event, line_of
from mirrorlog.cluster.state.topology import User
from mirrorlog.errors import BadRequest, MirrorlogError
from mirrorlog.queues.access import WATCHERS, has_tag
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.connections import (
    TEXT_CHARS_MAX,
    TOLD_MAX,
    CloseConnection,
    ConnectionClosed,
    ConnectionInfo,
    ConnectionsFound,
    ListConnections,
    NoSuchConnection,
)
from mirrorlog.wire.messages.queues import Done

logger = logging.getLogger(__name__)

NATIVE: Final = "native"
"""The client port itself."""


class OpenConnection(NamedTuple):
    """`owner`: whose its producers are, as `Credits` has it; `facts`: all that is known of it, given how many these
    are; `close`: end it and say why."""

    name: str
    user: str
    since_us: int
    owner: object
    facts: Callable[[int], ConnectionInfo]
    close: Callable[[MirrorlogError], None]


class Connections:
    """Of one node. `there`: those of all its doors; `users`: of the cluster; `tell`: is told what was closed."""

    def __init__(
        self,
        node: str,
        there: Callable[[], Iterable[OpenConnection]],
        *,
        users: Callable[[], Mapping[str, User]],
        logs: HostedLogs,
        tell: Callable[[Event], None],
    ) -> None:
        self._node = node
        self._there = there
        self._users = users
        self._logs = logs
        self._tell = tell
        self.handlers: dict[type[Message], Handler] = {ListConnections: self._list, CloseConnection: self._close}

    def _list(self, message: ListConnections, respond: Respond) -> Message:
        if not 1 <= message.limit <= TOLD_MAX:
            raise BadRequest(f"limit {message.limit} is not within 1 and {TOLD_MAX}")
        own = self._own_alone()
        wanted = [
            each
            for each in self._there()
            if each.name > message.after
            and message.name in ("", each.name)
            and message.user in (None, each.user)
            and own in (None, each.user)
        ]
        producers = self._producers()
        return ConnectionsFound(
            node_id=self._node,
            connections=[
                each.facts(producers[each.owner]) for each in nsmallest(message.limit, wanted, key=attrgetter("name"))
            ],
            more=len(wanted) > message.limit,
        )

    def _own_alone(self) -> str | None:
        """Whose connections alone are told to who asks; None: everybody's."""
        users, name = self._users(), asker()
        user = users.get(name)
        return None if not users or (user is not None and has_tag(user, WATCHERS)) else name

    def _producers(self) -> Counter[object]:
        """By whom they belong to, those with something that is not confirmed, or that are held."""
        publishers = (log.publisher for log in self._logs)
        masters = (each for each in publishers if isinstance(each, LogPublisher))
        return Counter(account.key.owner for each in masters for account in each.credits.told())

    def _close(self, message: CloseConnection, respond: Respond) -> Message:
        if len(message.reason) > TEXT_CHARS_MAX or not message.reason.isprintable():
            raise BadRequest(f"a reason is a line of at most {TEXT_CHARS_MAX} characters")
        for each in self._there():
            if each.name == message.name and message.since_us in (0, each.since_us):
                break
        else:
            raise NoSuchConnection(f"node {self._node} has no connection {message.name[:TEXT_CHARS_MAX]!r} (any more)")
        why = f": {message.reason}" if message.reason else ""
        by = asker()
        event = Event(
            kind="connection_closed",
            text=f"connection {each.name} of {each.user or 'nobody'} was closed by {by or 'an administrator'}{why}",
            node=self._node,
            details={"connection": each.name, "user": each.user, "by": by, "reason": message.reason},
        )
        logger.info("%s", line_of(event))
        self._tell(event)
        # It may be the one over which this was asked: the answer goes first.
        told = ConnectionClosed(f"an administrator has closed this connection{why}")
        asyncio.get_running_loop().call_soon(each.close, told)
        return Done()


# --- The native door --------------------------------------------------------------------------------------------------


def native_connections(
    node: str, sessions: Iterable[ClientSession], book: SubscriptionBook
) -> Iterator[OpenConnection]:
    """Those that have greeted. What came by another door of the node is its connection to the native one."""
    for each in sessions:
        if each.greeted:
            facts = partial(_native_facts, node, each, book)
            yield OpenConnection(each.endpoint.name, each.gate.user, each.since_us, each, facts, each.endpoint.close)


def _native_facts(node: str, session: ClientSession, book: SubscriptionBook, producers: int) -> ConnectionInfo:
    endpoint, hello = session.endpoint, session.hello
    (peer_host, peer_port), (host, port) = (_parts(each) for each in (endpoint.peer, endpoint.own))
    door = (hello.door or hello.role)[:TEXT_CHARS_MAX] if hello.role == DOOR else NATIVE
    return ConnectionInfo(
        name=endpoint.name,
        node=node,
        door=door,
        protocol=door,
        peer_host=peer_host,
        peer_port=peer_port,
        host=host,
        port=port,
        since_us=session.since_us,
        user=session.gate.user,
        role=hello.role,
        client=hello.software[:TEXT_CHARS_MAX],
        tls=endpoint.tls_version,
        state=_state(session),
        subscriptions=book.count(session),
        producers=producers,
        unsent_bytes=endpoint.unsent_bytes,
        silent_ms=session.silent_ms(time.monotonic()),
    )


def _state(session: ClientSession) -> str:
    if session.gate.is_stranger:
        return "starting"
    if session.endpoint.held:
        return "blocked"
    return "flow" if session.endpoint.paused else "running"


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port) if port.isdigit() else 0
