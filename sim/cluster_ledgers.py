"""Whether all copies of a log know the same of its acking groups: looked at from outside, again and again.

What a copy knows at an end of the log is written down with that end and the epochs that lead there; whoever comes to
the same place, by following, by recovering from a checkpoint or by being cut, at whatever time, has to know the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header
from mirrorlog.queues.changes import QueueDeleted, decode_changes
from mirrorlog.queues.checkpoint_states import CheckpointBegan, CheckpointEnded, decode_checkpoint
from mirrorlog.queues.dead_letters.forwarding import NONE, ForwardingTable
from mirrorlog.queues.groups.ledger import Ledger, State
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.groups.verdicts import ACKED
from sim.cluster_logged import flattened, note_arrivals
from sim.nodes import SimulatedNode

_Place = tuple[str, int, tuple[Any, ...]]
"""Log id, end, and the epochs that begin below it."""
_Timed = tuple[int, int, int | None, int | None]
_Times = dict[tuple[int, str], list[_Timed]]
GROUPS_MAX: Final = 1_000
NEAR_US: Final = 100_000


class Ledgers:
    """`differing`: where two copies did not know the same; `other_times`: the same of priorities, times to live and
    delays; `compared`: how often one was looked at where another had been."""

    def __init__(self) -> None:
        self.differing: list[str] = []
        self.other_times: list[str] = []
        self.compared = 0
        self._times: dict[_Place, tuple[str, _Times]] = {}
        self._known: dict[_Place, tuple[str, str]] = {}

    def look(self, nodes: Iterable[SimulatedNode]) -> None:
        """At every copy that there is now."""
        for node in nodes:
            if node.node is None or not node.machine.up or node.machine.paused:
                continue
            for held in list(node.node.logs):
                self._compare(node.name, held.replica)

    def _compare(self, node: str, replica: Replica) -> None:
        if replica.groups._partial or replica.groups._followed_to > replica.log.end:
            return  # it has begun with a checkpoint that it does not know whole, or is just being cut
        end = replica.log.end
        epochs = tuple(entry for entry in replica.log.epochs.entries if entry.start < end)
        known = facts(replica.groups, replica.forwardings, but=replica.queues.is_leaving)
        other, there = self._known.setdefault((str(replica.log_id), end, epochs), (node, known))
        if other != node:
            self.compared += 1
            self._compare_times(node, replica, (str(replica.log_id), end, epochs))
        else:
            self._times[str(replica.log_id), end, epochs] = node, times(replica)
        if there != known:
            self.differing.append(
                f"log {replica.assignment.name} at {end}: {other} knows {_differing(there, known)}; {node} knows "
                f"{_differing(known, there)}"
            )

    def _compare_times(self, node: str, replica: Replica, place: _Place) -> None:
        other, there = self._times[place]
        known = times(replica)
        for queue_id, group in there.keys() & known.keys():
            one, another = there[queue_id, group], known[queue_id, group]
            if len(one) != len(another) or any(not _is_near(*pair) for pair in zip(one, another, strict=True)):
                self.other_times.append(
                    f"log {replica.assignment.name} at {place[1]}, queue {queue_id}, group {group!r}: {other} knows "
                    f"{one}; {node} knows {another}"
                )


def times(replica: Replica) -> _Times:
    """What a copy knows of the records that are not settled, by queue and group: offset, priority, and the two times of
    each that has any."""
    found: _Times = {}
    for queue_id, group, ledger in list(replica.groups):
        runs = replica.runs.of(queue_id)
        # A group that is made behind what all others had settled has these records plain, which a copy that has not
        # heard of the confirm does not know yet.
        floor = max([ledger.floor, *(each.floor for each in replica.runs._settled if each.queue_id == queue_id)])
        each = [*runs.from_on(floor)] if runs is not None else []
        found[queue_id, group] = [
            (offset, *run[2:]) for run in each for offset in range(max(run.first, floor), run.until)
        ]
    return found


def _is_near(one: _Timed, other: _Timed) -> bool:
    """Neighbours are taken together by where a copy began to follow: their times may be the later ones."""
    pairs = list(zip(one[2:], other[2:], strict=True))
    return one[:2] == other[:2] and all(
        a == b or (a is not None and b is not None and abs(a - b) <= NEAR_US) for a, b in pairs
    )


def facts(
    table: GroupTable, forwardings: ForwardingTable, *, but: Callable[[int], bool] = lambda queue_id: False
) -> str:
    """All that a copy knows, in words, a line for each group; what is out is free to a copy. And for each queue what
    leaves it, and the numbers by which it does. `but`: of queues that are gone for good as soon as that is
    confirmed."""
    there = [each for each in _ordered(table) if not but(each[0])]
    leaving = [(each, forwardings.of(each)) for each in sorted(forwardings.queue_ids()) if not but(each)]
    return "\n".join(
        [
            *(f"{queue_id} {group!r}: {_facts(ledger)}" for queue_id, group, ledger in there),
            *(f"{queue_id}: {known}" for queue_id, known in leaving if known != NONE),
        ]
    )


def _ordered(table: GroupTable) -> list[tuple[int, str, Ledger]]:
    return sorted(table, key=lambda each: each[:2])


def _facts(ledger: Ledger) -> str:
    until = max([ledger.watermark, ledger.floor, *(high for _, high in ledger.chunk_ranges())])
    runs = [
        (low, high, State.FREE if state == State.OUT else state)
        for low, high, state in ledger.runs(ledger.floor, until)
    ]
    told = [f"{low}-{high} {state.name}" for low, high, state in _joined(runs) if state != State.FREE]
    counts = [f"{low}-{high} x{count}" for low, high, count in _joined(_attempts(ledger, until)) if count]
    parked = [f"{row[0]}-{row[1]} {row[2:]}" for row in _joined(map(tuple, ledger.parked_rows()))]
    leases = [
        f"{number} {row} {list(_joined(ledger.lease_ranges(number)))}" for number, row in sorted(ledger.leases.items())
    ]
    stands = f"floor {ledger.floor}, watermark {ledger.watermark}"
    dead = [tuple(each) for each in ledger.verdicts.parts(0, until) if each.stands != ACKED]
    return f"{stands}, {told}, attempts {counts}, parked {parked}, leases {leases}, dead {dead}"


def _attempts(ledger: Ledger, until: int) -> Iterator[tuple[int, int, int]]:
    for low, high, state in ledger.runs(ledger.floor, until):
        at = low
        while state != State.SETTLED and at < high:
            count, end = ledger.attempts(at, high)
            yield at, end, count
            at = end


def _joined(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows (first, until, …), those put together that touch and are equal in all else."""
    found: list[tuple[Any, ...]] = []
    for row in rows:
        if found and found[-1][1] == row[0] and found[-1][2:] == row[2:]:
            found[-1] = (found[-1][0], *row[1:])
        else:
            found.append(tuple(row))
    return found


