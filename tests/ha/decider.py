"""Decides the in-sync sets of a few nodes in this process, by the cluster's own rules and without a way to it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.roles import in_sync_set
from mirrorlog.cluster.membership.founding import founding_state
from mirrorlog.cluster.state.commands import Command, Holder, InSyncShrunk, NodeStarted, Promoted, StartKind
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import LogFacts, Outcome
from mirrorlog.config import ClusterSettings, Member, Settings
from mirrorlog.ha.in_sync import InSyncSet

_DECIDERS: Final[dict[tuple[Path, tuple[Member, ...]], Decider]] = {}


class Decider:
    """The cluster of the nodes that were set up together; it outlives each of them."""

    def __init__(self, cluster: ClusterSettings) -> None:
        self.state = founding_state(cluster)
        self._hosted: dict[str, HostedLogs] = {}

    @staticmethod
    def of(settings: Settings) -> Decider:
        """The same for all nodes of a cluster, whenever they start."""
        key = settings.node.data_dir.parent, settings.cluster.members
        if key not in _DECIDERS:
            _DECIDERS[key] = Decider(settings.cluster)
        return _DECIDERS[key]

    def facts(self, log: HostedLog) -> LogFacts:
        return self.state.logs[str(log.log_id)]

    def in_sync(self, log: HostedLog) -> InSyncSet:
        return in_sync_set(self.state, str(log.log_id))

    # --- runs ---

    def started(self, node: str, start_id: str, logs: HostedLogs) -> None:
        """A run begins, with its copies opened. One that lost something, or is blank where there was one, is marked."""
        known = self.state.nodes[node]
        damaged = [log for log in logs if log.error is not None or log.replica.lossy or self._is_blank(log, node)]
        self._hosted[node] = logs
        self._must(
            NodeStarted(
                node=node,
                start_id=start_id,
                kind=StartKind.CLEAN,
                addresses=known.addresses,
                before=known.start_id,
                damaged=tuple(str(log.log_id) for log in damaged),
            )
        )

    def ended(self, node: str) -> None:
        """It is told of nothing any more."""
        self._hosted.pop(node, None)

    def _is_blank(self, log: HostedLog, node: str) -> bool:
        return node in self.facts(log).in_sync and log.facts().epoch_known == 0

    # --- decisions ---

    def promoted(self, log: HostedLog, epoch: int, *, lost_from: int | None = None, alone: bool = False) -> InSyncSet:
        """The node of `log` masters it from now on: the set to lead with. `lost_from`: with a loss declared; `alone`:
        the others leave the set."""
        host, facts = log._host, self.facts(log)
        node, log_id = host.settings.node.id, str(log.log_id)
        holder = Holder(node, host.start_id)
        unclean = lost_from is not None
        self._must(Promoted(log_id, facts.seen, holder, epoch, unclean=unclean, lost_from=lost_from))
        if alone:
            facts = self.facts(log)
            self._must(InSyncShrunk(log_id, facts.seen, tuple(each for each in facts.in_sync if each != node)))
        return self.in_sync(log)

    def decide(self, command: Command) -> Outcome:
        """What comes of a command; who has to know does when it returns."""
        self.state, outcome = applied(self.state, self.state.version + 1, command)
        self.tell()
        return outcome

    def tell(self) -> None:
        """Every master that is in its log's epoch learns the set."""
        for log in [log for logs in self._hosted.values() for log in logs]:
            if log.mastering is not None and log.replica.log.epochs.current == self.facts(log).epoch:
                log.mastering.learned(self.in_sync(log))

    def _must(self, command: Command) -> None:
        outcome = self.decide(command)
        assert not outcome.refusal, outcome.refusal
