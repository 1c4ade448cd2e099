"""How the nodes of a configuration found their cluster: who may, and what the cluster begins with. Pure.

A node with a blank disk may be new, or may have been in the cluster on a disk that is gone. A member that forgot its
vote must not vote again. A blank disk cannot tell whether there was one; the other members of the configuration can.
Each is asked again and again, and what it says is one of

    it looks, too               its disk is blank: it knows of nothing that was ever decided
    it is untouched             it has founded, and has neither voted nor written anything: as good as blank
    it is in the cluster        something is decided there, or may be
    nothing                     it is not there

**Somebody is in the cluster**: the node does not found, whatever the others say. It comes back as another Raft member
(`registration.come_back`), whether it was there before or comes for the first time: nobody can tell.

**Nobody is, and somebody else dials this node as a member of it**: all that are in it have joined later. The node
waits, and says so.

**Else, when a majority, this node included, has been seen without anything**, it founds. What one was seen to be holds
for as long as this process looks: this node has said nothing since, and what its former disk may have said was said
before. So members need not see each other at one moment, and one that has founded is no riddle to the others.

A majority waits a moment for the rest, for three nodes that are started at once are not there at once; whoever comes
later, when something is decided, begins as another member.

What it does not see: a majority of the disks is blank, and whoever holds what was decided is down. Nobody can tell that
from a first start, and the cluster begins again without it. With it there nobody founds, and the reason says what can
be done.

Rejected: to wait for all (a machine that is late would hold the first start up), to write down on each disk with whom
it founds (the last one to write may die before it, so the question stays the same).

A cluster begins with the nodes and logs that its configuration names. Every founding node reads the same configuration
and so makes the same first state, byte for byte, without asking anybody. From then on the cluster decides, and nobody
looks at the configuration again (decision 0019).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorlog import versions
from mirrorlog.cluster.membership.discovery import FoundCluster, InCluster, Looks, NoAnswer, Wait
from mirrorlog.cluster.raft.messages import Members, Snapshot
from mirrorlog.cluster.state.commands import addresses_of
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts, encode_state
from mirrorlog.config import ClusterSettings, LogAssignment

OTHERS_S: Final = 0.25
"""How long a majority waits for the others before it founds without them."""


@dataclass(frozen=True, slots=True)
class Untouched:
    """A member's answer: it has founded, and has neither voted nor written anything. `member`: what number it has this
    node under; `voters`: of its founding."""

    node: str
    member: int
    voters: tuple[int, ...]


Told = InCluster | Looks | NoAnswer | Untouched


@dataclass(frozen=True, slots=True)
class ComeBack:
    """The cluster is there: this node is another member of it. `seeds`: who is in it; `hint`: what may be done when it
    decides nothing; empty when it should."""

    name: str
    seeds: tuple[str, ...]
    hint: str = ""


Decision = FoundCluster | ComeBack | Wait


def founding_key(cluster: ClusterSettings) -> tuple[str, ...]:
    """The same on nodes that found the same cluster with the same members, and no list of seeds (`Looks.seeds`)."""
    said = "\n".join([str(cluster.cluster_id), *(f"{member.id} {member.replication}" for member in cluster.members)])
    return (f"founding {hashlib.sha256(said.encode()).hexdigest()}",)


class Founders:
    """What node `own` makes of the others' answers, round after round, for the cluster of `cluster.members`."""

    def __init__(self, own: Looks, cluster: ClusterSettings) -> None:
        self._own = own
        self._cluster_id = cluster.cluster_id
        self._ids = tuple(member.id for member in cluster.members)
        self._needed = len(self._ids) // 2 + 1
        self._blank = {own.node}
        self._enough_since: float | None = None

    def decide(self, answers: Mapping[str, tuple[str, Told]], now: float, dialled_by: Collection[str] = ()) -> Decision:
        """What follows from one round. `answers`: of every other member, by its id, with the address that was asked;
        `now`: seconds of a clock that only goes forward; `dialled_by`: nodes that have dialled this one as members of
        the cluster."""
        reasons = {node: self._why_not_blank(node, answer) for node, (_, answer) in answers.items()}
        blank = {self._own.node, *(node for node, reason in reasons.items() if not reason)}
        there = {
            node: answer
            for node, (_, answer) in answers.items()
            if isinstance(answer, InCluster) and (answer.cluster_id, answer.node) == (self._cluster_id, node)
        }
        if there:
            seeds = tuple(answers[node][0] for node in there)
            return ComeBack(next(iter(there.values())).name, seeds, self._hint(there, blank))
        if joined := sorted(set(dialled_by) - set(self._ids)):
            # They were let in by somebody, whether one of the configuration is left or not.
            return Wait(
                f"{', '.join(joined)} of this cluster dial this node, and no member of its configuration that answers "
                "is in it; put cluster.join, with the address of one that is, in the place of [[cluster.members]]"
            )
        self._blank |= blank
        if len(self._blank) == len(self._ids):
            return FoundCluster()
        if len(self._blank) >= self._needed:
            self._enough_since = now if self._enough_since is None else self._enough_since
            if now - self._enough_since >= OTHERS_S:
                return FoundCluster()
        missing = "; ".join(f"{node}: {reason}" for node, reason in reasons.items() if node not in self._blank)
        return Wait(
            f"{len(self._blank)} of the members {', '.join(self._ids)} are known to be in no cluster yet, "
            f"{self._needed} are needed to found it; {missing}"
        )

    def _why_not_blank(self, node: str, answer: Told) -> str:
        """Empty when it holds nothing, and founds the same."""
        same = "give all nodes the same cluster.name, cluster.id and [[cluster.members]]"
        if isinstance(answer, NoAnswer):
            return answer.reason
        if answer.node != node:
            return f"node {answer.node} answers at its address"
        if isinstance(answer, InCluster):
            return f"it is in cluster {answer.name}, cluster_id {answer.cluster_id}"
        if isinstance(answer, Looks):
            return "" if answer.seeds == self._own.seeds else f"it looks for another cluster: {same}"
        number, voters = self._ids.index(self._own.node) + 1, tuple(range(1, len(self._ids) + 1))
        founded_it_too = (answer.member, answer.voters) == (number, voters)
        return "" if founded_it_too else f"it has founded with other members: {same}"

    def _hint(self, there: Collection[str], blank: Collection[str]) -> str:
        """By the configuration: the cluster may have other members by now."""
        if len(self._ids) - len(blank) >= self._needed:
            return ""
        names = ", ".join(there)
        return (
            f"the disks of {', '.join(sorted(blank))} are blank, and {names} may be no majority: then recover the "
            f"cluster on {names} with mqtool recover-cluster --accept-loss"
        )


def founding_state(cluster: ClusterSettings, *, witness: str = "") -> ClusterState:
    """The members are numbered by their place, from 1. `witness`: the one that holds no messages. The cluster runs at
    the oldest version that this software knows, until all its nodes are there."""
    return ClusterState(
        cluster_id=str(cluster.cluster_id),
        name=cluster.name,
        homes=cluster.homes,
        nodes={
            member.id: NodeFacts(member=number, addresses=addresses_of(member), witness=member.id == witness)
            for number, member in enumerate(cluster.members, 1)
        },
        logs={str(cluster.log_id(log)): _log_facts(log) for log in cluster.logs},
        cluster_version=versions.MIN,
    )


def founding(state: ClusterState) -> Snapshot:
    """The same for Raft: what every founding member begins with."""
    members = tuple(sorted(facts.member for facts in state.nodes.values()))
    return Snapshot(0, 0, Members(members), encode_state(state))


def _log_facts(log: LogAssignment) -> LogFacts:
    return LogFacts(
        number=log.log_number,
        name=log.name,
        flush=log.flush,
        replicas=log.nodes,
        copies=log.copies or len(log.nodes),
        min_in_sync=log.min_in_sync,
        copies_wanted=log.copies_wanted,
    )
