"""Queues are made and listed, nodes are listed: on real nodes."""

import pytest

from mirrorlog.testing import Cluster
from tests.tools.conftest import Tool

pytestmark = pytest.mark.process


def test_a_queue_is_made_once(mqtool: Tool) -> None:
    """Goal: declaring is idempotent, and a difference is an error. Method: the same twice, then other arguments."""
    arguments = ("--arg", "retention_ms=604800000", "--arg", "flush=memory")
    made = mqtool("declare", "made", *arguments, "--json")
    assert made.code == 0
    assert made.json["arguments"] == {"retention_ms": 604_800_000, "flush": "memory"}
    again = mqtool("declare", "made", *arguments)
    assert again.code == 0
    assert again.out.startswith(f"queue made is there: id {made.json['queue_id']}, master n1")
    different = mqtool("declare", "made", "--arg", "retention_ms=5", "--arg", "flush=memory")
    assert different.code == 6
    assert "retention_ms=604800000" in different.err


def test_how_long_a_queue_lives_is_said_by_options(mqtool: Tool) -> None:
    """Goal: each option is the argument that it stands for. Method: all of them; a wrong value; a name that the node
    makes; a queue that is not durable with what it cannot have."""
    options = ("--auto-delete", "--expires", "600000")
    made = mqtool("declare", "short-lived", *options, "--json")
    assert made.json["arguments"] == {"auto-delete": True, "x-expires": 600_000}
    assert made.json["mirrors"] == []
    assert mqtool("declare", "short-lived", *options).code == 0
    different = mqtool("declare", "short-lived")
    assert different.code == 6
    assert "auto-delete=True" in different.err
    assert mqtool("declare", "wrong", "--expires", "0").code == 2
    wrong = mqtool("declare", "wrong", "--not-durable", "--arg", "copies=2")
    assert (wrong.code, "not durable" in wrong.err) == (2, True)
    unnamed = mqtool("declare", "", "--json")
    assert unnamed.json["name"].startswith("amq.gen-")
    assert mqtool("queues", unnamed.json["name"]).code == 0


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("retentions=7d", "did you mean retention"),
        ("x-max-age=7D", "not known yet"),
        ("copies=99999999999999999999", "does not fit into 64 bits"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(mqtool: Tool, cluster: Cluster, argument: str, told: str) -> None:
    """Goal: nobody believes in a setting that does nothing. Method: a wrong name and one of RabbitMQ's, through a
    mirror too; no queue is made."""
    for name in ("n1", "n2"):
        outcome = mqtool("declare", "never", "--arg", argument, servers=[cluster.nodes[name].client])
        assert outcome.code == 2, name
        assert told in outcome.err
        assert outcome.err.count("\n") == 1
    assert mqtool("queues", "never").code == 5


def test_a_mirror_passes_a_declaration_on(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: any server will do. Method: declare through a mirror."""
    assert mqtool("declare", "through-a-mirror", servers=[cluster.nodes["n2"].client]).code == 0


def test_a_name_that_cannot_be_is_refused(mqtool: Tool) -> None:
    """Goal: the node's rule reaches the user. Method: a control character."""
    outcome = mqtool("declare", "a\nb")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1


def test_queues_are_listed_by_name(mqtool: Tool) -> None:
    """Goal: all, or those asked for. Method: two queues, as a table and as JSON."""
    for name in ("listed-1", "listed-2"):
        mqtool("declare", name)
    table = mqtool("queues").out
    assert "listed-1" in table
    assert "n1 > n2, n3" in table
    assert [queue["name"] for queue in mqtool("queues", "listed-2", "--json").json] == ["listed-2"]


def test_an_unknown_queue_is_an_error(mqtool: Tool) -> None:
    """Goal: an empty list means no queues, never a typo. Method: a name that is none."""
    outcome = mqtool("queues", "no-such-queue")
    assert outcome.code == 5
    assert "mqtool declare no-such-queue" in outcome.err


def test_nodes_tell_role_and_addresses(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: the assignment is shown as it is. Method: compare with the cluster's configuration."""
    told = mqtool("nodes", "--json").json
    found = told["nodes"]
    assert told["warnings"] == []
    assert (told["asked"] in cluster.nodes, told["coordinator"] in cluster.nodes) == (True, True)
    assert sorted(node["role"] for node in found) == ["coordinator", "voter", "voter"]
    assert [(node["life"], node["kind"]) for node in found] == [("up", "clean")] * 3
    assert [(node["node_id"], node["roles"], node["answers"]) for node in found] == [
        ("n1", {"main": "master"}, True),
        ("n2", {"main": "mirror"}, True),
        ("n3", {"main": "mirror"}, True),
    ]
    assert [node["client"] for node in found] == cluster.servers
    table = mqtool("nodes", "--node", "n2").out
    assert "as n2 knows them" in table
    assert all(node.client in table for node in cluster.nodes.values())


def test_a_dead_node_is_listed_with_its_role(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: who is down is said plainly. Method: kill a mirror, list, start it again."""
    node = cluster.nodes["n3"]
    node.kill()
    try:
        dead = mqtool("nodes", "--json").json["nodes"][2]
        assert (dead["answers"], dead["roles"]) == (False, {"main": "mirror"})
        assert node.client in dead["error"]
        assert "n3 does not answer: " in mqtool("nodes").out
    finally:
        node.start()
        cluster.wait_in_sync()


def test_an_alteration_says_what_it_would_take_away(mqtool: Tool) -> None:
    """Goal: a mistyped node or number is seen before it costs a copy. Method: only asked for, and a declaration with a
    node that is not there; --cancel with --sync; a number that nothing can carry."""
    assert mqtool("declare", "altered").code == 0
    planned = mqtool("alter-queue", "altered", "--arg", 'nodes=["n1","zz"]', "--dry-run")
    assert (planned.code, planned.err) == (0, "NOTED  no node 'zz' yet; copies are on: n1\n")
    assert "; copies: 3 now, 1 then" in planned.out
    made = mqtool("declare", "mistyped", "--arg", 'nodes=["n2","zz","n1","n3"]', "--json")
    assert (made.code, made.err) == (0, "NOTED  no node 'zz' yet; copies are on: n2, n1, n3\n")
    assert mqtool("delete", "mistyped").code == 0
    both = mqtool("alter-queue", "altered", "--cancel", "--sync")
    assert (both.code, both.err.count("\n"), "--cancel stands alone" in both.err) == (2, 1, True)
    huge = mqtool("alter-queue", "altered", "--arg", "copies=99999999999999999999")
    assert (huge.code, huge.err.count("\n"), "arguments.copies" in huge.err) == (2, 1, True)


def test_a_queue_may_ask_for_all_copies_by_that_word(mqtool: Tool) -> None:
    """Goal: as many as there are nodes, and the same queue whenever it is declared so. Method: twice; by the number."""
    for argument in ("copies=all", "copies=all", "copies=255"):
        made = mqtool("declare", "everywhere", "--arg", argument, "--json")
        assert (made.code, made.json["arguments"], len(made.json["mirrors"])) == (0, {"copies": 255}, 2)
    assert mqtool("declare", "nowhere", "--arg", "copies=most").code == 2
