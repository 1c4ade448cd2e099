"""The management API: queues, exchanges, bindings, virtual hosts and users, as RabbitMQ's tools drive them.

One cluster of three nodes, without users but for the last test, which makes some; each test has names of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.connections import ConnectionClosed
from tests.doors.management import Api
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(3, http=True) as found:
        found.wait_in_sync()
        yield found


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Api:
    return Api(cluster.nodes["n1"].http)


def test_a_queue_is_declared_shown_and_deleted_with_rabbitmqs_codes(api: Api) -> None:
    """Goal: a tool sees what RabbitMQ would answer. Method: a queue in the default virtual host, whose name has a slash
    and a percent sign, through its life."""
    path = "queues/%2f/a%2Fb%25c"
    assert api.error("GET", path) == (404, "Object Not Found", "Not Found")
    declared = {"durable": "true", "auto_delete": False, "arguments": {"x-max-length": 100}}
    assert api.put(path, declared) == 201
    assert api.put(path, declared) == 204
    status, error, reason = api.error("PUT", path, {"arguments": {}})
    assert (status, error) == (400, "bad_request")
    assert "x-max-length" in reason
    row = api.until(path, lambda row: row if len(row["synchronised_slave_nodes"]) == 2 else None)
    facts = {"name": "a/b%c", "vhost": "/", "durable": True, "auto_delete": False, "exclusive": False, "node": "n1"}
    assert {name: row[name] for name in facts} == facts
    assert row["arguments"] == {"x-max-length": 100}
    assert row["state"] == "running"
    assert sorted(row["slave_nodes"]) == sorted(row["synchronised_slave_nodes"]) == ["n2", "n3"]
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"], row["consumers"]) == (0, 0, 0, 0)
    assert api.delete(f"{path}?if-empty=true&if-unused=true") == 204
    assert api.error("DELETE", path) == (404, "Object Not Found", "Not Found")


def test_lists_are_paged_filtered_sorted_and_cut_to_columns(api: Api) -> None:
    """Goal: what pages and scripts ask for. Method: five queues in a virtual host of their own."""
    assert api.put("vhosts/lists") == 201
    assert api.put("vhosts/lists") == 204
    for number in range(5):
        assert api.put(f"queues/lists/q{number}") == 201
    assert [row["name"] for row in api.get("queues/lists")] == ["q0", "q1", "q2", "q3", "q4"]
    assert api.get("queues/lists?columns=name,arguments.x&sort=name&sort_reverse=true")[0] == {
        "name": "q4",
        "arguments": {},
    }
    page = api.get("queues/lists?page=2&page_size=2&columns=name")
    assert page == {
        "total_count": 5, "item_count": 2, "filtered_count": 5, "page": 2, "page_size": 2, "page_count": 3,
        "items": [{"name": "q2"}, {"name": "q3"}],
    }  # fmt: skip
    page = api.get("queues/lists?page=1&name=Q3&use_regex=false&columns=name")
    assert (page["filtered_count"], page["items"]) == (1, [{"name": "q3"}])
    assert api.get("queues/lists?page=1&name=^q[12]$&use_regex=true")["filtered_count"] == 2
    for wrong in ("page=0", "page=x", "page=1&page_size=501", "name=(a*)*&use_regex=true", "name=(&use_regex=true"):
        assert api.error("GET", f"queues/lists?{wrong}")[:2] == (400, "bad_request")
    assert api.error("GET", "queues/lists?page=9")[:2] == (400, "page_out_of_range")
    plain = api.get("queues/lists?disable_stats=true")[0]
    assert "messages" not in plain
    assert "messages" in api.get("queues/lists?disable_stats=true&enable_queue_totals=true")[0]
    assert api.error("GET", "queues/nowhere") == (404, "Object Not Found", "Not Found")
    assert api.error("PUT", "queues/nowhere/q", {})[:2] == (404, "not_found")
    assert api.error("DELETE", "vhosts/lists")[:2] == (400, "bad_request")
    for number in range(5):
        api.delete(f"queues/lists/q{number}")
    assert api.delete("vhosts/lists") == 204
    assert api.error("DELETE", "vhosts/lists")[0] == 404


def test_exchanges_and_bindings_are_made_found_and_taken_away(api: Api) -> None:
    """Goal: bindings are found by their properties keys, also with arguments, and the default exchange is as RabbitMQ
    shows it. Method: an exchange bound to a queue twice and to another exchange."""
    exchange = {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}
    assert api.put("exchanges/%2F/events", exchange) == 201
    assert api.put("exchanges/%2F/events", exchange) == 204
    assert api.error("PUT", "exchanges/%2F/events", {"type": "fanout"})[:2] == (400, "bad_request")
    assert api.error("PUT", "exchanges/%2F/other", {"type": "x-nothing"})[:2] == (400, "bad_request")
    assert api.get("exchanges/%2F/events")["arguments"] == {"alternate-exchange": "amq.fanout"}
    assert {"", "amq.direct", "events"} <= {row["name"] for row in api.get("exchanges/%2F")}
    assert api.get("exchanges/%2F/amq.default")["name"] == ""
    assert api.error("DELETE", "exchanges/%2F/amq.default")[0] == 401
    api.put("queues/%2F/bound")
    told = api.call("POST", "bindings/%2F/e/events/q/bound", {"routing_key": "a.#", "arguments": {}})
    assert told.status == 201
    assert told.headers["location"] == "bound/a.%2523"
    assert api.get("bindings/%2F/e/events/q/bound/a.%2523")["routing_key"] == "a.#"
    told = api.call("POST", "bindings/%2F/e/events/q/bound", {"routing_key": "a.#", "arguments": {"x": 1}})
    keyed = f"bindings/%2F/e/events/q/{told.headers['location']}"
    assert api.get(keyed)["arguments"] == {"x": 1}
    api.post("bindings/%2F/e/events/e/amq.direct", {})
    assert len(api.get("bindings/%2F/e/events/q/bound")) == 2
    assert [row["properties_key"] for row in api.get("bindings/%2F/e/events/e/amq.direct")] == ["~"]
    assert [row["source"] for row in api.get("queues/%2F/bound/bindings")] == ["", "events", "events"]
    assert len(api.get("exchanges/%2F/events/bindings/source")) == 3
    assert [row["source"] for row in api.get("exchanges/%2F/amq.direct/bindings/destination")] == ["events"]
    assert ("", "bound") in {(row["source"], row["destination"]) for row in api.get("bindings")}
    assert api.delete(keyed) == 204
    assert api.error("DELETE", keyed)[0] == 404
    assert api.delete("bindings/%2F/e/events/q/bound/a.%23") == 204
    assert api.error("POST", "bindings/%2F/e/nothing/q/bound", {})[:2] == (404, "not_found")
    assert api.error("POST", "bindings/%2F/e/events/q/nothing", {})[:2] == (404, "not_found")
    assert api.error("DELETE", "exchanges/%2F/events?if-unused=true")[:2] == (400, "bad_request")
    assert api.delete("exchanges/%2F/events") == 204
    assert api.error("GET", "exchanges/%2F/events")[0] == 404
    late = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "topic"}}
    assert [api.put("exchanges/%2F/late", late) for _ in range(2)] == [201, 204]
    told = api.get("exchanges/%2F/late")
    assert (told["type"], told["arguments"]) == ("x-delayed-message", {"x-delayed-type": "topic"})
    assert api.error("PUT", "exchanges/%2F/late", {"type": "topic"})[:2] == (400, "bad_request")
    assert api.error("PUT", "exchanges/%2F/later", {"type": "x-delayed-message"})[:2] == (400, "bad_request")


def test_bad_requests_are_named_and_never_an_error_of_the_door(api: Api) -> None:
    """Goal: bad input is 400, 404, 405 or 413 with a reason. Method: what a client may get wrong, one after the
    other."""
    for body in (b"not json", b"[]", b'"x"', b"{" * 100_000):
        assert api.error("PUT", "queues/%2F/wrong", body) == (400, "bad_request", "not_json")
    for wrong in (
        {"durable": "maybe"}, {"arguments": 5}, {"arguments": {"x-unknown": 1}}, {"arguments": {"x-max-length": "1"}},
        {"exclusive": True},
    ):  # fmt: skip
        assert api.error("PUT", "queues/%2F/wrong", wrong)[:2] == (400, "bad_request")
    assert api.error("GET", "nothing/here")[0] == 404
    assert api.error("GET", "queues/%ff/q")[:2] == (400, "bad_request")
    told = api.call("POST", "queues/%2F/wrong")
    assert (told.status, told.headers["allow"]) == (405, "DELETE, GET, HEAD, PUT")
    api.put("queues/%2F/actions")
    assert api.error("POST", "queues/%2F/actions/actions", {"action": "bogus"}) == (
        400, "bad_request", ["unknown", "bogus"]
    )  # fmt: skip
    assert api.error("POST", "queues/%2F/actions/actions", {}) == (400, "bad_request", "[{key_missing,action}]")
    assert api.call("POST", "queues/%2F/actions/actions", {"action": "sync"}).status == 204
    assert api.call("POST", "queues/%2F/actions/actions", {"action": "cancel_sync"}).status == 204
    assert api.error("POST", "queues/%2F/nowhere/actions", {"action": "sync"})[0] == 404
    told = api.call("PUT", "queues/%2F/actions", {}, Origin="http://elsewhere.example")
    assert told.status == 403
    assert api.call("HEAD", "overview").status == 200
    told = api.call("PUT", "queues/%2F/typed", {"arguments": {"x-queue-type": "quorum"}})
    assert (told.status, "x-queue-type" in told.headers["warning"]) == (201, True)
    assert api.get("queues/%2F/typed")["arguments"] == {"x-queue-type": "quorum"}
    assert api.put("queues/%2F/typed", {}) == 204


def test_the_cluster_and_its_nodes_are_shown(api: Api, cluster: Cluster) -> None:
    """Goal: what dashboards look at first. Method: overview, nodes, health of three nodes that are well."""
    overview = api.get("overview")
    assert (overview["product_name"], overview["node"]) == ("mirrorlog", "n1")
    assert {"queue_totals", "object_totals", "message_stats", "listeners", "contexts"} <= overview.keys()
    assert api.get("cluster-name") == {"name": cluster.name}
    nodes = api.until("nodes", lambda rows: rows if all(row["running"] for row in rows) else None)
    assert [row["name"] for row in nodes] == ["n1", "n2", "n3"]
    assert api.get("nodes/n2")["running"]
    assert api.error("GET", "nodes/n9")[0] == 404
    assert api.get("whoami") == {"name": "guest", "tags": ["administrator"]}
    for check in ("alarms", "local-alarms", "virtual-hosts", "ready", "node-is-mirror-sync-critical"):
        assert api.get(f"health/checks/{check}") == {"status": "ok"}
    port = int(cluster.nodes["n1"].http.rpartition(":")[2])
    assert api.get(f"health/checks/port-listener/{port}")["status"] == "ok"
    assert api.call("GET", "health/checks/port-listener/1").status == 503
    assert api.get("health/checks/certificate-expiration/1/months") == {"status": "ok"}
    assert api.get("healthchecks/node")["status"] == "ok"
    for empty in ("channels", "consumers", "vhosts/%2F/channels"):
        assert api.get(empty) == []


def test_connections_are_listed_for_the_whole_cluster_and_closed(api: Api, cluster: Cluster) -> None:
    """Goal: rabbitmqadmin's lists, whichever node is asked, and who closes one is told apart from an accident. Method:
    a client that waits at another node; it is found by each list, closed with a reason, and gone."""

    async def story() -> None:
        async with Client(cluster.nodes["n2"].client, role="tool") as client:
            await client.any_connection()
            waits = asyncio.ensure_future(client.admin.events(after=10**6, wait_ms=30_000))
            row = await asyncio.to_thread(found)
            await asyncio.to_thread(look, row)
            path = f"connections/{quote(row['name'], safe='')}"
            closed = await asyncio.to_thread(api.call, "DELETE", path, None, **{"X-Reason": "make room"})
            assert closed.status == 204
            with pytest.raises(ConnectionClosed, match="make room"):
                await waits
            assert await asyncio.to_thread(api.error, "GET", path) == (404, "Object Not Found", "Not Found")
            assert await asyncio.to_thread(api.error, "DELETE", path) == (404, "Object Not Found", "Not Found")

    def found() -> dict[str, Any]:
        [row] = [row for row in api.get("connections") if row["role"] == "tool"]
        return dict(row)

    def look(row: dict[str, Any]) -> None:
        facts = {
            "node": "n2", "user": "", "vhost": "", "protocol": "native", "state": "running", "type": "network",
            "ssl": False, "door": "native", "channels": 0,
        }  # fmt: skip
        assert {name: row[name] for name in facts} == facts
        assert row["name"] == f"{row['peer_host']}:{row['peer_port']} -> {row['host']}:{row['port']}"
        assert row["client_properties"]["product"] == "mirrorlog-python"
        assert abs(row["connected_at"] / 1000 - time.time()) < 600
        one = api.get(f"connections/{quote(row['name'], safe='')}?columns=name,node")
        assert one == {"name": row["name"], "node": "n2"}
        assert api.get(f"connections/{quote(row['name'], safe='')}/channels") == []
        assert row["name"] in {each["name"] for each in api.get("vhosts/%2F/connections")}
        page = api.get("connections?page=1&page_size=1&sort=connected_at&sort_reverse=true&columns=door")
        assert (len(page["items"]), page["items"][0].keys()) == (1, {"door"})
        # What this door asks with is its own connection, at each node that it asks.
        assert {each["door"] for each in api.get("connections") if each["role"] == "door"} == {"http"}

    asyncio.run(story())
    assert api.error("GET", "vhosts/none/connections")[0] == 404
    assert api.error("DELETE", "connections/none")[0] == 404


def test_users_and_permissions_are_kept_and_hold(api: Api) -> None:
    """Goal: calls are made with the rights of who makes them. Method: the last test of this cluster, for it makes the
    first user: an administrator, then others, of whom one may see and one may only declare what begins so."""
    assert api.get("users") == []
    assert api.error("PUT", "users/first", {"password": "x", "tags": ""})[0] in (400, 401)
    assert api.put("users/admin", {"password": "secret", "tags": "administrator"}) == 201
    assert api.error("GET", "overview")[:2] == (401, "not_authorized")
    assert Api(api.address, None).call("GET", "overview").headers["www-authenticate"].startswith("Basic")
    admin = Api(api.address, "admin", "secret")
    assert admin.get("whoami") == {"name": "admin", "tags": ["administrator"]}
    assert admin.error("PUT", "queues/%2F/mine", {})[:2][:2] == (401, "not_authorized")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert admin.put("permissions/%2F/admin", everything) == 201
    assert admin.put("permissions/%2F/admin", everything) == 204
    assert admin.put("vhosts/own") == 201
    assert admin.put("queues/own/mine") == 201
    assert admin.delete("queues/own/mine") == admin.delete("vhosts/own") == 204
    assert admin.put("queues/%2F/mine") == 201
    assert (
        admin.put("users/imported", {"password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "tags": []})
        == 201
    )
    assert Api(admin.address, "imported", "test12").error("GET", "overview")[0] == 401
    assert admin.put("users/looker", {"password": "p", "tags": ["monitoring"]}) == 201
    assert admin.put("users/looker", {"password": "q", "tags": "monitoring,own"}) == 204
    looker = Api(admin.address, "looker", "q")
    assert "mine" in [row["name"] for row in looker.get("queues")]
    assert "consumer_details" not in looker.get("queues/%2F/mine")
    assert {row["user"] for row in admin.get("connections/username/looker")} == {"looker"}
    assert looker.error("DELETE", "connections/username/admin")[0] == 401
    assert admin.delete("connections/username/looker") == admin.delete("connections/username/admin") == 204
    assert admin.get("whoami")["name"] == "admin"
    assert looker.error("PUT", "users/other", {"password": "x", "tags": ""})[0] == 401
    assert looker.error("DELETE", "queues/%2F/mine")[0] == 401
    assert admin.error("PUT", "permissions/%2F/looker", {"configure": "^l"}) == (
        400, "bad_request", "[{key_missing,write},{key_missing,read}]"
    )  # fmt: skip
    assert (
        admin.put("permissions/%2F/looker", {"configure": "^l", "write": "", "read": "(a*)*"} | {"read": "^l"}) == 201
    )
    assert looker.put("queues/%2F/looked") == 201
    assert looker.error("PUT", "queues/%2F/other", {})[0] == 401
    assert {row["user"] for row in admin.get("permissions")} == {"admin", "looker"}
    assert admin.get("users/looker/permissions")[0]["configure"] == "^l"
    assert [row["user"] for row in admin.get("vhosts/%2F/permissions")] == ["admin", "looker"]
    assert admin.get("users/looker")["tags"] == ["monitoring", "own"]
    assert [row["name"] for row in admin.get("users/without-permissions")] == ["imported"]
    assert admin.put("user-limits/looker/max-connections", {"value": 7}) == 204
    assert admin.get("user-limits") == [{"user": "looker", "value": {"max-connections": 7}}]
    assert admin.delete("user-limits/looker/max-connections") == 204
    assert admin.delete("permissions/%2F/looker") == 204
    assert admin.error("GET", "permissions/%2F/looker")[0] == 404
    assert admin.call("POST", "users/bulk-delete", {"users": ["looker", "imported"]}).status == 204
    assert admin.error("GET", "users/looker") == (404, "Object Not Found", "Not Found")
    assert admin.delete("users/admin") == 204
    assert api.get("users") == []
