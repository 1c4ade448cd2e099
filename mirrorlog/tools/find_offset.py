"""`mqtool find-offset`: the first record at or after a time."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.arguments import parse_time
from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified


def find_offset(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    time: Annotated[str, typer.Argument(help="ISO 8601; UTC without a zone.")],
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: AsJson = False,
) -> None:
    """Print the first queue offset whose batch was appended at or after a time; the next offset when there is none.

    Example: mqtool find-offset flights 2026-11-21T10:15:00Z
    """
    append_time_us = parse_time(time)
    found = session_of(context).run(lambda client: client.admin.find_offset(qualified(vhost, queue), append_time_us))
    if as_json:
        print_json({"queue": queue, "append_time_us": append_time_us, "queue_offset": found})
    else:
        typer.echo(found)
