"""What the cluster decides about virtual hosts, exchanges, bindings and users: taken, refused, and never twice."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from time import perf_counter
from typing import Any

import pytest

from mirrorlog import errors, versions
from mirrorlog.cluster.state import topology, topology_rules
from mirrorlog.cluster.state.command_codec import decode_command, encode_command
from mirrorlog.cluster.state.commands import Addresses, Command, LogMade, NodeJoined, QueuesPlaced
from mirrorlog.cluster.state.machine import applied, check_proposal
from mirrorlog.cluster.state.node_rules import recovered
from mirrorlog.cluster.state.state import ClusterState, decode_state, encode_state
from mirrorlog.cluster.state.topology import ClusterTopology, Permissions, User, VirtualHost
from mirrorlog.cluster.state.topology_commands import (
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    FirstUserMade,
    PasswordRenewed,
    PermissionsCleared,
    PermissionsSet,
    PolicyCleared,
    PolicySet,
    Unbound,
    UserLimitsSet,
    UserRemoved,
    UserSet,
    VirtualHostMade,
    VirtualHostRemoved,
)
from mirrorlog.cluster.state.topology_rules import without_queues
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.policies import Policy
from mirrorlog.wire.routing import Binding, Exchange, RoutingTable, exchange_as, is_stale, next_version, stamp

ADMIN = UserSet(name="admin", password_hash="h", tags=("administrator",))


class Decided:
    """A state with log `x` and queues; commands lead on from it."""

    def __init__(self, *queues: str) -> None:
        self.state = ClusterState("id", "name", cluster_version=versions.OWN)
        self.index = 0
        self.do(NodeJoined(node="a", addresses=Addresses()))
        self.do(LogMade(log_id="x", number=0, name="x", flush="memory", replicas=("a",)))
        self.do(QueuesPlaced(log_id="x", names=queues))

    def ask(self, command: Any) -> tuple[str, str]:
        """(code, refusal). Applied twice is applied once; refused changes nothing; what is stored is read again."""
        self.index += 1
        before = self.state
        assert decode_command(encode_command(command)) == command
        self.state, outcome = applied(before, self.index, command)
        if outcome.refusal:
            assert self.state is before
        assert applied(self.state, self.index + 1, command)[0] == self.state
        assert decode_state(encode_state(self.state)) == self.state
        return outcome.code, outcome.refusal

    def do(self, *commands: Command) -> None:
        for command in commands:
            assert self.ask(command) == ("", ""), command

    def refused(self, command: Command, kind: type[errors.MirrorlogError], text: str) -> None:
        code, refusal = self.ask(command)
        assert (code, text in refusal) == (kind.code, True), refusal

    @property
    def host(self) -> VirtualHost:
        found = self.state.routing.virtual_host("/")
        assert found is not None
        return found

    def declare(self, name: str, kind: str = "direct", **properties: Any) -> None:
        self.do(declared(name, kind, **properties))

    def bind(self, source: str, destination: str, key: str = "", **facts: Any) -> None:
        self.do(bound(Binding(source, destination, key, **facts)))


def declared(name: str, kind: str = "direct", **properties: Any) -> ExchangeDeclared:
    return ExchangeDeclared(virtual_host="/", name=name, exchange=Exchange(kind, **properties))


def bound(*bindings: Binding) -> Bound:
    return Bound(virtual_host="/", bindings=bindings)


def unbound(source: str, destination: str, key: str = "", **facts: Any) -> Unbound:
    return Unbound(virtual_host="/", binding=Binding(source, destination, key, **facts))


def deleted(name: str, **facts: Any) -> ExchangeDeleted:
    return ExchangeDeleted(virtual_host="/", name=name, **facts)


def policy_set(
    name: str, *, host: str = "/", pattern: str = "^q", priority: int = 0, operator: bool = False, **definition: Any
) -> PolicySet:
    policy = Policy(pattern, definition or {"max-length": 5}, priority=priority)
    return PolicySet(virtual_host=host, name=name, policy=policy, operator=operator)


# --- Exchanges ------------------------------------------------------------------------------------------------------


def test_declaring_again_is_nothing_and_with_other_properties_names_the_difference() -> None:
    decided = Decided()
    decided.declare("orders", "topic", alternate="spare")
    before = decided.host
    decided.declare("orders", "topic", alternate="spare")
    assert decided.host == before
    decided.refused(declared("orders", "fanout"), errors.ExchangeExists, "kind is 'topic', not 'fanout'; alternate is")
    decided.refused(declared("amq.topic", "direct"), errors.ExchangeExists, "kind is 'topic'")
    decided.declare("amq.topic", "topic")


def test_a_delayed_exchange_keeps_its_type_and_says_how_it_routes() -> None:
    """Goal: what was declared is told, and who routes by `kind`, of whatever age, routes right. Method: declared,
    again, with other words, and with arguments that there are not."""
    decided = Decided()
    late = exchange_as("x-delayed-message", arguments={"x-delayed-type": "topic"})
    assert (late.kind, late.type) == ("topic", "x-delayed-message")
    made = ExchangeDeclared(virtual_host="/", name="late", exchange=late)
    decided.do(made, made)
    assert decided.host.exchanges["late"] == late
    decided.refused(declared("late", "topic"), errors.ExchangeExists, "kind is 'x-delayed-message', not 'topic'")
    for arguments in ({"x-delayed-type": "direct"}, {"x-delayed-type": "topic", "x": 1}, {"x": 1}):
        decided.refused(declared("other", "topic", arguments=arguments), errors.BadRequest, "there are the arguments")
    for kind, given in (("x-delayed-message", {}), ("topic", {"x-delayed-type": "topic"}), ("x-delayed-message", {})):
        with pytest.raises(errors.BadRequest, match="x-delayed-type"):
            exchange_as(kind, arguments=given)


@pytest.mark.parametrize(
    ("command", "kind", "text"),
    [
        (declared(""), errors.AccessRefused, "default exchange"),
        (declared("amq.mine"), errors.AccessRefused, "reserved"),
        (declared("a\nb"), errors.BadRequest, "control characters"),
        (declared("e", "x-random"), errors.BadRequest, "direct, fanout, topic, headers"),
        (deleted(""), errors.AccessRefused, "default exchange"),
        (deleted("amq.direct"), errors.AccessRefused, "reserved"),
        (bound(Binding("", "q")), errors.AccessRefused, "default exchange"),
        (bound(Binding("gone", "q")), errors.NoSuchExchange, "'gone'"),
        (bound(Binding("amq.direct", "gone")), errors.NoSuchQueue, "'gone'"),
        (bound(Binding("amq.direct", "gone", to_exchange=True)), errors.NoSuchExchange, "'gone'"),
        (bound(Binding("amq.direct", "", to_exchange=True)), errors.AccessRefused, "default exchange"),
        (bound(Binding("amq.direct", "q", "k" * 256)), errors.BadRequest, "255 characters"),
        (bound(Binding("amq.match", "q", arguments={"x-match": "some"})), errors.BadRequest, "all, any"),
        (bound(Binding("amq.match", "q", arguments={"a": ["b"]})), errors.BadRequest, "'a'"),
        (bound(Binding("amq.match", "q", arguments={"a": "b" * 9000})), errors.BadRequest, "8192"),
        (bound(*[Binding("amq.direct", "q", str(n)) for n in range(1001)]), errors.LimitReached, "limit of 1000"),
        (Bound(virtual_host="v", bindings=()), errors.NoSuchVirtualHost, "'v'"),
        (VirtualHostRemoved(name="/"), errors.AccessRefused, "stays"),
        (VirtualHostMade(name=""), errors.BadRequest, "1 to 255"),
        (UserSet(name="a\x1fb"), errors.BadRequest, "control characters"),
        (UserSet(name="u", password_hash="x" * 600), errors.BadRequest, "512"),
        (UserSet(name="u", tags=("",)), errors.BadRequest, "tag"),
        (PermissionsSet(user="u", virtual_host="/", configure="", write="", read=""), errors.NoSuchUser, "'u'"),
        (PermissionsCleared(user="u", virtual_host="/"), errors.NoSuchUser, "'u'"),
        (UserLimitsSet(user="u", limits=UserLimits(request_rate=1)), errors.NoSuchUser, "'u'"),
        (policy_set("p", host="v"), errors.NoSuchVirtualHost, "'v'"),
        (policy_set(""), errors.BadRequest, "1 to 255"),
        (policy_set("p", pattern="q" * 1001), errors.BadRequest, "1000 characters"),
        (policy_set("p", **{"overflow": "x" * 8192}), errors.LimitReached, "max_policy_bytes"),
        (policy_set("p", priority=2**31), errors.BadRequest, "32 bits"),
    ],
)
def test_what_may_not_be_is_refused_with_its_reason(
    command: Command, kind: type[errors.MirrorlogError], text: str
) -> None:
    """Goal: RabbitMQ's rules, each with an error of its own. Method: one command each on a state with one queue."""
    Decided("q").refused(command, kind, text)


