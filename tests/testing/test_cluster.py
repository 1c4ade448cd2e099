"""A cluster is real processes that start, fail and end as they were told, and leave nothing behind."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.errors import BadInput, ConfigError, ConnectionLost, DirectoryInUse, MirrorlogError, RequestTimeout
from mirrorlog.testing import Cluster, Node, cluster
from mirrorlog.testing.ports import HOST, free_ports

pytestmark = pytest.mark.process

SMALL = {"segment_bytes": 8 * 1024 * 1024}


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """One cluster for the tests that leave it as they found it."""
    with Cluster(3, min_in_sync=3, **SMALL) as started:
        yield started


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_master_comes_first_and_mirrors_get_in_sync(shared: Cluster) -> None:
    """Goal: what the address list promises. Method: compare it with what the nodes say of themselves."""
    log = shared.wait_in_sync()
    assert [mirror.node_id for mirror in log.mirrors] == ["n2", "n3"]
    assert log.min_in_sync == 3
    assert shared.servers == [shared.nodes[node_id].client for node_id in ("n1", "n2", "n3")]
    assert {node_id: status.logs[0].role for node_id, status in shared.statuses().items()} == {
        "n1": "master",
        "n2": "mirror",
        "n3": "mirror",
    }


def test_all_copies_hear_of_what_is_confirmed(shared: Cluster) -> None:
    """Goal: `wait_confirmed` means every node. Method: after it every status shows one confirmed offset."""
    end = shared.wait_confirmed().end
    assert end > 0
    assert {status.logs[0].confirmed for status in shared.statuses().values()} == {end}


def test_a_killed_node_returns_at_its_own_addresses(shared: Cluster) -> None:
    """Goal: kill and start are those of one node. Method: SIGKILL a mirror and wait until it is in sync again."""
    node = shared.nodes["n2"]
    before = node.pid
    node.kill()
    assert not node.running
    assert node.exit_code == -signal.SIGKILL
    assert shared.statuses().keys() == {"n1", "n3"}
    node.start()
    assert node.pid != before
    shared.wait_in_sync()


def test_a_paused_node_is_silent_until_it_is_resumed(shared: Cluster) -> None:
    """Goal: SIGSTOP is a hang, not a death. Method: its status times out while it runs, and comes afterwards."""
    node = shared.nodes["n3"]
    node.pause()
    try:
        assert node.running
        with pytest.raises(RequestTimeout):
            node.status(timeout=0.1)
    finally:
        node.resume()
    assert node.status().node_id == "n3"


def test_a_wait_that_fails_says_what_every_node_says(shared: Cluster) -> None:
    """Goal: a failed wait needs no second look. Method: wait for a mirror that is down."""
    node = shared.nodes["n3"]
    node.kill()
    with pytest.raises(RequestTimeout, match=r"(?s)every mirror is in sync.*n1: master.*n3\(connected=False"):
        shared.wait_in_sync(timeout=0.2)
    node.start()
    shared.wait_in_sync()


def test_a_running_node_is_not_started_twice(shared: Cluster) -> None:
    """Goal: no second process on one directory by mistake. Method: start what runs."""
    with pytest.raises(MirrorlogError, match="runs already"):
        shared.master.start()


def test_stop_is_clean_even_from_a_pause(tmp_path: Path) -> None:
    """Goal: SIGTERM reaches a paused node too, and its exit code is told. Method: pause, stop, stop again."""
    with Cluster(1, data_dir=tmp_path, **SMALL) as one:
        node = one.master
        node.pause()
        assert node.stop() == 0
        assert node.stop() == 0
        assert not node.running


def test_a_node_that_cannot_start_says_why_and_nothing_stays() -> None:
    """Goal: a start error is the node's own, with its log. Method: a setting that no node knows."""
    failing = Cluster(2, settings={"log.no_such_key": 1})
    with pytest.raises(
        ConfigError, match=r"^node n1 ended with exit code 10 before it served: [^\n]*no_such_key[^\n]*$"
    ):
        failing.start()
    assert not any(node.running for node in failing.nodes.values())
    with pytest.raises(BadInput, match="not started"):
        _ = failing.directory


