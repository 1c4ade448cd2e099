"""What a comparison of a log with its table found, as values: ranges of queue offsets and how they differ. Pure.

Equal is decided by the checksums of all buckets, never by whether a range was found: a difference that could not be
explained is still one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mirrorlog.spark.errors import TableDiffers
from mirrorlog.spark.reading.declared_gaps import Gap

CHECKSUM_BITS: Final = 64


class DifferenceKind(StrEnum):
    """How a queue offset differs."""

    MISSING_IN_TABLE = "missing in the table"
    MISSING_IN_LOG = "missing in the log"
    TWICE = "more than once in the table"
    CONTENT = "different content"
    BEYOND = "beyond the position that the table names"
    STALE = "in the table, but the log has a newer record of the key, or deletes it"


@dataclass(frozen=True, slots=True)
class Difference:
    """Queue offsets `first` up to `next` (exclusive), each of which differs in this way; `rows`: of the table there.

    `columns`: those that differ, where they were compared.
    """

    kind: DifferenceKind
    first: int
    next: int
    rows: int
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        offsets = f"{self.first}" if self.next == self.first + 1 else f"{self.first} up to {self.next}"
        columns = f" in {', '.join(self.columns)}" if self.columns else ""
        return f"{offsets}: {self.kind}{columns}"


def joined(differences: Iterable[Difference]) -> list[Difference]:
    """In order, those that follow one another and differ alike as one."""
    found: list[Difference] = []
    for each in sorted(differences, key=lambda each: (each.kind, each.columns, each.first)):
        last = found[-1] if found else None
        if last and (last.kind, last.columns, last.next) == (each.kind, each.columns, each.first):
            found[-1] = replace(last, next=each.next, rows=last.rows + each.rows)
        else:
            found.append(each)
    return sorted(found, key=lambda each: (each.first, each.kind))


@dataclass(frozen=True, slots=True)
class Side:
    """One side of what was compared: its rows, and the sum of their hashes."""

    rows: int
    checksum: int

    @property
    def text(self) -> str:
        return f"{self.checksum:0{CHECKSUM_BITS // 4}x}"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """A queue's log against its table, queue offsets `first` up to `next` (exclusive).

    `log_first`: what lies below it is no longer in the log, and the table was checked by itself there. `compared`: the
    columns. `buckets`: ranges of `bucket_offsets` whose checksums were compared; of those that `differ`, `unseen` were
    not looked at by queue offset, nor were ranges beyond those in `differences` when `more` is true.
    """

    queue: str
    table: str
    table_version: int
    mode: str
    first: int
    next: int
    log_first: int
    log: Side
    landed: Side
    below_rows: int
    dead_letters: int
    compared: tuple[str, ...]
    bucket_offsets: int
    buckets: int
    differ: int
    unseen: int
    more: bool
    differences: tuple[Difference, ...]
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differ and not self.differences and self.log == self.landed

    def error(self) -> TableDiffers | None:
        """What a command ends with; None when they are equal."""
        if self.equal:
            return None
        first = f", first at {self.differences[0]}" if self.differences else ""
        return TableDiffers(f"{self.table} differs from queue {self.queue!r}{first}", first=self.first, next=self.next)

    def view(self) -> RenderableType:
        """For a terminal: both sides, then every range that differs, then what else is to be known."""
        parts: list[RenderableType] = [self._sides()]
        if self.differences:
            parts.append(self._ranges())
        parts += [Text(line) for line in self.remarks()]
        return Group(*parts)

    def remarks(self) -> list[str]:
        """What a reader must know besides the numbers, one line each."""
        lines = []
        if self.first < self.log_first:
            lines.append(
                f"the log begins at {self.log_first}: below it the table cannot be checked against the log; its "
                f"{self.below_rows:,} rows from {self.first} on were checked to be there once each"
            )
        lines += [f"{gap.first} up to {gap.next} are a declared loss: nothing is missing there" for gap in self.gaps]
        if self.unseen:
            lines.append(
                f"{self.unseen:,} more ranges of {self.bucket_offsets:,} offsets differ and were not looked into"
            )
        elif self.more:
            lines.append(f"there are more ranges than these {len(self.differences)}; ask for more with --ranges")
        elif self.differ and not self.differences:
            lines.append("checksums differed, and nothing did when it was looked at again: run again")
        return [*lines, *self.notes]

    def fields(self) -> dict[str, Any]:
        """As JSON. Ranges are [first, next)."""
        return {
            "queue": self.queue,
            "table": self.table,
            "table_version": self.table_version,
            "mode": self.mode,
            "equal": self.equal,
            "first": self.first,
            "next": self.next,
            "log_begins_at": self.log_first,
            "log": {"rows": self.log.rows, "checksum": self.log.text},
            "landed": {"rows": self.landed.rows, "checksum": self.landed.text},
            "rows_below_log": self.below_rows,
            "dead_letters": self.dead_letters,
            "compared": list(self.compared),
            "bucket_offsets": self.bucket_offsets,
            "buckets": self.buckets,
            "buckets_that_differ": self.differ,
            "buckets_not_looked_into": self.unseen,
            "more_ranges": self.more,
            "differences": [_difference_fields(each) for each in self.differences],
            "declared_gaps": [{"first": gap.first, "next": gap.next} for gap in self.gaps],
            "notes": list(self.notes),
        }

    def _sides(self) -> Table:
        title = f"queue {self.queue}, offsets {self.first:,} up to {self.next:,}, against {self.table}"
        shown = _table(f"{title} (version {self.table_version}, {self.mode})", ("", "log", "table", ""), right=(1, 2))
        self._line(shown, "records", f"{self.log.rows:,}", f"{self.landed.rows:,}", self.log.rows == self.landed.rows)
        same = self.log.checksum == self.landed.checksum
        self._line(shown, f"checksum of {', '.join(self.compared)}", self.log.text, self.landed.text, same)
        ranges = f"ranges of {self.bucket_offsets:,} offsets that differ"
        self._line(shown, ranges, f"of {self.buckets:,}", f"{self.differ:,}", not self.differ)
        if self.dead_letters:
            shown.add_row("of the rows, dead letters", "", f"{self.dead_letters:,}", "")
        self._line(shown, "all of it", "", "", self.equal)
        return shown

    @staticmethod
    def _line(shown: Table, what: str, log: str, landed: str, equal: bool) -> None:
        verdict = Text("equal" if equal else "NOT EQUAL", style="green" if equal else "bold red")
        shown.add_row(Text(what), log, landed, verdict)

    def _ranges(self) -> Table:
        shown = _table("what differs", ("first", "up to", "offsets", "how", "columns"), right=(0, 1, 2))
        for each in self.differences:
            numbers = (str(each.first), str(each.next), f"{each.next - each.first:,}")
            shown.add_row(*numbers, Text(str(each.kind)), Text(", ".join(each.columns)))
        return shown


def _difference_fields(each: Difference) -> Mapping[str, Any]:
    columns = list(each.columns)
    return {"kind": each.kind.name, "first": each.first, "next": each.next, "rows": each.rows, "columns": columns}


def _table(title: str, columns: Sequence[str], *, right: Sequence[int]) -> Table:
    made = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number in right else "left", no_wrap=number in right)
    return made
