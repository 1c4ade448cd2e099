"""All that a copy derives from its log, as plain values: two copies of one log must give the same."""

from __future__ import annotations

from typing import Any

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from tests.queues.ledgers import END, table_facts

_ALL = 1 << 40


def derived(replica: Replica) -> dict[str, Any]:
    """Queues, index, producers, checkpoints and begins of a copy, confirmed or not, without what is only an order of
    looking things up."""
    return {
        "epochs": replica.log.epochs.entries,
        "begin": replica.log.begin,
        "end": replica.log.end,
        "state_from": replica.log.state_from,
        "queues": {queue.name: _queue(replica, queue.queue_id) for queue in replica.queues},
        "queue_id_max": replica.queues.queue_id_max,
        "limits": dict(replica.queues.limits),
        "begins": dict(replica.queues.start_offsets),
        "unconfirmed": list(replica.queues._unconfirmed),
        "producers": {
            key: replica.producers.state(key, brief=False) for key in sorted(replica.producers.known())
        },
        "producer_order": list(replica.producers._sequences),
        "producer_epoch_floor": replica.producers.epoch_floor,
        "checkpoints": (
            replica.checkpoints.state_from, replica.checkpoints._open, list(replica.checkpoints._unconfirmed),
        ),
        "groups": table_facts(replica.groups, END),
        "partial_groups": set(replica.groups._partial),
        "log_begins": (replica.begins.newest, list(replica.begins._unconfirmed), replica.derived.start_decided),
        "partial": replica.index.partial,
        "lossy": replica.log.lossy,
    }  # fmt: skip


def _queue(replica: Replica, queue_id: int) -> dict[str, Any]:
    index, queue = replica.index, replica.queues.find_id(queue_id)
    return {
        "queue": (queue.queue_id, queue.incarnation, queue.arguments, queue.declared_at, queue.next_queue_offset),
        "positions": dict(queue.positions),
        "newest": dict(queue.newest),
        "gap": dict(index.gaps()).get(queue_id),
        "offsets": (index.begin(queue_id), index.next_confirmed(queue_id), index.next_appended(queue_id)),
        "runs": _runs(replica, queue_id),
    }


def _runs(replica: Replica, queue_id: int) -> list[QueuedBatch]:
    index = replica.index
    at, runs = max(index.begin(queue_id), index.hot_start(queue_id)), []
    while found := index.entries(queue_id, at, _ALL):
        runs += found
        at = runs[-1].next_queue_offset
    return runs
