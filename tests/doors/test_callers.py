"""Whose login a call has, for how long it is believed, and what failed ones cost. With scripted clients."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from mirrorlog.doors.common import callers
from mirrorlog.doors.common.callers import STRANGERS_MAX, Callers, read_basic
from mirrorlog.doors.grpc.calls import CallLogins, address_of, comes_from_here
from mirrorlog.errors import LoginFailed, Overloaded
from mirrorlog.wire.messages.queues import Done
from mirrorlog.wire.messages.topology import Login

ANN = Login(user="ann", password="a")


class Node:
    """What clients of the door meet: passwords by user."""

    def __init__(self, **passwords: str) -> None:
        self.passwords = passwords
        self.asked: list[str] = []
        self.clients: list[ScriptedClient] = []
        self.answers = asyncio.Event()
        self.answers.set()

    def make(self, login: Login | None) -> Any:
        made = ScriptedClient(self, login)
        self.clients.append(made)
        return made


class ScriptedClient:
    def __init__(self, node: Node, login: Login | None) -> None:
        self.node = node
        self.login = login
        self.closed = False

    async def connection_to(self, address: str) -> ScriptedClient:
        return self

    async def request(self, login: Login, expect: type[Done], *, timeout_ms: int) -> Done:
        assert login == self.login
        self.node.asked.append(login.user)
        await self.node.answers.wait()
        if self.node.passwords.get(login.user) != login.password:
            raise LoginFailed("no")
        return Done()

    async def close(self) -> None:
        self.closed = True


async def who(of: Callers, login: Login | None, address: str = "127.0.0.1") -> Login | None:
    async with of.client(login, address) as client:
        found = client.login  # type: ignore[attr-defined]
        assert found is None or isinstance(found, Login)
        return found


async def test_each_login_has_a_client_of_its_own_and_nobody_has_one_without() -> None:
    """Goal: nobody has another's rights. Method: two users, one of them twice, and nobody; a client each."""
    node = Node(ann="a", bob="b")
    of = Callers("n:1", node.make)
    bob = Login(user="bob", password="b")
    assert [await who(of, login) for login in (ANN, bob, None, ANN)] == [ANN, bob, None, ANN]
    assert [each.login for each in node.clients] == [None, ANN, bob]
    assert node.asked == ["ann", "bob"]
    await of.close()
    assert all(each.closed for each in node.clients)


async def test_a_password_that_was_changed_works_no_longer_than_it_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: being let in once is not for ever. Method: a login, another password, and no time in which it is believed;
    the client of the old one is closed."""
    node = Node(ann="a")
    of = Callers("n:1", node.make)
    await who(of, ANN)
    node.passwords["ann"] = "new"
    await who(of, ANN)
    monkeypatch.setattr(callers, "PROVEN_S", -1.0)
    with pytest.raises(LoginFailed):
        await who(of, ANN)
    await of.close()
    assert node.clients[1].closed


async def test_what_failed_is_not_asked_about_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a caller with an old password costs the node little. Method: many tries, one question; another password of
    that user is asked about; after the time the first one is, too."""
    node = Node(ann="new")
    of = Callers("n:1", node.make)
    for _ in range(5):
        with pytest.raises(LoginFailed):
            await who(of, ANN)
    assert node.asked == ["ann"]
    await who(of, Login(user="ann", password="new"))
    node.passwords["ann"] = "a"
    monkeypatch.setattr(callers, "REFUSED_S", -1.0)
    await who(of, ANN)
    await of.close()


async def guessing(of: Callers, node: Node, *users: str, address: str = "127.0.0.1") -> list[asyncio.Task[Any]]:
    """A guess at each, which all wait for the node."""
    before = len(node.asked)
    guesses = [asyncio.ensure_future(who(of, Login(user=user, password=f"{address} {at}"), address))
               for at, user in enumerate(users)]  # fmt: skip
    async with asyncio.timeout(10):
        while len(node.asked) < before + len(users):  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
    return guesses


async def let_in(of: Callers, node: Node, login: Login, address: str) -> None:
    """The node is asked about that login although it answers nobody yet; then it answers all."""
    caller = asyncio.ensure_future(who(of, login, address))
    while node.asked[-1] != login.user:
        assert not caller.done()
        await asyncio.sleep(0)
    node.answers.set()
    assert await caller == login


