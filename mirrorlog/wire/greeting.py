"""HELLO: which protocol version two ends speak, and whether they belong together. Pure."""

from __future__ import annotations

from mirrorlog.errors import ProtocolError, UnsupportedVersion, WrongCluster
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN
from mirrorlog.wire.messages.handshake import Hello

ROLES = frozenset({"client", "mirror", "tool", "door", "member", "joiner"})
_INSIDE = frozenset({"mirror", "member"})


def check_hello(hello: Hello, *, cluster_id: str) -> int:
    """The version to speak: the highest that both know.

    Raises UnsupportedVersion, WrongCluster or ProtocolError. A client, and who looks for a cluster, may leave it open;
    a mirror and a member may not. `cluster_id`: empty for a node that is in none.
    """
    if hello.role not in ROLES:
        raise ProtocolError(f"role {hello.role[:32]!r} is none of {', '.join(sorted(ROLES))}")
    version = min(hello.version_max, PROTOCOL_VERSION_MAX)
    if version < max(hello.version_min, PROTOCOL_VERSION_MIN):
        raise UnsupportedVersion(
            f"the other side speaks versions {hello.version_min} to {hello.version_max}, "
            f"this software {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}; update the older one"
        )
    if hello.cluster_id != cluster_id and (hello.cluster_id is not None or hello.role in _INSIDE):
        raise WrongCluster(
            f"this node is {f'of cluster {cluster_id}' if cluster_id else 'in no cluster yet'}, the other side of "
            f"{hello.cluster_id or 'none'}"
        )
    return version
