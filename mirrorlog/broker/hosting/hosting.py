"""The cluster's decisions, done on this node: each log gets the role that its duty says.

Level-triggered, like the coordinator: a `LogKeeper` per log compares what the log is here with what it should be and
changes one thing at a time. A change of role and a fence never overlap: both hold the keeper's turn. So a node that has
promised an epoch in a fence does nothing for an older one, whatever it was about to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from math import inf
from typing import Any, Final, Protocol
from uuid import UUID

from mirrorlog import versions
from mirrorlog.broker.hosting.former import FormerCopies
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.roles import in_sync_set
from mirrorlog.broker.hosting.states import Duty, Follow, HostedState, Lead, Leave, Rest, duty_of
from mirrorlog.broker.hosting.status import mirror_lags
from mirrorlog.cluster.coordination.liveness import Change
from mirrorlog.cluster.coordination.promotion import FenceReport
from mirrorlog.cluster.membership.fenced_epochs import FencedEpochs
from mirrorlog.cluster.state.commands import (
    Command,
    Holder,
    LossEndFound,
    OffsetJumpConfirmed,
    QueueIdsGranted,
    QueuesPlaced,
)
from mirrorlog.cluster.state.state import ClusterState, LogFacts
from mirrorlog.config import COPIES_MAX, LogAssignment
from mirrorlog.errors import BadRequest, DiskFailed, MirrorlogError, NoSuchLog
from mirrorlog.ha.in_sync import InSyncSet

logger = logging.getLogger(__name__)

_NO_COPY: Final = "nobody"
"""Stands for the home of a log that has lost all its copies."""
RETRY_S: Final = 0.2
"""After a change that could not be made, it is tried again."""
ELECTION_S: Final = 1.0
"""How long a master that cannot be followed is waited for: the promotion that has fenced this copy is under way."""
HANDOVER_S: Final = 0.3
"""How long a master that hands over waits until its mirrors have everything: nothing is taken meanwhile."""
SETTLE_S: Final = 0.01
"""How often a start looks whether its logs are what they should be."""


class Opener(Protocol):
    """Opens the copy of a log. Raises MirrorlogError."""

    async def __call__(self, assignment: LogAssignment, log_id: UUID) -> HostedLog: ...


class LogKeeper:
    """One log, while this node is among its replicas. Its `task` ends when the log is none of this node's any more."""

    def __init__(self, log_id: str, hosting: Hosting) -> None:
        self.log_id = log_id
        self.log: HostedLog | None = None
        self._hosting = hosting
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._done: Duty | None = None
        self._told = ""
        self._elect_at = inf
        self._owes_jump = False
        self._fences: dict[asyncio.Task[FenceReport], None] = {}
        self.task = asyncio.ensure_future(self._keep())

    @property
    def tasks(self) -> list[asyncio.Future[Any]]:
        """What is under way."""
        return [self.task, *self._fences]

    @property
    def settled(self) -> bool:
        """Whether the log is written or copied here, as the cluster has it."""
        return isinstance(self._done, Lead | Follow) or (self.log is not None and self.log.error is not None)

    def know(self, state: ClusterState) -> None:
        """The cluster has decided something: what a master must know of at once, it is told at once."""
        facts = state.logs.get(self.log_id)
        role = self.log.mastering if self.log is not None else None
        if facts is not None and role is not None and self._done == Lead(facts.epoch):
            role.learned(in_sync_set(state, self.log_id))
        self._changed.set()

    async def fence(self, epoch: int, *, gently: bool = False) -> FenceReport:
        """Stop in every epoch before `epoch`, keep it on disk, and say what the copy holds. `gently`: what was taken as
        the master is confirmed before, if that is a matter of a moment. What was begun comes to its end, though
        who has asked may be gone. Raises MirrorlogError."""
        fence = asyncio.ensure_future(self._fence(epoch, gently=gently))
        self._fences[fence] = None
        fence.add_done_callback(self._fence_ended)
        return await asyncio.shield(fence)

    # --- inside ---

    def _fence_ended(self, fence: asyncio.Task[FenceReport]) -> None:
        self._fences.pop(fence, None)
        if not fence.cancelled():
            fence.exception()  # whoever asked for it knows, or is gone
        self._changed.set()

    async def _fence(self, epoch: int, *, gently: bool) -> FenceReport:
        hosting = self._hosting
        async with self._turn:
            facts = hosting.facts(self.log_id)
            if facts is None or self.log is None:
                raise NoSuchLog(f"this node holds no log {self.log_id} yet; ask again")
            if epoch <= facts.epoch:
                raise BadRequest(f"log {facts.name} is in epoch {facts.epoch}; a fence for {epoch} is late")
            if self.log.state is not HostedState.RESTING:
                self._done = Rest()
                if gently:
                    await self.log.come_to_end(HANDOVER_S)
                await self.log.step_down()
            promised = await hosting.promise(self.log_id, epoch)
            copy = self.log.facts()
            logger.info(
                "fenced log=%s epoch=%s last_epoch=%s end=%s confirmed=%s",
                facts.name, promised, copy.last_epoch, copy.end, copy.confirmed,
            )  # fmt: skip
            # Should the copy know an epoch that the cluster does not, it can open only one above that.
            promised = max(promised, copy.epoch_known + 1)
            return FenceReport(hosting.own.start_id, copy.last_epoch, copy.end, copy.confirmed, promised)

    async def _keep(self) -> None:
        """Until the log is none of this node's."""
        self._changed.set()
        while True:
            waits = self._done is None or _wants_election(self._done) or self._owes_jump
            timeout_s = RETRY_S if waits else None
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                async with self._turn:
                    if await self._settle():
                        return
            except DiskFailed:
                raise  # the node ends by it
            except MirrorlogError as error:
                self._done = None
                if self._told != str(error):
                    logger.warning("duty_waits log=%s reason=%r", self.log_id, str(error))
                self._told = str(error)

    async def _settle(self) -> bool:
        """Do what is to be done; whether that was the last of it."""
        hosting = self._hosting
        facts = hosting.facts(self.log_id)
        duty = duty_of(facts, hosting.own, hosting.promised(self.log_id))
        if isinstance(duty, Leave):
            await self._leave()
            return True
        assert facts is not None
        if self.log is None:
            self.log = await hosting.open(assignment_of(facts), UUID(self.log_id))
        if ids_from := hosting.ids_from(self.log_id):
            self.log.replica.queues.ids_given_before(ids_from)
        if self.log.state is HostedState.UNAVAILABLE:
            return False  # its node refuses to serve it, and says why to whoever asks
        if isinstance(duty, Lead) and self.log.facts().epoch_known >= duty.epoch:
            # It was opened here. If a fence that came to nothing has ended it: no epoch is opened twice.
            mastered = self.log.state is HostedState.MASTER
            self._done, duty = (duty, duty) if mastered else (self._done, Rest(wants_election=True))
        if duty != self._done:
            await self._do(duty, self.log, facts)
            self._done, self._told = duty, ""
        else:
            self.log.know(assignment_of(facts))
        self._ask_election(duty)
        self._tell_leap(duty, self.log, facts)
        return False

    def _tell_leap(self, duty: Duty, log: HostedLog, facts: LogFacts) -> None:
        """Until the cluster knows that the queue offsets have jumped, whoever masters the log lets them jump again."""
        self._owes_jump = facts.owes_jump and isinstance(duty, Lead)
        if self._owes_jump and log.mastering is not None and log.mastering.jumped:
            self._hosting.propose_soon(OffsetJumpConfirmed(log_id=self.log_id, seen=facts.seen))

    def _ask_election(self, duty: Duty) -> None:
        now = asyncio.get_running_loop().time()
        if not _wants_election(duty):
            self._elect_at = inf
        elif self._elect_at == inf:
            self._elect_at = now + ELECTION_S
        elif now >= self._elect_at:
            self._elect_at = now + ELECTION_S
            assert self.log is not None
            self._hosting.elect(self.log_id, self.log.facts().epoch_known + 1)

    async def _do(self, duty: Duty, log: HostedLog, facts: LogFacts) -> None:
        assignment = assignment_of(facts)
        logger.info("duty log=%s %s", facts.name, duty)
        if isinstance(duty, Lead):
            await self._lead(duty, log, facts)
        elif isinstance(duty, Follow):
            await log.follow(assignment, epoch=duty.epoch, losses=facts.losses, loss_end_found=self._loss_end_found)
        elif log.state is not HostedState.RESTING:
            await log.step_down()

    async def _lead(self, duty: Lead, log: HostedLog, facts: LogFacts) -> None:
        hosting = self._hosting
        lost_from = min((loss.start for loss in facts.losses if not loss.leapt), default=None)
        held_to = log.replica.claim.end if log.replica.damage is not None else None
        await log.lead(
            assignment_of(facts),
            duty.epoch,
            hosting.in_sync(self.log_id),
            lost_from=lost_from,
            losses=facts.losses,
            transient=hosting.is_transient(self.log_id),
            queue_ids=hosting.queue_ids(self.log_id),
        )
        if held_to is not None:
            self._loss_end_found(duty.epoch, held_to)
        # While the epoch was opened the cluster may have gone on.
        now = hosting.facts(self.log_id)
        if log.mastering is not None and now is not None and now.epoch == duty.epoch:
            log.mastering.learned(hosting.in_sync(self.log_id))
        hosting.place_queues(self.log_id, log)

    def _loss_end_found(self, epoch: int, end: int) -> None:
        """This copy held what was lost when `epoch` began, up to there."""
        self._hosting.propose_soon(LossEndFound(log_id=self.log_id, epoch=epoch, end=end))

    async def _leave(self) -> None:
        if self.log is not None:
            self._hosting.logs.remove(self.log)
            await self.log.close()
            self.log = None
            self._hosting.left(self.log_id)
        if self._hosting.facts(self.log_id) is None:
            await self._hosting.forget(self.log_id)


