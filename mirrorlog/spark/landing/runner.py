"""One step of a landing: from what the table says to one commit of what it lacks (decision 0031).

    read the table → look at the queues → plan → tasks write files → commit dead letters → commit → renew the hold

The hold's lease is renewed beside all that; a step that has lost it commits nothing.

A step keeps nothing from the one before: the table tells where it stands, so a driver that dies at any place leaves
either all of a step or none, and whoever comes next goes on. Two at once plan the same records and write them twice,
but one commit alone goes through.

`on_moment` is told of every `Moment`, for those who want to be there: a display, and tests that kill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.errors import TableRefused, translated
from mirrorlog.spark.landing.commit.delta_log import TableShape, TableState, commit, make_clustered, now_ms, table_state
from mirrorlog.spark.landing.commit.durable import sync_table
from mirrorlog.spark.landing.dead_letters import (
    DeadLettersOf,
    ahead_of,
    announce_dead,
    commit_dead,
    dead_state,
    ids_of,
    refuse_ahead,
    take_back,
)
from mirrorlog.spark.landing.decoding import decoder_for, widened
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.holds import Holds
from mirrorlog.spark.landing.planning import (
    QueuePlan,
    limited,
    lookup_options,
    queue_plans,
    queues_of,
    record_bytes,
    source_options,
    unmirrored,
)
from mirrorlog.spark.landing.positions import MissedRange, QueueIds, begin_set
from mirrorlog.spark.landing.results import LandResult, QueueStep, StepMoment, StepResult, summed
from mirrorlog.spark.landing.tables import BOUNDED, columns_of, prefix_of, refuse_shape, settled_shape
from mirrorlog.spark.landing.tasks import TaskWork, WrittenFiles, gathered, tasks_for, write_range
from mirrorlog.spark.landing.upsert.staging import Staging
from mirrorlog.spark.landing.upsert.table import (
    PROPERTIES,
    MergeMoment,
    ids_for,
    merge_step,
    move_of,
    resumed,
    row_columns,
    with_properties,
)
from mirrorlog.spark.landing.write.files import FileFormat, run_in_tasks
from mirrorlog.spark.landing.write.storage import refuse_old_files
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.reading.lookup import open_lookup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mirrorlog.spark.decode import Decoder

# What a record is taken to have where none could be looked at.
_RECORD_BYTES: Final = 1024.0
# Each look finds every field that any record of the step has and the last one did not take; one nearly always does.
_WIDENINGS_MAX: Final = 8


OnMoment = Callable[[StepMoment], None]


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
        with nullcontext() if holds is None else holds.kept():
            return self._step(landing, holds)

    def _step(self, landing: Landing, holds: Holds | None) -> StepResult:
        clock = _Clock()
        self.on_moment(StepMoment.BEGAN)
        with clock.part("plan"):
            state, dead, plans = self._plan(landing, holds)
        self.on_moment(StepMoment.PLANNED)
        written, version = WrittenFiles(), state.version
        if any(plan.moves for plan in plans):
            staging = Staging.new() if landing.write == "upsert" else None
            if landing.cluster_by and state.version is None:
                state = self._clustered(landing, state)
            with clock.part("write"), self._removed_on_error(landing, staging):
                written, shape = self._write(landing, state, plans, staging)
            self.on_moment(StepMoment.WRITTEN)
            with clock.part("commit"), self._removed_on_error(landing, staging):
                version = self._commit(_Ready(landing, state, dead, plans, written, shape, staging, holds))
            self.on_moment(StepMoment.COMMITTED)
        if holds is not None:
            holds.renew({plan.facts.name: plan.next for plan in plans})
        self.on_moment(StepMoment.RENEWED)
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
        with open_lookup(lookup_options(landing)) as lookup:
            queues = queues_of(landing, lookup)
            state = self._state(landing, queues)
            if state.version is not None:
                # Also while there is nothing to do: a table that forgets positions must not wait for the next record.
                refuse_shape(landing.table, state.shape, written=state.columns)
            dead = None
            if landing.dead_letters is not None:
                state, dead = self._without_ahead(landing, landing.dead_letters, queues, state)
            else:
                refuse_ahead(state, landing.table, queues)
            if holds is not None:
                # What the table says here the log is told, and may free below it.
                sync_table(landing.table, state.version)
                landed = {facts.name: state.versions[QueueIds(facts).offset] for facts in queues}
                holds.begin({facts.name: max(landed[facts.name] or 0, facts.begin) for facts in queues})
            plans = queue_plans(landing, lookup, queues, resumed(landing, queues, state))
            size = record_bytes(lookup, plans, landing.max_bytes)
        return state, dead, limited(plans, self._records_max(landing, size))

    def _state(self, landing: Landing, queues: Sequence[QueueFacts]) -> TableState:
        names = [name for facts in queues for name in ids_for(landing, facts)]
        return table_state(self.spark, landing.table, names)

    def _without_ahead(
        self, landing: Landing, dead: str, queues: Sequence[QueueFacts], state: TableState
    ) -> tuple[TableState, TableState]:
        found = dead_state(self.spark, dead, landing.table, queues)
        while ahead := ahead_of(state, found, landing.table, queues):
            take_back(self.spark, dead, landing.table, ahead[0], seen=state, dead_seen=found)
            state = self._state(landing, queues)
            found = dead_state(self.spark, dead, landing.table, queues)
        return state, found

    def _records_max(self, landing: Landing, size: float) -> int:
        """About as many records as a commit may have, each of `size` bytes, or of what was learned if that is more."""
        size = max(size, self._record_bytes.get(landing.name, 0.0)) or _RECORD_BYTES
        self._record_bytes[landing.name] = size
        return max(1, min(landing.max_records, int(landing.max_bytes / size)))

    # --- its execution ---

    def _write(
        self, landing: Landing, state: TableState, plans: Sequence[QueuePlan], staging: Staging | None
    ) -> tuple[WrittenFiles, TableShape | None]:
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
    ) -> WrittenFiles:
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
        alone = unmirrored(landing, plans)
        work = [TaskWork(each, options, form, origin, decoder, dead, upsert, alone) for each in tasks]
        with translated():
            written = gathered(run_in_tasks(self.spark, work, write_range))
        if written.records:
            self._record_bytes[landing.name] = max(1.0, written.bytes / written.records)
        return written

    def _commit(self, step: _Ready) -> int:
        landing, written = step.landing, step.written
        refuse_old_files((file.modified_ms for file in (*written.files, *written.dead)), now_ms=now_ms())
        step.check_hold()
        moved = [plan for plan in step.plans if plan.moves]
        note = _note(landing, moved, written)
        epochs = _epochs(moved, written)
        step = self._commit_dead(step, moved, note)
        if step.staging is not None:
            return merge_step(
                self.spark,
                landing.table,
                step.staging,
                written.files,
                seen=step.state,
                moves=[move_of(plan, epochs) for plan in moved],
                columns=row_columns(landing),
                note=note,
                shape=with_properties(step.shape, step.state),
                on_moment=partial(self._merging, step),
            ).table_version
        return commit(
            self.spark,
            landing.table,
            written.files,
            seen=step.state,
            sets=_sets(moved, epochs, step.state),
            note=note,
            shape=step.shape,
            on_begun=partial(self._committing, step),
        )

    def _commit_dead(self, step: _Ready, moved: Sequence[QueuePlan], note: dict[str, Any]) -> _Ready:
        """The step with what its last commit has to see then."""
        landing, dead = step.landing, step.dead
        if dead is None or landing.dead_letters is None or not step.written.dead:
            return step
        shape = step.shape if step.staging is None else with_properties(step.shape, step.state)
        ends = {plan.facts: plan.next for plan in moved}
        announced = {"mirrorlog": {"landing": landing.name, "dead_letters": {each.name: ends[each] for each in ends}}}
        state = announce_dead(self.spark, landing.table, ends, seen=step.state, note=announced, shape=shape)
        sets = {ids_of(facts, landing.table).offset: following for facts, following in ends.items()}
        commit_dead(self.spark, landing.dead_letters, step.written.dead, seen=dead, sets=sets, note=note)
        self.on_moment(StepMoment.DEAD_LETTERS)
        return replace(step, state=state, shape=None if step.state.version is None else step.shape)

    def _committing(self, step: _Ready) -> None:
        """The last place before the table changes."""
        self.on_moment(StepMoment.COMMITTING)
        step.check_hold()

    def _merging(self, step: _Ready, moment: MergeMoment) -> None:
        if moment is MergeMoment.ANNOUNCED:
            self._committing(step)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A step before its commit. `state`, `dead`: the table and that of the dead letters as they were when it was
    planned; `shape`: what the table has to become; `staging`: of a landing that merges."""

    landing: Landing
    state: TableState
    dead: TableState | None
    plans: Sequence[QueuePlan]
    written: WrittenFiles
    shape: TableShape | None
    staging: Staging | None
    holds: Holds | None

    def check_hold(self) -> None:
        """Raise HoldTaken when another run has taken what this one holds."""
        if self.holds is not None:
            self.holds.check()


