"""Exchanges, bindings, virtual hosts and users from the command line, on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from mirrorlog.testing import Cluster
from mirrorlog.tools.common.output import page
from mirrorlog.tools.main import main
from mirrorlog.tools.topology.exchanges import bindings_view, exchanges_view, vhosts_view
from mirrorlog.tools.user import limits_view, users_view
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.messages.topology import PermissionInfo, Routing, UserInfo, VirtualHostInfo
from mirrorlog.wire.routing import Binding, Exchange
from tests.tools.conftest import SEGMENT_BYTES, Tool
from tests.tools.goldens import golden

ROUTING = Routing(
    version=7,
    exchanges={
        "orders": Exchange("topic", alternate="spare"),
        "spare": Exchange("fanout", durable=False, auto_delete=True, internal=True),
    },
    bindings=[
        Binding("orders", "invoices", "orders.*.paid"),
        Binding("orders", "amq.match", "#", to_exchange=True),
        Binding("amq.match", "reports", arguments={"x-match": "any", "size": 7}),
    ],
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("exchanges.txt", page(exchanges_view(ROUTING))),
        ("bindings.txt", page(bindings_view(ROUTING.bindings))),
        (
            "vhosts.txt",
            page(vhosts_view([VirtualHostInfo(name="/", version=12, exchanges=2, bindings=3, queues=10)])),
        ),
        (
            "users.txt",
            page(
                users_view(
                    [
                        UserInfo(name="alice", tags=["administrator"], permissions=[]),
                        UserInfo(
                            name="bob",
                            tags=[],
                            permissions=[
                                PermissionInfo(virtual_host="/", configure="", write="^orders", read=".*"),
                                PermissionInfo(virtual_host="shop", configure=".*", write=".*", read=".*"),
                            ],
                        ),
                    ]
                )
            ),
        ),
        (
            "user_limits.txt",
            page(
                limits_view(
                    [
                        UserInfo(name="alice", tags=[], permissions=[]),
                        UserInfo(
                            name="bob",
                            tags=[],
                            permissions=[],
                            limits=UserLimits(max_connections=20, publish_byte_rate=10_000_000),
                        ),
                    ]
                )
            ),
        ),
    ],
)
def test_a_view_is_printed_as_recorded(name: str, text: str) -> None:
    """Goal: the layout changes on purpose only. Method: compare with the golden text."""
    assert text == golden(name, text)


@pytest.mark.long
def test_exchanges_and_bindings_come_and_go(mqtool: Tool) -> None:
    """Goal: each verb does what it says, twice as once, and its mistakes have exit codes. Method: in the order of a
    user's day."""
    assert mqtool("declare", "cli-q").code == 0
    declare = ("exchange-declare", "cli-e", "--kind", "topic", "--alternate", "amq.fanout")
    for _ in range(2):
        made = mqtool(*declare)
        assert (made.code, made.out) == (0, "exchange cli-e is there: topic\n")
    other = mqtool("exchange-declare", "cli-e")
    assert (other.code, other.err) == (
        6,
        "mqtool: exchange 'cli-e' is there with other properties: kind is 'topic', not 'direct'; "
        "alternate is 'amq.fanout', not ''\n",
    )
    late = ("cli-late", "--kind", "x-delayed-message", "--arg", "x-delayed-type=topic")
    assert mqtool("exchange-declare", *late).code == 0
    assert "x-delayed-message" in mqtool("exchanges").out
    bind = ("cli-e", "cli-q", "--key", "k.*")
    assert mqtool("bind", *bind).out == "exchange cli-e leads to cli-q\n"
    assert mqtool("bind", "amq.match", "cli-e", "--to-exchange", "--arg", "size=7").code == 0
    found = mqtool("bindings", "cli-e", "--json").json
    assert found == [
        {"source": "amq.match", "destination": "cli-e", "to_exchange": True, "arguments": {"size": 7}},
        {"source": "cli-e", "destination": "cli-q", "key": "k.*"},
    ]
    assert mqtool("bind", "cli-e", "no-queue").code == 5
    assert mqtool("exchange-delete", "cli-e", "--if-unused").code == 6
    assert mqtool("unbind", *bind).code == 0
    assert mqtool("unbind", "amq.match", "cli-e", "--to-exchange", "--arg", "size=7").code == 0
    assert mqtool("bindings", "cli-e", "--json").json == []
    assert mqtool("bindings", "cli-q", "--json").json == []
    assert mqtool("bindings", "amq.fanout", "--json").json == []
    nobody = mqtool("bindings", "cli-nope")
    assert (nobody.code, nobody.err) == (5, "mqtool: there is no exchange and no queue 'cli-nope'\n")
    assert mqtool("exchange-delete", "cli-e", "--if-unused").code == 0
    assert mqtool("exchange-delete", "cli-e", "--if-unused").code == 5
    assert "cli-e" not in mqtool("exchanges", "--json").json
    assert "amq.topic" in mqtool("exchanges").out


