"""`mqtool doctor`: what keeps queues, logs and groups from making progress. Thin: `diagnosis.findings` decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.diagnosis.advice import STOPS, Diagnosis
from mirrorlog.diagnosis.cluster_status import key_of
from mirrorlog.diagnosis.facts import facts_of
from mirrorlog.diagnosis.findings import findings
from mirrorlog.tools.common.options import AsJson, OnlyVirtualHost
from mirrorlog.tools.common.output import emit
from mirrorlog.tools.common.session import session_of
from mirrorlog.tools.common.watching import watchable

if TYPE_CHECKING:
    from mirrorlog.client import Client

_STOPPED: Final = 1


@watchable
def doctor(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only what concerns this queue.", show_default=False)] = None,
    vhost: OnlyVirtualHost = None,
    as_json: AsJson = False,
) -> None:
    """Say of each queue, log and group what keeps it from making progress, and what to do about it.

    Asks every node. Exit code 0 when nothing stands still, 1 when something does, 18 for a user who may not see how
    the nodes are: that needs a tag, see mqtool user-set.

    Example: mqtool doctor
    """

    key = key_of(vhost, queue)

    async def ask(client: Client) -> list[Diagnosis]:
        return findings(await facts_of(client, key))

    found = session_of(context).run(ask, vhost=vhost)
    emit(as_json, found, text_of(found))
    if any(each.weight == STOPS for each in found):
        raise typer.Exit(_STOPPED)


def text_of(found: Sequence[Diagnosis]) -> str:
    """For people. Pure."""
    if not found:
        return "nothing stands still"
    return "\n".join(f"{each.weight.upper():<6} {each.reason}: {each.text}\n       -> {each.advice}" for each in found)
