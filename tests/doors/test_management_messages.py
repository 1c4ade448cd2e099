"""The management API: messages in and out, and definitions of a whole cluster. One node; the last test makes users."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from tests.doors.management import Api
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1, http=True) as found:
        yield found


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Api:
    return Api(cluster.nodes["n1"].http or "")


def publish(api: Api, key: str, payload: str, *, exchange: str = "amq.default", **more: Any) -> bool:
    body = {"properties": {}, "routing_key": key, "payload": payload, "payload_encoding": "string", **more}
    routed: bool = api.post(f"exchanges/%2F/{exchange}/publish", body)["routed"]
    return routed


def get(api: Api, queue: str, ackmode: str, count: int = 1, **more: Any) -> list[dict[str, Any]]:
    body = {"count": count, "ackmode": ackmode, "encoding": "auto", **more}
    found: list[dict[str, Any]] = api.post(f"queues/%2F/{queue}/get", body)
    return found


def payloads(rows: list[dict[str, Any]]) -> list[str]:
    return [row["payload"] for row in rows]


def test_a_message_comes_out_as_it_went_in(api: Api) -> None:
    """Goal: properties, headers and bytes survive. Method: text with every property, bytes that are no text, and what
    leads nowhere."""
    api.put("queues/%2F/in")
    properties = {
        "content_type": "text/plain", "correlation_id": "c", "delivery_mode": 2, "priority": 7, "expiration": "60000",
        "timestamp": 1_700_000_000, "headers": {"text": "t", "number": 5},
    }  # fmt: skip
    assert publish(api, "in", "grüße", properties=properties)
    assert publish(api, "in", b64encode(b"\xff\x00").decode(), payload_encoding="base64")
    assert not publish(api, "nowhere", "x")
    assert not publish(api, "x", "x", exchange="amq.topic")
    first, second = get(api, "in", "ack_requeue_true", 5)
    assert (first["payload"], first["exchange"]) == ("grüße", "")
    assert (first["payload_bytes"], first["payload_encoding"], first["routing_key"]) == (7, "string", "in")
    assert first["properties"] == {**properties, "headers": {"text": "t", "number": "5"}}
    assert (second["payload"], second["payload_encoding"]) == (b64encode(b"\xff\x00").decode(), "base64")
    assert [first["message_count"], second["message_count"]] == [1, 0]
    assert payloads(get(api, "in", "ack_requeue_true", truncate=2)) == ["gr"]
    assert get(api, "in", "ack_requeue_true", encoding="base64")[0]["payload_encoding"] == "base64"


def test_looking_consumes_nothing_and_the_other_ways_do(api: Api, cluster: Cluster) -> None:
    """Goal: who only looks changes nothing, while a consumer is at work too. Method: four messages; looked at, taken,
    given back, declared dead; and the counts of the queue meanwhile."""
    api.put("queues/%2F/dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.put("queues/%2F/work", {"arguments": arguments})
    for number in range(4):
        assert publish(api, "work", f"m{number}")
    for _ in range(2):
        assert payloads(get(api, "work", "ack_requeue_true", 10)) == ["m0", "m1", "m2", "m3"]
    assert payloads(get(api, "work", "ack_requeue_false")) == ["m0"]
    given = get(api, "work", "reject_requeue_true", 2)
    assert [(row["payload"], row["redelivered"]) for row in given] == [("m1", False), ("m2", False)]
    again = get(api, "work", "reject_requeue_false")
    assert [(row["payload"], row["redelivered"], row["message_count"]) for row in again] == [("m1", True, 2)]
    assert api.until("queues/%2F/dead", lambda row: row if row["messages"] == 1 else None)["messages_ready"] == 1

    async def hold_one() -> None:
        async with Client(*cluster.servers) as client, client.subscribe("work", prefetch=1, name="holder") as held:
            await anext(held)
            row = await asyncio.to_thread(api.get, "queues/%2F/work")
            assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (2, 1, 1)
            assert (row["consumers"], [each["consumer_tag"] for each in row["consumer_details"]]) == (1, ["holder"])
            listed = await asyncio.to_thread(api.until, "queues?columns=name,messages_unacknowledged", unacknowledged)
            assert listed == {"name": "work", "messages_unacknowledged": 1}
            consumers = await asyncio.to_thread(api.until, "consumers", lambda rows: rows)
            assert [each["queue"] for each in consumers] == [{"name": "work", "vhost": "/"}]

    asyncio.run(hold_one())
    assert api.delete("queues/%2F/work/contents") == 204
    assert get(api, "work", "ack_requeue_true", 10) == []
    assert get(api, "work", "ack_requeue_false", 10) == []
    assert api.get("aliveness-test/%2F") == {"status": "ok"}
    assert api.error("GET", "aliveness-test/nowhere")[0] == 404


def unacknowledged(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return next((row for row in rows if row.get("messages_unacknowledged")), None)


def test_a_queue_that_has_moved_says_what_it_lacks_and_is_synced(api: Api, cluster: Cluster) -> None:
    """Goal: `sync` of RabbitMQ's tools does what it says. Method: a queue with two records goes to a log on disks."""
    api.put("queues/%2F/moved")
    for number in range(2):
        publish(api, "moved", f"m{number}")

    async def move() -> None:
        async with Client(*cluster.servers) as client:
            await client.admin.alter("moved", {"flush": "disk"})

    asyncio.run(move())
    lacks = {"wished": False, "left_records": 2, "done_records": 0}
    row = api.until("queues/%2F/moved", lambda row: row if row.get("mirrorlog_sync") == lacks else None)
    assert row["messages"] == 2
    assert api.call("POST", "queues/%2F/moved/actions", {"action": "sync"}).status == 204
    api.until("queues/%2F/moved", lambda row: "mirrorlog_sync" not in row)
    assert payloads(get(api, "moved", "ack_requeue_false", 5)) == ["m0", "m1"]


