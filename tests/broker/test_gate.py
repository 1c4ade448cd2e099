"""Logins under load, and how long what was allowed is kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.session import logins as gate
from mirrorlog.broker.session.authorization import Gate
from mirrorlog.broker.session.logins import Gatekeeper
from mirrorlog.cluster.state.topology import Permissions, User
from mirrorlog.cluster.state.topology_commands import PasswordRenewed
from mirrorlog.errors import AccessRefused, BadRequest, LimitReached, LoginFailed, NotLeader, Overloaded
from mirrorlog.queues.access import check_together
from mirrorlog.wire.auth import passwords
from mirrorlog.wire.auth.login_turns import HOLD_S
from mirrorlog.wire.messages.operators import DrainNode, ReadLog, ReadState
from mirrorlog.wire.messages.queues import DeclareQueue, FindOffset, GetMetadata
from mirrorlog.wire.messages.status import GetStatus
from mirrorlog.wire.messages.topology import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeleteUser,
    ListPolicies,
    Login,
    SetPolicy,
    SetUser,
    Unbind,
)
from mirrorlog.wire.policies import Policy
from mirrorlog.wire.routing import Binding, Exchange

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


def test_a_right_that_turns_out_to_be_lacking_later_is_counted_too() -> None:
    """Goal: all refused rights are in the metrics. Method: somebody alters a queue whose group has one of others; what
    is refused for another reason is no such thing."""
    users = {"eve": User("hash", (), {"/": Permissions(configure="^eve-")})}
    keeper = Gatekeeper(lambda: users, str)
    eve = Gate(keeper, private=True)
    eve.user = "eve"
    with pytest.raises(AccessRefused) as refused:
        check_together("eve", users, ["eve-1", "orders"])
    assert eve.noted(refused.value) is refused.value
    eve.noted(AccessRefused("names that begin with amq. are reserved"))
    assert keeper.refused.rights["configure"] == keeper.refused.rights.total() == 1


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


def test_a_user_who_was_made_again_is_not_the_one_that_logged_in() -> None:
    """Goal: sessions of a deleted user end, whatever is made after him. Method: the same user, born later."""
    node = Node(ann=ANN)
    ann = gate_of(node, "ann")
    ann.check_publish(1)
    node.users = {"ann": replace(ANN, born=7)}
    with pytest.raises(LoginFailed):
        ann.check_publish(1)
    assert [ann.shut_s(now) for now in (20.0, 25.0)] == [0, 5]


def test_what_is_too_long_for_a_name_is_refused_before_any_expression_is_asked() -> None:
    """Goal: a user's expression is not run over megabytes. Method: one that takes the square of the length, over names
    in every place where one is asked for, within a bound that it could not keep."""
    node = Node(ann=User("hash", (), {"/": Permissions(*[r".*x\.public$"] * 3)}))
    ann, long = gate_of(node, "ann"), "a" * 500_000
    began = time.perf_counter()
    for message in (
        DeclareQueue(name=long),
        FindOffset(queue=long, append_time_us=0),
        DeclareExchange(name=long, exchange=Exchange("topic")),
        DeclareExchange(name="x.public", exchange=Exchange("topic", alternate=long)),
        Bind(bindings=[Binding(long, "x.public")]),
        Bind(bindings=[Binding("x.public", long)]),
        Unbind(binding=Binding(long, long)),
    ):
        with pytest.raises(BadRequest, match="255 characters"):
            ann.check(message)
    with pytest.raises(LimitReached, match="1000"):
        ann.check(Bind(bindings=[Binding("x.public", "x.public")] * 1_001))
    assert time.perf_counter() - began < 1


def test_policies_are_a_policymaker_s_where_he_has_permissions_and_those_of_operators_an_administrator_s() -> None:
    """Goal: as in RabbitMQ. Method: users with either tag, and without permissions, ask for all three; and what is
    wrong with a policy is said before."""
    permissions = {"/": Permissions()}
    node = Node(
        maker=User("hash", ("policymaker",), permissions),
        looker=User("hash", ("monitoring",), permissions),
        admin=User("hash", ("administrator",), {}),
    )
    cap = Policy("^q", {"max-length": 1})
    mine, foreign = SetPolicy(name="p", policy=cap), SetPolicy(name="p", policy=cap, virtual_host="v")
    capping = ClearPolicy(name="p", operator=True)
    maker, looker, admin = (gate_of(node, name) for name in ("maker", "looker", "admin"))
    maker.check(mine)
    maker.check(ListPolicies())
    for asking, message, reason in (
        (maker, foreign, "no permissions in virtual host v"),
        (maker, capping, "tag administrator"),
        (looker, mine, "tag policymaker"),
    ):
        with pytest.raises(AccessRefused, match=reason):
            asking.check(message)
    for message in (mine, foreign, capping):
        admin.check(message)
    with pytest.raises(BadRequest, match="did you mean"):
        looker.check(SetPolicy(name="p", policy=Policy("^q", {"max-lenght": 1})))


def test_a_node_that_has_not_heard_its_cluster_changes_nothing() -> None:
    """Goal: what a node does not know yet opens nothing. Method: no users known, and an administrator known; what is
    read is answered, each change is refused until the cluster was heard."""
    node, heard = Node(), [False]
    for users, user in (({}, ""), ({"ann": ANN}, "ann")):
        node.users, heard[0] = users, False
        made = Gate(Gatekeeper(lambda: node.users, node.key_of, has_heard=lambda: heard[0]), private=True)
        made.user = user
        made.check(GetMetadata())
        made.check(GetStatus())
        changes = (DrainNode(), SetUser(name="evil", tags=["administrator"]), DeleteUser(name="ann"))
        for message in changes:
            with pytest.raises(NotLeader, match="not heard its cluster"):
                made.check(message)
        heard[0] = True
        for message in changes:
            made.check(message)


def test_a_login_before_there_are_users_proves_nothing() -> None:
    """Goal: clients can be given their logins before the first user. Method: a login without users is taken; with users
    it is nobody's, and told apart from who never logged in."""
    node = Node()
    client, stranger = gate_of(node), gate_of(node)
    asyncio.run(client.login(Login(user="ann", password="any")))
    assert not client.must_log_in
    client.check_publish(2)
    node.users = {"ann": ANN}
    assert client.must_log_in
    assert not stranger.must_log_in
    with pytest.raises(LoginFailed):
        client.check_publish(2)


