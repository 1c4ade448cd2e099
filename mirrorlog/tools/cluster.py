"""`mqtool nodes`, `events`, `free-former`: who is in the cluster, what each does and still holds, and what happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from mirrorlog.diagnosis.cells import NOTHING, bytes_text, parse_time, time_text
from mirrorlog.diagnosis.cluster_status import AllStatuses, gather, held_by, mastered_by, role_of, warnings, with_waits
from mirrorlog.errors import ConnectionLost, NodeStopping, Refused, RequestTimeout
from mirrorlog.tools.common.options import AsJson
from mirrorlog.tools.common.output import emit, print_json, print_json_line, table
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import Line, Stack, View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.versions import version_of
from mirrorlog.wire.messages.operators import ClusterEvent, Events, FormerFreed
from mirrorlog.wire.messages.status import DiskStatus, FormerStatus, MemoryStatus, NodeStatus, Status

if TYPE_CHECKING:
    from mirrorlog.client import Client

_START_ID_SHOWN = 8
_AS_DECIDED = (
    *("node_id", "member", "life", "draining", "leaving", "stopped", "start_id", "kind"),
    *("client", "replication", "grpc", "http"),
)

WAIT_MS: Final = 10_000
"""How long a node holds an answer that has nothing yet."""
AGAIN_S: Final = 1.0


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
    leaving: bool
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


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """What `mqtool nodes --json` prints; fields may be added, none changes its meaning. `asked`: whose view it is;
    `version`: of that view; `cluster_version`: what all nodes together may write, see docs/operate/nodes.md."""

    cluster_name: str
    asked: str
    version: int
    incarnation: int
    coordinator: str
    term: int
    nodes: list[NodeLine]
    warnings: list[str]
    cluster_version: int = 1


@watchable
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

    async def look(client: Client) -> NodeList:
        asked = await client.admin.status(node)
        return nodes_of(asked, await gather(client))

    found = session_of(context).run(look)
    emit(as_json, found, nodes_view(found))


def nodes_of(asked: Status, everybody: AllStatuses) -> NodeList:
    """`asked`: who speaks for the cluster; `everybody`: who answers, and whom the coordinator waits for. Pure. Raises
    Refused for a node that is in no cluster."""
    if asked.cluster is None:
        raise Refused(f"node {asked.node_id} is in no cluster yet; ask another one")
    view = with_waits(asked.cluster, [each.cluster for each in everybody.nodes if each.cluster is not None])
    answers = {each.node_id: each for each in everybody.nodes}
    errors = {each.node_id: each.message for each in everybody.unreachable}

    def line(node: NodeStatus) -> NodeLine:
        mastered, held = mastered_by(view, node.node_id), held_by(view, node.node_id)
        answer = answers.get(node.node_id)
        return NodeLine(
            **{name: getattr(node, name) for name in _AS_DECIDED},
            role=role_of(node, view.coordinator),
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
    return NodeList(
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


def nodes_view(found: NodeList) -> View:
    """One row per node in two tables, and the warnings. Pure."""
    incarnation = f", incarnation {found.incarnation}" if found.incarnation > 1 else ""
    title = (
        f"NODES of {found.cluster_name}, as {found.asked} knows them: view {found.version}{incarnation}, cluster "
        f"version {found.cluster_version}"
    )
    return Stack.of(
        table(
            title,
            ("node", "no", "role", "life", "start", "version", "masters", "copies", "disk"),
            [_parts(node) for node in found.nodes],
            numbers=("no", "version", "copies"),
        ),
        Line(),
        table(
            "ADDRESSES", ("node", "client", "replication", "grpc", "http"), [_addresses(each) for each in found.nodes]
        ),
        *_notes(found),
    )


def _parts(node: NodeLine) -> tuple[str, ...]:
    told = [
        word for word, so in (("stopped", node.stopped), ("draining", node.draining), ("leaving", node.leaving)) if so
    ]
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


def _notes(found: NodeList) -> Iterator[View]:
    lines: Sequence[Line] = [
        *(
            Line(f"{node.node_id} does not answer: {node.error}", style="red")
            for node in found.nodes
            if node.answers is False
        ),
        *(
            Line(f"{node.node_id}: {node.memory.reason}", style="red")
            for node in found.nodes
            if node.memory is not None and node.memory.reason
        ),
        *(Line(warning, style="yellow") for warning in found.warnings),
    ]
    if lines:
        yield Line()
    yield from lines


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


class UnseenEvents:
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
    fresh, asked = UnseenEvents(), node
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


# --- Former copies --------------------------------------------------------------------------------------------------

_FORMER_COLUMNS: Final = ("log", "node", "bytes", "since", "goes by itself", "")


def free_former(
    context: typer.Context,
    log: Annotated[str, typer.Argument(help="Of this log, name or id; by default all.", show_default=False)] = "",
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Free former copies: what nodes still hold of logs that are none of theirs any more (replaced, retired, removed).

    Refused (exit code 3) for copies that the cluster names, and kept while no node that is up has a whole copy of the
    log in sync. One of a log of which the cluster knows nothing goes by its name only. They go by themselves after
    cluster.former_keep_ms; until then a log that comes back to the node goes on with what is there.

    Example: mqtool free-former --dry-run
    """
    session = session_of(context)
    if dry_run:
        status = session.run(gather)
        found = [FormerFreed(node=node.node_id, freed=_of_log(node.former, log)) for node in status.nodes]
        emit(as_json, {"nodes": found, "done": False}, former_view(found, done=False))
        return
    answers = session.run(lambda client: client.admin.free_former(log))
    emit(as_json, {"nodes": answers, "done": True}, former_view(answers, done=True))
    if log and not any(answer.freed for answer in answers):
        raise Refused(next(kept.reason for answer in answers for kept in answer.kept))


def _of_log(former: Sequence[FormerStatus], log: str) -> list[FormerStatus]:
    return [each for each in former if log in ("", each.name, each.log_id)]


def former_view(answers: Sequence[FormerFreed], *, done: bool) -> View:
    """What is freed, or would be, and what is not. Pure."""
    rows = [former_row(answer.node, each) for answer in answers for each in answer.freed]
    kept = [
        f"{f'{each.name} on ' if each.name else ''}{answer.node}: {each.reason}"
        for answer in answers
        for each in answer.kept
    ]
    title = "FREED" if done else "FORMER copies"
    parts: list[View] = [former_table(rows, title)] if rows else [Line("nothing to free")]
    return Stack.of(*parts, *(Line(line, style="yellow") for line in kept))


def former_table(rows: Sequence[Sequence[str]], title: str = "FORMER copies: mqtool free-former frees them") -> View:
    """Of `former_row`s."""
    return table(title, _FORMER_COLUMNS, rows, numbers=("bytes",))


def former_row(node_id: str, former: FormerStatus) -> tuple[str, ...]:
    """What a node holds of a log that is none of its own any more."""
    goes = time_text(former.goes_us) if former.goes_us else "never"
    log_is = "the log was removed" if former.removed else ""
    return (
        former.name or former.log_id, node_id, bytes_text(former.size_bytes), time_text(former.since_us), goes, log_is,
    )  # fmt: skip
