"""Where a queue stands in an upserted table. Pure.

A merge can set one transaction id, the queue's next offset; the epoch of its last record has no room in it. So before
the merge a commit without files says what is going to happen, in three more ids of the queue:

    …:pending               the next queue offset that the merge will set
    …:pending:<log id>      the epoch of the record below it
    …:staging               the number of the folder with the rows

While `…:pending` is the queue's offset the merge has happened, and the pending epoch is the landed one. Otherwise it
has not (yet), and `…:log:<log id>` is, as in tables that are appended to: every announcement writes there what is
landed when it is made.

An announcement sets the queue's offset again, to what it is. A merge that runs read that id, so Delta refuses it; one
that begins later finds its folder gone, because who announces first removes the folder that the last announcement
named. So after an announcement no merge but its own can happen, and offset, epoch and rows are always of one history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorlog.spark.landing.positions import QueueIds, begin_set

Versions = Mapping[str, int | None]
"""Of application ids, None of one that never committed."""


_NOTHING: Final = 0
"""As a pending offset: no merge sets it, because a range has a record and so ends above 0."""


@dataclass(frozen=True, slots=True)
class UpsertIds(QueueIds):
    """Those of any table, and three for the merges of an upserted one."""

    @property
    def pending(self) -> str:
        return f"{self.offset}:pending"

    @property
    def staging(self) -> str:
        return f"{self.offset}:staging"

    def pending_epoch(self, following: int) -> str:
        """Of the log in which the record below the queue offset `following` stands."""
        return f"{self.pending}:{self.facts.log_at(following - 1)}"

    def __iter__(self) -> Iterator[str]:
        yield from QueueIds(self.facts)
        yield from (self.pending, self.staging)
        yield from (f"{self.pending}:{log_id}" for log_id in self.facts.logs)


def landed_epoch(versions: Versions, ids: UpsertIds) -> int | None:
    """The epoch of the last landed record, to resume with; None when nothing is landed or nobody noted it."""
    landed = versions[ids.offset]
    if landed is None:
        return None
    merged = landed > _NOTHING and versions[ids.pending] == landed
    return versions[ids.pending_epoch(landed) if merged else ids.epoch(landed)]


def announced_folder(versions: Versions, ids: UpsertIds) -> int | None:
    """The number of the staging folder that the last announcement named: of a merge that has happened, has not, or may
    be about to; whoever announces next removes it first."""
    return versions[ids.staging]


def announcement(
    versions: Versions, ids: UpsertIds, *, first: int, following: int, epoch: int | None, staging: int
) -> dict[str, int]:
    """What the commit before a merge sets: the queue will be landed from `first` up to `following` (exclusive).

    `epoch`: of the record `following - 1`, None when there is none (the range ends in a gap): then no epoch is
    announced, and that of the last record before the step stands.
    """
    sets = {**begin_set(ids, versions, first), ids.offset: first, ids.pending: _NOTHING, ids.staging: staging}
    if epoch is not None:
        sets |= {ids.pending: following, ids.pending_epoch(following): epoch}
    return {**_landed(versions, ids), **sets}


def passage(versions: Versions, ids: UpsertIds, *, first: int, following: int, epoch: int | None) -> dict[str, int]:
    """What one commit sets when there is nothing to merge. `epoch`: None when there was no record at all."""
    sets = {**begin_set(ids, versions, first), ids.offset: following, ids.pending: _NOTHING}
    if epoch is not None:
        return {**sets, ids.epoch(following): epoch, ids.pending: following, ids.pending_epoch(following): epoch}
    return {**_landed(versions, ids), **sets}


def _landed(versions: Versions, ids: UpsertIds) -> dict[str, int]:
    """The landed epoch, where a table that is appended to has it."""
    landed, epoch = versions[ids.offset], landed_epoch(versions, ids)
    return {} if landed is None or epoch is None else {ids.epoch(landed): epoch}
