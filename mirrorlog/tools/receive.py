"""`mqtool receive`, `lease`, `extend`, `settle`: receive records of a queue's group, and settle them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mirrorlog.errors import BadInput, NoSuchGroup
from mirrorlog.tools.common.options import (
    AckingGroup,
    AsJson,
    BytesFrom,
    CreateGroup,
    LeaseGroup,
    QueueName,
    RecordsAsJson,
    VirtualHost,
)
from mirrorlog.tools.common.output import emit, print_json_line
from mirrorlog.tools.common.records import record_fields, record_line
from mirrorlog.tools.common.session import session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown, split

if TYPE_CHECKING:
    from mirrorlog.client import Client, Delivered, Leased, Subscription

_ACKING: Final = "acking"
_PREFETCH: Final = 1_000
_WAIT_S: Final = 1.0
_QUIET_MS: Final = 2_000
"""After so long it says that it waits."""

_Write = Callable[["Delivered"], None]
_OrderedBy = Annotated[
    str | None,
    typer.Option("--ordered-by", metavar="key", help="Of each key one record at a time is with any reader, in order."),
]

_LEASE_MS: Final = 30_000
_ACK: Final = "ack"
_NACK: Final = "return"
_RELEASE: Final = "release"
_REJECT: Final = "reject"
_DONE: Final = {
    _ACK: "acknowledged",
    _NACK: "given back",
    _RELEASE: "given back as if nobody had seen it",
    _REJECT: "declared dead",
}
_UNCHANGED: Final = "was settled or given back before; nothing changed"


def receive(  # noqa: PLR0917  (typer makes them options, nobody passes them by position)
    context: typer.Context,
    queue: QueueName,
    group: AckingGroup = "",
    create: CreateGroup = False,
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
        int, typer.Option("--prefetch", min=1, help="So many records at most are unsettled at this reader.")
    ] = _PREFETCH,
    priority: Annotated[int, typer.Option("--priority", help="Readers with a higher one are served first.")] = 0,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="Nobody else may consume from the group.")] = False,
    ordered_by: _OrderedBy = None,
    read_from: BytesFrom = "master",
    as_json: RecordsAsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Receive records that wait in a queue, print them, and acknowledge each behind its line.

    A record is printed once it is this reader's: others do not get it meanwhile. What was printed before an error or
    Ctrl-C, and is not acknowledged yet, comes again. To read a queue and change nothing: `mqtool consume`.

    A new group gets every record from then on; what nobody settles in it is kept for it, or expires. So a group that
    does not exist is an error, which names those that do, unless --create is given. The queue's own group is always
    there.

    Without --wait it waits until it has --count, or until Ctrl-C, and says so once. With --nack and --peek it ends when
    none came for a second, or at 1000 records (or --prefetch), and then gives all of them back.

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

    def write(record: Delivered) -> None:
        if as_json:
            print_json_line(given_fields(record))
        else:
            typer.echo(record_line(record) + again_text(record))

    async def take(client: Client) -> None:
        name = qualified(vhost, queue)
        try:
            async with client.subscribe(
                name,
                group,
                prefetch=min(limit or prefetch, prefetch),
                priority=priority,
                exclusive=exclusive,
                ordered_by=ordered_by,
                read_from=read_from,
                name="mqtool",
                create=create,
                outage_timeout_ms=client.request_timeout_ms,
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
        session_of(context).run(take, records=True)


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
    subscription: Subscription, limit: int | None, wait_s: float | None, *, write: _Write, reject: bool, held: bool
) -> list[Delivered]:
    """Print records; those that are to be held until the end are the result, the others are settled."""
    kept: list[Delivered] = []
    left, said = limit, False
    while left is None or left > 0:
        records_max = min(left or _PREFETCH, _PREFETCH)
        found = await subscription.take_within(
            records_max, timeout_ms=_QUIET_MS if wait_s is None else int(wait_s * 1000)
        )
        if not found and wait_s is None:
            if not said:
                said = True
                typer.echo(f"waiting for records of {shown(subscription.queue)}; --wait SECONDS ends it", err=True)
            found = await subscription.take(records_max)
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


def again_text(record: Delivered | Leased) -> str:
    """Behind the line of a record that somebody may have had before."""
    return f"\tagain, {record.attempts} attempts before" if record.redelivered else ""


def given_fields(record: Delivered | Leased) -> dict[str, Any]:
    """A record that a group gave out, for programs."""
    place = {"queue": split(record.queue)[1]}
    return {**record_fields(record), **place, "redelivered": record.redelivered, "attempts": record.attempts}


def lease(
    context: typer.Context,
    queue: QueueName,
    *,
    lease_ms: Annotated[int, typer.Option("--ms", min=1, help="How long they are the holder's.")] = _LEASE_MS,
    count: Annotated[int, typer.Option("--count", min=1, help="So many at most, under one lease.")] = 1,
    wait: Annotated[float, typer.Option("--wait", min=0, metavar="SECONDS", help="For the first one.")] = 0.0,
    holder: Annotated[str, typer.Option("--holder", help="Who has them, for people.")] = "mqtool",
    group: AckingGroup = "",
    create: CreateGroup = False,
    ordered_by: _OrderedBy = None,
    read_from: BytesFrom = "master",
    as_json: RecordsAsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Lease records that wait in a queue for a time, and print each behind its receipt. Prints nothing when none waits.

    They stay leased when this command ends, over restarts and failovers too: settle each with `mqtool settle`, or take
    longer with `mqtool extend`. What is not settled when the time is over comes again, counted. A group that is not
    there is an error, unless --create is given, as of `mqtool receive`.

    Example: mqtool lease flights --ms 600000 --holder worker-7
    """
    key = qualified(vhost, queue)

    async def take(client: Client) -> list[Leased]:
        if group and not create and group not in await named_groups(client, key):
            raise await no_such_group(client, key, group)
        return await client.lease(
            key,
            group,
            max_records=count,
            lease_ms=lease_ms,
            wait_ms=int(wait * 1000),
            holder=holder,
            ordered_by=ordered_by,
            read_from=read_from,
        )

    for each in session_of(context).run(take, records=True):
        if as_json:
            print_json_line({**given_fields(each), "receipt": each.receipt})
        else:
            typer.echo(f"{each.receipt}\t{record_line(each)}{again_text(each)}")


