"""What operators do to a cluster of real processes: drain, rebalance, promote by hand, forget, recover what is left."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import MirrorlogError, NoSuchLog, PositionLost, Refused
from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from mirrorlog.tools.main import main
from mirrorlog.wire.messages.status import PlacedLog

pytestmark = pytest.mark.process

SEGMENT_BYTES = 8 * 1024 * 1024
GAP_MAX_S = 2.0
"""A handover takes a tenth of a second; a failover that waits for a timeout several."""


class Tool:
    """mqtool in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, servers: list[str]) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--servers", ",".join(servers), *arguments])
        captured = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    def ok(self, *arguments: str, servers: list[str]) -> str:
        """What it printed. Fails unless it succeeded."""
        code, out, err = self(*arguments, servers=servers)
        assert code == 0, err
        return out

    def json(self, *arguments: str, servers: list[str]) -> Any:
        return json.loads(self.ok(*arguments, "--json", servers=servers))


@pytest.fixture
def mqtool(capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(capsys)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes and a log whose home is n1."""
    with Cluster(3, segment_bytes=SEGMENT_BYTES) as started:
        started.wait_in_sync()
        yield started


def placed(cluster: Cluster, log: str = "main") -> PlacedLog:
    """As the node knows it that has seen most."""
    views = [status.cluster for status in cluster.statuses().values() if status.cluster is not None]
    newest = max(views, key=lambda view: (view.incarnation, view.version))
    return next(each for each in newest.logs if each.name == log)


def until(condition: Callable[[], object], what: str) -> None:
    wait_for(lambda: condition() or None, timeout=30.0, what=lambda: what)


class Load:
    """Publishes one record after the other while something is done: how long the longest took, and what landed."""

    def __init__(self, servers: list[str]) -> None:
        self.confirmed: list[bytes] = []
        self.failures: list[MirrorlogError] = []
        self.gap_s = 0.0
        self._servers = servers

    def during(self, act: Callable[[], None]) -> None:
        """While `act` runs in a thread, some records before and some behind it."""
        asyncio.run(self._run(act))

    async def _run(self, act: Callable[[], None]) -> None:
        async with Client(*self._servers) as client, client.producer("q") as producer:
            await self._publish(producer, 20)
            acting = asyncio.ensure_future(asyncio.to_thread(act))
            while not acting.done():
                await self._publish(producer, 1)
            await acting
            await self._publish(producer, 20)

    async def _publish(self, producer: Any, count: int) -> None:
        for _ in range(count):
            value, began = str(len(self.confirmed)).encode(), time.monotonic()
            try:
                await producer.send(value)
            except MirrorlogError as error:
                self.failures.append(error)
            else:
                self.confirmed.append(value)
            self.gap_s = max(self.gap_s, time.monotonic() - began)


def consumed(servers: list[str], start: int | str = "earliest", until: int | str = "confirmed") -> list[bytes]:
    """Every record that there is."""
    with SyncClient(*servers) as client, client.consumer("q", start=start, until=until) as consumer:
        return [bytes(delivery.value) for delivery in consumer]


@pytest.mark.long
def test_a_drain_moves_every_mastership_under_load(cluster: Cluster, mqtool: Tool) -> None:
    """No record is refused, lost, doubled or out of order, and none waits for long; then they come home again. By
    draining the master and rebalancing, while somebody publishes."""
    servers = cluster.servers
    mqtool.ok("declare", "q", servers=servers)
    load = Load(servers)
    load.during(lambda: _done(mqtool.ok("drain", "n1", "--wait", servers=servers)))
    assert placed(cluster).master in ("n2", "n3")
    assert set(placed(cluster).in_sync) == {"n1", "n2", "n3"}
    assert "draining" in mqtool.ok("nodes", servers=servers)
    assert mqtool.json("rebalance", "--dry-run", servers=servers)["moves"][0]["reason"] == "n1 is draining"
    mqtool.ok("drain", "n1", "--undo", servers=servers)
    assert "would be handed over" in mqtool.ok("rebalance", "--dry-run", servers=servers)
    load.during(lambda: _done(mqtool.ok("rebalance", "--wait", servers=servers)))
    assert placed(cluster).master == "n1"
    assert "every log is mastered by its home" in mqtool.ok("rebalance", servers=servers)
    assert not load.failures
    assert load.gap_s < GAP_MAX_S
    assert consumed(servers) == load.confirmed
    kinds = [event["kind"] for event in mqtool.json("events", servers=servers)]
    assert kinds.count("promoted") == 3
    assert "node_draining" in kinds
    assert "loss_declared" not in kinds


def _done(_: str) -> None:
    """Its result is of no interest."""


@pytest.mark.long
def test_a_stop_hands_over_first(cluster: Cluster, mqtool: Tool) -> None:
    """Nobody notices a restart of the master but by a moment's wait; by SIGTERM while somebody publishes."""
    servers = cluster.servers
    mqtool.ok("declare", "q", servers=servers)
    load = Load(servers)
    load.during(lambda: _done(str(cluster.nodes["n1"].stop())))
    assert not load.failures
    assert load.gap_s < GAP_MAX_S
    assert "handed_over logs=main" in cluster.nodes["n1"].log_tail(100)
    cluster.nodes["n1"].start()
    cluster.wait_in_sync()
    assert consumed(servers) == load.confirmed
    assert not mqtool.json("nodes", servers=servers)["nodes"][0]["draining"], "its next start ended that"


def test_a_node_that_is_gone_is_forgotten(cluster: Cluster, mqtool: Tool) -> None:
    """Not while it is up; then it neither votes nor counts. By killing one and forgetting it."""
    servers = [cluster.nodes[name].client for name in ("n1", "n2")]
    code, _, err = mqtool("forget-node", "n3", servers=servers)
    assert code == 3
    assert "node n3 is up" in err
    assert mqtool("forget-node", "n9", servers=servers)[0] == 5
    cluster.nodes["n3"].kill()
    # Refused until the coordinator has seen it, whoever has seen it before.
    until(lambda: mqtool("forget-node", "n3", servers=servers)[0] == 0, "n3 is down, and forgotten")
    until(lambda: len(mqtool.json("nodes", servers=servers)["nodes"]) == 2, "n3 is no member")
    found = mqtool.json("nodes", servers=servers)
    assert any("cannot fail over by themselves" in warning for warning in found["warnings"])
    assert placed(cluster).replicas == ["n1", "n2"]


@pytest.mark.long
def test_a_copy_that_fell_behind_is_promoted_by_hand(mqtool: Tool) -> None:
    """With the range that may be lost, and only by --accept-loss; by a mirror that was down while records were
    confirmed by the master alone, which then dies. What it has goes on, and takes new records."""
    with Cluster(3, min_in_sync=1, logs=({"mirrors": ["n2"]},), segment_bytes=SEGMENT_BYTES) as cluster:
        cluster.wait_in_sync()
        first, second = cluster.nodes["n1"], cluster.nodes["n2"]
        mqtool.ok("declare", "q", servers=cluster.servers)
        _publish(cluster.servers, 10)
        end = cluster.wait_confirmed().end
        code, _, err = mqtool("promote", "main", "--dry-run", servers=cluster.servers)
        assert code == 3
        assert "is mastered by n1" in err
        second.kill()
        until(lambda: placed(cluster).in_sync == ["n1"], "n2 left the set")
        _publish([first.client], 10)
        first.kill()
        second.start()
        servers = [second.client, cluster.nodes["n3"].client]
        until(lambda: mqtool.json("nodes", servers=servers)["nodes"][0]["life"] == "down", "n1 is down")
        until(lambda: mqtool("promote", "main", "--dry-run", servers=servers)[0] == 0, "n2 is seen by the other")
        told = mqtool.ok("promote", "main", "--dry-run", servers=servers)
        assert "missing: n1" in told
        assert f"may be lost from log offset {end} on" in told
        assert mqtool("promote", "main", servers=servers)[0] == 3, "it asks for --accept-loss"
        assert placed(cluster).master != "n2"
        done = mqtool.json("promote", "main", "--to", "n2", "--accept-loss", servers=servers)["answer"]
        assert (done["node"], done["lost_from"]) == ("n2", end)
        until(lambda: cluster.wait_master() == "n2", "n2 masters the log")
        assert placed(cluster).losses[0].start == end
        assert any(
            "confirmed records may be lost" in each for each in mqtool.json("nodes", servers=servers)["warnings"]
        )
        assert "loss_declared" in [event["kind"] for event in mqtool.json("events", servers=servers)]
        _publish(servers, 5)
        with pytest.raises(PositionLost, match="from queue offset 10 on is lost") as lost:
            consumed(servers)
        assert len(consumed(servers, start=int(lost.value.details["go_on_at"]))) == 5


def _publish(servers: list[str], count: int) -> None:
    with SyncClient(*servers) as client, client.producer("q") as producer:
        for number in range(count):
            producer.send(str(number).encode())


def test_a_program_may_ask_for_all_of_it(cluster: Cluster) -> None:
    """Without a loop too; by each of the methods, with answers and refusals."""
    with SyncClient(*cluster.servers) as client:
        admin = client.admin
        assert admin.drain("n3") == "n3"
        assert admin.drain("n3", draining=False) == "n3"
        assert admin.rebalance().moves == []
        with pytest.raises(Refused, match="is mastered by n1"):
            admin.promote("main")
        with pytest.raises(NoSuchLog):
            admin.promote("other", accept_loss=True)
        with pytest.raises(Refused, match="n3 is up"):
            admin.forget_node("n3")
        kinds = [event.kind for event in admin.events(node_id="n2").events]
        assert kinds[-2:] == ["node_draining", "node_undrained"]
        assert admin.events(after=10_000, wait_ms=50).events == []


def test_a_watcher_follows_a_failover(cluster: Cluster) -> None:
    """It hears of the death and of the next master, in whatever order its node does, though it was waiting for long; by
    a long poll at a mirror while the master is killed."""

    async def run() -> None:
        async with Client(cluster.nodes["n2"].client) as client:
            after = (await client.admin.events()).last
            waiting = asyncio.ensure_future(client.admin.events(after=after, wait_ms=20_000))
            await asyncio.to_thread(cluster.nodes["n1"].kill)
            missing = {"node_down", "promoted"}
            async with asyncio.timeout(15):
                while missing:
                    answer = await waiting
                    missing -= {event.kind for event in answer.events if "n1" in event.text}
                    waiting = asyncio.ensure_future(client.admin.events(after=answer.last, wait_ms=20_000))
            waiting.cancel()

    asyncio.run(run())


@pytest.mark.long
def test_one_of_three_goes_on_when_the_others_are_lost(tmp_path: Path, mqtool: Tool) -> None:
    """With its records, after it was recovered by hand; and a lost one that returns is refused. By killing two, which
    stops everything, and recovering the third."""
    cluster = Cluster(3, data_dir=tmp_path, segment_bytes=SEGMENT_BYTES)
    try:
        cluster.start()
        cluster.wait_in_sync()
        mqtool.ok("declare", "q", servers=cluster.servers)
        _publish(cluster.servers, 10)
        cluster.wait_confirmed()
        node = cluster.nodes["n1"]
        for each in cluster.nodes.values():
            each.kill()
        arguments = ["recover-cluster", "--data-dir", str(node.data_dir), "--survivors", "n1"]
        assert "nothing was changed" in mqtool.ok(*arguments, servers=[node.client])
        assert "n1 begins anew" in mqtool.ok(*arguments, "--accept-loss", servers=[node.client])
        assert "n1 had begun anew already" in mqtool.ok(*arguments, "--accept-loss", servers=[node.client])
        node.start()
        until(lambda: placed(cluster).master == "n1", "n1 masters the log")
        assert len(consumed([node.client], until=10)) == 10
        _publish([node.client], 5)
        found = mqtool.json("nodes", servers=[node.client])
        assert (found["incarnation"], [each["node_id"] for each in found["nodes"]]) == (2, ["n1"])
        assert placed(cluster).losses
        assert placed(cluster).epoch > 1_000_000
        other = cluster.nodes["n2"]
        other.launch()
        until(lambda: other.exit_code is not None, "n2 ends")
        assert "recovered without this node" in other.log_tail()
        assert [each["node_id"] for each in mqtool.json("nodes", servers=[node.client])["nodes"]] == ["n1"]
    finally:
        cluster.close()
