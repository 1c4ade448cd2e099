"""What waits in queues, how fast they go, and who fills them: `mqtool rates`, `producers`, a part of `queues`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mirrorlog.diagnosis.cells import NOTHING, age_text, bytes_text
from mirrorlog.diagnosis.cluster_status import gather, of_queues
from mirrorlog.diagnosis.facts import told_queues
from mirrorlog.errors import AccessRefused
from mirrorlog.tools.common.options import AsJson, OnlyVirtualHost
from mirrorlog.tools.common.output import emit_with_outages, table
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.views import Line, View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.wire.messages.queues import Metadata
from mirrorlog.wire.messages.status import ProducerStatus, QueueCounts, QueueStatus
from mirrorlog.wire.names import shown

if TYPE_CHECKING:
    from mirrorlog.client import Client

_WAITING: Final = ("ready", "unacknowledged", "delayed", "consumers", "oldest_age_ms")
_COUNTED: Final = ("dead_lettered", "publish_rate", "ack_rate")


async def waiting_of(client: Client, found: Metadata) -> dict[str, QueueStatus]:
    """By the masters of their logs, as far as they answer, to those who may ask them."""
    try:
        told = told_queues(await gather(client, found))
    except AccessRefused:
        return {}
    return {each.name: status for each in found.queues if (status := told.get((each.log_id, each.name))) is not None}


def waiting_fields(status: QueueStatus) -> dict[str, Any]:
    """For programs. Pure."""
    counts = status.counts or QueueCounts()
    waits = {name: getattr(status, name) for name in _WAITING}
    return waits | {name: getattr(counts, name) for name in _COUNTED}


def waiting_view(told: Sequence[QueueStatus]) -> list[View]:
    """One row per queue whose master tells; nothing when none does. Pure."""
    rows = [
        (
            shown(each.name),
            str(each.ready),
            str(each.unacknowledged),
            str(max(0, each.delayed)),
            str((each.counts or QueueCounts()).dead_lettered),
            str(each.consumers),
            age_text(each.oldest_age_ms),
            f"{(each.counts or QueueCounts()).publish_rate:.1f}",
            f"{(each.counts or QueueCounts()).ack_rate:.1f}",
        )
        for each in told
        if each.ready >= 0
    ]
    numbers = ("ready", "unacked", "delayed", "dead", "consumers", "oldest", "publish/s", "ack/s")
    return [Line(), table("WAITING", ("queue", *numbers), rows, numbers=numbers)] if rows else []


@watchable
def rates(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only this queue.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """List how many records a second are published to each queue, given out, given out again and acked.

    Of the last five to ten seconds, as the master of the queue counts them; then the counts since its process began.
    Queues of which no node can tell come last, with the reason.

    Example: mqtool rates flights
    """
    found, outages = session_of(context).run(
        lambda client: of_queues(client, lambda log: log.queues, queue=queue, vhost=vhost), vhost=vhost
    )
    emit_with_outages(as_json, found, rates_view(found), outages)


def rates_view(found: Sequence[QueueStatus]) -> View:
    """One row per queue. Pure."""
    rows = [(shown(each.name), *_cells(each.counts or QueueCounts())) for each in found]
    numbers = ("publish/s", "deliver/s", "again/s", "ack/s", "published", "delivered", "again", "acked")
    return table("", ("queue", *numbers), rows, numbers=numbers)


def _cells(counts: QueueCounts) -> list[str]:
    rates = (counts.publish_rate, counts.deliver_rate, counts.redeliver_rate, counts.ack_rate)
    totals = (counts.published, counts.delivered, counts.redelivered, counts.acked)
    return [*(f"{each:.1f}" for each in rates), *map(str, totals)]


@watchable
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
    found, outages = session_of(context).run(
        lambda client: of_queues(client, lambda log: log.producers, queue=queue, vhost=vhost), vhost=vhost
    )
    emit_with_outages(as_json, found, producers_view(found), outages)


def producers_view(found: Sequence[ProducerStatus]) -> View:
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
