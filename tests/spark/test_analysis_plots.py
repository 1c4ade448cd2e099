"""Pictures of the analysis jobs say what they show, and show nothing that is not there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mirrorlog.errors import ConfigError
from mirrorlog.spark.analysis.plots import PANELS, QUEUES_MAX, draw, save, with_idle_times

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def rows(job: str, minutes: list[int], queue: str = "q", **values: Any) -> list[dict[str, Any]]:
    """Of each path of the job a row per minute, every line at 1 unless said otherwise."""
    names = {line.name for panel in PANELS[job] for line in panel.lines}
    paths = [dict(panel.where) for panel in PANELS[job]] if job == "latency" else [{}]
    return [
        {"time": NOON + minute * MINUTE, "queue": queue, "records": 10, **path, **dict.fromkeys(names, 1.0), **values}
        for minute in minutes
        for path in paths
    ]


@pytest.mark.long
@pytest.mark.parametrize("job", PANELS)
def test_each_picture_names_what_it_shows_with_its_unit(job: str, tmp_path: Path) -> None:
    """Goal: a picture can be read alone. Draw each job; look at titles, units, legends, and where the axes begin."""
    figure = draw(job, "Something, by minute", pa.Table.from_pylist(rows(job, [0, 1, 2])))
    assert figure.get_suptitle() == "Something, by minute"
    assert len(figure.axes) == len(PANELS[job])
    for axes, panel in zip(figure.axes, PANELS[job], strict=True):
        assert axes.get_title(loc="left") == f"q: {panel.title}"
        assert axes.get_ylabel() == panel.unit
        assert axes.get_ylim()[0] == 0
        assert len(axes.lines) == len(panel.lines)
        legend = axes.get_legend()
        assert (legend is None) == (len(panel.lines) == 1)
        styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
        assert len(styles) == len(panel.lines)
    path = save(figure, tmp_path / "new" / f"{job}.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_minute_without_records_is_zero_or_nothing_and_never_a_line_across() -> None:
    """Goal: idle times are seen. Amounts fall to zero, times have a hole."""
    given = rows("throughput", [0, 1, 5])
    filled = with_idle_times(given, ["records_per_s"], stretch=MINUTE, value=0)
    assert [((row["time"] - NOON) // MINUTE, row["records_per_s"]) for row in filled] == [
        (0, 1.0), (1, 1.0), (2, 0), (4, 0), (5, 1.0),
    ]  # fmt: skip
    times = with_idle_times(given, ["records_per_s"], stretch=MINUTE, value=None)
    assert [row["records_per_s"] for row in times] == [1.0, 1.0, None, None, 1.0]
    assert len(with_idle_times(rows("throughput", [0, 2]), ["records_per_s"], stretch=MINUTE, value=0)) == 3


def test_one_slow_record_makes_the_axis_logarithmic_and_it_says_so() -> None:
    """Goal: a single outlier does not press everything else flat; a time below zero is still shown."""
    slow = rows("latency", [0, 1, 2]) + rows("latency", [3], p99_9=900.0)
    axes = draw("latency", "t", pa.Table.from_pylist(slow)).axes[0]
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "seconds, logarithmic")
    below = rows("latency", [0, 1, 2]) + rows("latency", [3], p50=-2.0, p99_9=900.0)
    axes = draw("latency", "t", pa.Table.from_pylist(below)).axes[0]
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("linear", -2.0)


def test_only_the_busiest_queues_are_drawn_and_the_rest_is_counted() -> None:
    """Goal: a table of many queues has a picture that can be read. Two more than are drawn."""
    many = [row for number in range(QUEUES_MAX + 2) for row in rows("lag", [0], f"q{number}", records=number)]
    figure = draw("lag", "Lag", pa.Table.from_pylist(many))
    assert figure.get_suptitle() == "Lag; 2 queues with fewer records are not shown"
    titles = [axes.get_title(loc="left") for axes in figure.axes[:: len(PANELS["lag"])]]
    assert titles == [f"q{number}: append to landed" for number in range(2, QUEUES_MAX + 2)]


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    """Goal: no error and no empty axes. A table without rows; then a place that cannot be written to."""
    empty = pa.Table.from_pylist(rows("lag", [0])).slice(0, 0)
    figure = draw("lag", "Lag", empty)
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["no such records"] * 2
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        save(figure, tmp_path / "file" / "lag.png")
