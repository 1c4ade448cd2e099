"""Disks of stopped nodes whose cluster has lost its majority."""

from __future__ import annotations

import json
from pathlib import Path

from mirrorlog.cluster.membership.founding import founding
from mirrorlog.cluster.membership.recovering import RAFT_NAME, Survivor, read_survivor
from mirrorlog.cluster.raft.messages import Effects, EntryKind, HardState, RaftEntry
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    InSyncGrown,
    LogMade,
    NodeStarted,
    Promoted,
    Seen,
    StartKind,
)
from mirrorlog.cluster.state.state import ClusterState, NodeFacts
from mirrorlog.commitlog.files import OsFiles

FILES = OsFiles()
CLUSTER_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
NAMES = ("a", "b", "c")


class Disk:
    """A stopped node's directory, whose store holds the founding snapshot and some entries."""

    def __init__(
        self, path: Path, name: str, commands: list[Command], *, term: int = 3, names: tuple[str, ...] = NAMES
    ) -> None:
        self.path = path / name
        self.name = name
        self.path.mkdir()
        identity = {"format_version": 1, "cluster_id": CLUSTER_ID, "node_id": name}
        (self.path / "node.json").write_text(json.dumps(identity))
        nodes = {each: NodeFacts(number, Addresses()) for number, each in enumerate(names, 1)}
        first = founding(ClusterState(CLUSTER_ID, "testing", nodes=nodes))
        store = RaftStore.create(FILES, self.path / RAFT_NAME, own=names.index(name) + 1, snapshot=first)
        entries = tuple(
            RaftEntry(index, 2, EntryKind.COMMAND, encode_command(command)) for index, command in enumerate(commands, 1)
        )
        store.save(Effects(hard_state=HardState(term), entries=entries))
        store.close()

    def read(self) -> Survivor:
        return read_survivor(FILES, self.path)

    def state(self) -> ClusterState:
        return self.read().state


def commands() -> list[Command]:
    """Three nodes that run, and a log on all of them that `a` masters."""
    started = [
        NodeStarted(node=name, start_id=f"{name} 1", kind=StartKind.CLEAN, addresses=Addresses()) for name in NAMES
    ]
    made = LogMade(log_id="log", number=0, name="main", flush="memory", replicas=NAMES, min_in_sync=2)
    promoted = Promoted(log_id="log", seen=Seen(0, 0), holder=Holder("a", "a 1"), epoch=1)
    grown = InSyncGrown(log_id="log", seen=Seen(1, 1), holder=Holder("b", "b 1"))
    return [*started, made, promoted, grown]
