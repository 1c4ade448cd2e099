"""Publishing to exchanges, and queues of virtual hosts, from the command line, on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.testing import Cluster
from tests.tools.conftest import Tool

pytestmark = pytest.mark.process


@pytest.mark.long
def test_a_record_is_routed_and_what_became_of_it_is_told(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: every option of an exchange from the command line. Method: a topic exchange with two queues; one record
    for both, one for one of them, one for none: dropped, or an error. A second run is as the first."""
    for queue in ("rt-1", "rt-2"):
        mqtool("declare", queue)
    mqtool("exchange-declare", "rt", "--kind", "topic")
    mqtool("bind", "rt", "rt-1", "--key", "a.#")
    mqtool("bind", "rt", "rt-2", "--key", "*.b")
    both = mqtool("publish", "--exchange", "rt", "--key", "a.b", "--value", "1", "--header", "n=v")
    assert both.out == (
        "1 record confirmed in rt-1: queue offsets 0 to 0, copies 3\n"
        "1 record confirmed in rt-2: queue offsets 0 to 0, copies 3\n"
    )
    one = mqtool("publish", "--exchange", "rt", "--key", "a.c", "--value", "2", "--value", "3", "--json").json
    assert one == {
        "exchange": "rt",
        "records": 2,
        "unroutable": 0,
        "queues": [{"queue": "rt-1", "records": 2, "first": 1, "last": 2, "copies": 3}],
    }
    none = mqtool("publish", "--exchange", "rt", "--key", "x", "--value", "4", "--value", "5")
    assert (none.code, none.out) == (0, "2 records led to no queue and were dropped\n")
    told = mqtool("publish", "--exchange", "rt", "--key", "x", "--value", "4", "--mandatory")
    assert told.code != 0
    assert "no binding of exchange 'rt' leads key 'x' to a queue" in told.err
    records = mqtool("consume", "rt-1", "--until-end", "--json").json_lines
    assert [(each["value"], each["key"]) for each in records] == [("1", "a.b"), ("2", "a.c"), ("3", "a.c")]
    assert records[0]["headers"] == [{"name": "n", "value": "v"}]
    assert mqtool("publish", "--exchange", "rt", "--key", "a.b", "--value", "6").code == 0
    default = mqtool("publish", "--exchange", "", "--key", "rt-2", "--value", "7", "--json").json
    assert [each["queue"] for each in default["queues"]] == ["rt-2"]
    missing = mqtool("publish", "--exchange", "no-such", "--value", "1")
    assert missing.code != 0
    assert "no exchange 'no-such'" in missing.err


@pytest.mark.long
def test_priority_and_times_go_with_each_record(mqtool: Tool) -> None:
    """Goal: what is asked for is stored. Method: a queue, and an exchange; read back as JSON."""
    mqtool("declare", "attr")
    options = ("--priority", "7", "--ttl-ms", "60000", "--delay-ms", "5", "--value", "v")
    assert mqtool("publish", "attr", *options).code == 0
    assert mqtool("publish", "--exchange", "", "--key", "attr", *options).code == 0
    records = mqtool("consume", "attr", "--until-end", "--json").json_lines
    assert [(each["priority"], each["ttl_ms"], each["delay_ms"]) for each in records] == [(7, 60_000, 5)] * 2
    for wrong in (("--priority", "256"), ("--ttl-ms", "-1"), ("--delay-ms", "-1")):
        refused = mqtool("publish", "attr", "--value", "v", *wrong)
        assert refused.code == 2, refused
        assert wrong[0].strip("-").replace("-", "_") in refused.err


