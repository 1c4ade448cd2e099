"""The first messages of a connection: greetings, proofs and refusals, and whether two ends belong together. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from mirrorlog.errors import ProtocolError, UnsupportedVersion, WrongCluster
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN
from mirrorlog.wire.messages.base import Message


class NodeLimits(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What the node will take; a client checks them before it sends. `credit_…`: what a producer may have in one queue
    that is not confirmed, before any CREDIT frame has come; 0: the node has no such limit."""

    max_record_bytes: int
    max_batch_bytes: int
    credit_bytes: int = 0
    credit_batches: int = 0


class Hello(Message, frozen=True):
    """First frame of every connection. `role`: see `ROLES`. `credential`: how it will prove the cluster's secret.
    `incarnation`: of the cluster as a member knows it, 0: not said; `runs`: former start ids that the node's disk knows
    and the cluster may know it by, None: not said. `credit`: whether CREDIT frames may be sent to it. `client_id`: a
    secret of the client's own, the same on all its connections: its exclusive queues are its on each of them. `check`:
    of a node that can check frames, the CRC-32C of what it says of itself (`proof.hello_check`). `door`: the name of
    the door whose role that is."""

    version_min: int
    version_max: int
    role: str
    software: str = ""
    cluster_id: str | None = None
    node_id: str | None = None
    start_id: str | None = None
    stale_reads: bool = False
    credential: bytes | None = None
    incarnation: int = 0
    runs: tuple[str, ...] | None = None
    credit: bool = False
    client_id: str = ""
    check: int | None = None
    door: str = ""

    def __repr__(self) -> str:
        """Without the client's secret: messages are shown in errors and logs."""
        shown = (name for name in self.__struct_fields__ if name != "client_id")
        return f"Hello({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Challenge(Message, frozen=True):
    """Who was dialled asks for a proof: see `wire.proof`."""

    nonce: bytes


class Proof(Message, frozen=True):
    nonce: bytes
    mac: bytes


class Welcome(Message, frozen=True):
    """`incarnation`: of the cluster, as a member knows it; raised when a lost majority is replaced. 0: not said.
    `credential`: the proof that this node knows the cluster's secret too. `runs`: see `Hello`. `check`: to one that has
    said it too: all frames after this one are checked."""

    version: int
    cluster_id: str
    cluster_name: str
    node_id: str
    start_id: str
    limits: NodeLimits
    software: str = ""
    incarnation: int = 0
    credential: bytes | None = None
    runs: tuple[str, ...] | None = None
    check: int | None = None


class Failure(Message, frozen=True):
    """An error's code, text and details (ERROR frames)."""

    code: str
    message: str
    details: dict[str, Any] = {}


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
