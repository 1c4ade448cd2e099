"""Nodes that come and go at run time: one cluster whatever happens, and nobody is let in who should not be."""

from __future__ import annotations

import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.errors import ForeignDirectory, MirrorlogError, NotAMember
from mirrorlog.testing import Node
from mirrorlog.testing.asking import wait_for
from mirrorlog.testing.ports import HOST
from tests.process.growing import Growing, join


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    with Growing(tmp_path) as made:
        yield made


def said(growing: Growing, node: Node, text: str, timeout: float = 20.0) -> None:
    """Until its log has it."""

    def met() -> bool | None:
        return text in node.log_file.read_text() or None

    wait_for(met, timeout=timeout, what=lambda: f"{node.id} says {text!r}; {growing.said()}")


def three(growing: Growing) -> list[Node]:
    """A cluster of n1, n2 and n3."""
    nodes = [growing.node() for _ in range(3)]
    for node in nodes:
        node.launch(*join(*nodes))
    growing.wait_whole(["n1", "n2", "n3"], copies=3)
    return nodes


def drains(node: Node, other: str) -> bool:
    """Whether it knows that another one shall master nothing."""
    view = node.status().cluster
    return view is not None and any(each.node_id == other and each.draining for each in view.nodes)


def ended(node: Node, timeout: float = 20.0) -> int:
    """Its exit code."""

    def met() -> list[int] | None:
        return None if node.exit_code is None else [node.exit_code]

    return wait_for(met, timeout=timeout, what=lambda: f"{node.id} ends; {node.log_tail()}")[0]


# --- Founding -------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_three_nodes_that_start_at_once_are_one_cluster(growing: Growing, seed: int) -> None:
    """Goal: whatever the order, exactly one of them founds. Method: start them in a random order, with random delays,
    each given the seeds in another order; then one cluster of all, whose id stays when all are started again."""
    chance = random.Random(seed)
    nodes = [growing.node() for _ in range(3)]
    for node in chance.sample(nodes, 3):
        node.launch(*join(*chance.sample(nodes, 3)))
        time.sleep(chance.choice([0.0, 0.0, 0.1, 0.7]))  # a delay between starts is what is tried, nothing is awaited
    growing.wait_whole(["n1", "n2", "n3"], copies=3)
    (cluster_id,) = {status.cluster_id for status in growing.statuses().values()}
    for node in nodes:
        node.kill()
    for node in chance.sample(nodes, 3):
        node.launch(*join(*nodes))
    growing.wait_whole(["n1", "n2", "n3"], copies=3)
    assert {status.cluster_id for status in growing.statuses().values()} == {cluster_id}


def test_one_seed_that_never_starts_is_not_needed(growing: Growing) -> None:
    """Goal: a majority of the seeds is enough. Method: start two of three, the one that comes first among them."""
    nodes = sorted((growing.node() for _ in range(3)), key=lambda node: node.replication)
    for node in nodes[:2]:
        node.launch(*join(*nodes))
    growing.wait_whole([node.id for node in nodes[:2]], copies=2)


@pytest.mark.long
def test_without_the_first_seed_the_others_wait(growing: Growing) -> None:
    """Goal: never two clusters, also when the one that founds is not there. Method: start the two others; they say for
    whom they wait, and stop when asked to; with it they become one."""
    nodes = sorted((growing.node() for _ in range(3)), key=lambda node: node.replication)
    first, *others = nodes
    for node in others:
        node.launch(*join(*nodes))
    for node in others:
        said(growing, node, f"the seed {first.replication} comes first and founds the cluster")
        assert not (node.data_dir / "node.json").exists()
    assert others[0].stop(timeout=5) == 0
    others[0].launch(*join(*nodes))
    first.launch(*join(*nodes))
    growing.wait_whole([node.id for node in nodes], copies=3)


def test_a_founder_alone_waits_for_a_majority(growing: Growing) -> None:
    """Goal: who is first and sees nobody founds nothing. Method: start it alone, then one more."""
    nodes = sorted((growing.node() for _ in range(3)), key=lambda node: node.replication)
    nodes[0].launch(*join(*nodes))
    said(growing, nodes[0], "1 of the seeds")
    assert not (nodes[0].data_dir / "node.json").exists()
    nodes[1].launch(*join(*nodes))
    growing.wait_whole([node.id for node in nodes[:2]], copies=2)


