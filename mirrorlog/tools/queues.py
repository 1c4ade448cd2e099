"""`mqtool queues`: which queues there are and where they live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirrorlog.errors import NoSuchQueue
from mirrorlog.tools.output import print_json, show, table
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.wire.messages import Metadata, QueueInfo
from mirrorlog.wire.names import shown


def queues(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Only these queues.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List the queues: their nodes, their confirmed records, their arguments.

    As the connected node knows them; `next` is the queue offset after the last confirmed record.

    Example: mqtool queues flights
    """
    metadata = session_of(context).run(lambda client: client.admin.metadata(names or None))
    _refuse_missing(metadata)
    if as_json:
        print_json(metadata.queues)
    else:
        show(queues_view(metadata.queues, metadata.node_id))


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


def _refuse_missing(metadata: Metadata) -> None:
    if metadata.missing:
        raise NoSuchQueue(
            f"no queue {', '.join(map(repr, metadata.missing))}; make it with: mqtool declare {metadata.missing[0]}"
        )