def test_what_is_wrong_with_a_message_is_said(api: Api) -> None:
    """Goal: never an error of the door. Method: bodies that miss something, or have it wrong."""
    api.put("queues/%2F/strict")
    path = "exchanges/%2F/amq.default/publish"
    good = {"properties": {}, "routing_key": "strict", "payload": "x", "payload_encoding": "string"}
    assert api.error("POST", path, {})[2] == "[{key_missing,routing_key},{key_missing,payload}]"
    for wrong in (
        {"payload": 5}, {"payload_encoding": "rot13"}, {"payload_encoding": "base64", "payload": "ä"},
        {"properties": {"priority": 256}}, {"properties": {"unknown": 1}}, {"properties": {"expiration": "soon"}},
        {"properties": {"timestamp": 10**15}}, {"routing_key": "k" * 300}, {"payload": "x" * (5 * 1024 * 1024)},
    ):  # fmt: skip
        assert api.error("POST", path, good | wrong)[:2] == (400, "bad_request"), wrong
    assert api.error("POST", "exchanges/%2F/nothing/publish", good)[0] == 404
    assert api.call("POST", path, b"x" * (17 * 1024 * 1024)).status == 413
    for wrong in ({}, {"ackmode": "eat"}, {"ackmode": "ack_requeue_true", "count": "many"},
                  {"ackmode": "ack_requeue_true", "encoding": "morse"}):  # fmt: skip
        assert api.error("POST", "queues/%2F/strict/get", wrong)[:2] == (400, "bad_request")
    assert api.error("POST", "queues/%2F/nowhere/get", {"ackmode": "ack_requeue_true"})[0] == 404
    assert api.error("POST", "queues/%2F/nowhere/get", {"ackmode": "ack_requeue_false"})[0] == 404
    assert api.error("POST", "definitions", {"queues": {"name": "x"}})[:2] == (400, "bad_request")
    assert api.get("parameters") == api.get("vhost-limits/%2F") == []
    assert api.error("PUT", "parameters/federation/%2F/up", {"value": {}})[0] == 400
    assert api.call("POST", "rebalance/queues").status == 204


