"""Which policies are taken, which of several is a queue's, and what comes of it with the queue's own arguments."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.cluster.state.topology import VirtualHost
from mirrorlog.errors import BadRequest
from mirrorlog.queues.changes import QueueGoverned, encode_change
from mirrorlog.queues.policies import check_policy, chosen, effective, ties, wrong_keys
from mirrorlog.queues.policies import governed as governed_host
from mirrorlog.wire.policies import Policy
from mirrorlog.wire.routing import Exchange
from tests.queues.statelog import Master

ALL = {"ha-mode": "all"}


@pytest.mark.story("000:130")
@pytest.mark.parametrize(
    ("definition", "wrong"),
    [
        ({}, "no policy provided"),
        ({"ha-mode": "exactly"}, 'ha-mode="exactly" takes an integer from 1 to 255, none given'),
        ({"ha-mode": "exactly", "ha-params": "2"}, 'ha-mode="exactly" takes an integer from 1 to 255, "2" given'),
        ({"ha-mode": "exactly", "ha-params": 2.5}, 'ha-mode="exactly" takes an integer from 1 to 255, 2.5 given'),
        ({"ha-mode": "exactly", "ha-params": 0}, 'ha-mode="exactly" takes an integer from 1 to 255, 0 given'),
        ({"ha-mode": "exactly", "ha-params": True}, 'ha-mode="exactly" takes an integer from 1 to 255, True given'),
        ({"ha-mode": "nodes"}, 'ha-mode="nodes" takes a list, none given'),
        ({"ha-mode": "nodes", "ha-params": "a"}, 'ha-mode="nodes" takes a list, "a" given'),
        ({"ha-mode": "nodes", "ha-params": []}, 'ha-mode="nodes" list must be non-empty'),
        ({"ha-mode": "nodes", "ha-params": [1, 2]}, 'ha-mode="nodes" takes a list of names of nodes, 1 is none'),
        ({"ha-mode": "nodes", "ha-params": ["a", "a"]}, "each once"),
        ({"ha-mode": "all", "ha-params": 2}, 'ha-mode="all" does not take parameters'),
        ({"ha-mode": "some"}, '"some" is not a valid ha-mode value; it must be "all", "exactly" or "nodes"'),
        ({"ha-mode": "exact"}, 'did you mean "exactly"?'),
        ({"ha-mode": 2}, "2 is not a valid ha-mode value"),
        ({"ha-params": 2}, "ha-mode must be specified to specify ha-params"),
        ({"ha-sync-mode": "automatic"}, "ha-mode must be specified to specify ha-sync-mode"),
        ({**ALL, "ha-sync-mode": "manually"}, 'got "manually"; did you mean "manual"?'),
        ({**ALL, "ha-sync-mode": "sometimes"}, 'ha-sync-mode must be "manual" or "automatic", got "sometimes"'),
        ({**ALL, "ha-sync-batch-size": 0}, "ha-sync-batch-size takes an integer greater than 0, 0 given"),
        ({**ALL, "ha-promote-on-failure": "never"}, 'must be "when-synced" or "always", got "never"'),
        ({**ALL, "ha-foo": 1}, "'ha-foo' is not a recognised policy setting; did you mean ha-mode?"),
        ({"max-length": -1}, "max-length takes an integer from 0"),
        ({"max-length": [1]}, "[1] given"),
        ({"overflow": {"a": 1}}, "overflow must be"),
        ({"dead-letter-routing-key": "k"}, "needs dead-letter-exchange"),
        ({"dead-letter-exchange": "x\n"}, "dead-letter-exchange must be a text"),
        ({"confirm": "most"}, 'confirm must be "none", "master", "one", "majority", "all" or a number of copies'),
        ({"confirm": "al"}, 'did you mean "all"?'),
        ({"confirm": 0}, "a number of copies from 1 to 253, got 0"),
        ({"confirm": 254}, "got 254"),
        ({"confirm": "2"}, 'got "2"'),
        ({"confirm": True}, "got True"),
        ({"confirm": ["all"]}, "got ['all']"),
        ({"mirror-topology": "ring"}, 'mirror-topology "ring" is not there yet; there is "star"'),
        ({"mirror-topology": "rings"}, 'mirror-topology must be "star" or "auto", got "rings"'),
        ({"ha-mode": "nodes", "ha-params": ["rabbit@a"]}, '"rabbit@a" is none'),
    ],
)
def test_what_is_wrong_with_a_definition_is_said(definition: dict[str, Any], wrong: str) -> None:
    """Goal: whoever knows RabbitMQ's messages finds them, with what to do. Method: its cases, and our own."""
    assert any(wrong in each for each in wrong_keys(definition)), wrong_keys(definition)


