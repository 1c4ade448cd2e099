"""Connections that say nothing, or come and go: what they cost a node, and whom they keep out."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.messages.status import Status
from tests.attacks.large_frames import send_one
from tests.attacks.reconnects import connect_many
from tests.attacks.silent_sockets import HELD, open_one, silent
from tests.attacks.target import Target
from tests.process.clusters import MIB, eventually, fast_cluster, log_lines, log_of, start_all

SECRET = "what only the nodes of this cluster know"
LOGIN = {"user": "admin", "password": "the administrator's password"}
FILES = 1_024
NOBODY = {"client": 0, "replication": 0}


def memory_bytes(node: Node) -> int:
    """Its own memory, without the pages of its files."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def open_files(node: Node) -> int:
    return len(os.listdir(f"/proc/{node.pid}/fd"))  # noqa: PTH208 - names are wanted, not paths


def statuses(cluster: Cluster, client: Client) -> list[Status]:
    return [client.admin.status(node) for node in cluster.nodes]


def mastership(cluster: Cluster, client: Client) -> tuple[dict[str, int], int, int]:
    """Processes, elections and promotions so far."""
    views = [status.cluster for status in statuses(cluster, client) if status.cluster is not None]
    epochs = max(sum(log.epoch for log in view.logs) for view in views)
    return {node.id: node.pid for node in cluster.nodes.values()}, max(view.term for view in views), epochs


def mirrors_follow(cluster: Cluster, client: Client) -> bool:
    logs = [log for status in statuses(cluster, client) for log in status.logs if log.role == "master"]
    mirrors = [mirror for log in logs for mirror in log.mirrors]
    return len(mirrors) == 2 and all(mirror.connected and mirror.in_sync for mirror in mirrors)


def restart_limited(cluster: Cluster, how: str) -> None:
    """From then on its nodes may have so many files: `soft`, until they ask for more, or `hard`, and no more."""
    command = {"soft": f"ulimit -S -n {FILES}", "hard": f"ulimit -n {FILES}"}[how]
    for node in cluster.nodes.values():
        node.stop()
        node.command_prefix = ("sh", "-c", f'{command} && exec "$@"', "sh")
    start_all(cluster)
    cluster.wait_in_sync()


def give_user(cluster: Cluster) -> None:
    with Client(*cluster.servers, tls=cluster.tls) as client:
        client.admin.declare("q")
        client.admin.topology.set_user(LOGIN["user"], password_hash=hashed(LOGIN["password"]), tags=["administrator"])
    with Client(*cluster.servers, tls=cluster.tls, **LOGIN) as client:
        client.admin.topology.set_permissions(LOGIN["user"], configure=".*", write=".*", read=".*")


@pytest.mark.long_after(1)
@pytest.mark.parametrize("tls", [None, "server"], ids=["plain", "tls"])
@pytest.mark.parametrize("how", ["soft", "hard"])
def test_silent_sockets_end_no_node_and_keep_nobody_out(how: str, tls: str | None) -> None:
    """Goal: who never logs in costs a cluster nothing but its places for strangers. Method: three nodes that may have
    1,024 files, at first or for good; 1,150 sockets to each of two nodes, on both ports, silent or, with TLS, in a
    handshake that they do not go on with. Nobody ends and nobody is elected, a user goes on and another one logs in,
    the mirrors follow all the time, and files are left."""
    with fast_cluster(3, tls=tls, settings={"cluster.secret": SECRET}) as three:
        restart_limited(three, how)
        give_user(three)
        with Client(*three.servers, tls=three.tls, **LOGIN) as user, user.producer("q") as producer:
            producer.send(b"before")
            before = mastership(three, user)
            attacked = list(three.nodes.values())[:2]
            addresses = [address for node in attacked for address in (node.client, node.replication)]
            with silent(addresses, HELD // 2, half_open=tls is not None) as held:
                assert held > HELD
                for number in range(20):
                    producer.send(b"%d" % number)
                for node in attacked:
                    with Client(node.client, tls=three.tls, **LOGIN) as late:
                        assert late.admin.status(node.id).node_id == node.id
                    assert open_files(node) < FILES
                eventually(lambda: mirrors_follow(three, user), "the mirrors follow")
            producer.send(b"after")
            assert mastership(three, user) == before
        for node in three.nodes.values():
            assert bool(log_lines(node, "connections_capped")) == (how == "hard")
            assert not log_lines(node, "cannot_accept")


@contextmanager
def flooded(address: str, source: str) -> Iterator[list[int]]:
    """Silent sockets from an address, one after the other as fast as they get through; how many there were, so far."""
    ended, made = threading.Event(), [0]

    def flood() -> None:
        held: deque[socket.socket] = deque()
        while not ended.is_set():
            if (opened := open_one(address, source=source)) is not None:
                held.append(opened)
                made[0] += 1
            if len(held) > 500:
                held.popleft().close()
        for each in held:
            each.close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield made
    finally:
        ended.set()
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"], ids=["own address", "another address"])
def test_a_flood_of_the_replication_port_keeps_no_mirror_out(source: str) -> None:
    """Goal: places are guarded, not only what is behind them: a mirror comes back through a flood of strangers, from an
    address of their own and from its own. Method: let its link go by pausing it, flood until all places are taken and
    taken again, let it go on: it follows while the flood goes on."""
    with fast_cluster(2, settings={"cluster.secret": SECRET}) as two:
        two.wait_in_sync()
        master, mirror = two.master, two.mirrors[0]
        mirror.pause()
        try:
            eventually(lambda: not log_of(master).mirrors[0].connected, "the silent link is closed")
            with flooded(master.replication, source) as made:
                eventually(lambda: made[0] > 600, "all places are taken")
                before = made[0]
                mirror.resume()
                eventually(lambda: (found := log_of(master).mirrors[0]).connected and found.in_sync, "it follows")
                eventually(lambda: made[0] > before + 100, "the flood goes on")
                assert log_of(master).mirrors[0].connected
        finally:
            mirror.resume()


@pytest.mark.long
def test_connections_that_left_leave_their_memory() -> None:
    """Goal: what a connection made the node hold goes with it. Method: 800 that each send one frame of 2 MiB, in all
    1.6 GiB, and leave: the node is as small as before."""
    with fast_cluster(1) as one:
        (node,) = one.nodes.values()
        target = Target(client=(node.client,), replication=(node.replication,))
        assert send_one(target, node.client)
        before = memory_bytes(node)
        assert sum(send_one(target, node.client) for _ in range(800)) == 800
        assert memory_bytes(node) < before + 100 * MIB


def test_connections_that_come_and_go_leave_nothing() -> None:
    """Goal: a fleet that reconnects all the time costs a node nothing for good. Method: 3,000 connections to both ports
    that greet or do not and go; memory and open files are as before."""
    with fast_cluster(1) as one:
        (node,) = one.nodes.values()
        target = Target(client=(node.client,), replication=(node.replication,))
        addresses = (node.client, node.replication)
        asyncio.run(connect_many(target, addresses, Random(1), count=200))
        eventually(lambda: node.status().counts.strangers == NOBODY, "they are gone")  # type: ignore[union-attr]
        memory, files = memory_bytes(node), open_files(node)
        assert asyncio.run(connect_many(target, addresses, Random(2), count=3_000)) > 2_900
        eventually(lambda: node.status().counts.strangers == NOBODY, "they are gone")  # type: ignore[union-attr]
        assert memory_bytes(node) < memory + 50 * MIB
        assert open_files(node) < files + 20