async def test_only_some_logins_are_looked_at_at_once() -> None:
    """Goal: guesses through the door leave the node's others their turn. Method: a node that does not answer; one guess
    more than may wait for it: the first one is refused by the limit's name, and the others get their answers."""
    node = Node()
    of = Callers("n:1", node.make)
    node.answers.clear()
    guesses = await guessing(of, node, *(f"u{at}" for at in range(STRANGERS_MAX)))
    more = await guessing(of, node, "zoe")
    with pytest.raises(Overloaded) as told:
        await guesses[0]
    assert told.value.details == {"limit": "max_logins"}
    node.answers.set()
    rest = await asyncio.gather(*guesses[1:], *more, return_exceptions=True)
    assert all(isinstance(each, LoginFailed) for each in rest)
    await of.close()
    assert all(each.closed for each in node.clients)


@pytest.mark.parametrize("name", ["bob", "ann"])
async def test_guessers_at_an_address_keep_nobody_out_elsewhere(name: str) -> None:
    """Goal: slow guesses from one address are in the way of that address. Method: a node that does not answer, as many
    guesses at all users from 127.0.0.1 as may wait for it; from 127.0.0.2 one comes who knows his password, also one
    who is guessed at; one of the guesses goes for him."""
    node = Node(ann="a", bob="b")
    of = Callers("n:1", node.make)
    node.answers.clear()
    guesses = await guessing(of, node, *(["ann", "cid"] * (STRANGERS_MAX // 2)))
    await let_in(of, node, Login(user=name, password=name[0]), "127.0.0.2")
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    assert sum(isinstance(each, Overloaded) for each in answers) == 1
    await of.close()


async def test_who_guesses_on_drives_out_himself() -> None:
    """Goal: a place that was taken at another address stays taken. Method: one waits from 127.0.0.2, then three times
    as many guesses come from 127.0.0.1 as may wait; he is still waited for, and gets his answer."""
    node = Node(bob="b")
    of = Callers("n:1", node.make)
    node.answers.clear()
    bob = asyncio.ensure_future(who(of, Login(user="bob", password="b"), "127.0.0.2"))
    guesses = await guessing(of, node, *(f"u{at}" for at in range(3 * STRANGERS_MAX)))
    assert not bob.done()
    node.answers.set()
    assert await bob == Login(user="bob", password="b")
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    assert sum(isinstance(each, Overloaded) for each in answers) == 2 * STRANGERS_MAX + 1
    await of.close()


async def test_guesses_at_one_user_leave_the_others_room() -> None:
    """Goal: a user who is guessed at keeps no other one out, also at the guessers' own address. Method: a node that
    does not answer, as many guesses at one user as may wait; another user comes, and more guesses after him."""
    node = Node(bob="b")
    of = Callers("n:1", node.make)
    node.answers.clear()
    guesses = await guessing(of, node, *["ann"] * STRANGERS_MAX)
    bob = asyncio.ensure_future(who(of, Login(user="bob", password="b")))
    guesses += await guessing(of, node, *(["ann"] * STRANGERS_MAX), address="127.0.0.3")
    assert not bob.done()
    node.answers.set()
    assert await bob == Login(user="bob", password="b")
    await asyncio.gather(*guesses, return_exceptions=True)
    await of.close()


async def test_strangers_keep_nobody_out_who_was_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: guesses do not stop the calls of those who are known. Method: one is let in; then as many guesses wait for
    the node as may; he has to be shown to it again, as after each ten seconds, and that is done all the same."""
    node = Node(ann="a")
    of = Callers("n:1", node.make)
    await who(of, ANN)
    monkeypatch.setattr(callers, "PROVEN_S", -1.0)
    node.answers.clear()
    guesses = [asyncio.ensure_future(who(of, Login(user=f"b{at}", password="x"))) for at in range(STRANGERS_MAX)]
    while len(node.asked) < 1 + STRANGERS_MAX:  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)
    await let_in(of, node, ANN, "127.0.0.1")
    await asyncio.gather(*guesses, return_exceptions=True)
    await of.close()


async def test_clients_have_a_limit_and_those_without_calls_make_room() -> None:
    """Goal: memory is bounded by the callers of a moment. Method: room for two; a third is refused while both call, and
    takes the place of one that has ended."""
    node = Node(ann="a", bob="b", cid="c")
    of = Callers("n:1", node.make, callers_max=2)
    bob, cid = Login(user="bob", password="b"), Login(user="cid", password="c")
    async with of.client(ANN):
        async with of.client(bob):
            with pytest.raises(Overloaded, match="2 users"):
                await who(of, cid)
        assert await who(of, cid) == cid
    await of.close()
    assert all(each.closed for each in node.clients)


async def test_a_client_without_calls_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody's password is kept for long. Method: a short while; one that calls stays."""
    monkeypatch.setattr(callers, "IDLE_S", 0.001)
    node = Node(ann="a", bob="b")
    of = Callers("n:1", node.make)
    async with of.client(ANN):
        await who(of, Login(user="bob", password="b"))
        async with asyncio.timeout(10):
            while not node.clients[2].closed:  # noqa: ASYNC110 - the door tells nobody
                await asyncio.sleep(0.001)
        assert not node.clients[1].closed
    await of.close()


def basic(text: bytes) -> str:
    return "Basic " + b64encode(text).decode()


def test_a_header_is_read_as_http_has_it() -> None:
    """The scheme in any case; the password may hold colons and letters beyond ASCII, and may be empty."""
    assert read_basic(basic(b"ann:a"), private=True) == ANN
    assert read_basic("bAsIc  " + basic(b"ann:a")[6:] + " ", private=True) == ANN
    assert read_basic(basic("ann:ä:b".encode()), private=True).password == "ä:b"
    assert read_basic(basic(b"ann:"), private=True).password == ""


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !!!", "Bearer abc", basic(b"ann"), basic(b":token"), basic(b"\xff:a"), "Basic " + "A" * 9_999],
)
def test_what_is_no_login_is_refused_and_no_door_s_token_is_taken(header: str) -> None:
    """Goal: no name, which is the node's own doors', comes from outside. Method: headers that are none."""
    with pytest.raises(LoginFailed, match="authorization is Basic"):
        read_basic(header, private=True)


def test_a_password_that_others_may_have_read_is_refused() -> None:
    with pytest.raises(LoginFailed, match="over TLS or from this machine only"):
        read_basic(basic(b"ann:a"), private=False)


@pytest.mark.parametrize(
    ("peer", "here"),
    [
        ("ipv4:127.0.0.1:5", True),
        ("ipv6:%5B::1%5D:5", True),
        ("ipv6:[::ffff:127.0.0.1]:5", True),
        ("unix:", True),
        ("ipv4:10.0.0.1:5", False),
        ("ipv6:%5B2001:db8::1%5D:5", False),
        ("", False),
        ("ipv4:", False),
    ],
)
def test_peers_on_this_machine_are_told_apart(peer: str, here: bool) -> None:
    assert comes_from_here(peer) is here


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.2:5", "127.0.0.2"),
        ("ipv6:%5B2001:db8::1%5D:5", "2001:db8::1"),
        ("unix:", ""),
        ("unix:/a:b", "/a"),
    ],
)
def test_a_peer_has_an_address(peer: str, address: str) -> None:
    """As places are counted by it; what comes over a socket of the machine has none of note."""
    assert address_of(peer) == address


async def test_a_call_s_metadata_says_whose_it_is() -> None:
    """None, one, one over a connection that others read, two, bytes."""

    class Call:
        def __init__(self, peer: str, *values: str | bytes) -> None:
            self._peer = peer
            self.values = values

        def peer(self) -> str:
            return self._peer

        def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
            return [("user-agent", "x"), *(("authorization", value) for value in self.values)]

    node = Node(ann="a")
    of = Callers("n:1", node.make)
    logins, header = CallLogins(of), basic(b"ann:a")
    async with logins.client(Call("ipv4:10.0.0.1:5")) as client:
        assert client is node.clients[0]
    async with logins.client(Call("ipv4:127.0.0.1:5", header)) as client:
        assert client is node.clients[1]
    async with CallLogins(of, tls=True).client(Call("ipv4:10.0.0.1:5", header)) as client:
        assert client is node.clients[1]
    for call in (Call("ipv4:10.0.0.1:5", header), Call("unix:", header, header), Call("unix:", header.encode())):
        with pytest.raises(LoginFailed):
            logins.client(call)
    await of.close()
