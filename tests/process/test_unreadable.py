"""A batch that nobody can open, and that an older node took, stops no reader of its queue. Real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import ErrorInfo

from mirrorlog.client import Client
from mirrorlog.errors import UnreadableBatch
from mirrorlog.pb.v1 import consumer_pb2 as pb
from mirrorlog.pb.v1 import consumer_pb2_grpc
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster
from tests.spoiled import spoil

pytestmark = pytest.mark.process

RECORDS = 5
"""Of each batch; the second one of three is bad."""
GOOD = [b"%d" % number + bytes(2000) for number in (*range(5), *range(10, 15))]
BAD = (5, 10)


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with fast_cluster(3, min_in_sync=2, grpc=True) as cluster:
        cluster.wait_in_sync()
        yield cluster


async def spoiled(cluster: Cluster, client: Client, queue: str, **arguments: Any) -> None:
    """Three compressed batches, of which the second one opens for nobody on any node."""
    info = await client.admin.declare(queue, arguments=arguments)
    async with client.producer(queue, compression="lz4") as producer:
        for first in range(0, 15, RECORDS):
            for number in range(first, first + RECORDS):
                producer.send_nowait(b"%d" % number + bytes(2000))
            await producer.flush()
    await asyncio.to_thread(cluster.wait_confirmed)
    spoil(cluster.nodes.values(), info, BAD[0])


@pytest.fixture
async def client(three: Cluster) -> AsyncIterator[Client]:
    async with asyncio.timeout(60), Client(*three.servers) as client:
        yield client


@pytest.mark.parametrize("read_from", ["master", "mirror"])
async def test_a_consumer_hears_where_it_goes_on(three: Cluster, client: Client, read_from: str) -> None:
    """Goal: nothing is left out in silence, and it is passed by one seek. Everything before it comes, then the error
    with its place and producer, each time; behind its `go_on_at` the rest comes."""
    queue = f"stream-{read_from}"
    await spoiled(three, client, queue)
    async with client.consumer(queue, until="confirmed", read_from=read_from) as consumer:
        found: list[bytes | None] = []

        async def read() -> None:
            async for record in consumer:
                found.append(record.value)

        for _ in range(2):
            with pytest.raises(UnreadableBatch, match="nobody can open") as met:
                await read()
            assert (met.value.details["queue_offset"], met.value.details["go_on_at"]) == BAD
            assert met.value.details["producer_id"] > 0
            assert consumer.position.queue_offset == BAD[0]
        await consumer.seek(met.value.details["go_on_at"])
        await read()
        assert found == GOOD


async def held(client: Client, queue: str) -> str:
    """What the queue's group says of what cannot be sent, once it does."""
    while True:
        (group,) = (await client.admin.groups(queue)).groups
        if "cannot be sent" in group.departing_waits:
            return group.departing_waits
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("batches", [False, True])
async def test_a_subscription_passes_it_and_its_records_are_dead(three: Cluster, client: Client, batches: bool) -> None:
    """Goal: a work queue goes on by itself. All good records are given out once and acknowledged; the others are held
    for their dead letters, which nobody can make, and the group says since where and of which producer."""
    queue, dead = f"work-{batches}", f"dead-{batches}"
    await client.admin.declare(dead)
    await spoiled(three, client, queue, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    found: list[bytes | None] = []
    async with client.subscribe(queue, prefetch=100) as subscription:
        while len(found) < len(GOOD):
            if batches:
                batch = await subscription.next_batch()
                found += [record.value for record in batch.records()]
                await batch.ack()
            else:
                record = await anext(subscription)
                found.append(record.value)
                await record.ack()
    assert found == GOOD
    waits = await held(client, queue)
    assert f"queue offset {BAD[0]}" in waits
    assert "producer" in waits
    assert "sent what nobody can open" in waits


async def test_a_subscription_in_a_transaction_passes_it(three: Cluster, client: Client) -> None:
    """Goal: what takes within transactions goes on too. Each good record is acknowledged in a transaction."""
    await spoiled(three, client, "transacted")
    found: list[bytes | None] = []
    async with client.subscribe("transacted", prefetch=100) as subscription:
        while len(found) < len(GOOD):
            record = await anext(subscription)
            async with client.transaction() as transaction:
                transaction.ack(record)
            found.append(record.value)
    assert found == GOOD


async def test_leases_pass_it(three: Cluster, client: Client) -> None:
    """Goal: who leases gets what can be opened, and the rest does not come back. Lease three records at a time, with a
    limit on how often a record may come back that is never reached."""
    await spoiled(three, client, "leased")
    found: list[bytes | None] = []
    while len(found) < len(GOOD):
        for leased in await client.lease("leased", max_records=3, lease_ms=30_000, wait_ms=2_000):
            found.append(leased.value)
            await leased.ack()
    assert found == GOOD
    assert await client.lease("leased", max_records=3, lease_ms=30_000, wait_ms=300) == []
    (group,) = (await client.admin.groups("leased")).groups
    assert (group.unsettled, group.leased) == (0, 0)


async def test_a_grpc_reader_hears_where_it_goes_on(three: Cluster, client: Client) -> None:
    """Goal: the same over gRPC: what is good before it comes, then a status with its code and place; another stream
    from there has the rest."""
    await spoiled(three, client, "door")

    async def stream(start: int) -> tuple[list[bytes], dict[str, str]]:
        found: list[bytes] = []
        async with grpc.aio.insecure_channel(three.nodes["n1"].grpc) as channel:
            request = pb.ConsumeRequest(queue="door", start=pb.Start(queue_offset=start))
            try:
                async for response in consumer_pb2_grpc.ConsumerStub(channel).Consume(request):
                    found += [record.value for batch in response.batches.batches for record in batch.records]
                    if response.next.queue_offset == 15:
                        return found, {}
            except grpc.aio.AioRpcError as error:
                details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
                info = ErrorInfo()
                status_pb2.Status.FromString(details).details[0].Unpack(info)
                return found, {"reason": info.reason, **info.metadata}
        raise AssertionError("the stream ended")

    found, why = await stream(0)
    assert found == GOOD[:5]
    assert (why["reason"], why["go_on_at"]) == ("UNREADABLE_BATCH", "10")
    assert (await stream(10)) == (GOOD[5:], {})
