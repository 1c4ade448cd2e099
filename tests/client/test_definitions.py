"""Definitions: what a document of RabbitMQ's comes to here, and one from here there; without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.client.definitions.plan import OF_RABBITMQ, OURS, for_rabbitmq, named, plan, renamed_nodes
from mirrorlog.errors import BadRequest
from mirrorlog.queues.policies import KEYS
from mirrorlog.wire.messages.queues import DeclareQueue
from mirrorlog.wire.messages.topology import SetPolicy, SetUserLimits

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
        {"name": "later", "vhost": "/", "type": "x-delayed-message", "arguments": {}},
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
        ["exchange e in virtual host /"],
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
        "exchange later in virtual host /: type 'x-delayed-message' is not there",
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
    assert [step.arguments for step in steps if isinstance(step, DeclareQueue)] == [{}]
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


def test_a_document_or_names_of_nodes_that_are_none_are_refused() -> None:
    for wrong in ({"queues": {"name": "q"}}, {"queues": ["q"]}):
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


def test_keys_of_policies_are_known_here_or_there() -> None:
    """Goal: no key that means something is passed over, and ours are all named. Method: the nodes' own list."""
    assert set(KEYS) >= OURS
    assert not set(KEYS) & OF_RABBITMQ
