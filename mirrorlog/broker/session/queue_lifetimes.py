"""Queues that go by themselves, on the node that masters their log: who uses them, and one look in a second. Thin;
`queues.limits.lifetime` decides.

The look goes over the queues that have such arguments, of the logs that this node masters and whose epoch has begun,
some at each tick, so that 10,000 of them hold nobody up. What it finds is deleted as if somebody had asked for it, many
queues of a log together. It is decided once: whoever subscribes while the bindings are already being taken away is told
that the queue is gone. To take it back then would leave a queue to which nothing leads, and nobody would know.

Reads at mirrors are no use that the master sees, so queues with `x-expires` are read at their master alone: they tell
of no mirrors, and a mirror sends on who asks it.

An exclusive queue is its client's who declared it, until the connection goes over which he did; then it goes, too. A
client may have several connections to a node (its own address of it, and the one that the node gives itself), so he is
known by an id that he made up and says when he greets; one that says none is known by his connection. Nobody else
learns that id. Whoever else names the queue is refused; to publish to it is everybody's right.

What is asked for while the declaration is on its way is nobody's yet, and refused. A queue that has lost its owner, or
never got one, is over from that moment on, though its deletion takes a while: nobody else ever becomes its owner, and
who declares its name waits for another one. Rejected: the owner in the log, or in the cluster's state: no queue of this
kind outlives its node, so nobody else needs to know.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import Deletions
from mirrorlog.errors import AccessRefused, BadRequest, LogUnavailable, MirrorlogError, QueueExclusive
from mirrorlog.queues.arguments import without_words
from mirrorlog.queues.changes import QueueUsed, encode_change
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.limits.lifetime import EXCLUSIVE, Lifetimes, Uses
from mirrorlog.queues.queue_table import Queue, no_such_queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import Lease, Subscribe
from mirrorlog.wire.messages.queues import DeclareQueue, DeleteQueue, Metadata
from mirrorlog.wire.messages.topology import Bind, Unbind
from mirrorlog.wire.names import qualified, shown, split

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
AT_ONCE: Final = 500
"""Queues of a log that one tick looks at, 2 µs each: a look at more than 10,000 takes longer than a second."""


RESERVED: Final = "amq."
"""With what nobody's names of new queues begin."""
GENERATED: Final = "amq.gen-"
"""With what names of queues begin that a node has made."""

Respond = Callable[[Message | MirrorlogError], None]
Find = Callable[[str], Queue | None]
"""A queue that is here, by its key."""
Later = Callable[[Coroutine[None, None, None], Respond], None]
"""Answers when the work is done; by its error, if it fails."""


class Session(Protocol):
    """A connection. `owner`: its client."""

    @property
    def owner(self) -> Hashable: ...

    @property
    def is_open(self) -> bool: ...


class Exclusives:
    """Of one node. `find`: its queues."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._owners: dict[str, Session] = {}
        self._by_id: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._of: dict[Session, set[str]] = {}
        self._declaring: dict[str, int] = {}
        self._over: set[int] = set()

    def check(self, message: Message, session: Session) -> None:
        """Whether it may be asked for. Raises QueueExclusive."""
        for name in _names_in(message):
            owner = self._owners.get(name)
            if owner is not None:
                if owner.owner != session.owner:
                    raise _exclusive(name)
            elif not isinstance(message, DeclareQueue) and self._is_exclusive(name):
                raise _exclusive(name)

    def check_read(self, queue: Queue, session: Session) -> None:
        """Of a fetch: the same. What it was declared with decides, for it may be nobody's. Raises QueueExclusive."""
        if queue.arguments.get(EXCLUSIVE) is not True:
            return
        if queue.queue_id not in self._by_id or self._owners[queue.name].owner != session.owner:
            raise _exclusive(queue.name)

    def declaring(self, message: DeclareQueue, session: Session, respond: Respond) -> Respond:
        """Around the answer to a declaration: whose the queue is, is settled when that is confirmed."""
        name = message.name
        if message.arguments.get(EXCLUSIVE) is not True:
            return respond
        # The same name may be declared twice at once.
        self._declaring[name] = self._declaring.get(name, 0) + 1

        def answered(answer: Message | MirrorlogError) -> None:
            self._declaring[name] -= 1
            if not self._declaring[name]:
                del self._declaring[name]
            if isinstance(answer, Metadata) and answer.queues:
                answer = self._own(name, answer.queues[0].queue_id, session) or answer
            self._end_unowned(name)
            respond(answer)

        return answered

    def forget(self, session: Session) -> bool:
        """Its connection is gone; whether that leaves queues without their owner."""
        names = self._of.pop(session, set())
        for name in names:
            del self._owners[name]
            queue_id = self._ids.pop(name)
            del self._by_id[queue_id]
            self._over.add(queue_id)
        return bool(names)

    def dropped(self, queue: Queue) -> None:
        """A queue is there no more."""
        self._over.discard(queue.queue_id)
        if self._ids.get(queue.name) == queue.queue_id:
            del self._by_id[self._ids.pop(queue.name)]
            self._of[self._owners.pop(queue.name)].discard(queue.name)

    def is_orphan(self, queue: Queue) -> bool:
        """Whether it is exclusive and nobody's: its connection is gone."""
        if queue.arguments.get(EXCLUSIVE) is not True:
            return False
        unowned = queue.queue_id not in self._by_id and queue.name not in self._declaring
        return unowned or queue.queue_id in self._over

    # --- inside ---

    def _own(self, name: str, queue_id: int, session: Session) -> MirrorlogError | None:
        former = self._owners.get(name)
        if former is not None:
            return None if former.owner == session.owner else _exclusive(name)
        if queue_id in self._over:
            return LogUnavailable(f"queue {shown(name)!r} is being deleted; ask again", queue=name)
        if not session.is_open:
            self._over.add(queue_id)
            return None  # nobody hears it
        self._owners[name] = session
        self._ids[name], self._by_id[queue_id] = queue_id, name
        self._of.setdefault(session, set()).add(name)
        return None

    def _end_unowned(self, name: str) -> None:
        """What was declared and got no owner, since the declaration failed, is nobody else's later."""
        queue = self._find(name) if name not in self._declaring else None
        if queue is not None and self.is_orphan(queue):
            self._over.add(queue.queue_id)

    def _is_exclusive(self, name: str) -> bool:
        queue = self._find(name)
        return queue is not None and queue.arguments.get(EXCLUSIVE) is True


