"""A majority is lost for good: the survivors' disks are brought to one new beginning, the same on each."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mirrorlog.cluster.membership.founding import founding
from mirrorlog.cluster.membership.recovering import (
    RAFT_NAME,
    RAISED,
    Survivor,
    backup_of,
    decode_survivor,
    encode_survivor,
    plan,
    recover,
)
from mirrorlog.cluster.raft.messages import EntryKind, RaftEntry
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import Addresses
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, decode_state
from mirrorlog.commitlog.files import OsDirectory, OsFiles
from mirrorlog.errors import BadInput, DirectoryInUse, MirrorlogError, Refused
from tests.cluster.survivors import CLUSTER_ID, FILES, NAMES, Disk, commands


@pytest.fixture
def disks(tmp_path: Path) -> dict[str, Disk]:
    """`a` knows of less than `b`; `c` is there to be lost."""
    known = {"a": commands()[:-1], "b": commands(), "c": commands()}
    return {name: Disk(tmp_path, name, known[name], term=3 + len(name)) for name in NAMES}


def test_one_survivor_of_three_goes_on_alone(disks: dict[str, Disk]) -> None:
    """It votes alone, in a new incarnation, every epoch far higher and its copy marked, at an index and a term far
    above what it knew; by recovering it and reading its disk."""
    before = disks["b"].read()
    agreed = plan([before])
    assert agreed.lost == ("a", "c")
    assert recover(FILES, disks["b"].path, agreed)
    after = disks["b"].read()
    assert after.state == agreed.state
    assert after.members.voters == (2,)
    assert after.state.incarnation == 2
    assert list(after.state.nodes) == ["b"]
    log = after.state.logs["log"]
    assert (log.replicas, log.marked, log.master) == (("b",), frozenset({"b"}), None)
    assert log.epoch > 1_000_000
    assert after.last >= (before.term + RAISED, before.last[1] + RAISED)
    assert after.term == after.last[0], "it has promised nothing in the term that it begins in"


def test_all_survivors_begin_with_the_same_bytes(tmp_path: Path) -> None:
    """From the one that knows most, in whatever order they are given; by two of five."""
    five = ("a", "b", "c", "d", "e")
    nodes = {each: NodeFacts(number, Addresses()) for number, each in enumerate(five, 1)}
    first = founding(ClusterState(CLUSTER_ID, "testing", nodes=nodes))
    entry = RaftEntry(1, 4, EntryKind.COMMAND, encode_command(commands()[0]))
    a = Survivor(node="a", cluster_id=CLUSTER_ID, member=1, term=9, snapshot=first)
    b = Survivor(node="b", cluster_id=CLUSTER_ID, member=2, term=4, snapshot=first, entries=(entry,))
    one, other = plan([a, b]), plan([b, a])
    assert one == other
    assert one.fingerprint == other.fingerprint
    assert one.newest == "b"
    assert one.snapshot.members.voters == (1, 2)
    assert one.snapshot.term > 9
    assert decode_state(one.snapshot.state) == one.state


def test_a_recovery_that_was_cut_short_is_done_again(disks: dict[str, Disk]) -> None:
    """The second time changes nothing on the one that is done; by repeating it, with its former file beside."""
    survivor = disks["b"].read()
    agreed = plan([survivor])
    assert recover(FILES, disks["b"].path, agreed)
    assert not recover(FILES, disks["b"].path, agreed)
    assert plan([survivor]) == agreed
    again = plan([disks["b"].read()])
    assert (again.decided, again.snapshot) == (True, agreed.snapshot)
    assert not recover(FILES, disks["b"].path, again)


def test_who_comes_later_takes_over_what_was_decided(tmp_path: Path) -> None:
    """One survivor was recovered, the other's machine failed before; by a plan of both disks as they are then."""
    five = ("a", "b", "c", "d", "e")
    nodes = {each: NodeFacts(number, Addresses()) for number, each in enumerate(five, 1)}
    first = founding(ClusterState(CLUSTER_ID, "testing", nodes=nodes))
    a = Survivor(node="a", cluster_id=CLUSTER_ID, member=1, term=9, snapshot=first)
    b = Survivor(node="b", cluster_id=CLUSTER_ID, member=2, term=4, snapshot=first)
    agreed = plan([a, b])
    went_on = msgspec.structs.replace(a, snapshot=agreed.snapshot, term=agreed.snapshot.term)
    again = plan([b, went_on])
    assert again.decided
    assert (again.snapshot, again.state, again.lost) == (agreed.snapshot, agreed.state, agreed.lost)


