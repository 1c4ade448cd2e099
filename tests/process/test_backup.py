"""A running cluster is backed up and comes back elsewhere, as another cluster: record for record, ack for ack."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.client.consumer.records import ConsumedRecord
from mirrorlog.client.sync import Client
from mirrorlog.testing import Cluster, Node
from mirrorlog.testing.cluster import dump_toml
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.versions import BACKUP
from tests.process.clusters import eventually

STREAM, WORK = "events", "jobs"


def mqtool(*arguments: str, servers: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mirrorlog.tools.main", *(["--servers", servers] if servers else []), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def told(*arguments: str, servers: str = "") -> Any:
    """Fails unless it succeeds."""
    done = mqtool(*arguments, "--json", servers=servers)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def cluster_of(copies: int = 3, **settings: Any) -> Iterator[Cluster]:
    """That works at the version in which there are backups."""
    with Cluster(copies, logs=(), settings=settings) as started:
        eventually(
            lambda: all(
                each.cluster and each.cluster.cluster_version >= BACKUP for each in started.statuses().values()
            ),
            "the cluster works at the newest version",
        )
        yield started


@contextmanager
def restored(folder: Path, directory: Path, node_id: str = "r1") -> Iterator[Node]:
    """The node of a restored cluster, which runs."""
    options = ("--node-id", node_id, "--data-dir", str(directory / node_id))
    done = mqtool("restore", str(folder), *options)
    assert done.stdout.endswith(f"start it: mqnode {' '.join(options)}\n"), done
    with started(directory, node_id) as node:
        yield node


@contextmanager
def started(directory: Path, node_id: str, *flags: str) -> Iterator[Node]:
    client, replication = (f"{HOST}:{port}" for port in free_ports(2))
    node = Node(node_id, client=client, replication=replication, directory=directory)
    tables: dict[str, dict[str, Any]] = {
        "node": {"id": node_id, "data_dir": node.data_dir},
        "client": {"bind": client},
        "replication": {"bind": replication},
        "grpc": {"enabled": False},
        "http": {"enabled": False},
    }
    node.config_file.write_text(dump_toml(tables))
    node.start(*flags)
    try:
        yield node
    finally:
        node.kill()


def read(client: Client, queue: str) -> list[ConsumedRecord]:
    """All that is confirmed now."""
    found: list[ConsumedRecord] = []
    with client.consumer(queue, start="earliest") as consumer:
        while some := consumer.read(timeout_ms=500):
            found += some
    return found


def unsettled(client: Client, queue: str) -> dict[int, tuple[bytes | None, bool]]:
    """What the queue's own group would be given: value, and whether it was given out before; by queue offset."""
    found: dict[int, tuple[bytes | None, bool]] = {}
    with client.subscribe(queue) as jobs:
        while some := jobs.receive(timeout_ms=700):
            found |= {each.record.queue_offset: (each.record.value, each.redelivered) for each in some}
    return found


class Publisher:
    """Publishes on and on; `confirmed`: how many are."""

    def __init__(self, servers: list[str]) -> None:
        self.confirmed = 0
        self._servers = servers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self._thread.start()
        eventually(lambda: self.confirmed > 20, "it publishes")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(*self._servers) as client, client.producer(STREAM) as producer:
            while not self._stop.is_set():
                producer.send(b"later %d" % self.confirmed)
                self.confirmed += 1


def has_all(node: Node) -> bool:
    cluster = node.status().cluster
    return cluster is not None and all(node.id in log.in_sync for log in cluster.logs if len(log.replicas) > 1)


