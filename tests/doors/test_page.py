"""The management page over HTTP, as a browser without a script has it: what it shows, does, and refuses.

One cluster of three nodes, without users but for the last test, which makes some.
"""

from __future__ import annotations

import asyncio
import html
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlencode

import pytest

from mirrorlog.client import Client
from mirrorlog.config import split_address
from mirrorlog.doors.management.page.app import AT_ONCE_MAX
from mirrorlog.testing import Cluster
from tests.doors.http_door import get
from tests.doors.management import DEADLINE_S, Api, Pages, words_of
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process

EVERY = ("", "queues", "logs", "nodes", "consumers", "connections", "moves", "policies", "events", "doctor")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(3, http=True, min_in_sync=2) as found:
        found.wait_in_sync()
        yield found


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Api:
    return Api(cluster.nodes["n1"].http)


@pytest.fixture(scope="module")
def pages(cluster: Cluster) -> Pages:
    return Pages(cluster.nodes["n1"].http)


def test_pages_load_nothing_but_this_doors_own_files_and_may_not_be_framed(api: Api, pages: Pages) -> None:
    """Goal: the strictest policy of contents, and nothing that it would stop. Method: every page, and both files."""
    api.put("queues/%2f/strict")
    for path in EVERY:
        shown = pages.get(path)
        assert shown.status == 200, (path, shown)
        policy = shown.headers["content-security-policy"]
        for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"):
            assert part in policy
        assert "unsafe" not in policy
        assert "style=" not in shown.text
        assert "<script>" not in shown.text
        assert "onclick" not in shown.text
        assert "http://" not in shown.text
    assert pages.get("page.css").headers["content-type"].startswith("text/css")
    assert pages.get("page.js").headers["content-type"].startswith("text/javascript")
    assert pages.get("nowhere").status == 404
    assert pages.get("queue", name="nowhere").status == 404
    assert pages.get("queues", page="x").status == 400


def test_a_browser_is_led_to_the_page_and_others_are_told_of_it(pages: Pages) -> None:
    plain = get(pages.address, "/")
    assert (plain.status, "/page the management page" in plain.text) == (200, True)
    assert get(pages.address, "/page").status == 307
    assert pages.browse("/").headers["location"] == "/page/"


def test_the_overview_shows_queues_nodes_and_that_nothing_stands_still(api: Api, pages: Pages) -> None:
    api.put("queues/%2f/seen")
    api.until("queues/%2f/seen", lambda row: len(row["synchronised_slave_nodes"]) == 2)
    assert "nothing stands still" in pages.until("nodes that answer 3 of 3", "")
    assert "1 queue;" in pages.until("seen / running n1 +2", "queues", q="SEE")


def test_a_queues_page_shows_all_its_copies_and_takes_what_its_forms_send(api: Api, pages: Pages) -> None:
    """Goal: publish, purge, delete by forms, with redirect after each. Method: a queue in a virtual host of its own."""
    api.put("vhosts/by%2Fhand")
    api.put("queues/by%2Fhand/a%26b%3F")
    where = {"vhost": "by/hand", "name": "a&b?"}
    assert "published, and confirmed" in pages.done("publish", payload="<i>one</i>", **where)
    text = pages.text("queue", **where)
    assert "ready 1 unacknowledged 0" in text
    for copy in ("n1 master", "n2 mirror", "n3 mirror"):
        assert copy in text
    assert "mqtool purge 'a&b?' --vhost by/hand" in text
    assert "Not done: nothing was done: say that you are sure" in pages.done("purge", **where)
    assert "1 ready records are settled" in pages.done("purge", sure="yes", **where)
    assert "is deleted" in pages.done("delete", sure="yes", **where)
    assert pages.get("queue", **where).status == 404


def test_what_an_action_is_refused_is_told_in_a_line(pages: Pages) -> None:
    told = pages.act("sync", vhost="/", name="missing")
    assert told.status == 303
    shown = get(pages.address, told.headers["location"])
    assert (shown.status, "Not done: " in shown.text) == (404, True)
    assert pages.act("no-such", vhost="/", name="x").status == 400


