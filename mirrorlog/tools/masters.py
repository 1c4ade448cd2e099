"""`mqtool drain`, `rebalance`, `promote`, `forget-node`: which node masters what, and who belongs to the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from mirrorlog import versions
from mirrorlog.diagnosis.cells import NOTHING, bytes_text, offset_text
from mirrorlog.diagnosis.cluster_status import AllStatuses, copies, gather, mastered_by
from mirrorlog.errors import BadInput, ConnectionLost, MirrorlogError, Refused, RequestTimeout
from mirrorlog.tools.common.options import AsJson, IfExists
from mirrorlog.tools.common.output import emit, print_json, print_json_line, table, terminal_console
from mirrorlog.tools.common.session import ToolSession, session_of
from mirrorlog.tools.common.views import Line, Stack, View, as_rich
from mirrorlog.wire.messages.operators import CopyMoves, CopyPromoted, CopyReport, MasterMove, PlannedMove, Rebalanced
from mirrorlog.wire.messages.queues import MoveOfQueue, MovesFound
from mirrorlog.wire.messages.status import ClusterStatus
from mirrorlog.wire.names import shown

if TYPE_CHECKING:
    from mirrorlog.client import Client

LOOK_S: Final = 0.05
WATCH_S: Final = 1.0
"""Between two looks of --watch."""

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
    undo: Annotated[bool, typer.Option("--undo", help="It may master logs again, and keeps its copies.")] = False,
    empty: Annotated[bool, typer.Option("--empty", help="For good: its copies go to other nodes.")] = False,
    wait: Wait = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Let a node hand over what it masters to in-sync mirrors; it gets no new copies until its next start.

    One log after the other, each in a moment; nothing is lost. A log without another in-sync copy stays. A node that is
    stopped by SIGTERM does this by itself. After --undo logs come back by mqtool rebalance.

    With --empty it is for good, whatever starts: each log gets a copy elsewhere, then a master, then the one here goes,
    and mqtool forget-node takes the node out. --wait says what is left; mqtool rebalance --dry-run --watch shows it.

    Example: mqtool drain n1 --empty --wait --timeout 3600
    """
    if undo and (wait or empty):
        raise BadInput("--undo is done at once: there is nothing to wait for, and nothing to be emptied")

    async def ask(client: Client) -> str:
        drained = await client.admin.drain(node, draining=not undo, empty=empty)
        if wait:
            await until_drained(client, drained, empty=empty, timeout_s=timeout)
        return drained

    drained = session_of(context).run(ask)
    if as_json:
        print_json({"node_id": drained, "draining": not undo, "empty": empty, "done": wait or undo})
    elif empty and wait:
        typer.echo(f"node {drained} holds nothing any more; mqtool forget-node {drained} takes it out")
    elif empty:
        typer.echo(f"node {drained} leaves: its logs go to other nodes, one after the other")
    elif undo:
        typer.echo(f"node {drained} drains no more; mqtool rebalance brings its logs back")
    elif wait:
        typer.echo(f"node {drained} masters nothing any more")
    else:
        typer.echo(f"node {drained} drains: its logs are handed over, one after the other")


async def until_drained(client: Client, node_id: str, *, empty: bool, timeout_s: float) -> None:
    """Until it masters, or holds, nothing any more. Who is interrupted in that is told that it goes on. Raises
    RequestTimeout with what is left."""
    left = still_held if empty else still_mastered
    try:
        await until_nothing_left(client, lambda view: left(view, node_id), timeout_s=timeout_s)
    except asyncio.CancelledError:
        ends = f"mqtool drain {node_id} --undo ends it"
        typer.echo(f"nobody waits any more, and the drain of node {node_id} goes on; {ends}", err=True)
        raise


def still_mastered(view: ClusterStatus, node_id: str) -> list[str]:
    """What a draining node still masters, one line each, with the reason. Pure."""
    facts = next((node for node in view.nodes if node.node_id == node_id), None)
    if facts is None or not facts.draining:
        return [f"the node that answers does not know yet that {node_id} drains"]
    left = []
    for log in view.logs:
        if log.name in mastered_by(view, node_id):
            others = [node for node in log.in_sync if node != node_id and node not in log.marked]
            reason = f"to {', '.join(others)}" if others else "no other copy is in sync: it stays until one is"
            left.append(f"log {log.name} ({reason})")
    return left


