"""`mqtool consume`: print the records of a queue."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorlog.tools.arguments import parse_time
from mirrorlog.tools.output import NOTHING, print_json_line, time_text
from mirrorlog.tools.session import session_of

if TYPE_CHECKING:
    from mirrorlog.client import Client, ConsumedRecord


def consume(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    *,
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="earliest, latest, a queue offset, or a time (ISO 8601).")
    ] = "earliest",
    count: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many records.")] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the last record that is confirmed now, instead of waiting.")
    ] = False,
    read_from: Annotated[
        str, typer.Option("--read-from", metavar="NODE", help="master, mirror, or a node's id.")
    ] = "master",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per record.")] = False,
) -> None:
    """Print a queue's confirmed records in order: offset, time, key and value, with tabs between.

    Without --max or --until-end it goes on until Ctrl-C. With --json each record is one line; bytes that are not UTF-8
    are given as base64 under the name with `_base64` added.

    Example: mqtool consume flights --from earliest --max 10 --json
    """
    write = _write_json if as_json else _write_text

    async def read(client: Client) -> None:
        await _consume(client, queue, start, count=count, until_end=until_end, read_from=read_from, write=write)

    with contextlib.suppress(KeyboardInterrupt):
        session_of(context).run(read)


async def _consume(
    client: Client,
    queue: str,
    start: str,
    *,
    count: int | None,
    until_end: bool,
    read_from: str,
    write: Callable[[ConsumedRecord], None],
) -> None:
    begin = await _begin(client, queue, start)
    until = "confirmed" if until_end else None
    async with client.consumer(queue, start=begin, until=until, read_from=read_from) as consumer:
        left = count
        async for record in consumer:
            write(record)
            if left is not None:
                left -= 1
                if left == 0:
                    return


async def _begin(client: Client, queue: str, start: str) -> int | str:
    if start in ("earliest", "latest"):
        return start
    if start.isdecimal():
        return int(start)
    return await client.admin.find_offset(queue, parse_time(start))


# --- One record -----------------------------------------------------------------------------------------------------


def record_line(record: ConsumedRecord) -> str:
    """A record for people. What is not UTF-8, or would break the line, is escaped."""
    cells = [
        str(record.queue_offset),
        time_text(record.timestamp) if record.timestamp is not None else NOTHING,
        _cell(record.key),
        _cell(record.value),
    ]
    return "\t".join(cells)


def record_fields(record: ConsumedRecord) -> dict[str, Any]:
    """A record for programs. Times are µs UTC."""
    return {
        "queue": record.queue,
        "queue_offset": record.queue_offset,
        "timestamp_us": record.timestamp,
        "append_time_us": record.append_time_us,
        **_bytes_field("key", record.key),
        **_bytes_field("value", record.value),
        "headers": [{"name": name, **_bytes_field("value", value)} for name, value in record.headers],
    }


def _write_text(record: ConsumedRecord) -> None:
    typer.echo(record_line(record))


def _write_json(record: ConsumedRecord) -> None:
    print_json_line(record_fields(record))


def _cell(content: bytes | memoryview | None) -> str:
    if content is None:
        return NOTHING
    text = bytes(content).decode("utf-8", errors="backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _bytes_field(name: str, content: bytes | memoryview | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    plain = bytes(content)
    try:
        return {name: plain.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(plain).decode("ascii")}
