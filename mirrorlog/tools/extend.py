"""`mqtool extend`: keep leased records for longer, by the receipt of one of them."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified


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
