"""Under a service manager: a real node tells it when it serves, that it lives, and that it ends; and logs in JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.broker.service_manager import ServiceManager
from mirrorlog.testing.cluster import Cluster
from mirrorlog.testing.node import Node


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """The manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(address)
        found.settimeout(10)
        yield found


def told(manager: socket.socket) -> dict[str, str]:
    """The next thing that it is told."""
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())


def until(manager: socket.socket, key: str) -> dict[str, str]:
    """What it is told with `key`; more than the socket holds is not looked through for it."""
    return next(facts for facts in (told(manager) for _ in range(1000)) if key in facts)


def drain(manager: socket.socket) -> None:
    """Until nothing comes for half a second."""
    manager.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        for _ in range(1000):
            told(manager)
        pytest.fail("it goes on")
    manager.settimeout(10)


def test_a_node_tells_that_it_serves_lives_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: `Type=notify` with a watchdog. Method: the manager's socket is this test's; the HTTP door answers by the
    time that READY is said; the loop's signs of life stop when the process stands still, and come again."""
    address = tmp_path / "notify"
    with listening(str(address)) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        with Cluster(copies=1, http=True, settings={"node.log_format": "json"}) as cluster:
            node = cluster.master
            assert "STATUS" in told(manager)
            assert " serving client=" in until(manager, "READY")["STATUS"]
            assert node.http is not None
            host, _, port = node.http.rpartition(":")
            socket.create_connection((host, int(port)), timeout=1).close()
            assert until(manager, "WATCHDOG") == {"WATCHDOG": "1"}

            node.pause()
            drain(manager)
            node.resume()
            until(manager, "WATCHDOG")

            assert node.stop() == 0
            assert until(manager, "STOPPING")["STATUS"].startswith("stopping")
            objects_of(node)


def objects_of(node: Node) -> None:
    """Each line of the node and its door is an object that says who wrote it."""
    said = [json.loads(line) for line in node.log_file.read_text().splitlines()]
    assert {line["node"] for line in said} == {node.id}
    assert any(line.get("event") == "http_door_serving" and line["fields"]["pid"] > 0 for line in said)
    assert any(line.get("event") == "node_stopped" for line in said)


def test_a_node_that_cannot_start_says_so_in_json_too(tmp_path: Path) -> None:
    """Method: its directory is of another node that runs."""
    with Cluster(copies=1, settings={"node.log_format": "json"}) as cluster:
        other = cluster.master
        twin = Node("n1", client=other.client, replication=other.replication, directory=other.data_dir.parent)
        twin.log_file = tmp_path / "twin.log"
        with pytest.raises(Exception, match="node_failed"):
            twin.start()
        [*_, last] = [json.loads(line) for line in twin.log_file.read_text().splitlines()]
        assert (last["level"], last["event"], last["node"]) == ("critical", "node_failed", "n1")


@pytest.mark.parametrize("watched", [True, False])
async def test_a_start_that_takes_long_is_given_more_time(watched: bool) -> None:
    """Method: an abstract socket, and a node that is not ready yet."""
    name = f"mirrorlog-{os.getpid()}-{watched}"
    with listening(f"\0{name}") as socket_:
        socket_.setblocking(False)
        environment = {
            "NOTIFY_SOCKET": f"@{name}",
            "WATCHDOG_USEC": "60000",
            "WATCHDOG_PID": str(os.getpid() + watched),
        }
        manager = ServiceManager.of_environment(environment)
        assert environment == {}
        watching = asyncio.ensure_future(manager.watch())
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(socket_, 4096) == b"EXTEND_TIMEOUT_USEC=60000000"
        manager.ready("here")
        if not watched:
            assert await loop.sock_recv(socket_, 4096) == b"WATCHDOG=1"
        assert await loop.sock_recv(socket_, 4096) == b"READY=1\nSTATUS=here"
        watching.cancel()


def test_nobody_who_listens_holds_nobody_up(tmp_path: Path) -> None:
    """Method: no manager; one whose socket is gone; one that is slow to read."""
    ServiceManager.of_environment({}).ready("here")
    ServiceManager(str(tmp_path / "gone")).ready("here")
    with listening(str(tmp_path / "slow")):
        slow = ServiceManager(str(tmp_path / "slow"))
        for _ in range(1_000):
            slow.tell(STATUS="here")
