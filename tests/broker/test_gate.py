"""Logins under load, and how long what was allowed is kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrorlog.broker import gate
from mirrorlog.broker.gate import LOGINS_MAX, Gate, Gatekeeper
from mirrorlog.cluster.topology import Permissions, User
from mirrorlog.errors import AccessRefused, LoginFailed, Overloaded
from mirrorlog.wire.messages import DrainNode, GetMetadata, GetStatus, Login

ANN = User("hash", ("administrator",), {"/": Permissions(write="^orders$")})


class Node:
    """What a gatekeeper asks its node."""

    def __init__(self, **users: User) -> None:
        self.users: Mapping[str, User] = users
        self.asked: list[int] = []

    def key_of(self, queue_id: int) -> str:
        self.asked.append(queue_id)
        return "orders" if queue_id == 1 else "other"


def gate_of(node: Node, user: str = "") -> Gate:
    made = Gate(Gatekeeper(lambda: node.users, node.key_of), private=True)
    made.user = user
    return made


def test_what_was_allowed_is_looked_up_once_until_users_change() -> None:
    """Goal: a batch costs a look into a set. Method: count what is asked about the queue."""
    node = Node(ann=ANN)
    ann = gate_of(node, "ann")
    for _ in range(5):
        ann.check_publish(1)
    assert node.asked == [1]
    for _ in range(2):
        with pytest.raises(AccessRefused):
            ann.check_publish(2)
    assert node.asked == [1, 2, 2]
    node.users = {"ann": User("hash", (), {"/": Permissions()})}
    with pytest.raises(AccessRefused):
        ann.check_publish(1)
    node.users = {"bob": ANN}
    with pytest.raises(LoginFailed):
        ann.check_publish(1)
    node.users = {}
    ann.check_publish(2)


def test_a_connection_without_a_user_is_told_for_how_long() -> None:
    """Goal: it is closed some time after there are users, not before. Method: users come and go."""
    node = Node()
    stranger = gate_of(node)
    assert stranger.shut_s(10.0) == 0
    node.users = {"ann": ANN}
    assert [stranger.shut_s(now) for now in (20.0, 25.0)] == [0, 5]
    node.users = {}
    assert stranger.shut_s(30.0) == 0
    node.users = {"ann": ANN}
    assert stranger.shut_s(40.0) == 0
    stranger.user = "ann"
    assert stranger.shut_s(90.0) == 0


def test_tags_decide_what_is_no_matter_of_permissions() -> None:
    node = Node(ann=ANN, looker=User("hash", ("monitoring",)), plain=User("hash"))
    for name, looks, drains in (("ann", True, True), ("looker", True, False), ("plain", False, False)):
        made = gate_of(node, name)
        made.check(GetMetadata())
        for message, may in ((GetStatus(), looks), (DrainNode(), drains)):
            if may:
                made.check(message)
            else:
                with pytest.raises(AccessRefused):
                    made.check(message)


def test_logins_have_a_limit_and_one_that_was_proven_needs_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: guesses are bounded and hold no login up that was there before. Method: comparisons that wait; as many as
    are taken, one more, and one that is known."""
    node, go, compared = Node(ann=ANN), threading.Event(), []

    def slow(password: str, password_hash: str) -> bool:
        compared.append(password)
        assert go.wait(20)
        return password == "right"

    monkeypatch.setattr(gate, "matches", slow)

    async def run() -> None:
        with ThreadPoolExecutor(1) as helper:
            keeper = Gatekeeper(lambda: node.users, node.key_of, helper)
            go.set()
            assert await keeper.knows("ann", "right")
            go.clear()
            guesses = [asyncio.ensure_future(keeper.knows("ann", str(number))) for number in range(LOGINS_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="max_logins"):
                await keeper.knows("ann", "one more")
            assert await keeper.knows("ann", "right"), "at once"
            go.set()
            assert not any(await asyncio.gather(*guesses))
            assert compared.count("right") == 1
            node.users = {"ann": User("another hash", ("administrator",))}
            assert await keeper.knows("ann", "right")
            assert compared.count("right") == 2, "another password was set: what was proven counts no more"
            with pytest.raises(LoginFailed):
                await Gate(keeper, private=True).login(Login(user="ann", password="wrong"))

    asyncio.run(run())