def test_an_exchange_in_use_goes_only_when_it_is_asked_for() -> None:
    """Goal: `if-unused` looks at bindings from it, as RabbitMQ does. Method: one from it, one to it."""
    decided = Decided("q")
    decided.declare("e")
    decided.bind("amq.fanout", "e", to_exchange=True)
    decided.bind("e", "q", "k")
    decided.refused(deleted("e", if_unused=True), errors.InUse, "1 bindings")
    decided.do(unbound("e", "q", "k"), deleted("e", if_unused=True))
    assert not decided.host.exchanges
    assert not decided.host.bindings, "what led to it went with it"


def test_an_exchange_that_deletes_itself_goes_with_the_last_binding_from_it() -> None:
    """Goal: not before the first, not with one of two, and what leads to it goes along. Method: a chain of two."""
    decided = Decided("q")
    decided.declare("a", auto_delete=True)
    decided.declare("b", auto_delete=True)
    decided.bind("a", "b", to_exchange=True)
    decided.bind("b", "q", "1")
    decided.bind("b", "q", "2")
    decided.do(unbound("b", "q", "1"))
    assert set(decided.host.exchanges) == {"a", "b"}
    decided.do(unbound("b", "q", "2"))
    assert not decided.host.exchanges
    assert not decided.host.bindings


