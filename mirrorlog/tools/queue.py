"""Queues by `mqtool`: list, declare, alter, sync, delete, purge, redrive, find an offset."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from mirrorlog.diagnosis.cells import NOTHING, bytes_text, parse_time
from mirrorlog.diagnosis.cluster_status import lefts_of, syncs_of
from mirrorlog.diagnosis.places import altered_text, nodes_note, stays_text, sync_text
from mirrorlog.errors import BadInput, MirrorlogError, NoSuchQueue
from mirrorlog.tools.common.options import (
    AckingGroup,
    AsJson,
    IfExists,
    OnlyVirtualHost,
    QueueName,
    VirtualHost,
    parse_arguments,
)
from mirrorlog.tools.common.output import emit, emit_with_outages, print_json, print_json_line, table
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import Line, Stack, View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.tools.flow import waiting_fields, waiting_of, waiting_view
from mirrorlog.wire.messages.groups import REDRIVE_MAX
from mirrorlog.wire.messages.queues import AlteredQueue, Metadata, QueueInfo, QueueSync
from mirrorlog.wire.messages.status import QueueStatus
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown, split

if TYPE_CHECKING:
    from mirrorlog.client import Client

_EVERY_S: Final = 1.0
"""Between two looks of --watch."""
_NAMED_MAX: Final = 10


@watchable
def queues(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Only these queues.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """List the queues: their nodes, their confirmed records, their arguments.

    Of the whole cluster, whichever node is asked; `next` is the queue offset after the last confirmed record. Below it,
    for who may see that: what waits in each (its own group; mqtool groups has the others), how old the first of it is
    at least, and records a second. Queues of
    which no node can tell come last, with the reason; in JSON they have `outage` in place of what a node would tell.
    What former logs keep of queues that have moved stands below, in JSON as `former`.

    Example: mqtool queues flights
    """
    keys = [qualified(vhost or DEFAULT_VIRTUAL_HOST, name) for name in names or []]

    async def ask(client: Client) -> tuple[Metadata, dict[str, QueueSync], dict[str, QueueStatus]]:
        metadata = await client.admin.metadata(keys or None)
        _refuse_missing(metadata)
        found = metadata if vhost is None else within(metadata, vhost)
        syncs = {**await syncs_of(client, found.queues), **await lefts_of(client, found.outages)}
        return found, syncs, await waiting_of(client, found)

    metadata, syncs, told = session_of(context).run(ask, vhost=vhost)
    rows = [queue_fields(queue, syncs.get(queue.name), told.get(queue.name)) for queue in metadata.queues]
    views = [queues_view(metadata.queues), *waiting_view(list(told.values())), *former_view(list(syncs.values()))]
    formers = {name: {"former": msgspec.to_builtins(sync.spans)} for name, sync in syncs.items()}
    emit_with_outages(as_json, rows, Stack.of(*views), metadata.outages, formers)


def queue_fields(queue: QueueInfo, sync: QueueSync | None, status: QueueStatus | None = None) -> dict[str, Any]:
    """For programs; `former`: what former logs keep of it; `waiting`: what its own group has, and how fast. Pure."""
    told: dict[str, Any] = msgspec.to_builtins(queue)
    if status is not None and status.ready >= 0:
        told["waiting"] = waiting_fields(status)
    return told if sync is None else {**told, "former": msgspec.to_builtins(sync.spans)}


def within(metadata: Metadata, vhost: str) -> Metadata:
    """Queues of that virtual host alone, those that cannot be asked for too. Pure."""
    queues = [queue for queue in metadata.queues if split(queue.name)[0] == vhost]
    outages = [outage for outage in metadata.outages if split(outage.name)[0] == vhost]
    return msgspec.structs.replace(metadata, queues=queues, outages=outages)


def queues_view(found: Sequence[QueueInfo]) -> View:
    """One row per queue. Pure."""
    rows = [
        (
            shown(queue.name),
            str(queue.queue_id),
            " > ".join([queue.master, *([", ".join(queue.mirrors)] if queue.mirrors else [])]),
            str(queue.epoch),
            str(queue.begin),
            str(queue.next),
            ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in queue.arguments.items()),
        )
        for queue in found
    ]
    numbers = ("epoch", "first", "next")
    view: View = table("", ("queue", "id", "master > mirrors", *numbers, "arguments"), rows, numbers=numbers)
    reasons = {queue.log_id: queue.reason for queue in found if queue.reason}
    for log_id, reason in reasons.items():
        names = [shown(queue.name) for queue in found if queue.log_id == log_id]
        who = ", ".join(names[:_NAMED_MAX]) + (f" and {len(names) - _NAMED_MAX} more" if names[_NAMED_MAX:] else "")
        view = Stack.of(view, Line(f"\nno master: {who}: {reason}", style="red"))
    if not any(queue.begin and not queue.current for queue in found):
        return view
    # A mirror that began late shows less than there is; that it did, it does not know.
    return Stack.of(view, Line("\nfirst: where a master does not answer, as a mirror has it; the master may have more"))


def _refuse_missing(metadata: Metadata) -> None:
    missing = sorted(set(metadata.missing) - {outage.name for outage in metadata.outages})
    if missing:
        vhost, name = split(missing[0])
        option = "" if vhost == DEFAULT_VIRTUAL_HOST else f" --vhost {vhost}"
        named = ", ".join(repr(split(each)[1]) for each in missing)
        where = "" if vhost == DEFAULT_VIRTUAL_HOST else f" in virtual host {vhost}"
        raise NoSuchQueue(f"no queue {named}{where}; make it with: mqtool declare {name}{option}")


def declare(
    context: typer.Context,
    *,
    name: QueueName,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument, see above; JSON or text. Repeatable."),
    ] = None,
    durable: Annotated[
        bool, typer.Option("--durable/--not-durable", help="Not durable: gone with the node that is asked.")
    ] = True,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Gone with its last subscriber, once it had one.")
    ] = False,
    expires: Annotated[
        int | None, typer.Option("--expires", metavar="MS", help="Gone when nobody has used it for so long.")
    ] = None,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: AsJson = False,
) -> None:
    """Make a queue, and wait until that is confirmed.

    Nothing happens when it exists with the same arguments; with others it is an error (exit code 6).

    Arguments: retention_ms and retention_bytes, how long its records are kept at least and how many bytes of them, -1
    for what the log has; flush, memory or disk: a log of that mode. All are in docs/reference; one that is
    not known is an error. An exclusive queue is its user's to declare: it goes with the connection.

    Example: mqtool declare flights --arg retention_ms=604800000
    """
    arguments = parse_arguments(arg or [])
    if arguments.get("exclusive"):
        raise BadInput("an exclusive queue goes with the connection that declares it, here at once; let its user do so")
    if not durable:
        arguments["durable"] = False
    if auto_delete:
        arguments["auto-delete"] = True
    if expires is not None:
        arguments["x-expires"] = expires

    async def make(client: Client) -> QueueInfo:
        made = await client.admin.declare(qualified(vhost, name), arguments)
        await _note_nodes(client, made.name, arguments)
        return made

    queue = session_of(context).run(make)
    emit(
        as_json,
        queue,
        f"queue {shown(queue.name)} is there: id {queue.queue_id}, master {queue.master}, next {queue.next}",
    )


def delete(
    context: typer.Context,
    queue: QueueName,
    *,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only when its groups have settled all.")] = False,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only while nobody consumes from it; readers at mirrors do not count.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also when a landing holds records of it.")] = False,
    if_exists: IfExists = False,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Delete a queue with its records, groups and bindings, for good, and wait until that is confirmed.

    Whoever publishes to it, reads it or is subscribed to it is told so. A queue declared under its name afterwards is
    another one. To keep the queue and settle what waits in it: mqtool purge.

    Example: mqtool delete flights --if-unused
    """
    name = qualified(vhost, queue)

    async def remove(client: Client) -> tuple[int, bool]:
        works = await _is_worked(client, name)
        return await client.admin.delete_queue(name, if_empty=if_empty, if_unused=if_unused, force=force), works

    records, works = session_of(context).remove(remove, f"queue {queue}", if_exists=if_exists)
    count = f"{records} record{'' if records == 1 else 's'}"
    emit(
        as_json,
        {"queue": queue, "records": records},
        f"queue {queue} deleted; {f'{count} had not been settled' if works else f'it had {count}'}",
    )


