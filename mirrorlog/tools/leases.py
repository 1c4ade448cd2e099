"""`mqtool lease`: take records of a queue for a time, and keep their receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.errors import BadInput
from mirrorlog.tools.output import print_json, print_json_line
from mirrorlog.tools.receive import again_text, given_fields, named_groups, no_such_group
from mirrorlog.tools.records import record_line
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified

if TYPE_CHECKING:
    from mirrorlog.client import Client, Leased

_LEASE_MS: Final = 30_000


def lease(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    *,
    lease_ms: Annotated[int, typer.Option("--ms", min=1, help="How long they are the holder's.")] = _LEASE_MS,
    count: Annotated[int, typer.Option("--count", min=1, help="So many at most, under one lease.")] = 1,
    wait: Annotated[float, typer.Option("--wait", min=0, metavar="SECONDS", help="For the first one.")] = 0.0,
    holder: Annotated[str, typer.Option("--holder", help="Who has them, for people.")] = "mqtool",
    group: Annotated[str, typer.Option("--group", help="An acking group; by default the queue's own.")] = "",
    create: Annotated[bool, typer.Option("--create", help="Make the group if it is not there.")] = False,
    read_from: Annotated[
        str, typer.Option("--read-from", metavar="NODE", help="For the bytes: master, mirror, nearest or a node's id.")
    ] = "master",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per record.")] = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Take records that wait in a queue for a time, and print each behind its receipt. Prints nothing when none waits.

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
            read_from=read_from,
        )

    for each in session_of(context).run(take):
        if as_json:
            print_json_line({**given_fields(each), "receipt": each.receipt})
        else:
            typer.echo(f"{each.receipt}\t{record_line(each)}{again_text(each)}")


# `mqtool extend`: keep leased records for longer, by the receipt of one of them.


def extend(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    receipt: Annotated[str, typer.Argument(help="Of any record of the lease, as `mqtool lease` printed it.")],
    *,
    lease_ms: Annotated[int, typer.Option("--ms", min=1, help="How long the lease is to run, from now on.")],
    group: Annotated[str, typer.Option("--group", help="Of the lease; by default the queue's own.")] = "",
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Let a lease run on, with all records of the same `mqtool lease`, and wait until that is confirmed.

    One that is over cannot be extended (NOT_GRANTED): its records are given out again.

    Example: mqtool extend flights 17-3-5d41402a --ms 600000
    """
    key = qualified(vhost, queue)
    session_of(context).run(lambda client: client.extend_receipt(key, receipt, lease_ms, group=group))
    if as_json:
        print_json({"queue": queue, "group": group, "receipt": receipt, "lease_ms": lease_ms})
    else:
        typer.echo(f"the lease of {receipt} runs for {lease_ms} ms from now on")


# `mqtool settle`: say what became of leased records, by their receipts.


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


def settle(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    receipts: Annotated[list[str], typer.Argument(help="As `mqtool lease` printed them.")],
    *,
    ack: Annotated[bool, typer.Option("--ack", help="They are done; so it is without an option, too.")] = False,
    nack: Annotated[bool, typer.Option("--nack", help="Give them back, counted.")] = False,
    release: Annotated[bool, typer.Option("--release", help="Give them back as if nobody had seen them.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Declare them dead.")] = False,
    delay_ms: Annotated[
        int, typer.Option("--delay-ms", min=0, metavar="MS", help="With --nack, --release: before they may come again.")
    ] = 0,
    group: Annotated[str, typer.Option("--group", help="Of the lease; by default the queue's own.")] = "",
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

    session_of(context).run(settle_each)


def _how(**asked: bool) -> str:
    words = {"ack": _ACK, "nack": _NACK, "release": _RELEASE, "reject": _REJECT}
    chosen = [words[name] for name, wanted in asked.items() if wanted]
    if len(chosen) > 1:
        raise BadInput("--ack, --nack, --release and --reject exclude each other")
    return chosen[0] if chosen else _ACK
