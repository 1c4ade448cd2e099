"""What a step of a landing did, as values, and who wants to hear of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.positions import MissedRange

if TYPE_CHECKING:
    from mirrorlog.spark.landing.upkeep import DutyDone


@dataclass(frozen=True, slots=True)
class QueueStep:
    """Queue offsets `first` up to `next` (exclusive) are in the table now; `confirmed`: where the queue ended then.

    `landed_time_us`: append time of the last record landed, µs UTC, None when none was. `missed`: what was passed over.
    """

    queue: str
    first: int
    next: int
    confirmed: int
    landed_time_us: int | None = None
    missed: tuple[MissedRange, ...] = ()

    @property
    def lag(self) -> int:
        """Records that are confirmed and not landed."""
        return self.confirmed - self.next

    def lag_seconds(self, now_us: int) -> float | None:
        """How old the oldest record not landed is at most, by this machine's clock, `now_us` being µs since 1970: it
        was appended behind the last one that was landed. 0 when all is landed, None when this step landed nothing and
        so cannot tell."""
        if self.lag <= 0:
            return 0.0
        return None if self.landed_time_us is None else max(0.0, (now_us - self.landed_time_us) / 1e6)


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step of a landing: one commit, or none when there was nothing to do.

    `rows`: added; `records`: read, dead letters included; `bytes`: of the records; `file_bytes`: of the files;
    `table_version`: afterwards, None when there is no table; `seconds`: in all; `parts`: of it, by name.
    """

    landing: str
    queues: tuple[QueueStep, ...] = ()
    rows: int = 0
    records: int = 0
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    dead_letters: int = 0
    table_version: int | None = None
    seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Records of all its queues that are confirmed and not landed."""
        return sum(queue.lag for queue in self.queues)

    def lag_seconds(self, now_us: int) -> float:
        """Of the queue that is furthest behind, as far as this step can tell; see `QueueStep.lag_seconds`."""
        return max((queue.lag_seconds(now_us) or 0.0 for queue in self.queues), default=0.0)

    @property
    def missed(self) -> tuple[MissedRange, ...]:
        return tuple(missed for queue in self.queues for missed in queue.missed)

    def as_json(self) -> dict[str, Any]:
        """For a line of a log, and for metrics."""
        return {
            "landing": self.landing,
            "rows": self.rows,
            "records": self.records,
            "bytes": self.bytes,
            "files": self.files,
            "file_bytes": self.file_bytes,
            "dead_letters": self.dead_letters,
            "table_version": self.table_version,
            "lag": self.lag,
            "seconds": round(self.seconds, 3),
            "queues": {queue.queue: [queue.first, queue.next] for queue in self.queues},
            "missed": [[each.queue, each.first, each.next, each.why] for each in self.missed],
        }


class StepMoment(StrEnum):
    """The places of a step between which a driver may die."""

    BEGAN = "began"
    PLANNED = "planned"
    WRITTEN = "written"
    DEAD_LETTERS = "dead letters"
    COMMITTING = "committing"
    COMMITTED = "committed"
    RENEWED = "renewed"


class Observer:
    """Told of every step, look and duty, in the thread that does it; one that does nothing. What it raises ends the
    service.

    `looked`: what is confirmed of the landing's queues, by name. `upkeep_failed`: that ends no landing, and is tried
    again at the duty's next time. Of a single run: `planned`, the queue offsets that are to be landed, and `moment`,
    each place of a step.
    """

    def planned(self, wanted: range) -> None: ...
    def moment(self, moment: StepMoment) -> None: ...
    def step_began(self, landing: Landing) -> None: ...
    def step_ended(self, landing: Landing, result: StepResult) -> None: ...
    def step_failed(self, landing: Landing, error: MirrorlogError) -> None: ...
    def looked(self, landing: Landing, confirmed: Mapping[str, int]) -> None: ...
    def upkeep_done(self, landing: Landing, done: DutyDone) -> None: ...
    def upkeep_failed(self, landing: Landing, error: MirrorlogError) -> None: ...


class Several(Observer):
    """Tells each of them, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def step_began(self, landing: Landing) -> None:
        for each in self._observers:
            each.step_began(landing)

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        for each in self._observers:
            each.step_ended(landing, result)

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        for each in self._observers:
            each.step_failed(landing, error)

    def looked(self, landing: Landing, confirmed: Mapping[str, int]) -> None:
        for each in self._observers:
            each.looked(landing, confirmed)

    def upkeep_done(self, landing: Landing, done: DutyDone) -> None:
        for each in self._observers:
            each.upkeep_done(landing, done)

    def upkeep_failed(self, landing: Landing, error: MirrorlogError) -> None:
        for each in self._observers:
            each.upkeep_failed(landing, error)


@dataclass(frozen=True, slots=True)
class LandResult:
    """Queue offsets `first` up to `next` (exclusive) are in the table now: `rows` of them were added, 0 when nothing
    was left to do.

    `table_version`: of the table afterwards; None when there is no table because the queue is empty. `bytes`: of the
    records in the log; `files`: added; `dead_letters`: records that went there; `missed`: what was passed over.
    """

    first: int
    next: int
    rows: int
    table_version: int | None
    bytes: int = field(default=0, compare=False)
    files: int = field(default=0, compare=False)
    dead_letters: int = field(default=0, compare=False)
    missed: tuple[MissedRange, ...] = field(default=(), compare=False)
    seconds: float = field(default=0.0, compare=False)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        shown = {name: getattr(self, name) for name in self.__slots__}
        return shown | {"missed": [[each.first, each.next, each.why] for each in self.missed]}


def summed(steps: Sequence[StepResult]) -> LandResult:
    return LandResult(
        first=steps[0].queues[0].first,
        next=steps[-1].queues[0].next,
        rows=sum(step.rows for step in steps),
        table_version=steps[-1].table_version,
        bytes=sum(step.bytes for step in steps),
        files=sum(step.files for step in steps),
        dead_letters=sum(step.dead_letters for step in steps),
        missed=tuple(missed for step in steps for missed in step.missed),
        seconds=sum(step.seconds for step in steps),
    )
