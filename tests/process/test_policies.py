"""Policies on real nodes: they hold at once, queues go where they lead, and so does who masters a queue next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from mirrorlog.client import Client
from mirrorlog.errors import BadRequest, MirrorlogError, QueueFull, Unroutable
from mirrorlog.testing import Cluster
from mirrorlog.tools.main import app
from mirrorlog.wire.messages.queues import QueueInfo
from tests.process.clusters import eventually, fast_cluster, log_lines
from tests.process.test_moves import values
from tests.process.test_syncs import fill, numbers, synced, until

pytestmark = pytest.mark.process

TWO = {"ha-mode": "exactly", "ha-params": 2}


@pytest.fixture(scope="module")
def cluster() -> Any:
    """Three nodes, which the tests share; each has queues and policies of its own."""
    with fast_cluster(3) as made:
        yield made


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(*cluster.servers) as opened:
        yield opened


async def once(client: Client, queue: str, reached: Callable[[QueueInfo], bool], *, timeout_s: float = 30) -> QueueInfo:
    """The queue's facts, once they are so."""
    info = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    found = (await client.admin.metadata([queue])).queues
                    info = found[0] if found else None
                    if info is not None and reached(info):
                        return info
                except MirrorlogError:
                    pass  # it is on its way
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not reached: {info}")


@pytest.mark.story("000:36")
@pytest.mark.story("000:166")
@pytest.mark.story("000:1002")
async def test_a_policy_moves_a_queue_fills_its_history_and_lets_it_go_back(client: Client) -> None:
    """Goal: RabbitMQ's exactly, without its blocking. Method: a queue with records of three copies gets a policy of
    two; what it left behind is copied; the policy is cleared. It is told at once which holds, and nothing is lost."""
    topology = client.admin.topology
    await client.admin.declare("orders")
    await fill(client, "orders", 0, 50)
    await topology.set_policy("two", "^orders$", TWO)
    info = await once(client, "orders", lambda info: info.policy == "two", timeout_s=5)
    assert info.sources == {"copies": "policy two", "ha-sync-mode": "policy two"}
    assert not info.policy_pending
    await once(client, "orders", lambda info: len(info.mirrors) == 1)
    await synced(client, "orders")
    await topology.clear_policy("two")
    await once(client, "orders", lambda info: not info.policy and len(info.mirrors) == 2)
    assert numbers(await values(client, "orders")) == list(range(50))
    events = (await client.admin.events()).events
    assert [event.kind for event in events if event.details.get("policy") == "two"] == ["policy_set", "policy_cleared"]
    of_queue = {event.kind for event in events if event.details.get("queue") == "orders"}
    assert {"move_begun", "queue_moved", "sync_begun", "sync_ended"} <= of_queue


@pytest.mark.story("000:62")
async def test_every_nodes_log_has_a_line_for_policies_moves_of_mirrors_and_promotions(
    cluster: Cluster, client: Client
) -> None:
    """Goal: one line for each in our form, whoever's log is read. Method: a policy that is set and cleared; the line
    in the logs of all nodes, with what it says."""
    await client.admin.topology.set_policy("lined", "^lined$", {"max-length": 5})
    await client.admin.topology.clear_policy("lined")
    for node in cluster.nodes.values():
        cleared = partial(log_lines, node, "policy_cleared policy=lined")
        await asyncio.to_thread(eventually, cleared, "the node knows")
        (line,) = log_lines(node, "policy_set policy=lined")
        assert line.endswith('apply_to=all priority=0 definition={"max-length":5}')
        assert log_lines(node, "promoted")


@pytest.mark.story("000:25")
@pytest.mark.story("000:106")
async def test_a_queue_is_born_under_its_policy(client: Client) -> None:
    """Goal: no record comes before it holds, nor is anything moved for it. Method: a policy, then a queue."""
    await client.admin.topology.set_policy("born", "^born", {**TWO, "max-length": 1, "overflow": "reject-publish"})
    info = await client.admin.declare("born")
    assert (info.policy, len(info.mirrors), info.effective["x-max-length"]) == ("born", 1, 1)
    async with client.producer("born") as producer:
        await producer.send(b"first")
        with pytest.raises(QueueFull):
            await producer.send(b"second")


