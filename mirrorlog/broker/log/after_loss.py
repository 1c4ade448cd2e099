"""What a master says first in a log of which a loss was declared: queue offsets jump, and the queues that move, or have
moved, are where the cluster has them.

What was lost may have been a word of a move (decision 0050): that a queue has left, has come back, or is open. Whoever
takes its word from the log alone would take records for a queue that is elsewhere, or number those of one that is here
as others that were confirmed and are lost. So this is said in the step in which the epoch begins, before anybody is
served: first who is here again, then the jump, which is of all that are here, then who is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.ports import ClusterView
from mirrorlog.queues.changes import QueueLeft, encode_change
from mirrorlog.queues.checkpoint_states import GapsState, encode_checkpoint, encode_state
from mirrorlog.queues.moving import come_back, leave, open_arrived
from mirrorlog.queues.registry import QueueRegistry


class Elsewhere(NamedTuple):
    """A queue of which the log has not said that it left, though the cluster has a newer span of it. Its records from
    `next_queue_offset` on are in other logs."""

    queue_id: int
    target: str
    next_queue_offset: int


def say_what_is_so(replica: Replica, view: ClusterView, *, lost_from: int, queue_ids: int, now_us: int) -> None:
    """`lost_from`, `queue_ids`: see `Replica.jump_batch`. Raises DiskFull or DiskFailed."""
    for batch in list(_here_again(replica.queues, replica.log_id, view)):
        replica.append_change(batch, now_us)
    away = list(elsewhere(replica, view))
    facts = view.log_facts(str(replica.log_id))
    losses = [loss.epoch for loss in facts.losses] if facts is not None else []
    replica.append_change(replica.jump_batch(lost_from=lost_from, queue_ids=queue_ids, losses=losses), now_us)
    for each in away:
        replica.append_change(leave_again(replica.queues, each), now_us)
    for batch in list(_visits_lost(replica.queues, str(replica.log_id), view)):
        replica.append_change(batch, now_us)


def elsewhere(replica: Replica, view: ClusterView) -> Iterator[Elsewhere]:
    """To be asked before the queue offsets jump: what is here above the border was copied, or came before that."""
    log_id = str(replica.log_id)
    for name, spans in view.all_spans().items():
        queue = replica.queues.get(name)
        left = [number for number, span in enumerate(spans[:-1]) if span.log_id == log_id]
        if queue is not None and left and spans[-1].log_id != log_id and name not in view.moves():
            border = spans[left[-1] + 1].first
            yield Elsewhere(queue.queue_id, spans[-1].log_id, border)


def _visits_lost(queues: QueueRegistry, log_id: str, view: ClusterView) -> Iterator[bytearray]:
    """Of queues that had come back, and gone again, of which a loss has left no more than that they went before: what
    they had here since then is lost, and they left with that."""
    for name, spans in view.all_spans().items():
        queue_id = queues.moves.id_left_as(name)
        live = [number for number, span in enumerate(spans[:-1]) if span.log_id == log_id and not span.ended]
        if queue_id is None or not live or queue_id in queues.moves.arriving or spans[-1].log_id == log_id:
            continue
        left, first, border = queues.moves.left[queue_id], spans[live[-1]].first, spans[live[-1] + 1].first
        if left.handed_over and left.next_queue_offset < border:
            yield encode_checkpoint([encode_state(GapsState({queue_id: (max(first, left.next_queue_offset), border)}))])
            yield encode_change(QueueLeft(queue_id, 0, spans[-1].log_id, border))


def leave_again(queues: QueueRegistry, away: Elsewhere) -> bytearray:
    """By no move: the one by which it left has come about."""
    return leave(queues, away.queue_id, 0, away.target, next_queue_offset=away.next_queue_offset)


def _here_again(queues: QueueRegistry, log_id: UUID, view: ClusterView) -> Iterator[bytearray]:
    moves = queues.moves
    for queue_id in moves.undecided:
        name, left, arriving = moves.name(queue_id), moves.left.get(queue_id), moves.arriving.get(queue_id)
        if name in view.moves():
            continue
        if arriving is not None and arriving.arrived and _was_here(view, name, log_id, arriving.first):
            yield open_arrived(queues, queue_id, arriving.move)
        elif arriving is None and left is not None and not left.handed_over and view.placed(name) == log_id:
            yield come_back(queues, queue_id, left.move)


def _was_here(view: ClusterView, name: str, log_id: UUID, first: int) -> bool:
    """Whether the cluster has added a span that began here with `first`: the queue is here, or has gone on since, and
    leaves again then."""
    log, spans = str(log_id), view.spans(name)
    return any(span.log_id == log and span.first <= first and not span.ended for span in spans)


def came_by(view: ClusterView, name: str, log_id: UUID, first: int) -> bool:
    """Whether the cluster has added the span that a queue has here, from `first` on, or from below when records were
    copied since."""
    spans = view.spans(name)
    return bool(spans) and spans[-1].log_id == str(log_id) and spans[-1].first <= first
