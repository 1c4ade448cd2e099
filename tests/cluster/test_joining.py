"""A node that joins is one joining, however often it dies on the way, and none any more once it is a member."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pytest

from mirrorlog.cluster.membership.joining import FILE_NAME, STATE_BYTES_MAX, JoinRecord, anew, check_joining
from mirrorlog.cluster.raft.messages import Members, Snapshot
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.requests import AskJoin, Joined
from mirrorlog.cluster.state.commands import Addresses
from mirrorlog.cluster.state.state import ClusterState, encode_state
from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadRequest, DiskFailed, DiskFull, LogCorrupt, ProtocolError, UnsupportedVersion
from sim.disk import DiskModel, Moment, SimulatedFiles

DIRECTORY: Final = Path("/node")
PATH: Final = DIRECTORY / FILE_NAME
STATE: Final = encode_state(ClusterState("c-id", "c")) + bytes(9_000)
"""Of several pages."""
GOOD: Final = Addresses(client="h:1", replication="h:2")
MODELS: Final = {
    "sectors": DiskModel(),
    "pages, names in any order": DiskModel(unit_bytes=4096, ordered_names=False),
    "written back in between": DiskModel(ordered_names=False, write_back=0.2),
}


class Told(NamedTuple):
    """What a start reads."""

    token: str
    member: int = 0
    cluster_id: str = ""
    state: bytes = b""


def told(files: Files, *, new_token: str = "new") -> Told:
    record = JoinRecord.open(files, DIRECTORY, new_token=lambda: new_token)
    return Told(record.content.token, record.content.member, record.content.cluster_id, record.content.snapshot)


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(DIRECTORY, seed=1)


def test_a_disk_keeps_its_token(files: SimulatedFiles) -> None:
    """So that who asks again finds itself in; by two power losses."""
    assert told(files, new_token="t1") == Told("t1")
    assert told(files.after_power_loss(), new_token="t2") == Told("t1")


def test_each_disk_has_a_token_of_its_own() -> None:
    """By two disks that choose it themselves."""
    disks = [SimulatedFiles(DIRECTORY) for _ in range(2)]
    assert len({JoinRecord.open(disk, DIRECTORY).content.token for disk in disks}) == 2


def test_an_answer_is_found_after_a_power_loss(files: SimulatedFiles) -> None:
    """The node goes on without asking; by an answer, and a later one for the same token."""
    record = JoinRecord.open(files, DIRECTORY, new_token=lambda: "t1")
    record.joined(7, "c-id", b"older")
    record.joined(7, "c-id", STATE)
    assert (record.content.token, record.content.member, record.content.cluster_id, record.content.snapshot) == (
        "t1",
        7,
        "c-id",
        STATE,
    )
    assert told(files.after_power_loss()) == Told("t1", 7, "c-id", STATE)


def test_after_its_removal_a_joining_is_another_one(files: SimulatedFiles) -> None:
    """A member whose Raft state was set aside must not come back under its old number; by removing it twice."""
    JoinRecord.open(files, DIRECTORY, new_token=lambda: "t1").joined(7, "c-id", STATE)
    JoinRecord.remove(files, DIRECTORY)
    JoinRecord.remove(files, DIRECTORY)
    assert told(files.after_power_loss(), new_token="t2") == Told("t2")


@pytest.mark.parametrize(
    ("member", "cluster_id", "snapshot"),
    [(0, "c-id", STATE), (-1, "c-id", STATE), (7, "", STATE), (7, "x" * 256, STATE), (7, "c-id", b"")],
)
def test_an_answer_that_cannot_be_is_refused(
    files: SimulatedFiles, member: int, cluster_id: str, snapshot: bytes
) -> None:
    """Another node sends it; by one field each that makes no sense."""
    record = JoinRecord.open(files, DIRECTORY, new_token=lambda: "t1")
    with pytest.raises(ProtocolError):
        record.joined(member, cluster_id, snapshot)
    assert (record.content.member, told(files)) == (0, Told("t1"))


def test_a_state_that_is_too_large_is_refused(files: SimulatedFiles) -> None:
    """It could not be read again; by one byte too many, of memory that is never touched."""
    record = JoinRecord.open(files, DIRECTORY)
    with pytest.raises(ProtocolError, match="can be"):
        record.joined(7, "c-id", bytes(STATE_BYTES_MAX + 1))


# --- Crashes and failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(6))
def test_a_crash_at_any_operation_leaves_the_old_or_the_new(model: DiskModel, seed: int) -> None:
    """And what a start has read is found by all after it; by kills and power losses at each operation of a joining."""
    files = SimulatedFiles(DIRECTORY, seed=seed, model=model)
    crashed: list[tuple[SimulatedFiles, set[Told]]] = []
    allowed: set[Told] = set()

    def observe(_: Moment) -> None:
        files.observer = None
        crashed.extend((each, set(allowed)) for each in (files.after_kill(), files.after_power_loss()))
        files.observer = observe

    none, asked, let_in = Told("new"), Told("t1"), Told("t1", 7, "c-id", STATE)
    files.observer = observe
    allowed |= {none, asked}
    record = JoinRecord.open(files, DIRECTORY, new_token=lambda: "t1")
    allowed ^= {none, let_in}
    record.joined(7, "c-id", STATE)
    allowed ^= {asked, none}
    JoinRecord.remove(files, DIRECTORY)
    files.observer = None
    assert len(crashed) > 30
    for disk, wanted in crashed:
        found = told(disk)
        assert found in wanted, f"seed {seed}"
        assert told(disk.after_power_loss(), new_token="other") == found, f"seed {seed}"
    assert {told(files.after_power_loss()) for _ in range(5)} == {none}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["create", "pwrite", "fdatasync", "rename", "fsync_directory"])
def test_a_step_that_failed_is_said_and_can_be_tried_again(files: SimulatedFiles, operation: str, code: int) -> None:
    """By one failure of each operation in each step."""
    error = DiskFull if code == errno.ENOSPC else DiskFailed
    files.model = DiskModel(forgets=True, ordered_names=False)
    files.faults.fail(operation, code, times=1)
    with pytest.raises(error, match=str(PATH)):
        told(files, new_token="t1")
    record = JoinRecord.open(files, DIRECTORY, new_token=lambda: "t1")
    files.faults.fail(operation, code, times=1)
    with pytest.raises(error, match=str(PATH)):
        record.joined(7, "c-id", STATE)
    assert record.content.member == 0
    assert told(files.after_power_loss()) in (Told("t1"), Told("t1", 7, "c-id", STATE))
    record.joined(7, "c-id", STATE)
    assert told(files.after_power_loss()) == Told("t1", 7, "c-id", STATE)


@pytest.mark.parametrize("operation", ["unlink", "fsync_directory"])
def test_a_removal_that_failed_is_said_and_can_be_tried_again(files: SimulatedFiles, operation: str) -> None:
    """It is on disk only when it has returned; by one failure of each operation."""
    files.model = DiskModel(ordered_names=False)
    told(files, new_token="t1")
    files.faults.fail(operation, times=1)
    with pytest.raises(DiskFailed, match="cannot remove"):
        JoinRecord.remove(files, DIRECTORY)
    JoinRecord.remove(files, DIRECTORY)
    assert {told(files.after_power_loss()) for _ in range(10)} == {Told("new")}


def test_a_disk_that_cannot_be_read_is_said(files: SimulatedFiles) -> None:
    """A new token would be the wrong answer; by a read that fails."""
    told(files)
    files.faults.fail("pread", times=1)
    with pytest.raises(DiskFailed, match=str(PATH)):
        told(files)


# --- Files that are not as they were written ------------------------------------------------------------------------


def write(files: SimulatedFiles, content: bytes) -> None:
    with files.open(PATH, create=True) as file:
        file.pwrite(content, 0)


def framed(payload: bytes, *, version: int = 1) -> bytes:
    """A file as another version writes it."""
    head = b"MLJN" + version.to_bytes(4, "little")
    return head + crc32c(payload, crc32c(head)).to_bytes(4, "little") + payload


def test_damage_to_the_file_is_refused(files: SimulatedFiles) -> None:
    """By flipping a bit of each byte, and by cutting the file anywhere."""
    JoinRecord.open(files, DIRECTORY).joined(7, "c-id", b"state")
    content = files.content(PATH)
    for at in range(len(content)):
        damaged = files.after_kill()
        damaged.flip_bit(PATH, at, at % 8)
        with pytest.raises(LogCorrupt, match="let the node join again"):
            told(damaged)
        write(damaged, content[:at])
        with pytest.raises(LogCorrupt, match="let the node join again"):
            told(damaged)


def test_what_a_newer_version_wrote_is_named_so(files: SimulatedFiles) -> None:
    """Removing it would be the wrong advice; by the next format, and by a number that is a text."""
    for content in (framed(b"?", version=2), framed(msgspec.msgpack.encode({"token": "t1", "member": "seven"}))):
        write(files, content)
        with pytest.raises(UnsupportedVersion, match="start the version that wrote it"):
            told(files)


def test_more_fields_are_ignored(files: SimulatedFiles) -> None:
    """A newer version may add them; by a record with one more."""
    write(files, framed(msgspec.msgpack.encode({"token": "t1", "weather": "fine"})))
    assert told(files) == Told("t1")


def test_it_works_on_a_real_disk(tmp_path: Path) -> None:
    """By a joining in a real directory."""
    record = JoinRecord.open(OS_FILES, tmp_path)
    record.joined(7, "c-id", STATE)
    again = JoinRecord.open(OS_FILES, tmp_path)
    assert (again.content.token, again.content.member, again.content.snapshot) == (record.content.token, 7, STATE)
    JoinRecord.remove(OS_FILES, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- Who may be let in, and beginning anew ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (AskJoin(node="no name", addresses=GOOD, token="t"), "id of the node"),
        (AskJoin(node="n", addresses=Addresses(client="h:1"), token="t"), "replication of the node"),
        (AskJoin(node="n", addresses=Addresses(client="h:x", replication="h:1"), token="t"), "client of the node"),
        (AskJoin(node="n", addresses=Addresses("h:1", "h:1", grpc="h"), token="t"), "grpc of the node"),
        (AskJoin(node="n", addresses=GOOD), "1 to 64 characters"),
        (AskJoin(node="n", addresses=GOOD, token="t" * 65), "1 to 64 characters"),
    ],
)
def test_a_node_that_nobody_could_use_is_not_let_in(asked: AskJoin, said: str) -> None:
    """Its name and addresses are everybody's from then on; by one wrong thing each."""
    with pytest.raises(BadRequest, match=said):
        check_joining(asked)


