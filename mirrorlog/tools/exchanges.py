"""`mqtool exchanges`: which exchanges a virtual host has."""

from __future__ import annotations

from collections import Counter

import typer
from rich.console import RenderableType

from mirrorlog.tools.output import NOTHING, print_json, show, table
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.messages import Routing
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.routing import PREDEFINED


def exchanges(context: typer.Context, vhost: VirtualHost = DEFAULT_VIRTUAL_HOST, as_json: AsJson = False) -> None:
    """List the exchanges, those that every virtual host has among them.

    The default exchange, which has no name, leads every key to the queue of that name.

    Example: mqtool exchanges --vhost shop
    """
    routing = session_of(context).run(lambda client: client.admin.topology.routing(virtual_host=vhost))
    if as_json:
        print_json(dict(sorted({**PREDEFINED, **routing.exchanges}.items())))
    else:
        show(exchanges_view(routing))


def exchanges_view(routing: Routing) -> RenderableType:
    """One row per exchange. Pure."""
    bindings = Counter(binding.source for binding in routing.bindings)
    rows = []
    for name, exchange in sorted({**PREDEFINED, **routing.exchanges}.items()):
        properties = [
            word
            for word, said in (
                ("transient", not exchange.durable),
                ("auto-delete", exchange.auto_delete),
                ("internal", exchange.internal),
            )
            if said
        ]
        rows.append(
            (name, exchange.kind, str(bindings[name]), exchange.alternate or NOTHING, " ".join(properties) or NOTHING)
        )
    return table("", ("exchange", "kind", "bindings", "alternate", "properties"), rows, numbers=("bindings",))
