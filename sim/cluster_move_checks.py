"""What must hold of queues that move whatever happened to their cluster: each is in one log at a time, its records are
where its spans say, and in the end every log knows which queues are in it.

That nothing is lost, doubled or out of order on the way is seen by the checks of records and groups, which follow a
queue from log to log.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.commitlog.format.header import Flag, Kind, read_header
from mirrorlog.queues.policies import effective
from sim.cluster_checks import Outside, _batches
from sim.cluster_faults import SimulatedCluster
from sim.cluster_logged import flattened
from sim.nodes import SimulatedNode


def left_open(cluster: SimulatedCluster) -> str:
    """What still moves, or is not where the cluster says, by the masters of the logs; empty when all is done."""
    return next(_open_points(cluster), "")


def _open_points(cluster: SimulatedCluster) -> Iterator[str]:
    state = cluster.decided()
    if state is None:
        yield "nobody knows anything"
        return
    # What is to be copied, and has nothing elsewhere, is of a move that was cancelled, and waits for another one.
    spans = {name: state.placing.spans.get(name, ()) for name in state.placing.syncs}
    copied = sorted(name for name, each in spans.items() if any(not span.ended for span in each[:-1]))
    if state.placing.moves or copied:
        yield f"there is {state.placing.moves}, and to copy {copied} of {spans}"
    for log_id, log in state.logs.items():
        node = cluster.nodes.get(log.master.node) if log.master is not None else None
        held = node.node.logs.held(log_id) if node is not None and node.node is not None else None
        if node is None or held is None or not held.knows_confirmed:
            yield f"log {log.name} has no master that knows what is confirmed"
            continue
        yield from _open_points_of(state, node, held)
        for name, place in state.queues.items():
            if place == log_id and held.replica.queues.get(name) is None:
                yield f"log {log.name} does not serve {name}"


def _open_points_of(state: ClusterState, node: SimulatedNode, held: HostedLog) -> Iterator[str]:
    """Of a log that this node masters."""
    log_id, moves = str(held.log_id), held.replica.queues.moves
    if moves.undecided or moves.arriving:
        yield f"log {held.name} waits for {sorted(moves.undecided | moves.arriving.keys())}: {moves.arriving}"
    for queue in held.replica.queues:
        if state.queues.get(queue.name) not in (log_id, None):
            yield f"log {held.name} serves {queue.name}, which is elsewhere"
        said, holds = queue.governed, effective(state.routing.virtual_host("/"), queue.name, queue.arguments)
        named = (said.policy, said.operator_policy) if said is not None else ("", "")
        if (holds.policy, holds.operator, holds.arguments) != (*named, queue.effective):
            yield f"log {held.name} says {said} of {queue.name}, and policies say {holds}"
        if queue.effective.get("ha-sync-mode") == "automatic" and state.placing.has_former_records(queue.name):
            yield f"{queue.name} is to be whole in {held.name}, and has {state.placing.spans[queue.name]}"
        if said is not None and node.asks_elsewhere(queue, held.log_id):
            yield f"{queue.name} asks for another place than {held.name}: {queue.effective}"


def check_moves(outside: Outside) -> None:
    """Raises AssertionError naming the first that does not hold."""
    for check in (a_log_group_stays_together, spans_follow_one_another, records_are_where_the_spans_say):
        check(outside)


def a_log_group_stays_together(outside: Outside) -> None:
    """At every moment."""
    torn = outside.places.torn
    assert not torn, f"a log group stays together: {torn[0]}"


def spans_follow_one_another(outside: Outside) -> None:
    """Each begins at or behind the one before."""
    for queue, spans in outside.places.spans.items():
        for one, other in pairwise(spans):
            assert one.first <= other.first, f"spans follow one another: {queue} has {spans}"


def records_are_where_the_spans_say(outside: Outside) -> None:
    """On every disk: a log has none of a queue that the queue has, or had, in another one."""
    queues = {number: queue for queue, number in outside.history.queue_ids.items()}
    for log_id, log in outside.logs.items():
        for node in log.replicas:
            if "flip" in outside.damage.get(node, ()):
                continue
            for at, batch in flattened(_batches(outside.disks[node], log_id, until=1 << 62)):
                header = read_header(batch)
                there_first = header.kind == Kind.DATA and not header.flags & Flag.COPIED
                queue = queues.get(header.queue_id, "") if there_first else ""
                there = outside.places.log_at(queue, header.base_queue_offset) if queue else ""
                assert there in ("", log_id), (
                    f"records are where the spans say: log {log.name} has {header.base_queue_offset} of {queue} on "
                    f"{node} at {at}, and its spans are {outside.places.spans[queue]}"
                )
