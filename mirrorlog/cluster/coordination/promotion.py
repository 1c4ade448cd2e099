"""Who becomes the next master of a log: fences, reports, and the choice among them (invariant 6). Pure.

Everybody who may be it is fenced first: told the coming epoch, which it keeps, stops writing and acking the one before,
and reports its end. A node that refuses the connection is as good as fenced: its process is gone, and another run must
register before it may do anything. Who is silent is waited for, but not for ever, as long as one has answered: level
`all` cannot be confirmed in the old epoch without that one any more.

Then the highest (last epoch, end) is it, and of equals one that stays before one that drains, then the one that comes
first among the replicas. One that drains and holds more than any other is it: what only it has may be confirmed at a
level below `all`. It hands over as soon as another has the same.

Twice more is asked for, because nothing less can tell what was confirmed. Before the first promotion all replicas have
to answer, for they may hold an older cluster's log. When every in-sync member is marked all of those have to, and the
other copies are asked too: what is left of the log may be longest on one that had fallen behind. Should those who have
answered hold nothing at all, all replicas are waited for, or an operator. An only copy that is damaged is left to an
operator: what stands behind its bad bytes is nowhere else, and to promote it is to cut that.

A handover (`to`) asks the master alone first: it takes nothing more, lets its mirrors come to its end, and is fenced
then. So the one that shall be master holds as much as any other, and is it; should it not, the highest is, which may be
the old master, and nothing is lost either. A master that does not answer is not waited for longer than any other.

Only the run that the cluster knows counts: a report of another one is late, or comes before it is registered, and by
then the log has moved on. A report whose process has gone since is dropped; who is left holds everything as well.

A promotion by hand is one of a copy that may lack what was confirmed. It is refused while a clean one is possible: the
coordinator makes that by itself, and a loss that need not be is not declared. Who is not known to be gone counts as
there. What the copies that are left hold is known exactly; what those held that are gone is not, so the loss has a
start and no end until one of them returns.

An only copy that is damaged is the one that is there, and the coordinator leaves it alone: it is promoted here.

By the placement's rule the coordinator does by itself what an operator does by hand (`accept_loss`, decision 0055), by
the same rules, and a little more carefully: it waits for whoever is there in any run, it does not begin with copies
that hold nothing, and it leaves an only copy to an operator. Which key counts says how the last master's run ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.commands import Holder, Promoted
from mirrorlog.cluster.state.placements import ALWAYS, PROMOTE_ON_FAILURE, PROMOTE_ON_SHUTDOWN
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts
from mirrorlog.errors import Refused


@dataclass(frozen=True, slots=True)
class FenceReport:
    """A fenced copy: the run that holds it, its last epoch, its end, and what it knows to be confirmed.

    `promised`: the epoch that it keeps. It is above the one that it was told when another coordinator, whose promotion
    came to nothing, had told it more; fenced it is all the same.
    """

    start_id: str
    last_epoch: int
    end: int
    confirmed: int
    promised: int = 0

    @property
    def damaged(self) -> bool:
        """Whether its last bytes are bad: it held more, up to `confirmed`."""
        return self.end < self.confirmed


def lost_behind(chosen: FenceReport, reports: Iterable[FenceReport], log: LogFacts) -> int:
    """From which log offset on confirmed records may be lost when this copy becomes the log: its end. Where it lacks
    the log's last epoch its last bytes may be of a history that was given up, and only what is known to be confirmed is
    surely of this one. Another copy may be the only one to know it: when the last bytes of both are of one epoch they
    hold the same, and what the other knows to be confirmed stands here too, as far as this one reaches. It was given up
    all the same where a loss was declared from: from there on the epoch that came of that had its records.
    """
    known = list(reports)
    if chosen.last_epoch >= max(log.last_led, *(each.last_epoch for each in known)):
        return chosen.end
    # Of a damaged copy it is not known what was confirmed.
    equal = (each for each in known if each.last_epoch == chosen.last_epoch and not each.damaged)
    confirmed = max([chosen.confirmed, *(each.confirmed for each in equal)])
    return min([chosen.end, confirmed, *(loss.start for loss in log.losses if loss.epoch > chosen.last_epoch)])


class Promotion:
    """One attempt, for a log as it was seen; when the log moves on, or refuses what was decided, a new one begins."""

    def __init__(
        self,
        log_id: str,
        log: LogFacts,
        *,
        epoch: int,
        now: float,
        wait_s: float,
        to: str = "",
        made: bool = False,
        by: str = "",
    ) -> None:
        """`epoch`: the coming one, above every one that was ever told to a copy; `wait_s`: for those who are silent;
        `to`: whom the master, which lives, shall hand the log over to; `made`: for a placement, so that no copy can
        have had anything of it before its first master; `by`: the key by which a copy is promoted that may lack what
        was confirmed, see `by_policy`; empty for none."""
        self._made = made
        self.by = by
        self.log_id = log_id
        self.log = log
        self.epoch = epoch
        self.to = to
        self._first = log.master.node if to and log.master is not None else ""
        self._give_up_at = now + wait_s
        self._reports: dict[str, FenceReport] = {}
        self._gone: set[str] = set()

    @property
    def asked(self) -> tuple[str, ...]:
        """Who is fenced, in the order of the replicas."""
        if self._first:
            return (self._first,)
        everybody = self.by or self._needed or self.log.epoch == 0
        return self.log.replicas if everybody else self.log.promotable

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now >= self._give_up_at:
            self._first = ""

    def gently(self, node: str) -> bool:
        """Whether a node shall let its mirrors come to its end before it is fenced."""
        return node == self._first

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Who has not answered yet, or will have to be back before there can be a master."""
        return tuple(
            node
            for node in self.asked
            if node not in self._reports and (node in self._needed or node not in self._gone)
        )

    def reported(self, node: str, report: FenceReport) -> None:
        """A node is fenced."""
        if node in self.asked and self.log.in_sync.get(node, report.start_id) == report.start_id:
            self._reports[node] = report
            self._gone.discard(node)
            self._first = ""

    def gone(self, node: str) -> None:
        """A node's process is known not to be there."""
        if node == self._first:
            self._first = ""
        self._reports.pop(node, None)
        self._gone.add(node)

    def here(self, node: str, start_id: str) -> None:
        """A node is there, in this run: it can be asked again if it was gone, or has reported in another one."""
        self._gone.discard(node)
        if node in self._reports and self._reports[node].start_id != start_id:
            del self._reports[node]

    def next_epoch(self) -> int:
        """Above what any copy has reported, who may know an epoch that the cluster never heard of, and not below what
        one has promised."""
        reports = self._reports.values()
        return max([self.epoch, *(max(report.last_epoch + 1, report.promised) for report in reports)])

    def decided(self, now: float, *, draining: Collection[str] = ()) -> Promoted | None:
        """Who it is, once that can be said. `draining`: who is to master nothing while another copy will do."""
        if not self._reports or any(node not in self._reports for node in self._needed):
            return None
        if self.waits_for and now < self._give_up_at:
            return None
        node = max(self._reports, key=lambda each: self._rank(each, stays=each not in draining))
        best = self._reports[node]
        if best.damaged and len(self.log.replicas) == 1:
            return None
        if self.by and not best.end:
            return None  # not even that its queues were declared
        unclean = self.log.recovering or bool(self.by)
        confirmed = max(report.confirmed for report in self._reports.values())
        lost_from = lost_behind(best, self._reports.values(), self.log)
        return Promoted(
            log_id=self.log_id,
            seen=self.log.seen,
            holder=Holder(node, best.start_id),
            epoch=self.next_epoch(),
            unclean=unclean,
            lost_from=lost_from if unclean or best.end < confirmed else None,
            by=self.by,
        )

    @property
    def _needed(self) -> Collection[str]:
        """Without whose answer nothing is decided, however long it takes."""
        if self.by:
            return ()
        if self.log.epoch == 0:
            return () if self._made else self.log.replicas
        if not self.log.recovering:
            return ()
        nothing = all(report.end == 0 for report in self._reports.values())
        return self.log.replicas if nothing else self.log.marked

    def _rank(self, node: str, *, stays: bool) -> tuple[int, int, bool, bool, int]:
        report = self._reports[node]
        return report.last_epoch, report.end, node == self.to, stays, -self.log.replicas.index(node)


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