def test_virtual_hosts_come_and_go(mqtool: Tool) -> None:
    assert mqtool("vhost-add", "cli-shop").code == 0
    assert mqtool("exchange-declare", "here", "--vhost", "cli-shop").code == 0
    assert "here" in mqtool("exchanges", "--vhost", "cli-shop", "--json").json
    assert "here" not in mqtool("exchanges", "--json").json
    assert "cli-shop" in mqtool("vhosts").out
    assert mqtool("bind", "here", "shop-q", "--vhost", "cli-shop").code == 5
    assert mqtool("vhost-delete", "cli-shop").code == 0
    assert mqtool("exchanges", "--vhost", "cli-shop").code == 5
    assert mqtool("vhost-delete", "/").code != 0


@pytest.fixture
def alone() -> Iterator[Cluster]:
    """A cluster that gets users: nobody else may be on it."""
    with Cluster(1, segment_bytes=SEGMENT_BYTES) as cluster:
        yield cluster


@pytest.mark.long
def test_users_log_in_and_get_permissions(
    alone: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: from nobody to an administrator to a user with permissions, by commands alone. Method: passwords come by
    the environment, as scripts have them; none is on a command line."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--servers", ",".join(alone.servers), *arguments])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    monkeypatch.setenv("MIRRORLOG_NEW_PASSWORD", "secret")
    monkeypatch.delenv("MIRRORLOG_PASSWORD", raising=False)
    assert run("user-set", "alice")[0] == 6, "the first one has to be an administrator"
    assert run("user-set", "alice", "--tag", "administrator")[:2] == (0, "user alice is set\n")
    code, _, told = run("users")
    assert (code, "log in first" in told) == (18, True)
    monkeypatch.setenv("MIRRORLOG_PASSWORD", "wrong")
    assert run("--user", "alice", "users")[0] == 18
    monkeypatch.setenv("MIRRORLOG_PASSWORD", "secret")
    as_alice = ("--user", "alice")
    assert run(*as_alice, "user-set", "bob", "--tag", "monitoring")[0] == 0
    assert run(*as_alice, "user-permissions", "bob", "--write", "^orders")[0] == 0
    assert run(*as_alice, "user-permissions", "bob", "--read", "(a+)+")[0] == 2
    code, out, _ = run(*as_alice, "users")
    assert (code, "^orders" in out) == (0, True)
    assert run(*as_alice, "user-limits", "bob", "--max-connections", "9", "--read-byte-rate", "5000000")[:2] == (
        0,
        "limits of user bob are set\n",
    )
    limits = {"max_connections": 9, "request_rate": None, "publish_byte_rate": None, "read_byte_rate": 5_000_000}
    code, out, _ = run(*as_alice, "user-limits", "bob", "--json")
    assert (code, json.loads(out)) == (0, [{"user": "bob", **limits}])
    assert [each["user"] for each in json.loads(run(*as_alice, "user-limits", "--json")[1])] == ["alice", "bob"]
    assert "5000000" in run(*as_alice, "user-limits")[1]
    assert run(*as_alice, "user-limits", "bob", "--request-rate", "0")[0] == 2
    assert run(*as_alice, "user-limits", "--request-rate", "7")[0] == 2
    assert run(*as_alice, "user-limits", "bob", "--clear", "--request-rate", "7")[0] == 2
    assert run(*as_alice, "user-limits", "carol")[0] == run(*as_alice, "user-limits", "carol", "--clear")[0] == 5
    assert run("--user", "bob", "user-limits")[0] == 18
    assert run(*as_alice, "user-limits", "bob", "--clear")[:2] == (0, "limits of user bob are cleared\n")
    assert json.loads(run(*as_alice, "user-limits", "bob", "--json")[1]) == [{"user": "bob", **dict.fromkeys(limits)}]
    assert run("--user", "bob", "declare", "orders")[0] == 18
    assert run("--user", "bob", "vhosts")[0] == 0
    assert run(*as_alice, "user-set", "bob")[0] == 0, "another password"
    assert run("--user", "bob", "vhosts")[0] == 0, "the tags stay"
    assert run(*as_alice, "user-set", "bob", "--no-tags", "--tag", "monitoring")[0] == 2
    assert run(*as_alice, "user-set", "bob", "--keep-password", "--no-tags")[0] == 0
    assert run("--user", "bob", "vhosts")[0] == 18
    assert run(*as_alice, "user-permissions", "bob", "--clear")[0] == 0
    assert run(*as_alice, "user-delete", "alice")[0] == 6
    assert run(*as_alice, "user-delete", "bob")[0] == 0
    assert run(*as_alice, "user-delete", "alice")[0] == 0
    assert run("vhosts")[0] == 0
