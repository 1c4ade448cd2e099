"""A cluster whose majority is lost for good goes on with the survivors: offline, on their disks.

Nobody can decide anything any more, so what is left is decided here, by hand: the newest state that a survivor knows,
without the lost nodes (`node_rules.recovered`), as a new incarnation, in which the survivors alone vote. It has to be
the same on each of them, byte for byte. So each survivor's disk is first read into a `Survivor`, a file that can be
carried; from the same survivors everybody makes the same `SurvivorPlan`; and each then does it on its own disk.

It may be done again, and it may be cut short: the rename of a snapshot decides (`raft.store`), on each disk by itself.
Should one survivor have gone on already, the others take over what it decided. The old files are copied aside first,
and stay there.

The index of the new beginning is far above every one that the lost nodes can have given out, and so is its term: what
they say, should they come back, is late to everybody here. They are no members any more, their names are free.

Rejected: to start one survivor alone and to let the others join it (what only they hold would be lost), to let each
survivor decide for itself (two of them would make two clusters).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from mirrorlog.cluster.membership.joining import JoinRecord
from mirrorlog.cluster.membership.run_history import RunHistory
from mirrorlog.cluster.raft.log import RaftLog
from mirrorlog.cluster.raft.messages import Effects, HardState, Members, RaftEntry, Snapshot, Stored
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.state.machine import Machine
from mirrorlog.cluster.state.node_rules import recovered, restored
from mirrorlog.cluster.state.state import ClusterState, decode_state, encode_state
from mirrorlog.commitlog.directory import IDENTITY_NAME, DataDirectory
from mirrorlog.commitlog.files import Files, disk_named, read_file, replace_file
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadInput, ForeignDirectory, Refused

RAFT_NAME: Final = "raft"
"""Of the store's directory in a node's."""
RAISED: Final = 1_000_000
"""By so much index and term are above all that a survivor knows. A cluster decides a few entries a minute, and a term
takes half a second at least: the lost nodes cannot come near it unseen."""
FILE_BYTES_MAX: Final = 1024 * 1024 * 1024

_MAGIC: Final = b"mirrorlog survivor 1\n"
_IDENTITY_BYTES_MAX: Final = 64 * 1024


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """What one stopped node's disk says. `term`: the highest it has heard of; `entries`: all behind `snapshot`, decided
    or not; `runs`: the start ids that its disk knows, the last one that was registered first."""

    node: str
    cluster_id: str
    member: int
    term: int
    snapshot: Snapshot
    entries: tuple[RaftEntry, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def state(self) -> ClusterState:
        """With all entries: the lost nodes may have decided any of them."""
        machine = Machine(self.snapshot)
        machine.apply(self.entries)
        return machine.state

    @property
    def members(self) -> Members:
        """The newest configuration that it knows."""
        return RaftLog(self.snapshot, self.entries).members

    @property
    def last(self) -> tuple[int, int]:
        """Term and index of its last entry: of two survivors the higher knows more."""
        if self.entries:
            return self.entries[-1].term, self.entries[-1].index
        return self.snapshot.term, self.snapshot.index


@dataclass(frozen=True, slots=True)
class SurvivorPlan:
    """What the cluster shall be. `newest`: the survivor whose state it is; `lost`: the nodes that are left out;
    `snapshot`: what every survivor begins with; `decided`: a survivor has gone on with it already."""

    state: ClusterState
    snapshot: Snapshot
    newest: str
    lost: tuple[str, ...]
    decided: bool = False

    @property
    def fingerprint(self) -> str:
        """The same on every survivor, or they are not given the same."""
        return f"{crc32c(msgspec.msgpack.encode(self.snapshot)):08x}"


# --- What is to be done: pure ---------------------------------------------------------------------------------------


def plan(survivors: Sequence[Survivor]) -> SurvivorPlan:
    """The same for the same survivors, in whatever order. Raises BadInput for what cannot be one cluster's survivors,
    Refused when nothing is to be recovered."""
    _check_together(survivors)
    states = {each.node: each.state for each in survivors}
    newest = max(survivors, key=lambda each: (states[each.node].incarnation, each.last, each.node))
    state = states[newest.node]
    names = sorted(states)
    if any(each.incarnation < state.incarnation for each in states.values()):
        return _taken_over(newest, names, states)
    for each in survivors:
        if each.node not in state.nodes or state.nodes[each.node].member != each.member:
            raise BadInput(
                f"node {each.node} was forgotten by its cluster, or joined it anew since; leave it out, and let it "
                "join again"
            )
    lost = tuple(sorted(state.nodes.keys() - states.keys()))
    if not lost and state.incarnation > 1 and all(each.snapshot == newest.snapshot for each in survivors):
        return _taken_over(newest, names, states)
    if not lost:
        raise Refused(f"{', '.join(names)} are all nodes of the cluster: nobody is lost; start them")
    members = newest.members
    if members.agree([each.member for each in survivors]):
        raise Refused(
            f"{', '.join(names)} are a majority: start them, and forget {', '.join(lost)} with mqtool forget-node"
        )
    changed = _with_runs(recovered(state, names), survivors)
    index = max(each.last[1] for each in survivors) + RAISED
    term = max(max(each.term, each.last[0]) for each in survivors) + RAISED
    changed = msgspec.structs.replace(changed, version=index)
    voters = Members(tuple(sorted(each.member for each in survivors)))
    return SurvivorPlan(changed, Snapshot(index, term, voters, encode_state(changed)), newest.node, lost)


def _check_together(survivors: Sequence[Survivor]) -> None:
    if not survivors:
        raise BadInput("no survivor is given")
    names = [each.node for each in survivors]
    if len(set(names)) != len(names):
        raise BadInput(f"a node is given twice: {', '.join(sorted(names))}")
    clusters = {each.cluster_id for each in survivors}
    if len(clusters) > 1:
        raise BadInput(f"these nodes are of different clusters: {', '.join(sorted(clusters))}")


def _taken_over(newest: Survivor, names: Sequence[str], states: dict[str, ClusterState]) -> SurvivorPlan:
    """A recovery that was begun: what the first one was given, the others are given too."""
    began = decode_state(newest.snapshot.state)
    if began.incarnation != states[newest.node].incarnation or sorted(began.nodes) != list(names):
        raise Refused(
            f"node {newest.node} has gone on as incarnation {began.incarnation} with {', '.join(sorted(began.nodes))}; "
            "a node that is not of these joins it anew, with its Raft directory and its file `starts` set aside"
        )
    before = min(states.values(), key=lambda state: state.incarnation)
    lost = tuple(sorted(before.nodes.keys() - set(names)))
    return SurvivorPlan(began, newest.snapshot, newest.node, lost, decided=True)


def _with_runs(state: ClusterState, survivors: Sequence[Survivor]) -> ClusterState:
    """Each node as a run that its disk knows: the newest state may not have heard of the last one, and a start would be
    taken for one on a disk that was set back."""
    known = {each.node: each.runs for each in survivors}
    nodes = {
        name: facts if facts.start_id in known[name] else msgspec.structs.replace(facts, start_id=(*known[name], "")[0])
        for name, facts in state.nodes.items()
    }
    logs = {
        log_id: msgspec.structs.replace(log, in_sync={node: nodes[node].start_id for node in log.in_sync})
        for log_id, log in state.logs.items()
    }
    return msgspec.structs.replace(state, nodes=nodes, logs=logs)


# --- A survivor's disk ----------------------------------------------------------------------------------------------


@contextmanager
def held(files: Files, directory: Path) -> Iterator[tuple[str, str]]:
    """The node's directory, held against its node; gives cluster id and node id. Raises BadInput when it is none,
    DirectoryInUse while the node runs, DiskFailed."""
    path = directory / IDENTITY_NAME
    with disk_named("read", path):
        if not files.exists(path):
            raise BadInput(f"{directory} is no node's data directory: it has no {IDENTITY_NAME}")
        content = read_file(files, path, max_bytes=_IDENTITY_BYTES_MAX)
    try:
        found = json.loads(content)
        cluster_id, node_id = UUID(found["cluster_id"]), str(found["node_id"])
    except (ValueError, KeyError, TypeError):
        raise ForeignDirectory(f"{path} does not say whose directory it is") from None
    with DataDirectory.open(directory, cluster_id=cluster_id, node_id=node_id, files=files):
        yield str(cluster_id), node_id


def read_survivor(files: Files, directory: Path) -> Survivor:
    """What the disk of a stopped node says. Raises as `held`, LogCorrupt when its Raft store cannot be used."""
    with held(files, directory) as (cluster_id, node):
        store, stored = _opened(files, directory)
        store.close()
        starts = RunHistory.open(files, directory, boot_id="")
        return Survivor(
            node=node,
            cluster_id=cluster_id,
            member=store.own,
            term=stored.hard_state.term,
            snapshot=stored.snapshot,
            entries=stored.entries,
            runs=tuple(run for run in (starts.before, *starts.since) if run),
        )


def recover(files: Files, directory: Path, agreed: SurvivorPlan) -> bool:
    """Let a stopped survivor begin as the plan says; on disk when this returns. Whether it had not already.

    What it had is copied aside first. Raises as `read_survivor`, BadInput for a node that the plan leaves out, Refused
    for one that has gone on with something else.
    """
    with held(files, directory) as (_, node):
        if node not in agreed.state.nodes:
            raise BadInput(f"node {node} in {directory} is none of the survivors")
        store, stored = _opened(files, directory)
        try:
            known = decode_state(stored.snapshot.state)
            if stored.snapshot == agreed.snapshot:
                return False
            if known.incarnation >= agreed.state.incarnation:
                raise Refused(f"node {node} has gone on as incarnation {known.incarnation} of its cluster already")
            if store.own != agreed.state.nodes[node].member:
                raise BadInput(f"node {node} is member {store.own} on its disk, not {agreed.state.nodes[node].member}")
            _back_up(files, directory, agreed.state.incarnation)
            term = max(agreed.snapshot.term, stored.hard_state.term)
            store.save(Effects(hard_state=HardState(term), snapshot=agreed.snapshot))
        finally:
            store.close()
    return True


def backup_of(directory: Path, incarnation: int) -> Path:
    """Where a survivor's old Raft files are copied to when it begins as that incarnation."""
    return directory / f"{RAFT_NAME}.before-incarnation-{incarnation}"