@pytest.mark.story("000:41")
@pytest.mark.story("000:187a")
@pytest.mark.parametrize(
    "definition",
    [
        ALL,
        {"ha-mode": "exactly", "ha-params": 99, "ha-sync-mode": "manual", "ha-sync-batch-size": 4096},
        {"ha-mode": "nodes", "ha-params": ["a", "b"], "ha-promote-on-shutdown": "always"},
        {"message-ttl": 0, "expires": 1, "max-length": 0, "delivery-limit": -1, "overflow": "reject-publish-dlx"},
        {"flush": "disk", "min-in-sync": 2, "replace-after-ms": 1000},
        *({"confirm": level} for level in ("none", "master", "one", "majority", "all", 1, 253)),
        {"mirror-topology": "star"},
        {"mirror-topology": "auto"},
        {"alternate-exchange": "", "dead-letter-exchange": "", "dead-letter-routing-key": "k"},
        {"queue-master-locator": "client-local"},
    ],
)
def test_what_may_be_said(definition: dict[str, Any]) -> None:
    """Goal: every key has values that are taken, more copies than nodes and unknown nodes among them."""
    assert wrong_keys(definition) == []


@pytest.mark.story("000:25")
@pytest.mark.story("000:130")
def test_all_that_is_wrong_is_said_at_once() -> None:
    """Goal: nobody mends one thing after the other. Method: a bad pattern, a bad mode and a bad limit."""
    policy = Policy("*(", {"ha-mode": "some", "max-length": -1})
    with pytest.raises(BadRequest, match="nothing to repeat") as raised:
        check_policy(policy, operator=False)
    assert len(raised.value.details["errors"]) == 3
    with pytest.raises(BadRequest, match="could take too long"):
        check_policy(Policy("(a*)(b*)(c*)(d*)", ALL), operator=False)


def test_an_operator_s_policy_has_caps_only() -> None:
    """Goal: what caps nothing is refused there."""
    with pytest.raises(BadRequest, match="ha-mode cannot be set by an operator policy; those that can: message-ttl"):
        check_policy(Policy("", {**ALL, "max-length": 1}), operator=True)


@pytest.mark.story("000:138")
@pytest.mark.story("000:371")
def test_the_highest_priority_counts_and_of_equals_the_first_by_name() -> None:
    """Goal: one policy per object, and a tie is told. Method: three that fit, one for exchanges, one that does not."""
    policies = {
        "b": Policy("^q", ALL, priority=1),
        "a": Policy("", ALL, priority=1, apply_to="queues"),
        "c": Policy("q1", ALL),
        "x": Policy("q", ALL, priority=9, apply_to="exchanges"),
        "y": Policy("^other$", ALL, priority=9),
    }
    assert chosen(policies, "q1", "queues") == "a"
    assert chosen(policies, "q1", "exchanges") == "x"
    assert chosen({"y": policies["y"]}, "q1", "queues") == ""
    assert ties(policies, ["q1", "z"]) == {"a": ["b"]}


