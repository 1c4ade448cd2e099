"""What the nodes know of queues, asked once per job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mirrorlog.client import Client
from mirrorlog.errors import ConnectionLost, NoSuchQueue, RequestTimeout
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.wire.messages import Metadata


def ask_nodes(servers: Sequence[str], queues: Sequence[str]) -> list[QueueFacts]:
    """The queues in the order asked for. Blocks; not for use on an event loop.

    Raises ConnectionLost when no node answers, NoSuchQueue naming those that no node knows.
    """
    return asyncio.run(_ask(servers, list(queues)))


async def _ask(servers: Sequence[str], queues: list[str]) -> list[QueueFacts]:
    async with Client(*servers) as client:
        first = await client.admin.metadata(queues)
    if first.missing:
        raise NoSuchQueue(f"no queue {', '.join(map(repr, first.missing))}; see: mqtool queues")
    # All nodes: only the master knows the latest confirm at once, and it may be the one that is down.
    others = (_ask_one(node.client, queues) for node in first.nodes if node.node_id != first.node_id)
    views = [first, *(view for view in await asyncio.gather(*others) if view is not None)]
    return [_merged(queue, views) for queue in queues]


async def _ask_one(address: str, queues: list[str]) -> Metadata | None:
    """None when this node does not answer."""
    try:
        async with Client(address) as client:
            return await client.admin.metadata(queues)
    except (ConnectionLost, RequestTimeout):
        return None


def _merged(queue: str, views: list[Metadata]) -> QueueFacts:
    """A confirm that one node knows of is a confirm; a begin never goes back."""
    found = [info for view in views for info in view.queues if info.name == queue]
    return QueueFacts(
        cluster_id=views[0].cluster_id,
        name=queue,
        incarnation=found[0].incarnation,
        log_id=found[0].log_id,
        queue_id=found[0].queue_id,
        begin=max(info.begin for info in found),
        next=max(info.next for info in found),
    )
