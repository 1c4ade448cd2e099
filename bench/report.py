"""What a run says: tables for the terminal, and the same as markdown for docs/contributing/performance.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.marks import MARKS, SPARK_MARKS, Verdict, judge
from bench.measure import Summary
from bench.results import Results, Row
from bench.workload import LIMIT, OWN, PEER, TRAP

TITLES = {OWN: "mirrorlog", LIMIT: "The limit of the machine", PEER: "Other systems", TRAP: "Traps of the data path"}

_RIGHT = frozenset({"min", "median", "max", "own", "others", "ours", "theirs", "ratio", "mark"})


@dataclass(frozen=True, slots=True)
class Lines:
    """A table: the names of its columns, and its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(results: Results) -> list[Lines]:
    """Of each group that was measured, the marks where anything of them was, and what was not measured."""
    found = [figures_table(TITLES[group], rows) for group in (OWN, LIMIT, PEER, TRAP) if (rows := results.rows(group))]
    verdicts = verdicts_of(results)
    if any(verdict.own is not None for verdict in verdicts):
        found.append(marks_table(verdicts))
    if errors := results.errors():
        found.append(Lines("Not measured", ("what", "why"), tuple(errors.items())))
    return found


def verdicts_of(results: Results) -> list[Verdict]:
    """The marks by these results: of the bench that made them, or all while nothing of either was measured."""
    others = [row.summary for group in (LIMIT, PEER) for row in results.rows(group)]
    own = [row.summary for row in results.rows(OWN)]
    found = [judge(marks, own, others) for marks in (MARKS, SPARK_MARKS)]
    measured = [verdicts for verdicts in found if any(each.own is not None for each in verdicts)]
    return [verdict for verdicts in measured or found for verdict in verdicts]


def figures_table(title: str, rows: Iterable[Row]) -> Lines:
    """A line per figure; the shares of all cores that its workload and everybody else took."""
    columns = ("", "case", "figure", "min", "median", "max", "unit", "own", "others")
    return Lines(title, columns, tuple(_figure_line(row) for row in rows))


def _figure_line(row: Row) -> tuple[str, ...]:
    each = row.summary
    numbers = (number_text(each.minimum), number_text(each.median), number_text(each.maximum))
    return (each.workload, each.case, each.name, *numbers, each.unit, f"{row.own:.0%}", f"{row.foreign:.0%}")


def marks_table(verdicts: Sequence[Verdict]) -> Lines:
    """A line per mark: the medians, their ratio, the mark and whether it was reached."""
    columns = ("work", "ours", "theirs", "ratio", "mark", "reached")
    return Lines("The marks", columns, tuple(_mark_line(verdict) for verdict in verdicts))


def _mark_line(verdict: Verdict) -> tuple[str, ...]:
    missing = "not measured" if verdict.ratio is None else ""
    reached = {True: "yes", False: "no", None: missing}[verdict.reached]
    ratio = "" if verdict.ratio is None or verdict.mark.other is None else f"{verdict.ratio:.2f}"
    return (
        verdict.mark.work,
        _median(verdict.own),
        _median(verdict.other),
        ratio,
        verdict.mark.wanted,
        reached,
    )


def _median(summary: Summary | None) -> str:
    return "" if summary is None else f"{number_text(summary.median)} {summary.unit}"


def number_text(value: float) -> str:
    """With as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:,.2f}"


def conditions_text(results: Results) -> str:
    """One line: version, day, machine, rounds."""
    conditions = results.conditions
    machine = conditions["machine"]
    quick = ", quick: the figures mean nothing" if conditions["quick"] else ""
    return (
        f"mirrorlog {conditions['version']}, {conditions['date']}, {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, Python {machine['python']}; "
        f"load before {conditions['load_before']}; rounds: {results.rounds}{quick}"
    )


def show(results: Results, console: Console) -> None:
    """Print all tables."""
    for lines in tables(results):
        table = Table(title=lines.title, title_justify="left", title_style="bold")
        for name in lines.columns:
            table.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
        for row in lines.rows:
            table.add_row(*row)
        console.print(table)
    console.print(conditions_text(results))


def markdown(results: Results) -> str:
    """All tables, each under a heading."""
    parts = [f"{conditions_text(results)}."]
    for lines in tables(results):
        parts.append(f"### {lines.title}")
        parts.append("\n".join(_markdown_lines(lines)))
    return "\n\n".join(parts) + "\n"


def _markdown_lines(lines: Lines) -> Iterator[str]:
    yield "| " + " | ".join(lines.columns) + " |"
    yield "|" + "|".join("---:" if name in _RIGHT else "---" for name in lines.columns) + "|"
    for row in lines.rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
