"""Whether a client is told of an outage, and by whom."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from mirrorlog.client import Client
from mirrorlog.client.connection.finder import Finder
from mirrorlog.client.connection.queue_metadata import is_outage, not_found, outage_of
from mirrorlog.client.subscription.resumption import Resumption
from mirrorlog.errors import ConnectionLost, LogUnavailable, NoSuchQueue, NotMaster
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import Metadata, NodeInfo, QueueInfo, QueueOutage

DOWN = LogUnavailable("queue 'q' is on node n2 alone, which is down; start n2", node="n2", since=5, queue="q")


def answer(version: int, *queues: str) -> Metadata:
    outages = [QueueOutage(name=name, log_id="x", node="n2", since_us=5, reason=str(DOWN)) for name in queues]
    return Metadata(cluster_id="", cluster_name="", node_id="", nodes=[], queues=[], version=version, outages=outages)


def test_who_knows_most_says_whether_a_queue_is_out() -> None:
    """A node that is behind may think that a node is down that is back."""
    found = outage_of("q", [answer(3), answer(4, "p", "q")])
    assert found is not None
    assert is_outage(found)
    assert (found.details, str(found)) == (DOWN.details, str(DOWN))
    assert outage_of("q", [answer(3, "q"), answer(4)]) is None
    assert outage_of("q", [answer(4, "p")]) is None
    assert outage_of("q", []) is None
    assert not is_outage(LogUnavailable("the copy begins anew"))


def test_a_subscription_that_begins_ends_by_it_and_one_that_was_there_goes_on() -> None:
    """It may be a restart of the node."""
    begins = Resumption(now=0.0, patience_s=5.0, cancel_on_failover=False)
    begins.refused(DOWN, 0.0)
    assert begins.error is DOWN
    was_there = Resumption(now=0.0, patience_s=5.0, cancel_on_failover=False)
    was_there.subscribed("x", 1)
    was_there.lost(LogUnavailable("gone"), 1.0)
    was_there.refused(DOWN, 2.0)
    assert not was_there.over
    assert was_there.trouble(6.5) is DOWN


class Nodes:
    """Each says that n2 masters the queue; those in `saying_down` that it is down, and that the queue waits for it."""

    def __init__(self, *names: str, saying_down: str) -> None:
        self.names, self.saying_down = names, saying_down
        self.takes_s: dict[str, float] = {}

    def addresses(self) -> list[str]:
        return list(self.names)

    async def ask(self, address: str, queues: list[str] | None) -> Metadata:
        await asyncio.sleep(self.takes_s.get(address, 0.0))
        info = QueueInfo(name="q", queue_id=1, log_id="x", epoch=1, master="n2", mirrors=[], begin=0, next=0)
        nodes = [NodeInfo(node_id="n2", client="n2:1", replication="")]
        told = answer(7, *(["q"] if address in self.saying_down else []))
        return msgspec.structs.replace(told, node_id=address, nodes=nodes, queues=[info])

    def learn(self, answer: Metadata) -> None:
        """Nothing new."""


async def test_who_wants_the_master_is_told_that_there_will_be_none_and_who_reads_a_copy_is_not() -> None:
    """Goal: nobody waits for a node that somebody has to start, and a copy that is up is read. Method: the only node
    that is there has a copy that may lack something; it is found, and its master is refused at once."""
    found = await Finder(Nodes("n1", saying_down="n1")).find("q")
    assert found.info.master == "n2"
    with pytest.raises(LogUnavailable, match="start n2") as refused:
        await Client("n1:1").reach_master(found)
    assert is_outage(refused.value)


async def test_a_node_that_is_cut_off_from_the_master_is_not_believed_while_the_master_answers() -> None:
    """Goal: whom one node cannot hear may be there all the same. Method: it is asked first, and says that the master is
    down; the master answers, too."""
    for names in (("n1", "n2"), ("n2", "n1")):
        found = await Finder(Nodes(*names, saying_down="n1")).find("q")
        assert (found.told_by, found.outage) == ("n2", None)


async def test_a_master_that_answers_later_than_others_is_waited_for() -> None:
    """Goal: a mirror that cannot hear the master ends nobody's work with it. Method: the mirror answers at once, the
    master after 200 ms; then one that never does: the mirror is believed."""
    nodes = Nodes("n1", "n2", saying_down="n1")
    nodes.takes_s["n2"] = 0.2
    found = await Finder(nodes).find("q")
    assert (found.told_by, found.outage) == ("n2", None)
    nodes.takes_s["n2"] = 3600.0
    async with asyncio.timeout(5):
        found = await Finder(nodes).find("q")
    assert found.told_by == "n1"
    assert is_outage(found.outage or LogUnavailable(""))


def test_a_queue_that_has_a_place_is_there_also_when_no_node_that_answers_has_it() -> None:
    """Goal: nobody is told that there is no such queue because its node is slow, or because it moves. Method: of three
    nodes two answer, and the one that knows most says that it is placed; then that it is not."""
    nodes = [NodeInfo(node_id=name, client=f"{name}:1", replication="") for name in ("n1", "n2", "n3")]
    n1, n2 = (msgspec.structs.replace(answer(7), node_id=name, nodes=nodes, missing=["q"]) for name in ("n1", "n2"))
    placed = msgspec.structs.replace(n2, version=8, placed=["q"])
    told = not_found("q", [n1, placed])
    assert isinstance(told, NotMaster)
    assert told.retriable
    assert "'q' is there" in str(told)
    assert "n3 did not answer" in str(told)
    assert "did not answer" not in str(not_found("q", [n1, placed, msgspec.structs.replace(n1, node_id="n3")]))
    denied = not_found("q", [placed, msgspec.structs.replace(n1, version=8)])
    assert isinstance(denied, NoSuchQueue), "by the master of the log that it is placed in"
    gone = not_found("q", [placed, msgspec.structs.replace(n1, version=9)])
    assert isinstance(gone, NoSuchQueue)
    assert "mqtool declare q" in str(gone)


@pytest.mark.process
async def test_what_is_opened_while_no_node_answers_waits_for_one(tmp_path: Path) -> None:
    """Goal: who opens something in an outage is no worse off than who has it open. Method: kill the only node behind a
    client; a producer, a publisher, a consumer and a subscription begin, and the node comes back. A client that has
    never reached a node is told at once."""
    with Cluster(1, data_dir=tmp_path) as cluster:
        node = cluster.nodes["n1"]
        async with Client(*cluster.servers, request_timeout_ms=60_000) as client:
            await client.admin.declare("q")
            await asyncio.to_thread(node.kill)
            never = Client(*cluster.servers, request_timeout_ms=60_000)
            async with asyncio.timeout(30):
                with pytest.raises(ConnectionLost):
                    await never.connect()
                with pytest.raises(ConnectionLost):
                    await never.producer("q").start()
            opened = [client.producer("q"), client.publisher(""), client.consumer("q"), client.subscribe("q")]
            starts = [asyncio.ensure_future(each.start()) for each in opened]
            await asyncio.to_thread(node.start)
            async with asyncio.timeout(60):
                await asyncio.gather(*starts)
            async with asyncio.timeout(60), client.producer("q") as producer:
                await producer.send(b"v")
            for each in opened:
                await each.close()
