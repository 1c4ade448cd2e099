"""How a record of an acking group ends that nobody has acknowledged: the one place by which all of them go.

Rejected (`dead`), come back too often (`limit`), too old (`expired`), too many in the queue (`dropped`): a change each
that settles them, and says why; or, in a queue with dead letters, one by which they leave for where these go
(`queues.departures`), for every way in which records die. Records that are not there any more, or were purged, do not
die: nobody can send them anywhere, or wants to.

Pure. Ranges are [first, until), queue offsets, ascending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mirrorlog.queues.changes import Change, Settled
from mirrorlog.queues.departures import DELIVERY_LIMIT, MAXLEN, REDRIVEN, REJECTED
from mirrorlog.queues.departures import EXPIRED as EXPIRED_AWAY
from mirrorlog.queues.subscriber import Range

DEAD: Final = "dead"
LIMIT: Final = "limit"
EXPIRED: Final = "expired"
DROPPED: Final = "dropped"

DEATHS: Final = (DEAD, LIMIT, EXPIRED, DROPPED)
"""Why a record dies: see `Settled`."""


REASONS: Final[Mapping[str, str]] = {
    DEAD: REJECTED,
    LIMIT: DELIVERY_LIMIT,
    EXPIRED: EXPIRED_AWAY,
    DROPPED: MAXLEN,
}
"""What a dead letter says of it."""
WHYS: Final[Mapping[str, str]] = {**{reason: why for why, reason in REASONS.items()}, REDRIVEN: REDRIVEN}
"""And back: why a record that has left is settled."""

Deaths = Callable[[str, Sequence[Range], str], Sequence[Change]]
"""`deaths`, or what stands for it in a queue with dead letters."""


def deaths(group: str, ranges: Sequence[Range], why: str) -> list[Change]:
    """The changes by which they die; none for no records. `why`: one of `DEATHS`."""
    flat = [border for each in ranges for border in each]
    return [Settled(group=group, ranges=flat, why=why)] if flat else []
