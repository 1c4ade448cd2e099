"""`mqtool delete`: delete a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified


def delete(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    *,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only when its groups have settled all.")] = False,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only while nobody takes from it; readers at mirrors do not count.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also when a landing holds records of it.")] = False,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Delete a queue with its records, groups and bindings, for good, and wait until that is confirmed.

    Whoever publishes to it, reads it or is subscribed to it is told so. A queue declared under its name afterwards is
    another one. To keep the queue and settle what waits in it: mqtool purge.

    Example: mqtool delete flights --if-unused
    """
    records = session_of(context).run(
        lambda client: client.admin.delete_queue(
            qualified(vhost, queue), if_empty=if_empty, if_unused=if_unused, force=force
        )
    )
    if as_json:
        print_json({"queue": queue, "records": records})
    else:
        typer.echo(f"queue {queue} deleted; {records} record{'' if records == 1 else 's'} had not been settled")