def test_exchanges_in_a_ring_that_delete_themselves_go_together() -> None:
    decided = Decided()
    for name in "abc":
        decided.declare(name, auto_delete=True)
    for source, destination in ("ab", "bc", "ca"):
        decided.bind(source, destination, to_exchange=True)
    decided.do(deleted("b"))
    assert not decided.host.exchanges
    assert not decided.host.bindings


@pytest.mark.parametrize("how", ["delete", "unbind", "queue"])
def test_a_chain_of_exchanges_that_delete_themselves_goes_however_long_it_is(how: str) -> None:
    """Goal: what a user binds ends no node: the depth of a cascade is no matter of anybody's stack. Method: a chain of
    as many exchanges as there may be, ended at its far end in each way there is; all of it goes, and in time."""
    names = [f"e{number}" for number in range(topology_rules.MAX_EXCHANGES)]
    chain = {name: {"": Binding(name, following, to_exchange=True)} for name, following in pairwise(names)}
    last = Binding(names[-1], "q")
    bindings = {
        source: {topology.binding_key(each): each for each in by_key.values()}
        for source, by_key in {**chain, names[-1]: {"": last}}.items()
    }
    size = sum(topology.size_of(each) for by_key in bindings.values() for each in by_key.values())
    exchanges = dict.fromkeys(names, Exchange("fanout", auto_delete=True))
    before = ClusterTopology({"/": VirtualHost(1, exchanges, bindings, size)})
    began = perf_counter()
    if how == "queue":
        after = without_queues(before, ("q",))
    else:
        command = deleted(names[-1]) if how == "delete" else Unbound(virtual_host="/", binding=last)
        after = topology_rules.changed(before, command, ("q",))
    assert after.virtual_hosts["/"] == VirtualHost(2)
    assert perf_counter() - began < 20, "one look at each binding: with more it would be minutes"


def test_many_bindings_of_one_exchange_go_without_a_copy_for_each() -> None:
    """Goal: a cascade costs what goes, and not its square. Method: one exchange bound to as many others as there may
    be, which all delete themselves when a queue goes."""
    names = [f"e{number}" for number in range(topology_rules.MAX_EXCHANGES - 1)]
    hub = [Binding("hub", name, to_exchange=True) for name in names]
    bindings = {"hub": {topology.binding_key(each): each for each in hub}}
    bindings |= {name: {"queue\x1fq\x1f": Binding(name, "q")} for name in names}
    size = sum(topology.size_of(each) for by_key in bindings.values() for each in by_key.values())
    exchanges = dict.fromkeys(["hub", *names], Exchange("fanout", auto_delete=True))
    began = perf_counter()
    after = without_queues(ClusterTopology({"/": VirtualHost(1, exchanges, bindings, size)}), ("q",))
    assert after.virtual_hosts["/"] == VirtualHost(2)
    assert perf_counter() - began < 2


