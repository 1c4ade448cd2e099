"""One step of a landing: from what the table says to one commit of what it lacks (decision 0031).

    read the table → look at the queues → plan → tasks write files → commit dead letters → commit → renew the hold

A step keeps nothing from the one before: the table tells where it stands, so a driver that dies at any place leaves
either all of a step or none, and whoever comes next goes on. Two at once plan the same records and write them twice,
but one commit alone goes through.

`on_moment` is told of every `Moment`, for those who want to be there: a display, and tests that kill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.errors import SPARK_ERRORS, TableRefused, from_spark
from mirrorlog.spark.landing.dead_letters import (
    DeadLettersOf,
    ahead_of,
    commit_dead,
    dead_state,
    ids_of,
    refuse_moved,
    take_back,
)
from mirrorlog.spark.landing.decoding import decoder_for, widened
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.delta_log import TableShape, TableState, commit, make_clustered, table_state
from mirrorlog.spark.landing.files import FileFormat, run_in_tasks
from mirrorlog.spark.landing.holds import Holds
from mirrorlog.spark.landing.planning import QueuePlan, limited, queue_plans, queues_of, source_options
from mirrorlog.spark.landing.positions import MissedRange, QueueIds
from mirrorlog.spark.landing.results import QueueStep, StepResult
from mirrorlog.spark.landing.staging import Staging
from mirrorlog.spark.landing.tables import BOUNDED, columns_of, prefix_of, refuse_shape, settled_shape
from mirrorlog.spark.landing.tasks import Work, Written, gathered, tasks_for, write_range
from mirrorlog.spark.landing.upkeep_schedule import refuse_old_files
from mirrorlog.spark.landing.upsert import PROPERTIES, MergeMoment
from mirrorlog.spark.landing.upserting import ids_for, merge, resumed, row_columns
from mirrorlog.spark.lookup import open_lookup
from mirrorlog.spark.plan import QueueFacts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mirrorlog.spark.decode import Decoder

# What a record is taken to have before one was seen.
_RECORD_BYTES: Final = 1024.0
# Each look finds every field that any record of the step has and the last one did not take; one nearly always does.
_WIDENINGS_MAX: Final = 8


class Moment(StrEnum):
    """The places of a step between which a driver may die."""

    BEGAN = "began"
    PLANNED = "planned"
    WRITTEN = "written"
    DEAD_LETTERS = "dead letters"
    COMMITTING = "committing"
    COMMITTED = "committed"
    RENEWED = "renewed"


OnMoment = Callable[[Moment], None]


@dataclass(slots=True)
class Runner:
    """Steps of any landings in one Spark session. `on_moment`: called with the place that was reached."""

    spark: SparkSession
    on_moment: OnMoment = lambda moment: None
    _record_bytes: dict[str, float] = field(default_factory=dict)

    def step(self, landing: Landing, holds: Holds | None = None) -> StepResult:
        """Land what the table does not have, at most one commit's worth.

        Raises what the nodes answer, RecordsMissing, BeginUnknown, HistoryChanged, TableOutOfStep, TableRefused,
        LandingConflict, HoldTaken, SparkFailed. After any of them the table has all of the step or none.
        """
        clock = _Clock()
        self.on_moment(Moment.BEGAN)
        with clock.part("plan"):
            state, dead, plans = self._plan(landing, holds)
        self.on_moment(Moment.PLANNED)
        written, version = Written(), state.version
        if any(plan.moves for plan in plans):
            staging = Staging.new() if landing.write == "upsert" else None
            if landing.cluster_by and state.version is None:
                state = self._clustered(landing, state)
            with clock.part("write"), self._removed_on_error(landing, staging):
                written, shape = self._write(landing, state, plans, staging)
            self.on_moment(Moment.WRITTEN)
            with clock.part("commit"), self._removed_on_error(landing, staging):
                version = self._commit(landing, (state, dead), plans, written, (shape, staging))
            self.on_moment(Moment.COMMITTED)
        if holds is not None:
            holds.renew({plan.facts.name: plan.next for plan in plans})
        self.on_moment(Moment.RENEWED)
        return _result(landing, plans, written, version, clock)

    def _clustered(self, landing: Landing, state: TableState) -> TableState:
        """A clustered table is made before the first commit: only Delta itself can make one."""
        decoder = decoder_for(landing, state.shape.schema)
        columns = columns_of(landing, None if decoder is None else decoder.schema)
        properties = PROPERTIES if landing.write == "upsert" else {}
        make_clustered(self.spark, landing.table, columns, landing.cluster_by, properties)
        # The positions stay those that the plan began with: who landed meanwhile makes the commit a conflict.
        return replace(table_state(self.spark, landing.table, ()), versions=state.versions)

    @contextmanager
    def _removed_on_error(self, landing: Landing, staging: Staging | None) -> Iterator[None]:
        """Nobody else would come upon a staging folder that no commit names."""
        try:
            yield
        except MirrorlogError:
            if staging is not None:
                staging.remove(self.spark, landing.table)
            raise

    # --- the plan ---

    def _plan(self, landing: Landing, holds: Holds | None) -> tuple[TableState, TableState | None, list[QueuePlan]]:
        with open_lookup(source_options(landing)) as lookup:
            queues = queues_of(landing, lookup)
            state = self._state(landing, queues)
            if state.version is not None:
                # Also while there is nothing to do: a table that forgets positions must not wait for the next record.
                refuse_shape(landing.table, state.shape, written=state.columns)
            dead = None
            if landing.dead_letters is not None:
                state, dead = self._without_ahead(landing, landing.dead_letters, queues, state)
            if holds is not None:
                landed = {facts.name: state.versions[QueueIds.of(facts).offset] for facts in queues}
                holds.begin({facts.name: max(landed[facts.name] or 0, facts.begin) for facts in queues})
            plans = queue_plans(landing, lookup, queues, resumed(landing, queues, state))
        return state, dead, limited(plans, self._records_max(landing))

    def _state(self, landing: Landing, queues: Sequence[QueueFacts]) -> TableState:
        names = [name for facts in queues for name in ids_for(landing, facts)]
        return table_state(self.spark, landing.table, names)

    def _without_ahead(
        self, landing: Landing, dead: str, queues: Sequence[QueueFacts], state: TableState
    ) -> tuple[TableState, TableState]:
        found = dead_state(self.spark, dead, landing.table, queues)
        for facts in ahead_of(state, found, landing.table, queues):
            take_back(self.spark, dead, landing.table, facts, seen=state, dead_seen=found)
            state = self._state(landing, queues)
            found = dead_state(self.spark, dead, landing.table, queues)
        return state, found

    def _records_max(self, landing: Landing) -> int:
        size = self._record_bytes.get(landing.name, _RECORD_BYTES)
        return max(1, min(landing.max_records, int(landing.max_bytes / size)))

    # --- its execution ---

    def _write(
        self, landing: Landing, state: TableState, plans: Sequence[QueuePlan], staging: Staging | None
    ) -> tuple[Written, TableShape | None]:
        """The files, and what the table has to become for them. Refuses a table before anything is written."""
        decoder = decoder_for(landing, state.shape.schema)
        for _ in range(_WIDENINGS_MAX):
            columns = None if decoder is None else decoder.schema
            may_add = columns.names if columns is not None and landing.evolution == "add" else ()
            shape = settled_shape(state, columns_of(landing, columns), landing, may_add=may_add)
            written = self._run(landing, plans, decoder, staging)
            if written.new_fields is None or decoder is None:
                return written, shape
            decoder = widened(decoder, written.new_fields)
        raise TableRefused(f"the values of {landing.name} have had other fields at each of {_WIDENINGS_MAX} looks")

    def _run(
        self, landing: Landing, plans: Sequence[QueuePlan], decoder: Decoder | None, staging: Staging | None
    ) -> Written:
        ranges = [piece for plan in plans for piece in plan.pieces]
        size = self._record_bytes.get(landing.name, _RECORD_BYTES)
        tasks = tasks_for(ranges, parallelism=self.spark.sparkContext.defaultParallelism, record_bytes=size)
        origin = DeadLettersOf(
            landing.table,
            {plan.facts.name: plan.facts.incarnation for plan in plans},
            "" if decoder is None else decoder.version,
        )
        upsert = row_columns(landing) if landing.write == "upsert" else None
        target = landing.table if staging is None else staging.root(landing.table)
        options, form, dead = source_options(landing), _format(landing, target), _dead_format(landing)
        work = [Work(each, options, form, origin, decoder, dead, upsert) for each in tasks]
        try:
            written = gathered(run_in_tasks(self.spark, work, write_range))
        except SPARK_ERRORS as error:
            raise from_spark(error) from error
        if written.records:
            self._record_bytes[landing.name] = max(1.0, written.bytes / written.records)
        return written

    def _commit(
        self,
        landing: Landing,
        seen: tuple[TableState, TableState | None],
        plans: Sequence[QueuePlan],
        written: Written,
        change: tuple[TableShape | None, Staging | None],
    ) -> int:
        shape, staging = change
        state, dead = seen
        refuse_old_files((file.modified_ms for file in (*written.files, *written.dead)), now_ms=_now_ms())
        moved = [plan for plan in plans if plan.moves]
        note = _note(landing, moved, written)
        if dead is not None and landing.dead_letters is not None and not written.dead:
            refuse_moved(self.spark, landing.dead_letters, seen=dead)
        elif dead is not None and landing.dead_letters is not None:
            sets = {ids_of(plan.facts, landing.table).offset: plan.next for plan in moved}
            commit_dead(self.spark, landing.dead_letters, written.dead, seen=dead, sets=sets, note=note)
            self.on_moment(Moment.DEAD_LETTERS)
        if staging is not None:
            return merge(
                self.spark,
                landing,
                staging,
                written.files,
                seen=state,
                plans=moved,
                epochs=written.epochs,
                note=note,
                shape=shape,
                on_moment=self._merging,
            ).table_version
        return commit(
            self.spark,
            landing.table,
            written.files,
            seen=state,
            sets=_sets(moved, written),
            note=note,
            shape=shape,
            on_begun=partial(self.on_moment, Moment.COMMITTING),
        )

    def _merging(self, moment: MergeMoment) -> None:
        if moment is MergeMoment.ANNOUNCED:
            self.on_moment(Moment.COMMITTING)


def _format(landing: Landing, target: str) -> FileFormat:
    return FileFormat(
        target,
        landing.partition_by,
        prefix_of(landing),
        landing.compression,
        landing.target_file_bytes,
        BOUNDED,
    )


def _dead_format(landing: Landing) -> FileFormat | None:
    if landing.dead_letters is None:
        return None
    return FileFormat(landing.dead_letters, compression=landing.compression, bounded=BOUNDED)


def _sets(plans: Sequence[QueuePlan], written: Written) -> dict[str, int]:
    sets = {}
    for plan in plans:
        ids = QueueIds.of(plan.facts)
        sets[ids.offset] = plan.next
        epoch = written.epochs.get((plan.facts.name, plan.next))
        if epoch is not None:
            sets[ids.epoch] = epoch
    return sets


def _note(landing: Landing, plans: Sequence[QueuePlan], written: Written) -> dict[str, Any]:
    """In the table's history: who landed what."""
    queues = {plan.facts.name: [plan.first, plan.next] for plan in plans}
    note: dict[str, Any] = {"mirrorlog": {"landing": landing.name, "queues": queues}}
    missed = [each for plan in plans for each in _missed(plan, written)]
    if missed:
        note["mirrorlog"]["missed"] = [[each.queue, each.first, each.next, each.why] for each in missed]
    return note


def _missed(plan: QueuePlan, written: Written) -> tuple[MissedRange, ...]:
    """What the plan passed over, and what its tasks had to."""
    found = (*plan.missed, *(each for each in written.missed if each.queue == plan.facts.name))
    return tuple(sorted(found, key=lambda each: each.first))


def _result(
    landing: Landing, plans: Sequence[QueuePlan], written: Written, version: int | None, clock: _Clock
) -> StepResult:
    queues = tuple(
        QueueStep(
            plan.facts.name,
            plan.first,
            plan.next,
            plan.facts.next,
            written.times.get((plan.facts.name, plan.next)),
            _missed(plan, written),
        )
        for plan in plans
    )
    return StepResult(
        landing=landing.name,
        queues=queues,
        rows=sum(file.records for file in written.files),
        records=written.records,
        bytes=written.bytes,
        files=len(written.files),
        file_bytes=sum(file.size for file in written.files),
        dead_letters=sum(file.records for file in written.dead),
        table_version=version,
        seconds=clock.seconds,
        parts=clock.parts,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Clock:
    """Seconds of a step and of its parts."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.parts: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - began