def test_a_password_that_is_changed_while_it_is_compared_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a login is worth what the user is at its end. Method: another hash, another user and none, set while the
    old hash is compared; nothing changed passes."""

    async def login(after: Mapping[str, User]) -> User | None:
        node = Node(ann=ANN)

        def change(password: str, password_hash: str) -> bool:
            node.users = after
            return True

        monkeypatch.setattr(gate, "matches", change)
        return await Gatekeeper(lambda: node.users, node.key_of).found("ann", "right")

    assert asyncio.run(login({"ann": ANN})) == ANN
    for changed in ({"ann": replace(ANN, password_hash="other")}, {"ann": replace(ANN, born=2)}, {}):
        assert asyncio.run(login(changed)) is None


def test_who_logs_in_with_a_hash_of_fewer_rounds_has_it_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: hashes become as dear as today's without their owners' doing. Method: a user with an old hash in a cluster
    that cannot; a wrong password; the right one, which asks for a new hash of it and names the old one; again at once,
    which does not, and later, as if nothing had been decided, which does. A hash of today stays."""
    monkeypatch.setattr(passwords, "ROUNDS", 20)
    old = passwords.hashed("right")
    monkeypatch.setattr(passwords, "ROUNDS", 30)
    users = {"ann": User(old, ("administrator",)), "bob": User(passwords.hashed("right"))}
    asked: list[PasswordRenewed] = []
    version = versions.RENEWED_HASHES - 1

    async def run() -> None:
        nonlocal version
        with ThreadPoolExecutor(1) as helper:
            keeper = Gatekeeper(lambda: users, str, helper, renew=asked.append, cluster_version=lambda: version)

            async def login(name: str, password: str) -> int:
                """How many were asked for up to now."""
                await keeper.found(name, password)
                # What it set off is in the helper's line before these.
                for _ in range(3):
                    await asyncio.get_running_loop().run_in_executor(helper, str)
                return len(asked)

            assert await login("ann", "right") == 0
            version = versions.RENEWED_HASHES
            assert await login("ann", "wrong") == 0
            assert await login("bob", "right") == 0
            assert await login("ann", "right") == 1
            assert await login("ann", "right") == 1
            monkeypatch.setattr(gate, "RENEW_S", 0.0)
            assert await login("ann", "right") == 2

    asyncio.run(run())
    for each in asked:
        assert (each.user, each.seen) == ("ann", old)
        assert passwords.matches("right", each.password_hash)
        assert not passwords.is_outdated(each.password_hash)


