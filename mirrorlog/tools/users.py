"""`mqtool users`: who may log in, and what each may do."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import RenderableType

from mirrorlog.tools.output import NOTHING, print_json, show, table
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.wire.messages import UserInfo


def users(context: typer.Context, as_json: AsJson = False) -> None:
    """List the users with their tags, and their permissions in each virtual host.

    Example: mqtool users
    """
    found = session_of(context).run(lambda client: client.admin.topology.users())
    if as_json:
        print_json(found)
    else:
        show(users_view(found))


def users_view(found: Sequence[UserInfo]) -> RenderableType:
    """One row per user and virtual host. Pure."""
    rows = []
    for user in found:
        tags = " ".join(user.tags) or NOTHING
        if not user.permissions:
            rows.append((user.name, tags, *[NOTHING] * 4))
        for each in user.permissions:
            expressions = (expression or NOTHING for expression in (each.configure, each.write, each.read))
            rows.append((user.name, tags, each.virtual_host, *expressions))
    return table("", ("user", "tags", "virtual host", "configure", "write", "read"), rows)
