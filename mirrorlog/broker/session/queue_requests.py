"""Requests of clients and tools that concern queues: metadata, declare, delete, offsets, positions; and the status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, Final
from uuid import uuid4

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.metadata import MetadataAnswers, offset_at
from mirrorlog.broker.session.operator_requests import Operations
from mirrorlog.broker.session.queue_deletion import WAIT_S, Deletions
from mirrorlog.broker.session.queue_lifetimes import Exclusives, GivenNames, LifetimeKeeper, naming
from mirrorlog.cluster.decisions import asker
from mirrorlog.commitlog.epochs import EPOCH_MAX
from mirrorlog.config import Settings
from mirrorlog.errors import BadRequest, LogUnavailable, MirrorlogError, NotMaster, QueueExists, QueueMoving
from mirrorlog.queues.access import check_together
from mirrorlog.queues.arguments import check_declaration, log_group_key, log_group_of, version_needed
from mirrorlog.queues.changes import PositionCommitted
from mirrorlog.queues.limits.lifetime import is_transient
from mirrorlog.queues.queue_table import IDS_PER_LOG, Governs, Queue, no_such_queue, nobody_governs
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import (
    CommitPosition,
    DeclareQueue,
    DeleteQueue,
    Done,
    FetchPosition,
    FindOffset,
    FoundOffset,
    FoundPosition,
    GetMetadata,
    Position,
)
from mirrorlog.wire.messages.status import GetStatus, Status

logger = logging.getLogger(__name__)

DECLARATION_BYTES_MAX: Final = 32 * 1024
"""A queue with its arguments, as a batch. Far below any `max_batch_bytes`, above which no mirror takes a batch."""

FOLLOW_S: Final = 2.0
"""How long the answer to a landing waits for the log's begin to be where it was decided."""
FOLLOW_LOOK_S: Final = 0.01

Respond = Callable[[Message | MirrorlogError], None]
Handler = Callable[[Any, Respond], Message | None]
"""Gives the answer, or None when it comes later."""


