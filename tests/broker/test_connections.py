"""The list of a node's connections: who is told of whose, in which order and how many; and what closing one leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from mirrorlog.broker.connections import Connections, OpenConnection
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.cluster.decisions import asked_by
from mirrorlog.cluster.state.events import OF_USERS, Event
from mirrorlog.cluster.state.topology import User
from mirrorlog.errors import BadRequest, MirrorlogError
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.connections import (
    CloseConnection,
    ConnectionInfo,
    ConnectionsFound,
    ListConnections,
    NoSuchConnection,
)
from mirrorlog.wire.messages.queues import Done

USERS = {
    "admin": User("hash", ("administrator",), {}),
    "looker": User("hash", ("monitoring",), {}),
    "manager": User("hash", ("management",), {}),
    "ann": User("hash", (), {}),
}


class Node:
    """With connections by any door. `closed`: which were, with what they were told; `told`: events."""

    def __init__(self, there: Mapping[str, str], users: Mapping[str, User] | None = None) -> None:
        """`there`: users by the names of their connections."""
        self.there = {name: self._connection(name, user) for name, user in there.items()}
        self.closed: list[tuple[str, MirrorlogError]] = []
        self.told: list[Event] = []
        self.connections = Connections(
            "n1",
            self.there.values,
            users=lambda: users or {},
            logs=HostedLogs(),
            tell=self.told.append,
        )

    def ask(self, message: Message, user: str = "") -> Message:
        with asked_by(user):
            answer = self.connections.handlers[type(message)](message, lambda later: None)
        assert answer is not None
        return answer

    def names(self, user: str = "", **asked: object) -> list[str]:
        found = self.ask(ListConnections(**asked), user)  # type: ignore[arg-type]
        assert isinstance(found, ConnectionsFound)
        return [each.name for each in found.connections]

    def _connection(self, name: str, user: str) -> OpenConnection:
        def facts(producers: int) -> ConnectionInfo:
            return ConnectionInfo(
                name=name, node="n1", door="amqp", protocol="AMQP 0-9-1", peer_host="h", peer_port=1, host="n",
                port=2, since_us=7, user=user, producers=producers,
            )  # fmt: skip

        return OpenConnection(name, user, 7, name, facts, lambda error: self.closed.append((name, error)))


THERE = {"c": "ann", "a": "bob", "d": "ann", "b": ""}


def test_a_list_is_by_name_and_comes_in_parts() -> None:
    """Goal: whoever asks for the next part misses none and gets none twice. Method: four connections, two at a time."""
    node = Node(THERE)
    assert node.names() == ["a", "b", "c", "d"]
    first = node.ask(ListConnections(limit=2))
    assert isinstance(first, ConnectionsFound)
    assert ([each.name for each in first.connections], first.more, first.node_id) == (["a", "b"], True, "n1")
    assert node.names(limit=2, after="b") == ["c", "d"]
    last = node.ask(ListConnections(limit=2, after="b"))
    assert isinstance(last, ConnectionsFound)
    assert not last.more
    assert node.names(user="", name="c") == ["c"]
    for limit in (0, 1_001):
        with pytest.raises(BadRequest, match="limit"):
            node.ask(ListConnections(limit=limit))


def test_who_may_look_is_told_of_all_and_everybody_else_of_his_own() -> None:
    """Goal: nobody learns by the list who else is there. Method: users of each tag, and a cluster without users."""
    node = Node(THERE, USERS)
    for user in ("admin", "looker"):
        assert node.names(user) == ["a", "b", "c", "d"]
        assert node.ask(ListConnections(user="bob"), user) == node.ask(ListConnections(name="a"), user)
    assert node.names("ann") == ["c", "d"]
    for user in ("manager", "nobody", ""):
        assert not {"a", "c", "d"}.intersection(node.names(user))
    asked = node.ask(ListConnections(user="bob"), "ann")
    assert isinstance(asked, ConnectionsFound)
    assert asked.connections == []
    assert len(Node(THERE).names()) == 4


async def test_a_closed_one_is_told_why_and_an_event_says_who_did_it() -> None:
    """Goal: what an administrator did can be looked up, and the client knows that it was no accident. Method: close one
    of them with a reason, and then others that are not there, or not any more the one that was meant."""
    node = Node(THERE, USERS)
    assert node.ask(CloseConnection(name="c", reason="too loud", since_us=7), "admin") == Done()
    assert node.closed == []  # it may be the one that asks: its answer goes first
    await asyncio.sleep(0)
    [(name, error)] = node.closed
    assert (name, error.code, error.retriable) == ("c", "CONNECTION_CLOSED", True)
    assert "an administrator has closed this connection: too loud" in str(error)
    [event] = node.told
    assert event.kind == "connection_closed"
    assert event.kind in OF_USERS
    assert event.details == {"connection": "c", "user": "ann", "by": "admin", "reason": "too loud"}
    assert "c of ann was closed by admin" in event.text
    for missing in (CloseConnection(name="x"), CloseConnection(name="c", since_us=8)):
        with pytest.raises(NoSuchConnection, match="node n1 has no connection"):
            node.ask(missing, "admin")
    for wrong in ("x" * 256, "a\nnode_down", "\x1b[2J"):
        with pytest.raises(BadRequest, match="reason"):
            node.ask(CloseConnection(name="c", reason=wrong), "admin")
    await asyncio.sleep(0)
    assert len(node.closed) == len(node.told) == 1
