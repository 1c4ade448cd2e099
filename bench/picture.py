"""The picture of a run: bars of medians for W1, W2 and W3 at 1 KiB, and each bar's ratio to mirrorlog's first one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from bench.report import conditions_text, number_text
from bench.results import Results, Row
from bench.workload import LIMIT, OWN, PEER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: Final = {OWN: "#2b6cb0", LIMIT: "#a0aec0", PEER: "#dd6b20"}
_NAMES: Final = {OWN: "mirrorlog", LIMIT: "limit", PEER: "other systems"}
_LABEL_WIDTH: Final = 70
_BAR_INCHES: Final = 0.42
_DPI: Final = 110


@dataclass(frozen=True, slots=True)
class Panel:
    """`patterns`: regular expressions on `workload | case | name`, for the rows of each group."""

    title: str
    patterns: dict[str, str]

    def rows(self, results: Results) -> list[Row]:
        """What is shown, group by group."""
        return [
            row
            for group, pattern in self.patterns.items()
            for row in results.rows(group)
            if re.search(pattern, f"{row.summary.workload} | {row.summary.case} | {row.summary.name}")
        ]


PANELS: Final = (
    Panel(
        "W1: publish, 3 copies, 1 KiB records (MB/s, more is better)",
        {
            OWN: r"^W1 \| 3 copies, 1024 B, .* \| throughput$",
            LIMIT: r"\| 3 copies, batches .* \| throughput$",
            PEER: r"^W1 \| .* \| throughput$",
        },
    ),
    Panel(
        "W2: one record outstanding, 3 copies, 1 KiB (p50 in µs, less is better)",
        {
            OWN: r"^W2 \| 3 copies, 1024 B, .* \| p50$",
            LIMIT: r"\| 3 copies, 1024 B, one outstanding.* \| p50$",
            PEER: r"^W2 \| .* \| p50$",
        },
    ),
    Panel(
        "W3: one consumer, 1 KiB records (MB/s, more is better)",
        {OWN: r"^W3 \| 3 copies, 1024 B, .* \| throughput$", PEER: r"^W3 \| .* \| throughput$"},
    ),
    Panel(
        "W6: published, consumed, acknowledged, 3 copies, 1 KiB records (records/s, more is better)",
        {OWN: r"^W6 \| 3 copies, 1024 B, .* \| rate$", PEER: r"^W6 \| .* \| rate$"},
    ),
)


def draw(results: Results, path: Path) -> bool:
    """Write the picture as PNG; False when there is nothing to show."""
    shown = [(panel, rows) for panel in PANELS if (rows := panel.rows(results))]
    if not shown:
        return False
    with mpl.rc_context({"font.size": 9}):
        heights = [len(rows) + 1.5 for _, rows in shown]
        canvas = Canvas(figsize=(13, sum(heights) * _BAR_INCHES + 1), layout="constrained", dpi=_DPI)
        axes = canvas.subplots(len(shown), 1, height_ratios=heights, squeeze=False)[:, 0]
        for (panel, rows), each in zip(shown, axes, strict=True):
            _draw_panel(each, panel.title, rows)
        note = "Bars: medians; lines: all rounds; x: how many times the first bar."
        canvas.suptitle(textwrap.fill(f"{note} {conditions_text(results)}.", 170), fontsize=8)
        canvas.savefig(path)
    return True


def _draw_panel(axes: Axes, title: str, rows: Sequence[Row]) -> None:
    medians = [row.summary.median for row in rows]
    places = range(len(rows))
    axes.barh(places, medians, color=[_COLOURS[row.group] for row in rows], height=0.7)
    # The whole range of the rounds, as a line on the bar.
    for place, row in zip(places, rows, strict=True):
        axes.plot([row.summary.minimum, row.summary.maximum], [place, place], color="#1a202c", linewidth=1)
        ratio = f"  ({row.summary.median / medians[0]:.2g}x)" if medians[0] and place else ""
        axes.annotate(
            f"{number_text(row.summary.median)}{ratio}",
            (max(row.summary.maximum, row.summary.median), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(places, [_label(row) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(row.summary.maximum for row in rows) * 1.12)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)


def _label(row: Row) -> str:
    """The case without what the title says, in two lines at most."""
    case = re.sub(r"(, )?(3 copies, )?1024 B(, )?", ", ", row.summary.case).strip(", ")
    return "\n".join(textwrap.wrap(f"{_NAMES[row.group]}: {case}" if row.group != PEER else case, _LABEL_WIDTH)[:3])
