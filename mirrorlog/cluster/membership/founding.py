"""What a cluster begins with: the nodes and logs that its configuration names. Pure.

Every founding node reads the same configuration and so makes the same first state, byte for byte, without asking
anybody. From then on the cluster decides, and nobody looks at the configuration again (decision 0019).
"""

from __future__ import annotations

from mirrorlog import versions
from mirrorlog.cluster.raft.members import Members
from mirrorlog.cluster.raft.messages import Snapshot
from mirrorlog.cluster.state.commands import Addresses
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts, encode_state
from mirrorlog.config import ClusterSettings, LogAssignment, Member


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


def addresses_of(member: Member) -> Addresses:
    """As the cluster keeps them."""
    return Addresses(
        client=member.client, replication=member.replication, grpc=member.grpc or "", http=member.http or ""
    )


def member_of(node: str, addresses: Addresses) -> Member:
    """As the configuration has them."""
    return Member(
        id=node,
        client=addresses.client,
        replication=addresses.replication,
        grpc=addresses.grpc or None,
        http=addresses.http or None,
    )


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