def test_forms_are_taken_from_this_page_alone(api: Api, pages: Pages) -> None:
    """Goal: no other site drives the cluster through somebody's browser. Method: the headers that a browser sends."""
    api.put("queues/%2f/guarded")
    api.post("exchanges/%2f/amq.default/publish", {"routing_key": "guarded", "payload": "x", "properties": {}})
    fields = {"vhost": "/", "name": "guarded", "sure": "yes"}
    own = f"http://{pages.address}"
    for headers in (
        {},
        {"Origin": "null"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "same-origin"},
        {"Origin": own, "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert pages.act("purge", headers, **fields).status == 403, headers
    assert api.get("queues/%2f/guarded")["messages_ready"] == 1
    assert pages.get("act").status == 404
    assert pages.act("purge", {"Sec-Fetch-Site": "same-origin"}, **fields).status == 303
    assert api.get("queues/%2f/guarded")["messages_ready"] == 0


def test_records_are_browsed_without_being_consumed(api: Api, pages: Pages) -> None:
    """Goal: a look changes nothing. Method: text, markup and bytes; from an offset; and a time before all."""
    api.put("queues/%2f/looked")
    for payload in ("Zm9v", "PGI+", "AP8B"):
        body = {"routing_key": "looked", "payload": payload, "payload_encoding": "base64", "properties": {}}
        api.post("exchanges/%2f/amq.default/publish", body)
    shown = pages.get("browse", name="looked").text
    assert "<pre>foo</pre>" in shown
    assert "<pre>&lt;b&gt;</pre>" in shown
    assert "<pre>00ff01</pre>" in shown
    assert "<pre>foo</pre>" not in pages.get("browse", name="looked", start=1).text
    assert "<pre>foo</pre>" in pages.get("browse", name="looked", start="2026-01-01T00:00:00Z").text
    first = pages.get("browse", name="looked", count=1).text
    assert "Those that follow" in first
    assert pages.get("browse", name="looked", count=101).status == 400
    assert pages.get("browse", name="looked", start="yesterday").status == 400
    row = api.get("queues/%2f/looked")
    assert (row["messages_ready"], row["messages_unacknowledged"], row["consumer_details"]) == (3, 0, [])


def test_a_reset_says_first_what_would_move_and_then_moves_just_that(api: Api, pages: Pages) -> None:
    api.put("queues/%2f/again")
    for _ in range(3):
        api.post("exchanges/%2f/amq.default/publish", {"routing_key": "again", "payload": "x", "properties": {}})
    api.post("queues/%2f/again/get", {"ackmode": "ack_requeue_false", "count": 2})
    text = pages.text("reset", name="again", to="earliest")
    assert "(own) acking 2 0 nobody" in text
    assert api.get("queues/%2f/again")["messages_ready"] == 1
    assert "group (own) stands at 0" in pages.done("reset", name="again", group="", offset="0")
    assert api.get("queues/%2f/again")["messages_ready"] == 3
    for nothing in ("x", "9" * 5_000):
        assert "Not done: " in pages.done("reset", name="again", group="", offset=nothing)
    several = pages.done("reset", name="again", group=["none"] * 1_000, offset=["0"] * 1_000)
    assert "this is no form" not in several
    assert pages.get("reset", name="again", to="nowhere").status == 400
    assert pages.get("reset", name="again", to="earliest", group="none").status == 404


def test_a_policy_is_set_changed_and_cleared_by_a_form_of_typed_values(api: Api, pages: Pages) -> None:
    fields = {"vhost": "/", "policy": "short", "pattern": "^short", "apply-to": "queues", "priority": "3"}
    said = pages.done("set-policy", **fields, **{"key:max-length": "10", "key:overflow": "reject-publish"})
    assert "policy short is set" in said
    row = api.get("policies/%2f/short")
    assert row["definition"] == {"max-length": 10, "overflow": "reject-publish"}
    assert (row["pattern"], row["apply-to"], row["priority"]) == ("^short", "queues", 3)
    form = pages.get("policies", of="/", edit="short").text
    assert 'name="key:max-length" value="10" type="number"' in form
    assert '<option value="reject-publish" selected>reject-publish</option>' in form
    refused = pages.act("set-policy", **fields, **{"key:max-length": "-5", "key:ha-mode": "exactly"})
    again = get(pages.address, refused.headers["location"]).text
    wrong = words_of(again)
    assert "Not done: Validation failed" in wrong
    assert "max-length" in wrong
    assert "ha-params" in wrong
    for typed in ('name="policy" required maxlength="255" value="short"', 'name="key:max-length" value="-5"',
                  'value="^short"', "selected>exactly<", "selected>queues<"):  # fmt: skip
        assert typed in again, typed
    assert "policy short is cleared" in pages.done("clear-policy", vhost="/", policy="short")
    assert api.error("GET", "policies/%2f/short")[0] == 404


def test_a_move_says_first_what_it_would_do(api: Api, pages: Pages) -> None:
    api.put("queues/%2f/goes")
    assert "goes: would move from log main to one of 2-copies" in pages.text("move", name="goes", copies=2)
    assert pages.get("move", name="goes", copies="many").status == 400
    assert "goes: moves from log main" in pages.done("move", name="goes", copies=2, sync="yes")
    api.until("queues/%2f/goes", lambda row: len(row["slave_nodes"]) == 1)


def test_a_connection_is_shown_and_closed_when_that_is_confirmed(cluster: Cluster, pages: Pages) -> None:
    """Goal: who is connected, since when, and who holds what since when; and just the connection goes that was shown.
    Method: a client of another node with a subscription; a form that is not sure, one of a connection that has gone and
    come again by that name, and then the one that the page has."""

    async def story() -> None:
        async with Client(cluster.nodes["n2"].client, role="tool") as client:
            await client.admin.declare("waited")
            async with client.subscribe("waited", name="waiter"), client.producer("waited") as producer:
                await producer.send(b"x")
                await asyncio.to_thread(look)

    def look() -> None:
        pages.until("waiter", "queue", name="waited")
        text = pages.until("waiter", "consumers")
        assert re.search(r"waiter waited \(own\) \S+ 20\S+Z 1 20\S+Z", text), text
        assert "Close it" not in pages.get("connections", q="nobody").text
        page = pages.get("connections", q="mirrorlog-python").text
        found = [
            dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
            for form in re.findall(r"<tr[^>]*>(?:(?!</tr>).)*\(mqtool\).*?</tr>", page, re.DOTALL)
        ]
        assert {each["at"] for each in found} >= {"n2"}
        fields = next(each for each in found if each["at"] == "n2")
        fields = {name: html.unescape(value) for name, value in fields.items() if name != "do"}
        assert "say that you are sure" in pages.done("close-connection", **fields)
        other = {**fields, "since": int(fields["since"]) - 1, "sure": "yes"}
        assert "Not done: node n2 has no connection" in pages.done("close-connection", **other)
        told = pages.done("close-connection", reason="too loud", sure="yes", **fields)
        assert f"connection {fields['connection']} is closed" in told
        assert fields["connection"] not in html.unescape(pages.get("connections").text)

    asyncio.run(story())


def test_a_live_page_sends_itself_and_what_has_changed(api: Api, pages: Pages) -> None:
    """Goal: numbers renew themselves. Method: listen to a queue's page, publish, wait for the event that has it."""
    api.put("queues/%2f/lively")
    page = pages.get("queue", name="lively").text
    assert 'data-live="/page/live?path=queue&amp;name=lively"' in page
    live = "live?path=queue&name=lively"
    pages.until_live("<dt>ready</dt><dd>0</dd>", live)
    api.post("exchanges/%2f/amq.default/publish", {"routing_key": "lively", "payload": "x", "properties": {}})
    pages.until_live("<dt>ready</dt><dd>1</dd>", live)
    for not_live in ("doctor", "consumers", "connections"):
        assert pages.get("live", path=not_live).status == 404
    assert "nobody is subscribed" in pages.text("consumers", vhost="/")
    assert pages.get("live", path="nowhere").status == 404


def test_a_mirror_that_is_gone_is_red_and_first(cluster: Cluster, api: Api, pages: Pages) -> None:
    """Goal: what is wrong is seen first, on the overview, in the list and at the queue. Method: a mirror is stopped."""
    api.put("queues/%2f/aaa")
    cluster.nodes["n3"].stop()
    try:
        text = pages.until("2 of 3", "")
        assert text.index("node n3 (") < text.index("nodes that answer 2 of 3")
        pages.until("+1 +1 not in sync", "queues", q="aaa")
        pages.until("mirror n3 of log main is not connected", "queue", name="aaa")
        pages.until("n3 away", "logs")
        pages.until("node n3 (", "doctor")
        assert {"node_down", "node_stopped"} & set(pages.until("node_", "events").split())
    finally:
        cluster.nodes["n3"].start()
        cluster.wait_in_sync()


def test_while_a_node_hangs_pages_are_there_and_say_so(cluster: Cluster, api: Api) -> None:
    """Goal: a page is there when it is needed most. Method: the master stands still; another node's door is asked."""
    api.put("queues/%2f/hangs")
    pages = Pages(cluster.nodes["n2"].http)
    pages.until("nodes that answer 3 of 3", "")
    cluster.nodes["n1"].pause()
    try:
        for path, query in (("", {}), ("queues", {}), ("queue", {"name": "hangs"}), ("moves", {}), ("doctor", {})):
            assert pages.get(path, **query).status == 200, path
        pages.until("2 of 3", "")
        row = words_of(pages.until_live("did not answer within", "live?path=overview"))
        assert "n1 node n1 did not answer within" in row
    finally:
        cluster.nodes["n1"].resume()
        cluster.wait_in_sync()


def test_forms_that_come_in_slowly_hold_no_page_up(api: Api, pages: Pages) -> None:
    """Goal: what asks and what acts share their turns, and nobody waits for another's body. Method: more forms than
    there are turns, sent but for their last byte; pages and a whole form meanwhile; and then all of them at once."""
    api.put("queues/%2f/crowd")
    body = urlencode({"do": "publish", "vhost": "/", "name": "crowd", "payload": "x"}).encode()
    host, port = split_address(pages.address)
    head = (
        f"POST /page/act HTTP/1.1\r\nHost: {pages.address}\r\nOrigin: http://{pages.address}\r\n"
        f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, port), DEADLINE_S)) for _ in range(2 * AT_ONCE_MAX)]
        for each in slow:
            each.sendall(head + body[:-1])
        assert pages.get("queues").status == 200
        assert "published, and confirmed" in pages.done("publish", name="crowd", payload="whole")
        for each in slow:
            each.sendall(body[-1:])
        assert {each.recv(12) for each in slow} == {b"HTTP/1.1 303"}
    api.until("queues/%2f/crowd", lambda row: row.get("messages_ready") == 2 * AT_ONCE_MAX + 1)


