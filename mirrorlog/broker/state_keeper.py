"""Writes the checkpoint of the queues' state at the start of each segment: what stands before can be freed then, and
need not be read at the next start. A batch per turn of the loop, so that thousands of queues hold nobody up.
"""

from __future__ import annotations

import asyncio
import logging

from mirrorlog.broker.publish import Publisher
from mirrorlog.broker.replica import Replica
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.checkpoint import CheckpointWriter

logger = logging.getLogger(__name__)


class StateKeeper:
    """One log that this node masters."""

    def __init__(self, replica: Replica, publisher: Publisher) -> None:
        self._replica = replica
        self._publisher = publisher
        self._writer: CheckpointWriter | None = None
        self._began_at = replica.checkpoints.state_from
        replica.on_appended.append(self.wake)

    def wake(self) -> None:
        """Begin a checkpoint if the log has rolled since the last one."""
        if self._writer is None and self._replica.log.active_start > self._began_at and not self._publisher.stopping:
            replica = self._replica
            self._began_at = replica.end
            self._writer = CheckpointWriter(replica.queues, replica.producers, replica.index.next_appended)
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        writer = self._writer
        if writer is None or self._publisher.stopping:
            return
        batch = writer.next_batch(self._replica.end)
        if batch is None:
            self._writer = None
            logger.info("state_written log=%s from=%s", self._replica.assignment.name, self._began_at)
            return
        try:
            self._publisher.append_state(batch)
        except MirrorlogError as error:
            # The next append tries again: without it the log only keeps more than it must.
            logger.warning("state_not_written log=%s reason=%r", self._replica.assignment.name, str(error))
            self._writer, self._began_at = None, self._replica.checkpoints.state_from
            return
        asyncio.get_running_loop().call_soon(self._step)
