"""`mqtool publish`: put records into a queue, or to an exchange, by hand."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

import msgspec
import typer

from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, asked_attributes
from mirrorlog.config import RECORD_BYTES_MAX
from mirrorlog.errors import BadInput, MirrorlogError, Overloaded
from mirrorlog.tools.common.options import AsJson, OptionalQueue, VirtualHost, parse_pair
from mirrorlog.tools.common.output import print_json
from mirrorlog.tools.common.records import Header, ParsedRecord, parse_record
from mirrorlog.tools.common.session import ToolSession, session_of
from mirrorlog.wire.frames import Level
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified

if TYPE_CHECKING:
    from mirrorlog.client import Client, Delivery, Producer, Publication, Publisher, Receipt
    from mirrorlog.client import Published as Routed

LINE_BYTES_MAX: Final = RECORD_BYTES_MAX
"""The most that a node's `max_record_bytes` may be set to."""

_CHUNK_BYTES: Final = 64 * 1024
_CHUNKS_AHEAD: Final = 16

_Chunks = asyncio.Queue[bytes | OSError]

_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


class QueueTotals(msgspec.Struct, kw_only=True):
    """What --json prints of a queue: how many records were confirmed, their first and last queue offset, the fewest
    copies."""

    queue: str
    records: int = 0
    first: int | None = None
    last: int | None = None
    copies: int | None = None

    def add(self, receipt: Receipt) -> None:
        self.records += 1
        self.first = receipt.queue_offset if self.first is None else min(self.first, receipt.queue_offset)
        self.last = receipt.queue_offset if self.last is None else max(self.last, receipt.queue_offset)
        self.copies = receipt.copies if self.copies is None else min(self.copies, receipt.copies)


class ExchangeTotals(msgspec.Struct, kw_only=True):
    """What --json prints of an exchange. `records`: that were confirmed; `unroutable`: that led to no queue."""

    exchange: str
    records: int = 0
    unroutable: int = 0
    queues: list[QueueTotals] = []

    def add(self, routed: Routed) -> None:
        self.records += routed.routed
        self.unroutable += not routed.routed
        known = {each.queue: each for each in self.queues}
        for queue, receipt in routed.receipts.items():
            if queue not in known:
                self.queues.append(known.setdefault(queue, QueueTotals(queue=queue)))
            known[queue].add(receipt)


@dataclass(frozen=True, slots=True)
class _Destination:
    """Where records go, and when one counts as confirmed. `exchange`: None for a queue of that name."""

    queue: str
    exchange: str | None
    vhost: str
    mandatory: bool
    confirm: str | int | None
    timeout_ms: int


