"""`mqtool declare`: make a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.errors import BadInput
from mirrorlog.tools.arguments import parse_arguments
from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown


def declare(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(help="The queue's name.")],
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument, see above; JSON or text. Repeatable."),
    ] = None,
    durable: Annotated[
        bool, typer.Option("--durable/--not-durable", help="Not durable: gone with the node that is asked.")
    ] = True,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Gone with its last subscriber, once it had one.")
    ] = False,
    expires: Annotated[
        int | None, typer.Option("--expires", metavar="MS", help="Gone when nobody has used it for so long.")
    ] = None,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: AsJson = False,
) -> None:
    """Make a queue, and wait until that is confirmed.

    Nothing happens when it exists with the same arguments; with others it is an error (exit code 6).

    Arguments: retention_ms and retention_bytes, how long its records are kept at least and how many bytes of them, -1
    for what the log has; flush, memory or disk: a log with that mode. The others are in docs/queues.md; one that is
    not known is an error. An exclusive queue is its user's to declare: it goes with the connection.

    Example: mqtool declare flights --arg retention_ms=604800000
    """
    arguments = parse_arguments(arg or [])
    if arguments.get("exclusive"):
        raise BadInput("an exclusive queue goes with the connection that declares it, here at once; let its user do so")
    if not durable:
        arguments["durable"] = False
    if auto_delete:
        arguments["auto-delete"] = True
    if expires is not None:
        arguments["x-expires"] = expires
    queue = session_of(context).run(lambda client: client.admin.declare(qualified(vhost, name), arguments))
    if as_json:
        print_json(queue)
    else:
        typer.echo(f"queue {shown(queue.name)} is there: id {queue.queue_id}, master {queue.master}, next {queue.next}")