async def _is_worked(client: Client, queue: str) -> bool:
    """Whether anybody was ever subscribed to its own group: in a stream nothing waits to be settled."""
    with contextlib.suppress(MirrorlogError):  # what counts is whether it can be deleted
        return any(not each.group for each in (await client.admin.groups(queue)).groups)
    return True


def alter_queue(
    context: typer.Context,
    queue: QueueName,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument as it shall be; null takes it away. Repeatable."),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done and copied.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="It stays where it is, whatever it asked for.")] = False,
    sync: Annotated[bool, typer.Option("--sync", help="Have its records copied to the log that it goes to.")] = False,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Change where a queue is: how many copies it has, on which nodes, in memory or on disk.

    Arguments: copies, nodes (a JSON list), flush, min_in_sync, queue-master-locator; copies replaces nodes, and nodes
    copies. What is asked for is decided when this returns; the queue moves while it is used. Queues of one x-log-group
    go together. A move that does not come about is tried again (mqtool rebalance --dry-run shows why), until --cancel:
    then the queue asks for what it has.

    Example: mqtool alter-queue flights --arg copies=2 --dry-run
    """
    arguments = parse_arguments(arg or [])
    if cancel:
        if arguments or dry_run or sync:
            raise BadInput("--cancel stands alone: it changes nothing but what the queue asks for")
        stays = session_of(context).run(lambda client: client.admin.cancel_move(qualified(vhost, queue)))
        emit(as_json, stays, stays_text(stays))
        return
    if not arguments:
        raise BadInput("nothing to change; say what with --arg, such as --arg copies=2")

    async def alter(client: Client) -> AlteredQueue:
        found = await client.admin.alter(qualified(vhost, queue), arguments, dry_run=dry_run, sync=sync)
        await _note_nodes(client, qualified(vhost, queue), arguments)
        return found

    found = session_of(context).run(alter)
    emit(as_json, found, altered_text(found, sync=sync))


async def _note_nodes(client: Client, queue: str, arguments: Mapping[str, Any]) -> None:
    """A node that is not there is no error, for it may come: but somebody may have mistyped it."""
    if "nodes" in arguments:
        members = [node.node_id for node in (await client.admin.metadata([queue])).nodes]
        if note := nodes_note(arguments, members):
            typer.echo(f"NOTED  {note}", err=True)


def sync_queue(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Queues that have moved.")],
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="Copy no more of it; what is copied stays.")] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Begin it, as without this, and show how far it is until all is copied."),
    ] = False,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Copy what queues have left in former logs to the log that each is in, which frees the former ones.

    It is done in the background, while the queues are used, up to cluster.move_bytes_per_s on each node, and goes on
    with another master. Records that retention frees meanwhile are not copied. --watch begins it, too: Ctrl-C ends what
    is shown, and the copying goes on. mqtool queues shows what is left and begins nothing. With --watch --json each
    look is a line.

    Example: mqtool sync-queue flights --watch
    """
    if cancel and watch:
        raise BadInput("give --cancel or --watch, not both")
    session, keys = session_of(context), [qualified(vhost, name) for name in names]

    async def wish(client: Client) -> list[QueueSync]:
        ask = client.admin.cancel_sync_queue if cancel else client.admin.sync_queue
        return [await ask(key) for key in keys]

    async def look(client: Client) -> list[QueueSync]:
        return [await client.admin.queue_sync(key) for key in keys]

    found = session.run(wish)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            while any(sync.spans for sync in found):
                _show_syncs(found, as_json=as_json)
                time.sleep(_EVERY_S)
                with contextlib.suppress(MirrorlogError):  # nobody can say at the moment
                    found = session.run(look)
        _show_syncs(found, as_json=as_json)
    else:
        emit(as_json, found, "\n".join(map(sync_text, found)))


def cancel_sync_queue(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Queues that are being synced.")],
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Copy no more of what queues have left in former logs; what is copied stays. As sync-queue --cancel.

    Example: mqtool cancel-sync-queue flights
    """
    sync_queue(context, names, cancel=True, as_json=as_json, vhost=vhost)


def _show_syncs(found: Sequence[QueueSync], *, as_json: bool) -> None:
    if as_json:
        print_json_line(found)
    else:
        typer.echo("\n".join(map(sync_text, found)))


def purge(
    context: typer.Context,
    queue: QueueName,
    group: AckingGroup = "",
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Settle every record that waits in a queue, and wait until that is confirmed.

    Records that a consumer has not acknowledged, or has leased, stay with it. Other groups keep theirs, and readers of
    the queue as a stream still find the records, as long as they are kept.

    Example: mqtool purge flights
    """
    records = session_of(context).run(lambda client: client.admin.purge(qualified(vhost, queue), group))
    if as_json:
        print_json({"queue": queue, "group": group, "records": records})
    else:
        where = f"group {group} of queue {queue}" if group else f"queue {queue}"
        typer.echo(f"{records} record{'' if records == 1 else 's'} purged from {where}")


def redrive(  # noqa: PLR0917  (typer makes them options, nobody passes them by position)
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue that has them, as one for dead letters.")],
    to: Annotated[str, typer.Option("--to", help="The queue for all of them; by default where each died last.")] = "",
    most: Annotated[
        int, typer.Option("--max", min=1, max=REDRIVE_MAX, help="So many at most, the oldest ones.")
    ] = REDRIVE_MAX,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Send records that wait in a queue back to where they died, without the headers that tell of it.

    Records that a consumer has not acknowledged stay with it. The others arrive a moment later, each once; one that
    never died, or whose queue is gone, stays: so fewer may leave than are looked at. Asked again, it sends those that
    have come since.

    Example: mqtool redrive flights.dead --max 100
    """
    key = qualified(vhost, queue)
    records = session_of(context).run(lambda client: client.admin.redrive(key, to=to, records_max=most))
    emit(
        as_json,
        {"queue": queue, "to": to, "records": records},
        _told(records, f"queue {to}" if to else "where it died"),
    )


def _told(records: int, where: str) -> str:
    """What the node answers is how many wait; which of them may go it sees when it has read them."""
    if not records:
        return "no record waits"
    looked_at = "1 record is" if records == 1 else f"up to {records} records are"
    return f"{looked_at} looked at; each that may go leaves for {where}"


def find_offset(
    context: typer.Context,
    queue: QueueName,
    time: Annotated[str, typer.Argument(help="ISO 8601; UTC without a zone.")],
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
    as_json: AsJson = False,
) -> None:
    """Print the first queue offset whose batch was appended at or after a time; the next offset when there is none.

    Example: mqtool find-offset flights 2026-11-21T10:15:00Z
    """
    append_time_us = parse_time(time)
    found = session_of(context).run(lambda client: client.admin.find_offset(qualified(vhost, queue), append_time_us))
    emit(as_json, {"queue": queue, "append_time_us": append_time_us, "queue_offset": found}, str(found))


def former_view(syncs: Sequence[QueueSync]) -> list[View]:
    """What former logs keep of queues that have moved; nothing when none does. Pure."""
    rows = [
        (
            shown(sync.queue),
            span.log,
            sync.log or NOTHING,
            str(span.first),
            str(span.next),
            str(span.records) if span.records >= 0 else "?",
            bytes_text(span.size) if span.size >= 0 else "?",
        )
        for sync in syncs
        for span in sync.spans
    ]
    untold = {(sync.queue, span.log): span.unknown for sync in syncs for span in sync.spans if span.unknown}
    numbers = ("first", "next", "records", "bytes")
    columns = ("queue", "kept by log", "is in log", *numbers)
    title = "FORMER LOGS that keep records, until retention frees them or mqtool sync-queue copies them"
    notes = [Line(f"log {log} of queue {shown(queue)}: {reason}") for (queue, log), reason in untold.items()]
    return [Line(), table(title, columns, rows, numbers=numbers), *notes] if rows else []
