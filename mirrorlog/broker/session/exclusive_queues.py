"""Exclusive queues: whose each one is, on the node that it lives on.

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

from collections.abc import Callable, Hashable
from typing import Protocol

from mirrorlog.errors import LogUnavailable, MirrorlogError, QueueExclusive
from mirrorlog.queues.limits.lifetime import EXCLUSIVE
from mirrorlog.queues.registry import Queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import DeclareQueue, DeleteQueue, Metadata
from mirrorlog.wire.messages.topology import Bind, Unbind
from mirrorlog.wire.names import qualified, shown

Respond = Callable[[Message | MirrorlogError], None]
Find = Callable[[str], Queue | None]
"""A queue that is here, by its key."""


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