def test_who_may_take_many_addresses_of_ipv6_counts_as_one() -> None:
    """Goal: a new address for each guess saves a guesser nothing. Method: failures from one /64, and one from another;
    IPv4 as it stands within IPv6, and alone."""
    keeper = Gatekeeper(lambda: {"ann": ANN}, str)
    held = [keeper.failed("ann", f"2001:db8::{at}") for at in range(1, 4)]
    assert held == [HOLD_S, 2 * HOLD_S, 4 * HOLD_S]
    assert keeper.failed("ann", "2001:db8:0:1::1") == HOLD_S
    assert [keeper.failed("ann", each) for each in ("::ffff:10.0.0.1", "10.0.0.1")] == [HOLD_S, 2 * HOLD_S]


def test_a_password_of_megabytes_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "matches", lambda password, password_hash: pytest.fail("compared"))
    keeper = Gatekeeper(lambda: {"ann": ANN}, str)
    for name, password in (("ann", "x" * 2_000), ("x" * 2_000, "right")):
        assert asyncio.run(keeper.found(name, password)) is None


def test_tags_decide_what_is_no_matter_of_permissions() -> None:
    lookers = {tag: User("hash", (tag,)) for tag in ("monitoring", "management", "policymaker")}
    asks = (DrainNode(), ReadState(), ReadLog(log_id="l"))
    node = Node(ann=ANN, plain=User("hash"), **lookers)
    for name, looks, drains in (("ann", True, True), ("plain", False, False), *((tag, True, False) for tag in lookers)):
        made = gate_of(node, name)
        made.check(GetMetadata())
        for message, may in ((GetStatus(), looks), *((asked, drains) for asked in asks)):
            if may:
                made.check(message)
            else:
                with pytest.raises(AccessRefused):
                    made.check(message)


def test_logins_have_a_limit_and_one_that_was_proven_needs_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: guesses are bounded and hold no login up that was there before. Method: comparisons that wait; as many as
    are taken, one more, for which the oldest goes, and one that is known."""
    monkeypatch.setattr(gate, "LOGINS_MAX", 8)
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
            assert await keeper.found("ann", "right")
            go.clear()
            guesses = [asyncio.ensure_future(keeper.found("ann", "first"))]
            while "first" not in compared:  # noqa: ASYNC110 - turns of the loop
                await asyncio.sleep(0)
            guesses += [asyncio.ensure_future(keeper.found("ann", str(number))) for number in range(9)]
            with pytest.raises(Overloaded, match="max_logins"):
                await guesses[1]
            assert await keeper.found("ann", "right"), "at once"
            go.set()
            assert not any(await asyncio.gather(*guesses[:1], *guesses[2:]))
            assert compared.count("right") == 1
            node.users = {"ann": User("another hash", ("administrator",))}
            assert await keeper.found("ann", "right")
            assert compared.count("right") == 2, "another password was set: what was proven counts no more"
            with pytest.raises(LoginFailed):
                await Gate(keeper, private=True).login(Login(user="ann", password="wrong"))

    asyncio.run(run())


async def test_the_node_s_own_doors_may_ask_how_it_is_and_nothing_else() -> None:
    """Goal: probes work where there are users, and lend nobody any rights. Method: the token, with and without users;
    a wrong one; what a door asks, and what it may not."""
    node = Node(ann=ANN)
    keeper = Gatekeeper(lambda: node.users, node.key_of)
    door, guess = Gate(keeper, private=True), Gate(keeper, private=True)
    for token in ("", "x", "ä", keeper.door_token[:-1]):
        with pytest.raises(LoginFailed, match="needs a user"):
            await guess.login(Login(user="", password=token))
    assert guess.failures == 4
    await door.login(Login(user="", password=keeper.door_token))
    for message in (GetStatus(), GetMetadata()):
        door.check(message)
        with pytest.raises(LoginFailed):
            guess.check(message)
    for other in (DeclareQueue(name="orders"), SetUser(name="evil"), FindOffset(queue="orders", append_time_us=0)):
        with pytest.raises(LoginFailed):
            door.check(other)
    with pytest.raises(LoginFailed):
        door.check_publish(1)
    with pytest.raises(LoginFailed):
        door.check_fetch(1)
    assert [door.shut_s(now) for now in (20.0, 40.0)] == [0, 0]
    node.users = {}
    await Gate(keeper, private=True).login(Login(user="", password=keeper.door_token))
    door.check_publish(1)


def test_a_wrong_password_is_compared_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: clients with last week's password cost the node little. Method: the same one many times, then with another
    hash, then after the time."""
    node, compared = Node(ann=ANN), []

    def counted(password: str, password_hash: str) -> bool:
        compared.append(password_hash)
        return False

    monkeypatch.setattr(gate, "matches", counted)

    async def run() -> None:
        keeper = Gatekeeper(lambda: node.users, node.key_of)
        for _ in range(5):
            assert await keeper.found("ann", "old") is None
        assert compared == ["hash"]
        node.users = {"ann": replace(ANN, password_hash="new")}
        assert await keeper.found("ann", "old") is None
        assert compared == ["hash", "new"]
        monkeypatch.setattr(gate, "FAILED_S", -1.0)
        assert await keeper.found("ann", "old") is None
        assert compared == ["hash", "new", "new"]

    asyncio.run(run())


