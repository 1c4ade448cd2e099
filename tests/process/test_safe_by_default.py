"""A node that other machines reach trusts nobody whom nobody has told it to trust: it does not start, or serves its own
machine until there are users; and who is first among these is not decided over the network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from bench.namespaces import Network, SeparatedCluster, why_not
from mirrorlog.client import Client
from mirrorlog.errors import AccessRefused, ConfigError, LoginFailed, PortTaken
from mirrorlog.pb.v1 import admin_pb2, admin_pb2_grpc
from mirrorlog.testing import Cluster, Node
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.messages.queues import GetMetadata, Metadata
from mirrorlog.wire.messages.topology import SetUser
from tests.process.clusters import FAST, MIB, eventually, fast_cluster, log_lines
from tests.process.raw import Raw
from tests.process.test_bad_start import mqnode, said
from tests.process.test_private_files import held_port

SECRET = "0123456789 of the tests"
PASSWORD = "of the first one"


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("settings", "starts"),
    [
        ([], False),
        (["--insecure"], True),
        ([f"--set=cluster.secret={SECRET}"], True),
    ],
    ids=["nothing", "insecure", "a secret"],
)
def test_a_node_that_others_reach_and_that_trusts_everybody_does_not_start(
    tmp_path: Path, settings: list[str], starts: bool
) -> None:
    """Method: a replication port on all addresses. One that may start gets as far as to a port that is taken."""
    bound = ["--set", f"replication.bind='0.0.0.0:{free_ports(1)[0]}'", "--set", f"replication.advertise='{HOST}:1'"]
    with held_port() as flags:
        done = mqnode(*flags, *bound, *settings, "--data-dir", str(tmp_path / "data"))
    line = said(done, PortTaken.exit_code if starts else ConfigError.exit_code)
    assert starts or all(each in line for each in ("cluster.secret_file", "tls.replication", "--insecure"))
    assert ("insecure client=" in done.stderr) == ("--insecure" in settings)
    assert starts or not (tmp_path / "data").exists()


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_not():
        pytest.skip(reason)
    with Network(["n1"]) as network:
        yield network


def reached(network: Network, tmp_path: Path, **settings: object) -> Cluster:
    """One node on another machine, as far as it can tell."""
    given = {**FAST, "node.insecure": False, "cluster.secret": SECRET, **settings}
    return SeparatedCluster(network, 1, data_dir=tmp_path, segment_bytes=8 * MIB, settings=given)


def mqtool(prefix: list[str], node: Node, *arguments: str) -> str:
    environment = {**os.environ, "MIRRORLOG_NEW_PASSWORD": PASSWORD, "MIRRORLOG_PASSWORD": PASSWORD}
    command = [*prefix, sys.executable, "-m", "mirrorlog.tools.main", "--servers", node.client, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


@pytest.mark.long
async def test_until_there_are_users_only_a_nodes_own_machine_is_served(network: Network, tmp_path: Path) -> None:
    """Goal: who comes first over the network gets nothing, and not the cluster. Method: from another machine, without a
    user and with one: metadata, a queue, the first administrator. Then on the node's own machine; and from elsewhere
    again, with a login over what is not TLS, and without: nobody is in."""
    with reached(network, tmp_path) as cluster:
        node, here = cluster.nodes["n1"], network.command_prefix("n1")
        with Raw(node.client) as raw, pytest.raises(LoginFailed, match="no users yet"):
            raw.request(GetMetadata(), Metadata)
        with Raw(node.client) as raw, pytest.raises(AccessRefused, match="user-set NAME --tag administrator"):
            raw.request(SetUser(name="eve", password_hash=hashed("e"), tags=["administrator"]), Metadata)
        async with Client(node.client) as nobody:
            with pytest.raises(LoginFailed, match="no users yet"):
                await nobody.admin.declare("q")
        assert "user ann is set" in mqtool(here, node, "user-set", "ann", "--tag", "administrator")
        assert "ann" in mqtool([*here], node, "--user", "ann", "users")
        with Raw(node.client) as raw, pytest.raises(LoginFailed, match="has users"):
            raw.request(SetUser(name="eve", password_hash=hashed("e"), tags=["administrator"]), Metadata)


async def test_an_insecure_node_serves_whoever_comes_but_makes_nobody_first(network: Network, tmp_path: Path) -> None:
    """Method: the same from another machine, on a node that was told so."""
    with reached(network, tmp_path, **{"node.insecure": True}) as cluster:
        async with Client(cluster.nodes["n1"].client) as client:
            await client.admin.declare("q")
            with pytest.raises(AccessRefused, match="not decided over the network"):
                await client.admin.topology.set_user("eve", password_hash=hashed("e"), tags=["administrator"])


def test_what_comes_through_a_door_that_others_reach_comes_from_them() -> None:
    """Goal: a door is no way around that. Method: a gRPC door on all addresses, in front of a client port on loopback;
    a queue is asked for without a user, and the node's own machine asks the client port."""
    port = free_ports(1)[0]
    with fast_cluster(1, settings={"grpc.bind": f"0.0.0.0:{port}", "grpc.enabled": True}) as cluster:
        with grpc.insecure_channel(f"{HOST}:{port}") as channel:
            admin = admin_pb2_grpc.AdminStub(channel)

            def answer() -> grpc.StatusCode:
                try:
                    admin.DeclareQueue(admin_pb2.DeclareQueueRequest(name="q"), timeout=10, wait_for_ready=True)
                except grpc.RpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

            assert answer() == grpc.StatusCode.UNAUTHENTICATED
        with Raw(cluster.master.client) as raw:
            raw.request(GetMetadata(), Metadata)


@pytest.mark.long
async def test_the_first_administrator_is_made_on_a_node_by_a_file(tmp_path: Path) -> None:
    """Goal: nobody can be faster than the operator. Method: three nodes that all name him; he logs in, and may use the
    cluster; his password is changed, all nodes start again with the same files, and the new one stays."""
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(f"{PASSWORD}\n")
    settings = {"node.first_admin": "ann", "node.first_admin_file": str(file)}
    with fast_cluster(3, data_dir=tmp_path / "nodes", min_in_sync=2, settings=settings) as cluster:
        made = list(cluster.nodes.values())
        eventually(lambda: any(log_lines(node, "first_admin_made") for node in made), "he is made")
        async with Client(*cluster.servers, user="ann", password=PASSWORD) as ann:
            await ann.admin.declare("q")
            await ann.admin.topology.set_user("ann", password_hash=hashed("another"))
        with pytest.raises(LoginFailed):
            await Client(*cluster.servers, user="ann", password=PASSWORD).connect()
        for node in made:
            assert node.stop() == 0
        for node in made:
            node.launch()
        for node in made:
            node.wait_serving()
        async with Client(*cluster.servers, user="ann", password="another") as ann:
            assert [each.name for each in await ann.admin.topology.users()] == ["ann"]


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("mode", "text", "says"),
    [(0o644, PASSWORD, "open to others"), (0o600, "", "1 to 1024 characters"), (0o600, None, "No such file")],
)
def test_a_first_password_that_is_none_is_told_at_the_start(
    tmp_path: Path, mode: int, text: str | None, says: str
) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    flags = ["--first-admin", "ann", "--first-admin-file", str(file), "--data-dir", str(tmp_path / "data")]
    line = said(mqnode(*flags), ConfigError.exit_code)
    assert says in line
    assert PASSWORD not in line
