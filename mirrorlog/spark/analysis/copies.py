"""The picture of an audit: a bar per copy over the queue's offsets, and on it where something is the matter.

What is the matter may be one batch of millions, so each place is drawn at least a hair wide, and marked above the bar.
Every state has a hatch of its own beside its colour (those of `plots`, which people see apart whatever they see).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mirrorlog.errors import MissingDependency
from mirrorlog.spark.checks.copy_audit import Audit, Finding, State

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_EQUAL: Final = "#56B4E9"
_LOOKS: Final = {
    State.DIFFERS: ("#D55E00", "///"),
    State.DAMAGED: ("#000000", "xxx"),
    State.UNREAD: ("#E69F00", "..."),
    State.BEHIND: ("#CC79A7", "\\\\\\"),
}
_BAR: Final = 0.5
_HAIR: Final = 1 / 400
"""Of the axis: the least that a place is wide."""
_DPI: Final = 110


def draw_copies(audit: Audit) -> Figure:
    """The picture. Raises MissingDependency without matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import StrMethodFormatter
    except ImportError as error:
        raise MissingDependency(f"pictures need matplotlib ({error}): pip install 'mirrorlog[analysis]'") from None
    nodes = nodes_of(audit)
    figure = Figure(figsize=(9, 1.6 + 0.5 * max(1, len(nodes))), layout="constrained", dpi=_DPI)
    axes = figure.subplots()
    verdict = "all equal" if audit.equal else "NOT ALL EQUAL"
    axes.set_title(f"queue {audit.queue}: {len(nodes)} copies, {verdict}", loc="left", fontsize=12, fontweight="bold")
    for place, node in enumerate(nodes):
        _draw_copy(axes, audit, place, node)
    axes.set_yticks(range(len(nodes)), [_label(audit, node) for node in nodes])
    axes.invert_yaxis()
    axes.set_xlim(audit.first, max(audit.next, audit.first + 1))
    axes.set_xlabel("queue offset")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _legend(figure, {finding.state for finding in audit.findings})
    return figure


def nodes_of(audit: Audit) -> list[str]:
    """Every node that has or should have a copy: the master first, and those without one behind."""
    return list(dict.fromkeys([*(copy.node for copy in audit.copies), *(each.node for each in audit.findings)]))


def _label(audit: Audit, node: str) -> str:
    master = any(copy.node == node and copy.is_master for copy in audit.copies)
    return f"{node} (master)" if master else node


def _draw_copy(axes: Axes, audit: Audit, place: int, node: str) -> None:
    for copy in audit.copies:
        first, end = max(copy.begin, audit.first), min(copy.next, audit.next)
        if copy.node == node and first < end:
            axes.barh(place, end - first, left=first, height=_BAR, color=_EQUAL)
    for finding in _of(audit.findings, node):
        colour, hatch = _LOOKS[finding.state]
        width = max(finding.next - finding.first, (audit.next - audit.first) * _HAIR)
        axes.barh(
            place, width, left=finding.first, height=_BAR, color="white", edgecolor=colour, hatch=hatch, linewidth=1.2
        )
        axes.plot([finding.first + width / 2], [place - _BAR * 0.72], marker="v", color=colour, markersize=5)


def _of(findings: Iterable[Finding], node: str) -> list[Finding]:
    return [each for each in findings if each.node == node]


def _legend(figure: Figure, states: set[State]) -> None:
    from matplotlib.patches import Patch

    shown = [Patch(facecolor=_EQUAL, label="the same bytes")]
    shown += [
        Patch(facecolor="white", edgecolor=colour, hatch=hatch, label=state.value)
        for state, (colour, hatch) in _LOOKS.items()
        if state in states
    ]
    figure.legend(handles=shown, loc="outside lower center", ncols=len(shown), frameon=False, fontsize=9)