# --- Bindings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["b\x1fq", "a\nb", "", "x" * 256])
@pytest.mark.parametrize("to_exchange", [False, True])
def test_what_is_no_name_is_bound_to_and_from_nowhere(name: str, to_exchange: bool) -> None:
    """Goal: no binding of one virtual host leads into another. Method: the key of another one's queue, and other texts
    that are no names, at both ends, bound and unbound."""
    decided = Decided("q")
    decided.do(VirtualHostMade(name="b"), QueuesPlaced(log_id="x", names=("b\x1fq",)))
    for binding in (Binding("amq.fanout", name, to_exchange=to_exchange), Binding(name, "q")):
        for command in (bound(binding), Unbound(virtual_host="/", binding=binding)):
            assert decided.ask(command)[0] in (errors.BadRequest.code, errors.AccessRefused.code)
    assert not decided.host.bindings


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "queue\x1fq\x1fk"),
        ({"b": 1, "a": "x"}, "queue\x1fq\x1fk\x1fkpKhYaF4kqFiAQ=="),
        ({"a": True}, "queue\x1fq\x1fk\x1fkZKhYcM="),
        ({"a": 1.0}, "queue\x1fq\x1fk\x1fkZKhYcs/8AAAAAAAAA=="),
        ({"a": b"x"}, "queue\x1fq\x1fk\x1fkZKhYcQBeA=="),
        ({"a": None}, "queue\x1fq\x1fk\x1fkZKhYcA="),
        ({"\U0001fae8": "\U0001fae8"}, "queue\x1fq\x1fk\x1fkZKk8J+rqKTwn6uo"),
    ],
)
def test_the_key_of_a_binding_is_these_characters(arguments: dict[str, Any], expected: str) -> None:
    """Goal: every node has the same state, whatever runs it. Method: keys as they stand in snapshots, one with a
    character that `repr` of an older Python writes otherwise; and of the arguments in another order."""
    assert topology.binding_key(Binding("e", "q", "k", arguments=arguments)) == expected
    turned = dict(reversed(arguments.items()))
    assert topology.binding_key(Binding("e", "q", "k", arguments=turned)) == expected


def test_a_binding_that_is_there_is_not_made_twice_and_others_stand_beside_it() -> None:
    """Goal: (source, destination, key, arguments) is what makes a binding. Method: all four differ in turn."""
    decided = Decided("q", "e")
    decided.declare("e")
    bindings = [
        Binding("amq.match", "q", "k"),
        Binding("amq.match", "q", "l"),
        Binding("amq.match", "q", "k", arguments={"a": "1"}),
        Binding("amq.match", "q", "k", arguments={"a": b"1"}),
        Binding("amq.match", "q", "k", arguments={"a": 1}),
        Binding("amq.match", "e", "k"),
        Binding("amq.match", "e", "k", to_exchange=True),
        Binding("amq.topic", "q", "k"),
    ]
    decided.do(bound(*bindings))
    version = decided.host.version
    decided.do(bound(*bindings), bound(*bindings[:2]))
    assert decided.host.version == version
    assert len(list(decided.host.all_bindings())) == len(bindings)
    for left, binding in zip(range(len(bindings))[::-1], bindings, strict=True):
        decided.do(Unbound(virtual_host="/", binding=binding))
        assert len(list(decided.host.all_bindings())) == left


def test_one_wrong_binding_of_several_binds_nothing() -> None:
    decided = Decided("q")
    decided.refused(bound(Binding("amq.direct", "q"), Binding("amq.direct", "gone")), errors.NoSuchQueue, "gone")
    assert not decided.host.bindings


def test_a_queue_that_is_deleted_leaves_no_binding_behind() -> None:
    """Goal: what queue deletion needs. Method: a queue beside another one and an exchange of its name, in two virtual
    hosts; an exchange that had it alone deletes itself."""
    decided = Decided("q", "r")
    decided.do(VirtualHostMade(name="v"), QueuesPlaced(log_id="x", names=("v\x1fq",)))
    decided.declare("q")
    decided.declare("own", "fanout", auto_delete=True)
    decided.bind("own", "q")
    decided.do(
        bound(Binding("amq.fanout", "q"), Binding("amq.fanout", "r"), Binding("amq.fanout", "q", to_exchange=True))
    )
    decided.do(Bound(virtual_host="v", bindings=(Binding("amq.fanout", "q"),)))
    left = without_queues(decided.state.routing, ("q",))
    host, other = left.virtual_host("/"), left.virtual_host("v")
    assert host is not None
    assert other is not None
    assert {(each.destination, each.to_exchange) for each in host.all_bindings()} == {("r", False), ("q", True)}
    assert set(host.exchanges) == {"q"}
    assert host.version == next_version(decided.host.version)
    assert list(other.all_bindings()) == [Binding("amq.fanout", "q")]
    assert without_queues(left, ("q",)) is left
    assert without_queues(left, ("elsewhere\x1fq",)) is left


# --- Versions of the routing ----------------------------------------------------------------------------------------


