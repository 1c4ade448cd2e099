"""Pictures of the analysis jobs say what they show, and show nothing that is not there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mirrorlog.errors import ConfigError
from mirrorlog.spark.analysis.copies import draw_copies
from mirrorlog.spark.analysis.plots import PANELS, QUEUES_MAX, draw, save, with_silence
from mirrorlog.spark.audit import _draw
from mirrorlog.spark.checks.copy_audit import Audit, Copy, Finding, State

_TOLD = ("other bytes", "damaged", "could not be read", "does not have it")

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
    """Goal: silence is seen. Amounts fall to zero, times have a hole."""
    given = rows("throughput", [0, 1, 5])
    filled = with_silence(given, ["records_per_s"], stretch=MINUTE, value=0)
    assert [((row["time"] - NOON) // MINUTE, row["records_per_s"]) for row in filled] == [
        (0, 1.0), (1, 1.0), (2, 0), (4, 0), (5, 1.0),
    ]  # fmt: skip
    times = with_silence(given, ["records_per_s"], stretch=MINUTE, value=None)
    assert [row["records_per_s"] for row in times] == [1.0, 1.0, None, None, 1.0]
    assert len(with_silence(rows("throughput", [0, 2]), ["records_per_s"], stretch=MINUTE, value=0)) == 3


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


def test_the_copies_of_a_queue_are_drawn_with_what_is_the_matter_on_each() -> None:
    """Goal: one bad batch of very many is seen. A picture with a finding of every state, read by its parts."""
    findings = (
        Finding("n2", 120_000, 120_001, State.DIFFERS, "not the bytes of n1"),
        Finding("n2", 200_000, 240_000, State.DAMAGED, "CRC"),
        Finding("n3", 300_000, 400_000, State.BEHIND, "later"),
        Finding("n4", 0, 400_000, State.UNREAD, "down"),
    )
    copies = (Copy("n1", True, 0, 400_000), Copy("n2", False, 0, 400_000), Copy("n3", False, 50_000, 300_000))
    figure = draw_copies(Audit("q", 0, 400_000, copies, (), findings))
    (axes,) = figure.axes
    assert "NOT ALL EQUAL" in axes.get_title(loc="left")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["n1 (master)", "n2", "n3", "n4"]
    bars = [(bar.get_x(), bar.get_width(), bar.get_hatch()) for group in axes.containers for bar in group]
    assert (50_000, 250_000, None) in bars
    assert min(width for _, width, _ in bars) == 1_000
    assert len({hatch for _, _, hatch in bars}) == 5
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["the same bytes", *_TOLD]


def test_copies_that_are_equal_are_drawn_as_such() -> None:
    figure = draw_copies(Audit("q", 0, 10, (Copy("n1", True, 0, 10),), (), ()))
    assert "all equal" in figure.axes[0].get_title(loc="left")
    assert len(figure.legends[0].get_texts()) == 1


def test_a_queues_name_is_no_path_for_its_picture(tmp_path: Path) -> None:
    """Goal: whatever a queue is called, its picture lands in the folder. One with a slash and dots."""
    _draw([Audit("../a/b", 0, 10, (Copy("n1", True, 0, 10),), (), ())], tmp_path / "out")
    (picture,) = (tmp_path / "out").iterdir()
    assert picture.read_bytes()[:4] == b"\x89PNG"
