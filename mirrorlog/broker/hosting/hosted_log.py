"""One log on one node: the copy, its readers, its flushes, and the role that the node has in it now.

    NEW --open--> OPENING --> OPEN ------+
                     |                   v
                     v        +--> CHANGING --> MASTER | MIRROR | RESTING
                UNAVAILABLE   |                             |
                              +-----------------------------+       any --close--> CLOSED

The cluster decides who masters a log while the nodes run, so a role comes and goes, and the copy stays: readers are
served from it, below the confirmed offset, through every change. Changes are made one after the other, in the order in
which they were asked for, and one that has begun goes on to its end, whoever waits for it. It begins with a fence: in
one step of the loop publishes are refused, waits are answered, links are closed. Then what helpers have begun is waited
for, and only then the next role begins. So no role sees what another has left half done.

A change that fails leaves a copy of which it is not known what it is: the node ends, as it does when a start fails.
What the system refuses before anything is changed (FILE_REFUSED) is no such failure: the copy rests, and the change is
asked for again.

A damaged copy (see `Replica`) has roles too, so that it can be compared, and repaired as a mirror; until then it serves
nobody. Bad bytes that are met at run time end the node when another copy is whole: only a start can say that a copy may
lack something (invariant 7), and the start after it reads everything.

Rejected: to close the copy and open it again as another role (seconds without readers, for a log of many segments).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from msgspec.structs import replace

from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.hosting.roles import LogRole, MasterRole, MirrorRole, RestingRole
from mirrorlog.broker.hosting.status import unavailable_status
from mirrorlog.broker.log.fetch import Fetcher
from mirrorlog.broker.log.host import Host
from mirrorlog.broker.log.maintenance import Maintenance, PastKeeper
from mirrorlog.broker.log.publish import ElsewhereLog, LogPublisher, not_master
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.resources.disk_limits import DiskReport
from mirrorlog.broker.retention.holds import HoldKeeper
from mirrorlog.commitlog.epochs import ENTRIES_MAX
from mirrorlog.commitlog.format.header import HEADER_SIZE
from mirrorlog.commitlog.segments.scan import without_advice
from mirrorlog.config import LogAssignment, Member
from mirrorlog.errors import BadRequest, FileRefused, LogCorrupt, LogUnavailable, MirrorlogError, NoSuchQueue
from mirrorlog.ha.driving import log_failure
from mirrorlog.ha.in_sync import InSyncSet
from mirrorlog.ha.losses import DeclaredLoss
from mirrorlog.queues.registry import log_number_of
from mirrorlog.wire.messages.status import LogStatus

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class HostedState(Enum):
    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    CHANGING = "changing"
    MASTER = "master"
    MIRROR = "mirror"
    RESTING = "resting"
    UNAVAILABLE = "unavailable"
    CLOSED = "closed"


END_LOOK_S: Final = 0.001
"""How often a master that hands over looks whether its mirrors have everything."""

_ROLES: Final = {HostedState.MASTER, HostedState.MIRROR, HostedState.RESTING}
_CHANGEABLE: Final = {HostedState.OPEN, *_ROLES}

_NEXT: Final[dict[HostedState, set[HostedState]]] = {
    HostedState.NEW: {HostedState.OPENING, HostedState.CLOSED},
    HostedState.OPENING: {HostedState.OPEN, HostedState.UNAVAILABLE, HostedState.CLOSED},
    HostedState.OPEN: {HostedState.CHANGING, HostedState.UNAVAILABLE},
    HostedState.CHANGING: {*_ROLES, HostedState.CLOSED},
    **{role: {HostedState.CHANGING} for role in _ROLES},
    HostedState.UNAVAILABLE: {HostedState.CLOSED},
    HostedState.CLOSED: set(),
}


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """From a helper's thread; the loop may have ended meanwhile."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work)


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """What this node holds of a log: what a promotion compares. Offsets are log offsets.

    `last_epoch`: of the last byte; `epoch_known`: the newest one in the list, of which it may hold no byte yet.
    `confirmed` is above `end` in a damaged copy alone: up to there it held the log, which may have been confirmed.
    """

    last_epoch: int
    end: int
    confirmed: int
    flushed: int
    epoch_known: int


