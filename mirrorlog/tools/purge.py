"""`mqtool purge`: empty a queue's group."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified


def purge(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    group: Annotated[str, typer.Option("--group", help="An acking group; by default the queue's own.")] = "",
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Settle every record that waits in a queue, and wait until that is confirmed.

    What somebody has in hand, or on a lease, stays his. Other groups keep theirs, and readers of the queue as a stream
    still find the records, as long as they are kept.

    Example: mqtool purge flights
    """
    records = session_of(context).run(lambda client: client.admin.purge(qualified(vhost, queue), group))
    if as_json:
        print_json({"queue": queue, "group": group, "records": records})
    else:
        where = f"group {group} of queue {queue}" if group else f"queue {queue}"
        typer.echo(f"{records} record{'' if records == 1 else 's'} purged from {where}")