def test_each_change_of_a_virtual_host_is_a_version_of_it_alone() -> None:
    """Goal: edges notice every change, and only theirs. Method: changes here, refusals, and changes elsewhere."""
    decided = Decided("q")
    decided.do(VirtualHostMade(name="v"))
    seen = [decided.host.version]
    for command in (declared("e"), bound(Binding("e", "q", "k")), unbound("e", "q", "k"), deleted("e")):
        decided.do(command)
        seen.append(decided.host.version)
        decided.do(ExchangeDeclared(virtual_host="v", name=str(len(seen)), exchange=Exchange("direct")))
        assert decided.host.version == seen[-1]
    assert seen == [1, 2, 3, 4, 5]
    decided.do(deleted("e"))
    assert decided.host.version == 5


def test_a_virtual_host_that_is_made_again_goes_on_with_its_versions() -> None:
    """Goal: an edge that knew the old one is stale in the new one. Method: made, changed, removed, made."""
    decided = Decided()
    decided.do(VirtualHostMade(name="v"), ExchangeDeclared(virtual_host="v", name="e", exchange=Exchange("topic")))
    before = decided.state.routing.virtual_hosts["v"].version
    decided.do(VirtualHostRemoved(name="v"), VirtualHostMade(name="v"))
    again = decided.state.routing.virtual_hosts["v"]
    assert again.version > before
    assert not again.exchanges


def test_after_a_lost_majority_every_edge_is_stale() -> None:
    """Goal: what the lost ones decided last is not known; an edge that heard of it must not take its version for one
    that comes later. Method: recover a state that knows less than was decided, and one that knows nothing."""
    decided = Decided("q")
    decided.do(VirtualHostMade(name="v"))
    known = decided.state
    for number in range(900):
        decided.declare(f"e{number}")
    after = recovered(known, ["a"])
    for name in ("/", "v"):
        host = after.routing.virtual_host(name)
        assert host is not None
        assert is_stale(stamp(decided.host.version), host.version)
    made_again = applied(applied(after, 1, VirtualHostRemoved(name="v"))[0], 2, VirtualHostMade(name="v"))[
        0
    ].routing.virtual_host("v")
    assert made_again is not None
    assert is_stale(stamp(902), made_again.version)
    old = ClusterState("id", "name", cluster_version=versions.ROUTING - 1, nodes=known.nodes)
    assert recovered(old, ["a"]).topology is None


# --- Virtual hosts and users ----------------------------------------------------------------------------------------


def test_a_virtual_host_goes_when_it_has_no_queues_and_takes_its_permissions_along() -> None:
    decided = Decided()
    decided.do(
        VirtualHostMade(name="v"), VirtualHostMade(name="w"), ADMIN, UserSet(name="u", password_hash="h", tags=("t",))
    )
    for host in ("v", "w"):
        decided.do(PermissionsSet(user="u", virtual_host=host, configure="c", write="w", read="r"))
    decided.do(QueuesPlaced(log_id="x", names=("v\x1fq",)))
    decided.refused(VirtualHostRemoved(name="v"), errors.InUse, "1 queues")
    version = decided.state.routing.users_version
    decided.do(VirtualHostRemoved(name="w"))
    assert decided.state.routing.users["u"] == User("h", ("t",), {"v": Permissions("c", "w", "r")}, 2)
    assert decided.state.routing.users_version > version
    assert decided.state.routing.names == ["/", "v"]


def test_a_queue_of_a_virtual_host_that_is_not_there_is_not_placed() -> None:
    assert "no virtual host 'v'" in Decided().ask(QueuesPlaced(log_id="x", names=("v\x1fq",)))[1]


def test_the_first_administrator_comes_whole_and_only_where_nobody_is() -> None:
    """Goal: nothing is left half done, and nobody's password is set anew. Method: one, the same again, another one."""
    decided = Decided()
    decided.do(FirstUserMade(name="ann", password_hash="h"))
    ann = User("h", ("administrator",), {"/": Permissions(".*", ".*", ".*")}, born=1)
    assert decided.state.routing.users == {"ann": ann}
    decided.do(FirstUserMade(name="ann", password_hash="other"), FirstUserMade(name="bob", password_hash="b"))
    assert decided.state.routing.users == {"ann": ann}
    decided = Decided()
    decided.refused(FirstUserMade(name="", password_hash="h"), errors.BadRequest, "user")


