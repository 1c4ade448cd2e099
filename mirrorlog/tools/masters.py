"""`mqtool drain`, `rebalance`, `promote`, `forget-node`: which node masters what, and who belongs to the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirrorlog.errors import BadInput, ConnectionLost, Refused, RequestTimeout
from mirrorlog.tools.common.cluster_status import AllStatuses, copies, gather, mastered_by
from mirrorlog.tools.common.options import AsJson
from mirrorlog.tools.common.output import NOTHING, emit, offset_text, print_json, table
from mirrorlog.tools.common.session import session_of
from mirrorlog.wire.messages.operators import CopyPromoted, CopyReport, MasterMove, Rebalanced
from mirrorlog.wire.messages.status import ClusterStatus

if TYPE_CHECKING:
    from mirrorlog.client import Client

LOOK_S: Final = 0.05

Wait = Annotated[bool, typer.Option("--wait", help="Return when it has come about.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds that --wait waits.")]


async def until_nothing_left(client: Client, left: Callable[[ClusterStatus], list[str]], *, timeout_s: float) -> None:
    """Until `left` names nothing any more in the view of a node. Raises RequestTimeout with what it names."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    while True:
        try:
            view = (await client.admin.status()).cluster
            pending = left(view) if view is not None else ["the node that answers is in no cluster yet"]
        except (ConnectionLost, RequestTimeout) as error:
            pending = [error.message]
        if not pending:
            return
        if loop.time() >= give_up_at:
            raise RequestTimeout(
                f"not done after {timeout_s:g} s: {'; '.join(pending)}; what was asked for is decided, and goes on"
            )
        await asyncio.sleep(LOOK_S)


def drain(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="The node; by default the one that answers.", show_default=False)] = "",
    *,
    undo: Annotated[bool, typer.Option("--undo", help="It may master logs again.")] = False,
    wait: Wait = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Let a node hand over what it masters to in-sync mirrors; it gets no new copies until its next start.

    One log after the other, each in a moment; nothing is lost. A log without another in-sync copy stays. A node that is
    stopped by SIGTERM does this by itself. After --undo logs come back by mqtool rebalance.

    Example: mqtool drain n1 --wait
    """
    if undo and wait:
        raise BadInput("--undo is done at once: there is nothing to wait for")

    async def ask(client: Client) -> str:
        drained = await client.admin.drain(node, draining=not undo)
        if wait:
            await until_nothing_left(client, lambda view: still_mastered(view, drained), timeout_s=timeout)
        return drained

    drained = session_of(context).run(ask)
    if as_json:
        print_json({"node_id": drained, "draining": not undo, "done": wait or undo})
    elif undo:
        typer.echo(f"node {drained} drains no more; mqtool rebalance brings its logs back")
    elif wait:
        typer.echo(f"node {drained} masters nothing any more")
    else:
        typer.echo(f"node {drained} drains: its logs are handed over, one after the other")


def still_mastered(view: ClusterStatus, node_id: str) -> list[str]:
    """What a draining node still masters, one line each, with the reason. Pure."""
    facts = next((node for node in view.nodes if node.node_id == node_id), None)
    if facts is None or not facts.draining:
        return [f"the node that answers does not know yet that {node_id} drains"]
    left = []
    for log in view.logs:
        if log.name in mastered_by(view, node_id):
            others = [node for node in log.in_sync if node != node_id and node not in log.marked]
            reason = f"to {', '.join(others)}" if others else "no other copy is in sync"
            left.append(f"log {log.name} ({reason})")
    return left


def rebalance(
    context: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be handed over.")] = False,
    wait: Wait = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Even out masterships: each log goes to its home, the first of its nodes, if that is up, in sync and not draining.

    What is handed over is decided when this returns, and comes about one log after the other, each in a moment; nothing
    is lost. To be run after a rolling restart.

    Example: mqtool rebalance --dry-run
    """

    async def ask(client: Client) -> Rebalanced:
        found = await client.admin.rebalance(dry_run=dry_run)
        if wait and found.done:
            await until_nothing_left(client, lambda view: still_away(view, found.moves), timeout_s=timeout)
        return found

    found = session_of(context).run(ask)
    emit(as_json, found, rebalance_view(found, waited=wait))


def still_away(view: ClusterStatus, moves: list[MasterMove]) -> list[str]:
    """Which of the logs that were to be handed over are not yet, one line each. Pure."""
    masters = {log.log_id: log.master for log in view.logs}
    return [
        f"log {move.name} is mastered by {masters.get(move.log_id) or 'nobody'}, not by {move.target}"
        for move in moves
        if not move.reason and masters.get(move.log_id) != move.target
    ]


def rebalance_view(found: Rebalanced, *, waited: bool) -> RenderableType:
    """One row per log that is not at home. Pure."""
    if not found.moves:
        return Text("every log is mastered by its home")
    does = "would be handed over" if not found.done else "was handed over" if waited else "is handed over"
    rows = [
        (move.name, move.source or NOTHING, move.target, f"stays: {move.reason}" if move.reason else does)
        for move in found.moves
    ]
    return table("", ("log", "master", "home", ""), rows)


class PromotionReport(msgspec.Struct, frozen=True, kw_only=True):
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
    end once a copy that is missing returns; what that one cuts is kept for mqtool recover.

    Example: mqtool promote main --to n2 --accept-loss
    """
    if accept_loss and dry_run:
        raise BadInput("--dry-run does nothing, --accept-loss does it: choose one")

    async def ask(client: Client) -> PromotionReport:
        answer = await client.admin.promote(log, to=to, accept_loss=accept_loss)
        reports = answer.copies if answer.done else reports_of(answer, await gather(client))
        return PromotionReport(answer=answer, copies=reports)

    found = session_of(context).run(ask)
    emit(as_json, found, promote_view(found, to=to))
    if not accept_loss and not dry_run:
        raise Refused("nothing was changed: --accept-loss does it, --dry-run only looks")


def reports_of(answer: CopyPromoted, status: AllStatuses) -> list[CopyReport]:
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


def promote_view(found: PromotionReport, *, to: str) -> RenderableType:
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


def _would(found: PromotionReport, to: str) -> Iterator[str]:
    best = _best(found.copies, to)
    if best is None:
        yield "no copy says what it holds"
        return
    yield f"{best.node_id} would master {found.answer.name}"
    yield f"confirmed records may be lost from log offset {best.end} on, as far as is known now"


def _best(reports: Sequence[CopyReport], to: str) -> CopyReport | None:
    usable = [copy for copy in reports if not copy.error and to in ("", copy.node_id)]
    return max(usable, key=lambda copy: (copy.last_epoch, copy.end), default=None)


def forget_node(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="The node.")],
    *,
    force: Annotated[bool, typer.Option("--force", help="Also one that is up: it ends then.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take a node out of the cluster for good: it votes no more and its copies count no more.

    Refused while it is up (exit code 3), and while it holds the last copy of a log that may be whole: mqtool promote
    another one first. Its name is free then: a node with a blank disk may join by it.

    Example: mqtool forget-node n3
    """
    session_of(context).run(lambda client: client.admin.forget_node(node, force=force))
    emit(as_json, {"node_id": node, "forgotten": True}, f"node {node} is forgotten")