def _names_in(message: Message) -> list[str]:
    """The keys of the queues that a request names."""
    if isinstance(message, DeclareQueue | DeleteQueue):
        return [message.name]
    if isinstance(message, Bind | Unbind):
        bindings = message.bindings if isinstance(message, Bind) else [message.binding]
        return [qualified(message.virtual_host, each.destination) for each in bindings if not each.to_exchange]
    queue = getattr(message, "queue", None)
    return [queue] if isinstance(queue, str) else []


def _exclusive(name: str) -> QueueExclusive:
    return QueueExclusive(
        f"queue {shown(name)!r} is exclusive, and another connection's; declare one of your own under another name",
        queue=name,
    )


# Queues that leave their name to a node. It has the queue placed under the name that it gives, and refuses, with the
# name, when the queue is to be declared at another one; which may not have heard of the place yet.


class GivenNames:
    """`has_home`: whether a queue is here, or placed."""

    def __init__(self, view: ClusterView, has_home: Callable[[str], bool], later: Later) -> None:
        self._view = view
        self._has_home = has_home
        self._later = later

    def named(
        self,
        message: DeclareQueue,
        respond: Respond,
        *,
        may: Callable[[DeclareQueue], bool],
        go_on: Callable[[DeclareQueue], None],
    ) -> None:
        """Goes on with a declaration as it is kept (`without_words`); one that leaves the queue's name to the node has
        one then. `may`: whether whoever asks may declare it, asked before others are. Raises, or answers, BadRequest
        for such a name of a queue that is not there: nodes alone give them out; AccessRefused for other names that
        nobody may give."""
        message = replace(message, arguments=without_words(message.arguments))
        virtual_host, name = split(message.name)
        if not name:
            go_on(replace(message, name=qualified(virtual_host, f"{GENERATED}{secrets.token_urlsafe(16)}")))
        elif not name.startswith(RESERVED) or self._has_home(message.name):
            go_on(message)
        elif not name.startswith(GENERATED):
            raise AccessRefused(f"queue {name[:64]!r}: names that begin with {RESERVED} are reserved")
        elif may(message):
            self._later(self._once_heard_of(message, go_on), respond)

    async def _once_heard_of(self, message: DeclareQueue, go_on: Callable[[DeclareQueue], None]) -> None:
        await self._view.up_to_date()
        if not self._has_home(message.name):
            raise BadRequest(f"names that begin with {GENERATED} are given by nodes; declare with an empty name")
        go_on(message)


def naming(name: str, respond: Respond) -> Respond:
    """Of a queue whose name a node has made, a refusal says it: it is placed, and may be declared by that elsewhere."""
    if not split(name)[1].startswith(GENERATED):
        return respond

    def named(answer: Message | MirrorlogError) -> None:
        if isinstance(answer, MirrorlogError):
            answer.details.setdefault("queue", name)
        respond(answer)

    return named


class _Mastership(NamedTuple):
    epoch: int
    lifetimes: Lifetimes


