"""The comparison of a log with its table: buckets first, then a closer look at those that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from mirrorlog.errors import BadInput
from mirrorlog.spark.checks.buckets import (
    BUCKET_OFFSETS,
    BucketVerdict,
    OffsetBucket,
    by_number,
    compared,
    runs,
    total,
    width,
)
from mirrorlog.spark.checks.differences import Difference, DifferenceKind, Reconciliation, joined
from mirrorlog.spark.checks.fingerprints import bucket_number, bucketed, column_hash
from mirrorlog.spark.checks.scope import Scope
from mirrorlog.spark.command_line import OnStep
from mirrorlog.spark.reading.declared_gaps import between

# Inspection: rows of a log and of a table joined by queue offset, and what differs as ranges.
#
# For few rows: of buckets that are known to differ. Offsets that follow one another and differ alike become one range
# in the tasks already, so that a million missing rows are one line on their way to the driver.


def inspect(log: DataFrame, table: DataFrame, columns: Sequence[str], number: Column, limit: int) -> list[Difference]:
    """The first `limit` ranges in which they differ. `number`: of the bucket of a row; no range is wider than one."""
    mine = _by_offset(log, columns, "log")
    its = _by_offset(table, columns, "table")
    both = mine.join(its, "offset", "full_outer")
    rows = f.coalesce(f.col("table_rows"), f.lit(0))
    any_differs = reduce(Column.__or__, map(_differs, columns), f.lit(False))
    kind = (
        f.when(f.col("log_rows").isNull(), f.lit(DifferenceKind.MISSING_IN_LOG.name))
        .when(rows == 0, f.lit(DifferenceKind.MISSING_IN_TABLE.name))
        .when(rows > 1, f.lit(DifferenceKind.TWICE.name))
        .when(any_differs, f.lit(DifferenceKind.CONTENT.name))
    )
    differing = f.when(f.col("log_rows").isNull() | (rows == 0), f.lit("")).otherwise(_names(columns))
    odd = both.select(
        "offset", number.alias("number"), kind.alias("kind"), differing.alias("columns"), rows.alias("rows")
    )
    return [_difference(row) for row in _ranges(odd.where(f.col("kind").isNotNull()), limit)]


def _by_offset(rows: DataFrame, columns: Sequence[str], side: str) -> DataFrame:
    """A row per offset: how many there are, and of each column the smallest and the largest hash."""
    hashed = rows.select("offset", *(column_hash(name).alias(f"hash_{name}") for name in columns))
    ends = [
        end(f"hash_{name}").alias(f"{side}_{word}_{name}")
        for name in columns
        for word, end in (("min", f.min), ("max", f.max))
    ]
    return hashed.groupBy("offset").agg(f.count("*").alias(f"{side}_rows"), *ends)


def _differs(name: str) -> Column:
    """Whether any row of the table has another content there than the log's."""
    log, low, high = (f.col(each) for each in (f"log_min_{name}", f"table_min_{name}", f"table_max_{name}"))
    return ~(low.eqNullSafe(log) & high.eqNullSafe(log))


def _names(columns: Sequence[str]) -> Column:
    """Those that differ, commas between."""
    return f.concat_ws(",", *(f.when(_differs(name), f.lit(name)) for name in columns))


def _ranges(odd: DataFrame, limit: int) -> list[dict[str, object]]:
    alike = ("number", "kind", "columns")
    place = f.row_number().over(Window.partitionBy(*alike).orderBy("offset"))
    runs = odd.withColumn("run", f.col("offset") - place).groupBy(*alike, "run")
    ranges = runs.agg(f.min("offset").alias("first"), f.max("offset").alias("last"), f.sum("rows").alias("rows"))
    found: list[dict[str, object]] = ranges.orderBy("first").limit(limit).toArrow().to_pylist()
    return found


def _difference(row: dict[str, object]) -> Difference:
    first, last, rows = (int(str(row[name])) for name in ("first", "last", "rows"))
    columns = tuple(name for name in str(row["columns"]).split(",") if name)
    return Difference(DifferenceKind[str(row["kind"])], first, last + 1, rows, columns)