def _format(landing: Landing, target: str) -> FileFormat:
    return FileFormat(
        target, landing.partition_by, prefix_of(landing), landing.compression, landing.target_file_bytes, BOUNDED
    )


def _dead_format(landing: Landing) -> FileFormat | None:
    if landing.dead_letters is None:
        return None
    return FileFormat(landing.dead_letters, compression=landing.compression, bounded=BOUNDED)


def _epochs(plans: Sequence[QueuePlan], written: WrittenFiles) -> dict[tuple[str, int], int]:
    """Of the last record of each queue. Where another history was found and nothing is new it is that one's, so that
    it is told once."""
    stay = [plan for plan in plans if plan.next == plan.first and plan.epoch is not None]
    return {**{(plan.facts.name, plan.next): plan.epoch or 0 for plan in stay}, **written.epochs}


def _sets(plans: Sequence[QueuePlan], epochs: Mapping[tuple[str, int], int], state: TableState) -> dict[str, int]:
    sets: dict[str, int] = {}
    for plan in plans:
        ids = QueueIds(plan.facts)
        sets |= {**begin_set(ids, state.versions, plan.first), ids.offset: plan.next}
        epoch = epochs.get((plan.facts.name, plan.next))
        if epoch is not None:
            sets[ids.epoch(plan.next)] = epoch
    return sets