def keys_that_count(log: LogFacts, state: ClusterState) -> tuple[str, ...]:
    """Which of the promote keys counts for a log whose masters are gone: the one for how the last master's run ended.
    A shutdown is a stop that the cluster was told of, or the end of a node that drained; all else is failure.

    When the last master's node has run again since, it is one of those in sync: then each of their ends counts, and
    when they differ both keys do, for a loss that one of them forbids is none that was asked for. Empty when nobody is
    known to have had everything."""
    ended = {log.master.node: log.master.start_id} if log.master is not None else log.in_sync
    shut_down = {_was_shut_down(state.nodes.get(node), start_id) for node, start_id in ended.items()}
    return tuple(key for key, value in ((PROMOTE_ON_SHUTDOWN, True), (PROMOTE_ON_FAILURE, False)) if value in shut_down)


def _was_shut_down(facts: NodeFacts | None, start_id: str) -> bool:
    return facts is not None and facts.start_id == start_id and (facts.stopped or facts.draining)


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """`key`: which says `always`; `copies`: what is promoted, and who is missing."""

    key: str
    copies: Unclean


def by_policy(log_id: str, log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> ByPolicy | None:
    """By which key a log may be promoted that nobody masters, and from what; None while the keys that count say
    `when-synced`, while nothing needs to be lost, and while one of those who have everything is there, in whatever
    run: he has still to register, and is waited for. Not before its first master, of whom nobody knows how he ended."""
    keys, says = keys_that_count(log, state), state.rule(log_id).promotes
    if not log.epoch or not keys or any(says[key] != ALWAYS for key in keys):
        return None
    try:
        unclean = unclean_promotion(log, state, life)
    except Refused:
        return None
    missing = [node for node in unclean.missing if node in log.in_sync]
    if not missing or any(life(node) is Life.UP for node in missing):
        return None
    return ByPolicy(keys[-1], unclean)


def best_of(log: LogFacts, reports: Mapping[str, FenceReport]) -> str:
    """Whose copy has most: the highest (last epoch, end), of equals the first of the replicas."""
    return max(reports, key=lambda node: (reports[node].last_epoch, reports[node].end, -log.replicas.index(node)))


def lost_from(log: LogFacts, node: str, reports: Mapping[str, FenceReport]) -> int:
    """From which log offset on confirmed records may be lost when this copy becomes the log: see `lost_behind`."""
    return lost_behind(reports[node], reports.values(), log)


def lost_to(log: LogFacts, node: str, reports: Mapping[str, FenceReport]) -> int | None:
    """Up to where confirmed records are lost, as the copies that are there know; None when they know of none."""
    confirmed = max(report.confirmed for report in reports.values())
    return confirmed if confirmed > lost_from(log, node, reports) else None
