"""Where a queue stands in a table: the application ids and their versions, and where the next step begins. Pure.

    mirrorlog:<cluster>:<incarnation>                the next queue offset
    mirrorlog:<cluster>:<incarnation>:log:<log id>   the epoch of the last record that was landed from that log: of the
                                                     last one that was landed, if it stood there
    mirrorlog:<cluster>:<incarnation>:fence          the number of the landing that may commit
    mirrorlog:<cluster>:<incarnation>:dead           the queue offset up to which there may be dead letters
    mirrorlog:<cluster>:<incarnation>:begin          the first queue offset that was landed, where somebody noted it

A queue that is deleted and made again, or a cluster made anew under the same name, has another incarnation: it is
landed from its start offset, and the rows of the old one stay beside it. One that goes to another log keeps its
incarnation, and with it all but the epoch: that is compared within one log only (decision 0050).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.spark.errors import BeginUnknown, HistoryChanged, RecordsMissing, TableOutOfStep
from mirrorlog.spark.landing.commit.delta_log import TableState
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.positions import QueuePosition, broken_history
from mirrorlog.spark.reading.declared_gaps import Gap


@dataclass(frozen=True, slots=True)
class MissedRange:
    """Queue offsets `first` up to `next` (exclusive) that are not in the table and never will be, and why."""

    queue: str
    first: int
    next: int
    why: str

    def __str__(self) -> str:
        return f"queue {self.queue!r}: {self.first} up to {self.next} were not landed: {self.why}"


@dataclass(frozen=True, slots=True)
class QueueIds:
    """The application ids of a queue as it is now; iterating gives all of them."""

    facts: QueueFacts

    @property
    def offset(self) -> str:
        return f"mirrorlog:{self.facts.cluster_id}:{self.facts.incarnation}"

    @property
    def fence(self) -> str:
        return f"{self.offset}:fence"

    @property
    def dead(self) -> str:
        return f"{self.offset}:dead"

    @property
    def begin(self) -> str:
        return f"{self.offset}:begin"

    def epoch(self, following: int) -> str:
        """Of the log in which the record below the queue offset `following` stands."""
        return f"{self.offset}:log:{self.facts.log_at(following - 1)}"

    def __iter__(self) -> Iterator[str]:
        yield from (self.offset, self.fence, self.dead, self.begin)
        yield from (f"{self.offset}:log:{log_id}" for log_id in self.facts.logs)


def begin_set(ids: QueueIds, versions: Mapping[str, int | None], first: int) -> dict[str, int]:
    """What a commit of records from `first` on sets besides: where the table begins, if nothing was landed before.

    A table of an older landing never gets it: nobody knows any more.
    """
    return {ids.begin: first} if versions[ids.offset] is None else {}


@dataclass(frozen=True, slots=True)
class Start:
    """Where a step begins in a queue, and what it passes over because it is told to."""

    first: int
    missed: tuple[MissedRange, ...] = ()


def starting_offset(facts: QueueFacts, landed: int | None, table: str, *, skip: bool = False) -> Start:
    """The first queue offset that the table does not have. `landed`: the table's version of the queue's id.

    `skip`: go on behind what is gone. Raises BeginUnknown, RecordsMissing or TableOutOfStep.
    """
    if facts.begin_unknown and (landed is None or landed < facts.begin):
        raise BeginUnknown(
            f"{facts.begin_unknown}; nothing was added to {table}, run again once it is back",
            begin=facts.begin,
            next=facts.next,
        )
    if landed is None:
        return Start(facts.begin)
    if landed > facts.next:
        raise TableOutOfStep(
            f"{table} has queue {facts.name!r} up to {landed}, the nodes confirm {facts.next}; "
            "if its master is down, run again once it is back"
        )
    if landed >= facts.begin:
        return Start(landed)
    if skip:
        return Start(facts.begin, (MissedRange(facts.name, landed, facts.begin, "freed before they were landed"),))
    raise RecordsMissing(
        f"queue {facts.name!r}: {landed} up to {facts.begin} were freed before they were landed in {table}; "
        "set on_data_loss to skip to go on without them, or land into a new table",
        first=landed,
        next=facts.begin,
        begin=facts.begin,
    )


def changed_history(facts: QueueFacts, state: TableState, below: BatchHeader | None, table: str) -> str | None:
    """Why the log is not the one that the table was landed from, None when it is or nobody can tell.

    `below`: the header of the batch that holds the last landed record. An epoch of 0 is one that is not known.
    """
    ids = QueueIds(facts)
    landed = state.versions.get(ids.offset)
    epoch = None if landed is None else state.versions.get(ids.epoch(landed))
    if landed is None or not epoch:
        return None
    log_id = facts.log_at(landed - 1)
    position = QueuePosition(landed, epoch, log_id, facts.incarnation)
    why = broken_history(position, log_id=log_id, incarnation=facts.incarnation, below=below)
    return None if why is None else f"queue {facts.name!r} has another history than {table}: {why}"


def refuse_changed_history(why: str | None) -> None:
    """Raise HistoryChanged with what to do, if there is a reason."""
    if why is not None:
        raise HistoryChanged(f"{why}; compare them, then land into a new table, or set on_data_loss to skip to go on")


def refuse_gap(queue: str, first: int, gaps: Sequence[Gap], table: str) -> None:
    """Raise RecordsMissing for a declared loss that begins where the table ends."""
    for gap in gaps:
        if gap.first == first:
            raise RecordsMissing(
                f"queue {queue!r}: {gap.first} up to {gap.next} are a declared loss, {table} has all before it; set "
                "on_data_loss to skip to go on behind it",
                first=gap.first,
                next=gap.next,
            )