def test_a_node_that_can_be_used_may_be_let_in() -> None:
    """By the least that it has to say."""
    check_joining(AskJoin(node="n", addresses=GOOD, token="t"))


@pytest.mark.parametrize("seed", range(4))
def test_a_member_that_begins_anew_is_the_old_or_the_new_one(seed: int) -> None:
    """Never a third, blank one, whose vote would be forgotten; by kills and power losses at each operation."""
    files = SimulatedFiles(DIRECTORY, seed=seed, model=DiskModel(ordered_names=False))
    raft = DIRECTORY / "raft"
    snapshot = Snapshot(5, 1, Members((3,)), encode_state(ClusterState("c-id", "c")))
    RaftStore.create(files, raft, own=3, snapshot=snapshot).close()
    told = Joined(member=9, snapshot=Snapshot(40, 2, Members((1, 9)), STATE))
    crashed: list[SimulatedFiles] = []

    def observe(_: Moment) -> None:
        files.observer = None
        crashed.extend((files.after_kill(), files.after_power_loss()))
        files.observer = observe

    files.observer = observe
    store, stored = anew(files, raft, told)
    store.close()
    files.observer = None
    assert stored.snapshot == told.snapshot
    assert len(crashed) > 10
    old, new = (3, snapshot), (9, told.snapshot)
    found = [member_of_disk(disk, raft) for disk in crashed]
    assert all(each in (old, new) for each in found), f"seed {seed}"
    assert member_of_disk(files.after_power_loss(), raft) == new


def member_of_disk(files: SimulatedFiles, raft: Path) -> tuple[int, Snapshot]:
    """As a start finds it."""
    found = RaftStore.open(files, raft)
    assert found is not None
    store, stored = found
    store.close()
    return store.own, stored.snapshot