def publish(
    context: typer.Context,
    queue: OptionalQueue = None,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[VALUE]...", help="Records' values.", show_default=False)
    ] = None,
    *,
    value: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A record's value. Repeatable.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE|-", help="A record per line; - for stdin.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records", metavar="FILE|-", help="Records as `consume --json` and `dump --records` print them."
        ),
    ] = None,
    exchange: Annotated[
        str | None,
        typer.Option(
            "--exchange", metavar="NAME", help="In place of a queue; empty for the default one. --key is routed by."
        ),
    ] = None,
    mandatory: Annotated[
        bool, typer.Option("--mandatory", help="A record that leads to no queue is an error, and not dropped.")
    ] = False,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The key of every record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every record. Repeatable.")
    ] = None,
    priority: Annotated[int, typer.Option(metavar="0..255", help="Of every record; higher ones first.")] = 0,
    ttl_ms: Annotated[
        int | None, typer.Option("--ttl-ms", metavar="MS", help="How long every record may wait before it expires.")
    ] = None,
    delay_ms: Annotated[
        int, typer.Option("--delay-ms", metavar="MS", help="How long every record is kept before it is given out.")
    ] = 0,
    confirm: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="none, master, one, majority, all, or a number of copies; else as the queue's policy says, or all.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="How long a record is tried before it fails.")
    ] = 30.0,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: AsJson = False,
) -> None:
    """Publish records to a queue or an exchange, and wait until they are confirmed, by every queue that they lead to.

    Without any record on the command line they are read from stdin, one a line, unless that is a terminal.
    When an error ends it, what was confirmed before is still printed. --records keeps each record's own value, key,
    headers, timestamp, priority and times; they get new queue offsets, and are routed by their keys.

    Example: mqtool publish flights hello --key UA1545 --confirm majority

    Example: mqtool publish flights < flights.txt

    Example: mqtool publish --exchange flights --key UA.1545.late --mandatory --priority 3 --value hello
    """
    typed = [*(values or ()), *(value or ())]
    if exchange is not None and queue is not None:
        typed, queue = [queue, *typed], None  # with an exchange all that stands alone is a record
    if (queue is None) == (exchange is None):
        raise BadInput("give a queue, or an exchange with --exchange")
    if mandatory and exchange is None:
        raise BadInput("--mandatory is for --exchange: a queue is there or it is an error")
    if not typed and file is None and records is None and not sys.stdin.isatty():
        file = Path("-")
    if [bool(typed), file is not None, records is not None].count(True) != 1:
        raise BadInput("give the records behind the queue, with --file or with --records, not both; or by a pipe")
    attributes = asked_attributes(priority, ttl_ms, delay_ms) or NO_ATTRIBUTES
    if records is not None and (key is not None or header or attributes != NO_ATTRIBUTES):
        raise BadInput("--records has each record's own key, headers, priority and times; leave those options out")
    headers: list[Header] = [_header(text) for text in header or []]
    own = ParsedRecord(None, None if key is None else os.fsencode(key), headers, None, attributes)
    given = _values(typed, file, own) if records is None else _records(records)
    if confirm is not None:
        Level.parse(confirm)
    level = int(confirm) if confirm is not None and confirm.isdecimal() else confirm
    to = _Destination(queue or "", exchange, vhost, mandatory, level, int(timeout * 1000))
    _publish(session_of(context), to, given, as_json=as_json)


def _publish(session: ToolSession, to: _Destination, given: AsyncIterator[ParsedRecord], *, as_json: bool) -> None:
    to_queue = QueueTotals(queue=to.queue)
    to_exchange = ExchangeTotals(exchange=to.exchange or "")

    async def send(client: Client) -> None:
        if to.exchange is None:
            await _send(client, to, given, to_queue)
        else:
            await _route(client, to, given, to_exchange)

    published = to_queue if to.exchange is None else to_exchange
    try:
        session.run(send, records=True)
    except MirrorlogError:
        if published.records or to_exchange.unroutable:
            _print(published, as_json)
        raise
    _print(published, as_json)


async def _send(client: Client, to: _Destination, given: AsyncIterator[ParsedRecord], published: QueueTotals) -> None:
    """To a queue."""
    name = qualified(to.vhost, to.queue)
    async with client.producer(name, confirm=to.confirm, delivery_timeout_ms=to.timeout_ms) as producer:
        await send_all(given, partial(_to_queue, producer), published.add)


async def _route(
    client: Client, to: _Destination, given: AsyncIterator[ParsedRecord], published: ExchangeTotals
) -> None:
    """To an exchange."""
    async with client.publisher(
        to.exchange or "",
        virtual_host=to.vhost,
        mandatory=to.mandatory,
        confirm=to.confirm,
        delivery_timeout_ms=to.timeout_ms,
    ) as publisher:
        await send_all(given, partial(_to_exchange, publisher), published.add)


def _header(text: str) -> tuple[str, bytes]:
    name, value = parse_pair(text, "--header")
    return name, os.fsencode(value)


async def _values(values: Sequence[str], file: Path | None, own: ParsedRecord) -> AsyncIterator[ParsedRecord]:
    """The bytes that were typed, or the lines of the file; all else as in `own`."""
    for value in values:
        yield own._replace(value=os.fsencode(value))
    if file is not None:
        async for line in _lines(file):
            yield own._replace(value=line)


async def _records(file: Path) -> AsyncIterator[ParsedRecord]:
    async for line in _lines(file):
        if line.strip():
            yield parse_record(line)


async def _lines(file: Path) -> AsyncIterator[bytes]:
    if str(file) == "-":
        async for line in read_lines(sys.stdin.fileno()):
            yield line
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from None
    with opened:
        async for line in read_lines(opened.fileno()):
            yield line