def test_policies_and_those_of_operators_are_set_shown_and_cleared(api: Api) -> None:
    """Goal: RabbitMQ's codes, texts and rows. Method: one of each sort through its life, and bodies that are none."""
    for kind in ("policies", "operator-policies"):
        path = f"{kind}/%2F/long"
        assert api.error("GET", path) == (404, "Object Not Found", "Not Found")
        policy = {"pattern": "^never", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
        assert [api.put(path, policy), api.put(path, policy)] == [201, 204]
        assert api.get(path) == {"vhost": "/", "name": "long", **policy}
        assert api.get(kind) == api.get(f"{kind}/%2F") == [api.get(path)]
        assert api.error("PUT", path, {})[2] == "[{key_missing,pattern},{key_missing,definition}]"
        for wrong in (
            {"pattern": 5}, {"definition": []}, {"priority": "1"}, {"apply-to": "topics"}, {"pattern": "*("},
            {"definition": {"ha-foo": 1}}, {"definition": {"max-length": -1}}, {"definition": {}},
        ):  # fmt: skip
            status, error, reason = api.error("PUT", path, policy | wrong)
            assert (status, error) == (400, "bad_request"), wrong
            assert wrong == {"definition": {}} or reason.startswith("Validation failed\n\n"), reason
        assert api.error("PUT", f"{kind}/nowhere/long", policy) == (404, "not_found", "vhost_not_found")
        assert api.error("GET", f"{kind}/nowhere")[0] == 404
        assert api.delete(path) == 204
        assert api.error("DELETE", path)[0] == 404


def rabbit_hash(password: str) -> str:
    """As RabbitMQ stores it."""
    salt = b"\x01\x02\x03\x04"
    return b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def test_definitions_of_rabbitmq_are_read_and_what_means_nothing_is_told(api: Api) -> None:
    """Goal: a cluster of RabbitMQ's is moved by its own document: its users log in with their passwords, and nothing is
    left out in silence. Method: a document as `rabbitmqctl export_definitions` writes it, with what there is not here;
    read, refused in part, and read once more; then what is written is read by an empty virtual host."""
    document = {
        "rabbit_version": "3.10.8",
        "users": [
            {"name": "app", "password_hash": rabbit_hash("app"), "tags": [],
             "hashing_algorithm": "rabbit_password_hashing_sha256", "limits": {}},
            {"name": "root", "password_hash": rabbit_hash("root"), "tags": ["administrator"],
             "hashing_algorithm": "rabbit_password_hashing_sha256", "limits": {}},
        ],
        "vhosts": [{"name": "/"}, {"name": "shop"}],
        "permissions": [
            {"user": name, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
            for name in ("root", "app") for vhost in ("/", "shop")
        ],
        "policies": [
            {"vhost": "shop", "name": "one", "pattern": "^b",
             "definition": {"ha-mode": "nodes", "ha-params": ["rabbit@a"]}},
        ],
        "parameters": [
            {"vhost": "/", "component": "shovel", "name": "s", "value": {}},
            {"vhost": "shop", "component": "operator_policy", "name": "cap",
             "value": {"pattern": ".", "definition": {"max-length": 9}, "apply-to": "queues", "priority": 0}},
        ],
        "exchanges": [
            {"name": "orders", "vhost": "shop", "type": "topic", "durable": True, "auto_delete": False,
             "internal": False, "arguments": {"x-odd": 1}},
            {"name": "later", "vhost": "shop", "type": "x-consistent-hash", "durable": True, "auto_delete": False,
             "internal": False, "arguments": {}},
        ],
        "queues": [
            {"name": "bills", "vhost": "shop", "durable": True, "auto_delete": False,
             "arguments": {"x-queue-type": "quorum", "x-max-length": 5}},
            {"name": "odd", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {"x-never": 1}},
        ],
        "bindings": [
            {"source": "orders", "vhost": "shop", "destination": "bills", "destination_type": "queue",
             "routing_key": "*.paid", "arguments": {}},
            {"source": "later", "vhost": "shop", "destination": "bills", "destination_type": "queue",
             "routing_key": "", "arguments": {}},
        ],
    }  # fmt: skip
    root = Api(api.address, "root", "root")
    status, _, reason = root.error("POST", "definitions", document)
    assert status == 400
    assert "queue odd" in reason
    assert "x-never" in reason
    assert "binding later" in reason
    assert root.get("whoami") == {"name": "root", "tags": ["administrator"]}
    document["queues"] = document["queues"][:1]
    document["bindings"] = document["bindings"][:1]
    assert root.error("POST", "definitions?map-node=rabbit", document)[0] == 400
    answer = root.post("definitions?map-node=rabbit@a=n1", document)
    ignored = " ".join(answer["ignored"])
    assert [each.split(":")[0] for each in answer["noted"]] == ["policy one in virtual host shop"]
    for told in ("parameter s", "x-odd", "x-consistent-hash", "x-queue-type"):
        assert told in ignored
    assert Api(api.address, "app", "app").call("PUT", "queues/shop/own", {}).status == 201
    assert root.get("queues/shop/bills")["arguments"] == {"x-queue-type": "quorum", "x-max-length": 5}
    written = root.get("definitions/shop")
    assert {row["name"] for row in written["queues"]} == {"bills", "own"}
    assert all("vhost" not in row for row in written["queues"])
    assert written["policies"] == [
        {"name": "one", "pattern": "^b", "apply-to": "all", "priority": 0,
         "definition": {"ha-mode": "nodes", "ha-params": ["n1"]}}
    ]  # fmt: skip
    assert [(row["component"], row["name"]) for row in written["parameters"]] == [("operator_policy", "cap")]
    root.put("vhosts/copy")
    assert root.post("definitions/copy", written)["ignored"] == [
        "queue bills in virtual host copy: argument x-queue-type"
    ]
    assert root.get("definitions/copy") == written
    whole = root.get("definitions")
    assert [row["name"] for row in whole["users"]] == ["app", "root"]
    assert "the password stays" in " ".join(root.post("definitions", whole)["ignored"])
    theirs = root.get("definitions?for=rabbitmq&map-node=n1=rabbit@a")
    assert (theirs["users"], theirs["permissions"]) == ([], [])
    assert theirs["policies"][-1]["definition"] == {
        "ha-mode": "nodes", "ha-params": ["rabbit@a"], "ha-promote-on-failure": "when-synced"
    }  # fmt: skip
    assert root.error("GET", "definitions?for=kafka")[:2] == (400, "bad_request")
