"""Writes the checkpoint of the queues' state at the start of each segment: what stands before can be freed then, and
need not be read at the next start. In turns of the loop of about a millisecond, so that thousands of queues hold nobody
up; a little after the roll, when the record that began the segment has its confirm.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mirrorlog.broker.publish import Publisher
from mirrorlog.broker.replica import Replica
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.checkpoint import CheckpointWriter

logger = logging.getLogger(__name__)

DELAY_S: Final = 0.01
TURN_S: Final = 0.0005
"""After so much no further batch is made in a turn; one takes about a millisecond at most."""


class StateKeeper:
    """One log that this node masters. `batch_bytes_max`: what every copy takes."""

    def __init__(self, replica: Replica, publisher: Publisher, *, batch_bytes_max: int) -> None:
        self._replica = replica
        self._publisher = publisher
        self._batch_bytes_max = batch_bytes_max
        self._writer: CheckpointWriter | None = None
        self._began_at = replica.checkpoints.state_from
        # The log grows by a checkpoint's own size at least before the next one: one that fills segments would make the
        # log roll, and so bring about the next.
        self._size = 0
        self._not_before = 0
        replica.on_appended.append(self.wake)

    def stop(self) -> None:
        """The log grows under another mastership from now on. After `Publisher.stop`."""
        self._replica.on_appended.remove(self.wake)

    def wake(self) -> None:
        """Begin a checkpoint if the log has rolled since the last one: after an append, and among the checks of
        `Maintenance`, since a log that takes no data may wait for just this to free space."""
        log = self._replica.log
        due = log.active_start > self._began_at and log.end >= self._not_before
        if due and self._writer is None and not self._publisher.stopping:
            replica = self._replica
            self._began_at, self._size = replica.end, 0
            self._writer = CheckpointWriter(
                replica.queues,
                replica.producers,
                replica.index.next_appended,
                log_begin=lambda: replica.begins.newest,
                batch_bytes_max=self._batch_bytes_max,
                gaps=replica.index.gaps,
                holds=replica.holds,
                groups=replica.groups,
                runs=replica.runs,
                departures=replica.departures,
            )
            asyncio.get_running_loop().call_later(DELAY_S, self._turn)

    def _turn(self) -> None:
        """A small checkpoint is written in one, so that the mirrors get it in a frame or two."""
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_S
        while self._write_next():
            if loop.time() >= until:
                loop.call_soon(self._turn)
                return

    def _write_next(self) -> bool:
        """The next batch. Whether there may be another one."""
        writer = self._writer
        if writer is None or self._publisher.stopping:
            return False
        try:
            batch = writer.next_batch(self._replica.end)
            if batch is not None:
                self._publisher.append_control(batch)
                self._size += len(batch)
        except Exception as error:
            # The next check tries again: without it the log only keeps more than it must.
            expected = isinstance(error, MirrorlogError)
            logger.warning(
                "state_not_written log=%s reason=%r", self._replica.assignment.name, str(error),
                exc_info=None if expected else error,
            )  # fmt: skip
            self._writer, self._began_at = None, self._replica.checkpoints.state_from
            return False
        if batch is None:
            logger.info("state_written log=%s from=%s", self._replica.assignment.name, self._began_at)
            self._writer = None
            self._not_before = self._replica.end + self._size
        return batch is not None
