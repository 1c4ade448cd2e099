"""`mqtool follow-rocketmq`: publish here what a broker of RocketMQ writes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.config import split_address
from mirrorlog.errors import BadInput, ConfigError
from mirrorlog.tools.common.options import parse_pair
from mirrorlog.tools.common.output import print_json_line
from mirrorlog.tools.common.session import session_of

if TYPE_CHECKING:
    from mirrorlog.client import Client
    from mirrorlog.rocketmq.following import Following

_TOLD_S: Final = 5.0
_STARTS: Final = {"first": 0, "last-file": None}


def follow_rocketmq(  # noqa: PLR0917  (typer makes them options, nobody passes them by position)
    context: typer.Context,
    broker: Annotated[str, typer.Argument(metavar="BROKER:PORT", help="The broker's HA port: 10912, as a rule.")],
    topics: Annotated[
        list[str] | None, typer.Option("--map", metavar="TOPIC=QUEUE", help="What a topic goes to. Repeatable.")
    ] = None,
    exchange: Annotated[
        str, typer.Option("--exchange", metavar="NAME", help="Where all other topics go, routed by TOPIC.TAG.")
    ] = "",
    name: Annotated[
        str | None, typer.Option("--name", help="Of what is followed: where to go on is stored under it.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="OFFSET", help="Begin anew at this offset of its commit log, or first, or last-file."
        ),
    ] = None,
    dialect: Annotated[
        str, typer.Option("--dialect", help="controller: of a broker of 5.x that runs under one.")
    ] = "classic",
    log_group: Annotated[
        str, typer.Option("--log-group", help="x-log-group of queues that are declared because they are not there.")
    ] = "rocketmq",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object every five seconds.")] = False,
) -> None:
    """Follow a broker of RocketMQ as one of its slaves does, and publish what it writes into queues, each message once.

    The broker hears of a message when all copies in sync have it here: SEND_OK of a SYNC_MASTER means so much. Where to
    go on is stored with the messages, so it may be ended and started again at any time, and a second one waits until
    the first has ended. It goes on until Ctrl-C; queues that are not there are declared.

    Without a stored place it begins where the broker does for a new slave: with the last file of its commit log, or
    under a controller with the first. What stands before has to be asked for: --from first.

    Example: mqtool follow-rocketmq 10.0.0.7:10912 --map orders=orders
    """
    from mirrorlog.ha.rocketmq import Dialect
    from mirrorlog.rocketmq.following import Following
    from mirrorlog.rocketmq.routes import TopicRoutes

    if dialect not in {each.value for each in Dialect}:
        raise BadInput(f"--dialect {dialect}: there are {' and '.join(each.value for each in Dialect)}")
    try:
        split_address(broker)
    except ConfigError as error:
        raise BadInput(f"{broker}: {error.message}; give the broker's HA port as HOST:PORT") from None
    routes = TopicRoutes(dict(parse_pair(each, "--map") for each in topics or []), exchange)
    named = name or re.sub(r"[^A-Za-z0-9._-]", "-", broker)

    async def follow(client: Client) -> None:
        following = Following(
            client,
            broker,
            routes,
            name=named,
            log_group=log_group,
            start=None if start is None else _offset(start),
            anew=start is not None,
            dialect=Dialect(dialect),
        )
        if start is None and Dialect(dialect) is Dialect.CLASSIC:
            typer.echo(f"goes on from {named}'s place, or begins with the broker's last file: see --from", err=True)
        told = asyncio.create_task(_tell(following, as_json=as_json))
        try:
            await following.run()
        finally:
            told.cancel()

    with contextlib.suppress(KeyboardInterrupt):
        session_of(context).run(follow, records=True)


def _offset(text: str) -> int | None:
    if text in _STARTS:
        return _STARTS[text]
    if not text.isdecimal():
        raise BadInput(f"--from {text}: give an offset of the commit log, first, or last-file")
    return int(text)


async def _tell(following: Following, *, as_json: bool) -> None:
    """How it goes, every few seconds."""
    while True:
        await asyncio.sleep(_TOLD_S)
        told = following.progress
        offset = told.place.offset if told.place is not None else None
        if as_json:
            print_json_line(
                {
                    "offset": offset,
                    "messages": told.messages,
                    "skipped": told.skipped,
                    "transactions": told.transactions,
                    "behind_ms": told.behind_ms,
                    "last_error": told.last_error,
                }
            )
            continue
        rest = f"; {told.last_error}" if told.last_error else ""
        sys.stderr.write(f"at {offset}: {told.messages} messages, {told.skipped} of other topics passed{rest}\n")
