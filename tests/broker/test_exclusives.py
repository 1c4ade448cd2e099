"""Whose exclusive queues are: who may name them, and which are nobody's."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import pytest

from mirrorlog.broker.session.queue_lifetimes import Exclusives, GivenNames
from mirrorlog.client import Client
from mirrorlog.errors import LogUnavailable, MirrorlogError, NotMaster, QueueExclusive
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import PurgeGroup, Subscribe
from mirrorlog.wire.messages.queues import DeclareQueue, DeleteQueue, GetMetadata, Metadata, QueueInfo
from mirrorlog.wire.messages.topology import Bind, Unbind
from mirrorlog.wire.names import qualified
from mirrorlog.wire.routing import Binding
from tests.broker.hosting import settings_for
from tests.ha.nodes import running

OWN = {"exclusive": True}


class Session:
    def __init__(self, owner: Hashable = None) -> None:
        self.owner: Hashable = owner if owner is not None else self
        self.is_open = True


class World:
    """Queues by name, and what was answered."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.exclusives = Exclusives(self.queues.get)
        self.answers: list[Message | MirrorlogError] = []

    def declare(self, name: str, session: Session, *, queue_id: int = 1) -> Message | MirrorlogError:
        """As a node does: asked for, appended, confirmed, answered."""
        message = DeclareQueue(name=name, arguments=OWN)
        self.exclusives.check(message, session)
        respond = self.exclusives.declaring(message, session, self.answers.append)
        self.queues.setdefault(name, Queue(name, queue_id, "", dict(OWN), 0))
        respond(told(self.queues[name]))
        return self.answers[-1]

    def delete(self, name: str) -> None:
        self.exclusives.dropped(self.queues.pop(name))

    def refused(self, message: Message, session: Session) -> bool:
        try:
            self.exclusives.check(message, session)
        except QueueExclusive:
            return True
        return False


def told(queue: Queue) -> Metadata:
    info = QueueInfo(
        name=queue.name, queue_id=queue.queue_id, log_id="t", epoch=1, master="a", mirrors=[], begin=0, next=0
    )
    return Metadata(cluster_id="", cluster_name="", node_id="", nodes=[], queues=[info])


def test_its_owner_may_name_it_and_nobody_else() -> None:
    """Requests that name it, in a virtual host too; those that name others, or none, are nobody's business. Another
    connection of the same client is the same owner."""
    world, owner, again, other = World(), Session("me"), Session("me"), Session()
    key = qualified("v", "q")
    assert isinstance(world.declare(key, owner), Metadata)
    binding = Binding("e", "q")
    naming: list[Message] = [
        DeclareQueue(name=key), DeleteQueue(name=key), Subscribe(queue=key), PurgeGroup(queue=key),
        Bind(virtual_host="v", bindings=[Binding("e", "free"), binding]), Unbind(virtual_host="v", binding=binding),
    ]  # fmt: skip
    for message in naming:
        assert world.refused(message, other), message
        assert not world.refused(message, owner)
        assert not world.refused(message, again)
    to_exchange = Bind(virtual_host="v", bindings=[Binding("e", "q", to_exchange=True)])
    for harmless in (
        GetMetadata(queues=[key]),
        Subscribe(queue="q"),
        Bind(virtual_host="/", bindings=[binding]),
        to_exchange,
    ):
        assert not world.refused(harmless, other)
    queue = world.queues[key]
    world.exclusives.check_read(queue, again)
    world.exclusives.check_read(Queue("p", 2, "", {"durable": False}, 0), other)
    for stranger_to in (queue, Queue(key, 3, "", dict(OWN), 0)):
        with pytest.raises(QueueExclusive):
            world.exclusives.check_read(stranger_to, other)


def test_of_two_that_declare_it_at_once_one_has_it() -> None:
    """Both are told of the same queue; whose answer comes first has it, the other is refused."""
    world, first, second = World(), Session(), Session()
    world.queues["q"] = queue = Queue("q", 1, "", dict(OWN), 0)
    message = DeclareQueue(name="q", arguments=OWN)
    for session in (first, second):
        world.exclusives.check(message, session)
    answers = [world.exclusives.declaring(message, session, world.answers.append) for session in (first, second)]
    assert world.refused(Subscribe(queue="q"), first), "nobody's yet"
    assert not world.exclusives.is_orphan(queue)
    answers[1](told(queue))
    answers[0](told(queue))
    assert isinstance(world.answers[0], Metadata)
    assert isinstance(world.answers[1], QueueExclusive)
    assert not world.refused(Subscribe(queue="q"), second)
    assert world.refused(Subscribe(queue="q"), first)


