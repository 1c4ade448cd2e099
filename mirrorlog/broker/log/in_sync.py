"""Brings to the cluster what a master wishes for its in-sync set, and back what came of it. Thin.

What may be wished, and who is waited for meanwhile, is `ha.mastership`'s and `ha.in_sync`'s to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from mirrorlog.broker.ports import ClusterView
from mirrorlog.cluster.state.commands import Command, Holder, InSyncGrown, InSyncShrunk, Seen
from mirrorlog.cluster.state.state import LogFacts, NodeFacts
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.group_transfer import Answer
from mirrorlog.ha.in_sync import Grow, InSyncSet, Wish
from mirrorlog.ha.mastership import Mastership

logger = logging.getLogger(__name__)


class InSyncKeeper:
    """The in-sync set of one mastership. `tick` from time to time; `stop` when the mastership ends."""

    def __init__(
        self,
        log_id: str,
        epoch: int,
        mastership: Mastership,
        cluster: ClusterView,
        progressed: Callable[[Iterable[Answer]], None],
    ) -> None:
        """`progressed`: is given the waits that a wish's end has answered, or that of a copy's catching up."""
        self._log_id = log_id
        self._epoch = epoch
        self._mastership = mastership
        self._cluster = cluster
        self._progressed = progressed
        self._asking: asyncio.Task[None] | None = None

    def tick(self, now: float) -> None:
        """`now`: the loop's clock in s."""
        if self._asking is None and (wish := self._mastership.wish(now)) is not None:
            self._asking = asyncio.ensure_future(self._ask(wish))
        self._catch_up(now)

    def stop(self) -> None:
        """Nothing is wished any more; what is under way may still be decided, by its version for this epoch alone."""
        if self._asking is not None:
            self._asking.cancel()

    def _catch_up(self, now: float) -> None:
        before, answers = self._mastership.awaited, self._mastership.catch_up(now)
        awaited = self._mastership.awaited
        if awaited == before:
            return
        self._progressed(answers)
        event, copy = ("in_sync_courting", awaited) if awaited is not None else ("in_sync_courted_in_vain", before)
        assert copy is not None
        logger.info("%s log=%s node=%s run=%s", event, self._log_id, copy.node, copy.start_id)

    async def _ask(self, wish: Wish) -> None:
        try:
            outcome = await self._cluster.decide_once(self._command(wish))
        except MirrorlogError as error:
            logger.info("in_sync_unknown log=%s wish=%s reason=%r", self._log_id, wish, str(error))
            self._mastership.wish_unknown(wish)
        else:
            logger.info("in_sync_asked log=%s wish=%s refusal=%r", self._log_id, wish, outcome.refusal)
            self._progressed(self._mastership.wish_ended(wish, refused=bool(outcome.refusal)))
        finally:
            self._asking = None

    def _command(self, wish: Wish) -> Command:
        seen = Seen(self._epoch, wish.version)
        if isinstance(wish, Grow):
            return InSyncGrown(log_id=self._log_id, seen=seen, holder=Holder(wish.node, wish.start_id))
        return InSyncShrunk(log_id=self._log_id, seen=seen, nodes=wish.nodes)


def in_sync_set(log: LogFacts, nodes: Mapping[str, NodeFacts]) -> InSyncSet:
    """What the cluster has decided, for the log's master."""
    return InSyncSet(
        version=log.version,
        replicas=log.replicas,
        members=log.in_sync,
        marked=log.marked,
        copies_wanted=log.copies_wanted,
        starts={node: nodes[node].start_id for node in log.replicas if node in nodes},
    )