# --- Growing --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_one_node_grows_to_three_under_publishing(growing: Growing) -> None:
    """Goal: nothing is refused, held up or lost while nodes come. Method: publish steadily, through the public client,
    and let two nodes join; every publish is confirmed within its deadline and every record is there once, in order."""
    one, two, three = (growing.node() for _ in range(3))
    one.start("--bootstrap")
    stopping, sent, slowest, failures = threading.Event(), 0, 0.0, []

    def publish() -> None:
        nonlocal sent, slowest
        try:
            with Client(one.client) as client, client.producer("q") as producer:
                while not stopping.is_set():
                    begun = time.monotonic()
                    producer.send(b"%d" % sent)
                    sent, slowest = sent + 1, max(slowest, time.monotonic() - begun)
        except BaseException as error:
            failures.append(error)

    with Client(one.client) as client:
        client.admin.declare("q")
    publishing = threading.Thread(target=publish, daemon=True)
    publishing.start()
    try:
        two.start(*join(one, three))
        growing.wait_whole(["n1", "n2"], copies=2)
        three.start(*join(one, two))
        view = growing.wait_whole(["n1", "n2", "n3"], copies=3)
    finally:
        stopping.set()
        publishing.join(30)
    assert not failures
    assert sent > 100
    assert slowest < 5.0
    assert not view.advice
    with Client(three.client) as client, client.consumer("q", start="earliest") as consumer:
        values: list[bytes] = []
        while len(values) < sent and (found := consumer.read(timeout_ms=5_000)):
            values += [bytes(record.value) for record in found]
    assert values == [b"%d" % number for number in range(sent)]


def test_two_nodes_and_a_witness_fail_over(growing: Growing) -> None:
    """Goal: a vote without a copy is enough. Method: two nodes say that they cannot; with a witness, which holds no
    log, one that masters is killed, and a publish is confirmed by the other."""
    one, two, witness = (growing.node() for _ in range(3))
    one.start("--bootstrap")
    two.start(*join(one))
    view = growing.wait_whole(["n1", "n2"], copies=2)
    assert "--witness" in view.advice[0]
    said(growing, one, "cluster_could_be_safer")
    witness.start(*join(one), "--witness")
    view = growing.wait_whole(["n1", "n2", "n3"], copies=2)
    assert not view.advice
    assert not any("n3" in log.replicas for log in view.logs)
    with Client(*(node.client for node in (one, two))) as client:
        client.admin.declare("q")
        with client.producer("q") as producer:
            producer.send(b"before")
            one.kill()
            producer.send(b"after")


# --- Who is not let in ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_disk_of_another_cluster_is_refused_until_it_is_set_aside(growing: Growing) -> None:
    """Goal: no node takes its old data into another cluster, and nothing is deleted. Method: a node of a cluster of its
    own joins another one: without --discard it ends and names both, with it it is in, and what it had is renamed."""
    one, two = growing.node(), growing.node()
    one.start("--bootstrap")
    two.start("--bootstrap")
    ids = {node: node.status().cluster_id for node in (one, two)}
    two.stop()
    with pytest.raises(ForeignDirectory) as caught:
        two.start(*join(one))
    for text in (ids[one], ids[two], "--discard"):
        assert text in str(caught.value)
    two.start(*join(one), "--discard")
    growing.wait_whole(["n1", "n2"], copies=2)
    aside = two.data_dir / "discarded-1"
    assert ids[two] in (aside / "node.json").read_text()
    assert (aside / "raft").exists()
    assert list((aside / "logs").iterdir())
    two.stop()
    two.start(*join(one), "--discard")
    growing.wait_whole(["n1", "n2"], copies=2)
    assert not (two.data_dir / "discarded-2").exists()


def test_a_blank_disk_under_a_known_name_is_refused(growing: Growing) -> None:
    """Goal: whoever lost its disk has lost its vote. Method: remove the directory of a member and start it again."""
    nodes = three(growing)
    nodes[2].kill()
    shutil.rmtree(nodes[2].data_dir)
    with pytest.raises(MirrorlogError, match="forget it first"):
        nodes[2].start(*join(*nodes))
    assert nodes[2].exit_code == NotAMember.exit_code