def extend(
    context: typer.Context,
    queue: QueueName,
    receipt: Annotated[str, typer.Argument(help="Of any record of the lease, as `mqtool lease` printed it.")],
    *,
    lease_ms: Annotated[int, typer.Option("--ms", min=1, help="How long the lease is to run, from now on.")],
    group: LeaseGroup = "",
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Let a lease run on, with all records of the same `mqtool lease`, and wait until that is confirmed.

    One that is over cannot be extended (NOT_GRANTED): its records are given out again.

    Example: mqtool extend flights 17-3-5d41402a --ms 600000
    """
    key = qualified(vhost, queue)
    session_of(context).run(lambda client: client.extend_receipt(key, receipt, lease_ms, group=group), records=True)
    emit(
        as_json,
        {"queue": queue, "group": group, "receipt": receipt, "lease_ms": lease_ms},
        f"the lease of {receipt} runs for {lease_ms} ms from now on",
    )


def settle(
    context: typer.Context,
    queue: QueueName,
    receipts: Annotated[list[str], typer.Argument(help="As `mqtool lease` printed them.")],
    *,
    ack: Annotated[bool, typer.Option("--ack", help="They are done; the default.")] = False,
    nack: Annotated[bool, typer.Option("--nack", help="Give them back, counted.")] = False,
    release: Annotated[bool, typer.Option("--release", help="Give them back as if nobody had seen them.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Declare them dead.")] = False,
    delay_ms: Annotated[
        int, typer.Option("--delay-ms", min=0, metavar="MS", help="With --nack, --release: before they may come again.")
    ] = 0,
    group: LeaseGroup = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per receipt.")] = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Settle leased records by their receipts, one after the other; each is confirmed by all copies.

    A receipt whose lease is over still acknowledges its record as long as nobody else has got it (else RECEIPT_STALE),
    and gives nothing back. Each is told as it is done: at an error those that were told of are settled.

    Example: mqtool settle flights 17-3-5d41402a --nack --delay-ms 5000
    """
    how = _how(ack=ack, nack=nack, release=release, reject=reject)
    if delay_ms and how not in (_NACK, _RELEASE):
        raise BadInput("--delay-ms is for what --nack or --release gives back")
    key = qualified(vhost, queue)

    async def settle_each(client: Client) -> None:
        for receipt in receipts:
            changed = await client.settle_receipt(key, receipt, group=group, how=how, delay_ms=delay_ms)
            # At once: whoever meets an error at the next one knows how far it came.
            if as_json:
                print_json_line({"receipt": receipt, "settled": changed})
            else:
                typer.echo(f"{receipt} {_DONE[how] if changed else _UNCHANGED}")

    session_of(context).run(settle_each, records=True)


def _how(**asked: bool) -> str:
    words = {"ack": _ACK, "nack": _NACK, "release": _RELEASE, "reject": _REJECT}
    chosen = [words[name] for name, wanted in asked.items() if wanted]
    if len(chosen) > 1:
        raise BadInput("--ack, --nack, --release and --reject exclude each other")
    return chosen[0] if chosen else _ACK
