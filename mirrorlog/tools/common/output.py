"""How results are written: tables for people, JSON for programs, both to stdout.

A table has no frame and no colour that carries meaning, so it can be cut and searched; where the output is no
terminal it is 100 columns wide.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from mirrorlog.tools.common.views import Line, Stack, Table, View, as_rich, plain
from mirrorlog.wire.messages.queues import QueueOutage

if TYPE_CHECKING:
    from rich.console import Console

PAGE_COLUMNS: Final = 100

_JSON: Final = msgspec.json.Encoder(enc_hook=str)


def show(view: View) -> None:
    """Print `view` to stdout. A terminal narrower than 100 columns wraps lines itself: no number is ever cut."""
    if sys.stdout.isatty():
        terminal_console(PAGE_COLUMNS).print(as_rich(view))
    else:
        sys.stdout.write(page(view))


def emit(as_json: bool, fields: Any, view: View | str) -> None:
    """A command's result: `fields` as JSON for programs, else `view` for people, a line of text or tables."""
    if as_json:
        print_json(fields)
    elif isinstance(view, str):
        typer.echo(view)
    else:
        show(view)


def page(view: View, columns: int = PAGE_COLUMNS) -> str:
    """`view` as plain text, without the blanks at the ends of lines."""
    lines = plain(view, columns)
    if lines is None:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=columns, highlight=False, color_system=None).print(as_rich(view))
        lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "".join(f"{line}\n" for line in lines)


def terminal_console(columns_min: int = 0) -> Console:
    """For stdout as it is now, as wide as its terminal."""
    from rich.console import Console

    columns = shutil.get_terminal_size((PAGE_COLUMNS, 24)).columns
    return Console(file=sys.stdout, width=max(columns, columns_min), highlight=False)


def print_json(value: Any) -> None:
    """`value` (structs, lists, mappings) as indented JSON."""
    sys.stdout.write(msgspec.json.format(_JSON.encode(value), indent=2).decode() + "\n")


def print_json_line(value: Any) -> None:
    """`value` as one line of JSON, at once: for streams."""
    sys.stdout.write(_JSON.encode(value).decode() + "\n")
    sys.stdout.flush()


def emit_with_outages(
    as_json: bool,
    rows: Sequence[Any],
    view: View,
    outages: Sequence[QueueOutage],
    known: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """A list, and below it the queues of which no node can tell what it lists, each with the reason; in JSON they have
    `outage` in place of what a node would tell. `known`: what programs are told of them besides, by name."""
    lost = [{**outage_fields(outage), **known.get(outage.name, {})} for outage in outages]
    emit(as_json, [*rows, *lost], Stack.of(view, *outages_view(outages)))


def outages_view(outages: Sequence[QueueOutage]) -> list[Line]:
    """Why queues cannot be asked for now, a line each; nothing when there are none. Pure."""
    return [Line(f"\n{outages[0].reason}"), *(Line(outage.reason) for outage in outages[1:])] if outages else []


def outage_fields(outage: QueueOutage) -> dict[str, Any]:
    """The same for programs. Pure."""
    told = {"node": outage.node, "since_us": outage.since_us, "reason": outage.reason}
    return {"name": outage.name, "log_id": outage.log_id, "outage": told}


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Iterable[str] = (),
    whole: Collection[str] = (),
) -> Table:
    """A table without a frame; the columns in `numbers` stand right, and neither they nor those in `whole` are ever
    wrapped."""
    return Table(title, columns, [tuple(row) for row in rows], frozenset(numbers), whole)


def cell_text(value: Any) -> str:
    """A value as RabbitMQ's lists have it: texts as they are, all else as JSON; lists without quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


def yes_no(answer: bool) -> str:
    return "yes" if answer else "NO"
