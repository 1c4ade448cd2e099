"""`mqtool receive`: take records of a queue's group, and settle them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mirrorlog.errors import BadInput, NoSuchGroup
from mirrorlog.tools.output import print_json_line
from mirrorlog.tools.records import record_fields, record_line
from mirrorlog.tools.session import VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown, split

if TYPE_CHECKING:
    from mirrorlog.client import Client, Delivered, Leased, Subscription

_ACKING: Final = "acking"
_PREFETCH: Final = 1_000
_WAIT_S: Final = 1.0

_Write = Callable[["Delivered"], None]


def receive(  # noqa: PLR0917  (typer makes them options, nobody passes them by position)
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    group: Annotated[str, typer.Option("--group", help="An acking group; by default the queue's own.")] = "",
    create: Annotated[bool, typer.Option("--create", help="Make the group if it is not there.")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Stop after this many records.")] = None,
    wait: Annotated[
        float | None, typer.Option("--wait", min=0, metavar="SECONDS", help="Stop when none came for so long.")
    ] = None,
    nack: Annotated[bool, typer.Option("--nack", help="Give them back, counted, instead of acknowledging.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Declare them dead instead of acknowledging.")] = False,
    peek: Annotated[bool, typer.Option("--peek", help="Give them back as if nobody had seen them.")] = False,
    delay_ms: Annotated[
        int, typer.Option("--delay-ms", min=0, metavar="MS", help="With --nack: before they may come again.")
    ] = 0,
    prefetch: Annotated[
        int, typer.Option("--prefetch", min=1, help="So many at most are this reader's and not settled.")
    ] = _PREFETCH,
    priority: Annotated[int, typer.Option("--priority", help="Readers with a higher one are served first.")] = 0,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="Nobody else may take from the group.")] = False,
    read_from: Annotated[
        str, typer.Option("--read-from", metavar="NODE", help="For the bytes: master, mirror, nearest or a node's id.")
    ] = "master",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per record.")] = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Take records that wait in a queue, print them, and acknowledge each behind its line.

    A record is printed once it is this reader's: others do not get it meanwhile. What was printed before an error or
    Ctrl-C, and is not acknowledged yet, comes again. To read a queue and change nothing: `mqtool consume`.

    A group that is made takes part from then on: what nobody settles in it is kept for it, or expires. So one that is
    not there is an error, which names those that are, unless --create is given. The queue's own group needs no word.

    Without --count or --wait it goes on until Ctrl-C. With --nack and --peek it ends when none came for a second, or at
    1000 records (or --prefetch), and then gives all of them back.

    Example: mqtool receive flights --count 10 --json

    Example: mqtool receive flights --peek

    Example: mqtool receive flights --group billing --create
    """
    if sum((nack, reject, peek)) > 1:
        raise BadInput("--nack, --reject and --peek exclude each other")
    if delay_ms and not nack:
        raise BadInput("--delay-ms is for what --nack gives back")
    held = nack or peek
    limit = min(count or prefetch, prefetch) if held else count
    wait_s = _WAIT_S if held and wait is None else wait
    write = _write_json if as_json else _write_text

    async def take(client: Client) -> None:
        name = qualified(vhost, queue)
        try:
            async with client.subscribe(
                name,
                group,
                prefetch=min(limit or prefetch, prefetch),
                priority=priority,
                exclusive=exclusive,
                read_from=read_from,
                name="mqtool",
                create=create,
            ) as subscription:
                taken = await _take(subscription, limit, wait_s, write=write, reject=reject, held=held)
                for each in taken:
                    if peek:
                        each.release_nowait()
                    else:
                        each.nack_nowait(delay_ms=delay_ms)
                await subscription.flush()
        except NoSuchGroup:
            raise await no_such_group(client, name, group) from None

    with contextlib.suppress(KeyboardInterrupt):
        session_of(context).run(take)


async def no_such_group(client: Client, queue: str, group: str) -> NoSuchGroup:
    """Says which there are."""
    there = await named_groups(client, queue)
    have = f"; it has {', '.join(there)}" if there else ", and none with a name that acks"
    return NoSuchGroup(f"queue {shown(queue)} has no group {group!r}{have}; --create makes it")


async def named_groups(client: Client, queue: str) -> list[str]:
    """Those that ack, without the queue's own."""
    found = await client.admin.groups(queue)
    return sorted(each.group for each in found.groups if each.group and each.kind == _ACKING)


async def _take(
    subscription: Subscription,
    limit: int | None,
    wait_s: float | None,
    *,
    write: _Write,
    reject: bool,
    held: bool,
) -> list[Delivered]:
    """Print records; those that are to be held until the end are the result, the others are settled."""
    kept: list[Delivered] = []
    left = limit
    while left is None or left > 0:
        found = await _some(subscription, left, wait_s)
        if not found:
            break
        left = None if left is None else left - len(found)
        for each in found:
            write(each)
            if held:
                kept.append(each)
            elif reject:
                each.nack_nowait(requeue=False)
            else:
                each.ack_nowait()
    return kept


async def _some(subscription: Subscription, limit: int | None, wait_s: float | None) -> list[Delivered]:
    """What comes next, `limit` at most; none when nothing came for `wait_s`."""
    records_max = min(limit or _PREFETCH, _PREFETCH)
    if wait_s is None:
        return await subscription.take(records_max)
    return await subscription.take_within(records_max, timeout_ms=int(wait_s * 1000))


def _write_text(record: Delivered) -> None:
    typer.echo(record_line(record) + again_text(record))


def _write_json(record: Delivered) -> None:
    print_json_line(given_fields(record))


def again_text(record: Delivered | Leased) -> str:
    """Behind the line of a record that somebody may have had before."""
    return f"\tagain, {record.attempts} attempts before" if record.redelivered else ""


def given_fields(record: Delivered | Leased) -> dict[str, Any]:
    """A record that a group gave out, for programs."""
    place = {"queue": split(record.queue)[1]}
    return {**record_fields(record), **place, "redelivered": record.redelivered, "attempts": record.attempts}
