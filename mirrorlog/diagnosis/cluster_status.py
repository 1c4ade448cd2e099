"""The status of all nodes of a cluster, asked at once; who does not answer; and what an operator should look at.

Every node speaks for its own copy. Of mirrors and lags only a log's master knows, and of queues and groups its copy is
the newest: `authorities` picks it, and the furthest of the others when the master does not answer. What the cluster has
decided is as the node with the newest view of it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

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
from mirrorlog.wire.messages.queues import FormerSpan, Metadata, NodeInfo, QueueInfo, QueueOutage, QueueSync
from mirrorlog.wire.messages.status import (
    ClusterStatus,
    LogStatus,
    LossStatus,
    NodeStatus,
    PlacedLog,
    Status,
)
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown, split

if TYPE_CHECKING:
    from mirrorlog.client import Client

_T = TypeVar("_T")

NODE_SECONDS: Final = 4.0
"""How long one node may take to answer; they are asked side by side."""
_QUEUES_AT_ONCE: Final = 64
_REFUSALS: Final = (AccessRefused, LoginFailed)


class Unreachable(msgspec.Struct, frozen=True, kw_only=True):
    """A member that gave no status. `error`: the code of the error (see mirrorlog.errors)."""

    node_id: str
    client: str
    error: str
    message: str


class UnreachedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log that the cluster has and of which no node that answers has a copy to tell of. `nodes`: those that should;
    `reason`: what each of them says, or that it says nothing."""

    log_id: str
    name: str
    nodes: list[str]
    reason: str


class AllStatuses(msgspec.Struct, frozen=True, kw_only=True):
    """What `mqtool offsets --json` prints; fields may be added, none changes its meaning.

    `nodes`: each answering node's Status as in `mirrorlog.wire.messages`, in the order of the assignment; its logs hold
    `mirrors` only where its role is master. Log offsets are bytes, queue offsets records, -1 is "none yet", times are
    µs UTC, `lag_seconds` seconds. `outages`: queues all of whose nodes are down, so that no status has them;
    `unreached`: logs that no status has.
    """

    cluster_id: str
    cluster_name: str
    nodes: list[Status]
    unreachable: list[Unreachable]
    outages: list[QueueOutage] = []
    unreached: list[UnreachedLog] = []


@dataclass(frozen=True, slots=True)
class LogCopy:
    """One log on one node."""

    node_id: str
    now_us: int
    log: LogStatus


async def gather(client: Client, metadata: Metadata | None = None) -> AllStatuses:
    """Ask every member. Raises when no server gives the metadata; AccessRefused or LoginFailed when no node tells this
    user how it is, and one of them for that reason: a node that refuses is not down."""
    metadata = metadata or await client.admin.metadata()
    answers = await asyncio.gather(*(_ask(client, node) for node in metadata.nodes))
    return put_together(metadata, {node.node_id: answer for node, answer in zip(metadata.nodes, answers, strict=True)})


def put_together(metadata: Metadata, answers: Mapping[str, Status | MirrorlogError]) -> AllStatuses:
    """`answers`: by node, of those that were asked. Raises as `gather`. Pure."""
    refused = [answer for answer in answers.values() if isinstance(answer, _REFUSALS)]
    # One that knows the users of yesterday may refuse whom the others let in: it hides nothing of them.
    if refused and not any(isinstance(answer, Status) for answer in answers.values()):
        raise refused[0]
    nodes = [answer for answer in answers.values() if isinstance(answer, Status)]
    unreachable = [
        Unreachable(node_id=node.node_id, client=node.client, error=answer.code, message=answer.message)
        for node in metadata.nodes
        if isinstance(answer := answers.get(node.node_id), MirrorlogError)
    ]
    return AllStatuses(
        cluster_id=metadata.cluster_id,
        cluster_name=metadata.cluster_name,
        nodes=nodes,
        unreachable=unreachable,
        outages=metadata.outages,
        unreached=unreached_logs(nodes, unreachable),
    )


def unreached_logs(nodes: Sequence[Status], unreachable: Sequence[Unreachable]) -> list[UnreachedLog]:
    """What the cluster has and no node that answers tells of, by the newest view; not what goes with its node's run.
    Pure."""
    view = newest_view(nodes)
    told = {log.log_id for node in nodes for log in node.logs}
    silent = {each.node_id: f"{each.node_id} does not answer ({each.message})" for each in unreachable}
    return [
        UnreachedLog(
            log_id=log.log_id,
            name=log.name,
            nodes=list(log.replicas),
            reason="; ".join(silent.get(node, f"{node} does not have it open") for node in log.replicas)
            or "no node has a copy of it any more",
        )
        for log in (view.logs if view is not None else [])
        if log.log_id not in told and not log.transient
    ]