RANGES_MAX: Final = 100
# Each is a job of its own, with a cost of its own: neighbours that are a little apart are read together.
_SCANS_MAX: Final = 8


_LogRows = Callable[[Sequence[tuple[int, int]]], DataFrame]


@dataclass(frozen=True, slots=True)
class ComparisonLimits:
    """`bucket_offsets`: queue offsets per checksum. `ranges_max`: ranges to name, and buckets to look into."""

    bucket_offsets: int = BUCKET_OFFSETS
    ranges_max: int = RANGES_MAX

    def __post_init__(self) -> None:
        if self.bucket_offsets < 1 or self.ranges_max < 1:
            raise BadInput("a bucket has one queue offset at least, and one range at least is named")


@dataclass(frozen=True, slots=True)
class _Compared:
    """Both sides of a range of queue offsets, and where they differ; `unseen`: buckets that were not looked into."""

    log: Mapping[int, OffsetBucket]
    table: Mapping[int, OffsetBucket]
    verdict: BucketVerdict
    looked_at: tuple[Difference, ...]
    unseen: int


_NOTHING: Final = _Compared({}, {}, BucketVerdict((), ()), (), 0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared, and how closely."""

    spark: SparkSession
    scope: Scope
    limits: ComparisonLimits
    on_step: OnStep

    def result(self) -> Reconciliation:
        """Reads both sides once, and what differs twice. Raises what Spark does."""
        scope, limit = self.scope, self.limits.ranges_max
        below = self._below()
        self.on_step(f"reading the log of queue {scope.facts.name!r}, {scope.log_first:,} up to {scope.log_next:,}")
        landed = scope.landed.where(f.col("offset") >= scope.log_first)
        span = scope.next - scope.log_first - sum(gap.next - gap.first for gap in scope.gaps)
        offsets = width(span, self.limits.bucket_offsets)
        whole = self._compared(self._log_rows, landed, (scope.log_first, scope.log_next), scope.columns, offsets)
        known = [*below.verdict.known, *below.looked_at, *whole.verdict.known, *whole.looked_at]
        ranges = joined(known)
        return Reconciliation(
            queue=scope.facts.name,
            table=scope.table.path,
            table_version=scope.table.version,
            mode=f"{scope.table.shape}, {scope.write}",
            first=scope.first,
            next=scope.next,
            log_first=scope.log_first,
            log=total(whole.log),
            landed=total(whole.table),
            below_rows=total(below.table).rows,
            dead_letters=scope.dead_letters,
            compared=scope.columns,
            bucket_offsets=offsets,
            buckets=len(whole.log.keys() | whole.table.keys()),
            differ=len(whole.verdict.known) + len(whole.verdict.to_look_at),
            unseen=whole.unseen,
            more=bool(below.unseen) or max(len(below.looked_at), len(whole.looked_at), len(ranges)) > limit,
            differences=tuple(ranges[:limit]),
            gaps=scope.gaps,
            notes=scope.notes,
        )

    def _below(self) -> _Compared:
        """Where the log has nothing any more the table must have each offset once: it is held against these. Upserts
        leave holes, so there is nothing to be checked."""
        scope = self.scope
        if scope.first >= scope.log_first or scope.write == "upsert":
            return _NOTHING
        self.on_step(f"looking for holes in {scope.table.path} below {scope.log_first:,}, where the log begins")

        def every_offset(stretches: Sequence[tuple[int, int]]) -> DataFrame:
            cut = [(max(one, scope.first), min(other, scope.log_first)) for one, other in stretches]
            rows = [self.spark.range(one, other).select(f.col("id").alias("offset")) for one, other in cut]
            return reduce(DataFrame.unionByName, rows)

        landed = scope.landed.where(f.col("offset") < scope.log_first)
        offsets = width(scope.log_first - scope.first, self.limits.bucket_offsets)
        return self._compared(every_offset, landed, (scope.first, scope.log_first), (), offsets)

    def _compared(
        self, log_rows: _LogRows, landed: DataFrame, whole: tuple[int, int], columns: Sequence[str], offsets: int
    ) -> _Compared:
        """`log_rows`: of the log, in stretches of queue offsets; `whole`: all of them; `offsets`: of a bucket."""
        log = by_number(bucketed(log_rows([whole]), columns, offsets))
        self.on_step(f"reading {self.scope.table.path}")
        table = by_number(bucketed(landed, columns, offsets))
        verdict, limit = compared(log, table), self.limits.ranges_max
        numbers = verdict.to_look_at[:limit]
        if not numbers:
            return _Compared(log, table, verdict, (), 0)
        self.on_step(f"looking into {len(numbers):,} ranges of {offsets:,} offsets that differ")
        number = bucket_number(offsets)
        stretches = [(run.start * offsets, run.stop * offsets) for run in runs(numbers, _SCANS_MAX)]
        near = [f.col("offset").between(first, following - 1) for first, following in stretches]
        wanted = reduce(Column.__or__, near) & number.isin(list(numbers))
        found = inspect(log_rows(stretches).where(wanted), landed.where(wanted), columns, number, limit + 1)
        looked_at = tuple(judged for each in found for judged in self._judged(each))
        return _Compared(log, table, verdict, looked_at, len(verdict.to_look_at) - len(numbers))

    def _log_rows(self, stretches: Sequence[tuple[int, int]]) -> DataFrame:
        """Of the log, as the table should have them."""
        scope = self.scope
        if scope.write == "upsert":
            # Which record of a key is the newest can only be told from all of them.
            parts = between(scope.log_first, scope.log_next, scope.gaps)
            columns = [*scope.columns, *({"key", "value"} - {*scope.columns})]
            rows = scope.log.rows(self.spark, scope.facts, parts, columns)
            return _upserted(rows, scope.dead).select("offset", *scope.columns)
        parts = [part for first, following in stretches for part in self._parts(first, following)]
        return scope.log.rows(self.spark, scope.facts, parts, scope.columns)

    def _parts(self, first: int, following: int) -> list[tuple[int, int]]:
        """What of that range is in the log, without the gaps."""
        first, following = max(first, self.scope.log_first), min(following, self.scope.log_next)
        gaps = [gap for gap in self.scope.gaps if gap.first < following and first < gap.next]
        cut = [replace(gap, first=max(gap.first, first), next=min(gap.next, following)) for gap in gaps]
        return between(first, following, cut) if first < following else []

    def _judged(self, found: Difference) -> Iterator[Difference]:
        """What the log lacks is called by what it means: above the table's position, or replaced by a newer record."""
        if found.kind is not DifferenceKind.MISSING_IN_LOG:
            yield found
            return
        inside = min(max(self.scope.next, found.first), found.next)
        kind = DifferenceKind.STALE if self.scope.write == "upsert" and inside <= self.scope.facts.next else found.kind
        for each_kind, first, following in ((kind, found.first, inside), (DifferenceKind.BEYOND, inside, found.next)):
            if first < following:
                yield replace(found, kind=each_kind, first=first, next=following)


def _upserted(rows: DataFrame, dead: DataFrame | None) -> DataFrame:
    """What a landing by upserts makes of the log: of each key the newest record, unless that has no value and deletes
    the key. Dead letters and records without a key replace nothing, and must be somewhere as they are."""
    offsets = rows.select("offset").limit(0) if dead is None else dead.select("offset").distinct()
    placed = rows.join(offsets, "offset", "left_anti")
    keyed = placed.where(f.col("key").isNotNull())
    newest = keyed.groupBy("key").agg(f.max_by(f.struct(*rows.columns), "offset").alias("record"))
    kept = newest.where(f.col("record.value").isNotNull()).select("record.*")
    return kept.unionByName(placed.where(f.col("key").isNull())).unionByName(
        rows.join(offsets, "offset", "left_semi").select(*rows.columns)
    )
