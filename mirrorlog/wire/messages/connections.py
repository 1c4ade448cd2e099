"""Connections of clients, one by one: what a node tells of those that it has, and closing one.

A row says by which door its connection came, and what is spoken on it, so that those of every door fit one list.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from mirrorlog.errors import ConnectionLost, PreconditionFailed
from mirrorlog.wire.messages.base import Message

TOLD_MAX: Final = 1_000
"""Connections in one answer: those of 4,096 cost the node's loop some 20 ms."""
TEXT_CHARS_MAX: Final = 255
"""Of a reason, and of what a client says of itself."""


class NoSuchConnection(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """No node that was asked has a connection of that name, or not the one that was meant."""

    code: ClassVar[str] = "NO_SUCH_CONNECTION"


class ConnectionClosed(ConnectionLost):
    """An administrator has closed the connection. Handled as one that broke: the client may connect again."""

    code: ClassVar[str] = "CONNECTION_CLOSED"


class ListConnections(Message, frozen=True):
    """The connections of clients that the node has which is asked. Answered with ConnectionsFound: all for the tags
    `administrator` and `monitoring`, his own for everybody else.

    `user`: only his; `name`: only the one of that name; `after`: only those whose names come behind it; `limit`: so
    many, and no more than 1,000. Since `versions.CONNECTIONS`: software before ends the connection of who asks.
    """

    user: str | None = None
    name: str = ""
    after: str = ""
    limit: int = TOLD_MAX


class ConnectionInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """`name`: as RabbitMQ has it, `host:port -> host:port`, its client's end first; of several nodes with a connection
    within their machine two may have the same. `door`: by which it came, native, or the name that a door has given in
    its greeting, grpc or http; `protocol`: what is spoken behind it. `since_us`: µs UTC, by the node's clock. `role`,
    `client`: as its greeting says, the latter a name and a version; `tls`: its version, empty without. `state`:
    running, starting (it has not logged in), flow (it takes no answers) or blocked (its user is above his limits).

    `subscriptions`: that it has; `producers`: on it with something that is not confirmed; `unsent_bytes`: answers that
    it has not taken; `silent_ms`: for how long nothing has come from it."""

    name: str
    node: str
    door: str
    protocol: str
    peer_host: str
    peer_port: int
    host: str
    port: int
    since_us: int
    user: str = ""
    role: str = "client"
    client: str = ""
    tls: str = ""
    state: str = "running"
    subscriptions: int = 0
    producers: int = 0
    unsent_bytes: int = 0
    silent_ms: int = 0


class ConnectionsFound(Message, frozen=True):
    """By name. `more`: there are others behind the last one."""

    node_id: str
    connections: list[ConnectionInfo]
    more: bool = False


class CloseConnection(Message, frozen=True):
    """Close a connection of the node that is asked. Its client is told CONNECTION_CLOSED with the `reason`. Answered
    with Done, or NoSuchConnection. `since_us`: only the one that has been there since then; 0: whichever it is."""

    name: str
    reason: str = ""
    since_us: int = 0
