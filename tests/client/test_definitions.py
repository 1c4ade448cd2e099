"""Definitions: what a document of RabbitMQ's comes to here, and one from here there; without a cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from mirrorlog.client.definitions.plan import OF_RABBITMQ, OURS, for_rabbitmq, named, plan, renamed_nodes
from mirrorlog.client.definitions.rows import Row
from mirrorlog.client.definitions.transfer import document_of
from mirrorlog.doors.management.shapes import error_of
from mirrorlog.errors import BadRequest, LogUnavailable
from mirrorlog.queues.policies import KEYS
from mirrorlog.wire.messages.queues import DeclareQueue, Metadata, QueueInfo, QueueOutage
from mirrorlog.wire.messages.topology import SetPolicy, SetUserLimits
from mirrorlog.wire.names import qualified
from mirrorlog.wire.routing import Binding

if TYPE_CHECKING:
    from mirrorlog.client import Client

DOCUMENT: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "vhosts": [{"name": "/", "limits": [], "metadata": {"description": "x"}}],
    "users": [
        {"name": "app", "password_hash": "eA==", "tags": [], "limits": {"max-connections": 5, "max-channels": 9}},
        {"name": "root", "password_hash": "eA==", "tags": ["administrator"], "limits": {}},
    ],
    "permissions": [{"user": "app", "vhost": "/", "configure": "", "write": ".*", "read": ".*"}],
    "topic_permissions": [{"user": "app"}],
    "parameters": [{"vhost": "/", "component": "shovel", "name": "s", "value": {}}],
    "policies": [
        {"vhost": "/", "name": "two", "pattern": "^q", "priority": 1, "apply-to": "queues",
         "definition": {"ha-mode": "nodes", "ha-params": ["rabbit@a", "rabbit@b"], "queue-mode": "lazy"}},
        {"vhost": "/", "name": "lazy", "pattern": ".", "definition": {"queue-mode": "lazy"}},
        {"vhost": "/", "name": "slip", "pattern": ".", "definition": {"ha-moed": "all"}},
        {"vhost": "/", "name": "odd", "pattern": 5, "definition": {"ha-mode": "all"}},
    ],
    "exchanges": [
        {"name": "late", "vhost": "/", "type": "x-delayed-message", "arguments": {"x-delayed-type": "topic"}},
        {"name": "hashed", "vhost": "/", "type": "x-consistent-hash", "arguments": {}},
        {"name": "e", "vhost": "/", "type": "topic", "arguments": {"x-odd": 1}},
        {"name": "amq.topic", "vhost": "/", "type": "topic"},
    ],
    "queues": [{"name": "q", "vhost": "/", "durable": True, "arguments": {"x-queue-type": "classic"}}, {"vhost": "/"}],
    "bindings": [
        {"source": "", "vhost": "/", "destination": "q", "routing_key": "q"},
        {"source": "e", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "#"},
    ],
    "feature": {"x": 1},
}  # fmt: skip


def test_a_document_of_rabbitmqs_comes_to_steps_in_order_and_all_that_means_nothing_is_named() -> None:
    """Goal: policies before queues, administrators before other users, and no key is lost in silence. Method: one of
    each."""
    found = plan(DOCUMENT, nodes=renamed_nodes(["rabbit@a=n1", "rabbit@b=n2"]))
    assert [[named(step) for step in stage] for stage in found.steps] == [
        ["virtual host /"],
        ["policy two in virtual host /", "policy slip in virtual host /"],
        ["exchange late in virtual host /", "exchange e in virtual host /"],
        ["queue q in virtual host /"],
        ["binding e to q in virtual host /"],
        ["user root"],
        ["user app", "limits of user app"],
        ["permission app in virtual host /"],
    ]
    assert found.ignored == [
        "feature",
        "topic_permissions: app",
        "virtual host /: metadata",
        "policy two in virtual host /: key queue-mode",
        "policy lazy in virtual host /: key queue-mode",
        "policy lazy in virtual host /: nothing else is in it",
        "parameter s: component shovel is not there",
        "exchange hashed in virtual host /: type 'x-consistent-hash' is not there",
        "exchange e in virtual host /: argument x-odd",
        "queue q in virtual host /: argument x-queue-type",
        "user app: limit max-channels",
    ]
    assert [each.split(":")[0] for each in found.refused] == [
        "policy odd in virtual host /",
        "queue  in virtual host /",
    ]
    steps = [step for stage in found.steps for step in stage]
    two = next(step for step in steps if isinstance(step, SetPolicy))
    assert two.policy.definition == {"ha-mode": "nodes", "ha-params": ["n1", "n2"]}
    assert [step.arguments for step in steps if isinstance(step, DeclareQueue)] == [{"x-queue-type": "classic"}]
    assert [step.limits.max_connections for step in steps if isinstance(step, SetUserLimits)] == [5]


@pytest.mark.story("000:39b")
def test_a_policy_whose_promotion_would_mean_something_else_is_noted() -> None:
    """Goal: RabbitMQ's default of a failure is not taken over in silence. Method: unsaid, said, and from here."""
    policy = {"vhost": "/", "name": "p", "pattern": ".", "definition": {"ha-mode": "all"}}
    (noted,) = plan({"policies": [policy]}).noted
    assert noted == (
        "policy p in virtual host /: ha-promote-on-failure is when-synced here unless it is set; "
        "RabbitMQ's default is always"
    )
    said = {**policy, "definition": {"ha-mode": "all", "ha-promote-on-failure": "always"}}
    limits = {**policy, "definition": {"max-length": 5}}
    assert plan({"policies": [said, limits]}).noted == []
    assert plan({"policies": [policy], "product_name": "mirrorlog"}).noted == []


