"""`mqtool bindings`: what leads where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from mirrorlog.tools.output import NOTHING, print_json, show, table
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.routing import Binding


def bindings(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Only those from or to this exchange or queue.", show_default=False)
    ] = None,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: AsJson = False,
) -> None:
    """List the bindings of a virtual host.

    Example: mqtool bindings orders
    """
    routing = session_of(context).run(lambda client: client.admin.topology.routing(virtual_host=vhost))
    found = [each for each in routing.bindings if name in (None, each.source, each.destination)]
    found.sort(key=lambda each: (each.source, each.to_exchange, each.destination, each.key, repr(each.arguments)))
    if as_json:
        print_json(found)
    else:
        show(bindings_view(found))


def bindings_view(found: Sequence[Binding]) -> RenderableType:
    """One row per binding. Pure."""
    rows = [
        (
            each.source,
            "exchange" if each.to_exchange else "queue",
            each.destination,
            each.key or NOTHING,
            " ".join(f"{name}={value!r}" for name, value in sorted(each.arguments.items())) or NOTHING,
        )
        for each in found
    ]
    return table("", ("from", "to", "destination", "key", "arguments"), rows)
