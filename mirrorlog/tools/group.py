"""`mqtool groups`, `group-delete`, `group-reset`: where consumer groups stand, and moving them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mirrorlog.diagnosis.cells import NOTHING, age_text, ago_text, printable, target_of
from mirrorlog.diagnosis.cluster_status import authorities, gather, key_of, select
from mirrorlog.errors import AccessRefused, BadInput, NoSuchGroup, UnsupportedVersion
from mirrorlog.tools.common.options import AsJson, IfExists, OnlyVirtualHost, QueueName, VirtualHost
from mirrorlog.tools.common.output import emit, emit_with_outages, table, yes_no
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import Line, Stack, View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.wire.messages.groups import GroupInfo, GroupMove, GroupsFound, GroupsReset
from mirrorlog.wire.messages.queues import Position, QueueOutage
from mirrorlog.wire.messages.status import AckingGroupStatus, GroupStatus
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown, split

if TYPE_CHECKING:
    from mirrorlog.client import Client

_ACKING: Final = "acking"
_STREAM: Final = "stream"
_UNTOLD: Final = 0
"""For an epoch; the first one is 1."""
_OWN: Final = "(own)"
_Asked = tuple[list[GroupStatus], GroupsFound | None, list[QueueOutage], list[AckingGroupStatus]]
_COUNTS: Final = ("floor", "ready", "out", "leased", "parked", "unsettled", "subscribers")


@watchable
def groups(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only the groups of this queue.", show_default=False)] = None,
    as_json: AsJson = False,
    vhost: OnlyVirtualHost = None,
) -> None:
    """List all consumer groups: positions, and how many confirmed records each has not yet passed; of those that ack
    how many records are ready, with somebody, delayed, dead-lettered, how old the first is at least, and rates.

    With a queue's name also who takes from it: below the floor of a group all is settled; ready records wait, others
    are out with subscribers, leased, or parked until a delay's end. The queue's own group has no name. Queues of which
    no node can tell come last, with the reason.

    Example: mqtool groups flights
    """

    name = key_of(vhost, queue)

    async def ask(client: Client) -> _Asked:
        # The queue's master first: it says what is wrong with the queue, and asks for no right to see nodes' states.
        found = None if name is None else await _found(client, name)
        try:
            status = select(await gather(client), queue=name, vhost=vhost)
        except AccessRefused:
            if found is None:
                raise
            return stands_of(found), found, [], []
        best = authorities(status)
        stands = [group for copy in best for group in copy.log.groups]
        return stands, found, status.outages, [each for copy in best for each in copy.log.acking]

    stands, found, outages, waiting = session_of(context).run(ask, vhost=vhost)
    acking = [] if found is None else _acking(found)
    views = [groups_view(stands), *waiting_view(waiting)]
    if found is None:
        emit_with_outages(as_json, [*stands, *map(waiting_fields, waiting)], Stack.of(*views), outages)
        return
    told = {each.group: waiting_fields(each) for each in waiting}
    rows = [*stands, *({**told.get(each.group, {}), **_fields(queue or "", each)} for each in acking)]
    views += [Line(), acking_view(acking), *consumers_view(acking, found.now_us)]
    emit_with_outages(as_json, rows, Stack.of(*views), outages)


def waiting_fields(group: AckingGroupStatus) -> dict[str, Any]:
    """For programs. Pure."""
    told = {name: getattr(group, name) for name in group.__struct_fields__}
    return {**told, "queue": split(group.queue)[1], "vhost": split(group.queue)[0], "kind": _ACKING}


def waiting_view(found: Sequence[AckingGroupStatus]) -> list[View]:
    """One row per group that acks, as the master of its log tells; nothing without any. Pure."""
    rows = [
        (
            shown(each.queue),
            each.group or _OWN,
            *map(str, (each.ready, each.unacknowledged, each.delayed, each.dead_lettered, each.consumers)),
            age_text(each.oldest_age_ms),
            f"{each.deliver_rate:.1f}",
            f"{each.ack_rate:.1f}",
        )
        for each in found
    ]
    numbers = ("ready", "unacked", "delayed", "dead", "consumers", "oldest", "deliver/s", "ack/s")
    return [Line(), table("WAITING", ("queue", "group", *numbers), rows, numbers=numbers)] if rows else []


async def _found(client: Client, queue: str) -> GroupsFound | None:
    try:
        return await client.admin.groups(queue)
    except UnsupportedVersion:
        return None  # the cluster has none that ack before all of its nodes are new enough


def _acking(found: GroupsFound) -> list[GroupInfo]:
    return [each for each in found.groups if each.kind == _ACKING]


def stands_of(found: GroupsFound) -> list[GroupStatus]:
    """The positions of the stream groups, as the master lists them beside the others: without log and epoch. Pure."""
    return [
        GroupStatus(
            group=each.group,
            queue=found.queue,
            position=Position(log_id="", epoch=_UNTOLD, queue_offset=each.floor),
            lag=max(0, found.next - each.floor),
        )
        for each in found.groups
        if each.kind == _STREAM
    ]


def _fields(queue: str, group: GroupInfo) -> dict[str, Any]:
    return {"group": group.group, "queue": queue, **{name: getattr(group, name) for name in group.__struct_fields__}}


def groups_view(found: Sequence[GroupStatus], *, title: str = "") -> View:
    """One row per group. Pure."""
    rows = [
        (
            shown(group.queue),
            group.group,
            str(group.position.epoch or NOTHING),
            str(group.position.queue_offset),
            str(group.lag),
        )
        for group in found
    ]
    numbers = ("epoch", "position", "lag")
    return table(title, ("queue", "group", *numbers), rows, numbers=numbers)


def consumers_view(found: Sequence[GroupInfo], now_us: int = 0) -> list[View]:
    """The consumers of groups, and the leases: a table of each of which there is one. `now_us`: µs UTC, by the clock of
    their master. Pure."""
    consumers = [
        (
            _name(group),
            printable(each.name),
            each.peer,
            str(each.priority),
            str(each.in_hand),
            yes_no(each.alone),
            ago_text(each.since_us or None, now_us),
            ago_text(each.held_since_us or None, now_us),
        )
        for group in found
        for each in group.consumers
    ]
    leases = [
        (
            _name(group),
            printable(each.holder),
            str(each.records),
            ago_text(each.since_us or None, now_us),
            NOTHING if each.ends_in_ms < 0 else f"{each.ends_in_ms / 1000:.1f} s",
        )
        for group in found
        for each in group.leases
    ]
    views: list[View] = []
    if consumers:
        of_each = ("group", "name", "peer", "priority", "in hand", "alone", "since", "holds since")
        views.append(table("CONSUMERS", of_each, consumers, numbers=("priority", "in hand")))
    if leases:
        columns = ("group", "holder", "records", "since", "ends in")
        views.append(table("LEASES", columns, leases, numbers=("records", "ends in")))
    return views


def _name(group: GroupInfo) -> str:
    return group.group or _OWN


def acking_view(found: Sequence[GroupInfo]) -> View:
    """One row per group that acks. Pure."""
    rows = [(_name(each), *(str(getattr(each, name)) for name in _COUNTS)) for each in found]
    return table("GROUPS THAT ACK", ("group", *_COUNTS), rows, numbers=_COUNTS)


def group_delete(
    context: typer.Context,
    queue: QueueName,
    group: Annotated[str, typer.Argument(help="The group, as `mqtool groups QUEUE` names it.")],
    *,
    if_exists: IfExists = False,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Forget a group of a queue, and wait until that is confirmed. Its subscriptions end; its records stay.

    A group that acks begins anew, at the queue's start offset, when somebody subscribes to it again. The queue's own
    group goes with the queue: `mqtool purge` empties it.

    Example: mqtool group-delete flights billing
    """

    if not group:
        raise BadInput("the queue's own group goes with the queue; empty it with: mqtool purge")

    async def delete(client: Client) -> GroupInfo:
        name = qualified(vhost, queue)
        known = (await client.admin.groups(name)).groups
        for each in known:
            if each.group == group:
                await client.admin.delete_group(name, group)
                return each
        names = ", ".join(each.group for each in known if each.group) or "none"
        raise NoSuchGroup(f"queue {queue!r} has no group {group!r}; it has {names}")

    deleted = session_of(context).remove(delete, f"group {group} of queue {queue}", if_exists=if_exists)
    emit(as_json, deleted, f"{deleted.kind} group {group} of queue {queue} deleted; it stood at {deleted.floor}")