def test_without_users_no_name_is_served_that_somebody_else_can_let_lead_here(api: Api, pages: Pages) -> None:
    """Goal: no page of another site drives a cluster in which everybody is let in. Method: names in `Host`, with and
    without a login, and with the `Origin` that a browser would say."""
    port = pages.address.rpartition(":")[2]
    for host in (f"rebound.example:{port}", "rebound.example", "localhost.example", "[::1", "127.0.0.1.example"):
        told = api.call("GET", "queues", None, Host=host)
        assert told.status == 403, (host, told)
        assert "mqtool user-set" in told.body["reason"]
        assert api.call("PUT", "queues/%2f/evil", {}, Host=host, Origin=f"http://{host}").status == 403
        assert pages.act("rebalance", {"Host": host, "Origin": f"http://{host}"}).status == 403
    for host in (f"localhost:{port}", "LOCALHOST", "[::1]:7404", "192.0.2.7", f"door.localhost:{port}"):
        assert api.call("GET", "queues", None, Host=host).status == 200, host


def test_where_there_are_users_a_page_shows_and_does_what_its_user_may(cluster: Cluster, api: Api) -> None:
    """Goal: the page has no rights of its own. Method: users are made; nobody, one without a tag, one who may only
    look, and an administrator each ask for pages and send a form. Last: it makes the cluster have users."""
    address = cluster.nodes["n1"].http
    api.put("queues/%2f/ours")
    api.put("users/boss", {"password": "guest", "tags": "administrator"})
    boss = Api(address, "boss")
    boss.until("users", bool)
    boss.put("permissions/%2f/boss", {"configure": ".*", "write": ".*", "read": ".*"})
    for user, tag in (("looker", "monitoring"), ("nobody", "")):
        boss.put(f"users/{user}", {"password": "guest", "tags": tag})
        boss.put(f"permissions/%2f/{user}", {"configure": "", "write": "", "read": ""})
    strangers = Pages(address)
    for path in EVERY:
        shown = strangers.get(path)
        assert shown.status == 401
        assert shown.headers["www-authenticate"].startswith("Basic")
    assert strangers.act("delete", vhost="/", name="ours", sure="yes").status == 401
    assert strangers.get("live", path="overview").status == 401
    assert Pages(address, "nobody").get("live", path="overview").status == 403
    assert Pages(address, "boss", "wrong").get("").status == 401
    assert Pages(address, "nobody").get("").status == 403
    assert boss.call("GET", "whoami", None, Host="a.name.example").status == 200
    assert Api(address, None).call("GET", "queues", None, Host="a.name.example").status == 401
    looker = Pages(address, "looker")
    assert "ours" in looker.text("queues")
    text = looker.text("queue", name="ours")
    assert "Its groups are not told to this user" in text
    assert "Browse its records" not in text
    assert "Not done: " in looker.done("purge", name="ours", sure="yes")
    assert "Not done: " in looker.done("delete", name="ours", sure="yes")
    assert "ours" in Pages(address, "boss").text("queues")
    assert "is deleted" in Pages(address, "boss").done("delete", name="ours", sure="yes")
