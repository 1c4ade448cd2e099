"""Groups that acknowledge: subscriptions, leases, resets, redrives."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mirrorlog.wire.frames import Level
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import Position


class Subscribe(Message, frozen=True):
    """Records of an acking group are to be pushed to this connection. Answered with Subscribed; `DELIVER` frames may
    come before the answer is read, never before it is sent.

    `group`: empty for the queue's own; one that is not there is made, and begins where the queue begins. `prefetch`:
    so many records, and bytes, granted and not settled, at most; 0: the node's limit. `auto_ack`: what is granted is
    settled as it is sent. `exclusive`: refused while somebody else is subscribed, and nobody else while this is.
    `priority`: higher ones are served first. `name`: for people. `create`: whether a group that is not there is made;
    else NoSuchGroup.

    `replaces`, `secret`: the subscription whose place this takes, by its number and what its Subscribed said: it ends
    first, as if its connection were gone, which the node may not have noticed. One that has ended is no error.

    `ordered_by`: `key`: of each key one record at a time is with anybody, in order; all who consume the group say so,
    or none: else ExclusiveTaken. `paused`: as of SetPrefetch. Nodes of software before version 8 take no notice of
    these two.
    """

    queue: str
    group: str = ""
    prefetch_records: int = 0
    prefetch_bytes: int = 0
    auto_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    name: str = ""
    create: bool = True
    replaces: int = 0
    secret: str = ""
    ordered_by: str = ""
    paused: bool = False


class Subscribed(Message, frozen=True):
    """`subscription`: its number, within the node's run. `prefetch_*`: as they hold, after the node's limits. `secret`:
    lets a later Subscribe take its place."""

    subscription: int
    log_id: str
    epoch: int
    queue_id: int
    prefetch_records: int
    prefetch_bytes: int
    secret: str = ""


class SetPrefetch(Message, frozen=True):
    """From now on so much is granted and not settled, at most; as of Subscribe. What is granted stays so. `paused`:
    nothing more is granted, whatever there is room for. Answered with Done. Since version 8."""

    subscription: int
    prefetch_records: int = 0
    prefetch_bytes: int = 0
    paused: bool = False


class Unsubscribe(Message, frozen=True):
    """Nothing more is granted; what is unacknowledged stays so until it is settled or the connection goes. Answered
    with Done, behind every DELIVER of the subscription. `leaves`: it ends now, as if its connection were gone."""

    subscription: int
    leaves: bool = False


class SubscriptionEnded(Message, frozen=True):
    """In an ENDED frame: the subscription is no more, and what it had is given to others. `code`, `message`, `details`:
    of the error that says why; NOT_MASTER with the details of that error when the log has another master."""

    subscription: int
    code: str
    message: str
    details: dict[str, Any] = {}


class LeasedRange(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Records [first, next) under the lease of that number: each of them with it is a receipt."""

    first: int
    next: int
    lease: int
    redelivered: bool = False
    attempts: int = 0


class Lease(Message, frozen=True):
    """Up to `records_max` records for `lease_ms`, then they come back by themselves. Answered with Leases, confirmed on
    all copies; with none after `wait_ms` if there are none. `holder`: for people. `ordered_by`: as of Subscribe.
    `apart`: each record is a lease of its own, up to 25; nodes of software before version 8 take no notice."""

    queue: str
    group: str = ""
    records_max: int = 1
    lease_ms: int = 30_000
    wait_ms: int = 0
    holder: str = ""
    ordered_by: str = ""
    apart: bool = False


class Leases(Message, frozen=True):
    """`next`: the queue's next confirmed queue offset. The records are fetched. `ordered`: by key, as it was asked.
    `ready`: how many may be given out now beside them; -1 from nodes of software before version 8."""

    log_id: str
    epoch: int
    queue_id: int
    next: int
    leased: list[LeasedRange]
    ordered: bool = False
    ready: int = -1


class SettleLease(Message, frozen=True):
    """`how`: see `frames.How`, but EXTEND; `level`: a confirm level. A receipt of a lease that has ended acks as long
    as nobody else has the record, and returns nothing. Answered with LeasesSettled; with ReceiptStale, and nothing of
    it counts, when somebody else has one of the records now; with SettledOtherwise, and nothing of it counts, when one
    is settled as something else."""

    queue: str
    receipts: list[LeasedRange]
    how: int
    group: str = ""
    delay_ms: int = 0
    level: int = Level.ALL


class ExtendLease(Message, frozen=True):
    """The leases of these receipts run for `lease_ms` from now. Answered with LeasesSettled; receipts of a lease that
    has ended are refused with NotGranted, and nothing is extended."""

    queue: str
    receipts: list[LeasedRange]
    lease_ms: int
    group: str = ""


class LeasesSettled(Message, frozen=True):
    """`records`: so many changed."""

    records: int


class PurgeGroup(Message, frozen=True):
    """Settle every record that is ready in the group, not what is unacknowledged. Answered with Purged."""

    queue: str
    group: str = ""


class Purged(Message, frozen=True):
    records: int


