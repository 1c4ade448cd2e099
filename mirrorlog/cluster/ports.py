"""What a member of the cluster needs of the node around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mirrorlog.cluster.coordination.liveness import Change
from mirrorlog.cluster.coordination.promotion import FenceReport
from mirrorlog.cluster.state.machine import AppliedEntry
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.errors import MirrorlogError


class Chronicle(Protocol):
    """Who keeps what happened. Called on the loop: it must not wait."""

    def applied(self, step: AppliedEntry) -> None:
        """The cluster has decided something, or refused it."""

    def restored(self, state: ClusterState, index: int) -> None:
        """What was decided up to `index` was taken over as a whole."""

    def life_changed(self, change: Change) -> None:
        """Another node is up or down, as seen from here."""

    def coordinated(self, node: str, term: int) -> None:
        """Another node coordinates."""


class MemberHost(Protocol):
    """The node around this service. Called on the loop."""

    def changed(self, state: ClusterState) -> None:
        """The cluster has decided something. Must not wait."""

    def life_changed(self, change: Change) -> None:
        """Another node is up or down, as seen from here."""

    async def fence(self, log_id: str, epoch: int, *, gently: bool = False) -> FenceReport:
        """Keep `epoch`, on disk, stop in the one before, and report; a copy that keeps a higher one says which.
        `gently`: a master lets its mirrors come to its end before, for a moment. Raises MirrorlogError when that cannot
        be."""

    def sizes(self) -> Mapping[str, int]:
        """Bytes of the logs that it holds, by id."""

    def lags(self) -> Mapping[str, Mapping[str, tuple[int, int]]]:
        """By the id of each log that it masters, and by node: what mirrors that are not in sync lack, bytes and
        records, as far as it knows."""

    def registered(self) -> None:
        """The cluster knows of this run."""

    def failed(self, error: MirrorlogError) -> None:
        """The node must stop."""
