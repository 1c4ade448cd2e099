"""What has changed in a virtual host's routing, for who has an older version: never more, never less."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.session import topology_requests as routing_history
from mirrorlog.broker.session import topology_requests as routing_requests
from mirrorlog.broker.session.topology_requests import RoutingHistory, RoutingRequests
from mirrorlog.cluster.state import topology_rules
from mirrorlog.cluster.state.commands import Command
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.cluster.state.topology import NONE, ClusterTopology
from mirrorlog.cluster.state.topology_commands import Bound, ExchangeDeclared, ExchangeDeleted, Unbound, VirtualHostMade
from mirrorlog.errors import MirrorlogError, NotCurrent, UnsupportedVersion
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import decode, encode
from mirrorlog.wire.messages.topology import DeclareExchange, GetRouting, Routing
from mirrorlog.wire.routing import DELAYED, DELAYED_TYPE, Binding, Exchange, RoutingTable, exchange_as

QUEUES = ("q", "r")


def after(before: ClusterTopology, *commands: Command) -> ClusterTopology:
    for command in commands:
        before = topology_rules.changed(before, command, QUEUES)
    return before


def declared(name: str, kind: str = "topic", **facts: Any) -> ExchangeDeclared:
    return ExchangeDeclared(virtual_host="/", name=name, exchange=Exchange(kind, **facts))


def bound(source: str, destination: str, key: str = "", **facts: Any) -> Bound:
    return Bound(virtual_host="/", bindings=(Binding(source, destination, key, **facts),))


def whole(known: ClusterTopology) -> RoutingTable:
    host = known.virtual_hosts["/"]
    return RoutingTable(host.exchanges, host.all_bindings(), version=host.version)


def told(table: RoutingTable, changes: Routing) -> None:
    table.change(
        changes.version,
        exchanges=changes.exchanges,
        deleted=changes.deleted,
        bindings=changes.bindings,
        unbound=changes.unbound,
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_table_that_is_told_what_has_changed_routes_as_one_that_is_told_all(seed: int) -> None:
    """Goal: publishers that fetch changes route as those that fetch the whole. Method: random changes; tables that
    follow each, and now and then, against tables made anew, over keys and headers."""
    chance = Random(seed)
    history, known = RoutingHistory(), after(NONE, declared("a"))
    history.follow(known)
    tables = [whole(known) for _ in range(3)]
    names, kinds = ["a", "b", "c", "d"], ["direct", "fanout", "topic", "headers"]
    for _ in range(200):
        binding = Binding(
            chance.choice([*names, "amq.topic", "amq.headers"]),
            chance.choice([*names, *QUEUES]),
            chance.choice(["", "k", "k.#", "*.x", "#"]),
            to_exchange=chance.random() < 0.4,
            arguments=chance.choice([{}, {"h": 1}, {"h": True}, {"h": 1.0}, {"x-match": "any", "h": "1", "i": None}]),
        )
        command: Command = chance.choice(
            [
                declared(chance.choice(names), chance.choice(kinds), auto_delete=chance.random() < 0.3),
                ExchangeDeleted(virtual_host="/", name=chance.choice(names)),
                Bound(virtual_host="/", bindings=(binding,)),
                Bound(virtual_host="/", bindings=(binding,)),
                Unbound(virtual_host="/", binding=chance.choice(
                    [binding, *known.virtual_hosts["/"].all_bindings()]
                )),
            ]
        )  # fmt: skip
        try:
            known = after(known, command)
        except MirrorlogError:
            continue
        history.follow(known)
        for one_in, table in enumerate(tables, 1):
            if chance.random() < 1 / one_in**2:
                follow(history, table, known)
                assert_alike(table, whole(known), seed)
    for table in tables:
        follow(history, table, known)
        assert_alike(table, whole(known), seed)


def follow(history: RoutingHistory, table: RoutingTable, known: ClusterTopology) -> None:
    if table.version != known.virtual_hosts["/"].version:
        changes = history.since("/", table.version)
        assert changes is not None
        told(table, changes)


def assert_alike(one: RoutingTable, other: RoutingTable, seed: int) -> None:
    assert (one.version, one.exchanges) == (other.version, other.exchanges), f"seed {seed}"
    for exchange in one.exchanges:
        for key in ("", "k", "k.x", "x"):
            for headers in ({}, {"h": 1}, {"h": b"1", "i": b""}, {"h": True}):
                routed = [set(each.route(exchange, key, headers)) for each in (one, other)]
                assert routed[0] == routed[1], f"seed {seed}: {exchange} {key} {headers}"


def test_what_is_told_is_what_has_changed_however_much_there_is() -> None:
    """Goal: churn beside many bindings. Method: two more, among many: these are told, and nothing else."""
    many = tuple(Binding("amq.topic", "q", f"k.{number}") for number in range(1_000))
    known = after(NONE, Bound(virtual_host="/", bindings=many))
    history = RoutingHistory()
    history.follow(known)
    version = known.virtual_hosts["/"].version
    for command in (bound("amq.direct", "q", "z"), bound("amq.topic", "q", "one more")):
        known = after(known, command)
        history.follow(known)
    changes = history.since("/", version)
    assert changes is not None
    assert [each.key for each in changes.bindings] == ["z", "one more"]
    assert not changes.unbound


def test_who_is_too_far_behind_or_of_another_history_is_told_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: changes are told from the very version that is asked for, or not at all. Method: more changes than are
    kept, by their number and by what is in them; a state that was restored further on; other virtual hosts."""
    history, known = RoutingHistory(), after(NONE, declared("first"))
    history.follow(known)
    first = known.virtual_hosts["/"].version
    monkeypatch.setattr(routing_history, "CHANGES_MAX", 5)
    for number in range(5):
        known = after(known, declared(f"e{number}"))
        history.follow(known)
    assert history.since("/", first) is not None
    known = after(known, declared("one more"))
    history.follow(known)
    assert history.since("/", first) is None
    assert history.since("/", first + 1) is not None
    monkeypatch.setattr(routing_history, "PARTS_MAX", 2)
    known = after(known, declared("and more"))
    history.follow(known)
    assert history.since("/", known.virtual_hosts["/"].version - 2) is not None
    assert history.since("/", known.virtual_hosts["/"].version - 3) is None
    host = known.virtual_hosts["/"]
    further = replace(known, virtual_hosts={"/": replace(host, version=host.version + 500)})
    history.follow(further)
    assert history.since("/", host.version + 1) is None
    assert history.since("elsewhere", 1) is None
    made = after(further, VirtualHostMade(name="v"))
    history.follow(made)
    history.follow(further)
    assert history.since("v", made.virtual_hosts["v"].version) is None