def _note(landing: Landing, plans: Sequence[QueuePlan], written: WrittenFiles) -> dict[str, Any]:
    """In the table's history: who landed what."""
    queues = {plan.facts.name: [plan.first, plan.next] for plan in plans}
    note: dict[str, Any] = {"mirrorlog": {"landing": landing.name, "queues": queues}}
    missed = [each for plan in plans for each in _missed(plan, written)]
    if missed:
        note["mirrorlog"]["missed"] = [[each.queue, each.first, each.next, each.why] for each in missed]
    return note


def _missed(plan: QueuePlan, written: WrittenFiles) -> tuple[MissedRange, ...]:
    """What the plan passed over, and what its tasks had to."""
    found = (*plan.missed, *(each for each in written.missed if each.queue == plan.facts.name))
    return tuple(sorted(found, key=lambda each: each.first))


def _result(
    landing: Landing, plans: Sequence[QueuePlan], written: WrittenFiles, version: int | None, clock: _Clock
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


OnResult = Callable[[StepResult], None]


def land_all(
    runner: Runner, made: Landing, holds: Holds | None = None, on_result: OnResult = lambda result: None
) -> LandResult:
    """Steps of a landing of one queue until it has what was confirmed at the first. `on_result`: told of each.

    Raises as `Runner.step`.
    """
    steps: list[StepResult] = []
    while not steps or steps[-1].queues[0].next < steps[0].queues[0].confirmed:
        steps.append(runner.step(made, holds))
        on_result(steps[-1])
    return summed(steps)
