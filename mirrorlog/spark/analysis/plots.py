"""Pictures of the jobs' results, without a display.

Colours are those of Okabe and Ito, which people see apart whatever colours they see, and each line has a style of its
own as well. A panel per queue, for the busiest ones: lines of many queues in one panel cannot be read. Amounts and
shares begin at zero; latencies do too, unless the slowest record would press all others flat: then the axis is
logarithmic and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mirrorlog.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUEUES_MAX: Final = 4
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_STYLES: Final = ("-", "--", "-.", ":")
_MARKERS: Final = ("o", "s", "^", "D")
_POINTS_WITH_MARKERS: Final = 60
_DPI: Final = 110
_PANEL_INCHES: Final = (6.5, 2.7)
_FLAT: Final = 50.0
"""A largest value of more than so many times the smallest line's median makes the axis logarithmic."""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """Column `name` of a panel's rows, shown as `label`; `scale`: what it is divided by."""

    name: str
    label: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Panel:
    """What stands beside one another for a queue. `where`: only rows that have these values. `is_time`: seconds that
    may spread over several powers of ten."""

    title: str
    unit: str
    lines: tuple[PlotLine, ...]
    where: tuple[tuple[str, str], ...] = ()
    is_time: bool = False


PANELS: Final[Mapping[str, tuple[Panel, ...]]] = {
    "throughput": (
        Panel("records appended", "records / s", (PlotLine("records_per_s", "records"),)),
        Panel("bytes appended (keys and values)", "MB / s", (PlotLine("bytes_per_s", "bytes", 1e6),)),
    ),
    "lag": (
        Panel(
            "append to landed",
            "seconds",
            (PlotLine("landed_p50", "p50"), PlotLine("landed_p90", "p90"), PlotLine("landed_max", "max")),
            is_time=True,
        ),
        Panel(
            "event to append",
            "seconds",
            (PlotLine("event_p50", "p50"), PlotLine("event_p90", "p90"), PlotLine("event_max", "max")),
            is_time=True,
        ),
    ),
    "redeliveries": (
        Panel("records", "records", (PlotLine("redelivered", "redelivered"), PlotLine("duplicates", "duplicates"))),
        Panel(
            "share of all records",
            "%",
            (PlotLine("redelivered_share", "redelivered", 0.01), PlotLine("duplicates_share", "duplicates", 0.01)),
        ),
    ),
    "latency": tuple(
        Panel(
            path,
            "seconds",
            (PlotLine("p50", "p50"), PlotLine("p90", "p90"), PlotLine("p99", "p99"), PlotLine("p99_9", "p99.9")),
            (("path", path),),
            is_time=True,
        )
        for path in ("event to append", "event to landed")
    ),
}


def draw(job: str, title: str, rows: pa.Table) -> Figure:
    """The picture of a job's rows: a line of panels per queue. Raises MissingDependency without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(f"pictures need matplotlib ({error}): pip install 'mirrorlog[analysis]'") from None
    timed = rows.filter(pc.is_valid(rows["time"]))
    queues, left_out = _busiest(timed)
    panels = PANELS[job]
    width, height = _PANEL_INCHES
    figure = Figure(
        figsize=(width * len(panels), height * max(1, len(queues)) + 0.7), layout="constrained", dpi=_DPI
    )  # fmt: skip
    more = f"; {left_out} queues with fewer records are not shown" if left_out else ""
    figure.suptitle(f"{title}{more}", x=0.01, ha="left", fontsize=12, fontweight="bold")
    grid = figure.subplots(max(1, len(queues)), len(panels), squeeze=False)
    shown: Sequence[str | None] = queues or [None]
    for axes_of_queue, queue in zip(grid, shown, strict=True):
        for axes, panel in zip(axes_of_queue, panels, strict=True):
            _draw_panel(axes, panel, queue, timed)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """As PNG. Raises ConfigError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def _busiest(rows: pa.Table) -> tuple[list[str], int]:
    """The queues with most records, in order of name, and how many others there are."""
    totals = rows.group_by("queue").aggregate([("records", "sum")]).to_pylist()
    order = sorted(totals, key=lambda each: (-each["records_sum"], each["queue"]))
    return sorted(each["queue"] for each in order[:QUEUES_MAX]), max(0, len(order) - QUEUES_MAX)


def _draw_panel(axes: Axes, panel: Panel, queue: str | None, rows: pa.Table) -> None:
    where = {"queue": queue, **dict(panel.where)}
    mine = with_idle_times(
        [row for row in rows.to_pylist() if where.items() <= row.items()],
        [line.name for line in panel.lines],
        stretch=_stretch(rows),
        value=None if panel.is_time else 0,
    )
    axes.set_title(panel.title if queue is None else f"{queue}: {panel.title}", fontsize=10, loc="left")
    times = [row["time"].astimezone(UTC) for row in mine]
    drawn: list[float] = []
    for number, line in enumerate(panel.lines):
        values = [None if row[line.name] is None else row[line.name] / line.scale for row in mine]
        known = [value for value in values if value is not None]
        if known:
            drawn += known
            _draw_line(axes, number, line, times, values)
    axes.set_ylabel(panel.unit)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if not drawn:
        axes.text(0.5, 0.5, "no such records", transform=axes.transAxes, ha="center", color="#666666")
        axes.set_xticks([])
        axes.set_yticks([])
        return
    _scale(axes, panel, drawn)
    _name_times(axes, times)
    if len(panel.lines) > 1:
        # Above the panel, where no line can run through it.
        axes.legend(
            loc="lower right",
            bbox_to_anchor=(1.0, 0.99),
            borderaxespad=0.0,
            frameon=False,
            fontsize=8,
            ncols=len(panel.lines),
        )


def with_idle_times(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, stretch: timedelta, value: float | None
) -> list[Mapping[str, Any]]:
    """With a row at both ends of every time without records, so that no line is drawn as if there had been some."""
    filled = list(rows[:1])
    silent = dict.fromkeys(names, value)
    for before, row in pairwise(rows):
        if row["time"] - before["time"] > stretch:
            ends = {before["time"] + stretch, row["time"] - stretch}
            filled += [{**row, **silent, "time": time} for time in sorted(ends)]
        filled.append(row)
    return filled


def _stretch(rows: pa.Table) -> timedelta:
    """How long the stretches of time are: the shortest distance of two."""
    times = sorted(set(rows["time"].to_pylist()))
    return min((later - earlier for earlier, later in pairwise(times)), default=timedelta(minutes=1))


def _draw_line(axes: Axes, number: int, line: PlotLine, times: Sequence[datetime], values: Sequence[Any]) -> None:
    marker = _MARKERS[number % len(_MARKERS)] if len(times) <= _POINTS_WITH_MARKERS else None
    axes.plot(
        times,  # type: ignore[arg-type]  # matplotlib takes dates, its stubs numbers
        [float("nan") if value is None else value for value in values],
        label=line.label,
        color=_COLOURS[number % len(_COLOURS)],
        linestyle=_STYLES[number % len(_STYLES)],
        marker=marker,
        markersize=3.5,
        linewidth=1.5,
    )


def _scale(axes: Axes, panel: Panel, values: Sequence[float]) -> None:
    middle = sorted(values)[len(values) // 2]
    if panel.is_time and min(values) > 0 and max(values) > _FLAT * middle:
        axes.set_yscale("log")
        axes.set_ylabel(f"{panel.unit}, logarithmic")
        return
    top = max(values)
    axes.set_ylim(bottom=min(0.0, *values), top=top * 1.08 if top > 0 else 1.0)


def _name_times(axes: Axes, times: Sequence[datetime]) -> None:
    from matplotlib import dates

    if len(set(times)) == 1:
        # One point has no extent: matplotlib would show two days around it. Its module of dates has no types.
        place = float(dates.date2num(times[0]))  # type: ignore[no-untyped-call]
        axes.set_xticks([place], [times[0].strftime("%Y-%m-%d %H:%M")])
    else:
        locator = dates.AutoDateLocator(tz=UTC, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(
            dates.ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
        )
    axes.set_xlabel("append time, UTC", fontsize=8)
