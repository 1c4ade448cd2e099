"""`mqtool vhosts`: which virtual hosts there are."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import RenderableType

from mirrorlog.tools.output import print_json, show, table
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.wire.messages import VirtualHostInfo


def vhosts(context: typer.Context, as_json: AsJson = False) -> None:
    """List the virtual hosts, with how many exchanges, bindings and queues were declared in each.

    Example: mqtool vhosts
    """
    found = session_of(context).run(lambda client: client.admin.topology.virtual_hosts())
    if as_json:
        print_json(found)
    else:
        show(vhosts_view(found))


def vhosts_view(found: Sequence[VirtualHostInfo]) -> RenderableType:
    """One row per virtual host. Pure."""
    rows = [(each.name, str(each.exchanges), str(each.bindings), str(each.queues), str(each.version)) for each in found]
    numbers = ("exchanges", "bindings", "queues", "version")
    return table("", ("virtual host", *numbers), rows, numbers=numbers)