def test_a_new_hash_takes_the_place_of_the_one_that_was_compared_and_of_no_other() -> None:
    """Goal: what comes late undoes no change. Method: two nodes renew the same hash, then one comes after another
    password, after none, and after the user has gone and is there again; one for nobody."""
    decided = Decided()
    decided.do(ADMIN, UserSet(name="ann", password_hash="old", tags=("monitoring",)))
    born = decided.state.routing.users["ann"].born

    def renew(seen: str, password_hash: str) -> None:
        decided.do(PasswordRenewed(user="ann", seen=seen, password_hash=password_hash))

    renew("old", "new")
    renew("old", "newer")
    assert decided.state.routing.users["ann"] == User("new", ("monitoring",), born=born)
    for password_hash in ("changed", ""):
        decided.do(UserSet(name="ann", password_hash=password_hash))
        renew("new", "newer")
        renew("", "newer")
        assert decided.state.routing.users["ann"].password_hash == password_hash
    decided.do(UserRemoved(name="ann"))
    renew("new", "newer")
    assert "ann" not in decided.state.routing.users
    decided.do(UserSet(name="ann", password_hash="hers"))
    renew("new", "newer")
    assert decided.state.routing.users["ann"].password_hash == "hers"


def test_hashes_are_renewed_once_all_nodes_can_read_that() -> None:
    """Goal: software of the version before meets no command that stops it."""
    renewed = PasswordRenewed(user="ann", seen="old", password_hash="new")
    with pytest.raises(errors.UnsupportedVersion):
        check_proposal(ClusterState("id", "name", cluster_version=versions.RENEWED_HASHES - 1), renewed)
    check_proposal(ClusterState("id", "name", cluster_version=versions.RENEWED_HASHES), renewed)


def test_users_change_and_go() -> None:
    """Goal: what is not said stays; every change raises the users' version, none does not. Method: step by step."""
    decided = Decided()
    decided.do(ADMIN)
    seen = []
    for command in (
        UserSet(name="u", password_hash="one", tags=("administrator",)),
        UserSet(name="u", tags=("monitoring",)),
        PermissionsSet(user="u", virtual_host="/", configure="", write="^q", read=".*"),
        PermissionsCleared(user="u", virtual_host="/"),
        UserSet(name="u", password_hash="two"),
    ):
        decided.do(command, command)
        seen.append((decided.state.routing.users_version, decided.state.routing.users["u"]))
    assert seen == [
        (2, User("one", ("administrator",), born=2)),
        (3, User("one", ("monitoring",), born=2)),
        (4, User("one", ("monitoring",), {"/": Permissions("", "^q", ".*")}, born=2)),
        (5, User("one", ("monitoring",), born=2)),
        (6, User("two", ("monitoring",), born=2)),
    ]
    decided.do(UserRemoved(name="u"))
    assert (set(decided.state.routing.users), decided.state.routing.users_version) == ({"admin"}, 7)


def test_limits_of_a_user_come_change_and_go() -> None:
    """Goal: all of them are set at once, other changes leave them, a snapshot has them, and a user without any is the
    same bytes as before there were limits. Method: step by step; each twice."""
    decided = Decided()
    decided.do(ADMIN, UserSet(name="u", password_hash="h"))
    without = encode_state(decided.state)
    first, second = UserLimits(max_connections=2, read_byte_rate=5), UserLimits(publish_byte_rate=1_000)
    decided.do(*[UserLimitsSet(user="u", limits=first)] * 2, UserSet(name="u", tags=("t",)))
    assert decided.state.routing.users["u"] == User("h", ("t",), born=2, limits=first)
    assert decided.state.routing.users_version == 4
    assert decode_state(encode_state(decided.state)) == decided.state
    assert recovered(decided.state, ["a"]).routing.users == decided.state.routing.users
    decided.do(UserLimitsSet(user="u", limits=second))
    assert decided.state.routing.users["u"].limits == second
    decided.refused(UserLimitsSet(user="u", limits=UserLimits(request_rate=0)), errors.BadRequest, "request_rate 0")
    decided.do(UserLimitsSet(user="u", limits=UserLimits()), UserSet(name="u", tags=()))
    assert b"limits" not in encode_state(decided.state)
    assert len(encode_state(decided.state)) == len(without)
    decided.do(UserLimitsSet(user="u", limits=first), UserRemoved(name="u"), UserSet(name="u"))
    assert decided.state.routing.users["u"].limits is None


def test_a_cluster_of_the_version_before_takes_no_limits() -> None:
    """Software that does not know the command would stop at it. The users themselves may be changed."""
    old = ClusterState("id", "name", cluster_version=versions.USER_LIMITS - 1)
    with pytest.raises(errors.UnsupportedVersion, match=f"came with version {versions.USER_LIMITS}"):
        check_proposal(old, UserLimitsSet(user="u", limits=UserLimits(request_rate=1)))
    check_proposal(old, UserSet(name="u"))
    check_proposal(
        ClusterState("id", "name", cluster_version=versions.USER_LIMITS),
        UserLimitsSet(user="u", limits=UserLimits()),
    )