REDRIVE_MAX: Final = 1_000_000
"""Records of one redrive."""


class Redrive(Message, frozen=True):
    """Send up to `records_max` records that are ready in the queue's own group, the oldest ones, back to the queue that
    each died in last, or to the queue `to`, a name in the same virtual host. Answered with Redriven when that is
    confirmed; they arrive a moment later, each once. One that leads to no queue stays where it is."""

    queue: str
    records_max: int = REDRIVE_MAX
    to: str = ""


class Redriven(Message, frozen=True):
    """So many are on their way."""

    records: int


class DeleteGroup(Message, frozen=True):
    """Forget a group of either kind. Its subscriptions end. Answered with Done once it is confirmed, with NoSuchGroup
    when there is none. The queue's own group cannot be deleted."""

    queue: str
    group: str


class ListGroups(Message, frozen=True):
    """The groups of a queue as its master knows them. Answered with GroupsFound."""

    queue: str


class LeaseInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """A lease that runs. `lease`: its number, which its receipts name, too. `records`: how many it has still.
    `ends_in_ms`: unless it is extended, -1: not known yet. `since_us`: when it was given, or extended last, or came to
    this master, µs UTC; 0: not known."""

    lease: int
    records: int
    holder: str = ""
    ends_in_ms: int = -1
    since_us: int = 0


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """Who is subscribed to a group. `name`: as it gave it; `peer`: its connection's address. `in_hand`: records.
    `alone`: it has the group for itself, because it is exclusive, or the single one that is active. `since_us`: when it
    subscribed, to this master; `held_since_us`: since when it has had the oldest of its records, at the latest: where
    the one is settled that came first with it, up to an eighth of the consumer timeout late. Both µs UTC, 0: not known.
    `connection`: the name of its connection."""

    peer: str
    name: str = ""
    priority: int = 0
    in_hand: int = 0
    alone: bool = False
    since_us: int = 0
    held_since_us: int = 0
    connection: str = ""


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """`kind`: stream (`floor` is its position) or acking. Records below `floor` are settled, below `watermark` may have
    been given out. `ready`: may be given out now; `unsettled`: all confirmed ones that are not settled, of which `out`
    are with subscribers, `leased` leased, `departing` leave for other queues, and `parked` wait for a delay's end,
    or behind another one of their key.

    `waiting`: who waits for leases. `alone`: who has the group for itself; `idle_for_another`: how many get nothing for
    that. Of the others `without_credit` have as many unacknowledged as they may have, and the connections of
    `not_reading` take nothing; 20 of each at most, as `peer (records in hand)`. `due_ms`: until a delay, a lease or a
    consumer's time ends next, -1: none. `gone`: not settled, and freed by the queue's retention all the same.
    `departing_waits`: why none of the `departing` arrives at the moment, if that is so. `leases`, `consumers`: 20 of
    each at most, and 1,000 of each in one answer."""

    group: str
    kind: str
    floor: int
    watermark: int = 0
    ready: int = 0
    unsettled: int = 0
    out: int = 0
    leased: int = 0
    parked: int = 0
    subscribers: int = 0
    waiting: int = 0
    idle_for_another: int = 0
    without_credit: list[str] = []
    not_reading: list[str] = []
    alone: str = ""
    due_ms: int = -1
    gone: int = 0
    departing: int = 0
    departing_waits: str = ""
    leases: list[LeaseInfo] = []
    consumers: list[ConsumerInfo] = []


class GroupsFound(Message, frozen=True):
    """`next`: the queue's next confirmed queue offset. `now_us`: by the clock of the times in it, µs UTC; 0 from older
    nodes."""

    queue: str
    next: int
    groups: list[GroupInfo]
    now_us: int = 0


class ResetGroups(Message, frozen=True):
    """Have groups of a queue, of either kind, stand somewhere else: all that are named, or none. Answered with
    GroupsReset once it is confirmed; refused (InUse) while one of them is active.

    `groups`: None stands for all there are. `to`: earliest, latest, offset, time, shift or each. `value`: a queue
    offset, µs UTC for a time, how many records forward for a shift, below 0 back. `offsets`: by group, for each. Where
    that is no record's place it is the nearest there is; only an offset that is none is refused, OffsetOutOfRange.
    `dry_run`: only tell. `force`: active ones, too: subscriptions and leases of them end. A shift that is asked for
    twice is made twice.
    """

    queue: str
    groups: list[str] | None = None
    to: str = "earliest"
    value: int = 0
    offsets: dict[str, int] = {}
    dry_run: bool = False
    force: bool = False


class GroupMove(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """`kind`: stream or acking. `source`: where it stood, an acking group's floor; `target`: where it stands now, or
    would. `active`: who is at it, in words; empty when nobody is known to be."""

    group: str
    kind: str
    source: Position
    target: Position
    active: str = ""


class GroupsReset(Message, frozen=True):
    """`begin`, `next`: between these the groups may stand, queue offsets. `done`: not for a dry run."""

    queue: str
    begin: int
    next: int
    groups: list[GroupMove]
    done: bool