def still_held(view: ClusterStatus, node_id: str) -> list[str]:
    """What a node that leaves still holds, one line each, with the reason. Pure."""
    facts = next((node for node in view.nodes if node.node_id == node_id), None)
    if facts is None or not facts.leaving:
        return [f"the node that answers does not know yet that {node_id} leaves"]
    left = []
    for log in view.logs:
        if node_id in log.replicas and not log.transient:
            reason = f"on its way to {', '.join(log.target)}" if log.target else "its turn has not come"
            left.append(f"log {log.name} ({reason})")
    if left and view.moving_paused:
        left.append("moving is paused: mqtool rebalance --resume")
    return left


class RebalancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What `mqtool rebalance --json` prints. `moves`, `done`: of logs that are not mastered by their homes; `copies`,
    `paused`: of those that go to other nodes, as in `mirrorlog.wire.messages`; `left_bytes`: by log id, of those under
    way, what has still to be copied, and at how many a second; `queues`: of queues that go to other logs."""

    moves: list[MasterMove]
    done: bool
    copies: list[PlannedMove] = []
    paused: bool = False
    left_bytes: dict[str, tuple[int, float]] = {}
    queues: list[MoveOfQueue] = []


def rebalance(
    context: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would move, and what moves now.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Begin it, as without this, and show what moves until nothing does.")
    ] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Let no log go to other nodes any more.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Let them go on.")] = False,
    wait: Wait = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Even out masterships: each log goes to its home, the first of its nodes, if that is up, in sync and not draining.

    What is handed over is decided when this returns, and comes about one log after the other, each in a moment; nothing
    is lost. To be run after a rolling restart. Where copies are the cluster evens out by itself, one log after the
    other; --dry-run and --watch show that too, with the reasons; --pause stops it, --resume lets it go on. --watch
    hands masterships over, as without it; with --dry-run it only looks, again and again.

    Example: mqtool rebalance --dry-run
    """
    if pause + resume + (dry_run or watch) > 1 or (watch and wait):
        raise BadInput("give one of --pause, --resume, --wait and --watch, or --dry-run")
    session = session_of(context)
    if pause or resume:
        session.run(lambda client: client.admin.pause_moving(pause))
        emit(as_json, {"paused": pause}, "nothing moves any more" if pause else "moving goes on")
        return

    async def ask(client: Client) -> RebalancePlan:
        found = await client.admin.rebalance(dry_run=dry_run)
        if wait and found.done:
            await until_nothing_left(client, lambda view: still_away(view, found.moves), timeout_s=timeout)
        return await _plan(client, found)

    found = session.run(ask)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(session, found, as_json=as_json)
    else:
        emit(as_json, found, plan_view(found, waited=wait))


async def _plan(client: Client, masters: Rebalanced) -> RebalancePlan:
    view = (await client.admin.status()).cluster
    # While the cluster is being updated no copy moves by itself, and who coordinates may not know the question.
    knows = view is not None and view.cluster_version >= versions.PLACEMENTS
    moves = await client.admin.copy_moves() if knows else CopyMoves(moves=[])
    queues = await client.admin.moves() if knows else MovesFound(moves=[])
    begun = [move for move in moves.moves if move.under_way]
    left = bytes_left(begun, await gather(client)) if begun else {}
    return RebalancePlan(
        moves=masters.moves,
        done=masters.done,
        copies=moves.moves,
        paused=moves.paused,
        left_bytes=left,
        queues=queues.moves,
    )


def bytes_left(begun: Sequence[PlannedMove], status: AllStatuses) -> dict[str, tuple[int, float]]:
    """By log id, what its master has still to send to nodes that get a copy, and what it sends a second. Pure."""
    found = {}
    for move in begun:
        for copy in copies(status):
            if copy.log.log_id == move.log_id and copy.log.role == "master":
                filled = [each for each in copy.log.mirrors if each.node_id in move.target and not each.in_sync]
                if filled:
                    found[move.log_id] = (
                        sum(each.lag_bytes for each in filled),
                        sum(each.bytes_per_second for each in filled),
                    )
    return found


def _watch(session: ToolSession, found: RebalancePlan, *, as_json: bool) -> None:
    """Until nothing is left, or is going to be done."""

    async def look(client: Client) -> RebalancePlan:
        return await _plan(client, await client.admin.rebalance(dry_run=True))

    def done() -> bool:
        queues = any(move.queue for move in found.queues)  # nobody waits for a node that does not answer
        return not found.copies and not queues and all(move.reason for move in found.moves)

    if as_json:
        print_json_line(found)
        while not done():
            time.sleep(WATCH_S)
            found = session.run(look)
            print_json_line(found)
        return
    from rich.live import Live

    with Live(console=terminal_console(), auto_refresh=False) as live:
        live.update(as_rich(plan_view(found, waited=False)), refresh=True)
        while not done():
            time.sleep(WATCH_S)
            try:
                found = session.run(look)
                live.update(as_rich(plan_view(found, waited=False)), refresh=True)
            except MirrorlogError as error:
                live.update(as_rich(Line(f"{error}; trying again", style="red")), refresh=True)


