"""Waiting until what an operator asked for has come about: look again and again, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.errors import ConnectionLost, RequestTimeout
from mirrorlog.wire.messages import ClusterStatus

if TYPE_CHECKING:
    from mirrorlog.client import Client

LOOK_S: Final = 0.05

Wait = Annotated[bool, typer.Option("--wait", help="Return when it has come about.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds that --wait waits.")]


async def until_nothing_left(client: Client, left: Callable[[ClusterStatus], list[str]], *, timeout_s: float) -> None:
    """Until `left` names nothing any more in the view of a node. Raises RequestTimeout with what it names."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    while True:
        try:
            view = (await client.admin.status()).cluster
            pending = left(view) if view is not None else ["the node that answers is in no cluster yet"]
        except (ConnectionLost, RequestTimeout) as error:
            pending = [error.message]
        if not pending:
            return
        if loop.time() >= give_up_at:
            raise RequestTimeout(
                f"not done after {timeout_s:g} s: {'; '.join(pending)}; what was asked for is decided, and goes on"
            )
        await asyncio.sleep(LOOK_S)
