"""What a command shows: lines and tables, as values. Where all of it fits it is written here; what has to be folded, or
coloured on a terminal, goes to rich, whose import takes as long as the rest of a simple command.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import RenderableType

_GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class Line:
    """Text, never markup: a queue's name may hold brackets. `style`: a colour, on terminals."""

    text: str = ""
    style: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Table:
    """Without a frame. The columns in `numbers` stand right, and neither they nor those in `whole` are ever folded."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    whole: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """Several, one below the other."""

    parts: Sequence[View]

    @classmethod
    def of(cls, *parts: View) -> Stack:
        return cls(parts)


View = Line | Table | Stack


def plain(view: View, columns: int) -> list[str] | None:
    """Its lines without blanks at their ends; None when something is wider than so many columns, or counts other
    columns than characters."""
    found = list(_lines(view))
    fits = all(len(line) <= columns and line.isascii() for line in found)
    return [line.rstrip() for line in found] if fits else None


def _lines(view: View) -> Iterator[str]:
    match view:
        case Line(text):
            yield from text.split("\n")
        case Stack(parts):
            for part in parts:
                yield from _lines(part)
        case Table(title, columns, rows, numbers):
            if title:
                yield title
            widths = [max(map(len, cells)) for cells in zip_longest(columns, *rows, fillvalue="")]
            for row in (columns, *rows):
                cells = zip(columns, row, widths, strict=False)
                yield _GAP.join(cell.rjust(wide) if name in numbers else cell.ljust(wide) for name, cell, wide in cells)


def as_rich(view: View) -> RenderableType:
    from rich import table
    from rich.console import Group
    from rich.text import Text

    match view:
        case Line(text, style):
            return Text(text, style=style)
        case Stack(parts):
            return Group(*map(as_rich, parts))
        case Table(title, columns, rows, numbers, whole):
            made = table.Table(
                title=title or None,
                title_justify="left",
                title_style="bold",
                box=None,
                pad_edge=False,
                padding=(0, 2, 0, 0),
            )
            for column in columns:
                number = column in numbers
                kept = number or column in whole
                made.add_column(column, justify="right" if number else "left", no_wrap=kept, overflow="fold")
            for row in rows:
                made.add_row(*(Text(cell) for cell in row))
            return made