class Requests:
    """Answers control messages from the state of this node's logs."""

    def __init__(
        self,
        settings: Settings,
        logs: HostedLogs,
        view: ClusterView,
        status: Callable[[], Status],
        operations: Operations | None = None,
    ) -> None:
        self._settings = settings
        self._logs = logs
        self._view = view
        self._status = status
        self._operations = operations
        self._deletions = Deletions(view)
        self._tasks: set[asyncio.Task[None]] = set()
        self.lifetimes = LifetimeKeeper(
            logs,
            view,
            self._deletions,
            return_s=settings.limits.subscriber_return_ms / 1000,
            spawn=lambda work: self.later(work, _nobody_waits),
        )
        self.exclusives = self.lifetimes.exclusives = Exclusives(self._transient_queue)
        self._deletions.on_deleted = self.exclusives.dropped
        self.given = GivenNames(view, self._has_home, self.later)
        self.governed: Governs = nobody_governs  # what policies make of a queue, logged with its declaration
        self._told = MetadataAnswers(settings, logs, view, self.lifetimes.is_there)
        self.handlers: dict[type[Message], Handler] = {
            GetMetadata: self._metadata,
            DeclareQueue: self._declare,
            DeleteQueue: self._delete,
            FindOffset: self._find_offset,
            CommitPosition: self._commit_position,
            FetchPosition: self._fetch_position,
            GetStatus: lambda message, respond: self._status(),
        }
        """By what is asked for; who answers more adds his own."""

    def handle(self, message: Message, respond: Respond) -> None:
        """Answer through `respond`, now or when a change is confirmed. Raises MirrorlogError as the answer."""
        operation = self._operations.handlers.get(type(message)) if self._operations is not None else None
        if operation is not None:
            told = operation(message)
            if isinstance(told, Message):
                respond(told)
            else:
                self.later(self._operate(told, respond), respond)
            return
        handler = self.handlers.get(type(message))
        if handler is None:
            raise BadRequest(f"{type(message).__name__} is no request")
        answer = handler(message, respond)
        if answer is not None:
            respond(answer)

    def answer(self, message: DeclareQueue, respond: Respond) -> None:
        """As `handle`; what would be raised is the answer, too: it settles whose an exclusive queue is."""
        try:
            self.handle(message, respond)
        except MirrorlogError as error:
            respond(error)
        except Exception as error:
            respond(MirrorlogError(f"internal error: {type(error).__name__}"))
            raise

    def find(self, name: str) -> tuple[HostedLog, Queue]:
        """Raises NoSuchQueue, or why a log that may have the queue is not served."""
        place = self._place(name)
        if place is not None:
            return place
        self._check_up(name)
        if self._logs.refused or not self._logs:
            raise self._unavailable()
        for log in self._logs:
            log.replica.queues.moves.check_name(name)
        raise no_such_queue(name)

    def _check_up(self, name: str) -> None:
        """Raises LogUnavailable naming the node, when all that hold the queue are down."""
        log_id = self._view.placed(name)
        if log_id is not None and (outage := self._view.outage(log_id, name)) is not None:
            raise outage

    def mastered(self, name: str) -> HostedLog:
        """The log that a queue is in, or was placed in, which this node masters. Raises NotMaster, NoSuchQueue, or why
        it is not served."""
        if not self._has_home(name):
            self.find(name)  # raises why it is not there
        log = self._home(name)
        if not log.masters:
            raise not_master(log.name, self._view.master(log.log_id))
        return log

    def is_being_deleted(self, name: str) -> bool:
        """Whether a deletion of that queue is under way here."""
        return self._deletions.is_under_way(name)

    def once_known(self, log: HostedLog, respond: Respond, act: Callable[[], None]) -> None:
        """Act on the log's master, once it knows what its predecessor confirmed (invariant 4). Raises NotMaster."""
        if log.knows_confirmed:
            act()
            return

        # Whoever brings the confirm did not ask for this: what the cluster decides of it names who did.
        context = copy_context()

        async def later() -> None:
            # In a step of its own: what is confirmed is known a moment after who waits for it is told.
            act()

        def known(error: MirrorlogError | None) -> None:
            if error is not None:
                respond(error)
            else:
                context.run(self.later, later(), respond)

        log.publisher.when_confirmed(known)

    # --- one method per request: the answer, or None when it comes later ---

    def _metadata(self, message: GetMetadata, respond: Respond) -> Message:
        if message.queues is None:
            if self._logs.refused and not self._logs:
                raise self._unavailable()
            return self._told.all()
        places = {name: self._place(name) or self._told.moving(name) for name in message.queues}
        missing = [name for name, place in places.items() if place is None]
        if self._logs.refused and (missing or not self._logs):
            raise self._unavailable()
        found = [self._told.queue(*place) for place in places.values() if place is not None]
        return replace(self._told.of(found, missing), outages=self._view.outages(message.queues))

    def _declare(self, message: DeclareQueue, respond: Respond) -> Message | None:
        needed = version_needed(message.arguments)
        if (older := versions.too_old(self._view.cluster_version(), needed, "these arguments")) is not None:
            respond(older)  # not raised: the connection is sound
            return None
        if self.lifetimes.is_going(message.name) or not self._has_home(message.name) or self._joins_group(message):
            self.later(self._place_and_declare(message, respond), naming(message.name, respond))
            return None
        return self._declare_in(self._home(message.name), message, respond)

    async def _place_and_declare(self, message: DeclareQueue, respond: Respond) -> None:
        check_declaration(message.name, message.arguments, placed=True)
        while self.lifetimes.is_going(message.name) or not self._has_home(message.name):
            # In the same step of the loop as the declaration: a place that is about to be taken away is none.
            await self._gone(message.name)
            if not self._has_home(message.name):
                check_declaration(message.name, message.arguments, placed=False)
                await self._view.place(message.name, message.arguments)
                if is_transient(message.arguments):
                    await self._mastered_here(message.name)
        if self._joins_group(message):
            # Its place may be from before it had a group, or from before the group has moved.
            await self._deletions.give_back(self._home(message.name), message.name)
            await self._view.place(message.name, message.arguments)
        answer = self._declare_in(self._home(message.name), message, respond)
        if answer is not None:
            respond(answer)

    async def _gone(self, name: str) -> None:
        """Until no queue of that name is about to be deleted. Raises LogUnavailable."""
        give_up_at = loop_time() + WAIT_S
        self.lifetimes.look_soon()
        await self._deletions.ended(name)
        while self.lifetimes.is_going(name):
            if loop_time() >= give_up_at:
                raise LogUnavailable(f"queue {name!r} is being deleted; ask again", queue=name)
            await asyncio.sleep(FOLLOW_LOOK_S)
            await self._deletions.ended(name)

    def _check_place(self, log: HostedLog, message: DeclareQueue) -> None:
        """Of two that declare a name differently at once, one has it placed; it is no place for the other one's queue.
        Raises QueueExists; NotMaster where it cannot be told what is there."""
        transient = self._view.is_transient(log.log_id)
        if transient and not log.masters:
            raise not_master(log.name, self._view.master(log.log_id))
        new = log.masters and log.replica.queues.get(message.name) is None
        if new and self._view.is_group_moving(log_group_key(message.name, message.arguments)):
            raise QueueMoving(f"the queues of {message.name!r}'s x-log-group are moving to another log; ask again")
        if new and transient != is_transient(message.arguments):
            raise QueueExists(
                f"queue {message.name!r} is being declared as one that {'goes' if transient else 'does not go'} with "
                "its node (durable, exclusive); delete it, if nobody declares it any more, or take another name",
                queue=message.name,
            )

    def _declare_in(self, log: HostedLog, message: DeclareQueue, respond: Respond) -> Message | None:
        self._check_place(log, message)
        if (group := log_group_key(message.name, message.arguments)) and log.replica.queues.get(message.name) is None:
            of_group = (each.name for each in log.replica.queues if log_group_key(each.name, each.arguments) == group)
            check_together(asker(), self._view.users(), of_group)
        declare, incarnation = log.replica.queues.declare, uuid4().hex
        by_use = self._view.cluster_version() >= versions.KEPT_BY_USE
        batch = declare(
            message.name, message.arguments, incarnation=incarnation, governed=self.governed, kept_by_use=by_use
        )
        if batch is not None and len(batch) > DECLARATION_BYTES_MAX:
            raise BadRequest(f"a declaration of {len(batch)} bytes is above the limit of {DECLARATION_BYTES_MAX}")
        if batch is not None and self._lacks_ids(log):
            self.later(self._declare_with_ids(log, message, respond), naming(message.name, respond))
            return None

        def answer() -> Message:
            return self._told.of([self._told.queue(log, log.replica.queues.find(message.name))], [])

        def done(error: MirrorlogError | None) -> None:
            if error is None and log.replica.queues.get(message.name) is None:
                error = no_such_queue(message.name)  # deleted before its declaration was on all copies
            respond(error or answer())

        if batch is not None:
            log.publisher.append_change(batch, done)
        elif log.replica.queues.find(message.name).declared_at >= log.replica.log.confirmed:
            # Declared a moment ago: its repetition, too, is answered only when all copies have it.
            log.publisher.when_confirmed(done)
        else:
            self.lifetimes.used(log, log.replica.queues.find(message.name))
            return answer()
        return None

    def _lacks_ids(self, log: HostedLog) -> bool:
        """Whether the next id is above those that the cluster knows may be given out. An older one cannot say more."""
        if not log.masters or self._view.cluster_version() < versions.DELETION:
            return False
        return log.replica.queues.ids_assigned >= min(self._view.queue_ids(log.log_id), IDS_PER_LOG - 1)

    async def _declare_with_ids(self, log: HostedLog, message: DeclareQueue, respond: Respond) -> None:
        """Once there are more; what else holds for a declaration is looked at again."""
        await self._view.grant_queue_ids(log.log_id, given=log.replica.queues.ids_assigned)
        answer = self._declare(message, respond)
        if answer is not None:
            respond(answer)

    def _delete(self, message: DeleteQueue, respond: Respond) -> None:
        if (older := self._deletions.check_version()) is not None:
            respond(older)
            return
        log = self.mastered(message.name)
        self.once_known(log, respond, lambda: self.later(self._deletions.delete(log, message, respond), respond))

    def _find_offset(self, message: FindOffset, respond: Respond) -> None:
        if message.log:
            log, queue_id = self._logs.with_records(message.log, message.queue)
        else:
            log, queue = self.find(message.queue)
            queue_id = queue.queue_id

        async def look() -> None:
            moved = queue_id in log.replica.queues.visitors or self._view.spans(message.queue)
            at = await offset_at(log, queue_id, message.append_time_us)
            respond(FoundOffset(queue_offset=at, log=str(log.log_id) if moved else ""))

        if message.any_copy:
            self.later(look(), respond)
        else:
            self.once_known(log, respond, lambda: self.later(look(), respond))

    def _commit_position(self, message: CommitPosition, respond: Respond) -> None:
        log, queue = self.find(message.queue)
        position = message.position
        here = position.log_id == str(log.replica.log_id)
        if not here and position.log_id not in {span.log_id for span in self._view.spans(queue.name)}:
            raise BadRequest(
                f"a position of log {position.log_id}, but queue {queue.name!r} is in {log.replica.log_id}"
            )
        if not log.masters:
            raise not_master(log.name, self._view.master(log.log_id))
        if here:
            _check_epoch(log, position.epoch)  # of two logs they cannot be compared
        # Up to what is appended: the position is behind those records in the log, so it is confirmed after them.
        following = log.replica.index.next_appended(queue.queue_id)
        if not 0 <= position.queue_offset <= following:
            raise BadRequest(f"position {position.queue_offset} is not within 0 and {following}, the records there are")
        change = PositionCommitted(
            group=message.group, log_id=position.log_id, epoch=position.epoch, queue_offset=position.queue_offset
        )
        batch = log.replica.queues.commit_position(message.queue, change)
        log.publisher.append_change(batch, lambda error: respond(error or Done()))

    def _fetch_position(self, message: FetchPosition, respond: Respond) -> Message | None:
        log, queue = self.find(message.queue)

        def answer() -> Message:
            stored = queue.positions.get(message.group)
            if stored is None:
                return FoundPosition(position=None)
            return FoundPosition(
                position=Position(log_id=stored.log_id, epoch=stored.epoch, queue_offset=stored.queue_offset)
            )

        if message.any_copy or log.knows_confirmed:
            return answer()
        # What its predecessor confirmed is known once its own epoch has begun (invariant 4); a mirror sends on.
        log.publisher.when_confirmed(lambda error: respond(error or answer()))
        return None

    @staticmethod
    async def _operate(answer: Awaitable[Message], respond: Respond) -> None:
        respond(await answer)

    # --- inside ---

    def later(self, work: Coroutine[None, None, None], respond: Respond) -> None:
        """Answer when the work is done; by its error, if it fails."""

        async def run() -> None:
            try:
                await work
            except MirrorlogError as error:
                respond(error)
            except Exception as error:
                logger.exception("request_failed")
                respond(MirrorlogError(f"internal error: {type(error).__name__}"))

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _has_home(self, name: str) -> bool:
        """Whether a queue is in a log that this node has, or was placed in one."""
        return self._view.placed(name) is not None or self._place(name) is not None

    def _joins_group(self, message: DeclareQueue) -> bool:
        """Whether it may be a new queue of a log group, and is not placed with that yet."""
        group = log_group_of(message.arguments)
        return bool(group) and self._place(message.name) is None and not self._view.in_group(message.name, group)

    def _home(self, name: str) -> HostedLog:
        """The log that a queue is in, or was placed in. Raises NotMaster, or why that log is not served.

        A mirror that is behind may have a queue that was deleted: whether one that is nowhere placed is there, only its
        master can say.
        """
        place = self._place(name)
        if place is not None and (place[0].masters or self._view.placed(name) is None):
            if not place[0].masters:
                raise not_master(place[0].name, self._view.master(place[0].log_id))
            return place[0]
        log_id = self._view.placed(name)
        assert log_id is not None
        log = self._logs.get(str(log_id))
        if log is None:
            self._check_up(name)
            raise not_master(self._view.logs()[log_id].name, self._view.master(log_id))
        return log

    def _place(self, name: str) -> tuple[HostedLog, Queue] | None:
        """Where the queue is: in a log that this node writes, or where the cluster has placed it, if it is in several:
        a mirror that is behind has what was deleted."""
        found = [(log, queue) for log in self._logs if (queue := log.replica.queues.named(name)) is not None]
        found = [(log, queue) for log, queue in found if self.lifetimes.is_there(log, queue)]
        if len(found) > 1 or (found and (not found[0][0].masters or found[0][0].replica.queues.moves.aside)):
            placed = self._view.placed(name)
            if placed is not None and self._view.cluster_version() >= versions.PLACEMENTS:
                found = [each for each in found if each[0].log_id == placed]  # a copy that is behind has what has moved
            found.sort(key=lambda each: (not each[0].masters, each[0].log_id != placed))
        return found[0] if found else None

    def _transient_queue(self, name: str) -> Queue | None:
        """One that goes with this node, also when it is about to: until then nobody else is to name it."""
        placed = self._view.placed(name)
        logs = (log for log in self._logs if log.log_id == placed and self._view.is_transient(log.log_id))
        return next((queue for log in logs if (queue := log.replica.queues.get(name)) is not None), None)

    def _queue(self, name: str) -> Queue | None:
        place = self._place(name)
        return place[1] if place is not None else None

    async def _mastered_here(self, name: str) -> None:
        """A log that was made for this queue on this node is about to be mastered by it: waited for, up to FOLLOW_S."""
        give_up_at = loop_time() + FOLLOW_S
        while (log_id := self._view.placed(name)) is not None and self._view.is_transient(log_id):
            log = self._logs.get(str(log_id))
            if (log is not None and log.masters) or loop_time() >= give_up_at:
                return
            await asyncio.sleep(FOLLOW_LOOK_S)

    def _unavailable(self) -> MirrorlogError:
        """Why there is a log less than assigned, as its own error with its details."""
        for log in self._logs.refused:
            assert log.error is not None
            return log.error.with_traceback(None)  # shared: it must not collect the frames of all who raise it
        return LogUnavailable("this node holds no log")


def _check_epoch(log: HostedLog, epoch: int) -> None:
    """Of a position. Any former one will do: who goes on at another record still has that of the last one he read, and
    some set none, which is 0. Raises NotMaster where this node is behind, BadRequest for what no epoch can be."""
    current = log.replica.log.epochs.current
    if not 0 <= epoch <= EPOCH_MAX:
        raise BadRequest(f"epoch {epoch} of a position is not within 0 and {EPOCH_MAX}")
    if epoch > current:
        raise NotMaster(
            f"a position of epoch {epoch}, and log {log.name} is at epoch {current} on this node: another node may "
            "write it by now; ask again"
        )


def loop_time() -> float:
    """The loop's clock, in s: that of the leases."""
    return asyncio.get_running_loop().time()


def _nobody_waits(answer: Message | MirrorlogError) -> None:
    """What the node does by itself."""