class Service:
    """What requests about the routing ask the cluster."""

    def __init__(self, known: ClusterTopology) -> None:
        self.state = ClusterState("id", "name", topology=known)
        self.touched = True
        self.followed = print

    def in_touch(self) -> bool:
        return self.touched


def test_who_publishes_is_told_nothing_by_a_node_that_is_cut_off() -> None:
    """Goal: nothing is called unroutable by bindings of an hour ago. Method: the same question by who publishes and by
    who looks, of a node in touch and not."""
    known = after(NONE, declared("e"))
    service = Service(known)
    ask = RoutingRequests(service).handlers[GetRouting]  # type: ignore[arg-type]
    version = known.virtual_hosts["/"].version
    publishes, looks = GetRouting(to_publish=True), GetRouting()
    for asked in (publishes, looks):
        answer = decode(encode(ask(asked)))  # type: ignore[arg-type]
        assert isinstance(answer, Routing)
        assert (answer.version, list(answer.exchanges)) == (version, ["e"])
    only = ask(GetRouting(to_publish=True, only_version=True))  # type: ignore[arg-type]
    assert only == Routing(version=version, changed=False)
    service.touched = False
    assert decode(encode(ask(looks))) == answer  # type: ignore[arg-type]
    with pytest.raises(NotCurrent):
        ask(publishes)  # type: ignore[arg-type]


async def test_arguments_of_exchanges_wait_for_the_clusters_version() -> None:
    """Goal: no node is in the cluster that would lose them. Method: a cluster at the version before, asked to declare
    an exchange of type x-delayed-message; one without arguments would be decided, which nobody here does."""
    service = Service(NONE)
    service.state = replace(service.state, cluster_version=versions.EXCHANGE_ARGUMENTS - 1)
    declare = RoutingRequests(service).handlers[DeclareExchange]  # type: ignore[arg-type]
    delayed = exchange_as(DELAYED, arguments={DELAYED_TYPE: "topic"})
    with pytest.raises(UnsupportedVersion, match="an exchange with arguments came with version 8"):
        await declare(DeclareExchange(name="late", exchange=delayed))  # type: ignore[misc]
    with pytest.raises(AttributeError, match="decisions"):
        await declare(DeclareExchange(name="plain", exchange=Exchange("topic")))  # type: ignore[misc]


def test_a_whole_routing_is_encoded_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a thousand publishers that start cost the node's loop one encoding of 100,000 bindings. Method: the same
    answer to each; another one after a change, by what it says; no more hosts are kept than there is room for."""
    monkeypatch.setattr(routing_requests, "ENCODED_MAX", 2)
    known = after(NONE, declared("e"), VirtualHostMade(name="v"), VirtualHostMade(name="w"))
    service = Service(known)
    requests = RoutingRequests(service)  # type: ignore[arg-type]

    def ask(host: str = "/") -> Message:
        return requests.handlers[GetRouting](GetRouting(virtual_host=host))  # type: ignore[arg-type]

    first = ask()
    assert ask() is first
    service.state = ClusterState("id", "name", topology=after(known, declared("f")))
    changed = decode(encode(ask()))
    assert isinstance(changed, Routing)
    assert list(changed.exchanges) == ["e", "f"]
    for host in ("v", "w"):
        assert ask(host) is ask(host)
    assert len(requests._encoded) == 2
    assert decode(encode(ask())) == changed
