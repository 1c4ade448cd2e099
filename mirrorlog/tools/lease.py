"""`mqtool lease`: take records of a queue for a time, and keep their receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.tools.output import print_json_line
from mirrorlog.tools.receive import again_text, given_fields, named_groups, no_such_group
from mirrorlog.tools.records import record_line
from mirrorlog.tools.session import VirtualHost, session_of
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
