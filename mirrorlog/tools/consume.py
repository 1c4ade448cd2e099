"""`mqtool consume`, `mqtool tail`: print the records of a queue; or the last batches of a log directory, offline."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.log_directory import LogDirectory, SegmentFile, read_log_directory
from mirrorlog.diagnosis.cells import parse_time
from mirrorlog.errors import BadInput, OffsetOutOfRange, UnsupportedVersion
from mirrorlog.tools.common.options import OptionalQueue, QueueName, ReadFrom, RecordsAsJson, StaleReads, VirtualHost
from mirrorlog.tools.common.output import print_json_line
from mirrorlog.tools.common.records import record_writer
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.offline.batch_view import CHANGES, TITLE, batch_fields, batch_lines
from mirrorlog.tools.offline.dump import end_fields, end_lines
from mirrorlog.tools.offline.log_directory import find_log
from mirrorlog.tools.offline.survey import Survey, survey
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

_LINES_MAX: Final = 1_000_000


def consume(
    context: typer.Context,
    queue: QueueName,
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
    read_from: ReadFrom = "master",
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
    as_json: RecordsAsJson = False,
) -> None:
    """Print a queue's confirmed records in order: offset, time, key and value, with tabs between.

    Without --max or --until-end it goes on until Ctrl-C. With --json each record is one line; bytes that are not UTF-8
    are given as base64 under the name with `_base64` added.

    --commit makes a group that is not there; where one stands keeps no records. With it this is the group's reader, and
    refused while there is another one. Groups that ack: `mqtool receive`.

    A node that is cut off from the others refuses (NOT_CURRENT), unless --allow-stale-reads is given; name that node
    in --servers and --read-from.

    Example: mqtool consume flights --from earliest --max 10 --json

    Example: mqtool consume flights --group lake --commit --until-end

    Example: mqtool consume flights --allow-stale-reads -s b:7401
    """
    if commit and not group:
        raise BadInput("--commit stores where a group stands; name it with --group")
    write = record_writer(as_json)
    name = qualified(vhost, queue)

    async def read(client: Client) -> None:
        if commit:
            await _check_stream(client, name, group or "")
        begin = await _start_of(client, name, start or (_COMMITTED if group else _EARLIEST))
        if begin == _COMMITTED and group and not commit:  # a look, beside whoever reads as this group
            stored = await client.admin.position(name, group)
            begin = _EARLIEST if stored is None else stored.queue_offset
        if until_end and read_from == _MASTER and not allow_stale_reads:
            await _check_end(client, name, begin)
        until = "confirmed" if until_end else None
        async with client.consumer(
            name,
            start=begin,
            until=until,
            read_from=read_from,
            group=group if commit else None,
            tiers=tier,
            outage_timeout_ms=client.request_timeout_ms,
        ) as consumer:
            await _print(consumer, count, write, commit=commit)

    with contextlib.suppress(KeyboardInterrupt):
        session_of(context).run(read, allow_stale_reads=allow_stale_reads, records=True)


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


async def _start_of(client: Client, queue: str, start: str) -> int | str:
    if start in (_EARLIEST, _LATEST, _COMMITTED):
        return start
    if start.isdecimal():
        return int(start)
    return await client.admin.find_offset(queue, parse_time(start))


def tail(
    context: typer.Context,
    queue: OptionalQueue = None,
    *,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", exists=True, file_okay=False, help="Offline: a log's or node's directory instead."
        ),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=_LINES_MAX, help="So many of the last records, or batches.")
    ] = 10,
    follow: Annotated[
        bool | None,
        typer.Option("--follow/--no-follow", "-f/-F", help="Go on with new records; the default for a queue."),
    ] = None,
    read_from: ReadFrom = "master",
    allow_stale_reads: StaleReads = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per record or batch.")] = False,
) -> None:
    """Print the last confirmed records of a queue, then new ones as they are confirmed, until Ctrl-C.

    Records look as those of `mqtool consume`. With --dir it prints the last batches of a log directory as `mqtool dump`
    does, and ends; changes nothing, the node may run.

    Example: mqtool tail flights --lines 20 --no-follow
    """
    if (queue is None) == (directory is None):
        raise BadInput("give a queue, or a log directory with --dir, not both")
    if directory is not None:
        if follow:
            raise BadInput("a directory is not followed; leave --follow out, or give the queue's name")
        _tail_directory(read_log_directory(find_log(directory)), lines, as_json=as_json)
        return
    assert queue is not None
    name, write = qualified(vhost, queue), record_writer(as_json)
    on = follow is None or follow

    async def read(client: Client) -> None:
        await _while_stdout_is_read(_tail_queue(client, name, lines, follow=on, read_from=read_from, write=write))

    with contextlib.suppress(KeyboardInterrupt):
        session_of(context).run(read, allow_stale_reads=allow_stale_reads, records=True)


# --- A queue ----------------------------------------------------------------------------------------------------------


async def _tail_queue(
    client: Client, queue: str, lines: int, *, follow: bool, read_from: str, write: Callable[[ConsumedRecord], None]
) -> None:
    until = None if follow else "confirmed"
    async with client.consumer(
        queue, start="latest", until=until, read_from=read_from, outage_timeout_ms=client.request_timeout_ms
    ) as consumer:
        info = await client.queue_info(queue)
        await consumer.seek(max(info.begin, consumer.position.queue_offset - lines))
        async for record in consumer:
            write(record)


async def _while_stdout_is_read(work: Coroutine[Any, Any, None]) -> None:
    """Do `work`. Raises BrokenPipeError when the other end of the pipe at stdout is closed: perhaps no new record ever
    comes to find that out."""
    closed = asyncio.Event()
    working, waiting = asyncio.create_task(work), asyncio.create_task(closed.wait())
    with _watched(closed):
        try:
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            if not working.done():
                working.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await working
    if working.cancelled():
        raise BrokenPipeError
    working.result()


@contextlib.contextmanager
def _watched(closed: asyncio.Event) -> Iterator[None]:
    """Set `closed` when nobody reads stdout, if that is a pipe: its own end becomes readable then."""
    try:
        fd = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
    except (OSError, ValueError):  # stdout is no file
        is_pipe = False
    if not is_pipe:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, closed.set)
    try:
        yield
    finally:
        loop.remove_reader(fd)


# --- A directory ------------------------------------------------------------------------------------------------------


class _Last(NamedTuple):
    """The last batches, data without its body, and where the walk over them ended."""

    batches: list[tuple[BatchHeader, memoryview]]
    found: Survey


def _tail_directory(log: LogDirectory, lines: int, *, as_json: bool) -> None:
    last = _last_batches(log, lines)
    if as_json:
        for fields in [*(batch_fields(*batch) for batch in last.batches), end_fields(log, last.found)]:
            print_json_line(fields)
        return
    shown = [line for batch in last.batches for line in batch_lines(*batch)]
    for line in [f"log {log.name} ({log.log_id}) in {log.path}", TITLE, *shown, *end_lines(log, last.found)]:
        typer.echo(line)


def _last_batches(log: LogDirectory, lines: int) -> _Last:
    """From the last file on, from twice as many each time until there are enough batches."""
    segments = log.holding
    count = 1
    while True:
        last = _walk(log, segments[-count:], lines)
        if len(last.batches) >= lines or count >= len(segments):
            return last
        count *= 2


def _walk(log: LogDirectory, segments: Sequence[SegmentFile], lines: int) -> _Last:
    kept: deque[tuple[BatchHeader, memoryview]] = deque(maxlen=lines)

    def keep(header: BatchHeader, batch: memoryview) -> None:
        kept.append((header, memoryview(bytes(batch) if header.kind in CHANGES else b"")))

    first = max(log.begin, segments[0].start) if segments else log.begin
    found = survey(log, keep, segments=segments, first=first)
    return _Last(list(kept), found)
