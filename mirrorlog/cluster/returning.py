"""How a node whose disk is blank comes back to a cluster that knows its name: as another Raft member.

Its disk may have voted and answered for entries, and has forgotten both. So the member that it was ends with the entry
that registers a run of it which has seen the cluster's start id (`NodeStarted.seen`), as for a disk that was set back:
the new member's number is that entry's index, its copies are marked, and it begins with what another node has applied.
That run is the search itself: the node's own one follows it, on a disk that knows it.

A node that never registered may have voted all the same. Its first start id is that of a run which never was: so the
next one is not its first, and it is another member too.

Done again from the beginning, whenever it was cut short, it comes to the same: what was decided shows in the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec.structs import replace

from mirrorlog.cluster.commands import NodeStarted
from mirrorlog.cluster.questions import Applied, Joined
from mirrorlog.cluster.state import NodeFacts, decode_state
from mirrorlog.errors import NotAMember, NotLeader, ProtocolError


class Cluster(Protocol):
    """Any member of it."""

    async def apply(self, command: NodeStarted) -> Applied:
        """Have it decided. Raises MirrorlogError."""

    async def state(self, index: int) -> Joined:
        """What is decided of this node, up to `index` at least. Raises NotAMember when the cluster does not know it,
        MirrorlogError."""


@dataclass(frozen=True, slots=True)
class Returned:
    """`joined`: which member it is now, and what that begins with; `first`: the cluster knew of no run of it."""

    joined: Joined
    first: bool


class _Unknown(Exception):
    """The cluster does not know the node."""


async def come_back(started: NodeStarted, never: str, cluster: Cluster) -> Returned | None:
    """`started`: the run that sees the disk blank; `never`: the start id of one that never was. None when the cluster
    does not know the node: it may join. Raises MirrorlogError: then it may be tried again with the same arguments; with
    `rival` in its details while the former run is still heard."""
    try:
        return await _come_back(started, never, cluster)
    except _Unknown:
        return None


async def _come_back(started: NodeStarted, never: str, cluster: Cluster) -> Returned:
    node = started.node
    joined, facts = await _known(cluster, 0, node)
    if facts.start_id == started.start_id:
        return Returned(joined, first=False)  # decided, and the answer was lost
    if not facts.start_id:
        outcome = await cluster.apply(replace(started, start_id=never))
        _, facts = await _known(cluster, outcome.index, node)
    seen = facts.start_id
    outcome = await cluster.apply(replace(started, seen=seen))
    joined, facts = await _known(cluster, outcome.index, node)
    if facts.start_id != started.start_id:
        raise NotLeader(outcome.refusal or f"run {facts.start_id} of node {node} was registered meanwhile")
    return Returned(joined, first=seen == never)


async def _known(cluster: Cluster, index: int, node: str) -> tuple[Joined, NodeFacts]:
    try:
        told = await cluster.state(index)
    except NotAMember:
        raise _Unknown from None
    try:
        return told, decode_state(told.snapshot.state).nodes[node]
    except (KeyError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"what the cluster knows of node {node} does not fit: {error}") from None
