"""`mqtool offsets`: where logs, mirrors, queues and consumer groups stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlog.diagnosis.cells import NOTHING, ago_text, bytes_text, offset_text
from mirrorlog.diagnosis.cluster_status import (
    AllStatuses,
    LogCopy,
    Unreachable,
    authorities,
    copies,
    gather,
    key_of,
    log_names,
    log_warnings,
    newest_view,
    select,
)
from mirrorlog.errors import AccessRefused, LoginFailed
from mirrorlog.tools.cluster import former_row, former_table
from mirrorlog.tools.common.options import AsJson, OnlyVirtualHost
from mirrorlog.tools.common.output import emit, table, yes_no
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import Line, Stack, View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.tools.group import groups_view
from mirrorlog.wire.messages.status import MirrorStatus, PlacedLog
from mirrorlog.wire.names import shown

if TYPE_CHECKING:
    from mirrorlog.client import Client

# The tables of `mqtool offsets`: one per kind, each within 100 columns. Pure: a status in, something to print out.


def offsets_view(status: AllStatuses, names: Mapping[str, str] | None = None) -> View:
    """All tables that have rows, with a blank line between, and what is wrong in plain words below the first. `names`:
    of logs by id, also of those that the status is without."""
    best = authorities(status)
    parts = [_logs(status), *_notes(status, best), *_placement(status), *_mirrors(best), *_queues(best)]
    parts += [*_left(best, log_names(status) if names is None else names), *_groups(best), *_former(status)]
    return Stack.of(*_spaced(parts))


def unreachable_text(node: Unreachable) -> str:
    refuses = node.error in {AccessRefused.code, LoginFailed.code}
    return f"{node.node_id} {'refuses' if refuses else 'does not answer'}: {node.message}"


def _spaced(parts: list[View]) -> Iterator[View]:
    for index, part in enumerate(parts):
        if index and not isinstance(part, Line):
            yield Line()
        yield part


def _logs(status: AllStatuses) -> View:
    rows: list[tuple[str, ...]] = [
        (
            log.name,
            copy.node_id,
            log.role,
            log.state,
            str(log.epoch),
            str(log.begin),
            str(log.end),
            str(log.flushed),
            str(log.confirmed),
        )
        for copy in copies(status)
        for log in [copy.log]
    ]
    for unreached in status.unreached:
        where = ", ".join(unreached.nodes) or NOTHING
        rows.append((unreached.name, where, NOTHING, "not reached", *[NOTHING] * 5))
    numbers = ("epoch", "begin", "end", "flushed", "confirmed")
    return table(f"LOGS of {status.cluster_name}", ("log", "node", "role", "state", *numbers), rows, numbers=numbers)


def _notes(status: AllStatuses, best: list[LogCopy]) -> Iterator[Line]:
    """What a reader of the table must know."""
    for node in status.unreachable:
        yield Line(unreachable_text(node), style="red")
    for log in status.unreached:
        yield Line(f"log {log.name} is not reached: {log.reason}", style="red")
    for outage in status.outages:
        yield Line(outage.reason, style="red")
    for copy in copies(status):
        if copy.log.reason:
            yield Line(f"{copy.log.name} on {copy.node_id} is {copy.log.state}: {copy.log.reason}", style="yellow")
    for copy in best:
        if copy.log.role != "master":
            yield Line(
                f"{copy.log.name}: its master does not answer; mirrors' lags are not known, the rest is as "
                f"{copy.node_id} has it",
                style="yellow",
            )


def _placement(status: AllStatuses) -> list[View]:
    """What the cluster has decided."""
    view = newest_view(status.nodes)
    logs = view.logs if view is not None else []
    if not logs:
        return []
    rows = [
        (
            log.name,
            log.master or NOTHING,
            str(log.epoch),
            ", ".join(_in_sync_text(log)) or NOTHING,
            str(log.copies_wanted),
            ", ".join(log.replicas) or NOTHING,
        )
        for log in logs
    ]
    numbers = ("epoch", "needed")
    columns = ("log", "master", "epoch", "in sync", "needed", "copies, the home first")
    lines = [*view.advice, *(line for log in logs for line in log_warnings(log))] if view is not None else []
    return [
        table("MASTERS and in-sync sets, as the cluster has decided", columns, rows, numbers=numbers),
        *(Line(line, style="yellow") for line in lines),
    ]


def _former(status: AllStatuses) -> list[View]:
    rows = [former_row(node.node_id, each) for node in status.nodes for each in node.former]
    return [former_table(rows)] if rows else []


def _in_sync_text(log: PlacedLog) -> list[str]:
    """A marked member may have lost something: it confirms nothing, and is not promoted."""
    return [f"{node} (marked)" if node in log.marked else node for node in log.in_sync]


def _mirrors(best: list[LogCopy]) -> list[View]:
    rows = [(copy, mirror) for copy in best for mirror in copy.log.mirrors]
    if not rows:
        return []
    offsets = ("requested", "sent", "acked", "flushed")
    lags = ("bytes", "records", "seconds", "bytes/s", "last read", "last write")
    return [
        table(
            "MIRRORS, as their master sees them",
            ("log", "mirror", "link", "in sync", *offsets),
            [_offsets_row(copy, mirror) for copy, mirror in rows],
            numbers=offsets,
        ),
        table(
            "LAG of mirrors behind their master",
            ("log", "mirror", *lags),
            [_lag_row(copy, mirror) for copy, mirror in rows],
            numbers=lags,
        ),
    ]


def _offsets_row(copy: LogCopy, mirror: MirrorStatus) -> tuple[str, ...]:
    offsets = (mirror.requested, mirror.sent, mirror.acked, mirror.flushed)
    return (copy.log.name, mirror.node_id, _link(mirror), yes_no(mirror.in_sync), *map(offset_text, offsets))


def _link(mirror: MirrorStatus) -> str:
    """A link is proven once the mirror's history was found to be its master's."""
    if mirror.connected:
        return "up" if mirror.proven else "unproven"
    return "down"


def _lag_row(copy: LogCopy, mirror: MirrorStatus) -> tuple[str, ...]:
    estimated = "~" if mirror.lag_records_estimated else ""
    return (
        copy.log.name,
        mirror.node_id,
        bytes_text(mirror.lag_bytes),
        f"{estimated}{mirror.lag_records}",
        f"{mirror.lag_seconds:.3f}",
        bytes_text(mirror.bytes_per_second),
        ago_text(mirror.last_read_us, copy.now_us),
        ago_text(mirror.last_write_us, copy.now_us),
    )


def _queues(best: list[LogCopy]) -> list[View]:
    rows = [
        (shown(queue.name), str(queue.queue_id), copy.log.name, str(queue.begin), str(queue.next), str(queue.confirmed))
        for copy in best
        for queue in copy.log.queues
    ]
    numbers = ("first", "next", "confirmed")
    return [table("QUEUES", ("queue", "id", "log", *numbers), rows, numbers=numbers)] if rows else []


def _left(best: list[LogCopy], names: Mapping[str, str]) -> list[View]:
    rows = [
        (shown(left.queue), copy.log.name, str(left.begin), str(left.next), names.get(left.moved_to, left.moved_to))
        for copy in best
        for left in copy.log.left
        if left.moved_to != copy.log.log_id
    ]
    columns = ("queue", "in log", "first", "next", "moved to")
    return [table("RECORDS in former logs of their queues", columns, rows, numbers=("first", "next"))] if rows else []


def _groups(best: list[LogCopy]) -> list[View]:
    groups = [group for copy in best for group in copy.log.groups]
    return [groups_view(groups, title="CONSUMER GROUPS")] if groups else []


@watchable
def offsets(
    context: typer.Context,
    *,
    node: Annotated[str | None, typer.Option(help="Only this node, as holder or as mirror.")] = None,
    log: Annotated[str | None, typer.Option(help="Only this log (name or id).")] = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue, its groups and its logs.")] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """Show the offsets of logs, mirrors, queues and consumer groups.

    Every node is asked; those that do not answer are named. Log offsets are bytes, queue offsets records; `~` marks an
    estimate. With --watch --json each refresh is one line.

    Example: mqtool offsets --queue flights --watch --every 2
    """
    session = session_of(context)

    async def look(client: Client) -> tuple[AllStatuses, dict[str, str]]:
        whole = await gather(client)
        return select(whole, node=node, log=log, queue=key_of(vhost, queue), vhost=vhost), log_names(whole)

    status, names = session.run(look, vhost=vhost)
    emit(as_json, status, offsets_view(status, names))
