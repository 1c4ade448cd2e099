"""`mqtool events`: what happened in the cluster, as it happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.errors import ConnectionLost, NodeStopping, RequestTimeout
from mirrorlog.tools.arguments import parse_time
from mirrorlog.tools.output import NOTHING, print_json, print_json_line, time_text
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.wire.messages.operators import ClusterEvent, Events

if TYPE_CHECKING:
    from mirrorlog.client import Client

WAIT_MS: Final = 10_000
"""How long a node holds an answer that has nothing yet."""
AGAIN_S: Final = 1.0


def events(
    context: typer.Context,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come, until Ctrl-C.")] = False,
    since: Annotated[str | None, typer.Option(help="From this time on: 2026-11-21T10:15:00Z.")] = None,
    node: Annotated[str | None, typer.Option(help="As this node knows them, not whichever answers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the cluster decided, and whom a node saw come and go: nodes, masters, in-sync sets, losses, logs.

    Each node keeps the last 10,000 of its run; times are the node's (UTC), `-` for what was decided before its run.
    With --follow another node is asked when the one that answered is gone. With --json and --follow each is one line.

    Example: mqtool events --follow
    """
    since_us = None if since is None else parse_time(since)
    session = session_of(context)

    def wanted(event: ClusterEvent) -> bool:
        return since_us is None or event.time_us >= since_us

    if follow:
        show = print_json_line if as_json else _print
        with contextlib.suppress(KeyboardInterrupt):
            session.run(lambda client: _follow(client, node, lambda event: show(event) if wanted(event) else None))
        return
    found = [event for event in session.run(lambda client: _all(client, node)) if wanted(event)]
    if as_json:
        print_json(found)
    else:
        for event in found:
            _print(event)


class Fresh:
    """What of several answers was not seen yet, also when another node or another run answers. Pure.

    Within a run the numbers tell. When another run answers, what the cluster decided is told by its entry's index, and
    what a node saw by itself by time.
    """

    def __init__(self) -> None:
        self.after = 0
        self._run = ""
        self._index, self._time_us = 0, 0
        self._index_before, self._time_us_before = 0, 0

    def take(self, answer: Events) -> list[ClusterEvent]:
        """The new ones; `after` is where to ask on."""
        if answer.start_id != self._run:
            asked_after, self.after, self._run = self.after, 0, answer.start_id
            self._index_before, self._time_us_before = self._index, self._time_us
            if asked_after:  # by a number of another run: this answer may begin anywhere
                return []
        found = [event for event in answer.events if event.number > self.after]
        for event in found:
            self.after = event.number
            self._index, self._time_us = max(self._index, event.index), max(self._time_us, event.time_us)
        return [event for event in found if self._is_new(event)]

    def _is_new(self, event: ClusterEvent) -> bool:
        return event.index > self._index_before if event.index else event.time_us > self._time_us_before


async def _all(client: Client, node: str | None) -> list[ClusterEvent]:
    found: list[ClusterEvent] = []
    answer = await client.admin.events(node_id=node)
    while answer.events:
        found += answer.events
        if answer.events[-1].number >= answer.last:
            break
        answer = await client.admin.events(after=answer.events[-1].number, node_id=node)
    return found


async def _follow(client: Client, node: str | None, show: Callable[[ClusterEvent], None]) -> None:
    fresh, asked = Fresh(), node
    while True:
        try:
            answer = await client.admin.events(after=fresh.after, wait_ms=WAIT_MS, node_id=asked)
        except (ConnectionLost, NodeStopping, RequestTimeout):
            asked = node  # whoever answers, unless one was named
            await asyncio.sleep(AGAIN_S)
            continue
        asked = answer.node_id
        for event in fresh.take(answer):
            show(event)


def _print(event: ClusterEvent) -> None:
    typer.echo(event_line(event))


def event_line(event: ClusterEvent) -> str:
    """One line: time, kind, text. Pure."""
    when = time_text(event.time_us) if event.time_us else NOTHING.ljust(24)
    return f"{when}  {event.kind:<20} {event.text}"
