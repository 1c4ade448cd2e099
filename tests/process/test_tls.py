"""Real nodes that prove a secret and speak TLS: they work and fail over as others do, and refuse with a clear line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mirrorlog.client import Client
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.config import split_address
from mirrorlog.errors import ConfigError, ConnectionLost
from mirrorlog.testing import Cluster, Node
from mirrorlog.testing.cluster import dump_toml
from mirrorlog.testing.guard import Guard
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.status import GetStatus, Status
from mirrorlog.wire.tls import client_context
from tests.process.clusters import declare, eventually, fast_cluster, log_lines, log_of, wait_next_master
from tests.process.growing import Growing, join
from tests.process.load import Load
from tests.process.raw import Raw

SECRET = "0123456789 of the tests"
QUICK_S = 4.0
"""An answer comes before a client's own deadline of 5 s: nobody waits for what will not come."""


@dataclass(frozen=True)
class Files:
    """Of one certificate, and the authority that is trusted with it."""

    certificate: Path
    key: Path
    ca: Path

    @property
    def settings(self) -> dict[str, Any]:
        return {"tls.certificate": str(self.certificate), "tls.key": str(self.key), "tls.ca": str(self.ca)}

    @property
    def flags(self) -> list[str]:
        return [each for name, path in self.settings.items() for each in ("--set", f"{name}={path}")]


class Authority:
    """An authority and what it has signed, in files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        directory.mkdir()
        self.ca = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *, trusting: Authority | None = None, **options: Any) -> Files:
        """`name`: of the files. Without `common_name` it may be any node's."""
        issued = self._ca.issue_cert(HOST, "localhost", **options)
        files = Files(self._directory / f"{name}.pem", self._directory / f"{name}.key", (trusting or self).ca)
        files.key.touch(0o600)
        issued.private_key_pem.write_to_path(files.key)
        for pem in issued.cert_chain_pems:
            pem.write_to_path(files.certificate, append=True)
        return files


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "other")


# --- Between nodes ----------------------------------------------------------------------------------------------------


def settings_of(how: str, authority: Authority) -> dict[str, Any]:
    if how == "secret":
        return {"cluster.secret": SECRET}
    return {**authority.issue(f"nodes-{time.monotonic_ns()}").settings, "tls.replication": "mutual"}


@pytest.mark.long
@pytest.mark.parametrize("how", ["secret", "mutual"])
def test_nodes_that_prove_themselves_fail_over_as_others_do(how: str, authority: Authority, tmp_path: Path) -> None:
    """Goal: promotion, confirms and the return of a copy under a secret, and under mutual TLS. Method: kill the master
    under load, go on, start it again, and compare what was confirmed with what is there."""
    settings = settings_of(how, authority)
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2, settings=settings) as cluster:
        cluster.wait_in_sync()
        queue = declare(cluster.servers[0], "q")
        with Load(cluster.servers, queue) as load:
            eventually(lambda: load.confirmed >= 50, "the load runs")
            master = cluster.master
            epoch = log_of(master).epoch
            master.kill()
            wait_next_master(cluster, master, epoch)
            before = load.confirmed
            eventually(lambda: load.confirmed >= before + 50, "it goes on")
            master.start()
        cluster.wait_in_sync()
        cluster.wait_confirmed()
        for node in cluster.nodes.values():
            with Raw(node.client) as raw:
                load.check(raw.values(queue.queue_id))
    for node in cluster.nodes.values():
        assert SECRET not in node.log_file.read_text()


