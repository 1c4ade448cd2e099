"""`mqtool redrive`: send dead letters back to where they died."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.messages import REDRIVE_MAX
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified


def redrive(  # noqa: PLR0917  (typer makes them options, nobody passes them by position)
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue that has them, as one for dead letters.")],
    to: Annotated[str, typer.Option("--to", help="The queue for all of them; by default where each died last.")] = "",
    most: Annotated[
        int, typer.Option("--max", min=1, max=REDRIVE_MAX, help="So many at most, the oldest ones.")
    ] = REDRIVE_MAX,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Send records that wait in a queue back to where they died, without the headers that tell of it.

    What somebody has in hand stays his. They arrive a moment later, each once; one that never died, or whose queue is
    gone, stays: so fewer may leave than are looked at. Asked again, it sends those that have come since.

    Example: mqtool redrive flights.dead --max 100
    """
    key = qualified(vhost, queue)
    records = session_of(context).run(lambda client: client.admin.redrive(key, to=to, records_max=most))
    if as_json:
        print_json({"queue": queue, "to": to, "records": records})
    else:
        typer.echo(_told(records, f"queue {to}" if to else "where it died"))


def _told(records: int, where: str) -> str:
    """What the node answers is how many wait; which of them may go it sees when it has read them."""
    if not records:
        return "no record waits"
    looked_at = "1 record is" if records == 1 else f"up to {records} records are"
    return f"{looked_at} looked at; each that may go leaves for {where}"
