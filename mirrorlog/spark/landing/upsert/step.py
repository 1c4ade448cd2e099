"""A step of a landing that keeps the latest record of each key: the runner's side of `upsert`.

Where an appending landing commits its files, this one stages them and merges them in. Positions have more ids, and what
a task writes has the tombstones among its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from mirrorlog.spark.landing.commit.delta_log import AddedFile, TableShape, TableState
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.planning import QueuePlan
from mirrorlog.spark.landing.positions import QueueIds
from mirrorlog.spark.landing.upsert.positions import UpsertIds, landed_epoch
from mirrorlog.spark.landing.upsert.staging import Staging
from mirrorlog.spark.landing.upsert.table import (
    DECODED_COLUMNS,
    PROPERTIES,
    RAW_COLUMNS,
    MergeMoment,
    MergeResult,
    QueueMove,
    RowColumns,
    merge_step,
)
from mirrorlog.spark.plan import QueueFacts


def ids_for(landing: Landing, facts: QueueFacts) -> QueueIds | UpsertIds:
    """The application ids that the landing keeps of a queue."""
    return UpsertIds.of(facts) if landing.write == "upsert" else QueueIds.of(facts)


def resumed(landing: Landing, queues: Sequence[QueueFacts], state: TableState) -> TableState:
    """The state as an appending landing would have left it: with the epoch of the last record that is landed."""
    if landing.write != "upsert":
        return state
    epochs = {ids.epoch: landed_epoch(state.versions, ids) for ids in map(UpsertIds.of, queues)}
    return replace(state, versions={**state.versions, **epochs})


def row_columns(landing: Landing) -> RowColumns:
    """Which columns of the table are what."""
    columns = DECODED_COLUMNS if landing.decoded else RAW_COLUMNS
    return replace(columns, key=landing.key) if landing.key else columns


def with_properties(shape: TableShape | None, state: TableState) -> TableShape | None:
    """What an upserted table is made with; one that is there keeps what it has."""
    if shape is None or state.version is not None:
        return shape
    return replace(shape, properties={**PROPERTIES, **shape.properties})


def merge(
    spark: SparkSession,
    landing: Landing,
    staging: Staging,
    files: Sequence[AddedFile],
    *,
    seen: TableState,
    plans: Sequence[QueuePlan],
    epochs: Mapping[tuple[str, int], int],
    note: Mapping[str, Any],
    shape: TableShape | None,
    on_moment: Callable[[MergeMoment], None],
) -> MergeResult:
    """In place of the commit. Raises LandingConflict, TableOutOfStep, SparkFailed."""
    moves = [
        QueueMove(
            queue=plan.facts.name,
            ids=UpsertIds.of(plan.facts),
            first=plan.first,
            next=plan.next,
            epoch=epochs.get((plan.facts.name, plan.next)),
        )
        for plan in plans
    ]
    return merge_step(
        spark,
        landing.table,
        staging,
        files,
        seen=seen,
        moves=moves,
        columns=row_columns(landing),
        note=note,
        shape=with_properties(shape, seen),
        on_moment=on_moment,
    )