def group_reset(
    context: typer.Context,
    queue: QueueName,
    groups: Annotated[
        list[str] | None,
        typer.Argument(help="Groups, as `mqtool groups QUEUE` names them; '' or (own) is the queue's own."),
    ] = None,
    *,
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, a queue offset, +N or -N records, or a time (ISO 8601).")
    ],
    every: Annotated[bool, typer.Option("--all", help="All groups of the queue, all of them or none.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would move.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also while somebody is at a group; its subscriptions and leases end.")
    ] = False,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Have groups of a queue read on from somewhere else, and wait until that is confirmed.

    Groups that ack forget what they have settled, returned or leased; of stream groups the position moves. Refused
    while somebody is subscribed, or has unacknowledged records, or was heard of in the last ten seconds, unless forced.

    Example: mqtool group-reset flights billing --to earliest --dry-run
    """
    if every and groups:
        raise BadInput("name the groups that are to be reset, or give --all, not both")
    if not every and not groups:
        raise BadInput("name the groups that are to be reset, or give --all")
    named = None if every else ["" if group == _OWN else group for group in groups or ()]
    target = target_of(to)
    key = qualified(vhost, queue)

    async def reset(client: Client) -> GroupsReset:
        try:
            return await client.admin.reset_groups(key, named, dry_run=dry_run, force=force, **target)
        except NoSuchGroup:
            raise await _no_such_group(client, key, named or []) from None

    found = session_of(context).run(reset)
    emit(as_json, found, reset_view(found, forced=force))


async def _no_such_group(client: Client, queue: str, named: list[str]) -> NoSuchGroup:
    """Says which there are."""
    there = sorted(each.group for each in (await client.admin.groups(queue)).groups)
    missing = ", ".join(repr(group or _OWN) for group in named if group not in there)
    have = ", ".join(group or _OWN for group in there) or "none"
    return NoSuchGroup(f"queue {shown(queue)} has no group {missing}; it has {have}")


def reset_view(found: GroupsReset, *, forced: bool) -> View:
    """One row per group. Pure."""
    if not found.groups:
        return Line("the queue has no group")
    rows = [
        (
            each.group or _OWN,
            each.kind,
            str(each.source.queue_offset),
            str(each.target.queue_offset),
            f"{each.target.queue_offset - each.source.queue_offset:+d}",
            _note(each, found, forced),
        )
        for each in found.groups
    ]
    numbers = ("from", "to", "by")
    return table("", ("group", "kind", *numbers, ""), rows, numbers=numbers)


def _note(move: GroupMove, found: GroupsReset, forced: bool) -> str:
    who = f": {move.active}" if move.active else ""
    if found.done:
        # A reader is told of nothing: what it stores next is where it stands.
        back = "; it stores its old position again: stop it, and reset once more" if move.kind == _STREAM else ""
        return f"reset by force{who}{back}" if who else "reset"
    if who:
        return f"would be reset by force{who}" if forced else f"would be refused{who}"
    refused = not forced and any(each.active for each in found.groups)
    return "would stay: another one is active" if refused else "would be reset"