def test_a_queue_is_an_orphan_when_its_connection_is_gone() -> None:
    """Also when that went before the answer came, and when the declaration failed; nobody may use it then. One that is
    not exclusive never is."""
    world, owner, late, other = World(), Session("me"), Session(), Session("me")
    world.declare("q", owner)
    queue = world.queues["q"]
    assert not world.exclusives.is_orphan(queue)
    assert not world.exclusives.forget(other), "it was declared over another one"
    assert world.exclusives.forget(owner)
    assert not world.exclusives.forget(owner)
    assert world.exclusives.is_orphan(queue)
    assert world.refused(DeleteQueue(name="q"), other)
    late.is_open = False
    world.declare("r", late, queue_id=2)
    assert world.exclusives.is_orphan(world.queues["r"])
    failing = world.exclusives.declaring(DeclareQueue(name="s", arguments=OWN), other, world.answers.append)
    world.queues["s"] = Queue("s", 3, "", dict(OWN), 0)
    failing(NotMaster("elsewhere"))
    assert world.exclusives.is_orphan(world.queues["s"])
    assert not world.exclusives.is_orphan(Queue("p", 4, "", {"durable": False}, 0))


def test_a_deleted_queue_is_nobodys_and_its_name_is_free() -> None:
    """Another one declares it then, and the end of the first one's connection takes nothing from him."""
    world, first, second = World(), Session(), Session()
    world.declare("q", first)
    world.delete("q")
    assert isinstance(world.declare("q", second, queue_id=2), Metadata)
    assert not world.exclusives.forget(first)
    assert world.refused(Subscribe(queue="q"), first)
    assert not world.refused(Subscribe(queue="q"), second)
    with pytest.raises(QueueExclusive):
        world.exclusives.check_read(world.queues["q"], first)
    world.exclusives.dropped(Queue("q", 1, "", dict(OWN), 0))
    assert not world.exclusives.is_orphan(world.queues["q"])


def test_a_queue_that_lost_its_owner_is_nobody_elses_ever() -> None:
    """Goal: no records of a former client come to the next one, who declares the name before the queue is deleted.
    Method: its connection ends, and another declares it: it stays an orphan meanwhile, and he is told to ask again, and
    that is not his when it is deleted; then he has one of his own."""
    world, owner, other = World(), Session(), Session()
    world.declare("q", owner)
    queue = world.queues["q"]
    world.exclusives.forget(owner)
    respond = world.exclusives.declaring(DeclareQueue(name="q", arguments=OWN), other, world.answers.append)
    assert world.exclusives.is_orphan(queue), "also while it is being declared"
    with pytest.raises(QueueExclusive):
        world.exclusives.check_read(queue, other)
    respond(told(queue))
    assert isinstance(world.answers[-1], LogUnavailable)
    assert world.exclusives.is_orphan(queue)
    assert world.refused(Subscribe(queue="q"), other)
    world.delete("q")
    assert isinstance(world.declare("q", other, queue_id=2), Metadata)
    assert not world.exclusives.is_orphan(world.queues["q"])


@pytest.mark.parametrize("how", ["refused", "its connection went first"])
def test_a_queue_that_never_got_an_owner_is_nobody_elses_either(how: str) -> None:
    """Goal: the same when the declaration failed behind the append, and when nobody was there to hear of it."""
    world, first, second = World(), Session(), Session()
    respond = world.exclusives.declaring(DeclareQueue(name="q", arguments=OWN), first, world.answers.append)
    world.queues["q"] = queue = Queue("q", 1, "", dict(OWN), 0)
    if how == "refused":
        respond(NotMaster("elsewhere"))
    else:
        first.is_open = False
        respond(told(queue))
    assert isinstance(world.declare("q", second), LogUnavailable)
    assert world.exclusives.is_orphan(queue)


def test_a_declaration_that_is_refused_ends_nobodys_queue() -> None:
    """Goal: neither the owner's own nor one that is not exclusive goes because somebody asked for it in vain."""
    world, owner, other = World(), Session(), Session()
    world.declare("q", owner)
    world.queues["p"] = plain = Queue("p", 2, "", {}, 0)
    for name in ("q", "p"):
        world.exclusives.declaring(DeclareQueue(name=name, arguments=OWN), other, world.answers.append)(NotMaster("no"))
    assert not world.exclusives.is_orphan(world.queues["q"])
    assert not world.exclusives.is_orphan(plain)
    assert not world.refused(Subscribe(queue="q"), owner)


async def test_a_name_that_another_node_has_given_is_heard_of_first(tmp_path: Path) -> None:
    """Goal: who leaves the name to a node gets his queue. Method: another node has given the name and had the queue
    placed; the master of that log, where it is declared then, has not heard of it."""
    (settings,) = settings_for(tmp_path, 1)
    async with running(settings) as node, Client(settings.client_bind) as client:
        node.view.behind.add("amq.gen-given")
        assert (await client.admin.declare("amq.gen-given")).name == "amq.gen-given"


def test_nobody_is_asked_of_a_given_name_for_whom_may_not_declare_it() -> None:
    """Goal: strangers make no work for the cluster."""
    begun: list[object] = []
    given = GivenNames(cast(Any, None), lambda name: False, lambda work, respond: begun.append(work))
    given.named(DeclareQueue(name="amq.gen-x"), begun.append, may=lambda message: False, go_on=begun.append)
    assert not begun
