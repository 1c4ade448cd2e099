"""Which node is on this host, and who is read from first."""

from __future__ import annotations

import socket

import pytest

from mirrorlog.client import Client
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.consumer import replica_choice
from mirrorlog.client.consumer.replica_choice import ReplicaChoice, is_here
from mirrorlog.errors import BadRequest
from mirrorlog.wire.messages.queues import Metadata, NodeInfo, QueueInfo


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1:7401", True),
        ("localhost:7401", True),
        ("127.8.8.8:7401", True),
        ("192.0.2.1:7401", False),
        ("[2001:db8::1]:7401", False),
        ("no-such-host.invalid:7401", False),
    ],
)
async def test_an_address_of_this_host_is_known(address: str, here: bool) -> None:
    """By loopback, by addresses that are nobody's (RFC 5737, RFC 3849), and by a name that has none."""
    assert await is_here(address) is here


async def test_the_own_address_is_here() -> None:
    """By the address that this host would send from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no route")
        assert await is_here(f"{probe.getsockname()[0]}:7401")


async def test_a_copy_on_this_host_is_asked_before_others_and_a_mirror_before_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the order in which nodes would be asked, with none of them here, the master, one mirror, both."""
    client = Client("n1:1")
    nodes = [NodeInfo(node_id=node, client=f"{node}:1", replication=f"{node}:2") for node in ("n1", "n2", "n3")]
    client.learn(Metadata(cluster_id="c", cluster_name="c", node_id="n1", nodes=nodes, queues=[]))
    info = QueueInfo(name="q", queue_id=1, log_id="l", epoch=1, master="n1", mirrors=["n2", "n3"], begin=0, next=0)

    async def order(*here: str) -> list[str]:
        async def is_one(address: str) -> bool:
            return address in {f"{node}:1" for node in here}

        monkeypatch.setattr(replica_choice, "is_here", is_one)
        return await ReplicaChoice(client, "q", Copies(client, "q"), read_from="nearest", turn=0).in_order(info)

    assert await order() == ["n2", "n3", "n1"]
    assert await order("n1") == ["n1", "n2", "n3"]
    assert await order("n3") == ["n3", "n2", "n1"]
    assert await order("n1", "n3") == ["n3", "n1", "n2"]


@pytest.mark.process
async def test_the_nearest_copy_is_read(client: Client, queue: str) -> None:
    """By a real queue: every record, wherever it came from."""
    async with client.producer(queue) as producer:
        for number in range(20):
            await producer.send(b"%d" % number)
    async with client.consumer(queue, start="earliest", until=20, read_from="nearest") as consumer:
        assert [record.value async for record in consumer] == [b"%d" % number for number in range(20)]


@pytest.mark.process
async def test_a_node_without_the_queue_is_refused_by_name(client: Client, queue: str) -> None:
    """By naming a node that there is not."""
    with pytest.raises(BadRequest, match="not 'n9'"):
        await client.consumer(queue, start=0, read_from="n9").start()
