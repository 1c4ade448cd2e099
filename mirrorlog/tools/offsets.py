"""`mqtool offsets`: where logs, mirrors, queues and consumer groups stand."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from mirrorlog.errors import MirrorlogError
from mirrorlog.tools.cluster_status import ClusterStatus, gather, key_of, select
from mirrorlog.tools.offsets_tables import offsets_view
from mirrorlog.tools.output import print_json, print_json_line, show, terminal_console
from mirrorlog.tools.session import AsJson, OnlyVirtualHost, Session, session_of

if TYPE_CHECKING:
    from mirrorlog.client import Client

_Look = Callable[["Client"], Coroutine[Any, Any, ClusterStatus]]


def offsets(
    context: typer.Context,
    *,
    node: Annotated[str | None, typer.Option(help="Only this node, as holder or as mirror.")] = None,
    log: Annotated[str | None, typer.Option(help="Only this log (name or id).")] = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue, its groups and its log.")] = None,
    vhost: OnlyVirtualHost = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh in place until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes of --watch.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show the offsets of logs, mirrors, queues and consumer groups.

    Every node is asked; those that do not answer are named. Log offsets are bytes, queue offsets records; `~` marks an
    estimate. With --watch --json each refresh is one line.

    Example: mqtool offsets --queue flights --watch --every 2
    """
    session = session_of(context)

    async def look(client: Client) -> ClusterStatus:
        return select(await gather(client), node=node, log=log, queue=key_of(vhost, queue), vhost=vhost)

    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(session, look, every=every, as_json=as_json)
        return
    status = session.run(look)
    if as_json:
        print_json(status)
    else:
        show(offsets_view(status))


def _watch(session: Session, look: _Look, *, every: float, as_json: bool) -> None:
    """Look again and again, each time over a new connection: the server that answered before may be gone."""
    if as_json:
        while True:
            print_json_line(session.run(look))
            time.sleep(every)
    with Live(console=terminal_console(), auto_refresh=False) as live:
        while True:
            live.update(_view(session, look), refresh=True)
            time.sleep(every)


def _view(session: Session, look: _Look) -> RenderableType:
    try:
        return offsets_view(session.run(look))
    except MirrorlogError as error:
        # Watching goes on: what it is there for is to see the cluster come back.
        return Text(f"{error}; trying again", style="red")