async def _to_queue(producer: Producer, record: ParsedRecord) -> Delivery:
    """Wait for room in the window, not for the confirm."""
    while True:
        try:
            return producer.send_nowait(
                record.value,
                key=record.key,
                headers=record.headers,
                timestamp=record.timestamp_us,
                **record.attributes._asdict(),
            )
        except Overloaded:
            await producer.room()


async def _to_exchange(publisher: Publisher, record: ParsedRecord) -> Publication:
    """The same, routed by the record's key."""
    try:
        routing_key = (record.key or b"").decode()
    except UnicodeDecodeError:
        raise BadInput(f"key {record.key!r:.64} is no UTF-8, and nothing to route by") from None
    return await publisher.hand_over(
        routing_key,
        record.value,
        key=record.key,
        headers=record.headers,
        timestamp=record.timestamp_us,
        **record.attributes._asdict(),
    )


def _print(published: QueueTotals | ExchangeTotals, as_json: bool) -> None:
    if as_json:
        print_json(published)
        return
    queues = published.queues if isinstance(published, ExchangeTotals) else [published] if published.records else []
    for each in queues:
        typer.echo(
            f"{_counted(each.records)} confirmed in {each.queue}: queue offsets {each.first} to {each.last}, "
            f"copies {each.copies}"
        )
    if isinstance(published, ExchangeTotals) and published.unroutable:
        dropped = "was dropped" if published.unroutable == 1 else "were dropped"
        typer.echo(f"{_counted(published.unroutable)} led to no queue and {dropped}")
    elif not queues:
        typer.echo("no records were given")


def _counted(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"


class InFlight(Protocol[_T_co]):
    """A record on its way: a producer's Delivery, a publisher's Publication."""

    def done(self) -> bool: ...
    def result(self) -> _T_co: ...
    def __await__(self) -> Generator[Any, None, _T_co]: ...


async def send_all(
    records: AsyncIterator[ParsedRecord],
    hand_over: Callable[[ParsedRecord], Awaitable[InFlight[_T]]],
    ended: Callable[[_T], None],
) -> None:
    """`hand_over` waits for room, not for the confirm; `ended` is told of each that was confirmed, in their order.
    Raises the first error, once all others have ended too."""
    waiting: deque[InFlight[_T]] = deque()
    try:
        async for record in records:
            waiting.append(await hand_over(record))
            while waiting and waiting[0].done():
                ended(waiting.popleft().result())
    finally:
        await _hear(waiting, ended)


async def _hear(waiting: deque[InFlight[_T]], ended: Callable[[_T], None]) -> None:
    failure: MirrorlogError | None = None
    while waiting:
        try:
            ended(await waiting.popleft())
        except MirrorlogError as error:
            failure = failure or error
    if failure is not None:
        raise failure


async def read_lines(fd: int) -> AsyncIterator[bytes]:
    """The lines of a file, a pipe or a terminal, without holding up the event loop while none come: each without its
    line feed; the last one counts without one too. Raises BadInput.

    A thread of its own reads, since a read from a pipe can take for ever. It is a daemon and uses `os.read`: Ctrl-C
    ends the program at once, where an executor's thread, or the lock of a buffered stdin, would have to be waited for.
    """
    rest = bytearray()
    async for chunk in _chunks(fd):
        *lines, tail = chunk.split(b"\n")
        for line in lines:
            rest += line
            yield bytes(rest)
            rest.clear()
        rest += tail
        if len(rest) > LINE_BYTES_MAX:
            raise BadInput(f"a line is longer than {LINE_BYTES_MAX} bytes; no node takes a record of that size")
    if rest:
        yield bytes(rest)


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    chunks: _Chunks = asyncio.Queue(_CHUNKS_AHEAD)
    threading.Thread(target=_read, args=(fd, asyncio.get_running_loop(), chunks), daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise BadInput(f"the input cannot be read: {chunk.strerror}")
        yield chunk


def _read(fd: int, loop: asyncio.AbstractEventLoop, chunks: _Chunks) -> None:
    """Until the end, which is an empty chunk, or until the loop has gone."""
    while True:
        chunk: bytes | OSError
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except OSError as error:
            chunk = error
        put = chunks.put(chunk)
        try:
            asyncio.run_coroutine_threadsafe(put, loop).result()
        except (RuntimeError, CancelledError):  # the loop is closed, or closing: nobody reads on
            put.close()
            return
        if not isinstance(chunk, bytes) or not chunk:
            return
