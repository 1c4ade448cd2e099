"""What the nodes know of queues, asked once per job."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from mirrorlog.client import Client
from mirrorlog.client.begins import begin_of, newest_of, views_of
from mirrorlog.client.copies import ask_all
from mirrorlog.errors import NoSuchQueue
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.tls import NO_TLS, TlsFiles
from mirrorlog.wire.messages import GetMetadata, Metadata


def ask_nodes(servers: Sequence[str], queues: Sequence[str], tls: TlsFiles = NO_TLS) -> list[QueueFacts]:
    """The queues in the order asked for. Blocks; not for use on an event loop.

    Raises ConnectionLost when no node answers, NoSuchQueue naming those that no node knows, ConfigError naming a file
    of `tls` that is none.
    """
    return asyncio.run(_ask(servers, list(queues), tls.context()))


async def _ask(servers: Sequence[str], queues: list[str], tls: ssl.SSLContext | None) -> list[QueueFacts]:
    async with Client(*servers, tls=tls) as client:
        first = await client.admin.metadata(queues)
        if first.missing:
            raise NoSuchQueue(f"no queue {', '.join(map(repr, first.missing))}; see: mqtool queues")
        # All nodes: only the master knows the latest confirm at once, and it may be the one that is down.
        others = [node.node_id for node in first.nodes if node.node_id != first.node_id]
        answers = [first, *await ask_all(client, others, GetMetadata(queues=queues), Metadata)]
    return [_merged(queue, answers) for queue in queues]


def _merged(queue: str, answers: Sequence[Metadata]) -> QueueFacts:
    """A confirm that one node knows of is a confirm; of its begin the master has the word."""
    views = views_of(queue, answers)
    newest = newest_of(views)
    master = newest.master
    leading = views.get(master, newest)
    return QueueFacts(
        cluster_id=answers[0].cluster_id,
        name=queue,
        incarnation=leading.incarnation,
        log_id=leading.log_id,
        queue_id=leading.queue_id,
        begin=begin_of(views),
        next=max(info.next for info in views.values()),
        silent_master=None if master in views else master,
    )
