"""The status of all nodes of a cluster, asked at once, and who does not answer.

Every node speaks for its own copy. Of mirrors and lags only a log's master knows, and of queues and groups its copy is
the newest: `authority` picks it, and the furthest of the others when the master does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from mirrorlog.errors import (
    AccessRefused,
    BadInput,
    LoginFailed,
    LogUnavailable,
    MirrorlogError,
    NoSuchLog,
    NoSuchQueue,
    RequestTimeout,
)
from mirrorlog.wire.messages.queues import Metadata, NodeInfo, QueueOutage
from mirrorlog.wire.messages.status import ClusterStatus as View
from mirrorlog.wire.messages.status import LogStatus, Status
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown, split

if TYPE_CHECKING:
    from mirrorlog.client import Client

NODE_SECONDS: Final = 4.0
"""How long one node may take to answer; they are asked side by side."""
_REFUSALS: Final = (AccessRefused, LoginFailed)


class Unreachable(msgspec.Struct, frozen=True, kw_only=True):
    """A member that gave no status. `error`: the code of the error (see mirrorlog.errors)."""

    node_id: str
    client: str
    error: str
    message: str


class AllStatuses(msgspec.Struct, frozen=True, kw_only=True):
    """What `mqtool offsets --json` prints; fields may be added, none changes its meaning.

    `nodes`: each answering node's Status as in `mirrorlog.wire.messages`, in the order of the assignment; its logs hold
    `mirrors` only where its role is master. Log offsets are bytes, queue offsets records, -1 is "none yet", times are
    µs UTC, `lag_seconds` seconds. `outages`: queues all of whose nodes are down, so that no status has them.
    """

    cluster_id: str
    cluster_name: str
    nodes: list[Status]
    unreachable: list[Unreachable]
    outages: list[QueueOutage] = []


@dataclass(frozen=True, slots=True)
class Copy:
    """One log on one node."""

    node_id: str
    now_us: int
    log: LogStatus


async def gather(client: Client, metadata: Metadata | None = None) -> AllStatuses:
    """Ask every member. Raises when no server gives the metadata; AccessRefused or LoginFailed when no node tells this
    user how it is, and one of them for that reason: a node that refuses is not down."""
    metadata = metadata or await client.admin.metadata()
    answers = await asyncio.gather(*(_ask(client, node) for node in metadata.nodes))
    refused = [answer for answer in answers if isinstance(answer, _REFUSALS)]
    # One that knows the users of yesterday may refuse whom the others let in: it hides nothing of them.
    if refused and not any(isinstance(answer, Status) for answer in answers):
        raise refused[0]
    return AllStatuses(
        cluster_id=metadata.cluster_id,
        cluster_name=metadata.cluster_name,
        nodes=[answer for answer in answers if isinstance(answer, Status)],
        unreachable=[
            Unreachable(node_id=node.node_id, client=node.client, error=answer.code, message=answer.message)
            for node, answer in zip(metadata.nodes, answers, strict=True)
            if isinstance(answer, MirrorlogError)
        ],
        outages=metadata.outages,
    )


async def _ask(client: Client, node: NodeInfo) -> Status | MirrorlogError:
    try:
        async with asyncio.timeout(NODE_SECONDS):
            return await client.admin.status(node.node_id)
    except TimeoutError:
        return RequestTimeout(f"no answer within {NODE_SECONDS:g} s")
    except MirrorlogError as error:
        return error


# --- Views ----------------------------------------------------------------------------------------------------------


def copies(status: AllStatuses) -> Iterator[Copy]:
    """Every log on every answering node."""
    for node in status.nodes:
        for log in node.logs:
            yield Copy(node.node_id, node.now_us, log)


def authorities(status: AllStatuses) -> list[Copy]:
    """Per log the copy that knows most, in the order in which the logs appear."""
    best: dict[str, Copy] = {}
    for copy in copies(status):
        there = best.get(copy.log.log_id)
        if there is None or _rank(copy.log) > _rank(there.log):
            best[copy.log.log_id] = copy
    return list(best.values())


def _rank(log: LogStatus) -> tuple[bool, bool, int, int]:
    return log.state != "corrupt", log.role == "master", log.epoch, log.confirmed


def key_of(vhost: str | None, queue: str | None) -> str | None:
    """A queue that was named, or None: of the default virtual host unless another one was."""
    return None if queue is None else qualified(vhost or DEFAULT_VIRTUAL_HOST, queue)


def select(
    status: AllStatuses,
    *,
    node: str | None = None,
    log: str | None = None,
    queue: str | None = None,
    vhost: str | None = None,
) -> AllStatuses:
    """Only what concerns that node (as holder or as mirror), that log (name or id), that queue (its key), and queues
    of that virtual host.

    Raises NoSuchLog, NoSuchQueue or BadInput when nothing has that name on the nodes that answer, LogUnavailable when
    it is a queue all of whose nodes are down.
    """
    _refuse_unknown(status, node, log, queue)
    nodes = [msgspec.structs.replace(each, logs=_logs(each, node, log, queue)) for each in status.nodes]
    if vhost is not None:
        nodes = [msgspec.structs.replace(each, logs=[_within(one, vhost) for one in each.logs]) for each in nodes]
    if node or log or queue:
        shown = {each.log_id for one in nodes for each in one.logs}
        nodes = [msgspec.structs.replace(each, cluster=_view(each.cluster, shown)) for each in nodes]
    return msgspec.structs.replace(
        status,
        nodes=[each for each in nodes if each.logs or not (node or log or queue)],
        unreachable=[each for each in status.unreachable if node in (None, each.node_id)],
        outages=[] if log else [each for each in status.outages if _concerns(each, node, queue, vhost)],
    )


def _concerns(outage: QueueOutage, node: str | None, queue: str | None, vhost: str | None) -> bool:
    return node in (None, outage.node) and queue in (None, outage.name) and vhost in (None, split(outage.name)[0])


def _view(view: View | None, log_ids: set[str]) -> View | None:
    """What the cluster has decided of these logs."""
    if view is None:
        return None
    return msgspec.structs.replace(view, logs=[log for log in view.logs if log.log_id in log_ids])


def _logs(status: Status, node: str | None, log: str | None, queue: str | None) -> list[LogStatus]:
    found = []
    for each in status.logs:
        if log is not None and log not in (each.name, each.log_id):
            continue
        if queue is not None and queue not in {one.name for one in each.queues}:
            continue
        mirrors = [mirror for mirror in each.mirrors if node in (None, status.node_id, mirror.node_id)]
        if node not in (None, status.node_id) and not mirrors:
            continue
        queues = [one for one in each.queues if queue in (None, one.name)]
        groups = [one for one in each.groups if queue in (None, one.queue)]
        holds = [one for one in each.holds if queue in (None, one.queue)]
        producers = [one for one in each.producers if queue in (None, one.queue)]
        found.append(
            msgspec.structs.replace(
                each, mirrors=mirrors, queues=queues, groups=groups, holds=holds, producers=producers
            )
        )
    return found


def _within(log: LogStatus, vhost: str) -> LogStatus:
    return msgspec.structs.replace(
        log,
        queues=[each for each in log.queues if split(each.name)[0] == vhost],
        groups=[each for each in log.groups if split(each.queue)[0] == vhost],
        holds=[each for each in log.holds if split(each.queue)[0] == vhost],
        producers=[each for each in log.producers if split(each.queue)[0] == vhost],
    )


def _refuse_unknown(status: AllStatuses, node: str | None, log: str | None, queue: str | None) -> None:
    logs = [copy.log for copy in copies(status)]
    members = [each.node_id for each in status.nodes] + [each.node_id for each in status.unreachable]
    if node is not None and node not in members:
        raise BadInput(f"no node {node!r}; the cluster has {', '.join(members)}")
    if log is not None and not any(log in (each.name, each.log_id) for each in logs):
        raise NoSuchLog(f"no log {log!r} on the nodes that answer; they have {_names(each.name for each in logs)}")
    if queue is not None and not any(queue == one.name for each in logs for one in each.queues):
        for outage in status.outages:
            if outage.name == queue:
                raise LogUnavailable(outage.reason, node=outage.node, since=outage.since_us, queue=queue)
        raise NoSuchQueue(f"no queue {shown(queue)!r} on the nodes that answer; `mqtool queues` lists them")


def _names(names: Iterator[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"