@pytest.mark.story("000:469")
async def test_limits_of_a_policy_hold_for_what_is_there_and_end_with_it(client: Client) -> None:
    """Goal: a limit comes, is tightened by an operator, and goes while the queue is used. Method: a full queue refuses,
    one more than it was is taken when the operator's cap is gone, and anything without policies."""
    topology = client.admin.topology
    await client.admin.declare("capped")
    await fill(client, "capped", 0, 3)
    await topology.set_policy("cap", "^capped$", {"max-length": 4, "overflow": "reject-publish"})
    await topology.set_policy("op", "^capped$", {"max-length": 3}, operator=True)
    await once(client, "capped", lambda info: info.effective.get("x-max-length") == 3)
    async with client.producer("capped") as producer:
        with pytest.raises(QueueFull):
            await producer.send(b"3")
        await topology.clear_policy("op", operator=True)
        await once(client, "capped", lambda info: info.effective.get("x-max-length") == 4)
        await producer.send(b"3")
        with pytest.raises(QueueFull):
            await producer.send(b"4")
        await topology.clear_policy("cap")
        await once(client, "capped", lambda info: not info.policy)
        await producer.send(b"4")


@pytest.mark.story("000:33")
async def test_manual_sync_leaves_what_is_there_until_somebody_asks(client: Client) -> None:
    """Goal: new mirrors have what is new, and it is told what they lack. Method: a queue with one copy gets a policy
    with manual sync; its records stay in the former log, are read all the same, and are copied when somebody asks."""
    topology = client.admin.topology
    one = {"ha-mode": "exactly", "ha-params": 1}
    await topology.set_policy("manual", "^by-hand$", one)
    await client.admin.declare("by-hand")
    await fill(client, "by-hand", 0, 20)
    await topology.set_policy("manual", "^by-hand$", {"ha-mode": "all", "ha-sync-mode": "manual"})
    await once(client, "by-hand", lambda info: len(info.mirrors) == 2)
    sync = await until(client, "by-hand", lambda sync: bool(sync.spans))
    assert not sync.wished
    assert sum(span.records for span in sync.spans) == 20
    assert numbers(await values(client, "by-hand")) == list(range(20))
    await client.admin.sync_queue("by-hand")
    await synced(client, "by-hand")


@pytest.mark.story("000:39a")
@pytest.mark.story("000:39b")
@pytest.mark.story("000:40")
def test_who_masters_a_queue_next_goes_by_its_policy() -> None:
    """Goal: what holds stands in the log, and what cannot be met is told. Method: kill the master of a queue with a
    limit; at the new one it holds without anything being decided. Of a policy of three copies it is listed which node
    it lacks, until that is back."""

    async def story(cluster: Cluster) -> None:
        async with Client(*cluster.servers) as client:
            await client.admin.topology.set_policy("cap", "", {"max-length": 2, "overflow": "reject-publish"})
            three = {"ha-mode": "exactly", "ha-params": 3}
            await client.admin.topology.set_policy("three", "^three$", three, priority=1)
            await client.admin.declare("three")
            info = await client.admin.declare("q")
            await fill(client, "q", 0, 2)
            cluster.nodes[info.master].kill()
            after = await once(client, "q", lambda told: told.master != info.master)
            assert (after.policy, after.effective["x-max-length"]) == ("cap", 2)
            assert after.policy_version == info.policy_version
            async with client.producer("q") as producer:
                with pytest.raises(QueueFull):
                    await producer.send(b"2")
            why = f"wants 3 copies, 2 nodes are eligible: {info.master} is down"
            await asyncio.to_thread(eventually, lambda: reasons(cluster) == ({"three": why}, {"three": why}), "why")
            await asyncio.to_thread(cluster.nodes[info.master].start)
            await asyncio.to_thread(eventually, lambda: reasons(cluster) == ({}, {}), "nothing is missing")

    with fast_cluster(3, min_in_sync=2) as cluster:
        asyncio.run(story(cluster))


def reasons(cluster: Cluster) -> tuple[dict[str, str], dict[str, str]]:
    """Why policies, and queues, cannot be as they are wanted, by name, as `mqtool` lists them."""

    def listed(*command: str) -> list[dict[str, str]]:
        result = CliRunner().invoke(app, ["--servers", ",".join(cluster.servers), *command, "--json"])
        return json.loads(result.stdout) if result.exit_code == 0 else []

    policies, queues = listed("list_policies"), listed("list_queues", "name", "mirrorlog_reason")
    return (
        {row["name"]: row["reason"] for row in policies if row["reason"]},
        {row["name"]: row["mirrorlog_reason"] for row in queues if row["mirrorlog_reason"]},
    )


