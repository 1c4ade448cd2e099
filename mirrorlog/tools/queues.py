"""`mqtool queues`: which queues there are and where they live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirrorlog.errors import NoSuchQueue
from mirrorlog.tools.output import print_json, show, table
from mirrorlog.tools.session import AsJson, OnlyVirtualHost, session_of
from mirrorlog.wire.messages import Metadata, QueueInfo, QueueOutage
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown, split


def queues(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Only these queues.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """List the queues: their nodes, their confirmed records, their arguments.

    As the connected node knows them; `next` is the queue offset after the last confirmed record. Behind them those that
    nobody can answer for, all of whose nodes are down; in JSON these have `outage` in place of what a node would tell.

    Example: mqtool queues flights
    """
    keys = [qualified(vhost or DEFAULT_VIRTUAL_HOST, name) for name in names or []]
    metadata = session_of(context).run(lambda client: client.admin.metadata(keys or None))
    _refuse_missing(metadata)
    if vhost is not None:
        metadata = within(metadata, vhost)
    if as_json:
        print_json([*metadata.queues, *map(outage_fields, metadata.outages)])
    else:
        show(Group(queues_view(metadata.queues, metadata.node_id), *outages_view(metadata.outages)))


def within(metadata: Metadata, vhost: str) -> Metadata:
    """Queues of that virtual host alone, those that cannot be asked for too. Pure."""
    queues = [queue for queue in metadata.queues if split(queue.name)[0] == vhost]
    outages = [outage for outage in metadata.outages if split(outage.name)[0] == vhost]
    return msgspec.structs.replace(metadata, queues=queues, outages=outages)


def queues_view(found: Sequence[QueueInfo], node_id: str) -> RenderableType:
    """One row per queue, as the node `node_id` knows them. Pure."""
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
    view = table("", ("queue", "id", "master > mirrors", *numbers, "arguments"), rows, numbers=numbers)
    if not any(queue.begin and queue.master != node_id for queue in found):
        return view
    # A mirror that began late shows less than there is; that it did, it does not know.
    return Group(view, Text(f"\nfirst: of the copies on {node_id}; where it is a mirror, their master may have more"))


def outages_view(outages: Sequence[QueueOutage]) -> list[RenderableType]:
    """Why queues cannot be asked for now, a line each; nothing when there are none. Pure."""
    return [Text(f"\n{outages[0].reason}"), *(Text(outage.reason) for outage in outages[1:])] if outages else []


def outage_fields(outage: QueueOutage) -> dict[str, Any]:
    """The same for programs. Pure."""
    told = {"node": outage.node, "since_us": outage.since_us, "reason": outage.reason}
    return {"name": outage.name, "log_id": outage.log_id, "outage": told}


def _refuse_missing(metadata: Metadata) -> None:
    missing = sorted(set(metadata.missing) - {outage.name for outage in metadata.outages})
    if missing:
        vhost, name = split(missing[0])
        option = "" if vhost == DEFAULT_VIRTUAL_HOST else f" --vhost {vhost}"
        named = ", ".join(repr(split(each)[1]) for each in missing)
        where = "" if vhost == DEFAULT_VIRTUAL_HOST else f" in virtual host {vhost}"
        raise NoSuchQueue(f"no queue {named}{where}; make it with: mqtool declare {name}{option}")