async def _ask(client: Client, node: NodeInfo) -> Status | MirrorlogError:
    try:
        async with asyncio.timeout(NODE_SECONDS):
            return await client.admin.status(node.node_id)
    except TimeoutError:
        return RequestTimeout(f"no answer within {NODE_SECONDS:g} s")
    except MirrorlogError as error:
        return error


async def syncs_of(client: Client, queues: Iterable[QueueInfo]) -> dict[str, QueueSync]:
    """What those of these queues that have records in other logs than their own have there, by name; where its master
    does not tell, what metadata says of it (`untold`)."""
    turns, silent = asyncio.Semaphore(_QUEUES_AT_ONCE), set[str]()

    async def ask(queue: QueueInfo) -> QueueSync | str:
        async with turns:
            try:
                if queue.master in silent:
                    raise TimeoutError
                async with asyncio.timeout(NODE_SECONDS):
                    return elsewhere(queue, await client.admin.queue_sync(queue.name))
            except MirrorlogError as error:
                return queue.reason or error.message
            except TimeoutError:
                silent.add(queue.master)
                return queue.reason or f"no answer within {NODE_SECONDS:g} s"

    moved = [queue for queue in queues if any(span.log_id != queue.log_id for span in queue.spans)]
    answers = await asyncio.gather(*map(ask, moved))
    names = await _log_names(client) if any(isinstance(answer, str) for answer in answers) else {}
    return {
        queue.name: untold(queue, answer, names) if isinstance(answer, str) else answer
        for queue, answer in zip(moved, answers, strict=True)
    }


async def lefts_of(client: Client, outages: Sequence[QueueOutage]) -> dict[str, QueueSync]:
    """The same of queues that nobody can answer for, by name, from the nodes that have the former logs; without those
    that nobody tells of, or this user may not hear of."""
    try:
        status = await gather(client) if outages else None
    except MirrorlogError:
        return {}
    found = [left_behind(status, outage) for outage in outages] if status is not None else []
    return {sync.queue: sync for sync in found if sync.spans}


def left_behind(status: AllStatuses, outage: QueueOutage) -> QueueSync:
    """What former logs have of a queue, as they tell; how many records that are, its own log alone knows. Pure."""
    names = log_names(status)
    spans = [
        FormerSpan(
            log=copy.log.name,
            log_id=copy.log.log_id,
            first=left.begin,
            next=left.next,
            records=-1,
            unknown=outage.reason,
        )
        for copy in authorities(status)
        for left in copy.log.left
        if left.queue == outage.name and copy.log.log_id != outage.log_id and left.begin < left.next
    ]
    own = names.get(outage.log_id, outage.log_id)
    return QueueSync(queue=outage.name, wished=False, log=own, spans=sorted(spans, key=lambda span: span.first))


async def _log_names(client: Client) -> dict[str, str]:
    """By id, as far as this user may know."""
    try:
        async with asyncio.timeout(NODE_SECONDS):
            view = (await client.admin.status()).cluster
    except (MirrorlogError, TimeoutError):
        return {}
    return {log.log_id: log.name for log in view.logs} if view is not None else {}


def elsewhere(queue: QueueInfo, sync: QueueSync) -> QueueSync:
    """Without what the queue has left in the log that it has come back to: that is in its own log. Pure."""
    spans = [span for span in sync.spans if span.log_id != queue.log_id and span.log != sync.log]
    return msgspec.structs.replace(sync, spans=spans)


def untold(queue: QueueInfo, reason: str, names: Mapping[str, str]) -> QueueSync:
    """What metadata says of records that a queue has in former logs: where they begin and end, not how many there are.
    `names`: of logs, by id. Pure."""
    spans = [
        FormerSpan(
            log=names.get(span.log_id, span.log_id),
            log_id=span.log_id,
            first=span.first,
            next=following.first,
            records=-1,
            unknown=reason,
        )
        for span, following in pairwise(queue.spans)
        if span.log_id != queue.log_id
    ]
    return QueueSync(queue=queue.name, wished=False, log=names.get(queue.log_id, queue.log_id), spans=spans)


# --- Views ----------------------------------------------------------------------------------------------------------


def copies(status: AllStatuses) -> Iterator[LogCopy]:
    """Every log on every answering node."""
    for node in status.nodes:
        for log in node.logs:
            yield LogCopy(node.node_id, node.now_us, log)


