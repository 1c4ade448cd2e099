"""A promotion by hand, of a copy that may lack what was confirmed (invariant 6). Pure.

It is refused while a clean one is possible: the coordinator makes that by itself, and a loss that need not be is not
declared. Who is not known to be gone counts as there. What the copies that are left hold is known exactly; what those
held that are gone is not, so the loss has a start and no end until one of them returns.

An only copy that is damaged is the one that is there, and the coordinator leaves it alone: it is promoted here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.coordination.promotion import Report, lost_behind
from mirrorlog.cluster.state.state import ClusterState, LogFacts
from mirrorlog.errors import Refused


@dataclass(frozen=True, slots=True)
class Unclean:
    """`missing`: who has everything, or all that is left of it, and is gone; `able`: who has a copy and is up. Both in
    the order of the replicas."""

    missing: tuple[str, ...]
    able: tuple[str, ...]


def unclean_promotion(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> Unclean:
    """Raises Refused when nothing needs to be lost, or nothing can be saved."""

    def gone(node: str) -> bool:
        facts = state.nodes.get(node)
        return facts is None or facts.stopped or life(node) is Life.DOWN

    master = log.master
    if master is not None and not gone(master.node) and state.nodes[master.node].start_id == master.start_id:
        raise Refused(f"log {log.name} is mastered by {master.node}, which is not known to be gone")
    needed = log.promotable or tuple(node for node in log.replicas if node in log.in_sync)
    if log.epoch == 0 or log.recovering:
        needed = log.replicas  # `promotion` may wait for any of them
    missing = tuple(node for node in needed if gone(node))
    there = [node for node in needed if node not in missing]
    # One whole copy is enough; of those that may have lost something all are needed.
    if there and ((log.promotable and log.epoch) or not missing) and not _waits_for_operator(log):
        raise Refused(
            f"log {log.name} needs no promotion by hand: {', '.join(there)} is not known to be gone, and the cluster "
            "promotes by itself; ask again when it does not"
        )
    able = tuple(
        node
        for node in log.replicas
        if not gone(node) and life(node) is Life.UP and state.nodes[node].start_id and not state.nodes[node].witness
    )
    if not able:
        nodes = ", ".join(log.replicas) or "nobody"
        raise Refused(f"no node with a copy of log {log.name} is up; copies are on {nodes}")
    return Unclean(missing, able)


def _waits_for_operator(log: LogFacts) -> bool:
    """An only copy that may have lost something: a damaged one is left to an operator, and any other is promoted before
    one can ask."""
    return log.recovering and len(log.replicas) == 1


def best_of(log: LogFacts, reports: Mapping[str, Report]) -> str:
    """Whose copy has most: the highest (last epoch, end), of equals the first of the replicas."""
    return max(reports, key=lambda node: (*_place(reports[node]), -log.replicas.index(node)))


def lost_from(log: LogFacts, node: str, reports: Mapping[str, Report]) -> int:
    """From which log offset on confirmed records may be lost when this copy becomes the log: see `lost_behind`."""
    return lost_behind(reports[node], reports.values(), log)


def lost_to(log: LogFacts, node: str, reports: Mapping[str, Report]) -> int | None:
    """Up to where confirmed records are lost, as the copies that are there know; None when they know of none."""
    confirmed = max(report.confirmed for report in reports.values())
    return confirmed if confirmed > lost_from(log, node, reports) else None


def _place(report: Report) -> tuple[int, int]:
    return report.last_epoch, report.end
