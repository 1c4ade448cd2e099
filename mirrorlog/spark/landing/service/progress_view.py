"""What landings do, as a table for people: a row per queue, made from the counts of the observer. Pure.

On a terminal the table is shown live by `LiveView`; elsewhere `display` writes a line per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.results import StepResult, Tidied
from mirrorlog.spark.landing.service.counts import LandingCounts, LandingTotals

ROWS_MAX: Final = 30
"""Queues that a terminal shows; those furthest behind first when there are more."""

_STYLES: Final = {"failed": "bold red", "behind": "yellow", "landing": "cyan", "landed": "green"}
_REASON_CHARACTERS_MAX: Final = 160


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue of one landing. `reason`: why it failed, else None; `rate`: records per second of the last step."""

    queue: str
    table: str
    records: int
    rate: float
    lag_records: int
    lag_seconds: float
    state: str
    reason: str | None = None


def queue_rows(totals: Mapping[str, LandingTotals], now_s: float) -> list[QueueRow]:
    """In the order of the landings' and the queues' names. A landing that knows no queue yet has a row of its own."""
    return [row for name in sorted(totals) for row in _rows(name, totals[name], now_s)]


def progress_table(rows: Iterable[QueueRow]) -> Table:
    """For a terminal."""
    every = list(rows)
    shown = every if len(every) <= ROWS_MAX else sorted(every, key=lambda row: -row.lag_records)[:ROWS_MAX]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("queue", overflow="fold")
    table.add_column("table", overflow="fold")
    for name in ("landed", "rate/s", "lag", "lag s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for row in shown:
        numbers = (f"{row.records:,}", f"{row.rate:,.0f}", f"{row.lag_records:,}", f"{row.lag_seconds:.1f}")
        # Text, not markup: a queue may be called [red].
        table.add_row(Text(row.queue), Text(row.table), *numbers, Text(_state(row), style=_STYLES.get(row.state, "")))
    if len(every) > len(shown):
        table.caption = f"and {len(every) - len(shown):,} queues that are less far behind"
    return table


def _rows(name: str, totals: LandingTotals, now_s: float) -> Iterator[QueueRow]:
    if not totals.queues:
        yield QueueRow(name, totals.table, 0, 0.0, 0, 0.0, totals.state, totals.error)
    for queue, counts in sorted(totals.queues.items()):
        state = totals.state
        if state in ("landed", "behind"):
            state = "behind" if counts.lag_records else "landed"
        yield QueueRow(
            queue,
            totals.table,
            counts.records,
            totals.rate,
            counts.lag_records,
            counts.lag_seconds(now_s),
            state,
            totals.error,
        )


def _state(row: QueueRow) -> str:
    if row.reason is None:
        return row.state
    reason = row.reason
    if len(reason) > _REASON_CHARACTERS_MAX:
        reason = f"{reason[: _REASON_CHARACTERS_MAX - 1]}…"
    return f"{row.state}: {reason}"


class LiveView:
    """An observer that counts and shows the table on a terminal while its block runs."""

    def __init__(self, counts: LandingCounts, console: Console | None = None) -> None:
        self.counts = counts
        self._live = Live(console=console or Console(stderr=True), get_renderable=self._table, refresh_per_second=4)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def step_began(self, landing: Landing) -> None:
        self.counts.step_began(landing)

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        self.counts.step_ended(landing, result)
        for missed in result.missed:
            self._live.console.print(Text(f"{landing.name}: {missed}"))

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self.counts.step_failed(landing, error)

    def looked(self, landing: Landing, confirmed: Mapping[str, int]) -> None:
        self.counts.looked(landing, confirmed)

    def upkeep_done(self, landing: Landing, done: Tidied) -> None:
        self.counts.upkeep_done(landing, done)

    def upkeep_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self.counts.upkeep_failed(landing, error)
        self._live.console.print(Text(f"{landing.name}: upkeep failed: {' '.join(error.message.split())}"))

    def _table(self) -> RenderableType:
        return progress_table(queue_rows(*self.counts.copy()))
