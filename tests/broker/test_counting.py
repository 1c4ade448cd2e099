"""What a node has counted outlives roles and links: only its process ends it."""

from __future__ import annotations

from pathlib import Path

import uvloop

from mirrorlog.client import Client
from mirrorlog.wire.messages.status import NodeCounts
from tests.broker.hosting import hand_over, in_sync, running_all, settings_for
from tests.ha.nodes import hosted_by


async def counts_of(client: Client, node: str) -> NodeCounts:
    counts = (await client.admin.status(node)).counts
    assert counts is not None
    return counts


def test_counts_go_on_through_every_change_of_role(tmp_path: Path) -> None:
    """Goal: a total never goes back while a process lives. Method: publish, let the log change hands, publish, and give
    it back: both have counted what they published, what they sent on all their links is what the other received, and
    together that is the log, every byte once."""
    settings = settings_for(tmp_path, 2)

    async def check() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            one, other = map(hosted_by, nodes)
            await client.admin.declare("q")
            async with client.producer("q") as producer:
                for old, new in ((one, other), (other, one)):
                    for number in range(5):
                        await producer.send(b"%d" % number)
                    await in_sync(old, new)
                    await hand_over(old, new)
                await producer.send(b"last")
            await in_sync(one, other)
            nodes_told = [await counts_of(client, node) for node in ("n0", "n1")]
            told = [log for each in nodes_told for log in each.logs]
            assert [each.published_records for each in told] == [6, 5]
            assert [sum(each.confirms.counts) for each in told] == [each.published_batches for each in told]
            assert [each.promotions for each in told] == [2, 1]
            assert told[0].sent_bytes == {"n1": told[1].received_bytes}
            assert told[1].sent_bytes == {"n0": told[0].received_bytes}
            assert told[0].received_bytes + told[1].received_bytes == one.facts().end
            assert [each.open["replication"] for each in nodes_told] == [1, 0]
            assert all(each.accepted["replication"] >= 1 for each in nodes_told)

    uvloop.run(check())