class LifetimeKeeper:
    """Of one node. `return_s`: how long a new master waits for subscribers to come back; `spawn`: has work done that
    nobody waits for."""

    def __init__(
        self,
        logs: HostedLogs,
        cluster: ClusterView,
        deletions: Deletions,
        *,
        return_s: float,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._logs = logs
        self._cluster = cluster
        self._deletions = deletions
        self._return_s = return_s
        self._spawn = spawn
        self.exclusives = Exclusives(lambda name: None)
        self._masterships: dict[UUID, _Mastership] = {}
        self._busy: set[UUID] = set()
        self._finished: dict[UUID, int] = {}
        self._look_at = 0.0
        self._looking: list[tuple[HostedLog, deque[int]]] = []

    # --- what is asked for ---

    def asked(self, message: Message) -> None:
        """After somebody was subscribed, or let in to wait for a lease; refused or not, it is a use of the queue."""
        if not isinstance(message, Subscribe | Lease):
            return
        for log in self._logs:
            queue = log.replica.queues.get(message.queue) if log.masters else None
            if queue is not None and queue.queue_id in log.replica.queues.lifetimes:
                self.used(log, queue)

    def used(self, log: HostedLog, queue: Queue) -> None:
        """A queue was declared again, subscribed to, or asked for a lease. Raises NotMaster at a mirror of one whose
        uses have to be seen: to answer there that it is there would be to let it go all the same."""
        lifetime = log.replica.queues.lifetimes.get(queue.queue_id)
        if lifetime is None:
            return
        if not log.masters and lifetime.expires_ms is not None:
            raise not_master(log.name, self._cluster.master(log.log_id))
        self._lifetimes(log).used(queue.queue_id, _now())
        self._note_used(log, queue)

    def came(self, log: HostedLog, queue_id: int) -> None:
        """A queue has come from another log, or is back: to who uses it that is a new master."""
        self._lifetimes(log).came(queue_id, _now())

    def read(self, log: HostedLog, queue_id: int, session: Session) -> None:
        """A fetch. Raises NotMaster at a mirror of a queue whose reads have to be seen, NoSuchQueue for one that is
        over, QueueExclusive."""
        if self._cluster.is_transient(log.log_id):
            self._check_transient(log, queue_id, session)
        lifetime = log.replica.queues.lifetimes.get(queue_id)
        if lifetime is None:
            return
        if log.masters:
            self._lifetimes(log).used(queue_id, _now())
        elif lifetime.expires_ms is not None:
            raise not_master(log.name, self._cluster.master(log.log_id))

    def is_there(self, log: HostedLog, queue: Queue) -> bool:
        """Whether a queue that is in a log is to be found. Not one that was to go with a run of its node, and that is
        over, or has not begun to write the log; nor an exclusive one whose client is gone."""
        if not self._cluster.is_transient(log.log_id):
            return True
        placed = self._cluster.placed(queue.name) == log.log_id
        return placed and log.masters and not self.exclusives.is_orphan(queue)

    def is_going(self, name: str) -> bool:
        """Whether a queue of that name is about to be deleted, and whoever declares one has to wait."""
        return self._deletions.is_under_way(name) or any(self._in_the_way(log, name) for log in self._logs)

    def _in_the_way(self, log: HostedLog, name: str) -> bool:
        """Of another of that name, in the same log."""
        queue = log.replica.queues.get(name) if self._cluster.is_transient(log.log_id) else None
        if queue is None or not log.masters or self._cluster.placed(name) not in (None, log.log_id):
            return False
        return not self.is_there(log, queue)

    def _check_transient(self, log: HostedLog, queue_id: int, session: Session) -> None:
        if not log.masters:
            raise not_master(log.name, self._cluster.master(log.log_id))
        queue = log.replica.queues.find_id(queue_id)
        if not self.is_there(log, queue):
            raise no_such_queue(queue.name)
        self.exclusives.check_read(queue, session)

    # --- the look ---

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        for mastership in self._masterships.values():
            mastership.lifetimes.passed(now)
        if now >= self._look_at and not self._looking:
            self._look_at = now + LOOK_S
            self._looking = [(log, self._ids(log)) for log in self._logs if log.knows_confirmed]
        self._looking = [(log, rest) for log, ids in self._looking if (rest := self._look(log, ids, now))]

    def _ids(self, log: HostedLog) -> deque[int]:
        """Whom a look at a log is for. What is over whatever its arguments say ends at once."""
        self._end_soon(log, self._over(log), over=True)
        queues = log.replica.queues
        self._lifetimes(log).keep(queues.lifetimes)
        return deque(queues.lifetimes)

    def _look(self, log: HostedLog, ids: deque[int], now: float) -> deque[int]:
        """At some of them; gives the rest."""
        some = [ids.popleft() for _ in range(min(AT_ONCE, len(ids)))]
        if not some or not log.knows_confirmed:
            return deque()
        lifetimes, queues, ends = self._lifetimes(log), log.replica.queues, []
        for queue_id, lifetime in ((each, queues.lifetimes.get(each)) for each in some):
            if lifetime is None:
                continue  # deleted since the look began
            queue = queues.find_id(queue_id)
            self._note_used(log, queue)
            if reason := lifetimes.ends(queue_id, lifetime, self._uses(log, queue), now):
                logger.debug("queue_ends log=%s queue=%r id=%s reason=%r", log.name, queue.name, queue_id, reason)
                ends.append(queue.name)
        self._end_soon(log, ends)
        return ids

    def _end_soon(self, log: HostedLog, names: Iterable[str], *, over: bool = False) -> None:
        """One deletion of a log's queues at a time: what comes meanwhile is found again by the next look. None while
        the cluster is being updated: what it cannot decide would be asked for again and again."""
        if self._cluster.cluster_version() < versions.DELETION:
            return
        names = [name for name in names if not self._deletions.is_under_way(name)]
        epoch = log.replica.log.epochs.current
        if log.log_id not in self._busy and (names or self._finished.get(log.log_id) != epoch):
            if names:
                logger.info("queues_end log=%s count=%s first=%r", log.name, len(names), names[0])
            self._busy.add(log.log_id)
            self._spawn(self._end(log, names, epoch, over=over))

    def _over(self, log: HostedLog) -> list[str]:
        """In the log of what goes with this node's run: the queues whose owner is gone, and those that the cluster has
        given up, with a former run, or with this one while it was cut off."""
        if not self._cluster.is_transient(log.log_id):
            return []
        placed = set(self._cluster.placed_in(log.log_id))  # once: there may be 10,000
        is_orphan = self.exclusives.is_orphan
        return [queue.name for queue in log.replica.queues if queue.name not in placed or is_orphan(queue)]

    def all_come_back(self) -> None:
        """The node is about to close all connections, so that their clients log in: that nobody is there says nothing
        for a while."""
        for mastership in self._masterships.values():
            mastership.lifetimes.returning(_now())

    def look_soon(self) -> None:
        """Something has ended that queues go with."""
        self._look_at = 0.0

    async def end_run(self) -> None:
        """The node stops: what is not to outlive its run goes, and whoever uses it is told."""
        for log in self._logs:
            if log.knows_confirmed and self._cluster.is_transient(log.log_id):
                try:
                    names = [queue.name for queue in log.replica.queues]
                    await self._deletions.delete_all(log, names, held_too=True)
                except MirrorlogError as error:
                    logger.info("queues_not_ended log=%s reason=%r", log.name, str(error))

    async def _end(self, log: HostedLog, names: list[str], epoch: int, *, over: bool) -> None:
        """What cannot be done now is found again by the next look."""
        try:
            if self._finished.get(log.log_id) != epoch:
                await self._deletions.finish(log)
                self._finished[log.log_id] = epoch
            await self._deletions.delete_all(log, names, held_too=over)
        except MirrorlogError as error:
            logger.info("queues_not_ended log=%s reason=%r", log.name, str(error))
        finally:
            self._busy.discard(log.log_id)

    # --- inside ---

    def _lifetimes(self, log: HostedLog) -> Lifetimes:
        """Of the present mastership."""
        epoch, known = log.replica.log.epochs.current, self._masterships.get(log.log_id)
        if known is None or known.epoch != epoch:
            known = _Mastership(epoch, Lifetimes(_now(), return_s=self._return_s))
            self._masterships[log.log_id] = known
        return known.lifetimes

    def _note_used(self, log: HostedLog, queue: Queue) -> None:
        """Once in a queue's life: that its own group had a subscriber."""
        lifetime = log.replica.queues.lifetimes.get(queue.queue_id)
        if lifetime is None or not lifetime.auto_delete or queue.used_at >= 0 or not _subscribers(log, queue):
            return
        try:
            batch = encode_change(QueueUsed(), queue_id=queue.queue_id)
            log.publisher.append_change(batch, lambda error: None)
        except MirrorlogError as error:
            logger.debug("use_not_logged log=%s queue=%r reason=%r", log.name, queue.name, str(error))

    @staticmethod
    def _uses(log: HostedLog, queue: Queue) -> Uses:
        queue_id, deliverer = queue.queue_id, log.deliverer
        taking = deliverer.consumer_count(queue_id) if deliverer is not None else 0
        leased = sum(ledger.leased for ledger in log.replica.groups.groups(queue_id).values())
        return Uses(
            subscribers=_subscribers(log, queue),
            users=taking + leased + log.fetcher.waiting(queue_id),
            was_used=queue.used_at >= 0,
        )


def _subscribers(log: HostedLog, queue: Queue) -> int:
    """Of the queue's own group."""
    return log.deliverer.subscribers(queue.queue_id, OWN_GROUP) if log.deliverer is not None else 0


def _now() -> float:
    return asyncio.get_running_loop().time()