@pytest.fixture(scope="module")
def guarded(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with a secret and mutual TLS, of which the third does not run."""
    settings = {
        **authority.issue("guarded").settings,
        "tls.replication": "mutual",
        "cluster.secret": SECRET,
        "cluster.node_timeout_ms": 1_000,
    }
    with fast_cluster(3, data_dir=tmp_path_factory.mktemp("guarded"), min_in_sync=2, settings=settings) as cluster:
        cluster.wait_in_sync()
        cluster.nodes["n3"].stop()
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "here", "there"),
    [
        ("wrong secret", "another cluster.secret", "another cluster.secret"),
        ("no secret", "set the same cluster.secret on all nodes", "set the same cluster.secret on all nodes"),
        ("no TLS", "before the greeting; see tls.replication", "does not speak TLS"),
        ("expired", "expired", "certificate has expired"),
        ("foreign", "unknown ca", "unable to get local issuer certificate"),
        ("another node's", "its id as common name", "its id as common name"),
    ],
)
def test_a_node_that_cannot_prove_itself_is_refused_at_both_ends(  # noqa: PLR0917  (pytest passes them by name)
    guarded: Cluster, authority: Authority, stranger: Authority, what: str, here: str, there: str
) -> None:
    """Goal: it takes no part, both logs say why in a line, and it stops when asked. Method: start n3 with what is
    wrong, wait for both lines, and look at how it ends."""
    node, other = guarded.nodes["n3"], guarded.nodes["n1"]
    text = node.config_file.read_text()
    told = len(other.log_file.read_text())
    own = len(node.log_file.read_text())
    try:
        flags = flags_of(what, authority, stranger)
        if what == "no secret":
            lines = [line for line in text.splitlines() if not line.startswith("secret")]
            node.config_file.write_text("\n".join(lines))
        node.launch(*flags)
        eventually(lambda: here in said(node, own, "member_not_reached"), f"n3 says {here!r}")
        eventually(lambda: there in said(other, told, "_refused"), f"n1 says {there!r}")
        nodes = other.status().cluster
        assert nodes is not None
        assert {each.node_id: each.life for each in nodes.nodes}["n3"] != "up"
        begun = time.monotonic()
        node.wait_serving()
        assert node.stop() == 0
        assert time.monotonic() - begun < 15
    finally:
        node.kill()
        node.config_file.write_text(text)


def flags_of(what: str, authority: Authority, stranger: Authority) -> list[str]:
    if what == "wrong secret":
        return ["--set", f"cluster.secret={SECRET}."]
    if what == "no TLS":
        return ["--set", "tls.replication=off"]
    if what == "expired":
        return authority.issue("expired", not_after=datetime(2020, 1, 1, tzinfo=UTC)).flags
    if what == "foreign":
        return stranger.issue("foreign", trusting=authority).flags
    if what == "another node's":
        return authority.issue("other-node", common_name="n2").flags
    return []


def said(node: Node, since: int, event: str) -> str:
    """The lines of its log from a character on that tell of `event`; the secret is in none."""
    text = node.log_file.read_text()[since:]
    assert SECRET not in text
    return "\n".join(line for line in text.splitlines() if event in line)


@pytest.mark.long
def test_with_what_it_takes_the_node_is_let_in_again(guarded: Cluster) -> None:
    """Goal: nothing of a refusal remains. Method: start n3 as it should be, after all that was refused."""
    guarded.nodes["n3"].start()
    guarded.wait_in_sync()
    guarded.nodes["n3"].stop()


@pytest.mark.long
def test_nodes_find_each_other_and_join_only_with_what_it_takes(authority: Authority, tmp_path: Path) -> None:
    """Goal: looking for a cluster, founding and joining prove themselves too. Method: three blank nodes with a secret
    and TLS become one cluster; a fourth with another secret says why it is not let in, and is with the right one."""
    settings = {**authority.issue("growing").settings, "cluster.secret": SECRET, "tls.replication": "mutual"}
    with Growing(tmp_path) as growing:
        nodes = [growing.node() for _ in range(4)]
        for node in nodes:
            growing.configure(node, **settings)
        for node in nodes[:3]:
            node.launch(*join(*nodes[:3]))
        growing.wait_whole(["n1", "n2", "n3"], copies=3)
        fourth = nodes[3]
        fourth.launch(*join(*nodes[:3]), "--set", f"cluster.secret={SECRET}.")
        eventually(lambda: "another cluster.secret" in said(fourth, 0, "seed_not_used"), "n4 says why")
        assert fourth.stop() == 0
        assert not (fourth.data_dir / "node.json").exists()
        fourth.launch(*join(*nodes[:3]))
        growing.wait_whole(["n1", "n2", "n3", "n4"], copies=3)


# --- The ports of one node --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doors:
    """A node of its own with an HTTP door."""

    node: Node
    http: str
    grpc: str


def run_node(directory: Path, settings: dict[str, Any]) -> Iterator[Doors]:
    """Started, and killed at the end."""
    client, replication, grpc_, http = (f"{HOST}:{port}" for port in free_ports(4))
    guard = Guard()
    node = Node("n1", client=client, replication=replication, grpc=grpc_, directory=directory, on_start=guard.watch)
    tables: dict[str, dict[str, Any]] = {
        "node": {"id": "n1", "data_dir": node.data_dir},
        "client": {"bind": client},
        "replication": {"bind": replication},
        "grpc": {"bind": grpc_},
        "http": {"bind": http},
        "log": {"segment_bytes": 8 << 20, "prepare_bytes": 0, "disk_low_percent": 0, "disk_full_percent": 0},
    }
    for key, value in settings.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    node.config_file.touch(0o600)
    node.config_file.write_text(dump_toml(tables))
    try:
        node.start()
        yield Doors(node, http, grpc_)
    finally:
        node.kill()
        guard.close()


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """All ports speak TLS; the client port and the gRPC door ask for a certificate."""
    modes = {"tls.client": "mutual", "tls.grpc": "mutual", "tls.http": "server"}
    yield from run_node(tmp_path_factory.mktemp("secured"), {**authority.issue("secured").settings, **modes})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    yield from run_node(tmp_path_factory.mktemp("plain"), {"grpc.enabled": False, "http.enabled": False})


@pytest.fixture(scope="module")
def shown(authority: Authority) -> Files:
    """What a client shows."""
    return authority.issue("client", common_name="somebody")


def context_of(files: Files) -> ssl.SSLContext:
    return client_context(ca=files.ca, certificate=files.certificate, key=files.key)


@pytest.mark.long
async def test_a_client_publishes_and_reads_over_tls(secured: Doors, shown: Files) -> None:
    """Goal: batches of all sizes arrive as they are, received into buffers that the handler gives. Method: small ones
    and one of megabytes there and back, with the node's name verified; by the sync face too."""
    values = [b"x" * size for size in (1, 1000, 70_000, 3_000_000)]
    async with Client(secured.node.client, tls=context_of(shown)) as client:
        await client.admin.declare("q")
        async with client.producer("q") as producer:
            for value in values:
                await producer.send(value)
        async with client.consumer("q", until="confirmed") as consumer:
            found = [bytes(record.value or b"") async for record in consumer]
        assert {row.tls for row in (await client.admin.connections()).rows} == {"TLSv1.3"}
    assert [len(each) for each in found] == [len(each) for each in values]
    assert found == values
    assert await asyncio.to_thread(queues_of, secured, shown) == ["q"]


def queues_of(doors: Doors, files: Files) -> list[str]:
    with SyncClient(doors.node.client, tls=context_of(files)) as client:
        return [queue.name for queue in client.admin.queues()]


@pytest.mark.long
def test_mqtool_takes_its_certificate_from_options_and_from_the_environment(secured: Doors, shown: Files) -> None:
    """Ask for the nodes both ways."""
    command = [sys.executable, "-m", "mirrorlog.tools.main", "--servers", secured.node.client]
    options = ["--tls-ca", shown.ca, "--tls-cert", shown.certificate, "--tls-key", shown.key]
    given = {
        "MIRRORLOG_TLS_CA": str(shown.ca),
        "MIRRORLOG_TLS_CERT": str(shown.certificate),
        "MIRRORLOG_TLS_KEY": str(shown.key),
    }
    for more, environment in ((options, {}), ([], given)):
        done = subprocess.run(
            [*command, *map(str, more), "queues", "--json"], env={**os.environ, **environment},
            capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)


def test_doors_speak_tls_and_reach_their_node_by_it(secured: Doors, shown: Files, authority: Authority) -> None:
    """The gRPC door says that its node answers, to who shows a certificate; the HTTP door tells the node's metrics."""
    credentials = grpc.ssl_channel_credentials(
        authority.ca.read_bytes(), shown.key.read_bytes(), shown.certificate.read_bytes()
    )
    with grpc.secure_channel(secured.grpc, credentials) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    without = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    with grpc.secure_channel(secured.grpc, without) as channel, pytest.raises(grpc.RpcError) as caught:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    context = ssl.create_default_context(cafile=authority.ca)
    with urllib.request.urlopen(f"https://{secured.http}/metrics", timeout=10, context=context) as response:
        assert b"mirrorlog" in response.read()


async def quick_error(address: str, tls: ssl.SSLContext | None) -> str:
    """What a client is told, before its own deadline."""
    begun = time.monotonic()
    with pytest.raises(ConnectionLost) as caught:
        async with Client(address, tls=tls):
            pass
    assert time.monotonic() - begun < QUICK_S
    return str(caught.value)


async def test_a_plain_client_on_a_tls_port_is_told_quickly(secured: Doors) -> None:
    """Its message asks for TLS, and the node's log says that somebody does not speak it."""
    assert "does that port want TLS" in await quick_error(secured.node.client, None)
    assert "does not speak TLS" in "".join(log_lines(secured.node, "tls_refused"))


async def test_a_tls_client_on_a_plain_port_is_told_quickly(plain: Doors, shown: Files) -> None:
    """Its message says that nobody speaks TLS there."""
    assert "does not speak TLS" in await quick_error(plain.node.client, context_of(shown))


async def test_a_client_without_a_certificate_that_counts_is_told_why(
    secured: Doors, authority: Authority, stranger: Authority
) -> None:
    """No certificate, one of another authority, and an authority that has not signed the node's."""
    assert "certificate required" in await quick_error(secured.node.client, client_context(ca=authority.ca))
    foreign = stranger.issue("client", trusting=authority)
    assert "unknown ca" in await quick_error(secured.node.client, context_of(foreign))
    elsewhere = client_context(ca=stranger.ca)
    assert "is refused: self-signed certificate in certificate chain" in await quick_error(
        secured.node.client, elsewhere
    )


# --- Files that change ------------------------------------------------------------------------------------------------


def shown_by(address: str, authority: Authority) -> int:
    """The serial number of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=authority.ca)
    context.set_alpn_protocols(["h2", "http/1.1"])  # gRPC speaks to nobody else
    host, port = split_address(address)
    with (
        socket.create_connection((host, port), timeout=10) as plain_,
        context.wrap_socket(plain_, server_hostname=host) as connection,
    ):
        certificate = connection.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


def serial_in(files: Files) -> int:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes()).serial_number


@pytest.mark.long
def test_new_files_count_for_new_connections_while_the_node_runs(authority: Authority, tmp_path: Path) -> None:
    """Goal: a certificate is replaced without a restart. Method: new files and SIGHUP: new connections to all ports are
    shown the new one, doors reach their node, and a connection from before goes on. Then a file that is wrong: a line
    names it, and everything stays."""
    files = authority.issue("renewed")
    modes = {"tls.client": "server", "tls.grpc": "server", "tls.http": "server"}
    with contextmanager(run_node)(tmp_path, {**files.settings, **modes}) as doors:
        node, ports = doors.node, (doors.node.client, doors.grpc, doors.http)
        first = serial_in(files)
        assert [shown_by(port, authority) for port in ports] == [first] * 3
        with Raw(node.client, hello=None) as before:
            before.socket = context_of(files).wrap_socket(before.socket, server_hostname=HOST)
            before.greet(Hello(version_min=1, version_max=1, role="client"))
            files.certificate.unlink()
            authority.issue("renewed")
            second = serial_in(files)
            assert second != first
            os.kill(node.pid, signal.SIGHUP)
            eventually(lambda: [shown_by(port, authority) for port in ports] == [second] * 3, "all show the new one")
            assert isinstance(before.request(GetStatus(), Status), Status)
        context = ssl.create_default_context(cafile=authority.ca)
        with urllib.request.urlopen(f"https://{doors.http}/health", timeout=10, context=context) as response:
            assert response.status == 200
        files.key.write_text("no key")
        os.kill(node.pid, signal.SIGHUP)
        eventually(lambda: log_lines(node, "tls_not_reloaded"), "the log names the file")
        (line,) = log_lines(node, "tls_not_reloaded")
        assert str(files.key) in line
        assert [shown_by(port, authority) for port in ports] == [second] * 3


def test_a_node_without_tls_is_not_ended_by_the_signal(plain: Doors) -> None:
    """Goal: who sends it to all nodes ends none. Method: it says that it has read nothing, and answers."""
    os.kill(plain.node.pid, signal.SIGHUP)
    eventually(lambda: log_lines(plain.node, "tls_reloaded"), "the log tells")
    assert plain.node.status().node_id == "n1"


# --- Settings ---------------------------------------------------------------------------------------------------------


def mqnode(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mirrorlog.broker.main", *flags], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_the_secret_is_never_printed(tmp_path: Path) -> None:
    """Look at what `--print-config` prints, from the environment and a flag, and at refusals of one that is too short
    and of one that is given twice."""
    home = ("--set", f"node.data_dir={tmp_path}")
    outputs = [
        mqnode("--print-config", MIRRORLOG__CLUSTER__SECRET=SECRET),
        mqnode("--print-config", "--json", "--set", f"cluster.secret={SECRET}"),
        mqnode(*home, MIRRORLOG__CLUSTER__SECRET=SECRET[:9]),
        mqnode(*home, "--set", "cluster.secret_file=/nowhere", MIRRORLOG__CLUSTER__SECRET=SECRET),
    ]
    assert [each.returncode for each in outputs] == [0, 0, ConfigError.exit_code, ConfigError.exit_code]
    assert "# secret =" in outputs[0].stdout
    assert "cluster.secret: 9 bytes" in outputs[2].stderr
    assert "not both" in outputs[3].stderr
    for each in outputs:
        assert SECRET[:9] not in each.stdout + each.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["tls.client=server"], "client needs certificate, key, ca"),
        (["tls.client=server", "tls.certificate=/nowhere", "tls.key=/nowhere", "tls.ca=/nowhere"], "/nowhere: No such"),
        (["cluster.secret_file=/nowhere"], "cluster.secret_file /nowhere: No such"),
    ],
)
def test_a_file_that_is_not_there_is_named(tmp_path: Path, flags: list[str], message: str) -> None:
    """Start with it: one line, and the exit code of the settings."""
    sets = [each for flag in flags for each in ("--set", flag)]
    found = mqnode("--set", f"node.data_dir={tmp_path}", *sets)
    assert message in found.stderr
    assert found.stderr.count("\n") == 1
    assert found.returncode == ConfigError.exit_code