def test_guesses_from_one_address_leave_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one machine cannot shut all others out, nor one user's guessers another user of their machine. Method:
    forty comparisons wait; then somebody from elsewhere comes, and somebody else from there: they are next, and the
    guess that nobody waits for any more is not made."""
    node, go, compared = Node(ann=ANN, bob=ANN), threading.Event(), []

    def slow(password: str, password_hash: str) -> bool:
        compared.append(password)
        return go.wait(20) and password.startswith("right")

    monkeypatch.setattr(gate, "matches", slow)

    async def run() -> None:
        with ThreadPoolExecutor(1) as helper:
            keeper = Gatekeeper(lambda: node.users, node.key_of, helper)
            guesses = [asyncio.ensure_future(keeper.found("ann", str(at), "10.0.0.1")) for at in range(40)]
            while not compared:  # noqa: ASYNC110 - turns of the loop
                await asyncio.sleep(0)
            others = [
                asyncio.ensure_future(keeper.found(user, f"right {peer}", peer))
                for user, peer in (("ann", "10.0.0.2"), ("bob", "10.0.0.1"))
            ]
            guesses[7].cancel()
            await asyncio.sleep(0)
            go.set()
            assert all(await asyncio.gather(*others))
            assert {"right 10.0.0.1", "right 10.0.0.2"} <= set(compared[:6])
            found = await asyncio.gather(*guesses, return_exceptions=True)
            assert [each for each in found if each is not None] == [found[7]]
            assert "7" not in compared

    asyncio.run(run())


def test_a_thousand_that_return_at_once_cost_one_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a fleet that reconnects to a node that has just started waits for one comparison. Method: count them."""
    node, compared = Node(ann=ANN), []

    def counted(password: str, password_hash: str) -> bool:
        compared.append(password)
        return True

    monkeypatch.setattr(gate, "matches", counted)

    async def run() -> None:
        keeper = Gatekeeper(lambda: node.users, node.key_of)
        found = await asyncio.gather(*(keeper.found("ann", "right", f"10.0.0.{at % 9}") for at in range(1000)))
        assert found == [ANN] * 1000

    asyncio.run(run())
    assert compared == ["right"]


