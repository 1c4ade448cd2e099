"""What was seen of both systems, side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from bench.compare.play import Seen

Rounds = Mapping[str, Sequence[Seen]]
"""By system: what was seen in each round."""


def rows_of(rounds: Rounds) -> dict[str, dict[str, str]]:
    """By what was seen: the cell of each system. A number is the median of its rounds, with least and most."""
    names = dict.fromkeys(what for seen in rounds.values() for each in seen for what in each)
    return {
        what: {system: _cell([each[what] for each in seen if what in each]) for system, seen in rounds.items()}
        for what in names
    }


def _cell(values: Sequence[float | str]) -> str:
    numbers = [value for value in values if isinstance(value, float)]
    if not values:
        return "-"
    if len(numbers) < len(values):
        return " / ".join(dict.fromkeys(map(str, values)))
    least, most = min(numbers), max(numbers)
    return _number(least) if least == most else f"{_number(median(numbers))} ({_number(least)} to {_number(most)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def table_of(results: Sequence[tuple[str, Rounds]], systems: Sequence[str]) -> Table:
    """`results`: title of each scenario, and what was seen in it."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", *systems):
        found.add_column(column, overflow="fold")
    for title, rounds in results:
        found.add_row(Text(title, style="bold"))
        for what, cells in rows_of(rounds).items():
            row = [f"  {what}", *(cells.get(each, "-") for each in systems)]
            found.add_row(*map(Text, row))
    return found


def markdown_of(results: Sequence[tuple[str, Rounds]], systems: Sequence[str]) -> str:
    """The same for a document."""
    lines = [f"| | {' | '.join(systems)} |", "|---" * (1 + len(systems)) + "|"]
    for title, rounds in results:
        lines.append(f"| **{title}** |{' |' * len(systems)}")
        for what, cells in rows_of(rounds).items():
            told = [cells.get(each, "-").replace("|", "\\|") for each in systems]
            lines.append(f"| {f'`{what}`' if what[0] in '[{' else what} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def fields_of(results: Sequence[tuple[str, Rounds]]) -> list[dict[str, Any]]:
    """The same for programs: every value of every round."""
    return [
        {"scenario": title, "seen": {system: list(each) for system, each in seen.items()}} for title, seen in results
    ]
