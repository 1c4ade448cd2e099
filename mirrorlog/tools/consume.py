"""`mqtool consume`: print the records of a queue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlog.tools.arguments import parse_time
from mirrorlog.tools.output import print_json_line
from mirrorlog.tools.records import record_fields, record_line
from mirrorlog.tools.session import StaleReads, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified

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
    allow_stale_reads: StaleReads = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per record.")] = False,
) -> None:
    """Print a queue's confirmed records in order: offset, time, key and value, with tabs between.

    Without --max or --until-end it goes on until Ctrl-C. With --json each record is one line; bytes that are not UTF-8
    are given as base64 under the name with `_base64` added.

    A node that is cut off from the others refuses (NOT_CURRENT), unless --allow-stale-reads is given; name that node
    in --servers and --read-from.

    Example: mqtool consume flights --from earliest --max 10 --json

    Example: mqtool --servers 10.0.0.2:7401 consume flights --read-from n2 --allow-stale-reads --until-end
    """
    write = _write_json if as_json else _write_text

    async def read(client: Client) -> None:
        await _consume(
            client, qualified(vhost, queue), start, count=count, until_end=until_end, read_from=read_from, write=write
        )

    with contextlib.suppress(KeyboardInterrupt):
        session_of(context).run(read, allow_stale_reads=allow_stale_reads)


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


def _write_text(record: ConsumedRecord) -> None:
    typer.echo(record_line(record))


def _write_json(record: ConsumedRecord) -> None:
    print_json_line(record_fields(record))
