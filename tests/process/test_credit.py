"""A mirror that stands still holds up producers, each in its own queue, and nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.producer.deliveries import Delivery
from mirrorlog.client.producer.pipeline import UNLIMITED
from mirrorlog.diagnosis.advice import reasons
from mirrorlog.diagnosis.facts import facts_of
from mirrorlog.diagnosis.findings import findings
from mirrorlog.errors import MirrorlogError, Overloaded
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import Level
from mirrorlog.wire.messages.status import LogStatus, ProducerStatus
from tests.process.clusters import declare, eventually, facts, fast_cluster, log_lines, log_of
from tests.process.raw import Raw, batch_of

KIB = 1024
CREDIT = 256 * KIB
VALUE = bytes(16 * KIB)
# The mirror must stay in the set however long it stands still: it is waited for.
PATIENT = {
    "limits.credit_bytes": CREDIT,
    "ha.haHousekeepingInterval": 30_000,
    "cluster.node_timeout_ms": 30_000,
    "cluster.mirror_lag_time_ms": 30_000,
}
SLOW = "n3"


def slow_cluster(directory: Path, **settings: int) -> Cluster:
    return fast_cluster(3, min_in_sync=1, data_dir=directory, settings={**PATIENT, **settings})


def master_log(cluster: Cluster) -> LogStatus:
    return log_of(cluster.nodes["n1"])


def blocked(cluster: Cluster) -> list[ProducerStatus]:
    return [each for each in master_log(cluster).producers if each.blocked_by]


async def in_thread(cluster: Cluster, what: str, count: int) -> list[ProducerStatus]:
    def met() -> list[ProducerStatus] | None:
        found = blocked(cluster)
        return found if len(found) == count else None

    return await asyncio.to_thread(eventually, met, what)


async def outcome_of(delivery: Delivery) -> Receipt | MirrorlogError:
    try:
        return await delivery
    except MirrorlogError as error:
        return error


@pytest.mark.long
async def test_a_producer_feels_the_slowest_mirror_in_its_own_queue_and_nobody_else_does(tmp_path: Path) -> None:
    """Goal: credit per producer and queue. Method: a mirror stands still, a producer at level `master`, which no mirror
    answers for, sends until it is held; on the same connection another producer of another queue sends, a subscriber
    acks what it has, a consumer reads, and the node says who is held by what. The mirror goes on: so does all of it."""
    with slow_cluster(tmp_path) as cluster:
        cluster.wait_in_sync()
        servers = [cluster.nodes["n1"].client]
        for name in ("held", "free", "read"):
            declare(servers[0], name)
        async with Client(*servers) as client:
            async with client.producer("read") as producer:
                await producer.send(b"before")
            async with (
                client.subscribe("read", confirm="master") as subscription,
                client.producer("held", confirm="master", batch_bytes=32 * KIB) as held,
                client.producer("free", confirm="master") as free,
            ):
                delivered = await asyncio.wait_for(anext(subscription), 10)
                cluster.nodes[SLOW].pause()
                sent = [held.send_nowait(VALUE) for _ in range(64)]
                (status,) = await in_thread(cluster, "the producer is held", 1)
                assert (status.queue, status.blocked_by) == ("held", "credit_bytes")
                assert CREDIT <= status.unconfirmed_bytes < CREDIT + 64 * KIB
                assert not status.refused  # it keeps to its credit
                assert 0 < sum(each.done() for each in sent) < 64
                await asyncio.wait_for(free.send(b"1"), 10)
                await asyncio.wait_for(delivered.ack(), 10)
                async with client.consumer("read", start="earliest") as consumer:
                    assert [each.value for each in await consumer.read(1, timeout_ms=10_000)] == [b"before"]
                line = await asyncio.to_thread(
                    eventually, lambda: log_lines(cluster.nodes["n1"], "producer_blocked"), "a line tells of it"
                )
                told = facts(line[-1])
                assert (told["queue"], told["limit"]) == ("held", "credit_bytes")
                found = findings(await facts_of(client, "held"))
                assert {"producer-blocked", "node-unreachable"} <= reasons(found)
                assert not all(each.done() for each in sent)
                cluster.nodes[SLOW].resume()
                for each in sent:
                    await each
        assert not await asyncio.to_thread(blocked, cluster)


@pytest.mark.long
async def test_what_a_held_producer_could_not_send_ends_with_the_limit_and_is_not_stored(tmp_path: Path) -> None:
    """Goal: it ends at its deadline, as a refusal that names the limit. Method: a mirror that stays paused for longer
    than the delivery timeout; what was refused is not in the queue, what was confirmed is."""
    with slow_cluster(tmp_path) as cluster:
        cluster.wait_in_sync()
        servers = [cluster.nodes["n1"].client]
        queue = declare(servers[0], "held")
        async with Client(*servers) as client:
            cluster.nodes[SLOW].pause()
            async with client.producer(
                "held", confirm="master", batch_bytes=32 * KIB, delivery_timeout_ms=1500
            ) as producer:
                receipts = [producer.send_nowait(VALUE) for _ in range(64)]
                outcomes = [await outcome_of(each) for each in receipts]
        refused = [each for each in outcomes if isinstance(each, MirrorlogError)]
        assert refused
        assert all(isinstance(each, Overloaded) and each.details["limit"] == "credit_bytes" for each in refused)
        cluster.nodes[SLOW].resume()
        stored = len(outcomes) - len(refused)
        await asyncio.to_thread(eventually, lambda: master_log(cluster).queues[0].confirmed == stored, "confirmed")
        with Raw(servers[0]) as raw:
            assert len(raw.values(queue.queue_id)) == stored


def test_who_sends_beyond_its_credit_is_answered_and_its_connection_goes_on(tmp_path: Path) -> None:
    """Goal: answered, not absorbed. Method: a client that counts nothing, on a real node: refused naming the limit, and
    on the same connection another queue takes what it sends; also at the limit of the whole log, where all wait."""
    with slow_cluster(tmp_path, **{"limits.max_unconfirmed_bytes": 6 * CREDIT}) as cluster:
        cluster.wait_in_sync()
        address = cluster.nodes["n1"].client
        queues = [declare(address, f"q{number}") for number in range(9)]
        cluster.nodes[SLOW].pause()
        with Raw(address) as raw:

            def fill(number: int) -> str:
                for sequence in range(64):
                    batch = batch_of([VALUE], queues[number], producer_id=5, sequence=sequence)
                    try:
                        raw.produce(batch, level=Level.NONE)
                    except Overloaded as error:
                        return str(error.details["limit"])
                return "none"

            assert fill(0) == "credit_bytes"
            assert fill(1) == "credit_bytes"
            limits = [fill(number) for number in range(2, 9)]
            assert limits[-1] == "max_unconfirmed_bytes"
            assert master_log(cluster).producers_blocked >= 2
            cluster.nodes[SLOW].resume()
            eventually(lambda: master_log(cluster).producers_blocked == 0, "all may go on")
            raw.produce(batch_of([VALUE], queues[8], producer_id=6), level=Level.ALL)


@pytest.mark.long
@pytest.mark.parametrize("level", ["none", "master", "all"])
async def test_a_producer_that_is_never_held_up_sends_far_more_than_its_credit(tmp_path: Path, level: str) -> None:
    """Goal: credit comes back at each level. Method: ten times the credit through one producer, both mirrors awake."""
    with slow_cluster(tmp_path) as cluster:
        cluster.wait_in_sync()
        servers = [cluster.nodes["n1"].client]
        declare(servers[0], "q")
        async with Client(*servers) as client, client.producer("q", confirm=level, batch_bytes=32 * KIB) as producer:
            for each in [producer.send_nowait(VALUE) for _ in range(10 * CREDIT // len(VALUE))]:
                await each
            assert producer._sender._pipeline.allowance is not UNLIMITED
            assert producer._sender._pipeline.allowance.limited


@pytest.mark.long
async def test_a_producer_that_is_held_follows_its_queue_to_another_master(tmp_path: Path) -> None:
    """Goal: held by a count that is void, it goes on. Method: a producer at level `master` is held by a paused mirror,
    all it sent is confirmed at its level; the master is drained, and lives on, so that no connection breaks. The mirror
    goes on when another node masters the log: all that waited is sent there, and what is sent later."""
    with slow_cluster(tmp_path) as cluster:
        cluster.wait_in_sync()
        servers = [cluster.nodes["n1"].client, cluster.nodes["n2"].client]
        declare(servers[0], "held")
        async with (
            Client(*servers) as client,
            Client(*servers) as other,
            client.producer("held", confirm="master", batch_bytes=32 * KIB) as producer,
        ):
            cluster.nodes[SLOW].pause()
            sent = [producer.send_nowait(VALUE) for _ in range(64)]
            await in_thread(cluster, "the producer is held", 1)
            assert 0 < sum(each.done() for each in sent) < 64
            await other.admin.drain("n1")
            second = cluster.nodes["n2"]
            await asyncio.to_thread(eventually, lambda: log_of(second).role == "master", "another master")
            cluster.nodes[SLOW].resume()
            async with asyncio.timeout(20):
                for each in [*sent, producer.send_nowait(b"later")]:
                    await each