def test_objects_of_one_virtual_host_go_into_it_and_what_is_of_all_is_named() -> None:
    rows = {"queues": [{"name": "q"}], "users": [{"name": "u"}]}
    found = plan(rows, vhost="shop")
    assert [[named(step) for step in stage] for stage in found.steps] == [["queue q in virtual host shop"]]
    assert found.ignored == ["users: not of one virtual host"]
    assert [each.partition(": ")[2] for each in plan(rows).refused] == ["[{key_missing,vhost}]"]


def test_what_names_another_virtual_host_than_is_asked_for_is_not_put_into_that() -> None:
    """Goal: objects of all virtual hosts are not merged into one. Method: a document of two of them, read into one."""
    two = [{"name": "q", "vhost": "shop"}, {"name": "q", "vhost": "/"}]
    bound = {"source": "e", "destination": "q", "vhost": "/"}
    found = plan({"queues": two, "bindings": [bound], "exchanges": [{"name": "e", "type": "topic"}]}, vhost="shop")
    assert [[named(step) for step in stage] for stage in found.steps] == [
        ["exchange e in virtual host shop"],
        ["queue q in virtual host shop"],
    ]
    assert found.ignored == [
        "queue q in virtual host /: not of virtual host shop",
        "binding e to q in virtual host /: not of virtual host shop",
    ]


@pytest.mark.parametrize(
    ("section", "row", "said"),
    [
        ("queues", {"name": 5}, "queue 5 in virtual host /: name should be a string, actually was 5"),
        ("queues", {"name": ""}, "queue  in virtual host /: queue '': a name has 1 to 255 characters"),
        ("queues", {"name": "shop\x1fq"}, r"queue 'shop\x1fq' in virtual host /: queue 'shop\x1fq': a name has"),
        ("queues", {"name": "q", "durable": 1}, "queue q in virtual host /: durable should be true or false"),
        ("queues", {"name": "q", "arguments": [1]}, "queue q in virtual host /: arguments should be an object"),
        ("queues", {"name": "q", "arguments": {"x": 10**30}}, "queue q in virtual host /: "),
        ("queues", {"name": "q", "arguments": {"x": "\ud800"}}, "queue q in virtual host /: 'utf-8' codec"),
        ("exchanges", {"name": "e", "type": []}, "exchange e in virtual host /: type should be a string"),
        ("bindings", {"source": "e", "destination": {}}, "binding e to {} in virtual host /: destination should be"),
        ("policies", {"name": "p", "pattern": ".", "definition": {}, "apply-to": []}, "policy p in virtual host /: "),
        ("parameters", {"name": "p", "component": "operator_policy", "value": 5}, "parameter p in virtual host /: "),
        ("users", {"name": "u", "tags": 5}, "user u in virtual host /: tags should be a list of strings"),
        ("users", {"name": "u", "limits": {"max-connections": "x"}}, "user u in virtual host /: max-connections"),
        ("permissions", {"user": "u", "configure": 5, "write": "", "read": ""}, "permission u in virtual host /: "),
    ],
)
def test_what_is_wrong_with_an_object_is_told_in_a_line_that_names_it(section: str, row: Any, said: str) -> None:
    """Goal: no value of any type stops the others, or is told without its place. Method: one wrong value at a time."""
    found = plan({section: [{"vhost": "/", **row}], "vhosts": [{"name": "v"}]})
    (refused,) = found.refused
    assert refused.startswith(said)
    assert "\n" not in refused
    assert [[named(step) for step in stage] for stage in found.steps] == [["virtual host v"]]


def test_a_document_or_names_of_nodes_that_are_none_are_refused() -> None:
    for wrong in ({"queues": {"name": "q"}}, {"queues": ["q"]}, {"queues": ""}):
        with pytest.raises(BadRequest, match="queues should be a list of objects"):
            plan(wrong)
    for pair in ("rabbit@a", "=n1", "rabbit@a="):
        with pytest.raises(BadRequest, match="should be pairs of names"):
            renamed_nodes([pair])
    assert renamed_nodes([""]) == {}


