"""`mqtool consume`: print the records of a queue."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.errors import BadInput, OffsetOutOfRange, UnsupportedVersion
from mirrorlog.tools.arguments import parse_time
from mirrorlog.tools.output import print_json_line
from mirrorlog.tools.records import record_fields, record_line
from mirrorlog.tools.session import StaleReads, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown

if TYPE_CHECKING:
    from mirrorlog.client import Client, ConsumedRecord, Consumer

_ACKING: Final = "acking"
_EARLIEST: Final = "earliest"
_LATEST: Final = "latest"
_COMMITTED: Final = "committed"
_MASTER: Final = "master"
_NEVER_US: Final = 2**62
"""An append time, µs UTC, that no record has."""


def consume(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, a queue offset, or a time (ISO 8601); earliest, or where --group stands.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="A stream group: begin where it stands.", show_default=False)
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Have --group stand behind what was printed, at the end or at Ctrl-C.")
    ] = False,
    count: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many records.")] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the last record that is confirmed now, instead of waiting.")
    ] = False,
    read_from: Annotated[
        str, typer.Option("--read-from", metavar="NODE", help="master, mirror, or a node's id.")
    ] = "master",
    tier: Annotated[
        list[str] | None,
        typer.Option(
            "--tier",
            metavar="PLACE",
            help="Read what the log has no more from a landing's table at this place, a path or URL; repeatable. "
            "Without --user from wherever the table is.",
        ),
    ] = None,
    allow_stale_reads: StaleReads = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per record.")] = False,
) -> None:
    """Print a queue's confirmed records in order: offset, time, key and value, with tabs between.

    Without --max or --until-end it goes on until Ctrl-C. With --json each record is one line; bytes that are not UTF-8
    are given as base64 under the name with `_base64` added.

    --commit makes a group that is not there; where one stands keeps no records. Groups that ack: `mqtool receive`.

    A node that is cut off from the others refuses (NOT_CURRENT), unless --allow-stale-reads is given; name that node
    in --servers and --read-from.

    Example: mqtool consume flights --from earliest --max 10 --json

    Example: mqtool consume flights --group lake --commit --until-end

    Example: mqtool --servers 10.0.0.2:7401 consume flights --read-from n2 --allow-stale-reads --until-end
    """
    if commit and not group:
        raise BadInput("--commit stores where a group stands; name it with --group")
    write = _write_json if as_json else _write_text
    name = qualified(vhost, queue)

    async def read(client: Client) -> None:
        if commit:
            await _check_stream(client, name, group or "")
        begin = await _begin(client, name, start or (_COMMITTED if group else _EARLIEST))
        if until_end and read_from == _MASTER and not allow_stale_reads:
            await _check_end(client, name, begin)
        until = "confirmed" if until_end else None
        async with client.consumer(
            name, start=begin, until=until, read_from=read_from, group=group, tiers=tier
        ) as consumer:
            await _print(consumer, count, write, commit=commit)

    with contextlib.suppress(KeyboardInterrupt):
        session_of(context).run(read, allow_stale_reads=allow_stale_reads)


async def _print(
    consumer: Consumer, count: int | None, write: Callable[[ConsumedRecord], None], *, commit: bool
) -> None:
    try:
        await _print_records(consumer, count, write)
    except asyncio.CancelledError:
        if commit:
            await _commit(consumer)
        raise
    if commit:
        await _commit(consumer)


async def _print_records(consumer: Consumer, count: int | None, write: Callable[[ConsumedRecord], None]) -> None:
    left = count
    async for record in consumer:
        write(record)
        if left is not None:
            left -= 1
            if left == 0:
                return


async def _commit(consumer: Consumer) -> None:
    """Only behind what has left this process: else a full disk there would lose records."""
    sys.stdout.flush()
    await consumer.commit()


async def _check_stream(client: Client, queue: str, group: str) -> None:
    """A group that acks has no one position. Raises BadInput."""
    try:
        found = await client.admin.groups(queue)
    except UnsupportedVersion:
        return  # the cluster has none that ack before all of its nodes are new enough
    if any(each.group == group and each.kind == _ACKING for each in found.groups):
        raise BadInput(f"group {group!r} acknowledges record by record: take from it with `mqtool receive`")


async def _check_end(client: Client, queue: str, begin: int | str) -> None:
    """A reader that has nothing before it asks no node for records, and so is not told that it may not have them, nor
    that there are none so far on. Raises AccessRefused, OffsetOutOfRange."""
    end = await client.admin.find_offset(queue, _NEVER_US, any_copy=False)
    if isinstance(begin, int) and begin > end:
        raise OffsetOutOfRange(f"queue offset {begin} is behind {end}, where what is confirmed of {shown(queue)} ends")


async def _begin(client: Client, queue: str, start: str) -> int | str:
    if start in (_EARLIEST, _LATEST, _COMMITTED):
        return start
    if start.isdecimal():
        return int(start)
    return await client.admin.find_offset(queue, parse_time(start))


def _write_text(record: ConsumedRecord) -> None:
    typer.echo(record_line(record))


def _write_json(record: ConsumedRecord) -> None:
    print_json_line(record_fields(record))