def test_records_that_were_printed_are_routed_by_their_keys(mqtool: Tool, tmp_path: Path) -> None:
    """Goal: what was consumed can be published to an exchange. Method: two records with keys of two queues; one whose
    key is no text is an error, after those before it."""
    for queue in ("by-key-1", "by-key-2"):
        mqtool("declare", queue)
    file = tmp_path / "records"
    file.write_text('{"value": "1", "key": "by-key-1"}\n{"value": "2", "key": "by-key-2"}\n')
    sent = mqtool("publish", "--exchange", "", "--records", str(file), "--json").json
    assert {each["queue"] for each in sent["queues"]} == {"by-key-1", "by-key-2"}
    with file.open("a") as more:
        more.write('{"value": "3", "key_base64": "/w=="}\n')
    refused = mqtool("publish", "--exchange", "", "--records", str(file))
    assert refused.code == 2
    assert "no UTF-8" in refused.err
    assert refused.out.startswith("1 record confirmed in by-key-1")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "give a queue, or an exchange"),
        (("q", "--mandatory"), "--mandatory is for --exchange"),
        (("--exchange", "e", "--records", "-", "--key", "k"), "leave those options out"),
        (("q", "--records", "-", "--ttl-ms", "5"), "leave those options out"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_sent(mqtool: Tool, options: tuple[str, ...], why: str) -> None:
    value = () if "--records" in options else ("--value", "v")
    outcome = mqtool("publish", *options, *value)
    assert outcome.code == 2
    assert why in outcome.err


@pytest.mark.long
def test_every_verb_reaches_queues_of_a_virtual_host(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: two queues of one name are told apart. Method: the same name in the default virtual host and in another;
    each verb there, and without."""
    here = ("--vhost", "shop")
    mqtool("vhost-add", "shop")
    mqtool("declare", "twin")
    mqtool("declare", "twin", *here)
    mqtool("declare", "only-here", *here)
    mqtool("publish", "twin", "--value", "default")
    sent = mqtool("publish", "twin", "--value", "a", "--value", "b", *here, "--json").json
    assert (sent["queue"], sent["records"]) == ("twin", 2)
    routed = mqtool("publish", "--exchange", "amq.direct", "--key", "k", "--value", "c", *here)
    assert routed.out == "1 record led to no queue and was dropped\n"
    mqtool("bind", "amq.direct", "twin", "--key", "k", *here)
    assert "confirmed in twin" in mqtool("publish", "--exchange", "amq.direct", "--key", "k", "--value", "c", *here).out

    def values(*options: str) -> list[str]:
        return [each["value"] for each in mqtool(*options, "--json").json_lines]

    assert values("consume", "twin", "--until-end") == ["default"]
    assert values("consume", "twin", "--until-end", *here) == ["a", "b", "c"]
    assert values("tail", "twin", "-n", "2", "--no-follow", *here) == ["b", "c"]
    assert mqtool("find-offset", "twin", "2999-01-01", *here).out == "3\n"
    named = mqtool("queues", "twin", *here, "--json").json
    assert [(each["name"], each["next"]) for each in named] == [("shop\x1ftwin", 3)]
    listed = mqtool("queues", *here, "--json").json
    assert sorted(each["name"] for each in listed) == ["shop\x1fonly-here", "shop\x1ftwin"]
    assert "twin" in [each["name"] for each in mqtool("queues", "--json").json]
    missing = mqtool("queues", "none", *here)
    assert "no queue 'none' in virtual host shop; make it with: mqtool declare none --vhost shop" in missing.err
    logs = mqtool("offsets", "--queue", "twin", *here, "--json").json["nodes"][0]["logs"]
    assert [each["name"] for log in logs for each in log["queues"]] == ["shop\x1ftwin"]
    logs = mqtool("offsets", *here, "--json").json["nodes"][0]["logs"]
    assert {each["name"] for log in logs for each in log["queues"]} == {"shop\x1ftwin", "shop\x1fonly-here"}
    with Client(cluster.servers[0]) as client:
        client.admin.set_hold("shop\x1ftwin", "lake", queue_offset=0, holder="h", lease_ms=60_000)
    assert [each["name"] for each in mqtool("landings", "twin", *here, "--json").json] == ["lake"]
    assert [each["name"] for each in mqtool("landings", *here, "--json").json] == ["lake"]
    assert mqtool("landings", "twin", "--json").json == []
    assert mqtool("landing-end", "twin", "lake").code != 0
    ended = mqtool("landing-end", "twin", "lake", *here)
    assert (ended.code, ended.out) == (0, "landing lake of queue twin ended; h held it from 0 on\n")


def test_names_of_queues_that_begin_with_amq_are_reserved(mqtool: Tool) -> None:
    """Goal: nobody takes what nodes give out, or may come to. Method: such a name, here and in a virtual host."""
    mqtool("vhost-add", "reserving")
    for options in ((), ("--vhost", "reserving")):
        refused = mqtool("declare", "amq.mine", *options)
        assert refused.code == 18
        assert "names that begin with amq. are reserved" in refused.err
    assert mqtool("declare", "amqp").code == 0
