"""Two adjacent versions of the software in one cluster. The one before is no imitation: it is the commit that it was,
run as it was, on the same disks."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from mirrorlog import versions
from mirrorlog.client.sync import Client
from mirrorlog.errors import MirrorlogError, UnsupportedVersion
from mirrorlog.testing import Node
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.messages.status import ClusterStatus
from tests.process.clusters import facts, log_lines
from tests.process.growing import Growing, join
from tests.process.traffic import Traffic, number_of

ROOT = Path(__file__).parents[2]
COMMIT_BEFORE = "0141942"
"""The last one of the version before this software's."""
BEFORE, NOW = 7, 8
RATE = 50
NAMES = ["n1", "n2", "n3"]


def software(commit: str, directory: Path) -> Path:
    """The directory, with the software of that commit in it."""
    command = ["git", "-C", str(ROOT), "archive", commit, "mirrorlog"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"").decode().strip() or str(error)
        pytest.skip(f"the software before is commit {commit}, which git does not give here: {told}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(directory, filter="data")
    return directory


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the software of the version before lies."""
    return software(COMMIT_BEFORE, tmp_path_factory.mktemp("version-before"))


class Update:
    """Three nodes, n1 to n3, each of which runs either software, and steady traffic to a queue in each of their
    logs."""

    def __init__(self, growing: Growing, before: Path) -> None:
        self.growing = growing
        self.nodes = [growing.node() for _ in NAMES]
        self.traffic: list[Traffic] = []
        self._sources = {BEFORE: before, NOW: ROOT}

    @property
    def servers(self) -> list[str]:
        return [node.client for node in self.nodes]

    def launch(self, node: Node, version: int, *flags: str) -> None:
        source = self._sources[version]
        node.command_prefix = ("env", "-C", str(source), f"PYTHONPATH={source}")
        node.launch(*flags)

    def whole(self) -> ClusterStatus:
        """Once all three are up and all copies in sync."""
        return self.growing.wait_whole(NAMES, copies=len(NAMES))

    def restart(self, node: Node, version: int, *, between: Callable[[], object] = lambda: None) -> None:
        """A clean stop, `between`, and a start on the same directory, which copies nothing again: the node asks for
        nothing that was confirmed when it stopped."""
        held = {log.name: log.confirmed for log in node.status().logs}
        told = {each.id: len(log_lines(each, "mirror_joined")) for each in self.nodes}
        assert node.stop() == 0
        between()
        self.launch(node, version)
        self.whole()
        new = [line for each in self.nodes for line in log_lines(each, "mirror_joined")[told[each.id] :]]
        asked = [(each["log"], int(each["from"])) for each in map(facts, new) if each["node"] == node.id]
        assert {log for log, _ in asked} == held.keys()
        assert len(held) >= len(NAMES)
        assert all(0 < held[log] <= begin for log, begin in asked), (held, asked)

    def goes_on(self) -> None:
        """Records that are published from now on are confirmed, in each log."""
        for traffic in self.traffic:
            sent, confirmed = len(traffic.sent_at), len(traffic.confirms)
            traffic.wait(
                lambda traffic=traffic, sent=sent, confirmed=confirmed: (  # type: ignore[misc]
                    len(traffic.confirms) > confirmed and traffic.confirms[-1].number >= sent
                ),
                f"confirms of {traffic.queue}",
            )

    def check(self, *, software: Sequence[int], cluster: int) -> ClusterStatus:
        """What every node says of who runs what, once all know it; the view of one."""

        def met() -> ClusterStatus | None:
            expected = dict(zip(NAMES, software, strict=True))
            views = [status.cluster for status in self.growing.statuses().values() if status.cluster is not None]
            fits = all(
                view.cluster_version == cluster
                and {node.node_id: node.software_version for node in view.nodes} == expected
                for view in views
            )
            return views[0] if fits and len(views) == len(NAMES) else None

        return wait_for(met, timeout=10, what=lambda: f"software {software} at {cluster}; {self.growing.said()}")

    def masters(self) -> list[str]:
        """Of all logs, as n1 knows them."""
        view = self.nodes[0].status().cluster
        assert view is not None
        return sorted(log.master for log in view.logs)


@pytest.fixture
def update(tmp_path: Path, before: Path) -> Iterator[Update]:
    """A cluster of the software before, and traffic."""
    with Growing(tmp_path) as growing, ExitStack() as stack:
        update = Update(growing, before)
        for node in update.nodes:
            update.launch(node, BEFORE, *join(*update.nodes))
        update.whole()
        with Client(*update.servers) as client:
            logs = {client.admin.declare(f"q{number}").log_id for number in range(3)}
        assert len(logs) == 3
        for number in range(3):
            update.traffic.append(stack.enter_context(Traffic(update.servers, f"q{number}", rate=RATE)))
        yield update


def ended(node: Node, timeout: float = 20.0) -> str:
    """What its log says, once it has ended by itself with an error."""
    wait_for(lambda: node.exit_code is not None or None, timeout=timeout, what=lambda: f"{node.id} ends")
    assert node.exit_code != 0
    return node.log_tail(30)


def assert_nothing_lost(update: Update) -> None:
    """All that was published was confirmed and is there once, and all copies are the same, byte for byte."""
    with Client(*update.servers) as client:
        for traffic in update.traffic:
            traffic.stop()
            with client.consumer(traffic.queue, start="earliest", until="confirmed") as consumer:
                numbers = [number_of(record.value or b"") for record in consumer]
            assert not any(traffic.check(numbers).values()), traffic.check(numbers)
            assert (traffic.refused, traffic.unknown) == ({}, {})
            assert len(traffic.confirms) == len(traffic.sent_at) == len(numbers) > 5 * RATE

    def same_ends() -> bool:
        ends = [
            {(log.name, log.end, log.confirmed) for log in status.logs} for status in update.growing.statuses().values()
        ]
        return len(ends) == 3 and ends[0] == ends[1] == ends[2] and all(end == sure for _, end, sure in ends[0])

    wait_for(lambda: same_ends() or None, timeout=10, what=lambda: f"copies that end alike; {update.growing.said()}")
    first, *others = (segments(node) for node in update.nodes)
    assert len(first) >= 3
    for other in others:
        assert other.keys() == first.keys()
        # Never `==` in the assert: a difference of megabytes would be printed.
        assert not [name for name, content in other.items() if content != first[name]]


def segments(node: Node) -> dict[str, bytes]:
    """The segment files of all its logs."""
    logs = node.data_dir / "logs"
    return {str(path.relative_to(logs)): path.read_bytes() for path in logs.glob("*/*") if path.name.isdigit()}


def move_one(update: Update) -> None:
    """A queue goes to another log, and the record that it left behind is copied there: between masters of both
    versions."""
    with Client(*update.servers) as client:
        first = client.admin.declare("moved").log_id
        with client.producer("moved") as producer:
            producer.send(b"left behind")
        client.admin.alter("moved", {"flush": "disk"})

        def met(what: Callable[[], bool]) -> bool:
            with contextlib.suppress(MirrorlogError):
                return what()
            return False

        def moved() -> bool:
            return client.admin.metadata(["moved"]).queues[0].log_id != first

        def synced() -> bool:
            sync = client.admin.queue_sync("moved")
            return not sync.wished and not sync.spans

        wait_for(lambda: met(moved) or None, timeout=10, what=lambda: f"the move; {update.growing.said()}")
        assert client.admin.queue_sync("moved").spans
        client.admin.sync_queue("moved")
        wait_for(lambda: met(synced) or None, timeout=10, what=lambda: f"the sync; {update.growing.said()}")


def consume_in_order(update: Update) -> bytes | None:
    """The first record of a queue, by a group that is ordered by key: what came with this version."""
    with Client(*update.servers) as client, client.subscribe("q0", group="ordered", ordered_by="key") as subscription:
        delivery = next(subscription)
        delivery.ack()
        return delivery.value


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_cluster_is_updated_node_by_node_and_not_back(update: Update, tmp_path: Path) -> None:
    """Goal: two adjacent versions are one cluster, and there is a way back until all nodes are updated. Method: under
    publishing each node in turn is stopped and goes on with the new software; the first goes back in between. Masters
    of either version have mirrors of the other. A queue is moved between them. The cluster's version rises with the
    last; only then a group may be ordered by key, and is. Then the old software is refused: on the disk of a node that
    was updated, on a disk from before, and on a blank one. All that was published is there once, no copy was made anew,
    copies are equal."""
    one, two, three = update.nodes
    assert versions.OWN == NOW, "the software before is two versions behind: let this test begin with the one before"

    update.check(software=(BEFORE, BEFORE, BEFORE), cluster=BEFORE)
    update.restart(one, NOW)
    update.check(software=(NOW, BEFORE, BEFORE), cluster=BEFORE)
    assert "n1" not in update.masters()
    update.goes_on()  # masters of the version before, a mirror of this one
    with Client(*update.servers) as client:
        client.admin.rebalance()
    wait_for(lambda: update.masters() == NAMES or None, timeout=10, what=update.growing.said)
    update.whole()
    update.goes_on()  # a master of this version, mirrors of the one before
    move_one(update)
    with pytest.raises(UnsupportedVersion, match="update all nodes"):
        consume_in_order(update)

    update.restart(one, BEFORE)
    update.goes_on()
    update.restart(one, NOW)
    update.restart(two, NOW)
    update.check(software=(NOW, NOW, BEFORE), cluster=BEFORE)
    update.goes_on()

    disk_of_before = tmp_path / "n3 before"
    update.restart(three, NOW, between=lambda: shutil.copytree(three.data_dir, disk_of_before))
    update.check(software=(NOW, NOW, NOW), cluster=NOW)
    update.goes_on()
    assert consume_in_order(update) is not None
    refusal = (
        "the cluster runs at version 8, and software of version 7 works in clusters of version 6 and 7 only: start the "
        "node with software of version 8 or 9"
    )

    assert three.stop() == 0
    update.launch(three, BEFORE)
    assert refusal in ended(three)

    disk = three.data_dir.rename(tmp_path / "n3 updated")
    disk_of_before.rename(three.data_dir)
    update.launch(three, BEFORE)
    assert refusal in ended(three)

    stranger = update.growing.node()
    update.launch(stranger, BEFORE, *join(one))
    assert refusal in ended(stranger)

    shutil.rmtree(three.data_dir)
    disk.rename(three.data_dir)
    update.launch(three, NOW)
    update.whole()
    update.check(software=(NOW, NOW, NOW), cluster=NOW)
    assert_nothing_lost(update)
