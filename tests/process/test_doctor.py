"""`mqtool doctor` on real clusters: each is brought into a state that keeps something from going on, and says which."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

from mirrorlog.client import Client
from mirrorlog.diagnosis.advice import NOTED, STOPS, Diagnosis
from mirrorlog.diagnosis.facts import facts_of
from mirrorlog.diagnosis.findings import findings
from mirrorlog.errors import ConsumerTimedOut, QueueFull
from mirrorlog.testing import Cluster
from mirrorlog.tools.main import main
from tests.process.clusters import fast_cluster

KIB = 1024
WAIT_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Left as it was found by most."""
    settings = {"cluster.node_timeout_ms": 1_000, "cluster.mirror_lag_time_ms": 1_000}
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path_factory.mktemp("doctor"), settings=settings) as three:
        three.wait_in_sync()
        yield three


async def found_for(client: Client, queue: str | None, met: Callable[[Diagnosis], bool]) -> Diagnosis:
    """The first finding that is as `met` says; asked for until there is one."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = findings(await facts_of(client, queue))
            for each in found:
                if met(each):
                    return each


async def found_of(client: Client, queue: str | None, reason: str) -> Diagnosis:
    return await found_for(client, queue, lambda each: each.reason == reason)


async def filled(client: Client, queue: str, count: int, **arguments: object) -> None:
    await client.admin.declare(queue, arguments)
    async with client.producer(queue) as producer:
        for number in range(count):
            await producer.send(b"%d" % number)


@pytest.mark.long
async def test_a_group_that_nobody_takes_from_is_told_and_one_that_is_read_is_not(cluster: Cluster) -> None:
    """Never read; then subscribed, unsettled and left."""
    async with Client(*cluster.servers) as client:
        await filled(client, "left", 3)
        assert (await found_of(client, "left", "never-read")).weight == NOTED
        async with client.subscribe("left") as subscription:
            first = await anext(subscription)
            assert {each.reason for each in findings(await facts_of(client, "left"))} == set()
            await first.ack()
        told = await found_of(client, "left", "no-subscriber")
        assert (told.weight, told.name) == (STOPS, "left (own)")
        assert "2 records are ready" in told.text


async def test_subscribers_without_credit_are_named(cluster: Cluster) -> None:
    """A prefetch of one, not settled; then the same of one that has the group for itself, beside another that waits."""
    async with Client(*cluster.servers) as client:
        await filled(client, "full", 3)
        async with client.subscribe("full", prefetch=1) as subscription:
            await anext(subscription)
            told = await found_of(client, "full", "no-credit")
            assert "(1 in hand)" in told.text
        await filled(client, "exclusive", 3)
        async with client.subscribe("exclusive", prefetch=1, exclusive=True) as subscription:
            await anext(subscription)
            assert "has the group for itself" in (await found_of(client, "exclusive", "holder-idle")).text
        await filled(client, "active", 3, **{"x-single-active-consumer": True})
        async with client.subscribe("active", prefetch=1) as one, client.subscribe("active", prefetch=1):
            await anext(one)
            assert "has the group for itself" in (await found_of(client, "active", "holder-idle")).text
            assert "1 subscribers get nothing" in (await found_of(client, "active", "one-active")).text


async def test_what_is_not_for_this_user_is_no_finding(cluster: Cluster) -> None:
    """Goal: a reply queue of another client is healthy. By an exclusive queue of one, asked about by another."""
    async with Client(*cluster.servers) as client, Client(cluster.nodes["n1"].client) as owner:
        await owner.admin.declare("mine", {"exclusive": True})
        facts = await facts_of(client)
        assert "mine" in {each.name for each in facts.queues}
        assert "mine" not in {each.name for each in findings(facts)}
        async with owner.producer("mine") as producer:
            await producer.send(b"v")
        assert "mine" not in {each.name for each in findings(await facts_of(client))}


async def test_a_queue_that_refuses_because_it_is_full_is_told(cluster: Cluster) -> None:
    """By its bytes, which only the refusals show."""
    async with Client(*cluster.servers) as client:
        await client.admin.declare("brim", {"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
        async with client.producer("brim", delivery_timeout_ms=300) as producer:
            with pytest.raises(QueueFull):
                await producer.send(b"x" * 2_000)
        told = await found_of(client, "brim", "full")
        assert told.weight == STOPS
        assert "publishes are refused" in told.text


async def test_records_that_wait_for_a_time_are_told_with_it(cluster: Cluster) -> None:
    """One leased, two given back with a delay."""
    async with Client(*cluster.servers) as client:
        await filled(client, "parked", 3)
        leased = await client.lease("parked", max_records=3, lease_ms=600_000, wait_ms=10_000)
        for each in leased[1:]:
            await each.nack(delay_ms=300_000)
        told = await found_for(client, "parked", lambda each: "2 wait for a delay" in each.text)
        assert told.reason == "waiting-for-time"
        assert "1 records are leased" in told.text
        assert 0 < float(told.text.split("ends in ")[1].split()[0]) <= 300.1


async def test_consumers_that_are_too_slow_are_told(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        await filled(client, "slow", 1, **{"x-consumer-timeout": 50})
        async with client.subscribe("slow") as subscription:
            await anext(subscription)
            with pytest.raises(ConsumerTimedOut):
                await anext(subscription)
        assert "1 subscriptions" in (await found_of(client, "slow", "consumer-timeout")).text


async def test_what_landings_and_groups_keep_is_told(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        await filled(client, "kept", 3, retention="work")
        await client.admin.set_hold("kept", "lake", holder="job-1", queue_offset=0, lease_ms=600_000)
        told = await found_for(client, "kept", lambda each: "landing" in each.text)
        assert "landing lake (held by job-1) keeps 3 records of queue kept" in told.text
        async with client.subscribe("kept") as subscription:
            for _ in range(3):
                await (await anext(subscription)).nack(delay_ms=600_000)
        assert (
            "nobody takes them"
            in (
                await found_for(client, "kept", lambda each: each.reason == "retention-held" and each.what == "group")
            ).text
        )
        await client.admin.end_hold("kept", "lake")


async def test_a_queue_that_has_a_length_and_keeps_to_it_is_not_told(cluster: Cluster) -> None:
    """The arguments come with the facts; one that is above cannot be had where x-overflow is heeded."""
    async with Client(*cluster.servers) as client:
        await client.admin.declare("long", {"x-max-length": 1, "x-overflow": "reject-publish"})
        facts = await facts_of(client, "long")
        assert facts.queues[0].arguments["x-max-length"] == 1
        assert findings(facts) == []


async def test_rates_and_counts_are_of_what_went_through(cluster: Cluster) -> None:
    """Three published, given out twice, acked once each: the counts to the record, the rates above nothing."""
    async with Client(*cluster.servers) as client:
        await filled(client, "busy", 3)
        async with client.subscribe("busy") as subscription:
            for delivered in [await anext(subscription) for _ in range(3)]:
                await delivered.nack()
            for delivered in [await anext(subscription) for _ in range(3)]:
                assert delivered.redelivered
                await delivered.ack()
        facts = await facts_of(client, "busy")
    found = [each.counts for node in facts.status.nodes for log in node.logs for each in log.queues]
    (counts,) = [each for each in found if each is not None]
    assert (counts.published, counts.delivered, counts.redelivered, counts.acked) == (3, 6, 3, 3)
    assert min(counts.publish_rate, counts.deliver_rate, counts.redeliver_rate, counts.ack_rate) > 0


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def test_the_command_says_it_in_words_and_in_json_and_by_its_exit_code(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a queue that stands still and of one that does not; rates and producers are lists beside it."""

    async def prepare() -> None:
        async with Client(*cluster.servers) as client:
            await client.admin.declare("empty")
            await filled(client, "stands", 2)
            async with client.subscribe("stands") as subscription:
                await anext(subscription)

    asyncio.run(prepare())
    servers = ("--servers", ",".join(cluster.servers))
    assert run(capsys, *servers, "doctor", "empty") == (0, "nothing stands still\n")
    code, text = run(capsys, *servers, "doctor", "stands")
    assert (code, text.split(":")[0]) == (1, "STOPS  no-subscriber")
    code, text = run(capsys, *servers, "doctor", "stands", "--json")
    assert (code, [each["reason"] for each in json.loads(text)]) == (1, ["no-subscriber"])
    code, text = run(capsys, *servers, "rates", "stands", "--json")
    assert (code, json.loads(text)[0]["counts"]["published"]) == (0, 2)
    assert run(capsys, *servers, "rates")[0] == 0
    assert run(capsys, *servers, "producers")[0] == 0
    code, _ = run(capsys, *servers, "doctor", "no such queue")
    assert code != 0


@pytest.mark.long
async def test_nodes_that_are_down_and_what_they_hold_up_are_told(cluster: Cluster) -> None:
    """The node of a queue of one copy is killed; then another one: below min_in_sync, and no master, or no majority."""
    async with Client(*cluster.servers) as client:
        info = await client.admin.declare("lonely", {"copies": 1})
        node = cluster.nodes[info.master]
        node.kill()
        try:
            told = await found_of(client, None, "nodes-down")
            assert (told.weight, told.name) == (STOPS, "lonely")
            assert info.master in told.text
            assert (await found_of(client, None, "node-unreachable")).name == info.master
            second = next(each for each in cluster.mirrors if each.id != info.master)
            second.kill()
            try:
                told = await found_for(client, None, lambda each: each.weight == STOPS and each.reason in {
                    "no-coordinator", "no-master", "below-min-in-sync", "not-answered"
                })  # fmt: skip
                assert told.advice
            finally:
                second.start()
        finally:
            node.start()
    cluster.wait_in_sync()