def fill(client: Client, count: int) -> None:
    """A stream with all that a record can have and a group that stands in it; a work queue, some of it settled."""
    client.admin.declare(STREAM)
    client.admin.declare(WORK, {"nodes": ["n2", "n3"]})
    client.admin.topology.declare_exchange("in", "topic")
    client.admin.topology.bind("in", STREAM, "a.#")
    with client.producer(STREAM) as stream, client.producer(WORK) as jobs:
        for number in range(count):
            stream.send_nowait(
                b"v%d" % number,
                key=b"k%d" % (number % 7),
                headers=[("n", b"%d" % number)],
                timestamp=1_000_000 + number,
            )
            jobs.send_nowait(b"job %d" % number)
        stream.flush()
        jobs.flush()
    with client.consumer(STREAM, start="earliest") as consumer:
        got: list[ConsumedRecord] = []
        while len(got) < count // 2:
            got += consumer.read(count // 2 - len(got), timeout_ms=5_000)
        client.admin.commit_position(STREAM, "reports", consumer.position)
    with client.subscribe(WORK, prefetch=count) as work:
        taken: list[Any] = []
        while len(taken) < count:
            taken += work.receive(count - len(taken), timeout_ms=5_000)
        for each in taken:
            if each.record.queue_offset % 3:
                each.ack_nowait()
        work.flush()


def test_what_was_confirmed_comes_back_elsewhere_as_it_was(tmp_path: Path) -> None:
    """Goal: offsets, headers, times, positions, acks, what is declared. Method: three nodes, two logs, a backup while
    somebody publishes; a node of another cluster is made of it, and both are compared."""
    with cluster_of() as cluster:
        servers = ",".join(cluster.servers)
        with Client(*cluster.servers) as client:
            assert mqtool("set_policy", "short", "^tmp", '{"max-length": 10}', servers=servers).returncode == 0
            fill(client, 300)
            with Publisher(cluster.servers) as publisher:
                confirmed = 300 + publisher.confirmed
                made = told("backup", str(tmp_path / "b"), servers=servers)
            assert made["logs"] >= 2
            stream, left = read(client, STREAM), unsettled(client, WORK)
            position = client.admin.position(STREAM, "reports")
        cluster_id = next(iter(cluster.statuses().values())).cluster_id
    with restored(tmp_path / "b", tmp_path) as node:
        assert node.status().cluster_id not in ("", cluster_id)
        with Client(node.client) as client:
            found = read(client, STREAM)
            assert len(found) >= confirmed
            assert found == stream[: len(found)]
            assert unsettled(client, WORK) == left
            assert set(left) == set(range(0, 300, 3))
            there = client.admin.position(STREAM, "reports")
            assert there is not None
            assert position is not None
            assert there.queue_offset == position.queue_offset == 150
            assert [each.destination for each in client.admin.topology.routing().bindings] == [STREAM]
            assert "short" in mqtool("list_policies", servers=node.client).stdout
            with client.producer(STREAM) as producer:  # and it goes on
                assert producer.send(b"new").queue_offset == len(found)
        with started(tmp_path, "r2", "--join", node.replication) as other:
            eventually(lambda: has_all(other), "another node joins, and has all of it", timeout=30.0)


@pytest.mark.long
def test_a_second_run_copies_what_came_since_and_a_damaged_file_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    with cluster_of(1) as cluster, Client(*cluster.servers) as client:
        servers = ",".join(cluster.servers)
        client.admin.declare(STREAM)
        with client.producer(STREAM) as producer:
            producer.send(b"first")
            told("backup", str(folder), servers=servers)
            before = {path.name: path.read_bytes() for path in folder.glob("logs/*/*.part")}
            producer.send(b"second")
            told("backup", str(folder), servers=servers)
        after = {path.name: path.read_bytes() for path in folder.glob("logs/*/*.part")}
        assert before.items() < after.items()
    with restored(folder, tmp_path) as node, Client(node.client) as client:
        assert [each.value for each in read(client, STREAM)] == [b"first", b"second"]
    again = mqtool("restore", str(folder), "--data-dir", str(tmp_path / "r1"), "--node-id", "r1")
    assert (again.returncode, "writes over nothing" in again.stderr) == (3, True), again.stderr

    victim = sorted(folder.glob("logs/*/*.part"))[0]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    refused = mqtool("restore", str(folder), "--data-dir", str(tmp_path / "r2"), "--node-id", "r2")
    assert f"{victim} is damaged" in refused.stderr
    assert not (tmp_path / "r2").exists()
    assert not (tmp_path / "r2.restoring").exists()


@pytest.mark.long
def test_a_backup_that_was_cut_short_says_so_and_is_gone_on_with(tmp_path: Path) -> None:
    """Method: it is killed as soon as it has written something; the folder is another cluster's; then it goes on."""
    folder = tmp_path / "b"
    with cluster_of(1) as cluster, Client(*cluster.servers) as client:
        servers = ",".join(cluster.servers)
        client.admin.declare(STREAM)
        with client.producer(STREAM) as producer:
            for _ in range(40):
                producer.send_nowait(os.urandom(1_000_000))
        command = [sys.executable, "-m", "mirrorlog.tools.main", "--servers", servers, "backup", str(folder)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
            eventually(lambda: list(folder.glob("logs/*/*.making")), "it copies")
            running.send_signal(signal.SIGKILL)
        if not (folder / "backup.json").exists():
            refused = mqtool("restore", str(folder), "--data-dir", str(tmp_path / "r1"), "--node-id", "r1")
            assert "is incomplete" in refused.stderr
        told("backup", str(folder), servers=servers)
        expected = [each.value for each in read(client, STREAM)]
        with cluster_of(1) as other:
            wrong = mqtool("backup", str(folder), servers=",".join(other.servers))
            assert "name another folder" in wrong.stderr
    with restored(folder, tmp_path) as node, Client(node.client) as client:
        assert [each.value for each in read(client, STREAM)] == expected
    (folder / "backup.json").write_text((folder / "backup.json").read_text().replace('"first": 0', '"first": 8', 1))
    shutil.rmtree(tmp_path / "r1")
    damaged = mqtool("restore", str(folder), "--data-dir", str(tmp_path / "r1"), "--node-id", "r1")
    assert "backup.json is damaged" in damaged.stderr