def governed(arguments: dict[str, Any], definition: dict[str, Any], caps: dict[str, Any] | None = None) -> Any:
    host = VirtualHost(
        policies={"p": Policy("", definition)} if definition else {},
        operator_policies={"o": Policy("", caps)} if caps else {},
    )
    return effective(host, "q", arguments)


def test_without_policies_a_queue_is_as_it_was_declared() -> None:
    for host in (None, VirtualHost()):
        found = effective(host, "q", {"copies": 2})
        assert (found.arguments, found.policy, found.operator) == ({"copies": 2}, "", "")
        assert found.sources == {"copies": "argument"}


@pytest.mark.story("000:469")
def test_of_a_limit_the_stricter_one_holds_and_each_says_where_it_comes_from() -> None:
    """Goal: argument, policy and operator's policy each win once. Method: three limits."""
    found = governed(
        {"x-max-length": 5, "x-message-ttl": 100, "x-delivery-limit": -1},
        {"max-length": 9, "message-ttl": 50, "delivery-limit": 7},
        {"message-ttl": 10, "expires": 1000},
    )
    assert found.arguments == {"x-max-length": 5, "x-message-ttl": 10, "x-delivery-limit": 7, "x-expires": 1000}
    assert found.sources == {
        "x-max-length": "argument",
        "x-message-ttl": "operator policy o",
        "x-delivery-limit": "policy p",
        "x-expires": "operator policy o",
    }
    assert (found.policy, found.operator) == ("p", "o")


@pytest.mark.story("000:213")
def test_of_anything_else_the_argument_holds() -> None:
    """Goal: what was asked for one queue is not taken from it by a policy; an operator's flush and min-in-sync are."""
    arguments = {"copies": 2, "x-overflow": "reject-publish", "flush": "memory", "min_in_sync": 1}
    found = governed(
        arguments,
        {"ha-mode": "nodes", "ha-params": ["a"], "overflow": "drop-head", "flush": "disk"},
        {"min-in-sync": 2},
    )
    assert found.arguments == {**arguments, "min_in_sync": 2, "ha-sync-mode": "automatic"}
    assert governed({}, {"flush": "memory"}, {"flush": "disk"}).arguments["flush"] == "disk"
    assert governed({"flush": "disk"}, {}, {"flush": "memory"}).arguments["flush"] == "disk"


@pytest.mark.parametrize(
    ("policy", "operator", "level"),
    [
        ("master", "all", "all"),
        ("all", "master", "all"),
        ("none", "one", "one"),
        (2, "majority", "majority"),
        ("majority", 3, "majority"),
        (3, 2, 3),
        ("one", 3, 3),
        (None, "one", "one"),
        ("one", None, "one"),
    ],
)
def test_of_two_confirm_levels_the_stricter_one_holds(policy: Any, operator: Any, level: Any) -> None:
    """Goal: an operator caps how little a confirm may mean. Method: pairs of levels, in the order of none, master, one,
    numbers, majority, all."""
    definition, caps = ({"confirm": each} if each is not None else {} for each in (policy, operator))
    found = governed({}, definition, caps)
    assert found.arguments == {"confirm": level}
    assert check_policy(Policy("", caps or {"max-length": 1}), operator=True) is None


def test_the_topology_of_mirrors_is_shown_and_places_nothing() -> None:
    """Goal: what says how copies are sent is told with the queue, and is nothing to one that has one copy, or is where
    others are."""
    assert governed({}, {"mirror-topology": "auto"}).arguments == {"mirror-topology": "auto"}
    assert governed({"exclusive": True}, {"mirror-topology": "star"}).arguments == {"exclusive": True}


