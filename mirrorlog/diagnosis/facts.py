"""What diagnoses are made from, asked of all nodes. Thin: `findings` decides."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from mirrorlog.diagnosis.cluster_status import NODE_SECONDS, AllStatuses, gather, of_logs, syncs_of
from mirrorlog.errors import AccessRefused, MirrorlogError, NoSuchQueue, QueueExclusive, RequestTimeout
from mirrorlog.wire.messages.groups import GroupsFound
from mirrorlog.wire.messages.queues import Metadata, MoveOfQueue, QueueInfo
from mirrorlog.wire.messages.status import QueueStatus
from mirrorlog.wire.names import shown

if TYPE_CHECKING:
    from mirrorlog.client import Client
    from mirrorlog.diagnosis.findings import Facts

_AT_ONCE: Final = 64
_MOVES_TIMEOUT_MS: Final = 2_000
_NOT_FOR_US: Final = (QueueExclusive, AccessRefused, NoSuchQueue)
"""A queue is another client's, or not for this user to read, or was deleted since it was listed: nothing is wrong."""


async def facts_of(client: Client, queue: str | None = None, *, within_s: float | None = None) -> Facts:
    """All that the nodes tell, of one queue (its key) or of all. A master that does not answer for one of its queues is
    not asked for the others. `within_s`: how long groups are asked for in all. Raises NoSuchQueue, and as `gather`."""
    from mirrorlog.diagnosis.findings import Facts  # late: lists ask this module for other things

    metadata = await client.admin.metadata(None if queue is None else [queue])
    turns = asyncio.Semaphore(_AT_ONCE)
    lost = {outage.name for outage in metadata.outages}
    if missing := [name for name in metadata.missing if name not in lost]:
        raise NoSuchQueue(f"no queue {', '.join(map(shown, missing))}; `mqtool queues` lists them")

    silent: set[str] = set()
    loop = asyncio.get_running_loop()
    until = math.inf if within_s is None else loop.time() + within_s

    async def groups(asked: QueueInfo) -> GroupsFound | MirrorlogError:
        async with turns:
            if asked.master in silent:
                return RequestTimeout(f"no answer within {NODE_SECONDS:g} s for another queue of {asked.master}")
            if loop.time() >= until:
                return RequestTimeout(f"it was not asked: the others took {within_s:g} s")
            try:
                async with asyncio.timeout_at(min(until, loop.time() + NODE_SECONDS)):
                    return await client.admin.groups(asked.name)
            except TimeoutError:
                silent.add(asked.master)
                return RequestTimeout(f"no answer within {NODE_SECONDS:g} s")
            except MirrorlogError as error:
                return error

    queues = [each for each in metadata.queues if each.name not in lost]
    # Side by side: a node that hangs holds each of these up.
    status, asked, syncs, moves = await asyncio.gather(
        gather(client, metadata), asyncio.gather(*map(groups, queues)), syncs_of(client, queues), _moves(client)
    )
    if queue is not None:
        status = of_logs(status, queue, _logs_of(metadata))
    answers = dict(zip((each.name for each in queues), asked, strict=True))
    return Facts(
        status=status,
        queues=metadata.queues,
        outages=metadata.outages,
        syncs=syncs,
        moves=[move for move in moves if queue in (None, move.queue)],
        members=[node.node_id for node in metadata.nodes],
        groups={name: each for name, each in answers.items() if isinstance(each, GroupsFound)},
        unasked={
            name: each.message
            for name, each in answers.items()
            if isinstance(each, MirrorlogError) and not isinstance(each, _NOT_FOR_US)
        },
    )


def told_queues(status: AllStatuses) -> dict[tuple[str, str], QueueStatus]:
    """What the masters that answer tell of queues, by log id and name. Pure."""
    masters = [log for node in status.nodes for log in node.logs if log.role == "master"]
    return {(log.log_id, queue.name): queue for log in masters for queue in log.queues}


def _logs_of(metadata: Metadata) -> set[str]:
    """Ids of all logs that have records of these queues."""
    found = {log_id for each in metadata.queues for log_id in (each.log_id, *(span.log_id for span in each.spans))}
    return found | {outage.log_id for outage in metadata.outages}


async def _moves(client: Client) -> list[MoveOfQueue]:
    """None while nobody tells, or all nodes are older than moves are."""
    try:
        async with asyncio.timeout(NODE_SECONDS):
            return (await client.admin.moves(node_timeout_ms=_MOVES_TIMEOUT_MS)).moves
    except (MirrorlogError, TimeoutError):
        return []
