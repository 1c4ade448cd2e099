"""`mqtool rates`: how many records go through each queue, now and since its master's process began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType

from mirrorlog.tools.cluster_status import authorities, gather, key_of, select
from mirrorlog.tools.output import print_json, show, table
from mirrorlog.tools.session import AsJson, OnlyVirtualHost, session_of
from mirrorlog.wire.messages import QueueCounts, QueueStatus
from mirrorlog.wire.names import shown


def rates(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only this queue.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """List how many records a second are published to each queue, given out, given out again and acked.

    Of the last five to ten seconds, as the master of the queue counts them; then the counts since its process began.

    Example: mqtool rates flights
    """
    key = key_of(vhost, queue)
    status = select(session_of(context).run(gather), queue=key, vhost=vhost)
    found = [each for copy in authorities(status) for each in copy.log.queues]
    if as_json:
        print_json(found)
    else:
        show(rates_view(found))


def rates_view(found: Sequence[QueueStatus]) -> RenderableType:
    """One row per queue. Pure."""
    rows = [(shown(each.name), *_cells(each.counts or QueueCounts())) for each in found]
    numbers = ("publish/s", "deliver/s", "again/s", "ack/s", "published", "delivered", "again", "acked")
    return table("", ("queue", *numbers), rows, numbers=numbers)


def _cells(counts: QueueCounts) -> list[str]:
    rates = (counts.publish_rate, counts.deliver_rate, counts.redeliver_rate, counts.ack_rate)
    totals = (counts.published, counts.delivered, counts.redelivered, counts.acked)
    return [*(f"{each:.1f}" for each in rates), *map(str, totals)]
