"""`mqtool connections`, `close-connection`: who is connected to which node, and ending that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from mirrorlog.diagnosis.cells import printable, time_text
from mirrorlog.diagnosis.connections import connection_row, untold_rows
from mirrorlog.errors import BadRequest
from mirrorlog.tools.common.options import AsJson, IfExists
from mirrorlog.tools.common.output import cell_text, emit, table
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import Line, Stack, View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.wire.messages.connections import ConnectionInfo

_ANY: Final = ConnectionInfo(
    name="", node="", door="", protocol="", peer_host="", peer_port=0, host="", port=0, since_us=0, tls="TLS"
)
COLUMNS: Final = tuple(connection_row(_ANY))
_SHOWN: Final = ("name", "user", "node", "protocol", "connected_at", "state")


@watchable
def connections(
    context: typer.Context,
    columns: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(COLUMNS)}.", show_default=False)] = None,
    user: Annotated[str | None, typer.Option("--of", metavar="USER", help="Only of this user.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the open connections of clients to all nodes, by any columns, under RabbitMQ's names of them.

    Administrators and users with the tag monitoring see all, others their own. What came by a door of a node is that
    door's connection to its node. A node that does not answer comes last, with the reason.

    Example: mqtool connections name user peer_host state client_properties
    """
    wanted = columns or list(_SHOWN)
    if unknown := [each for each in wanted if each not in COLUMNS]:
        raise BadRequest(f"info keys {', '.join(unknown)} are not supported; there are {', '.join(COLUMNS)}")
    found = session_of(context).run(lambda client: client.admin.connections(user=user))
    rows = [{column: row.get(column) for column in wanted} for row in map(connection_row, found.rows)]
    silent = untold_rows(found)
    emit(as_json, [*rows, *silent], connections_view(wanted, rows, silent))


def connections_view(
    wanted: Sequence[str], rows: Sequence[Mapping[str, Any]], silent: Sequence[Mapping[str, Any]]
) -> View:
    """One row per connection, and a line for each node that tells none. Pure."""
    cells = [[_cell(column, row[column]) for column in wanted] for row in rows]
    lines = [Line(f"node {row['node']} tells no connections: {row['reason']}") for row in silent]
    return Stack.of(table("", wanted, cells, whole=("name", "connected_at")), *lines)


def _cell(column: str, value: Any) -> str:
    if column == "connected_at":
        return time_text(value * 1000)
    return printable(cell_text(value))


def close_connection(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="As `mqtool connections` names it.")],
    reason: Annotated[str, typer.Argument(help="Told to its client, and in the event.", show_default=False)] = "",
    node: Annotated[
        str, typer.Option("--node", help="Of nodes that have one of that name the one that is meant.")
    ] = "",
    *,
    if_exists: IfExists = False,
    as_json: AsJson = False,
) -> None:
    """Close a client's connection, whichever node has it. Needs the tag administrator.

    The client is told CONNECTION_CLOSED with the reason. It may connect again, as after one that broke: take its user's
    rights away first where it shall not. Exit code 5 when there is no such connection.

    Example: mqtool close_connection '10.0.0.7:40312 -> 10.0.0.1:7401' loud
    """
    closed = session_of(context).remove(
        lambda client: client.admin.close_connection(name, reason, node_id=node),
        f"connection {name}",
        if_exists=if_exists,
    )
    emit(as_json, {"name": name, "node": closed}, f"connection {name} of node {closed} is closed")
