"""`mqtool promote`: a log goes on from a copy that may lack what was confirmed, by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirrorlog.errors import BadInput, Refused
from mirrorlog.tools.cluster_status import ClusterStatus, copies, gather
from mirrorlog.tools.output import NOTHING, offset_text, print_json, show, table
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.wire.messages import CopyPromoted, CopyReport

if TYPE_CHECKING:
    from mirrorlog.client import Client


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """What `mqtool promote --json` prints: `answer` as in `mirrorlog.wire.messages`; `copies`: of those that are there,
    as they say themselves."""

    answer: CopyPromoted
    copies: list[CopyReport]


def promote(
    context: typer.Context,
    log: Annotated[str, typer.Argument(help="The log, name or id.")],
    *,
    to: Annotated[str, typer.Option("--to", metavar="NODE", help="This copy; by default the one that has most.")] = "",
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Do it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what may be lost.")] = False,
    as_json: AsJson = False,
) -> None:
    """Promote a copy from outside the in-sync set, or while members that are needed are missing: records that were
    confirmed may be lost.

    Refused while the cluster can promote without a loss (exit code 3): it does so by itself. Shows what each copy holds
    and from which log offset on records may be lost; --accept-loss does it. The loss is reported by mqtool nodes, its
    end once a copy that is missing returns; what that one cuts is set aside for mqtool recover.

    Example: mqtool promote main --to n2 --accept-loss
    """
    if accept_loss and dry_run:
        raise BadInput("--dry-run does nothing, --accept-loss does it: choose one")

    async def ask(client: Client) -> Promotion:
        answer = await client.admin.promote(log, to=to, accept_loss=accept_loss)
        reports = answer.copies if answer.done else reports_of(answer, await gather(client))
        return Promotion(answer=answer, copies=reports)

    found = session_of(context).run(ask)
    if as_json:
        print_json(found)
    else:
        show(promote_view(found, to=to))
    if not accept_loss and not dry_run:
        raise Refused("nothing was changed: --accept-loss does it, --dry-run only looks")


def reports_of(answer: CopyPromoted, status: ClusterStatus) -> list[CopyReport]:
    """What the copies that could be it say now; they may still move until they are fenced. Pure."""
    found = {copy.node_id: copy.log for copy in copies(status) if copy.log.log_id == answer.log_id}
    return [
        CopyReport(
            node_id=node,
            last_epoch=found[node].epoch,
            end=found[node].end,
            confirmed=found[node].confirmed,
            error=found[node].reason if found[node].state == "corrupt" else "",
        )
        if node in found
        else CopyReport(node_id=node, error="it does not say what it holds")
        for node in answer.able
    ]


def promote_view(found: Promotion, *, to: str) -> RenderableType:
    """What each copy holds, and what comes of it. Pure."""
    answer = found.answer
    rows = [
        (copy.node_id, offset_text(copy.last_epoch), offset_text(copy.end), offset_text(copy.confirmed), copy.error)
        for copy in found.copies
    ]
    numbers = ("epoch", "end", "confirmed")
    return Group(
        table(f"COPIES of {answer.name} that are there", ("node", *numbers, ""), rows, numbers=numbers),
        Text(f"missing: {', '.join(answer.missing) or NOTHING}"),
        *(Text(line) for line in (_done(answer) if answer.done else _would(found, to))),
    )


def _done(answer: CopyPromoted) -> Iterator[str]:
    yield f"{answer.node} masters {answer.name}, epoch {answer.epoch}"
    end = f"up to {answer.lost_to} at least" if answer.lost_to is not None else "up to where is not known yet"
    yield f"confirmed records may be lost from log offset {answer.lost_from} on, {end}"


def _would(found: Promotion, to: str) -> Iterator[str]:
    best = _best(found.copies, to)
    if best is None:
        yield "no copy says what it holds"
        return
    yield f"{best.node_id} would master {found.answer.name}"
    yield f"confirmed records may be lost from log offset {best.end} on, as far as is known now"


def _best(reports: Sequence[CopyReport], to: str) -> CopyReport | None:
    usable = [copy for copy in reports if not copy.error and to in ("", copy.node_id)]
    return max(usable, key=lambda copy: (copy.last_epoch, copy.end), default=None)
