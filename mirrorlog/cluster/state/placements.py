"""Placements: by which rule a log is on its nodes, and what is on its way to other ones. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from mirrorlog.config import COPIES_MAX

PromoteWhen = Literal["when-synced", "always"]
Topology = Literal["star", "ring"]
WHEN_SYNCED: Final = "when-synced"
ALWAYS: Final = "always"
PROMOTE_ON_SHUTDOWN: Final = "ha-promote-on-shutdown"
PROMOTE_ON_FAILURE: Final = "ha-promote-on-failure"
PROMOTES: Final = (PROMOTE_ON_SHUTDOWN, PROMOTE_ON_FAILURE)
"""As RabbitMQ's policies name them: what a policy adds to a queue's arguments, and nobody declares."""


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Queues that differ in one of these never share a log. `copies`: how many, 0 for one on every node; `nodes`: the
    ones that shall hold it, in order, empty for any; `min_in_sync`: None for the default; `promote_on_shutdown`,
    `promote_on_failure`: whether a copy that is not in sync may be promoted without an operator, by how the last master
    ended (`coordination.promotion`); `replace_after_ms`: None for the cluster's."""

    copies: int = 0
    nodes: tuple[str, ...] = ()
    flush: str = "memory"
    min_in_sync: int | None = None
    promote_on_shutdown: PromoteWhen = WHEN_SYNCED
    promote_on_failure: PromoteWhen = WHEN_SYNCED
    topology: Topology = "star"
    replace_after_ms: int | None = None

    @property
    def promotes(self) -> Mapping[str, PromoteWhen]:
        """By the name of the key."""
        return {PROMOTE_ON_SHUTDOWN: self.promote_on_shutdown, PROMOTE_ON_FAILURE: self.promote_on_failure}

    @property
    def words(self) -> str:
        """In short, for names of logs and for people: `2-copies-memory`."""
        many = "all" if self.copies in (0, COPIES_MAX) else f"{self.copies}-copies"
        words = ["-".join(("on", *self.nodes)) if self.nodes else many, self.flush]
        if self.min_in_sync is not None:
            words.append(f"min-{self.min_in_sync}")
        if self.topology != "star":
            words.append(self.topology)
        if ALWAYS in (self.promote_on_shutdown, self.promote_on_failure):
            words.append("always")
        return "-".join(words)


class LogPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a log. `rule`: that it was made for, or altered to; None: that of its facts. `target`: who shall hold it, the
    home first; empty when it shall stay as it is. `ids_from`: numbers of queues up to here were given out by an earlier
    log of its number."""

    rule: Placement | None = None
    target: tuple[str, ...] = ()
    ids_from: int = 0


SPANS_KEPT: Final = 16
"""Of a queue; the oldest go, once they have ended."""

SPANS_LIVE_MAX: Final = 8
"""So many logs may have records of one queue; a further move of it is refused until those of the oldest are gone."""

NOWHERE: Final = LogPlace()


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a queue: from queue offset `first` up to the next span's. `ended`: none of its records is there any
    more; it is kept for positions that name its log. `first` is never above that of a later span; where records were
    copied (`RecordsCopied`) several have the same."""

    log_id: str
    first: int
    ended: bool = False


class MovingQueue(msgspec.Struct, frozen=True, array_like=True):
    """A queue is on its way from one log to another. `number`: of the move, the same for all its queues; `log_group`:
    the qualified name of theirs, if they have one."""

    number: int
    source: str
    target: str
    log_group: str = ""


class LogPlaces(msgspec.Struct, frozen=True, omit_defaults=True):
    """`logs`: by log id, of those about which there is something to say. `spans`: of each queue that has moved, by its
    name, the oldest first; the last one is in the log that `ClusterState.queues` says. `moves`: by the queue's name.
    `ids_given`: by number, as text, up to which number of a queue logs that are no more have given out ids;
    `logs_removed`: how many these were. `paused`: nothing is begun that moves. `syncs`: the queues whose records in
    former logs shall be copied, by name, each with the index of the entry that says so; a queue goes from here when
    there are none left. `unsynced`: those of which somebody has said that no more is to be copied, likewise: no policy
    has them copied until somebody asks for it, or there is nothing left. `came`: of each queue that has moved since
    `versions.SYNC`, by name, the index of the entry by which it came to its log."""

    logs: Mapping[str, LogPlace] = {}
    spans: Mapping[str, tuple[Span, ...]] = {}
    moves: Mapping[str, MovingQueue] = {}
    ids_given: Mapping[str, int] = {}
    logs_removed: int = 0
    paused: bool = False
    syncs: Mapping[str, int] = {}
    came: Mapping[str, int] = {}
    unsynced: Mapping[str, int] = {}

    def place(self, log_id: str) -> LogPlace:
        """Of a log."""
        return self.logs.get(log_id, NOWHERE)

    def has_former_records(self, name: str) -> bool:
        """Whether a queue has records in a log that it was in before."""
        return any(not span.ended for span in self.spans.get(name, ())[:-1])

    def may_sync_by_itself(self, name: str) -> bool:
        """Whether a queue is to be copied as soon as a policy has it so: it stays, it has left something, and nobody
        has asked for that yet, nor said that no more is to be copied."""
        known = name in self.syncs or name in self.unsynced or name in self.moves
        return not known and self.has_former_records(name)

    def without_syncs(self, names: Collection[str]) -> LogPlaces:
        """Nothing is said of what these queues have left; the same object where nothing was."""
        if not any(name in self.syncs or name in self.unsynced for name in names):
            return self
        syncs, unsynced = (
            {name: at for name, at in said.items() if name not in names} for said in (self.syncs, self.unsynced)
        )
        return replace(self, syncs=syncs, unsynced=unsynced)


NO_PLACES: Final = LogPlaces()
