"""The rules of queues that move from one log to another; see decision 0050. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.state.commands import (
    MoveBegun,
    MoveCancelled,
    MovingPaused,
    QueuesMoved,
    QueueSyncWished,
    RecordsCopied,
    SpanEnded,
    SpanSeen,
)
from mirrorlog.cluster.state.placements import SPANS_KEPT, SPANS_LIVE_MAX, LogPlaces, MovingQueue, Span
from mirrorlog.cluster.state.state import ClusterState, Forbidden, holds_transient
from mirrorlog.wire.names import shown


def begun(state: ClusterState, index: int, command: MoveBegun) -> ClusterState:
    if command.target not in state.logs:
        raise Forbidden(f"there is no log {command.target}")
    names = [name for name in command.names if state.queues.get(name) != command.target]
    if not names:
        return state
    source = _check_may_begin(state, command, names)
    if all(name in state.placing.moves for name in names):
        return state
    if state.placing.paused:
        raise Forbidden("moving is paused: nothing begins to move; mqtool rebalance --resume lets it go on")
    moves = {
        **state.placing.moves,
        **dict.fromkeys(names, MovingQueue(index, source, command.target, command.log_group)),
    }
    return replace(state, places=replace(state.placing, moves=moves))


def why_not(state: ClusterState, command: MoveBegun) -> str:
    """Why a move is not to be asked for; empty when it may be. More than the cluster itself refuses: a queue whose
    records are in many logs needs all of these to be read, and their nodes to be there."""
    try:
        if begun(state, 0, command) is state:
            return ""
    except Forbidden as refusal:
        return str(refusal)
    for name in command.names:
        live = sum(not span.ended for span in state.placing.spans.get(name, ()))
        if live >= SPANS_LIVE_MAX:
            return (
                f"queue {shown(name)} has records in {live} logs already, which is as many as may be: sync it "
                "(mqtool sync-queue), or let those in the oldest be settled, or go by retention (retention_ms, "
                "retention_bytes), and then move it"
            )
    return ""


def _check_may_begin(state: ClusterState, command: MoveBegun, names: Sequence[str]) -> str:
    """The log that all of them are in. Raises Forbidden."""
    if missing := [name for name in names if name not in state.queues]:
        raise Forbidden(f"there is no queue {shown(missing[0])}")
    sources = sorted({state.queues[name] for name in names})
    for log_id in (*sources, command.target):
        if holds_transient(state, log_id):
            raise Forbidden(
                f"what is in log {state.logs[log_id].name} goes with its node: a queue that is exclusive or not "
                "durable does not move, and nothing moves there"
            )
    if len(sources) > 1 or len(names) < len(command.names):
        raise Forbidden(f"queues of several logs cannot be one move: {', '.join(map(shown, command.names))}")
    for name in names:
        move = state.placing.moves.get(name)
        if move is not None and move.target != command.target:
            raise Forbidden(
                f"queue {shown(name)} is moving to log {state.logs[move.target].name}; wait for that, or cancel it"
            )
    return sources[0]


def moved(state: ClusterState, index: int, command: QueuesMoved) -> ClusterState:
    moves = {name: move for name, move in state.placing.moves.items() if move.number == command.number}
    if not moves:
        raise Forbidden(f"there is no move {command.number}: it was cancelled, or has come about")
    if moves.keys() != command.first.keys():
        raise Forbidden(f"move {command.number} is of {', '.join(map(shown, sorted(moves)))}, and of no others")
    move = next(iter(moves.values()))
    spans = {name: (*_spans(state, name), Span(move.target, command.first[name])) for name in moves}
    groups = {**state.log_groups, move.log_group: move.target} if move.log_group else state.log_groups
    state = _without_move(state, command.number)
    came = dict.fromkeys(moves, index) if state.cluster_version >= versions.SYNC else {}
    return replace(
        state,
        queues={**state.queues, **dict.fromkeys(moves, move.target)},
        places=replace(state.placing, spans={**state.placing.spans, **spans}, came={**state.placing.came, **came}),
        log_groups=groups,
    )


def _spans(state: ClusterState, name: str) -> tuple[Span, ...]:
    """Up to now. A queue that comes back to a log has two spans in it."""
    spans = state.placing.spans.get(name) or (Span(state.queues[name], 0),)
    spare = max(0, len(spans) - SPANS_KEPT + 1)
    return tuple(span for number, span in enumerate(spans) if number >= spare or not span.ended)


def cancelled(state: ClusterState, index: int, command: MoveCancelled) -> ClusterState:
    return _without_move(state, command.number)


def without_moves_of(state: ClusterState, log_id: str) -> ClusterState:
    """A loss was declared of a log, and with what is lost the word may be gone that a queue has left, or has come. The
    log's next master takes publishes for such a queue again; so what its move had come to counts no more, whoever says
    later that it is there. By software of version 6 such a move went on."""
    if state.cluster_version < versions.SYNC:
        return state
    numbers = {move.number for move in state.placing.moves.values() if log_id in (move.source, move.target)}
    for number in sorted(numbers):
        state = _without_move(state, number)
    return state


def _without_move(state: ClusterState, number: int) -> ClusterState:
    left = {name: move for name, move in state.placing.moves.items() if move.number != number}
    return state if len(left) == len(state.placing.moves) else replace(state, places=replace(state.placing, moves=left))


def span_ended(state: ClusterState, index: int, command: SpanEnded) -> ClusterState:
    spans = state.placing.spans.get(command.name, ())
    live = [number for number, span in enumerate(spans[:-1]) if not span.ended]
    if command.log_id not in {spans[number].log_id for number in live}:
        return state
    if spans[live[0]].log_id != command.log_id:
        raise Forbidden(f"queue {shown(command.name)} has records before those of that log; they end first")
    if command.span is not None and state.cluster_version >= versions.SYNC:
        _check_seen(state, command.name, command.span, spans[live[0]])
    left = (*spans[: live[0]], replace(spans[live[0]], ended=True), *spans[live[0] + 1 :])
    return _with_spans(state, command.name, left)


def _check_seen(state: ClusterState, name: str, seen: SpanSeen, span: Span) -> None:
    """Raises Forbidden when it is another span, or another queue."""
    if seen != SpanSeen(state.queues[name], state.placing.came.get(name, 0), span.first):
        raise Forbidden(f"queue {shown(name)} has moved on, or is another one, since that was said of it; look again")


def _with_spans(state: ClusterState, name: str, spans: tuple[Span, ...]) -> ClusterState:
    state = replace(state, places=replace(state.placing, spans={**state.placing.spans, name: spans}))
    return state if _may_sync(state, name) else _with_places(state, state.placing.without_syncs({name}))


def _may_sync(state: ClusterState, name: str) -> bool:
    return name in state.placing.moves or state.placing.has_former_records(name)


def sync_wished(state: ClusterState, index: int, command: QueueSyncWished) -> ClusterState:
    name, places = command.name, state.placing
    if name not in state.queues:
        raise Forbidden(f"there is no queue {shown(name)}")
    if command.automatic and not places.may_sync_by_itself(name):
        return state
    if name in (places.syncs if command.wished else places.unsynced):
        return state
    left = places.without_syncs({name})
    if not _may_sync(state, name):
        return _with_places(state, left)
    if command.wished:
        return _with_places(state, replace(left, syncs={**left.syncs, name: index}))
    return _with_places(state, replace(left, unsynced={**left.unsynced, name: index}))


def _with_places(state: ClusterState, places: LogPlaces) -> ClusterState:
    return state if places is state.placing else replace(state, places=places)


def records_copied(state: ClusterState, index: int, command: RecordsCopied) -> ClusterState:
    spans = state.placing.spans.get(command.name, ())
    live = [number for number, span in enumerate(spans[:-1]) if not span.ended]
    if not live or spans[live[-1]].log_id != command.log_id:
        raise Forbidden(f"log {command.log_id} is not the one that queue {shown(command.name)} is copied from")
    of = spans[live[-1]]
    _check_seen(state, command.name, command.span, of)
    first = max(of.first, command.first)
    newer = [replace(span, first=min(first, span.first)) for span in spans[live[-1] + 1 :]]
    ended = replace(of, ended=first <= of.first)
    return _with_spans(state, command.name, (*spans[: live[-1]], ended, *newer))


def paused(state: ClusterState, index: int, command: MovingPaused) -> ClusterState:
    return replace(state, places=replace(state.placing, paused=command.paused))
