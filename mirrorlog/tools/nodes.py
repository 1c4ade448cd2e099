"""`mqtool nodes`: who belongs to the cluster, what each does in it, and what should be looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirrorlog.errors import Refused
from mirrorlog.tools.cluster_status import AllStatuses, gather
from mirrorlog.tools.cluster_view import copies, masters, role_of, warnings, with_waits
from mirrorlog.tools.output import NOTHING, bytes_text, print_json, show, table
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.versions import version_of
from mirrorlog.wire.messages.status import DiskStatus, MemoryStatus, NodeStatus, Status

if TYPE_CHECKING:
    from mirrorlog.client import Client

_START_ID_SHOWN = 8


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the node that was asked knows it; `answers`, `error`, `disk` and `memory` are as mqtool itself found
    it, None for one that it did not ask: a witness has nothing to tell a client. `roles`: log name → master or mirror;
    `role`: coordinator, voter, learner or witness; `start_id`, `kind`: of the run that the cluster knows;
    `software_version`: the highest cluster version that this run can do, 0 before the first one."""

    node_id: str
    member: int
    role: str
    life: str
    draining: bool
    stopped: bool
    start_id: str
    kind: str
    client: str
    replication: str
    grpc: str
    http: str
    masters: list[str]
    copies: list[str]
    roles: dict[str, str]
    answers: bool | None = None
    error: str | None = None
    disk: DiskStatus | None = None
    memory: MemoryStatus | None = None
    software_version: int = 0


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """What `mqtool nodes --json` prints; fields may be added, none changes its meaning. `asked`: whose view it is;
    `version`: of that view; `cluster_version`: what all nodes together may write, see docs/operations.md."""

    cluster_name: str
    asked: str
    version: int
    incarnation: int
    coordinator: str
    term: int
    nodes: list[NodeLine]
    warnings: list[str]
    cluster_version: int = 1


def nodes(
    context: typer.Context,
    *,
    node: Annotated[str | None, typer.Option(help="Ask this node, not whichever answers first.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the cluster's nodes: role, life, run, software, logs, addresses; and what should be looked at.

    Life and roles are as the node that was asked sees them; it is named in the title, with the version of its view.

    Example: mqtool nodes
    """

    async def look(client: Client) -> Nodes:
        asked = await client.admin.status(node)
        return nodes_of(asked, await gather(client))

    found = session_of(context).run(look)
    if as_json:
        print_json(found)
    else:
        show(nodes_view(found))


def nodes_of(asked: Status, everybody: AllStatuses) -> Nodes:
    """`asked`: who speaks for the cluster; `everybody`: who answers, and whom the coordinator waits for. Pure. Raises
    Refused for a node that is in no cluster."""
    if asked.cluster is None:
        raise Refused(f"node {asked.node_id} is in no cluster yet; ask another one")
    view = with_waits(asked.cluster, [each.cluster for each in everybody.nodes if each.cluster is not None])
    answers = {each.node_id: each for each in everybody.nodes}
    errors = {each.node_id: each.message for each in everybody.unreachable}

    def line(node: NodeStatus) -> NodeLine:
        mastered, held = masters(view, node.node_id), copies(view, node.node_id)
        answer = answers.get(node.node_id)
        return NodeLine(
            node_id=node.node_id,
            member=node.member,
            role=role_of(node, view.coordinator),
            life=node.life,
            draining=node.draining,
            stopped=node.stopped,
            start_id=node.start_id,
            kind=node.kind,
            client=node.client,
            replication=node.replication,
            grpc=node.grpc,
            http=node.http,
            masters=mastered,
            copies=held,
            roles={log: "master" if log in mastered else "mirror" for log in held},
            answers=answer is not None if answer is not None or node.node_id in errors else None,
            error=errors.get(node.node_id),
            disk=answer.disk if answer is not None else None,
            memory=answer.memory if answer is not None else None,
            software_version=_software(node),
        )

    lines = [line(node) for node in sorted(view.nodes, key=lambda each: each.member)]
    return Nodes(
        cluster_name=asked.cluster_name,
        asked=asked.node_id,
        version=view.version,
        incarnation=view.incarnation,
        coordinator=view.coordinator,
        term=view.term,
        nodes=lines,
        warnings=[*warnings(view), *_updating(view.cluster_version, lines)],
        cluster_version=view.cluster_version,
    )


def _software(node: NodeStatus) -> int:
    """What its run can do: its start id says so, also to an older node that does not tell."""
    return version_of(node.start_id) if node.start_id else 0


def _updating(cluster_version: int, nodes: Sequence[NodeLine]) -> Iterator[str]:
    """Whom the cluster's next version waits for; nothing when nobody has it."""
    behind = [node.node_id for node in nodes if node.software_version <= cluster_version]
    away = [node.node_id for node in nodes if node.life != "up" or node.stopped]
    if behind and len(behind) < len(nodes):
        yield f"the cluster runs at version {cluster_version} until all nodes are updated; not yet: {', '.join(behind)}"
    elif away and not behind:
        yield (
            f"the cluster runs at version {cluster_version} until all nodes, which are updated, are up; not there: "
            f"{', '.join(away)}"
        )


def nodes_view(found: Nodes) -> RenderableType:
    """One row per node in two tables, and the warnings. Pure."""
    incarnation = f", incarnation {found.incarnation}" if found.incarnation > 1 else ""
    title = (
        f"NODES of {found.cluster_name}, as {found.asked} knows them: view {found.version}{incarnation}, cluster "
        f"version {found.cluster_version}"
    )
    return Group(
        table(
            title,
            ("node", "no", "role", "life", "start", "version", "masters", "copies", "disk"),
            [_parts(node) for node in found.nodes],
            numbers=("no", "version", "copies"),
        ),
        Text(),
        table(
            "ADDRESSES", ("node", "client", "replication", "grpc", "http"), [_addresses(each) for each in found.nodes]
        ),
        *_notes(found),
    )


def _parts(node: NodeLine) -> tuple[str, ...]:
    told = [word for word, so in (("stopped", node.stopped), ("draining", node.draining)) if so]
    return (
        node.node_id,
        str(node.member),
        node.role,
        ", ".join([node.life, *told]),
        f"{node.start_id[:_START_ID_SHOWN]} {node.kind}" if node.start_id else NOTHING,
        str(node.software_version or NOTHING),
        ", ".join(node.masters) or NOTHING,
        str(len(node.copies)),
        f"{node.disk.state}, {bytes_text(node.disk.free_bytes)} free" if node.disk is not None else NOTHING,
    )


def _addresses(node: NodeLine) -> tuple[str, ...]:
    return node.node_id, *(each or NOTHING for each in (node.client, node.replication, node.grpc, node.http))


def _notes(found: Nodes) -> Iterator[RenderableType]:
    lines: Sequence[Text] = [
        *(
            Text(f"{node.node_id} does not answer: {node.error}", style="red")
            for node in found.nodes
            if node.answers is False
        ),
        *(
            Text(f"{node.node_id}: {node.memory.reason}", style="red")
            for node in found.nodes
            if node.memory is not None and node.memory.reason
        ),
        *(Text(warning, style="yellow") for warning in found.warnings),
    ]
    if lines:
        yield Text()
    yield from lines