@pytest.mark.story("000:49")
@pytest.mark.story("000:72")
@pytest.mark.story("000:408")
def test_the_commands(cluster: Cluster) -> None:
    """Goal: RabbitMQ's commands by their names, and ours. Method: set, list, clear, what is wrong, and what is not
    there."""

    def mqtool(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["--servers", ",".join(cluster.servers), *arguments])
        if isinstance(result.exception, MirrorlogError):
            return result.exception.exit_code, result.exception.message
        return result.exit_code, result.output

    definition = '{"ha-mode": "exactly", "ha-params": 2}'
    assert mqtool("set_policy", "--priority", "1", "--apply-to", "queues", "c-a", "^c$", definition)[0] == 0
    assert mqtool("set-policy", "-p", "/", "c-b", "^c$", definition, "--priority", "1")[0] == 0
    assert mqtool("declare", "c")[0] == 0
    rows = {row["name"]: row for row in json.loads(mqtool("list_policies", "--json")[1])}
    assert rows["c-a"] == {
        "vhost": "/", "name": "c-a", "pattern": "^c$", "apply-to": "queues",
        "definition": {"ha-mode": "exactly", "ha-params": 2}, "priority": 1, "queues": 1, "ties": ["c-b"], "reason": "",
    }  # fmt: skip
    assert "before c-b by name" in mqtool("list_policies")[1]
    columns = ("name", "policy", "pid", "slave_pids", "synchronised_slave_pids", "state")
    listed = {row["name"]: row for row in json.loads(mqtool("list_queues", *columns, "--json")[1])}
    assert (listed["c"]["policy"], listed["c"]["state"], len(listed["c"]["slave_pids"])) == ("c-a", "running", 1)
    assert "info keys memory are not supported" in mqtool("list_queues", "name", "memory")[1]
    for name in ("c-a", "c-b"):
        assert mqtool("clear_policy", name)[0] == 0
    code, text = mqtool("clear_policy", "c-a")
    assert (code, "there is no policy 'c-a'" in text) == (5, True)
    code, text = mqtool("set_policy", "bad", "^q$", '{"ha-mode": "some", "max-length": -1}')
    assert code == BadRequest.exit_code
    assert '"some" is not a valid ha-mode value' in text
    assert "max-length takes an integer" in text
    assert mqtool("set_policy", "bad", "x", "junk")[0] == BadRequest.exit_code
    assert "should be 'queues'" in mqtool("set_policy", "bad", "x", definition, "--apply-to", "topics")[1]
    assert "ha-mode cannot be set by an operator policy" in mqtool("set_operator_policy", "o", "x", definition)[1]


async def test_producers_that_ask_for_no_level_get_that_of_the_policy(client: Client) -> None:
    """Goal: what a confirm means is said for queues, once. Method: a policy with more copies than there are, which is
    refused: of producers and publishers that ask for nothing, and of no others; the list says why. An operator's policy
    is not below it; once both are cleared all is as ever."""
    topology = client.admin.topology
    await client.admin.declare("levels")
    await topology.set_policy("level", "^levels$", {"confirm": 4, "mirror-topology": "auto"})
    info = await once(client, "levels", lambda info: info.effective.get("confirm") == 4)
    assert (info.effective["mirror-topology"], info.sources["confirm"]) == ("auto", "policy level")
    async with client.producer("levels") as producer, client.publisher("") as publisher:
        for send in (producer.send(b"x"), publisher.publish("levels", b"x")):
            with pytest.raises(BadRequest, match="copies"):
                await send
    async with client.producer("levels", confirm="all") as producer:
        await producer.send(b"asked")
    async with client.transaction() as transaction:
        transaction.send("levels", b"together")
    await topology.set_policy("level", "^levels$", {"confirm": "master"})
    await topology.set_policy("least", "^levels$", {"confirm": "one"}, operator=True)
    info = await once(client, "levels", lambda info: info.effective == {"confirm": "one"})
    assert info.sources == {"confirm": "operator policy least"}
    async with client.producer("levels") as producer:
        assert (await producer.send(b"by two")).copies >= 2
    with pytest.raises(BadRequest, match='mirror-topology "ring" is not there yet'):
        await topology.set_policy("level", "^levels$", {"mirror-topology": "ring"})
    await topology.clear_policy("level")
    await topology.clear_policy("least", operator=True)
    await once(client, "levels", lambda info: not info.effective)
    assert await values(client, "levels") == [b"asked", b"together", b"by two"]


@pytest.mark.story("000:371")
async def test_a_policy_gives_an_exchange_its_alternate(client: Client) -> None:
    """Goal: what nothing takes is kept, without declaring the exchange anew. Method: a publish that no binding takes,
    before and after a policy, and after that is cleared; by a publisher that is there all the while."""
    topology = client.admin.topology
    await topology.declare_exchange("events", "topic")
    await topology.declare_exchange("spare", "fanout")
    await client.admin.declare("kept")
    await topology.bind("spare", "kept")
    async with client.publisher("events") as publisher:
        with pytest.raises(Unroutable):
            await publisher.publish("nobody", b"1", mandatory=True)
        await topology.set_policy("spare", "^events$", {"alternate-exchange": "spare"}, apply_to="exchanges")
        await publisher.publish("nobody", b"2", mandatory=True)
        await topology.clear_policy("spare")
        with pytest.raises(Unroutable):
            await publisher.publish("nobody", b"3", mandatory=True)
    assert await values(client, "kept") == [b"2"]