def test_who_was_wrong_is_told_so_later_each_time_and_one_who_goes_waits_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a guesser waits for himself, and a closed connection keeps nothing. Method: three wrong logins with a
    recorded sleep; then one whose connection goes while it is held."""
    node, held, sleep = Node(ann=ANN), [], asyncio.sleep
    monkeypatch.setattr(gate, "matches", lambda password, password_hash: password == "right")

    async def recorded(delay: float) -> None:
        held.append(delay)
        await sleep(0 if len(held) < 4 else 3_600)

    async def run() -> None:
        keeper = Gatekeeper(lambda: node.users, node.key_of)
        monkeypatch.setattr(gate.asyncio, "sleep", recorded)
        for number in range(3):
            with pytest.raises(LoginFailed):
                await Gate(keeper, private=True, peer="10.0.0.1").login(Login(user="ann", password=str(number)))
        assert held == sorted(set(held))
        await Gate(keeper, private=True, peer="10.0.0.1").login(Login(user="ann", password="right"))
        assert len(held) == 3, "who is right is told at once"
        gone = Gate(keeper, private=True, peer="10.0.0.1")
        waits = asyncio.ensure_future(gone.login(Login(user="ann", password="again")))
        while len(held) < 4:
            await sleep(0)
        with pytest.raises(Overloaded):
            await gone.login(Login(user="ann", password="right"))
        gone.leave()
        with pytest.raises(asyncio.CancelledError):
            await waits
        gone.leave()

    asyncio.run(run())


async def test_a_login_that_fails_is_told_once_without_what_was_typed(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: an operator sees who is tried, and no log has a password. Method: a wrong password twice, one in the place
    of the name, and another address."""
    node = Node(ann=ANN)
    keeper = Gatekeeper(lambda: node.users, node.key_of)
    for name, peer in (("ann", "10.0.0.9"), ("ann", "10.0.0.9"), ("my password", "10.0.0.9"), ("ann", "10.0.0.8")):
        with pytest.raises(LoginFailed):
            await Gate(keeper, private=True, peer=peer).login(Login(user=name, password="a secret"))
    told = [each.getMessage() for each in caplog.records if "login_failed" in each.getMessage()]
    assert told == [
        "login_failed user='ann' address=10.0.0.9",
        'login_failed user="nobody\'s" address=10.0.0.9',
        "login_failed user='ann' address=10.0.0.8",
    ]
    assert "secret" not in caplog.text
    assert "my password" not in caplog.text


async def test_what_is_refused_is_counted_by_right_and_told_once_a_user_and_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Goal: an operator sees who tries what; trying all names fills no file. Method: a user who may write one queue
    asks for others, for a declare and for what needs a tag; a stranger asks; then wrong logins of each sort."""
    node = Node(ann=replace(ANN, tags=()))
    keeper = Gatekeeper(lambda: node.users, node.key_of, node="n1")
    ann = Gate(keeper, private=True, peer="10.0.0.9")
    ann.user = "ann"
    for _ in range(3):
        with pytest.raises(AccessRefused):
            ann.check_publish(2)
    for message in (DeclareQueue(name="q1"), DeclareQueue(name="q2"), GetStatus(), DeleteUser(name="bob")):
        with pytest.raises(AccessRefused):
            ann.check(message)
    assert ann.read_refused(1) is not None
    with pytest.raises(LoginFailed):
        Gate(keeper, private=True).check(GetStatus())
    assert keeper.refused.rights == {"write": 3, "configure": 2, "tag": 2, "read": 1, "login": 1, "first_user": 0}
    assert [each.getMessage() for each in caplog.records] == [
        "right_refused user='ann' right=write object='/ other' address=10.0.0.9",
        "right_refused user='ann' right=configure object='/ q1' address=10.0.0.9",
        "right_refused user='ann' right=tag object='GetStatus' address=10.0.0.9",
        "right_refused user='ann' right=read object='/ orders' address=10.0.0.9",
    ]
    for private, user, password in ((True, "ann", "x"), (True, "nobody", "x"), (False, "ann", "x"), (True, "", "x")):
        with pytest.raises(LoginFailed):
            await Gate(keeper, private=private).login(Login(user=user, password=password))
    assert keeper.refused.logins == {"password": 2, "in_the_open": 1, "door": 1, "no_users": 0, "connections": 0}
    logins, rights = sorted(keeper.refused.due(0.0), key=lambda event: event.kind)
    assert logins.details == {"count": 4, "users": {"ann": 2}, "addresses": {}}
    assert rights.details == {"count": 8, "users": {"ann": 8}, "addresses": {"10.0.0.9": 8}}


def test_who_would_be_first_over_the_network_is_counted() -> None:
    """Goal: somebody who tries to take a new cluster is seen."""
    node = Node()
    keeper = Gatekeeper(lambda: node.users, node.key_of)
    with pytest.raises(AccessRefused):
        Gate(keeper, private=True, local=False).check(SetUser(name="eve"))
    assert keeper.refused.rights["first_user"] == 1