def authorities(status: AllStatuses) -> list[LogCopy]:
    """Per log the copy that knows most, in the order in which the logs appear."""
    best: dict[str, LogCopy] = {}
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

    def wanted(name: str) -> bool:
        return queue in (None, name) and vhost in (None, split(name)[0])

    nodes = [msgspec.structs.replace(each, logs=list(_logs(each, node, log, queue, wanted))) for each in status.nodes]
    if node or log or queue:
        log_ids = {each.log_id for one in nodes for each in one.logs}
        nodes = [msgspec.structs.replace(each, cluster=_view(each.cluster, log_ids)) for each in nodes if each.logs]
    return msgspec.structs.replace(
        status,
        nodes=nodes,
        unreachable=[each for each in status.unreachable if node in (None, each.node_id)],
        outages=[] if log else [each for each in status.outages if node in (None, each.node) and wanted(each.name)],
        unreached=[
            each
            for each in status.unreached
            if log in (None, each.name, each.log_id) and (node is None or node in each.nodes) and queue is None
        ],
    )


def of_logs(status: AllStatuses, queue: str, log_ids: Collection[str]) -> AllStatuses:
    """Only what concerns a queue (its key) whose records are in these logs, and the nodes that shall hold them, as the
    newest view of all has it. Pure."""
    newest = newest_view(status.nodes)
    placed = [log for log in newest.logs if log.log_id in log_ids] if newest is not None else []
    holders = {node for log in placed for node in log.replicas}
    nodes = [
        msgspec.structs.replace(
            each,
            logs=[log for log in _logs(each, None, None, None, lambda name: name == queue) if log.log_id in log_ids],
            cluster=None if each.cluster is None else msgspec.structs.replace(each.cluster, logs=placed),
            former=[former for former in each.former if former.log_id in log_ids],
        )
        for each in status.nodes
    ]
    return msgspec.structs.replace(
        status,
        nodes=[each for each in nodes if each.logs or each.node_id in holders],
        unreachable=[each for each in status.unreachable if newest is None or each.node_id in holders],
        outages=[each for each in status.outages if each.name == queue],
        unreached=[each for each in status.unreached if each.log_id in log_ids],
    )


def log_names(status: AllStatuses) -> dict[str, str]:
    """By id, of all logs that are known. Pure."""
    view = newest_view(status.nodes)
    placed = {log.log_id: log.name for log in view.logs} if view is not None else {}
    return placed | {copy.log.log_id: copy.log.name for copy in copies(status)}


def _view(view: ClusterStatus | None, log_ids: set[str]) -> ClusterStatus | None:
    """What the cluster has decided of these logs."""
    if view is None:
        return None
    return msgspec.structs.replace(view, logs=[log for log in view.logs if log.log_id in log_ids])


def _logs(
    status: Status, node: str | None, log: str | None, queue: str | None, wanted: Callable[[str], bool]
) -> Iterator[LogStatus]:
    for each in status.logs:
        named = log in (None, each.name, each.log_id) and (
            queue is None
            or any(queue == one.name for one in each.queues)
            or any(queue == left.queue for left in each.left)
        )
        mirrors = [mirror for mirror in each.mirrors if node in (None, status.node_id, mirror.node_id)]
        if named and (mirrors or node in (None, status.node_id)):
            yield msgspec.structs.replace(
                each,
                mirrors=mirrors,
                queues=[one for one in each.queues if wanted(one.name)],
                groups=[one for one in each.groups if wanted(one.queue)],
                acking=[one for one in each.acking if wanted(one.queue)],
                holds=[one for one in each.holds if wanted(one.queue)],
                producers=[one for one in each.producers if wanted(one.queue)],
                left=[one for one in each.left if wanted(one.queue)],
            )


async def of_queues(
    client: Client, part: Callable[[LogStatus], Sequence[_T]], *, queue: str | None, vhost: str | None
) -> tuple[list[_T], list[QueueOutage]]:
    """A part of the status of each log, as the copy that knows most has it, of one queue, a virtual host, or all; and
    the queues of which no node can tell it."""
    status = select(await gather(client), queue=key_of(vhost, queue), vhost=vhost)
    return [each for copy in authorities(status) for each in part(copy.log)], status.outages


def _refuse_unknown(status: AllStatuses, node: str | None, log: str | None, queue: str | None) -> None:
    logs = [copy.log for copy in copies(status)]
    members = [each.node_id for each in status.nodes] + [each.node_id for each in status.unreachable]
    if node is not None and node not in members:
        raise BadInput(f"no node {node!r}; the cluster has {', '.join(members)}")
    names = {name for each in logs for name in (each.name, each.log_id)}
    names |= {name for each in status.unreached for name in (each.name, each.log_id)}
    if log is not None and log not in names:
        raise NoSuchLog(f"no log {log!r} on the nodes that answer; they have {_names(each.name for each in logs)}")
    if queue is not None and not any(queue == one.name for each in logs for one in each.queues):
        for outage in status.outages:
            if outage.name == queue:
                raise LogUnavailable(outage.reason, node=outage.node, since=outage.since_us, queue=queue)
        raise NoSuchQueue(f"no queue {shown(queue)!r} on the nodes that answer; `mqtool queues` lists them")