class Hosting:
    """`Host` of the cluster service: the logs of this node, as `own`, follow the cluster's state.

    `elect`: ask the coordinator to promote somebody anew in a log whose copies have promised more than its epoch.
    """

    def __init__(
        self,
        own: Holder,
        logs: HostedLogs,
        promises: FencedEpochs,
        *,
        opener: Opener,
        helper: Executor,
        failed: Callable[[MirrorlogError], None],
    ) -> None:
        self.own = own
        self.logs = logs
        self.state: ClusterState | None = None
        self._promises = promises
        self._opener = opener
        self._helper = helper
        self._failed = failed
        self._keepers: dict[str, LogKeeper] = {}
        self._stopped = False
        self.former: FormerCopies | None = None
        """The copies that are none of this node's any more; set before the cluster is heard."""
        self.ask_election: Callable[[str, int], None] = _nobody_asks
        self.propose_soon: Callable[[Command], None] = _nobody_decides
        self.on_registered: Callable[[], None] = _nobody_waits
        self.on_changed: Callable[[], None] = _nobody_waits
        self.on_life: Callable[[Change], None] = _nobody_watches

    # --- Host ---

    def changed(self, state: ClusterState) -> None:
        """The cluster has decided something."""
        self.state = state
        for log_id, facts in state.logs.items():
            if self.own.node in facts.replicas and log_id not in self._keepers:
                keeper = LogKeeper(log_id, self)
                self._keepers[log_id] = keeper
                keeper.task.add_done_callback(partial(self._ended, log_id))
        for keeper in self._keepers.values():
            keeper.know(state)
        self.on_changed()

    def life_changed(self, change: Change) -> None:
        """What follows from it the coordinator decides; here it is told."""
        self.on_life(change)

    async def fence(self, log_id: str, epoch: int, *, gently: bool = False) -> FenceReport:
        """As `LogKeeper.fence`."""
        keeper = self._keepers.get(log_id)
        if keeper is None:
            raise NoSuchLog(f"this node holds no log {log_id}, as far as it knows; ask again")
        return await keeper.fence(epoch, gently=gently)

    def sizes(self) -> Mapping[str, int]:
        """Bytes of the logs that are served here, by id."""
        logs = {str(each.log_id): each.replica.log for each in self.logs}
        return {log_id: log.end - log.begin for log_id, log in logs.items()}

    def lags(self) -> Mapping[str, Mapping[str, tuple[int, int]]]:
        """See `cluster.ports.MemberHost`."""
        masters = [(each, role.mastership) for each in self.logs if (role := each.mastering) is not None]
        found = {str(each.log_id): mirror_lags(each.replica, mastership) for each, mastership in masters}
        return {log_id: lags for log_id, lags in found.items() if lags}

    def registered(self) -> None:
        """The cluster knows of this run."""
        self.on_registered()

    def failed(self, error: MirrorlogError) -> None:
        """The node must stop."""
        self._failed(error)

    async def settle(self) -> None:
        """Until every log here has the role that the cluster has given it, or waits for the cluster to give it one."""
        while not all(keeper.settled for keeper in self._keepers.values()):  # noqa: ASYNC110  (each tells itself alone)
            await asyncio.sleep(SETTLE_S)

    async def stop(self) -> None:
        """No role changes any more. Idempotent."""
        self._stopped = True
        if self.former is not None:
            await self.former.stop()
        tasks = [task for keeper in self._keepers.values() for task in keeper.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- for the keepers ---

    def facts(self, log_id: str) -> LogFacts | None:
        """What the cluster has decided of a log."""
        return self.state.logs.get(log_id) if self.state is not None else None

    def in_sync(self, log_id: str) -> InSyncSet:
        """The in-sync set of a log that there is."""
        assert self.state is not None
        return in_sync_set(self.state, log_id)

    def is_transient(self, log_id: str) -> bool:
        """Whether what is in a log goes with this node's run."""
        assert self.state is not None
        return log_id in self.state.transient.values()

    def queue_ids(self, log_id: str) -> int:
        """See `ClusterState.queue_ids`."""
        assert self.state is not None
        return self.state.queue_ids(log_id)

    def ids_from(self, log_id: str) -> int:
        """See `LogPlace.ids_from`."""
        places = self.state.places if self.state is not None else None
        return places.place(log_id).ids_from if places is not None else 0

    def place_queues(self, log_id: str, log: HostedLog) -> None:
        """The cluster shall know of every queue of a log, also of one that was there before it, and of the ids that
        were given out before it granted any."""
        assert self.state is not None
        given = log.replica.queues.ids_assigned
        if given > self.state.queue_ids(log_id) and self.state.cluster_version >= versions.DELETION:
            self.propose_soon(QueueIdsGranted(log_id=log_id, until=given))
        if self.is_transient(log_id):
            return  # what the cluster has not placed there is gone
        names = tuple(queue.name for queue in log.replica.queues if queue.name not in self.state.queues)
        if names:
            self.propose_soon(QueuesPlaced(log_id=log_id, names=names))

    def promised(self, log_id: str) -> int:
        return self._promises.of(log_id)

    async def promise(self, log_id: str, epoch: int) -> int:
        """On disk when it returns: the highest epoch promised."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._helper, self._promises.keep, log_id, epoch)

    async def open(self, assignment: LogAssignment, log_id: UUID) -> HostedLog:
        """The copy: opened at the start, or now."""
        known = self.logs.held(str(log_id))
        if known is not None:
            return known
        if self.former is not None:
            await self.former.wanted(str(log_id))
        return await self._opener(assignment, log_id)

    def held(self) -> set[str]:
        """The logs whose copies are open here, or are about to be."""
        return {str(log.log_id) for log in self.logs.everyone()} | self._keepers.keys()

    async def forget(self, log_id: str) -> None:
        """There is no such log any more: what was promised for it takes the room of others."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._helper, self._promises.forget, log_id)

    def left(self, log_id: str) -> None:
        """Its copy is closed: the cluster names this node for it no more."""
        if self.former is not None:
            self.former.left(log_id)

    def elect(self, log_id: str, epoch: int) -> None:
        """Somebody shall be promoted above what was promised here, in `epoch` at least."""
        self.ask_election(log_id, max(epoch, self.promised(log_id)))

    # --- inside ---

    def _ended(self, log_id: str, task: asyncio.Task[None]) -> None:
        self._keepers.pop(log_id, None)
        if self.state is not None and not self._stopped:
            self.changed(self.state)  # the log may have come back while its copy was closed
        if not task.cancelled() and (error := task.exception()) is not None:
            known = error if isinstance(error, MirrorlogError) else None
            logger.critical("keeper_failed log=%s", log_id, exc_info=None if known else error)
            self._failed(known or MirrorlogError(f"internal error: {type(error).__name__}: {error}"))


def assignment_of(facts: LogFacts) -> LogAssignment:
    """The log for this node's copy. Without a master, the home stands in its place: nobody is sent there for it.

    How many copies a confirm needs is for the in-sync set to say: here it is as far as there are copies at all."""
    home = facts.replicas[0] if facts.replicas else _NO_COPY
    master = facts.master.node if facts.master is not None else home
    return LogAssignment(
        name=facts.name,
        number=facts.number,
        master=master,
        mirrors=tuple(node for node in facts.replicas if node != master),
        flush="disk" if facts.flush == "disk" else "memory",
        copies=min(facts.copies, COPIES_MAX),  # software before took any number
        min_in_sync=max(1, min(facts.copies_wanted, len(facts.replicas))),
    )


def _wants_election(duty: Duty) -> bool:
    return isinstance(duty, Rest) and duty.wants_election


def _nobody_asks(log_id: str, epoch: int) -> None:
    """No coordinator is known yet."""


def _nobody_decides(command: Command) -> None:
    """No cluster is there yet."""


def _nobody_waits() -> None:
    """Nobody wants to know."""


def _nobody_watches(change: Change) -> None:
    """Nobody wants to know this either."""
