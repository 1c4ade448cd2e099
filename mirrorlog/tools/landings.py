"""`mqtool landings`: which landings keep records in the log, and how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from mirrorlog.tools.cluster_status import authorities, gather, key_of, select
from mirrorlog.tools.output import NOTHING, bytes_text, print_json, show, table
from mirrorlog.tools.session import AsJson, OnlyVirtualHost, session_of
from mirrorlog.wire.messages import HoldInfo
from mirrorlog.wire.names import shown

if TYPE_CHECKING:
    from mirrorlog.client import Client


def landings(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only those of this queue.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """List the landings that hold records: who, from which queue offset on, and how long without a renewal.

    `lag` counts the confirmed records that are not landed; `kept` is what the log keeps from there on, other queues'
    records among it. One that ended (expired, too-much) holds nothing; `mqtool landing-end` forgets it.

    Example: mqtool landings flights
    """

    async def ask(client: Client) -> list[HoldInfo]:
        status = select(await gather(client), queue=key_of(vhost, queue), vhost=vhost)
        return [hold for copy in authorities(status) for hold in copy.log.holds]

    found = session_of(context).run(ask)
    if as_json:
        print_json(found)
    else:
        show(landings_view(found))


def landings_view(found: Sequence[HoldInfo]) -> RenderableType:
    """One row per hold. Pure."""
    rows = [
        (
            shown(hold.queue),
            hold.name,
            hold.holder,
            str(hold.epoch),
            str(hold.queue_offset),
            str(hold.lag),
            NOTHING if hold.kept_bytes < 0 else bytes_text(hold.kept_bytes),
            hold.ended or _lease(hold),
            "yes" if hold.tiered else "no",
            hold.location or NOTHING,
        )
        for hold in found
    ]
    numbers = ("epoch", "offset", "lag", "kept")
    return table("", ("queue", "landing", "holder", *numbers, "lease", "tiered", "location"), rows, numbers=numbers)


def _lease(hold: HoldInfo) -> str:
    """Only the log's master knows what is left of it."""
    whole = f"{hold.lease_ms / 1000:g} s"
    return whole if hold.left_ms < 0 else f"{hold.left_ms / 1000:.1f} s of {whole}"
