"""One call of the management API: who asks, for what, with which body; and what is known of the cluster to answer it.

What all nodes say of themselves costs each of them a question, so it is asked once a second at most for each login, and
shared by all calls of that login; RabbitMQ's own numbers are five seconds old. Whoever has changed something is told
what is so afterwards: each change forgets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorlog.client import Client
from mirrorlog.client.definitions.rows import Row
from mirrorlog.diagnosis.cluster_status import logs_in, newest_view
from mirrorlog.diagnosis.places import with_reasons
from mirrorlog.doors.http.lists import Statuses, copy_of, statuses_of
from mirrorlog.doors.management.shapes import ApiError, Query, not_found, shaped
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.messages.queues import Metadata, QueueInfo, QueueOutage
from mirrorlog.wire.messages.status import QueueStatus, Status
from mirrorlog.wire.messages.topology import Login
from mirrorlog.wire.names import qualified, split
from mirrorlog.wire.policies import PolicyRow

FRESH_S: Final = 1.0
LOGINS_MAX: Final = 64
"""Whose last answer is kept."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What is sent. `body`: None for none, else JSON. `headers`: besides."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


NO_CONTENT: Final = ApiAnswer(204)


def written(is_new: bool, ignored: Sequence[str] = ()) -> ApiAnswer:
    """The answer to a PUT. `ignored`: names of ours of what means nothing here."""
    status = 201 if is_new else 204
    return ApiAnswer(status, headers={"Warning": f'299 mirrorlog "ignored: {", ".join(ignored)}"'} if ignored else {})


class ClusterFacts:
    """What the nodes say of themselves, by the login of who asks."""

    def __init__(self) -> None:
        self._answers: dict[Login | None, tuple[float, asyncio.Task[Statuses]]] = {}

    async def statuses(self, client: Client, login: Login | None) -> Statuses:
        """Not older than a second. Raises MirrorlogError when no node tells."""
        now = asyncio.get_running_loop().time()
        known = self._answers.get(login)
        if known is None or (known[1].done() and (now - known[0] >= FRESH_S or _has_failed(known[1]))):
            while len(self._answers) >= LOGINS_MAX:
                del self._answers[next(iter(self._answers))]
            known = self._answers[login] = now, asyncio.ensure_future(statuses_of(client))
            known[1].add_done_callback(_has_failed)  # whoever waited may be gone
        return await asyncio.shield(known[1])

    def forget(self, login: Login | None) -> None:
        """It is old: this login has changed something."""
        self._answers.pop(login, None)


def _has_failed(task: asyncio.Task[Statuses]) -> bool:
    return task.cancelled() or task.exception() is not None


class ClusterStatuses:
    """What the nodes said, looked up by queue and log. Pure."""

    def __init__(self, statuses: Statuses) -> None:
        self.by_node = statuses
        self.view = newest_view([*self.told])
        self.logs = logs_in(self.view)
        self._queues: dict[str, dict[str, QueueStatus]] = {}

    @property
    def told(self) -> Iterator[Status]:
        """Of those that answered."""
        return (each for each in self.by_node.values() if isinstance(each, Status))

    def queue(self, info: QueueInfo) -> QueueStatus | None:
        """What the master of its log says of a queue; None while it says nothing."""
        if (found := self._queues.get(info.log_id)) is None:
            log = self.logs.get(info.log_id)
            copy = copy_of(self.by_node.get(log.master), info.log_id) if log is not None else None
            mastered = copy.queues if copy is not None and copy.role == "master" else []
            found = self._queues[info.log_id] = {queue.name: queue for queue in mastered}
        return found.get(info.name)


@dataclass(frozen=True, slots=True)
class Call:
    """`names`: that the path has, by what they are; `body`: of JSON, empty for none; `login`: of who asks; `node`: the
    address of the node whose door was asked; `reason`: why something is done, as the header X-Reason says."""

    client: Client
    login: Login | None
    facts: ClusterFacts
    node: str
    names: Mapping[str, str]
    query: Query
    body: Mapping[str, Any]
    reason: str = ""

    @property
    def vhost(self) -> str:
        """That the path names."""
        return self.names["vhost"]

    @property
    def queue(self) -> str:
        """The qualified name of the queue that the path names."""
        return qualified(self.vhost, self.names["queue"])

    async def node_id(self) -> str:
        """Of the node whose door was asked. Raises ConnectionLost."""
        return (await self.client.connection_to(self.node)).welcome.node_id

    async def statuses(self) -> ClusterStatuses:
        """Raises MirrorlogError when no node tells."""
        return ClusterStatuses(await self.facts.statuses(self.client, self.login))

    async def policies(self) -> list[PolicyRow]:
        """By virtual host and name, with why each cannot be met now, as far as this login may see how the cluster
        is."""
        rows = (await self.client.admin.topology.policies()).policies
        try:
            view = (await self.statuses()).view
        except MirrorlogError:
            view = None
        return sorted(with_reasons(rows, view), key=lambda row: (row.virtual_host, row.name))

    async def described(self) -> QueueInfo | QueueOutage:
        """The queue that the path names. Raises ApiError when there is none."""
        metadata = await self.client.metadata([self.queue])
        found: list[QueueInfo | QueueOutage] = [*metadata.queues, *metadata.outages]
        for each in found:
            if each.name == self.queue:
                return each
        raise not_found()

    async def queues(self) -> Metadata:
        """All, or those of the virtual host that the path names. Raises ApiError when there is none."""
        metadata = await self.client.metadata(None)
        if "vhost" not in self.names:
            return metadata
        await self.check_vhost()
        queues = [each for each in metadata.queues if split(each.name)[0] == self.vhost]
        outages = [each for each in metadata.outages if split(each.name)[0] == self.vhost]
        return Metadata(metadata.cluster_id, metadata.cluster_name, metadata.node_id, metadata.nodes, queues,
                        outages=outages)  # fmt: skip

    async def vhosts(self) -> list[str]:
        """The one that the path names, or all. Raises ApiError when there is none."""
        there = [each.name for each in await self.client.admin.topology.virtual_hosts()]
        if "vhost" not in self.names:
            return sorted(there)
        if self.vhost not in there:
            raise not_found()
        return [self.vhost]

    async def check_vhost(self) -> None:
        """Raises ApiError when there is none that the path names."""
        await self.vhosts()

    def listed(self, rows: list[Row]) -> ApiAnswer:
        """As the query wants them. Raises ApiError."""
        return ApiAnswer(body=shaped(rows, self.query))


Page = Callable[[Call], Awaitable[ApiAnswer]]
"""Raises ApiError or MirrorlogError as the answer."""

Routes = Mapping[str, Mapping[str, Page]]
"""By path, in which `:name` stands for any word, and method."""

__all__ = [
    "NO_CONTENT", "ApiAnswer", "ApiError", "Call", "ClusterFacts", "ClusterStatuses", "Page", "Routes", "written",
]  # fmt: skip