class HostedLog:
    """`assignment`: what the log is, and who masters and who mirrors it until a change says otherwise."""

    def __init__(self, assignment: LogAssignment, log_id: UUID, host: Host) -> None:
        self.log_id = log_id
        self.state = HostedState.NEW
        self._unusable: MirrorlogError | None = None
        self.replica = Replica(assignment, log_id, host.settings, files=host.files)
        self.replica.on_broken = host.failed
        loop = asyncio.get_running_loop()
        self.replica.on_bad = lambda error: _soon(loop, partial(self._read_bad, error))
        self.publisher: LogPublisher | ElsewhereLog = ElsewhereLog(assignment.name, None)
        self.past = PastKeeper(self.replica, helper=host.helpers.index, failed=host.failed)
        self.fetcher = Fetcher(
            self.replica,
            limits=host.settings.limits,
            settings=host.settings.log,
            past=self.past,
            helper=host.helpers.read,
            budget=host.outgoing,
            now=asyncio.get_running_loop().time,
        )
        self.role: LogRole = RestingRole(self.replica, ElsewhereLog(assignment.name, None))
        self.maintenance: Maintenance | None = None
        self._host = host
        # A flush that is slow delays no other log's.
        self._flush_helper = ThreadPoolExecutor(1, f"flush-{assignment.name}")
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._report: DiskReport | None = None
        self._reading_again = False
        self._has_led = False
        self._bad_told = -1
        self._look: asyncio.Task[None] | None = None

    # --- what it is ---

    @property
    def name(self) -> str:
        return self.assignment.name

    @property
    def assignment(self) -> LogAssignment:
        """What the log is, and who masters and who mirrors it, as far as this node was told."""
        return self.replica.assignment

    @property
    def error(self) -> MirrorlogError | None:
        """Why this node refuses to serve the log; of a damaged copy, until it is repaired."""
        return self._unusable or self.replica.damage

    @property
    def waiting(self) -> int:
        """How many publishes and changes wait for their confirm here."""
        return self.role.mastership.waiting if isinstance(self.role, MasterRole) else 0

    def facts(self) -> CopyFacts:
        """Raises LogUnavailable while there is no copy to speak of."""
        if self.state not in _CHANGEABLE | {HostedState.CHANGING}:
            raise self.refusal()
        replica = self.replica
        if not replica.tells_queues:
            raise self.refusal()
        damaged = replica.damage is not None
        return CopyFacts(
            last_epoch=replica.epochs.data_epoch(replica.end),
            end=replica.end,
            confirmed=replica.claim.end if damaged else replica.confirmed,
            flushed=replica.flushed,
            epoch_known=replica.epochs.current,
        )

    def status(self, now: float, now_us: int) -> LogStatus:
        """`now`: the loop's clock in s; `now_us`: µs UTC."""
        if self.error is not None:
            role = "master" if self.replica.is_master else "mirror"
            status = unavailable_status(self.assignment, self.log_id, self.error, role=role)
            waits = self.role.service.client.last_error if isinstance(self.role, MirrorRole) else None
            return replace(status, reason=f"{status.reason}; not yet: {waits}") if waits is not None else status
        return self.role.status(now, now_us)

    def disk_measured(self, report: DiskReport) -> None:
        """How much space there is for data was looked at."""
        self._report = report
        if self.state in _ROLES:
            self.role.disk_measured(report)

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        if isinstance(self.role, MasterRole):
            self.role.tick(now)

    @property
    def masters(self) -> bool:
        """Whether this node writes the log now."""
        return isinstance(self.role, MasterRole)

    @property
    def knows_confirmed(self) -> bool:
        """Whether this node masters the log and its epoch's first batch is confirmed: so is, to its knowledge, all that
        ever was."""
        return isinstance(self.role, MasterRole) and self.role.begun

    @property
    def hold_keeper(self) -> HoldKeeper | None:
        """Whose leases run, as the log's master knows; None elsewhere."""
        return self.role.holds if isinstance(self.role, MasterRole) else None

    @property
    def deliverer(self) -> Deliverer | None:
        """Who serves the groups that ack, on the log's master; None elsewhere."""
        return self.role.deliverer if isinstance(self.role, MasterRole) else None

    def departure_waits(self, queue_id: int) -> str:
        """Why nothing leaves a queue at the moment, though something is to; empty elsewhere than on the master."""
        return self.role.forwardings.waits(queue_id) if isinstance(self.role, MasterRole) else ""

    @property
    def leapt(self) -> bool:
        """See `MasterRole.leapt`."""
        return isinstance(self.role, MasterRole) and self.role.leapt

    def learned(self, in_sync: InSyncSet) -> None:
        """The cluster has decided this of the log that is mastered here, in its present epoch."""
        if isinstance(self.role, MasterRole):
            self.role.learned(in_sync)

    def know(self, assignment: LogAssignment) -> None:
        """The log has other replicas, or needs another number of them; who masters it has not changed."""
        if assignment != self.assignment and self.state in _ROLES:
            self.replica.assign(assignment, is_master=self.replica.is_master)

    def stop_publishing(self) -> None:
        """The node stops: publishes are refused, those that wait may still be confirmed."""
        if isinstance(self.publisher, LogPublisher):
            self._stop_delivery()
            self.publisher.stop()

    def _stop_delivery(self) -> None:
        if self.deliverer is not None and self.knows_confirmed:
            self.deliverer.hand_over()

    async def come_to_end(self, within_s: float) -> None:
        """A master hands over: take nothing more, and wait until what was taken is confirmed, so that each in-sync copy
        ends where this one does. Returns after `within_s` (s) in any case; then `step_down` has to follow."""
        if not isinstance(self.publisher, LogPublisher):
            return
        self._stop_delivery()
        self.publisher.stop(lambda: not_master(self.name, None))
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + within_s
        while self.replica.confirmed < self.replica.end:
            if self.state is not HostedState.MASTER or loop.time() >= give_up_at:
                return
            await asyncio.sleep(END_LOOK_S)

    # --- changes: one after the other ---

    async def open(self, directory: Path) -> None:
        """Recover the copy in `directory`, or make an empty one; then it serves readers. A copy that cannot be used
        makes the log unavailable by `error`, and is no failure. Raises ForeignDirectory or DiskFull."""
        await self._in_turn(partial(self._open, directory))

    async def lead(
        self,
        assignment: LogAssignment,
        epoch: int,
        in_sync: InSyncSet,
        *,
        lost_from: int | None = None,
        losses: Sequence[DeclaredLoss] = (),
        transient: bool = False,
        queue_ids: int = 0,
    ) -> None:
        """Master the log as `assignment` says, in `epoch`, after what was done for it before has ended. `in_sync`: the
        set that the cluster has decided. `lost_from`, `queue_ids`: see `MasterRole.begin`; `losses`: all that the
        cluster has declared of the log. `transient`: its queues live no longer than the node's run.

        Raises BadRequest and LogUnavailable when nothing was changed, FileRefused when the copy rests now and it can be
        asked for again; DiskFull or DiskFailed, then the node ends.
        """
        begin = partial(MasterRole.begin, lost_from=lost_from, queue_ids=queue_ids)
        await self._in_turn(partial(self._lead, assignment, epoch, in_sync, begin, losses=losses, transient=transient))

    async def follow(
        self,
        assignment: LogAssignment,
        *,
        epoch: int = 0,
        losses: Sequence[DeclaredLoss] = (),
        loss_end_found: Callable[[int, int], None] = lambda epoch, end: None,
    ) -> None:
        """Mirror the log from the master that `assignment` names; one that is in an older epoch than `epoch` is not
        followed. `losses`: all that the cluster has declared of the log up to that epoch. `loss_end_found`: told of the
        epoch of one of these, and up to which log offset this copy held what was lost. Raises as `lead`."""
        await self._in_turn(partial(self._follow, assignment, epoch, losses, loss_end_found))

    async def step_down(self, assignment: LogAssignment | None = None) -> CopyFacts:
        """Neither write nor follow; gives what the copy holds then. `assignment`: who masters the log from now on, for
        whoever asks here; None: that is not known. Raises as `lead`."""
        return await self._in_turn(partial(self._step_down, assignment))

    async def close(self) -> None:
        """Flush and let everything go; idempotent. A disk that fails in it ends the node."""
        await self._in_turn(self._close)

    async def _in_turn(self, change: Callable[[], Awaitable[_T]]) -> _T:
        """Who waits for a change may give up; the change may not."""

        async def run() -> _T:
            async with self._turn:
                return await change()

        task = asyncio.ensure_future(run())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(task)

    def _enter(self, state: HostedState) -> None:
        assert state in _NEXT[self.state], f"log {self.name}: {self.state.value} to {state.value}"
        logger.debug("log_state log=%s from=%s to=%s", self.name, self.state.value, state.value)
        self.state = state

    # --- inside: opening and closing ---

    async def _open(self, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._enter(HostedState.OPENING)
        try:
            await loop.run_in_executor(self._flush_helper, self.replica.open, directory)
        except LogUnavailable as error:
            self._refuse(error)
            return
        except BaseException:
            self._flush_helper.shutdown(wait=False)
            self._enter(HostedState.CLOSED)
            raise
        self._enter(HostedState.OPEN)
        if (damage := self.replica.damage) is not None:
            logger.error(
                "copy_damaged log=%s first=%s last=%s held=%s confirmed_was=%s reason=%r",
                self.name, damage.details["first"], damage.details["last"], *self.replica.claim, str(damage),
            )  # fmt: skip
            return
        if self.replica.is_master and (full := self._epochs_full()) is not None:
            await loop.run_in_executor(self._flush_helper, self.replica.close)
            self._refuse(full)
            return
        self._report_recovery(loop.time() - started)

    def _refuse(self, error: MirrorlogError) -> None:
        """Other logs of the node go on; this one is refused by its reason until it is repaired."""
        logger.error("log_unavailable log=%s reason=%r", self.name, str(error))
        self._unusable = error
        self._enter(HostedState.UNAVAILABLE)
        self._host.ha.accept.refuse(self.log_id, error)

    def _epochs_full(self) -> LogUnavailable | None:
        count = len(self.replica.epochs.entries)
        if count < ENTRIES_MAX:
            return None
        return LogUnavailable(
            f"log {self.name} has {count} epochs, and each start of its master adds one: no more fit; "
            "its mirrors still serve readers, publish its records from there into a new log"
        )

    def _report_recovery(self, seconds: float) -> None:
        replica, name = self.replica, self.name
        report = replica.log.recovery
        logger.info(
            "log_opened log=%s epoch=%s begin=%s end=%s flushed=%s confirmed=%s batches=%s seconds=%.3f",
            name, replica.epochs.current, replica.begin, replica.end, replica.flushed, replica.confirmed,
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

    async def _close(self) -> None:
        if self.state is HostedState.CLOSED:
            return
        try:
            if self.state in _CHANGEABLE:
                await self._leave(None)
        finally:
            try:
                if self._unusable is None:
                    await asyncio.get_running_loop().run_in_executor(self._flush_helper, self.replica.close)
            except MirrorlogError as error:
                self._host.failed(error)
            self._flush_helper.shutdown(wait=True, cancel_futures=True)
            self._enter(HostedState.CLOSED)
            self.fetcher.end_waits(self.refusal())

    # --- inside: roles ---

    async def _lead(
        self,
        assignment: LogAssignment,
        epoch: int,
        in_sync: InSyncSet,
        begin: Callable[..., None],
        *,
        losses: Sequence[DeclaredLoss],
        transient: bool,
    ) -> None:
        self._check_changeable(assignment)
        node = self._host.settings.node.id
        if assignment.master != node:
            raise BadRequest(f"log {self.name} is to be written by node {assignment.master}, not by this one, {node}")
        if epoch <= self.replica.epochs.current:
            raise BadRequest(
                f"epoch {epoch} is not above {self.replica.epochs.current}, the last one of log {self.name}"
            )
        if (full := self._epochs_full()) is not None:
            raise full
        loop = asyncio.get_running_loop()
        if (given_up := self._given_up_from(epoch, losses)) is not None:
            await loop.run_in_executor(self._flush_helper, self.replica.check_aside)
        with self._ends_node():
            await self._hand_over(self._member(node))
            if (known := self.replica.epochs.current) >= epoch:  # by what came last on the link that was closed
                self._rest(None)
                raise BadRequest(f"epoch {epoch} is not above {known}, of which log {self.name} was just told")
            self.replica.assign(assignment, is_master=True)
            try:
                await self._cut_damage(epoch, losses)
                if given_up is not None:
                    await self._cut_given_up(given_up)
                await loop.run_in_executor(self._flush_helper, self._open_epoch, epoch)
            except FileRefused as error:
                self.replica.align_failed(error)
                if self.replica.usable:  # else a copy is half made anew
                    self.replica.assign(assignment, is_master=False)
                    self._rest(None)
                raise
            role = MasterRole(self._host, self.replica, in_sync=in_sync, losses=losses)
            # What this run finds in such a log when it leads it first is a former one's, whatever is placed there now.
            begin(role, without_queues=transient and not self._has_led)
            self._has_led = True
            self.replica.counters.promotions += 1
            self._begin(role, HostedState.MASTER)

    def _given_up_from(self, epoch: int, losses: Sequence[DeclaredLoss]) -> int | None:
        """Where the tail begins that this copy must not lead with: it lacks the log's last epochs, and in these other
        records may have been confirmed, and read, at the tail's queue offsets. None when there is none."""
        start = next((loss.start for loss in losses if loss.epoch == epoch), self.replica.end)
        return start if start < self.replica.end and self.replica.damage is None else None

    async def _cut_given_up(self, first: int) -> None:
        replica, last = self.replica, self.replica.end
        helped = partial(asyncio.get_running_loop().run_in_executor, self._flush_helper)
        path = await helped(replica.quarantine_tail, first)
        await self._quiesce()
        epochs = replica.epochs.held(first)
        replica.begin_anew()
        await helped(partial(replica.align, first, epochs, lost=True))
        replica.aligned()
        logger.error(
            "given_up_set_aside log=%s first=%s last=%s bytes=%s path=%s; save its records with: mqtool recover %s "
            "--salvage OUT",
            self.name, first, last, last - first, path, path,
        )  # fmt: skip

    async def _cut_damage(self, epoch: int, losses: Sequence[DeclaredLoss]) -> None:
        """A damaged copy that is the best one there is: what stands behind its bad bytes is declared lost."""
        replica = self.replica
        if replica.damage is None:
            return
        if not any(loss.epoch == epoch and loss.start <= replica.end for loss in losses):
            raise replica.damage  # it was taken for whole: the next start says that it is not
        replica.begin_anew()
        await asyncio.get_running_loop().run_in_executor(self._flush_helper, replica.cut_damage)
        replica.repairing = None
        replica.aligned()

    def _open_epoch(self, epoch: int) -> None:
        log = self.replica.log
        log.open_epoch(epoch, node_id=self._host.settings.node.id, start_id=self._host.start_id)
        # Who was to master the log was decided by what all copies hold: what this one lost is known, and was said.
        log.settle_loss()

    async def _follow(
        self,
        assignment: LogAssignment,
        epoch: int,
        losses: Sequence[DeclaredLoss],
        loss_end_found: Callable[[int, int], None],
    ) -> None:
        self._check_changeable(assignment)
        node = self._host.settings.node.id
        if assignment.master == node:
            raise BadRequest(f"log {self.name}: this node, {node}, cannot follow itself")
        master = self._member(assignment.master)
        with self._ends_node():
            await self._hand_over(master)
            self.replica.assign(assignment, is_master=False)
            role = MirrorRole(
                self._host,
                self.replica,
                master=master,
                epoch_min=epoch,
                flush_helper=self._flush_helper,
                quiesce=self._quiesce,
                losses=losses,
                loss_end_found=loss_end_found,
            )
            role.begin()
            self._begin(role, HostedState.MIRROR)

    async def _step_down(self, assignment: LogAssignment | None) -> CopyFacts:
        self._check_changeable(assignment)
        node = self._host.settings.node.id
        if assignment is not None and assignment.master == node:
            raise BadRequest(f"log {self.name}: this node, {node}, cannot step down for itself")
        master = self._member(assignment.master) if assignment is not None else None
        with self._ends_node():
            await self._hand_over(master)
            # Without a known master the assignment stays as it was for whoever asks, but nobody is sent there.
            self.replica.assign(assignment or self.assignment, is_master=False)
            self._rest(master)
            return self.facts()

    async def _hand_over(self, master: Member | None) -> None:
        """`_leave`, and say what stands here: the role that follows is told by itself."""
        was = self.state
        await self._leave(master)
        if was in _ROLES and self.replica.usable:
            facts = self.facts()
            logger.info(
                "role_ended log=%s role=%s epoch=%s end=%s confirmed=%s master=%s",
                self.name, was.value, facts.last_epoch, facts.end, facts.confirmed, master.id if master else "-",
            )  # fmt: skip

    def _rest(self, master: Member | None) -> None:
        self._begin(RestingRole(self.replica, ElsewhereLog(self.name, master)), HostedState.RESTING)

    async def _leave(self, master: Member | None) -> None:
        """End the present role for the one of `master`, if that is known."""
        left, maintenance = self.role, self.maintenance
        elsewhere = ElsewhereLog(self.name, master)
        self._enter(HostedState.CHANGING)
        # In one step of the loop, up to the first wait in `stop`, which ends the flushes that the role is told of:
        # nothing of the former role happens between these lines.
        self.publisher = elsewhere
        self.role = RestingRole(self.replica, elsewhere)
        left.fence(elsewhere)
        if maintenance is not None:
            await maintenance.stop()
        await left.end()
        await self.past.pause()

    def _begin(self, role: LogRole, state: HostedState) -> None:
        settings, helpers = self._host.settings.log, self._host.helpers
        self.role, self.publisher = role, role.publisher
        self.maintenance = Maintenance(
            self.replica,
            flush_interval_ms=settings.flush_interval_ms,
            flush_bytes=settings.flush_bytes,
            flush_helper=self._flush_helper,
            warm_helper=helpers.warm,
            prepare_helper=helpers.prepare,
            flushed=role.flushed,
            checks=(*role.checks, self.past.wake),
            failed=self._host.failed,
        )
        if self._report is not None:
            role.disk_measured(self._report)
        self.past.resume()
        self.maintenance.start()
        self._enter(state)

    async def _quiesce(self) -> None:
        """Wait until nothing works on the copy any more but the link that asks."""
        await self.past.stop()
        if self.maintenance is not None:
            await self.maintenance.rest()

    # --- inside: guards ---

    def _member(self, node: str) -> Member:
        """Raises BadRequest for a node of which nothing is known."""
        member = self._host.view.member(node)
        if member is None:
            raise BadRequest(f"log {self.name}: no node {node} is known here")
        return member

    def _check_changeable(self, assignment: LogAssignment | None) -> None:
        if self.state not in _CHANGEABLE:
            raise self.refusal()
        own = self.assignment
        if assignment is not None and (
            (assignment.name, assignment.log_number, assignment.flush) != (own.name, own.log_number, own.flush)
        ):
            raise BadRequest(
                f"log {own.name}, number {own.log_number}, flush {own.flush}, cannot become {assignment.name}, "
                f"number {assignment.log_number}, flush {assignment.flush}"
            )

    def refusal(self) -> MirrorlogError:
        """Why this node does not serve the log, or not now."""
        if (error := self.error) is not None:
            return error.with_traceback(None)  # shared: it must not collect its raisers' frames
        return LogUnavailable(f"log {self.name} is {self.state.value} on this node")

    # --- inside: bad bytes ---

    def _read_bad(self, error: LogCorrupt) -> None:
        """A read of the past met bad bytes."""
        if not self._reading_again and self.state in _ROLES and self.replica.usable:
            self._reading_again = True
            self._look = asyncio.ensure_future(self._read_again(error))
            self._look.add_done_callback(log_failure)

    async def _read_again(self, error: LogCorrupt) -> None:
        """A file that is freed or cut while it is read looks bad, once. What is bad twice ends the node while somebody
        else is whole: its next start repairs the copy. The only whole copy is kept, and what is good of it served."""
        first = error.details["first"]
        try:
            if not await self._is_bad(first):
                return
            ends = self._others_whole()
            if ends or first != self._bad_told:  # readers come again
                self._bad_told = first
                logger.error(
                    "bad_bytes_read log=%s first=%s last=%s reason=%r then=%s",
                    self.name, first, error.details["last"], without_advice(error),
                    "the node ends, and its next start repairs" if ends else "it goes on: nobody else is whole",
                )  # fmt: skip
            if ends:
                try:
                    await self._helped(self.replica.doubt)
                finally:
                    self._host.failed(error)
        finally:
            self._reading_again = False

    async def _is_bad(self, log_offset: int) -> bool:
        try:
            # One batch, at least.
            job = self.replica.read_cold(log_offset, HEADER_SIZE, until=self.replica.end)
            await self._helped(job.run)
        except LogCorrupt:
            return True
        except MirrorlogError:
            return False  # it was cut, or is freed
        return False

    def _others_whole(self) -> bool:
        if isinstance(self.role, MasterRole):
            return bool(self.role.mastership.in_sync)
        return isinstance(self.role, MirrorRole) and self.role.service.following

    async def _helped(self, work: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._flush_helper, work)

    @contextmanager
    def _ends_node(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, BadRequest | FileRefused) and self.state in _ROLES:
                raise  # nothing has failed: another role began instead
            known = error if isinstance(error, MirrorlogError) else None
            logger.critical(
                "role_change_failed log=%s reason=%r", self.name, str(error), exc_info=None if known else error
            )
            self._host.failed(known or MirrorlogError(f"internal error: {type(error).__name__}: {error}"))
            raise


# The logs that a node holds, as they come and go: whom a frame, a request or a measurement concerns.


class HostedLogs:
    """By id, and by the number that their queues' ids tell. Iterating gives those that are served, as they came; a
    damaged copy is none of them until it is repaired."""

    def __init__(self) -> None:
        self._served: dict[str, HostedLog] = {}
        self._by_number: dict[int, HostedLog] = {}
        self._refused: dict[str, HostedLog] = {}
        self.outage_of: Callable[[int], MirrorlogError | None] = _not_known
        """Why nobody can answer for a log with this number that is none of this node's; see `liveness`."""

    def __iter__(self) -> Iterator[HostedLog]:
        return (log for log in self._served.values() if log.replica.damage is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, log: HostedLog) -> None:
        """A log that was opened, or that its node refuses to serve."""
        if log.state is HostedState.UNAVAILABLE:
            self._refused[str(log.log_id)] = log
            return
        self._served[str(log.log_id)] = log
        self._by_number[log.assignment.log_number] = log

    def remove(self, log: HostedLog) -> None:
        """It is reached no more; to close it is its owner's."""
        self._refused.pop(str(log.log_id), None)
        if self._served.pop(str(log.log_id), None) is not None:
            del self._by_number[log.assignment.log_number]

    def get(self, log_id: str) -> HostedLog | None:
        """The log, if it is served. Raises why it is not, if it is one of this node's."""
        if (refused := self._refused.get(log_id)) is not None:
            raise refused.refusal()
        return _undamaged(self._served.get(log_id))

    def held(self, log_id: str) -> HostedLog | None:
        """The log, if this node has opened it, served or not."""
        return self._served.get(log_id) or self._refused.get(log_id)

    def of_queue(self, queue_id: int) -> HostedLog:
        """The log that gave out this id, if it did: whether the queue is there is for the log to say.

        Raises NoSuchQueue, or LogUnavailable when this node refuses to serve that log, or all that hold it are down.
        """
        number = log_number_of(queue_id)
        log = self._by_number.get(number)
        if log is not None and log.replica.damage is None:
            return log
        _undamaged(log)
        for refused in self._refused.values():
            if refused.assignment.log_number == number:
                raise refused.refusal()
        if (outage := self.outage_of(number)) is not None:
            raise outage
        raise NoSuchQueue(
            f"no queue has the id {queue_id} in a log that this node holds; ask for the queue's metadata again"
        )

    @property
    def refused(self) -> list[HostedLog]:
        """Those that this node refuses to serve, each with its `error`."""
        return [*self._refused.values(), *(log for log in self._served.values() if log.replica.damage is not None)]

    def everyone(self) -> list[HostedLog]:
        """Served or not."""
        return [*self._served.values(), *self._refused.values()]


def _not_known(log_number: int) -> MirrorlogError | None:
    """Of no cluster."""
    return None


def _undamaged(log: HostedLog | None) -> HostedLog | None:
    """Raises what is wrong with a damaged copy: until it is repaired nobody is served from it."""
    if log is not None and log.replica.damage is not None:
        raise log.refusal()
    return log
