"""What requests leave behind, whatever comes of them: uses of queues, owners, those who have to come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorlog.broker.resources.user_quotas import UserQuotas
from mirrorlog.broker.session import queue_requests
from mirrorlog.broker.session.authorization import FAILURES_MAX
from mirrorlog.broker.session.client_session import ClientSession, NativeDoor
from mirrorlog.broker.session.queue_lifetimes import Exclusives, Respond
from mirrorlog.config import LimitSettings
from mirrorlog.errors import MirrorlogError, Overloaded, QueueExclusive
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import Subscribe
from mirrorlog.wire.messages.queues import DeclareQueue
from mirrorlog.wire.messages.topology import Login

OWN = {"exclusive": True}


class Requests:
    """Of a node with one queue; every request fails by `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.queue = Queue("q", 1, "", dict(OWN), 0)
        self.exclusives = Exclusives(lambda name: self.queue if name == "q" else None)
        self.uses: list[Message] = []
        self.lifetimes = SimpleNamespace(asked=self.uses.append, all_come_back=self._sent_away)
        self.sent_away = 0

    def handle(self, message: Message, *more: object) -> None:
        raise self.error

    def answer(self, message: DeclareQueue, respond: Respond) -> None:
        queue_requests.Requests.answer(cast(Any, self), message, respond)

    def _sent_away(self) -> None:
        self.sent_away += 1


def session_with(requests: Requests) -> ClientSession:
    groups = SimpleNamespace(note=lambda *of: None, handles=lambda of: True, handle=requests.handle)
    settings = SimpleNamespace(limits=LimitSettings())
    door: Any = SimpleNamespace(
        requests=requests, groups=groups, sessions=(), unpacking=settings, push=lambda: None, settings=settings
    )
    return ClientSession(door, SimpleNamespace())  # type: ignore[arg-type]


def test_a_subscription_that_is_refused_is_a_use_of_the_queue() -> None:
    """Goal: a queue that somebody asks for again and again does not expire. Method: each time he is refused by an
    error, as when another one has the queue to himself."""
    requests = Requests(QueueExclusive("taken"))
    asked = Subscribe(queue="other")
    with pytest.raises(QueueExclusive):
        session_with(requests)._handle(asked, lambda answer: None)
    assert requests.uses == [asked]


@pytest.mark.parametrize("error", [QueueExclusive("taken"), ZeroDivisionError("a defect")])
def test_a_declaration_that_fails_in_any_way_leaves_nobody_waiting_to_own_its_queue(error: Exception) -> None:
    """Goal: an exclusive queue without an owner goes, also when a defect ended its declaration. Method: the declaration
    raises behind its append; it is answered, the queue is an orphan."""
    requests = Requests(error)
    answers: list[Message | MirrorlogError] = []
    declare = DeclareQueue(name="q", arguments=OWN)
    if isinstance(error, MirrorlogError):
        session_with(requests)._handle(declare, answers.append)
    else:
        with pytest.raises(ZeroDivisionError):
            session_with(requests)._handle(declare, answers.append)
    assert len(answers) == 1
    assert isinstance(answers[0], MirrorlogError)
    assert requests.exclusives.is_orphan(requests.queue)


def test_the_first_user_of_a_cluster_takes_no_queue_from_those_who_have_to_log_in() -> None:
    """Goal: auto-delete queues outlive that all connections are closed. Method: users come into being, change and go:
    their clients are waited for once, when the first user is there."""
    requests = Requests(QueueExclusive("unused"))
    door: Any = NativeDoor.__new__(NativeDoor)
    door.requests, door.sessions, door._logs, door._users = requests, set(), (), {}
    door.quotas = UserQuotas(lambda user, ms: None)
    for users, sent_away in (({}, 0), ({"ann": 1}, 1), ({"ann": 1, "bob": 2}, 1), ({}, 1), ({"ann": 3}, 2)):
        door.gatekeeper = SimpleNamespace(users=lambda users=users: users)
        door.look_at_rights()
        door.look_at_rights()
        assert requests.sent_away == sent_away


async def test_logins_make_a_connections_place_new_as_often_as_they_may_fail() -> None:
    """Goal: who has all but one of an address's places cannot drive out the last one by asking on and on. Method: one
    logs in again and again, and there is never room to look at it."""
    steps: list[None] = []

    async def login(asked: Login) -> None:
        raise Overloaded("too many logins")

    session = session_with(Requests(QueueExclusive("unused")))
    session._place = SimpleNamespace(went_on=lambda: steps.append(None))  # type: ignore[assignment]
    session._gate = SimpleNamespace(login=login, failures=0)  # type: ignore[assignment]
    for _ in range(3 * FAILURES_MAX):
        with pytest.raises(Overloaded):
            await session._login(Login(user="ann", password="guess"), lambda answer: None)
    assert len(steps) == FAILURES_MAX
