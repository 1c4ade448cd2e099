"""What is bad in a copy, or must not stay in it, while its node runs: found, kept aside and cut.

Bad bytes that a read meets are read once more. What is bad twice ends the node while another copy is whole: only a
start can say that a copy may lack something (invariant 7). Before a mastership begins, a damaged copy that is the best
there is is cut where it is bad, and so is a tail that was given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.header import HEADER_SIZE
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.segments.scan import without_advice
from mirrorlog.errors import LogCorrupt, MirrorlogError
from mirrorlog.ha.links import DeclaredLoss, log_failure

logger = logging.getLogger(__name__)


class CopyDamage:
    """Of one copy. `helper`: on which its disk is waited for; `quiesce`: waits until nothing works on it any more;
    `failed`: the node must end; `others_whole`: whether somebody else has all of the log, None while nobody is served
    from this copy."""

    def __init__(
        self,
        replica: Replica,
        helper: Executor,
        quiesce: Callable[[], Awaitable[None]],
        failed: Callable[[MirrorlogError], None],
        others_whole: Callable[[], bool | None],
    ) -> None:
        self._replica = replica
        self._helper = helper
        self._quiesce = quiesce
        self._failed = failed
        self._others_whole = others_whole
        loop = asyncio.get_running_loop()
        replica.on_bad = lambda error: _soon(loop, partial(self._look, error))
        self._reading_again: asyncio.Task[None] | None = None
        self._bad_told = -1

    # --- before a mastership ---

    def given_up_from(self, epoch: int, losses: Sequence[DeclaredLoss]) -> int | None:
        """Where the tail begins that this copy must not lead with: it lacks the log's last epochs, and in these other
        records may have been confirmed, and read, at the tail's queue offsets. None when there is none."""
        start = next((loss.start for loss in losses if loss.epoch == epoch), self._replica.log.end)
        return start if start < self._replica.log.end and self._replica.damage is None else None

    async def cut(self, epoch: int, losses: Sequence[DeclaredLoss], given_up: int | None) -> None:
        """What must not stay. `given_up`: see `given_up_from`."""
        await self._cut_bad(epoch, losses)
        if given_up is not None:
            await self._cut_given_up(given_up)

    async def _cut_given_up(self, first: int) -> None:
        replica, last = self._replica, self._replica.log.end
        helped = partial(asyncio.get_running_loop().run_in_executor, self._helper)
        path = await helped(replica.quarantine_tail, first)
        await self._quiesce()
        epochs = replica.log.epochs.held(first)
        replica.begin_anew()
        await helped(partial(replica.align, first, epochs, lost=True))
        replica.aligned()
        logger.error(
            "given_up_set_aside log=%s first=%s last=%s bytes=%s path=%s; save its records with: mqtool recover %s "
            "--salvage OUT",
            replica.assignment.name, first, last, last - first, path, path,
        )  # fmt: skip

    async def _cut_bad(self, epoch: int, losses: Sequence[DeclaredLoss]) -> None:
        """A damaged copy that is the best one there is: what stands behind its bad bytes is declared lost."""
        replica = self._replica
        if replica.damage is None:
            return
        if not any(loss.epoch == epoch and loss.start <= replica.log.end for loss in losses):
            raise replica.damage  # it was taken for whole: the next start says that it is not
        replica.begin_anew()
        await asyncio.get_running_loop().run_in_executor(self._helper, replica.cut_damage)
        replica.repairing = None
        replica.aligned()

    # --- bad bytes that were read ---

    def _look(self, error: LogCorrupt) -> None:
        """A read of the past met bad bytes."""
        if self._reading_again is None and self._others_whole() is not None:
            self._reading_again = asyncio.ensure_future(self._read_again(error))
            self._reading_again.add_done_callback(log_failure)

    async def _read_again(self, error: LogCorrupt) -> None:
        """A file that is freed or cut while it is read looks bad, once. What is bad twice ends the node while somebody
        else is whole: its next start repairs the copy. The only whole copy is kept, and what is good of it served."""
        first = error.details["first"]
        try:
            if not await self._is_bad(first):
                return
            ends = bool(self._others_whole())
            if ends or first != self._bad_told:  # readers come again
                self._bad_told = first
                logger.error(
                    "bad_bytes_read log=%s first=%s last=%s reason=%r then=%s",
                    self._replica.assignment.name, first, error.details["last"], without_advice(error),
                    "the node ends, and its next start repairs" if ends else "it goes on: nobody else is whole",
                )  # fmt: skip
            if ends:
                try:
                    await self._helped(self._replica.doubt)
                finally:
                    self._failed(error)
        finally:
            self._reading_again = None

    async def _is_bad(self, log_offset: int) -> bool:
        try:
            # One batch, at least.
            job = self._replica.log.read_cold(log_offset, HEADER_SIZE, until=self._replica.log.end)
            await self._helped(job.run)
        except LogCorrupt:
            return True
        except MirrorlogError:
            return False  # it was cut, or is freed
        return False

    async def _helped(self, work: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._helper, work)


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """From a helper's thread; the loop may have ended meanwhile."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work)


def report_recovery(name: str, log: CommitLog, seconds: float) -> None:
    """Say in the node's log how a copy was opened."""
    report = log.recovery
    logger.info(
        "log_opened log=%s epoch=%s begin=%s end=%s flushed=%s confirmed=%s batches=%s seconds=%.3f",
        name, log.epochs.current, log.begin, log.end, log.flushed, log.confirmed,
        report.batches, seconds,
    )  # fmt: skip
    if report.torn is not None:
        logger.warning("torn_tail_cut log=%s %s", name, report.torn)
    if report.lossy:
        logger.error("log_lossy log=%s cut=%s confirmed_was=%s", name, report.cut_valid, report.recorded.confirmed)
    if report.doubtful:
        logger.warning("index_rebuilt log=%s tables=%s reason=%r", name, len(report.doubtful), report.doubtful[0])
    for warning in report.warnings:
        logger.warning("log_warning log=%s reason=%r", name, warning)