@pytest.mark.long
def test_a_copy_of_a_disk_ends_one_of_the_two(growing: Growing, tmp_path: Path) -> None:
    """Goal: twins do not fight, and a copy of a disk costs no node. Method: start the copy that was made of a member's
    disk before its run beside that run: the copy ends and says why, the one that was there goes on."""
    nodes = three(growing)
    nodes[2].stop()
    twin = growing.node("n3", directory="twin")
    shutil.copytree(nodes[2].data_dir, twin.data_dir)
    nodes[2].start(*join(*nodes))
    growing.wait_whole(["n1", "n2", "n3"], copies=3)
    twin.launch(*join(*nodes))
    assert ended(twin) == NotAMember.exit_code
    assert "is there, so run" in twin.log_tail()
    growing.wait_whole(["n1", "n2", "n3"], copies=3)
    assert nodes[2].running


@pytest.mark.long
def test_a_copy_of_a_running_nodes_disk_ends_both(growing: Growing) -> None:
    """Goal: also a copy that no start id tells from the disk itself ends with a clear error. Method: as above, with a
    copy of the disk of the run, which answers for one thing more before the copy is started: that is not on it."""
    nodes = three(growing)
    twin = growing.node("n3", directory="twin")
    shutil.copytree(nodes[2].data_dir, twin.data_dir)
    with Client(nodes[0].client, nodes[1].client) as client:
        client.admin.drain("n1")
    wait_for(lambda: drains(nodes[2], "n1") or None, timeout=20.0, what=lambda: "n3 knows of it")
    twin.launch(*join(*nodes))
    assert ended(nodes[2]) == NotAMember.exit_code
    assert ended(twin, timeout=40) == NotAMember.exit_code
    assert "forget the node, and start it with a blank disk" in twin.log_tail()


@pytest.mark.long
def test_a_disk_that_was_set_back_is_let_in_again(growing: Growing, tmp_path: Path) -> None:
    """Goal: a restored disk does not lock its node out. Method: copy a member's directory, let the member run on, and
    put the copy in its place."""
    nodes = three(growing)
    nodes[2].stop()
    shutil.copytree(nodes[2].data_dir, tmp_path / "copy")
    nodes[2].start(*join(*nodes))
    growing.wait_whole(["n1", "n2", "n3"], copies=3)
    nodes[2].stop()
    shutil.rmtree(nodes[2].data_dir)
    shutil.copytree(tmp_path / "copy", nodes[2].data_dir)
    nodes[2].start(*join(*nodes))
    said(growing, nodes[2], "disk_set_back")
    view = growing.wait_whole(["n1", "n2", "n3"], copies=3)
    assert next(node.kind for node in view.nodes if node.node_id == "n3") == "lossy"


@pytest.mark.long
def test_a_node_that_was_forgotten_is_refused_and_joins_with_a_blank_disk(growing: Growing) -> None:
    """Goal: forgetting is for good, for that disk. Method: stop a node, forget it, start it: refused, and why. With its
    directory gone it joins as another member and has everything again."""
    nodes = three(growing)
    before = {node.node_id: node.member for node in growing.wait_whole(["n1", "n2", "n3"], copies=3).nodes}
    nodes[2].kill()
    with Client(nodes[0].client, nodes[1].client) as client:
        client.admin.forget_node("n3", force=True)
    nodes[2].launch(*join(*nodes))
    assert ended(nodes[2]) == NotAMember.exit_code
    assert "forgotten" in nodes[2].log_tail()
    shutil.rmtree(nodes[2].data_dir)
    nodes[2].launch(*join(*nodes))
    after = {node.node_id: node.member for node in growing.wait_whole(["n1", "n2", "n3"], copies=3).nodes}
    assert after["n3"] > max(before.values())


def test_a_node_that_is_forgotten_while_it_runs_ends(growing: Growing) -> None:
    """Goal: it does not go on as if it were in. Method: forget it by force."""
    nodes = three(growing)
    with Client(nodes[0].client, nodes[1].client) as client:
        client.admin.forget_node("n3", force=True)
    assert ended(nodes[2]) == NotAMember.exit_code
    assert "was forgotten by its cluster" in nodes[2].log_tail()


def test_a_node_finds_its_cluster_by_multicast(growing: Growing) -> None:
    """Goal: no seeds need be written down. Method: one founds, another one asks the group, on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind((HOST, 0))
        port = held.getsockname()[1]
    one, two = growing.node(), growing.node()
    for node in (one, two):
        growing.configure(
            node, cluster__discovery="multicast", cluster__multicast_port=port, cluster__multicast_interface=HOST
        )
    two.launch()
    said(growing, two, "nobody has answered who is in a cluster")
    one.start("--bootstrap")
    growing.wait_whole(["n1", "n2"], copies=2)