def _names(names: Iterator[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"


def newest_view(statuses: Sequence[Status]) -> ClusterStatus | None:
    """Of the nodes that answer, the view that knows most; whom a log without a master waits for is as the coordinator
    among them says. None when no node is in a cluster."""
    views = [status.cluster for status in statuses if status.cluster is not None]
    if not views:
        return None
    newest = max(views, key=lambda view: (view.incarnation, view.version))
    return with_waits(newest, views)


def logs_in(view: ClusterStatus | None) -> dict[str, PlacedLog]:
    """The logs that a cluster has, by id; none while nobody tells. Pure."""
    return {log.log_id: log for log in view.logs} if view is not None else {}


def with_waits(view: ClusterStatus, others: Sequence[ClusterStatus]) -> ClusterStatus:
    """Only the coordinator knows whom a log waits for."""
    waits = {log.log_id: log.waits_for for other in others for log in other.logs if log.waits_for}
    logs = [
        log if log.waits_for or log.master else msgspec.structs.replace(log, waits_for=waits.get(log.log_id, []))
        for log in view.logs
    ]
    return msgspec.structs.replace(view, logs=logs)


def role_of(node: NodeStatus, coordinator: str) -> str:
    """Its part in the cluster's decisions."""
    if node.node_id == coordinator:
        return "coordinator, witness" if node.witness else "coordinator"
    if node.witness:
        return "witness"
    return "voter" if node.votes else "learner"


def mastered_by(view: ClusterStatus, node_id: str) -> list[str]:
    """The names of the logs that a node masters."""
    return [log.name for log in view.logs if log.master == node_id]


def held_by(view: ClusterStatus, node_id: str) -> list[str]:
    """The names of the logs that a node holds."""
    return [log.name for log in view.logs if node_id in log.replicas]


def loss_text(loss: LossStatus) -> str:
    """Which range, in log offsets; up to where copies that came back held the log, which may have gone further."""
    end = "unknown" if loss.end is None else f"{loss.end} or further"
    return f"{loss.start}..{end} when epoch {loss.epoch} began"


def warnings(view: ClusterStatus) -> list[str]:
    """One line each, of the cluster, with what its node advises, and then of each log; none when all is well."""
    found = list(_of_members(view))
    for log in view.logs:
        found += log_warnings(log)
    return found


def _of_members(view: ClusterStatus) -> Iterator[str]:
    if not view.registered:
        yield "the node that was asked is not let in yet: what it knows may be old"
    if not view.coordinator:
        yield "no coordinator is known: without a majority of the nodes nothing is decided"
    yield from view.advice
    for node in view.nodes:
        if node.draining and (left := mastered_by(view, node.node_id)):
            yield f"node {node.node_id} is draining and still masters {', '.join(left)}"
        if node.leaving and (kept := [log.name for log in view.logs if node.node_id in log.replicas]):
            logs = f"{len(kept)} log{'s' if len(kept) != 1 else ''}"
            yield f"node {node.node_id} leaves and still holds {logs}: {', '.join(kept[:10])}"
    if view.moving_paused:
        yield "no log goes to other nodes: moving is paused; mqtool rebalance --resume lets it go on"


def log_warnings(log: PlacedLog) -> Iterator[str]:
    """What should be looked at in one log, one line each; of one that goes with its node, by intention, nothing."""
    if log.transient:
        return
    waits = f"; it waits for {', '.join(log.waits_for)}" if log.waits_for else ""
    whole = [node for node in log.in_sync if node not in log.marked]
    if log.reason:
        yield f"log {log.name} has no master: {log.reason}"
    elif not log.master:
        if log.in_sync and not whole:
            yield f"log {log.name} is recovering: every copy that had everything may have lost something{waits}"
        else:
            yield f"log {log.name} has no master{waits}"
    elif len(log.in_sync) < log.copies_wanted:
        yield f"log {log.name} takes nothing: {len(log.in_sync)} in sync, {log.copies_wanted} are needed"
    if log.marked and whole:
        yield f"log {log.name}: the copies on {', '.join(log.marked)} may have lost something, and are not promoted"
    if len(log.replicas) <= 1:
        yield f"log {log.name} has one copy: {', '.join(log.replicas) or 'none is left'}"
    elif len(log.in_sync) == 1:
        yield f"log {log.name} has no in-sync mirror: {log.in_sync[0]} alone has everything"
    for loss in log.losses:
        yield f"log {log.name}: confirmed records may be lost, log offsets {loss_text(loss)}"