@pytest.mark.story("000:33")
@pytest.mark.story("000:130")
@pytest.mark.story("000:185a")
@pytest.mark.parametrize(
    ("definition", "place"),
    [
        (ALL, {"copies": 255}),
        ({"ha-mode": "exactly", "ha-params": 3}, {"copies": 3}),
        ({"ha-mode": "nodes", "ha-params": ["b", "a"]}, {"nodes": ["b", "a"]}),
    ],
)
def test_how_a_queue_is_mirrored(definition: dict[str, Any], place: dict[str, Any]) -> None:
    """Goal: RabbitMQ's three modes are places; history is filled unless the policy says that somebody asks for it."""
    assert governed({}, definition).arguments == {**place, "ha-sync-mode": "automatic"}
    manual = governed({}, {**definition, "ha-sync-mode": "manual"})
    assert manual.arguments == {**place, "ha-sync-mode": "manual"}


@pytest.mark.story("000:45")
def test_a_queue_that_goes_with_its_node_is_not_mirrored() -> None:
    """Goal: an exclusive queue takes limits of a policy and no place; nor does one of a log group, which is where the
    others are."""
    for arguments in ({"exclusive": True}, {"x-log-group": "g"}):
        found = governed(arguments, {**ALL, "max-length": 3, "flush": "disk"}, {"flush": "disk"})
        assert found.arguments == {**arguments, "x-max-length": 3}


def test_the_alternate_exchange_of_a_policy() -> None:
    """Goal: what was declared so stays, another one has its policy's; without such a policy nothing is looked at."""
    exchanges = {"events": Exchange("topic"), "early": Exchange("topic", alternate="own"), "orders": Exchange("topic")}
    host = VirtualHost(
        exchanges=exchanges, policies={"p": Policy("^e", {"alternate-exchange": "spare"}, apply_to="exchanges")}
    )
    alternates = {name: exchange.alternate for name, exchange in governed_host(host).exchanges.items()}
    assert alternates == {"events": "spare", "early": "own", "orders": ""}
    without = VirtualHost(exchanges=exchanges, policies={"p": Policy("^e", {"max-length": 1})})
    assert governed_host(without) is without


# --- In a queue's log -------------------------------------------------------------------------------------------------


def governs(master: Master, queue_id: int, policy: str, **arguments: Any) -> int:
    """Where the change begins in the log."""
    change = QueueGoverned(queue_id=queue_id, version=len(master.log.batches), policy=policy, arguments=arguments)
    return master.append(encode_change(change)).log_offset


@pytest.mark.story("000:469")
def test_what_holds_counts_from_its_append_and_a_cut_takes_it_back() -> None:
    """Goal: copies go by the same from the same record on. Method: a limit by a policy, another one, and none; cut one
    after the other, and not what is confirmed."""
    master = Master()
    queue_id, registry = master.declare("q", **{"x-max-length": 9}), master.derived.registry

    def limit() -> int | None:
        return registry.lengths[queue_id].records if queue_id in registry.lengths else None

    first = governs(master, queue_id, "p", **{"x-max-length": 5})
    second = governs(master, queue_id, "p", **{"x-message-ttl": 7})
    third = governs(master, queue_id, "")
    assert (limit(), registry.ttls, registry.find("q").effective) == (9, {}, {"x-max-length": 9})
    registry.cut(third)
    assert (limit(), registry.ttls) == (None, {queue_id: 7})
    registry.confirm(second)
    registry.cut(second)
    assert (limit(), registry.find("q").arguments) == (5, {"x-max-length": 9})
    registry.cut(first)
    assert limit() == 5, "it is confirmed"


def test_a_checkpoint_tells_what_holds() -> None:
    """Goal: a copy that begins with a checkpoint goes by its queues' policies. Method: two queues, one is governed."""
    master = Master()
    governed_id, other_id = master.declare("q", copies=2), master.declare("r")
    governs(master, governed_id, "p", **{"x-max-length": 5})
    master.confirm_all()
    began_at = master.log.end
    master.checkpoint()
    registry = master.rebuilt(began_at).registry
    queue = registry.find("q")
    assert (queue.arguments, queue.effective) == ({"copies": 2}, {"x-max-length": 5})
    assert queue.governed == master.derived.registry.find("q").governed
    assert registry.lengths.keys() == {governed_id}
    assert registry.by_id[other_id].governed is None