def _differing(one: str, other: str) -> str:
    """The lines that the other has not."""
    there = set(other.splitlines())
    return "; ".join(line for line in one.splitlines() if line not in there) or "nothing more"


def rebuilt(
    batches: Iterable[tuple[int, bytes]], *, from_checkpoint: bool
) -> tuple[GroupTable, ForwardingTable] | None:
    """The groups of a log, and what leaves its queues, by its batches alone: all of them, or those from the last
    complete checkpoint on. None when there is none, or the log does not begin at 0."""
    batches = list(flattened(batches))
    begin = _checkpoint(batches) if from_checkpoint else 0
    if begin is None or not batches or (begin == 0 and batches[0][0] != 0):
        return None
    arriving = set[int]()
    table = GroupTable(per_queue_max=GROUPS_MAX, is_arriving=arriving.__contains__)
    forwardings = ForwardingTable()
    for at, batch in batches:
        if at < begin:
            continue
        header = read_header(batch)
        if header.kind in (Kind.QUEUE_STATE, Kind.CONTROL):
            changes = decode_changes(batch)
            note_arrivals(changes, arriving)
            table.follow(header, changes)
            forwardings.follow(header, changes)
        if header.kind == Kind.CHECKPOINT:
            states = decode_checkpoint(batch)
            table.restore(header, states)
            forwardings.restore(header, states)
        for queue_id in _deleted(header, batch):
            table.forget_queue(queue_id)
            forwardings.forget_queue(queue_id)
        table.confirm(header.next_log_offset)
        forwardings.confirm(header.next_log_offset)
    return table, forwardings


def _deleted(header: BatchHeader, batch: bytes) -> list[int]:
    """Ids of queues that a batch says are no more."""
    if header.kind != Kind.CONTROL:
        return []
    return [each.queue_id for each in decode_changes(batch) if isinstance(each, QueueDeleted)]


def _checkpoint(batches: list[tuple[int, bytes]]) -> int | None:
    """Where the last complete one begins."""
    began, found = None, None
    for at, batch in batches:
        if read_header(batch).kind != Kind.CHECKPOINT:
            continue
        for state in decode_checkpoint(batch):
            if isinstance(state, CheckpointBegan):
                began = at
            elif isinstance(state, CheckpointEnded):
                found = began
    return found