def test_a_crash_at_any_write_leaves_the_old_or_the_new_beginning(
    disks: dict[str, Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next attempt ends it; by failing each write, sync, rename and directory sync in turn."""
    disk = disks["b"]
    agreed = plan([disk.read()])
    old = disk.state()
    for allowed in range(200):
        failing = FailingFiles(allowed)
        try:
            done = recover(failing, disk.path, agreed)
        except MirrorlogError:
            assert disk.state() in (old, agreed.state)
            continue
        assert failing.left >= 0
        assert disk.state() == agreed.state
        assert allowed > 5, "there is something to fail"
        assert done or disk.read().snapshot == agreed.snapshot
        return
    raise AssertionError("it never came to its end")


class FailingFiles(OsFiles):
    """Takes so many renames and directory syncs, then fails: `left`."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def open_directory(self, path: Path) -> OsDirectory:
        self._count()
        return super().open_directory(path)


def test_the_old_files_are_kept(disks: dict[str, Disk]) -> None:
    """Byte for byte, beside the store; by comparing them."""
    store = disks["b"].path / RAFT_NAME
    disks["b"].read()
    old = {path.name: path.read_bytes() for path in store.iterdir()}
    recover(FILES, disks["b"].path, plan([disks["b"].read()]))
    aside = backup_of(disks["b"].path, 2)
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == old


def test_a_majority_is_not_recovered(disks: dict[str, Disk]) -> None:
    """It can decide by itself, and the third is forgotten; by two of three, and by all."""
    with pytest.raises(Refused, match="are a majority: start them, and forget c"):
        plan([disks["a"].read(), disks["b"].read()])
    with pytest.raises(Refused, match="nobody is lost"):
        plan([disks[name].read() for name in NAMES])


def test_a_node_that_has_gone_on_is_not_set_back(disks: dict[str, Disk]) -> None:
    """What its new cluster decided since would be lost; by a plan of another survivor for a disk that was recovered."""
    agreed = plan([disks["b"].read()])
    recover(FILES, disks["b"].path, agreed)
    with pytest.raises(BadInput, match="none of the survivors"):
        recover(FILES, disks["a"].path, agreed)
    with pytest.raises(Refused, match="has gone on as incarnation 2"):
        plan([disks["a"].read(), disks["b"].read()])


def test_a_run_that_only_the_disk_knows_is_known_to_the_cluster(disks: dict[str, Disk]) -> None:
    """Else its next start would count as one on a disk that was set back; by a survivor whose last run the newest state
    has never heard of."""
    survivor = msgspec.structs.replace(disks["b"].read(), runs=("b 7", "b 8"))
    facts = plan([survivor]).state
    assert facts.nodes["b"].start_id == "b 7"
    assert facts.logs["log"].in_sync == {"b": "b 7"}


def test_a_running_node_is_left_alone(disks: dict[str, Disk]) -> None:
    """By holding its directory as its node does."""
    lock = FILES.lock(disks["b"].path / "lock", b"1\n")
    with pytest.raises(DirectoryInUse):
        disks["b"].read()
    lock.close()


def test_a_survivor_in_a_file_is_the_same(disks: dict[str, Disk]) -> None:
    """And a damaged one is refused; by one there and back, and one byte changed."""
    survivor = disks["b"].read()
    content = encode_survivor(survivor)
    assert decode_survivor(content, "b.survivor") == survivor
    for at in (0, 23, len(content) - 1):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(BadInput, match=r"b\.survivor is no survivor's file"):
            decode_survivor(bytes(damaged), "b.survivor")
