"""Commands as an entry of the Raft log has them, and the cluster version that each came with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Final

import msgspec

from mirrorlog import versions
from mirrorlog.cluster.state.commands import (
    Command,
    LogAltered,
    LogRemoved,
    MoveBegun,
    MoveCancelled,
    MovingPaused,
    NodeLeaving,
    QueueIdsGranted,
    QueuesMoved,
    QueuesRemoved,
    QueuesUnbound,
    QueueSyncWished,
    RecordsCopied,
    ReplicaRetired,
    ReplicasWished,
    RunEnded,
    SpanEnded,
    TransientLogMade,
    VersionRaised,
)
from mirrorlog.cluster.state.topology_commands import (
    FirstUserMade,
    PasswordRenewed,
    PolicyCleared,
    PolicySet,
    TopologyCommand,
    UserLimitsSet,
)
from mirrorlog.errors import UnsupportedVersion

_OF_PLACEMENTS: Final = (
    *(LogAltered, LogRemoved, ReplicasWished, ReplicaRetired, NodeLeaving),
    *(MoveBegun, QueuesMoved, MoveCancelled, SpanEnded, MovingPaused),
)

SINCE: Final[Mapping[type[Command], int]] = {
    VersionRaised: 2,
    **dict.fromkeys(TopologyCommand.__subclasses__(), versions.ROUTING),
    FirstUserMade: versions.FIRST_USER,
    PasswordRenewed: versions.RENEWED_HASHES,
    UserLimitsSet: versions.USER_LIMITS,
    QueuesUnbound: versions.DELETION,
    QueuesRemoved: versions.DELETION,
    TransientLogMade: versions.TRANSIENT,
    RunEnded: versions.TRANSIENT,
    QueueIdsGranted: versions.DELETION,
    **dict.fromkeys(_OF_PLACEMENTS, versions.PLACEMENTS),
    QueueSyncWished: versions.SYNC,
    RecordsCopied: versions.SYNC,
    PolicySet: versions.POLICIES,
    PolicyCleared: versions.POLICIES,
}
"""Those that are not named were there from the first version on."""

_encoder = msgspec.msgpack.Encoder()
_KINDS: Final = [
    kind for base in (Command, TopologyCommand) for kind in base.__subclasses__() if kind is not TopologyCommand
]
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(reduce(or_, _KINDS))


def encode_command(command: Command) -> bytes:
    """As an entry has it."""
    return _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    """The other way. Raises UnsupportedVersion: whoever made it knew what it says, and so do all of its version."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnsupportedVersion(
            f"a command of the cluster says what software of version {versions.OWN} cannot read: {error}; start newer "
            "software, on this disk what ran there last"
        ) from None
