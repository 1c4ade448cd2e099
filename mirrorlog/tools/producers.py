"""`mqtool producers`: who has published what is not confirmed yet, and who is held up by which limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from mirrorlog.tools.cluster_status import authorities, gather, key_of, select
from mirrorlog.tools.output import NOTHING, bytes_text, print_json, show, table
from mirrorlog.tools.session import AsJson, OnlyVirtualHost, session_of
from mirrorlog.wire.messages import ProducerStatus
from mirrorlog.wire.names import shown


def producers(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only of this queue.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """List the producers with something that is not confirmed by all copies in sync, those that a limit holds first.

    At most 100 of each log. `refused`: it has sent more than it may, and was told so.

    Example: mqtool producers flights
    """
    key = key_of(vhost, queue)
    status = select(session_of(context).run(gather), queue=key, vhost=vhost)
    found = [each for copy in authorities(status) for each in copy.log.producers]
    if as_json:
        print_json(found)
    else:
        show(producers_view(found))


def producers_view(found: Sequence[ProducerStatus]) -> RenderableType:
    """One row per producer and queue. Pure."""
    rows = [
        (
            shown(each.queue),
            str(each.producer_id),
            each.peer,
            bytes_text(each.unconfirmed_bytes),
            str(each.unconfirmed_batches),
            each.blocked_by or NOTHING,
            f"{each.blocked_ms / 1000:.1f} s" if each.blocked_by else NOTHING,
            "yes" if each.refused else NOTHING,
        )
        for each in found
    ]
    columns = ("queue", "producer", "from", "unconfirmed", "batches", "held by", "since", "refused")
    return table("", columns, rows, numbers=("unconfirmed", "batches", "since"))
