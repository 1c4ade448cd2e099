"""Connections of clients in the management API: listed for the whole cluster whichever node is asked, and closed.

What came by a door of a node is that door's connection to its node, one for each login that it serves: closing it ends
what its callers have under way.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mirrorlog.client.operator_admin import ClusterConnections
from mirrorlog.diagnosis.cluster_status import NODE_SECONDS
from mirrorlog.diagnosis.connections import connection_row, untold_rows
from mirrorlog.doors.management.calls import NO_CONTENT, ApiAnswer, Call, Routes
from mirrorlog.doors.management.shapes import ApiError, columns, not_found
from mirrorlog.wire.messages.connections import ConnectionInfo, NoSuchConnection


async def connections_of(
    call: Call, name: str = "", *, user: str | None = None, most: int | None = None
) -> ClusterConnections:
    """As `Admin.connections`, within the time that a node may take here."""
    timeout_ms = int(NODE_SECONDS * 1000)
    return await call.client.admin.connections(name=name, user=user, most=most, node_timeout_ms=timeout_ms)


async def _list(call: Call) -> ApiAnswer:
    """Of a virtual host, too, all of them: none is bound to one."""
    if "vhost" in call.names:
        await call.check_vhost()
    found = await connections_of(call, user=call.names.get("user"))
    return call.listed([*map(connection_row, found.rows), *untold_rows(found)])


async def _there(call: Call) -> ConnectionInfo:
    """The one that the path names. Raises ApiError."""
    found = await connections_of(call, call.names["name"])
    for row in found.rows:
        if call.query.get("node") in (None, row.node):
            return row
    if found.untold:
        why = "; ".join(f"node {node}: {error}" for node, error in found.untold.items())
        raise ApiError(503, "service_unavailable", f"no node that answers has this connection; {why}")
    raise not_found()


async def _one(call: Call) -> ApiAnswer:
    return ApiAnswer(body=columns([connection_row(await _there(call))], call.query)[0])


async def _channels(call: Call) -> ApiAnswer:
    await _there(call)
    return call.listed([])


async def _close(call: Call) -> ApiAnswer:
    """`node`, in the query: of nodes that have one of that name the one that is meant."""
    try:
        await call.client.admin.close_connection(call.names["name"], call.reason, node_id=call.query.get("node", ""))
    except NoSuchConnection:
        raise not_found() from None
    return NO_CONTENT


async def _close_all(call: Call) -> ApiAnswer:
    """Of a user. Those that come meanwhile stay."""
    found = await connections_of(call, user=call.names["user"])
    close = call.client.admin.close_connection
    # At once: the one that this call itself goes by, of which the answer goes first, may be among them.
    ended = await asyncio.gather(
        *(close(row.name, call.reason, node_id=row.node, since_us=row.since_us) for row in found.rows),
        return_exceptions=True,
    )
    if failed := [each for each in ended if isinstance(each, Exception) and not isinstance(each, NoSuchConnection)]:
        raise failed[0]
    return NO_CONTENT


ROUTES: Final[Routes] = {
    "connections": {"GET": _list},
    "connections/username/:user": {"GET": _list, "DELETE": _close_all},
    "connections/:name": {"GET": _one, "DELETE": _close},
    "connections/:name/channels": {"GET": _channels},
    "vhosts/:vhost/connections": {"GET": _list},
}