def test_a_user_who_is_made_again_is_another_one() -> None:
    """Goal: sessions of the old one can be told from his. Method: made, removed, made again with the same
    properties."""
    decided = Decided()
    decided.do(ADMIN, UserSet(name="u", password_hash="h"))
    before = decided.state.routing.users["u"]
    decided.do(UserRemoved(name="u"), UserSet(name="u", password_hash="h"))
    assert decided.state.routing.users["u"].born > before.born


def test_there_is_always_somebody_who_may_add_users() -> None:
    """Goal: nobody locks everybody out. Method: a first user without the tag, without a password; the last
    administrator untagged, and removed before the others. Alone he may go: then there are no users."""
    decided = Decided()
    for command in (UserSet(name="u", password_hash="h"), UserSet(name="u", tags=("administrator",))):
        decided.refused(command, errors.InUse, "administrator")
    decided.do(ADMIN, UserSet(name="u", password_hash="h"))
    decided.refused(UserSet(name="admin", tags=()), errors.InUse, "administrator")
    decided.refused(UserRemoved(name="admin"), errors.InUse, "administrator")
    decided.do(UserRemoved(name="u"), UserRemoved(name="admin"))
    assert not decided.state.routing.users


# --- Limits, versions of the cluster --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "command"),
    [
        ("max_exchanges", declared("one-more")),
        ("max_bindings", bound(Binding("amq.direct", "q", "one more"))),
        ("max_users", UserSet(name="one more")),
        ("max_virtual_hosts", VirtualHostMade(name="one more")),
        ("max_policies", policy_set("one more")),
    ],
)
def test_every_limit_has_a_name_and_an_answer(limit: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: bounded metadata. Method: the limit at what is there; what is there may be said again."""
    monkeypatch.setattr(topology_rules, limit.upper(), 1)
    decided = Decided("q")
    if limit != "max_virtual_hosts":
        for _ in range(2):
            decided.do(declared("e"), bound(Binding("amq.direct", "q")), ADMIN, policy_set("p", operator=True))
    decided.refused(command, errors.LimitReached, limit)


def test_bytes_have_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the state stays within one message, an entry within reason, however long names are. Method: long keys
    against each limit; what was taken away leaves room."""
    decided = Decided("q")
    long = [Binding("amq.direct", "q", f"{number:0>250}") for number in range(10)]
    each = topology.size_of(long[0])
    monkeypatch.setattr(topology_rules, "MAX_BINDING_BYTES", 5 * each)
    decided.refused(bound(*long[:6]), errors.LimitReached, "max_binding_bytes")
    decided.do(bound(*long[:5]))
    decided.refused(bound(long[5]), errors.LimitReached, "max_binding_bytes")
    decided.do(Unbound(virtual_host="/", binding=long[0]), bound(long[5]))
    monkeypatch.setattr(topology_rules, "MAX_BINDING_BYTES_AT_ONCE", each)
    decided.refused(bound(*long[6:8]), errors.LimitReached, "max_binding_bytes_at_once")
    decided.do(ADMIN)
    monkeypatch.setattr(topology_rules, "MAX_USER_BYTES", 1_000)
    decided.refused(UserSet(name="u", tags=tuple("t" * 200 + str(n) for n in range(9))), errors.LimitReached, "bytes")


@pytest.mark.parametrize("seed", range(5))
def test_what_bindings_are_counted_as_is_what_they_take(seed: int) -> None:
    """Goal: the limit is worth something. Method: random bindings, counted and encoded: never less than they take, and
    not twice as much."""
    chance = Random(seed)

    def text(length: int) -> str:
        return "".join(chance.choices("abé√", k=chance.randint(1, length)))

    values = [7, 1.5, True, None, b"bytes\x00", "text", "é" * 20]
    bindings = [
        Binding(
            "amq.match",
            text(100),
            text(50) if chance.random() < 0.5 else "",
            to_exchange=chance.random() < 0.5,
            arguments={text(10): chance.choice(values) for _ in range(chance.randint(0, 3))},
        )
        for _ in range(200)
    ]
    by_key = {topology.binding_key(each): each for each in bindings}
    taken = len(
        encode_state(ClusterState("", "", topology=ClusterTopology({"/": VirtualHost(1, {}, {"amq.match": by_key})})))
    )
    counted = sum(map(topology.size_of, by_key.values()))
    assert counted / 2 < taken < counted, f"seed {seed}"


def test_a_cluster_of_an_older_version_takes_none_of_it_and_stores_none_of_it() -> None:
    """Goal: software of the version before reads every entry and every snapshot. Method: each command as a proposal;
    and a state without topology is the same bytes as before there was any."""
    old = ClusterState("id", "name", cluster_version=versions.ROUTING - 1, queues={"q": "x"})
    for command in (VirtualHostMade(name="v"), declared("e"), bound(), UserSet(name="u"), UserRemoved(name="u")):
        with pytest.raises(errors.UnsupportedVersion, match=f"came with version {versions.ROUTING}"):
            check_proposal(old, command)
    assert b"topology" not in encode_state(old)
    assert encode_state(old) == (
        b"\x84\xaacluster_id\xa2id\xa4name\xa4name\xa6queues\x81\xa1q\xa1x\xafcluster_version\x03"
    )
    assert decode_state(encode_state(old)).routing == ClusterTopology()


def test_a_change_that_changes_nothing_leaves_no_topology_behind() -> None:
    decided = Decided()
    decided.do(UserRemoved(name="nobody"), deleted("nothing"))
    assert decided.state.topology is None


# --- At random ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_decided_bindings_lead_from_and_to_what_is_there(seed: int) -> None:
    """Goal: no binding without its ends, no exchange that should have deleted itself, every change a newer version.
    Method: random commands over few names; `Decided.ask` sees to it that none counts twice."""
    chance = Random(seed)
    queues = ["q", "r"]
    decided = Decided(*queues)
    names = ["a", "b", "c"]
    for _ in range(150):
        before, host = decided.state, decided.host
        binding = Binding(
            chance.choice([*names, "amq.fanout"]),
            chance.choice([*names, *queues]),
            chance.choice(["", "k"]),
            to_exchange=chance.random() < 0.5,
        )
        command: Command = chance.choice(
            [
                declared(chance.choice(names), "fanout", auto_delete=chance.random() < 0.5),
                deleted(chance.choice(names), if_unused=chance.random() < 0.3),
                bound(binding),
                bound(binding),
                Unbound(virtual_host="/", binding=binding),
            ]
        )
        decided.ask(command)
        if decided.state is not before and decided.host != host:
            assert decided.host.version > host.version, f"seed {seed}"
        host = decided.host
        there = {*host.exchanges, "amq.fanout"}
        for each in host.all_bindings():
            assert each.source in there, f"seed {seed}: {each}"
            assert each.destination in (there if each.to_exchange else queues), f"seed {seed}: {each}"
        assert all(host.bindings.values()), f"seed {seed}: an empty entry"
        assert host.binding_bytes == sum(map(topology.size_of, host.all_bindings())), f"seed {seed}"
        RoutingTable(host.exchanges, host.all_bindings()).route("amq.fanout", "k")


# --- Policies -------------------------------------------------------------------------------------------------------


def test_policies_and_those_of_operators_have_names_of_their_own_and_go_with_their_virtual_host() -> None:
    """Goal: each change is told apart by one version; what changes nothing is none. Method: set twice, changed, cleared
    twice, and the virtual host removed."""
    decided = Decided()
    decided.do(VirtualHostMade(name="v"), policy_set("p", host="v"), policy_set("p", host="v", operator=True))
    decided.do(policy_set("p", host="v"))
    topology = decided.state.routing
    assert topology.policies_version == 2
    assert topology.virtual_hosts["v"].policies["p"].definition == {"max-length": 5}
    decided.do(policy_set("p", host="v", priority=1), PolicyCleared(virtual_host="v", name="p", operator=True))
    decided.do(PolicyCleared(virtual_host="v", name="p", operator=True))
    host = decided.state.routing.virtual_hosts["v"]
    assert (host.policies["p"].priority, host.operator_policies) == (1, {})
    assert host.version == topology.virtual_hosts["v"].version, "no publish lands elsewhere"
    assert decided.state.routing.policies_version == 4
    decided.do(VirtualHostRemoved(name="v"), VirtualHostRemoved(name="v"))
    assert decided.state.routing.policies_version == 5


def test_a_policy_with_an_alternate_exchange_is_a_change_of_the_routing() -> None:
    """Goal: publishers ask again for where unroutable messages go. Method: set one, change its other key, clear it."""
    decided = Decided()
    versions = [decided.host.version]
    for command in (
        policy_set("p", **{"alternate-exchange": "spare"}),
        policy_set("p", **{"alternate-exchange": "spare", "max-length": 3}),
        PolicyCleared(virtual_host="/", name="p"),
    ):
        decided.do(command)
        versions.append(decided.host.version)
    assert sorted(set(versions)) == versions
