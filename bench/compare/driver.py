"""What a scenario needs of a system: its management API, its nodes, somebody who publishes and somebody who reads.

Both serve RabbitMQ's management API, so policies, queues and definitions are asked for in the same words; what differs
is here.
"""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from bench.peers.peer import PeerFailed
from bench.peers.servers import HOST

LOGIN: Final = "guest"
_TIMEOUT_S: Final = 60.0


class Told(NamedTuple):
    """`body`: of JSON, or the bytes of what is none."""

    status: int
    body: Any


class Place(NamedTuple):
    """Where a queue is, by names of nodes; `master`: empty while nobody is; `behind`: records that mirrors lack of what
    was there before they came."""

    master: str
    mirrors: tuple[str, ...]
    synced: tuple[str, ...]
    behind: int = 0

    @property
    def whole(self) -> bool:
        """Whether all copies have everything."""
        return bool(self.master) and set(self.synced) == set(self.mirrors) and not self.behind


class Sender(Protocol):
    """One connection that publishes with confirms, one message outstanding."""

    def send(self, body: bytes) -> None:
        """Returns when it is confirmed; raises anything else when it is not."""


class Driver(Protocol):
    """A running cluster. Nodes are told by their numbers, from 0 on."""

    name: str
    version: str
    nodes: tuple[str, ...]
    """As policies name them."""

    def api(self, number: int) -> str:
        """The address of a node's management API."""

    def sender(self, queue: str, number: int) -> AbstractContextManager[Sender]:
        """At a node."""

    def fill(self, queue: str, bodies: Sequence[bytes], number: int) -> None:
        """All confirmed when it returns."""

    def drain(self, queue: str, number: int) -> list[bytes]:
        """All that the queue has, in its order."""

    def kill(self, number: int) -> None:
        """As a power cut would."""

    def start(self, number: int) -> None:
        """Again, on what it left; it serves when this returns."""

    def link_ports(self) -> set[int]:
        """On which nodes take what they copy from each other."""


class Api:
    """The management API of a cluster, asked at a node that runs."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.down: set[int] = set()
        """Numbers of nodes that are not asked."""

    def call(self, method: str, path: str, body: Any = None) -> Told:
        """`path`: behind /api/. Raises PeerFailed when no node answers."""
        problem: Exception | None = None
        for number in range(len(self._driver.nodes)):
            if number not in self.down:
                try:
                    return _asked(self._driver.api(number), method, path, body)
                except OSError as error:
                    problem = error
        raise PeerFailed(f"{self._driver.name}: {method} /api/{path}: {problem}")

    def must(self, method: str, path: str, body: Any = None) -> Any:
        """Raises PeerFailed for what is no success."""
        told = self.call(method, path, body)
        if told.status not in (200, 201, 204):
            raise PeerFailed(f"{self._driver.name}: {method} /api/{path}: {told}")
        return told.body

    def place(self, queue: str) -> Place:
        told = self.call("GET", f"queues/%2f/{queue}")
        return place_of(told.body) if told.status == 200 else Place("", (), ())


def place_of(row: dict[str, Any]) -> Place:
    """Of a queue's page. Without a state RabbitMQ has no process of it. Pure."""
    runs = row.get("state") in ("running", "syncing")
    return Place(
        str(row.get("node", "")) if runs else "",
        tuple(row.get("slave_nodes", ())),
        tuple(row.get("synchronised_slave_nodes", ())),
        # What nobody can tell of is not taken to be whole.
        int(row["mirrorlog_sync"].get("left_records", 1)) if "mirrorlog_sync" in row else 0,
    )


def _asked(address: str, method: str, path: str, body: Any) -> Told:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host or HOST, int(port), timeout=_TIMEOUT_S)
    login = b64encode(f"{LOGIN}:{LOGIN}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, f"/api/{path}", data, headers)
        answer = connection.getresponse()
        found = answer.read()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from None
    finally:
        connection.close()
    try:
        return Told(answer.status, json.loads(found) if found else None)
    except ValueError:
        return Told(answer.status, found)
