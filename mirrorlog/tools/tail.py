"""`mqtool tail`: the last records of a queue, and those that come; or the last batches of a log directory, offline."""

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
from mirrorlog.errors import BadInput
from mirrorlog.tools.offline.batch_view import TITLE, batch_fields, batch_lines
from mirrorlog.tools.offline.changes import CHANGES
from mirrorlog.tools.offline.dump import end_fields, end_lines
from mirrorlog.tools.offline.log_directory import LogDirectory, SegmentFile, find_log, read_log_directory
from mirrorlog.tools.offline.survey import Survey, survey
from mirrorlog.tools.output import print_json_line
from mirrorlog.tools.records import record_fields, record_line
from mirrorlog.tools.session import StaleReads, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified

if TYPE_CHECKING:
    from mirrorlog.client import Client, ConsumedRecord

_LINES_MAX: Final = 1_000_000


def tail(
    context: typer.Context,
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="The queue's name.", show_default=False)
    ] = None,
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
    read_from: Annotated[
        str, typer.Option("--read-from", metavar="NODE", help="master, mirror, or a node's id.")
    ] = "master",
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
    name, write = qualified(vhost, queue), _write_json if as_json else _write_text
    on = follow is None or follow

    async def read(client: Client) -> None:
        await _while_stdout_is_read(_tail_queue(client, name, lines, follow=on, read_from=read_from, write=write))

    with contextlib.suppress(KeyboardInterrupt):
        session_of(context).run(read, allow_stale_reads=allow_stale_reads)


# --- A queue ----------------------------------------------------------------------------------------------------------


async def _tail_queue(
    client: Client, queue: str, lines: int, *, follow: bool, read_from: str, write: Callable[[ConsumedRecord], None]
) -> None:
    until = None if follow else "confirmed"
    async with client.consumer(queue, start="latest", until=until, read_from=read_from) as consumer:
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


def _write_text(record: ConsumedRecord) -> None:
    typer.echo(record_line(record))


def _write_json(record: ConsumedRecord) -> None:
    print_json_line(record_fields(record))


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
