"""Lists of the whole cluster over HTTP, whichever node's door is asked: JSON, `{"rows": [...]}`.

What cannot be reached is a row with its `reason`, never a missing row: an operator's page that is short of a log for
the moment in which its node is down would hide what it is there for. Each caller is answered by his own login. A list
costs every node a question: so many are answered at once, the others wait, and nobody longer than the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mirrorlog.client import Client
from mirrorlog.doors.common.callers import Callers
from mirrorlog.doors.http.answers import DEADLINE_MS, address_of, login_of
from mirrorlog.errors import MirrorlogError, RequestTimeout
from mirrorlog.wire.messages.queues import Metadata, NodeInfo
from mirrorlog.wire.messages.status import LogStatus, PlacedLog, Status

AT_ONCE_MAX: Final = 4
"""Lists that are made at the same time."""
LIST_S: Final = 8.0
"""How long one may take, with what it waits for its turn."""

Rows = list[dict[str, Any]]
Statuses = Mapping[str, Status | MirrorlogError]
"""By node: what it says, or why it says nothing."""


class ClusterLists:
    """`pages`: by the name of a list, what answers a request for it."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self.pages: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
            "queues": self._page(_queues),
            "offsets": self._page(_offsets),
            "groups": self._page(_groups),
            "moves": self._page(_moves),
        }

    def _page(self, rows: Callable[[Client, Request], Awaitable[Rows]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            login, address = login_of(request), address_of(request)
            try:
                async with asyncio.timeout(LIST_S), self._turns, self._callers.client(login, address) as client:
                    found = await rows(client, request)
            except TimeoutError:
                raise RequestTimeout(f"the cluster did not answer within {LIST_S:g} s") from None
            return Response(msgspec.json.encode({"rows": found}), media_type="application/json")

        return answer


async def _queues(client: Client, request: Request) -> Rows:
    return queue_rows(await client.metadata(None))


async def _moves(client: Client, request: Request) -> Rows:
    return [msgspec.to_builtins(move) for move in (await client.admin.moves()).moves]


async def _offsets(client: Client, request: Request) -> Rows:
    return offset_rows(await statuses_of(client))


async def _groups(client: Client, request: Request) -> Rows:
    """Of one queue, `?queue=NAME`, those that acknowledge too."""
    if (queue := request.query_params.get("queue")) is not None:
        return [{"queue": queue, **msgspec.to_builtins(each)} for each in (await client.admin.groups(queue)).groups]
    return group_rows(await statuses_of(client))


async def statuses_of(client: Client) -> Statuses:
    """What all nodes say. Raises why nobody answers, if it is so."""
    nodes = (await client.metadata([])).nodes
    answers = await asyncio.gather(*(_status(client, node) for node in nodes))
    failed = [answer for answer in answers if isinstance(answer, MirrorlogError)]
    if failed and len(failed) == len(answers):
        raise failed[0]
    return {node.node_id: answer for node, answer in zip(nodes, answers, strict=True)}


async def _status(client: Client, node: NodeInfo) -> Status | MirrorlogError:
    try:
        async with asyncio.timeout(DEADLINE_MS / 1000):
            return await client.admin.status(node.node_id)
    except MirrorlogError as error:
        return error
    except TimeoutError:
        return RequestTimeout(f"node {node.node_id} did not answer within {DEADLINE_MS} ms")


def queue_rows(metadata: Metadata) -> Rows:
    """By name. Pure."""
    rows = [{**msgspec.to_builtins(queue), "reason": ""} for queue in metadata.queues]
    rows += [{**msgspec.to_builtins(outage), "reason": outage.reason} for outage in metadata.outages]
    return sorted(rows, key=lambda row: str(row["name"]))


def offset_rows(statuses: Statuses) -> Rows:
    """One per copy of a log that the cluster has, or that a node tells of. Pure."""
    rows: Rows = []
    for log in placed_logs(statuses):
        for node in log.replicas:
            told = statuses.get(node)
            copy = copy_of(told, log.log_id)
            row: dict[str, Any] = {"log": log.name, "log_id": log.log_id, "node": node, "master": log.master == node}
            if copy is None:
                reason = str(told) if isinstance(told, MirrorlogError) else "the node does not tell of this copy"
                rows.append({**row, "reason": reason})
            else:
                facts = {name: getattr(copy, name) for name in ("role", "state", "epoch", "begin", "end", "confirmed")}
                rows.append({**row, **facts, "reason": copy.reason})
    return rows


def group_rows(statuses: Statuses) -> Rows:
    """What each log's master says of the groups of its queues that store positions. Pure."""
    rows: Rows = []
    for log in placed_logs(statuses):
        told = statuses.get(log.master)
        copy = copy_of(told, log.log_id)
        if copy is None or copy.role != "master":
            reason = str(told) if isinstance(told, MirrorlogError) else "nobody who answers masters the log"
            rows.append({"log": log.name, "log_id": log.log_id, "node": log.master, "reason": reason})
            continue
        for group in copy.groups:
            rows.append({"log": log.name, "log_id": log.log_id, "node": log.master, "reason": ""})
            rows[-1] |= msgspec.to_builtins(group)
    return rows


def placed_logs(statuses: Statuses) -> Iterator[PlacedLog]:
    """The logs, as the node with the newest view of the cluster knows them."""
    views = [told.cluster for told in statuses.values() if isinstance(told, Status) and told.cluster is not None]
    newest = max(views, key=lambda view: view.version, default=None)
    if newest is not None:
        yield from newest.logs


def copy_of(told: Status | MirrorlogError | None, log_id: str) -> LogStatus | None:
    """What a node says of its copy of a log. Pure."""
    logs = told.logs if isinstance(told, Status) else []
    return next((log for log in logs if log.log_id == log_id), None)