def plan_view(found: RebalancePlan, *, waited: bool) -> View:
    """One row per log that is not at home, per log that goes to other nodes, and per queue that goes to another log.
    Pure."""
    rows = [
        (
            move.name,
            ", ".join(move.source),
            ", ".join(move.target),
            bytes_text(move.size_bytes) if move.size_bytes >= 0 and set(move.target) - set(move.source) else NOTHING,
            move.why if not move.under_way else _progress(move, found),
        )
        for move in found.copies
    ]
    parts: list[View] = [rebalance_view(Rebalanced(moves=found.moves, done=found.done), waited=waited)]
    if rows:
        parts += [Line(), table("COPIES that move", ("log", "from", "to", "bytes", "why"), rows, numbers=("bytes",))]
    else:
        parts.append(Line("every copy is where it should be"))
    if found.queues:
        columns = ("queue", "from", "to", "records", "bytes", "why", "")
        parts += [
            Line(),
            table("QUEUES that move", columns, map(_queue_row, found.queues), numbers=("records", "bytes")),
        ]
    if found.paused:
        parts.append(Line("moving is paused; mqtool rebalance --resume lets it go on", style="yellow"))
    return Stack.of(*parts)


_STAGES: Final = {
    "planned": "follows",
    "wanted": "has not begun",
    "waits": "waits for the other log",
    "left": "goes over",
    "arrived": "is about to go on there",
    "unknown": "not known",
}


def _queue_row(move: MoveOfQueue) -> tuple[str, ...]:
    pieces = f": {move.pieces} pieces" if move.stage == "left" and move.pieces else ""
    how = _STAGES.get(move.stage, move.stage) + pieces if move.told or not move.queue else "moves"
    return (
        shown(move.queue) if move.queue else NOTHING,
        move.source or NOTHING,
        move.target or NOTHING,
        str(move.records) if move.records >= 0 else NOTHING,
        bytes_text(move.size_bytes) if move.size_bytes >= 0 else NOTHING,
        move.why or NOTHING,
        f"{how}: {move.reason}" if move.reason else how,
    )


def _progress(move: PlannedMove, found: RebalancePlan) -> str:
    left, per_second = found.left_bytes.get(move.log_id, (0, 0.0))
    if not left:
        return "under way"
    seconds = f", {left / per_second:.0f} s" if per_second > 0 else ""
    return f"under way: {bytes_text(left)} left at {bytes_text(per_second)}/s{seconds}"


def still_away(view: ClusterStatus, moves: list[MasterMove]) -> list[str]:
    """Which of the logs that were to be handed over are not yet, one line each. Pure."""
    masters = {log.log_id: log.master for log in view.logs}
    return [
        f"log {move.name} is mastered by {masters.get(move.log_id) or 'nobody'}, not by {move.target}"
        for move in moves
        if not move.reason and masters.get(move.log_id) != move.target
    ]


def rebalance_view(found: Rebalanced, *, waited: bool) -> View:
    """One row per log that is not at home. Pure."""
    if not found.moves:
        return Line("every log is mastered by its home")
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


def promote_view(found: PromotionReport, *, to: str) -> View:
    """What each copy holds, and what comes of it. Pure."""
    answer = found.answer
    rows = [
        (copy.node_id, offset_text(copy.last_epoch), offset_text(copy.end), offset_text(copy.confirmed), copy.error)
        for copy in found.copies
    ]
    numbers = ("epoch", "end", "confirmed")
    return Stack.of(
        table(f"COPIES of {answer.name} that are there", ("node", *numbers, ""), rows, numbers=numbers),
        Line(f"missing: {', '.join(answer.missing) or NOTHING}"),
        *(Line(line) for line in (_done(answer) if answer.done else _would(found, to))),
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
    if_exists: IfExists = False,
    as_json: AsJson = False,
) -> None:
    """Take a node out of the cluster for good: it votes no more and its copies count no more.

    Refused while it is up (exit code 3), and while it holds the last copy of a log that may be whole: mqtool promote
    another one first. Its name is free then: a node with a blank disk may join by it.

    Example: mqtool forget-node n3
    """
    session_of(context).remove(
        lambda client: client.admin.forget_node(node, force=force), f"node {node}", if_exists=if_exists
    )
    emit(as_json, {"node_id": node, "forgotten": True}, f"node {node} is forgotten")