def test_a_directory_in_use_is_that_error(shared: Cluster, tmp_path: Path) -> None:
    """Goal: the node's exit code becomes its class. Method: a second process on the directory of a running one."""
    second = Node("n2", client=shared.nodes["n2"].client, replication="", grpc=None, directory=tmp_path)
    second.config_file.write_bytes(shared.nodes["n2"].config_file.read_bytes())
    ports = free_ports(2)
    with pytest.raises(DirectoryInUse):
        second.start(
            *("--set", f"client.bind='{HOST}:{ports[0]}'"), *("--set", f"replication.bind='{HOST}:{ports[1]}'")
        )


def test_a_port_taken_in_between_costs_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the gap between finding a port and using it is harmless. Method: hold one of the first ports found."""
    with socket.create_server((HOST, 0)) as holder:
        taken = holder.getsockname()[1]
        offers = iter([[taken, *free_ports(4)], free_ports(5)])
        monkeypatch.setattr(cluster, "free_ports", lambda count, **_: next(offers))
        with Cluster(1, **SMALL) as one:
            assert not one.master.client.endswith(f":{taken}")
            assert one.master.running


def test_a_given_directory_stays_and_is_gone_on_with(tmp_path: Path) -> None:
    """Goal: data survives its cluster. Method: a second one on the directory: a later epoch of the same log, the next
    one or, when the node led before it was registered anew, the one behind that."""
    with Cluster(1, data_dir=tmp_path, **SMALL) as first:
        before = first.wait_confirmed()
    with Cluster(1, data_dir=tmp_path, **SMALL) as second:
        after = second.wait_confirmed()
    assert after.log_id == before.log_id
    assert before.epoch < after.epoch <= before.epoch + 2
    assert after.end > before.end


@pytest.mark.long
def test_several_nodes_on_a_given_directory_find_each_other_again(tmp_path: Path) -> None:
    """Goal: members look for each other at the addresses that they know. Method: a second cluster of three on the
    directory of a first one: the same log, one of them masters it, in a later epoch, with all mirrors."""
    with Cluster(3, data_dir=tmp_path, **SMALL) as first:
        before = first.wait_confirmed()
        servers = first.servers
    with Cluster(3, data_dir=tmp_path, **SMALL) as second:
        assert second.servers == servers
        after = second.wait_in_sync()
    assert after.log_id == before.log_id
    assert after.epoch > before.epoch
    assert after.begin <= before.end < after.end


@pytest.mark.long
def test_a_kept_directory_from_before_there_was_a_door_is_given_an_address_for_it(tmp_path: Path) -> None:
    """Goal: it starts, and the nodes are found where they were. Method: addresses without those of the HTTP doors."""
    with Cluster(2, data_dir=tmp_path, **SMALL) as first:
        servers = first.servers
    file = tmp_path / "addresses.json"
    kept = {node: {k: v for k, v in each.items() if k != "http"} for node, each in json.loads(file.read_text()).items()}
    file.write_text(json.dumps(kept))
    with Cluster(2, data_dir=tmp_path, http=True, **SMALL) as second:
        assert second.servers == servers
        assert len({node.http for node in second.nodes.values()} - {None}) == 2


def test_the_master_is_who_masters_now(tmp_path: Path) -> None:
    """Goal: tests that kill the master need not guess who is next. Method: kill it: `master` and `mirrors` tell of the
    others, the dead one comes back as a mirror; with nobody running the wait fails at once."""
    with Cluster(3, data_dir=tmp_path, **SMALL) as three:
        three.wait_in_sync()
        first = three.master
        assert first.id == "n1"
        first.kill()
        second = three.master
        assert second is not first
        assert {node.id for node in three.mirrors} == {"n1", "n2", "n3"} - {second.id}
        assert three.wait_master("main") == second.id
        first.start()
        three.wait_in_sync()
        assert three.master is second
        for node in three.nodes.values():
            node.kill()
        with pytest.raises(RequestTimeout, match="no node of the cluster runs"):
            three.wait_master()


def test_without_listed_logs_each_node_is_home_to_one() -> None:
    """So queues that are declared one after the other have another master each."""
    with Cluster(2, logs=(), **SMALL) as cluster:
        assert (cluster.wait_in_sync().name, cluster.master.id) == ("main", "n1")
        with Client(*cluster.servers) as client:
            masters = {client.admin.declare(name).master for name in ("one", "two")}
        assert masters == {"n1", "n2"}
        cluster.wait_confirmed()


def test_a_temporary_directory_goes_with_its_cluster() -> None:
    """Goal: nothing is left on disk. Method: look for the directory afterwards."""
    with Cluster(1, **SMALL) as one:
        directory = one.directory
        assert directory.is_dir()
    assert not directory.exists()


@pytest.mark.parametrize("temporary", [False, True])
def test_a_kept_cluster_lives_on_until_it_is_closed(tmp_path: Path, temporary: bool) -> None:
    """Goal: nodes can be left to the user. Method: close it so, see the process answer on its files, close it."""
    kept = Cluster(1, data_dir=None if temporary else tmp_path, **SMALL).start()
    try:
        kept.close(keep_running=True)
        assert alive(kept.master.pid)
        assert kept.master.status().node_id == "n1"
        assert kept.master.data_dir.is_dir()
    finally:
        kept.close()
    assert not kept.nodes["n1"].running
    assert kept.directory.is_dir()
    if temporary:
        shutil.rmtree(kept.directory)


async def test_it_is_an_asynchronous_context_manager_too() -> None:
    """Goal: usable from a coroutine, whose loop goes on meanwhile. Method: `async with`."""
    async with Cluster(1, **SMALL) as one:
        assert one.master.running
        pid = one.master.pid
    assert not alive(pid)


@pytest.mark.parametrize("copies", [0, 17])
def test_a_number_of_copies_has_limits(copies: int) -> None:
    """Goal: a slip of the hand starts no hundred processes. Method: just outside both limits."""
    with pytest.raises(BadInput, match=f"not {copies}"):
        Cluster(copies)


@pytest.mark.parametrize("mode", ["server", "mutual"])
def test_a_cluster_with_tls_is_reached_with_its_own_certificates(mode: str) -> None:
    """Goal: a job's TLS can be tried without an authority. Method: wait, publish and read over it; without it nobody
    gets in."""
    with Cluster(2, tls=mode, **SMALL) as started:
        started.wait_in_sync()
        with Client(*started.servers, tls=started.tls) as client:
            client.admin.declare("q")
            with client.producer("q") as producer:
                producer.send(b"a")
        assert started.wait_confirmed().end > 0
        with pytest.raises(ConnectionLost), Client(*started.servers):
            pass


def test_a_cluster_that_goes_on_has_the_certificates_it_had(tmp_path: Path) -> None:
    """Goal: who trusted it trusts it still. Method: two clusters, one after the other, in one directory."""
    with Cluster(1, tls="server", data_dir=tmp_path, **SMALL) as first:
        known = first.certificates.ca.read_bytes()
        context = first.tls
    with Cluster(1, tls="server", data_dir=tmp_path, **SMALL) as second:
        assert second.certificates.ca.read_bytes() == known
        with Client(*second.servers, tls=context) as client:
            assert client.admin.queues() == []


def test_another_word_for_tls_is_refused() -> None:
    """Before anything is started."""
    with pytest.raises(BadInput, match="server, mutual"):
        Cluster(1, tls="yes")
