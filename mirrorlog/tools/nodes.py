"""`mqtool nodes`: who belongs to the cluster, what each does for which log, and who answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import RenderableType

from mirrorlog.tools.cluster_status import assigned_roles, gather
from mirrorlog.tools.output import NOTHING, print_json, show, table
from mirrorlog.tools.session import AsJson, session_of

if TYPE_CHECKING:
    from mirrorlog.client import Client


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A member. `roles`: log name → master or mirror. `start_id` and `error`: of a node that answers, or does not."""

    node_id: str
    client: str
    replication: str
    grpc: str | None
    roles: dict[str, str]
    answers: bool
    start_id: str | None
    error: str | None


def nodes(context: typer.Context, as_json: AsJson = False) -> None:
    """List the cluster's nodes: addresses, role per log, and whether each answers.

    Example: mqtool nodes
    """
    found = session_of(context).run(_lines)
    if as_json:
        print_json(found)
    else:
        show(nodes_view(found))


async def _lines(client: Client) -> list[NodeLine]:
    metadata = await client.admin.metadata()
    status = await gather(client, metadata)
    starts = {node.node_id: node.start_id for node in status.nodes}
    errors = {node.node_id: node.message for node in status.unreachable}
    return [
        NodeLine(
            node_id=node.node_id,
            client=node.client,
            replication=node.replication,
            grpc=node.grpc,
            roles=assigned_roles(status, metadata.queues, node.node_id),
            answers=node.node_id in starts,
            start_id=starts.get(node.node_id),
            error=errors.get(node.node_id),
        )
        for node in metadata.nodes
    ]


def nodes_view(found: Sequence[NodeLine]) -> RenderableType:
    """One row per node. Pure."""
    rows = [
        (
            node.node_id,
            ", ".join(f"{role} of {log}" for log, role in node.roles.items()) or NOTHING,
            node.client,
            node.replication,
            node.grpc or NOTHING,
            "yes" if node.answers else f"NO: {node.error}",
        )
        for node in found
    ]
    return table("", ("node", "role", "client", "replication", "grpc", "answers"), rows)
