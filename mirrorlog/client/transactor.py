"""What a client keeps for its transactions: producer ids, where their queues are, and the routing of virtual hosts.

Commits have producer ids of their own, so that they mix with the client's producers in no queue's sequence. An id is in
use by one commit at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from mirrorlog.client.routes import Routes
from mirrorlog.client.sightings import Sighting

if TYPE_CHECKING:
    from mirrorlog.client.client import Client

AT_WORK_MAX: Final = 10_000
"""Of so many queues it is known that commits to them ended well."""


@dataclass(slots=True)
class Numbers:
    """Of one producer id: what comes next, by queue id: (producer epoch, sequence)."""

    producer_id: int = field(default_factory=lambda: secrets.randbits(63) or 1)
    following: dict[int, tuple[int, int]] = field(default_factory=dict)


class NumbersInUse:
    """A producer id for one commit; by `async with`."""

    def __init__(self, idle: list[Numbers]) -> None:
        self._idle = idle
        self._numbers = idle.pop() if idle else Numbers()

    async def __aenter__(self) -> Numbers:
        return self._numbers

    async def __aexit__(self, *_: object) -> None:
        self._idle.append(self._numbers)


class Transactor:
    """As many producer ids as commits were under way at once; where the queues of commits that ended well are, so that
    the next one need not ask all nodes for them; and the routing that messages to exchanges went by. An error makes it
    forget where a queue is, and not that somebody is at work with it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.found: dict[str, Sighting] = {}
        self._idle: list[Numbers] = []
        self._committed: dict[str, None] = {}
        self._routes: dict[str, Routes] = {}

    def committed(self, queues: Iterable[str]) -> None:
        """A commit to these has ended well."""
        for queue in queues:
            self._committed.pop(queue, None)
            self._committed[queue] = None
        for queue in list(islice(self._committed, max(0, len(self._committed) - AT_WORK_MAX))):
            del self._committed[queue]

    def at_work(self, queues: Iterable[str]) -> bool:
        """Whether a commit to one of these has ended well."""
        return any(queue in self._committed for queue in queues)

    def numbers(self) -> NumbersInUse:
        """A producer id for one commit; with `async with`."""
        return NumbersInUse(self._idle)

    def routes(self, virtual_host: str) -> Routes:
        """Its exchanges and bindings, as far as they are known."""
        if virtual_host not in self._routes:
            self._routes[virtual_host] = Routes(self.client, virtual_host, closed=lambda: self.client.closed)
        return self._routes[virtual_host]
