"""What must hold of transactions whatever happened to their cluster: all of one, or nothing, on every copy and for
every reader.

What a reader can see is written down again and again: up to where each copy shows the queues. What was stored is read
from the disks when all is over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sim.cluster_checks import _batches
from sim.cluster_consumers import AUDIT, INVOICES
from sim.cluster_group_checks import GroupsOutside
from sim.cluster_logged import logged
from sim.cluster_sorts import TRANSACTED
from sim.nodes import SimulatedNode

_Shown = tuple[tuple[str, int], ...]
"""By queue id, up to where."""


@dataclass(slots=True)
class Shown:
    """What copies showed of the queues that transactions fill: `seen`: by log, with the first that did and when."""

    queues: dict[int, str]
    seen: dict[tuple[str, _Shown], str] = field(default_factory=dict)

    def look(self, nodes: Iterable[SimulatedNode], now: float) -> None:
        """At every copy that there is now, of what is there. `queues`, by id, may have grown."""
        for node in nodes:
            if node.node is None or not node.machine.up or node.machine.paused:
                continue
            for held in list(node.node.logs):
                log_id, index = str(held.replica.log_id), held.replica.index
                ends = [
                    (queue, index.next_confirmed(queue_id))
                    for queue_id, queue in self.queues.items()
                    if queue in (INVOICES, AUDIT) and held.replica.queues.has_id(queue_id)
                ]
                if ends:
                    self.seen.setdefault((log_id, tuple(sorted(ends))), f"{node.name} at {now:.3f}")


@dataclass(frozen=True, slots=True)
class Part:
    """A record of a transaction: the how-many-th of how many, and which order it is for; None: for all."""

    queue: str
    offset: int
    number: int
    parts: int
    order: int | None


def check_transactions(groups: GroupsOutside, shown: Shown) -> None:
    """Raises AssertionError naming the first that does not hold."""
    for node, copy in _copies(groups):
        named = _named(copy)
        _all_or_none(node, named)
        _outcomes_hold(groups, node, named)
        _once_for_each_order(node, copy, named)
        _never_half_seen(named, shown)


def _copies(groups: GroupsOutside) -> Iterator[tuple[str, Mapping[str, Mapping[int, bytes]]]]:
    """Node and, by queue, the values that stand there, of nodes that hold all logs that they were in."""
    outside, names = groups.outside, groups.queues.names
    known = {log_id for queue in TRANSACTED for log_id in groups.logs_of(queue)}
    logs = [outside.logs[log_id] for log_id in sorted(known) if log_id in outside.logs]
    for node in logs[0].replicas:
        if "flip" in outside.damage.get(node, ()) or not all(node in log.replicas for log in logs):
            continue
        copies = (_batches(outside.disks[node], log.log_id, until=1 << 62) for log in logs)
        yield (
            node,
            {
                names[queue_id]: {offset: each.value or b"" for offset, each in there.records.items()}
                for queue_id, there in logged(*copies).items()
                if queue_id in names
            },
        )


def _named(copy: Mapping[str, Mapping[int, bytes]]) -> dict[str, list[Part]]:
    """The parts of each transaction."""
    found: dict[str, list[Part]] = defaultdict(list)
    for queue in (INVOICES, AUDIT):
        for offset, value in copy.get(queue, {}).items():
            name, number, _, parts, _, order = value.split()[:6]
            told = None if order == b"all" else int(order)
            found[name.decode()].append(Part(queue, offset, int(number), int(parts), told))
    return found


def _all_or_none(node: str, named: Mapping[str, list[Part]]) -> None:
    for name, parts in named.items():
        there = sorted(each.number for each in parts)
        assert there == list(range(parts[0].parts)), f"all or none: {node} has of {name} {parts}"


def _outcomes_hold(groups: GroupsOutside, node: str, named: Mapping[str, list[Part]]) -> None:
    """What was confirmed is there, or was reported as lost; of what was refused there is nothing."""
    for each in groups.history.transactions:
        there = each.name in named
        assert there or each.outcome != "confirmed" or groups.lost_since(AUDIT, each.at), (
            f"a commit that was answered counts: {node} has nothing of {each}"
        )
        assert not there or each.outcome != "refused", f"a commit that was refused does not: {node} has {each}"


def _once_for_each_order(node: str, copy: Mapping[str, Mapping[int, bytes]], named: Mapping[str, list[Part]]) -> None:
    """In the end all orders are acknowledged, by transactions alone: each by one that counts."""
    told = Counter(part.order for parts in named.values() for part in parts if part.order is not None)
    for order in copy.get("orders", {}):
        assert told[order] == 1, f"once for each order: {node} has {told[order]} invoices of {order}"
    assert told.keys() <= copy.get("orders", {}).keys(), f"once for each order: {node} has invoices of none"


def _never_half_seen(named: Mapping[str, list[Part]], shown: Shown) -> None:
    for (_, ends), where in shown.seen.items():
        until = dict(ends)
        for name, parts in named.items():
            seen = [each.offset < until[each.queue] for each in parts if each.queue in until]
            assert all(seen) or not any(seen), f"never half seen: {where} shows {ends}, and of {name} {parts}"
