"""One log on one node: the copy, its readers, its flushes, and the role that the node has in it now.

The cluster decides who masters a log while the nodes run, so a role comes and goes, and the copy stays: readers are
served from it, below the confirmed offset, through every change. Changes are made one after the other, in the order in
which they were asked for, and one that has begun goes on to its end, whoever waits for it. It begins with a fence: in
one step of the loop publishes are refused, waits are answered, links are closed. Then what helpers have begun is waited
for, and only then the next role begins. So no role sees what another has left half done.

A change that fails leaves a copy of which it is not known what it is: the node ends, as it does when a start fails.
What the system refuses before anything is changed (FILE_REFUSED) is no such failure: the copy rests, and the change is
asked for again.

A damaged copy (see `damage`) has roles too, so that it can be compared, and repaired as a mirror; until then it serves
nobody.

Rejected: to close the copy and open it again as another role (seconds without readers, for a log of many segments).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from uuid import UUID

from msgspec.structs import replace

from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.hosting.damage import CopyDamage, report_recovery
from mirrorlog.broker.hosting.roles import LogRole, MasterRole, MirrorRole, RestingRole
from mirrorlog.broker.hosting.states import CHANGEABLE, NEXT, ROLES, CopyFacts, HostedState
from mirrorlog.broker.hosting.status import unavailable_status
from mirrorlog.broker.log.fetch import Fetcher
from mirrorlog.broker.log.host import Host
from mirrorlog.broker.log.maintenance import Maintenance, PastKeeper
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.refusals import ElsewhereLog, not_master
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.resources.disk_limits import DiskReport
from mirrorlog.commitlog.epochs import ENTRIES_MAX
from mirrorlog.config import LogAssignment, Member
from mirrorlog.errors import BadRequest, FileRefused, LogUnavailable, MirrorlogError
from mirrorlog.ha.in_sync import InSyncSet
from mirrorlog.ha.links import DeclaredLoss
from mirrorlog.wire.messages.status import LogStatus

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_P = ParamSpec("_P")


END_LOOK_S: Final = 0.001
"""How often a master that hands over looks whether its mirrors have everything."""


def in_turn(
    change: Callable[Concatenate[HostedLog, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[HostedLog, _P], Coroutine[Any, Any, _T]]:
    """One change of a log after the other. Who waits for a change may give up; the change may not."""

    @wraps(change)
    async def in_its_turn(log: HostedLog, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async def run() -> _T:
            async with log.turn:
                return await change(log, *args, **kwargs)

        task = asyncio.ensure_future(run())
        log.changes.add(task)
        task.add_done_callback(log.changes.discard)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(task)

    return in_its_turn


class HostedLog:
    """`assignment`: what the log is, and who masters and who mirrors it until a change says otherwise."""

    def __init__(self, assignment: LogAssignment, log_id: UUID, host: Host) -> None:
        self.log_id = log_id
        self.state = HostedState.NEW
        self._unusable: MirrorlogError | None = None
        self.replica = Replica(assignment, log_id, host.settings, files=host.files)
        self.replica.on_broken = host.failed
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
        # A flush that is slow delays no other log's; what is done to this copy is done in order.
        self._flush_helper = host.helpers.flush.lane()
        self.turn = asyncio.Lock()
        self.changes: set[asyncio.Task[Any]] = set()
        self._report: DiskReport | None = None
        self._has_led = False
        self._damage = CopyDamage(self.replica, self._flush_helper, self._quiesce, host.failed, self._others_whole)

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
        replica = self.replica
        if self.state not in CHANGEABLE | {HostedState.CHANGING} or not replica.tells_queues:
            raise self.refusal()
        damaged = replica.damage is not None
        return CopyFacts(
            last_epoch=replica.log.epochs.data_epoch(replica.log.end),
            end=replica.log.end,
            confirmed=replica.claim.end if damaged else replica.log.confirmed,
            flushed=replica.log.flushed,
            epoch_known=replica.log.epochs.current,
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
        if self.state in ROLES:
            self.role.disk_measured(report)

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        if isinstance(self.role, MasterRole):
            self.role.tick(now)

    @property
    def mastering(self) -> MasterRole | None:
        """The role in which this node writes the log; None while it does not."""
        return self.role if isinstance(self.role, MasterRole) else None

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
    def deliverer(self) -> Deliverer | None:
        """Who serves the groups that ack, on the log's master; None elsewhere."""
        return self.role.deliverer if isinstance(self.role, MasterRole) else None

    def know(self, assignment: LogAssignment) -> None:
        """The log has other replicas, or needs another number of them; who masters it has not changed."""
        if assignment != self.assignment and self.state in ROLES:
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
        while self.replica.log.confirmed < self.replica.log.end:
            if self.state is not HostedState.MASTER or loop.time() >= give_up_at:
                return
            await asyncio.sleep(END_LOOK_S)

    # --- changes: one after the other ---

    @in_turn
    async def open(self, directory: Path) -> None:
        """Recover the copy in `directory`, or make an empty one; then it serves readers. A copy that cannot be used
        makes the log unavailable by `error`, and is no failure. Raises ForeignDirectory or DiskFull."""
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
        report_recovery(self.name, self.replica.log, loop.time() - started)

    @in_turn
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
        self._check_changeable(assignment)
        node = self._host.settings.node.id
        if assignment.master != node:
            raise BadRequest(f"log {self.name} is to be written by node {assignment.master}, not by this one, {node}")
        if epoch <= self.replica.log.epochs.current:
            raise BadRequest(
                f"epoch {epoch} is not above {self.replica.log.epochs.current}, the last one of log {self.name}"
            )
        if (full := self._epochs_full()) is not None:
            raise full
        loop = asyncio.get_running_loop()
        if (given_up := self._damage.given_up_from(epoch, losses)) is not None:
            await loop.run_in_executor(self._flush_helper, self.replica.check_aside)
        with self._ends_node():
            await self._hand_over(self._member(node))
            if (known := self.replica.log.epochs.current) >= epoch:  # by what came last on the link that was closed
                self._rest(None)
                raise BadRequest(f"epoch {epoch} is not above {known}, of which log {self.name} was just told")
            self.replica.assign(assignment, is_master=True)
            try:
                await self._damage.cut(epoch, losses, given_up)
                await loop.run_in_executor(self._flush_helper, self._open_epoch, epoch)
            except FileRefused as error:
                self.replica.align_failed(error)
                if self.replica.usable:  # else a copy is half made anew
                    self.replica.assign(assignment, is_master=False)
                    self._rest(None)
                raise
            role = MasterRole(self._host, self.replica, in_sync=in_sync, losses=losses)
            # What this run finds in such a log when it leads it first is a former one's, whatever is placed there now.
            former = transient and not self._has_led
            role.begin(lost_from=lost_from, queue_ids=queue_ids, without_queues=former)
            self._has_led = True
            self.replica.counters.promotions += 1
            self._begin(role, HostedState.MASTER)

    @in_turn
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

    @in_turn
    async def step_down(self, assignment: LogAssignment | None = None) -> CopyFacts:
        """Neither write nor follow; gives what the copy holds then. `assignment`: who masters the log from now on, for
        whoever asks here; None: that is not known. Raises as `lead`."""
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

    @in_turn
    async def close(self) -> None:
        """Flush and let everything go; idempotent. A disk that fails in it ends the node."""
        if self.state is HostedState.CLOSED:
            return
        try:
            if self.state in CHANGEABLE:
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

    # --- inside: opening, roles ---

    def _enter(self, state: HostedState) -> None:
        assert state in NEXT[self.state], f"log {self.name}: {self.state.value} to {state.value}"
        logger.debug("log_state log=%s from=%s to=%s", self.name, self.state.value, state.value)
        self.state = state

    def _refuse(self, error: MirrorlogError) -> None:
        """Other logs of the node go on; this one is refused by its reason until it is repaired."""
        logger.error("log_unavailable log=%s reason=%r", self.name, str(error))
        self._unusable = error
        self._enter(HostedState.UNAVAILABLE)
        self._host.ha.accept.refuse(self.log_id, error)

    def _epochs_full(self) -> LogUnavailable | None:
        count = len(self.replica.log.epochs.entries)
        if count < ENTRIES_MAX:
            return None
        return LogUnavailable(
            f"log {self.name} has {count} epochs, and each start of its master adds one: no more fit; "
            "its mirrors still serve readers, publish its records from there into a new log"
        )

    def _open_epoch(self, epoch: int) -> None:
        log = self.replica.log
        log.open_epoch(epoch, node_id=self._host.settings.node.id, start_id=self._host.start_id)
        # Who was to master the log was decided by what all copies hold: what this one lost is known, and was said.
        log.settle_loss()

    async def _hand_over(self, master: Member | None) -> None:
        """`_leave`, and say what stands here: the role that follows is told by itself."""
        was = self.state
        await self._leave(master)
        if was in ROLES and self.replica.usable:
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
            sharers=self._host.log_count,
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

    def _member(self, node: str) -> Member:
        """Raises BadRequest for a node of which nothing is known."""
        member = self._host.view.member(node)
        if member is None:
            raise BadRequest(f"log {self.name}: no node {node} is known here")
        return member

    def _check_changeable(self, assignment: LogAssignment | None) -> None:
        if self.state not in CHANGEABLE:
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

    def _others_whole(self) -> bool | None:
        """Whether somebody else has all of the log; None while nobody is served from this copy."""
        if self.state not in ROLES or not self.replica.usable:
            return None
        if isinstance(self.role, MasterRole):
            return bool(self.role.mastership.in_sync)
        return isinstance(self.role, MirrorRole) and self.role.service.following

    @contextmanager
    def _ends_node(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, BadRequest | FileRefused) and self.state in ROLES:
                raise  # nothing has failed: another role began instead
            known = error if isinstance(error, MirrorlogError) else None
            logger.critical(
                "role_change_failed log=%s reason=%r", self.name, str(error), exc_info=None if known else error
            )
            self._host.failed(known or MirrorlogError(f"internal error: {type(error).__name__}: {error}"))
            raise
