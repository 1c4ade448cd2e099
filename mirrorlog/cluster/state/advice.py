"""What an operator should know of a cluster that works and could be safer. Pure."""

from __future__ import annotations

from mirrorlog.cluster.state.state import ClusterState


def advice(state: ClusterState) -> list[str]:
    """One line each; none when there is nothing to be said."""
    if len(state.nodes) == 2:
        names = " and ".join(sorted(state.nodes))
        return [
            f"nodes {names} cannot fail over by themselves: with either gone the other is no majority and refuses "
            "publishes; add a third node, or start one with --witness, which holds no messages"
        ]
    return []