def _opened(files: Files, directory: Path) -> tuple[RaftStore, Stored]:
    found = RaftStore.open(files, directory / RAFT_NAME)
    if found is None:
        raise BadInput(f"{directory} holds no member of a cluster: there is nothing in {RAFT_NAME}")
    return found


def _back_up(files: Files, directory: Path, incarnation: int) -> None:
    """Copied, not moved: at every moment the store is whole, and a node that is started by mistake finds it."""
    store, aside = directory / RAFT_NAME, backup_of(directory, incarnation)
    with disk_named("copy", store):
        files.make_directory(aside)
        for name in files.listdir(store):
            replace_file(files, aside / name, read_file(files, store / name, max_bytes=FILE_BYTES_MAX))
        files.fsync_directory(directory)


# --- Another cluster, from a backup ---------------------------------------------------------------------------------


def check_state(encoded: bytes, name: str) -> ClusterState:
    """A state that a node told. Raises BadInput; `name`: of its file, for that."""
    try:
        return decode_state(encoded)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{name} is no cluster's state: {error}") from None


def begin_restored(
    files: Files,
    directory: Path,
    state: ClusterState,
    *,
    node: str,
    cluster_id: UUID,
    name: str,
    epochs: Mapping[str, int],
) -> ClusterState:
    """Let a data directory be that of the one node of another cluster, as if that had stopped cleanly with the logs
    that are there; see `node_rules.restored`. On disk when this returns. Raises BadRequest, DiskFull, DiskFailed."""
    history = RunHistory.open(files, directory, boot_id="")
    history.begin()
    history.registered()
    history.stopped()
    begun = restored(state, node, start_id=history.start_id, cluster_id=str(cluster_id), name=name, epochs=epochs)
    snapshot = Snapshot(begun.version, 1, Members((1,)), encode_state(begun))
    record = JoinRecord.open(files, directory)
    record.joined(1, str(cluster_id), msgspec.msgpack.encode(snapshot))
    return begun


# --- A survivor in a file -------------------------------------------------------------------------------------------


def encode_survivor(survivor: Survivor) -> bytes:
    """For a file that is carried to another machine."""
    payload = msgspec.msgpack.encode(survivor)
    return _MAGIC + crc32c(payload).to_bytes(4, "little") + payload


def decode_survivor(content: bytes, name: str) -> Survivor:
    """The other way. Raises BadInput; `name`: of the file, for that."""
    payload = content[len(_MAGIC) + 4 :]
    if not content.startswith(_MAGIC) or content[len(_MAGIC) :][:4] != crc32c(payload).to_bytes(4, "little"):
        raise BadInput(f"{name} is no survivor's file, or a damaged one; save it again")
    try:
        return msgspec.msgpack.decode(payload, type=Survivor)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{name} was saved by another version: {error}") from None
