"""`mqtool publish`: put records into a queue by hand."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mirrorlog.errors import BadInput, MirrorlogError, Overloaded
from mirrorlog.tools.arguments import parse_pair
from mirrorlog.tools.lines import read_lines
from mirrorlog.tools.output import print_json
from mirrorlog.tools.records import GivenRecord, parse_record
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.wire.frames import Level

if TYPE_CHECKING:
    from mirrorlog.client import Client, Delivery, Producer, Receipt


class Published(msgspec.Struct, kw_only=True):
    """What --json prints: how many records were confirmed, their first and last queue offset, the fewest copies."""

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


def publish(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
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
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The key of every record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every record. Repeatable.")
    ] = None,
    confirm: Annotated[
        str, typer.Option(metavar="LEVEL", help="none, master, one, majority, all, or a number of copies.")
    ] = "all",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="How long a record is tried before it fails.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Publish records and wait until they are confirmed.

    When an error ends it, what was confirmed before is still printed. --records keeps each record's own value, key,
    headers and timestamp; they get new queue offsets.

    Example: mqtool publish flights --value hello --key UA1545 --header row=1 --confirm majority
    """
    if [bool(value), file is not None, records is not None].count(True) != 1:
        raise BadInput("give the records with --value (as often as needed), with --file or with --records, not both")
    if records is not None and (key is not None or header):
        raise BadInput("--records has each record's own key and headers; leave --key and --header out")
    Level.parse(confirm)
    own = GivenRecord(None, None if key is None else os.fsencode(key), [_header(text) for text in header or []], None)
    given = _values(value or [], file, own) if records is None else _records(records)
    published = Published(queue=queue)

    async def send(client: Client) -> None:
        async with client.producer(queue, confirm=_level(confirm), delivery_timeout_ms=int(timeout * 1000)) as producer:
            await _send_all(producer, given, published)

    try:
        session_of(context).run(send)
    except MirrorlogError:
        if published.records:
            _print(published, as_json)
        raise
    _print(published, as_json)


def _header(text: str) -> tuple[str, bytes]:
    name, value = parse_pair(text, "--header")
    return name, os.fsencode(value)


def _level(confirm: str) -> str | int:
    return int(confirm) if confirm.isdecimal() else confirm


async def _values(values: Sequence[str], file: Path | None, own: GivenRecord) -> AsyncIterator[GivenRecord]:
    """The bytes that were typed, or the lines of the file; all else as in `own`."""
    for value in values:
        yield own._replace(value=os.fsencode(value))
    if file is not None:
        async for line in _lines(file):
            yield own._replace(value=line)


async def _records(file: Path) -> AsyncIterator[GivenRecord]:
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


async def _send_all(producer: Producer, records: AsyncIterator[GivenRecord], published: Published) -> None:
    """Keep the producer's window full; receipts are taken in the order of the records."""
    waiting: deque[Delivery] = deque()
    try:
        async for record in records:
            waiting.append(await _hand_over(producer, record))
            while waiting and waiting[0].done():
                published.add(waiting.popleft().result())
    finally:
        await _count(waiting, published)


async def _count(waiting: deque[Delivery], published: Published) -> None:
    """Wait for all that was handed over. Raises the first error, once the rest has ended too."""
    failure: MirrorlogError | None = None
    while waiting:
        try:
            published.add(await waiting.popleft())
        except MirrorlogError as error:
            failure = failure or error
    if failure is not None:
        raise failure


async def _hand_over(producer: Producer, record: GivenRecord) -> Delivery:
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


def _print(published: Published, as_json: bool) -> None:
    if as_json:
        print_json(published)
    elif published.records:
        records = "1 record" if published.records == 1 else f"{published.records} records"
        typer.echo(
            f"{records} confirmed in {published.queue}: queue offsets {published.first} to {published.last}, "
            f"copies {published.copies}"
        )
    else:
        typer.echo("no records were given")
