"""What a cluster of nodes with different software may write: one number, the cluster version. Pure.

Software of version N works in clusters of version N - 1 and N. A cluster runs at one version, which its state says, and
writes nothing newer: no command, no message to another member, nothing on a disk that may be read by the software
before. Once every node runs software that can do more, the coordinator raises the version by one, for good.

Which version a run has is part of its start id. Software of version 1 keeps no field that it does not know, so a field
of a node's registration would be gone from some nodes' states and not from others', depending on who wrote a snapshot;
but each keeps every start id as it was given, in its state, in epoch lists and in greetings.

These are not the versions of the frames (`wire.frames`), which a client of any age has to agree on, nor those in the
headers of files, which say how one file is to be read. Something new in either asks here first whether it may be
written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mirrorlog.errors import UnsupportedVersion

BROUGHT: Final[Mapping[int, str]] = {
    1: "the cluster: membership, masters, in-sync sets, declared losses",
    2: "the cluster version itself: start ids that name one, the command that raises it",
    3: "holds: landings that keep a queue's records, and what is tiered",
    4: "queues: groups that ack, exchanges and bindings, virtual hosts, users, attributes of batches",
    5: "users: limits, hashes of passwords that are renewed at a login, a first administrator in one step",
    6: "placements: a log for each rule and home, copies and queues that move",
    7: "sync of queues that have moved, policies: what holds for queues and exchanges by their names; connections",
    8: "everyday use: queues that keep what is not acknowledged yet by themselves, groups that are ordered by key",
}
"""What each version has that the one before cannot read."""

FIRST: Final = min(BROUGHT)
OWN: Final = max(BROUGHT)
"""Of this software."""
MIN: Final = max(FIRST, OWN - 1)
"""The oldest cluster that this software works in."""

HOLDS: Final = 3
"""Since then a log may hold holds. A master of the software before would free what they keep, and forget them with its
next checkpoint."""

GROUPS: Final = 4
"""Since then a log may hold acking groups. A master of the software before would forget them with its next checkpoint,
and give out again what they have settled."""

ROUTING: Final = 4
"""Since then the cluster may decide on exchanges, bindings, virtual hosts and users."""

ATTRIBUTES: Final = 4
"""Since then a batch may have attributes. Software before takes the unknown bit of its columns for damage."""

LOG_GROUPS: Final = 4
"""Since then queues may be declared to share a log."""

TRANSACTIONS: Final = 4
"""Since then a log may hold transactions. Software before takes what is inside for nothing."""

DELETION: Final = 4
"""Since then a queue may be deleted. A copy of the software before would have it still."""

TRANSIENT: Final = 4
"""Since then a node may have a log for queues that live no longer than its run."""

RENEWED_HASHES: Final = 5
"""Since then a node may give a user a new hash of the password that he has. Software before would stop at that."""

FIRST_USER: Final = 5
"""Since then a first administrator is made with his permissions, and only where there are no users, by one command."""

USER_LIMITS: Final = 5
"""Since then a user may have limits. Software before would stop at the command, and lose them with a snapshot."""

PLACEMENTS: Final = 6
"""Since then logs are made by placements, and copies and queues move. Software before would stop at the commands, and
lose with a snapshot where queues are."""

SYNC: Final = 7
"""Since then records that a queue has left in former logs are copied to its own. Software before would stop at the
commands, and take what is copied for records that it has elsewhere."""

POLICIES: Final = 7
"""Since then there are policies, and logs say what they make of queues. Software before would stop at the commands, and
forget with its next checkpoint what holds for a queue."""

CONNECTIONS: Final = 7
"""Since then nodes tell their connections one by one, and close one. Software before would end the connection of who
asks for that."""

KEPT_BY_USE: Final = 8
"""Since then a queue that says nothing of retention is kept as it is used. Software before would keep it for ever."""

ORDERED_GROUPS: Final = 8
"""Since then groups are consumed in order by key. Software before would take no notice of that wish, and give records
of one key to several."""

EXCHANGE_ARGUMENTS: Final = 8
"""Since then exchanges have arguments. Software before would lose them with a snapshot."""

PREFETCH: Final = 8
"""Since then a subscription's prefetch changes while it lives. Software before would end the connection of who asks."""

BACKUP: Final = 8
"""Since then nodes tell what a backup is made of. Software before would end the connection of who asks for that."""

_MARK: Final = re.compile(r"\.v([1-9][0-9]{0,5})")


def run_id(unique: str, version: int = OWN) -> str:
    """The start id of a run of that version; the first version's have no mark."""
    return unique if version == FIRST else f"{unique}.v{version}"


def version_of(start_id: str) -> int:
    """Which version runs under a start id: the first one when it has no mark."""
    _, dot, mark = start_id.rpartition(".")
    found = _MARK.fullmatch(dot + mark)
    return int(found[1]) if found else FIRST


def fits(version: int, active: int) -> bool:
    """Whether software of `version` works in a cluster that runs at `active`."""
    return version - 1 <= active <= version


def misfit(version: int, active: int) -> str:
    """Why it does not, and what to do; empty when it does."""
    if fits(version, active):
        return ""
    works = f"{version - 1} and {version}" if version > FIRST else str(version)
    return (
        f"the cluster runs at version {active}, and software of version {version} works in clusters of version {works} "
        f"only: start the node with software of version {active} or {active + 1}"
    )


def check_supported(active: int) -> None:
    """Raises UnsupportedVersion when this software cannot read what a cluster writes that runs at `active`.

    What older ones wrote it reads, for a disk begins with it: a cluster that was founded at one version and has risen
    tells so entry by entry. Whether it works in the cluster is asked when it registers.
    """
    if active > OWN:
        reason = misfit(OWN, active)
        raise UnsupportedVersion(reason, cluster_version=active, software_version=OWN)


def too_old(active: int, needed: int, what: str) -> UnsupportedVersion | None:
    """Why `what` is not written yet in a cluster that runs at `active`; None when it may be."""
    if active >= needed:
        return None
    return UnsupportedVersion(
        f"the cluster runs at version {active}, and {what} came with version {needed}: update all nodes",
        cluster_version=active,
        needed=needed,
    )
