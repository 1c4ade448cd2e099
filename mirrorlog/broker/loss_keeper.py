"""A master whose recovery lost something counts as lossy until it has heard what its mirrors hold. Thin.

(A mirror has compared itself when it is aligned, see `Replica.align`.)
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from mirrorlog.broker.replica import Replica
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.mastership import Mastership

logger = logging.getLogger(__name__)


class LossKeeper:
    """One log that this node masters. `check` belongs among the checks of `Maintenance`."""

    def __init__(self, replica: Replica, mastership: Mastership, *, helper: Executor) -> None:
        self._replica = replica
        self._mastership = mastership
        self._helper = helper
        self._open = replica.log.lossy
        self._task: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Settle the loss once every mirror has shown that it does not hold more."""
        if self._open and self._mastership.heard_all:
            self._open = False
            self._task = asyncio.ensure_future(self._settle())

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await self._task

    async def _settle(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._helper, self._replica.log.settle_loss)
            logger.info("loss_settled log=%s", self._replica.assignment.name)
        except MirrorlogError as error:
            self._open = True
            logger.warning("loss_not_settled log=%s reason=%r", self._replica.assignment.name, str(error))