def test_a_document_from_here_is_what_rabbitmq_takes_as_a_whole() -> None:
    """Goal: no key that it refuses, the same promotion, its names of nodes. Method: a policy of ours alone, one of
    both, an operator's; a queue with arguments of ours; a user."""
    value = {"pattern": ".", "apply-to": "queues", "priority": 0}
    document = {
        "policies": [
            {"vhost": "/", "name": "p", **value,
             "definition": {"ha-mode": "nodes", "ha-params": ["n1", "n9"], "flush": "disk"}},
            {"vhost": "/", "name": "ours", **value, "definition": {"min-in-sync": 2}},
        ],
        "parameters": [
            {"vhost": "/", "component": "operator_policy", "name": "cap",
             "value": {**value, "definition": {"max-length": 5, "min-in-sync": 2}}},
        ],
        "queues": [{"vhost": "/", "name": "q", "arguments": {"copies": 2, "x-max-length": 5}}],
        "users": [{"name": "u", "tags": []}],
        "permissions": [{"user": "u"}],
        "exchanges": [],
    }  # fmt: skip
    found, left = for_rabbitmq(document, nodes={"n1": "rabbit@a"})
    assert [(row["name"], row["definition"]) for row in found["policies"]] == [
        ("p", {"ha-mode": "nodes", "ha-params": ["rabbit@a", "n9"], "ha-promote-on-failure": "when-synced"})
    ]
    assert found["parameters"][0]["value"]["definition"] == {"max-length": 5}
    assert found["queues"][0]["arguments"] == {"x-max-length": 5}
    assert (found["users"], found["permissions"]) == ([], [])
    assert left == [
        "policy p: key flush",
        "policy ours: key min-in-sync",
        "operator policy cap: key min-in-sync",
        "queue q: argument copies",
        "user u: there is no hash of the password",
    ]


def test_a_node_that_is_mapped_and_that_no_policy_names_is_told() -> None:
    """Goal: a slip in a name does not send a policy to nodes that are not there in silence. Method: both ways, and the
    names the wrong way round."""
    rows = {"policies": [DOCUMENT["policies"][0]]}
    assert "map-node" not in str(plan(rows, nodes={"rabbit@a": "n1", "rabbit@b": "n2"}).ignored)
    told = ["map-node n1: no policy names that node"]
    assert plan(rows, nodes={"n1": "rabbit@a"}).ignored[1:] == told
    assert for_rabbitmq(rows, nodes={"n1": "rabbit@a"})[1] == told


class Declared:
    """A client of a cluster of one virtual host, with a queue, an exclusive one, and an exchange to which both are
    bound, and which is bound to another."""

    def __init__(self, *outages: str) -> None:
        self._queues = [
            QueueInfo(
                name=name,
                queue_id=1,
                log_id="l",
                epoch=1,
                master="n1",
                mirrors=[],
                begin=0,
                next=0,
                arguments=arguments,
            )
            for name, arguments in (("q", {}), ("own", {"exclusive": True}))
        ]
        self._outages = [QueueOutage(name=name, log_id="l", node="n2", reason="n2 is down") for name in outages]
        self.admin = self
        self.topology = self

    async def metadata(self, queues: None) -> Metadata:
        return Metadata(
            cluster_id="", cluster_name="c", node_id="n1", nodes=[], queues=self._queues, outages=self._outages
        )

    async def virtual_hosts(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in ("/", "shop")]

    async def routing(self, *, virtual_host: str) -> SimpleNamespace:
        bindings = [Binding("e", name, "", to_exchange=name == "f") for name in ("q", "own", "f", "gone")]
        return SimpleNamespace(exchanges={}, bindings=bindings if virtual_host == "/" else [])

    async def policies(self) -> SimpleNamespace:
        return SimpleNamespace(policies=[])

    async def users(self) -> list[Any]:
        return []


def written(declared: Declared, vhost: str | None = None) -> Row:
    return asyncio.run(document_of(cast("Client", declared), vhost))


def test_what_is_bound_to_a_queue_that_is_not_written_is_not_written() -> None:
    """Goal: a document from here is read elsewhere without a refusal. Method: bindings to a queue that goes with its
    connection, and to one that is gone."""
    document = written(Declared())
    assert [row["name"] for row in document["queues"]] == ["q"]
    assert [row["destination"] for row in document["bindings"]] == ["q", "f"]


def test_no_document_is_written_while_nobody_can_tell_of_a_queue() -> None:
    """Goal: a backup that lacks queues does not look whole. Method: outages, of the virtual host that is asked for and
    of the other; one of a queue that a copy knows."""
    lost = [qualified("shop", f"b{number:02}") for number in range(25)]
    with pytest.raises(LogUnavailable, match=r"25 queues were declared: b00 in virtual host shop, .* b24 in .* n2 is"):
        written(Declared(*lost))
    with pytest.raises(LogUnavailable, match="1 queues were declared: a; "):
        written(Declared("a"), "/")
    assert written(Declared(*lost, "q"), "/")["queues"]
    assert (LogUnavailable.exit_code, error_of(LogUnavailable("")).status) == (3, 503)


def test_keys_of_policies_are_known_here_or_there() -> None:
    """Goal: no key that means something is passed over, and ours are all named. Method: the nodes' own list."""
    assert set(KEYS) >= OURS
    assert not set(KEYS) & OF_RABBITMQ
