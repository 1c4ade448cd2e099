"""Records of a queue's groups by hand, on real nodes: receive, groups, purge, group-delete."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from mirrorlog.client import Client, Subscription
from mirrorlog.testing import Cluster
from tests.tools.conftest import Outcome, Tool

pytestmark = pytest.mark.process

NOTHING_CHANGED = "was settled or given back before; nothing changed"


@pytest.fixture
def queue(mqtool: Tool, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own, with five records."""
    name: str = request.node.name.split("[")[0]
    assert mqtool("declare", name).code == 0
    assert mqtool("publish", name, *(part for number in range(5) for part in ("--value", str(number)))).code == 0
    return name


def received(mqtool: Tool, queue: str, *options: str) -> list[tuple[str, int]]:
    found = mqtool("receive", queue, "--wait", "0.3", "--json", *options)
    assert (found.code, found.err) == (0, "")
    return [(each["value"], each["attempts"]) for each in found.json_lines]


def test_what_is_received_is_acknowledged(mqtool: Tool, queue: str) -> None:
    """Goal: taken once. Method: two, the rest, none."""
    assert received(mqtool, queue, "--count", "2") == [("0", 0), ("1", 0)]
    assert received(mqtool, queue) == [("2", 0), ("3", 0), ("4", 0)]
    assert received(mqtool, queue) == []


def test_what_is_given_back_comes_again(mqtool: Tool, queue: str) -> None:
    """Goal: --peek changes nothing, --nack counts, --reject ends it. Method: one after the other."""
    assert received(mqtool, queue, "--peek") == [(str(number), 0) for number in range(5)]
    assert received(mqtool, queue, "--nack", "--count", "2") == [("0", 0), ("1", 0)]
    assert received(mqtool, queue, "--reject", "--count", "1") == [("0", 1)]
    lines = mqtool("receive", queue, "--wait", "0.3").out.splitlines()
    assert lines[0].endswith("\t1\tagain, 1 attempts before")
    assert lines[1].endswith("\t2")
    assert len(lines) == 4


def test_what_is_given_back_with_a_delay_comes_behind_it(mqtool: Tool, queue: str) -> None:
    """Goal: --delay-ms of --nack. Method: one is given back for ten minutes: the others come, it is parked."""
    assert received(mqtool, queue, "--nack", "--delay-ms", "600000", "--count", "1") == [("0", 0)]
    assert [value for value, _ in received(mqtool, queue)] == ["1", "2", "3", "4"]
    [own] = mqtool("groups", queue, "--json").json
    assert (own["parked"], own["unsettled"]) == (1, 1)


def test_who_waits_for_records_is_told_so_once(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: an empty queue looks like none that hangs. Method: two are asked for; each comes once it has been told."""
    assert mqtool("declare", "empty").code == 0
    command = [sys.executable, "-m", "mirrorlog.tools.main", "--servers", cluster.servers[0]]
    options = ("receive", "empty", "--count", "2")
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stderr.readline() == "waiting for records of empty; --wait SECONDS ends it\n"
        assert mqtool("publish", "empty", "--value", "1", "--value", "2").code == 0
        assert len(reading.stdout.readlines()) == 2
        assert (reading.stderr.read(), reading.wait()) == ("", 0)


def test_how_a_reader_stands_among_others_is_asked_for(
    mqtool: Tool, cluster: Cluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: --exclusive, --priority, --prefetch and --read-from reach the node. Method: an exclusive one is kept out by
    a subscriber; a record that comes when two wait goes to the one of the higher priority; two held at once are all
    that a prefetch of two gives; where bytes are to come from is what the client is told."""
    later = f"{queue}.later"
    assert mqtool("declare", later).code == 0

    async def first_of_two() -> Outcome:
        async with Client(*cluster.servers) as client, client.subscribe(later, priority=5):
            options = ("--priority", "9", "--count", "1", "--wait", "30")
            reading = asyncio.create_task(asyncio.to_thread(mqtool, "receive", later, *options))
            async with asyncio.timeout(30), client.producer(later) as producer:
                while (await client.admin.groups(later)).groups[0].subscribers < 2:  # noqa: ASYNC110  (nobody tells)
                    await asyncio.sleep(0.02)
                await producer.send(b"v")
            return await reading

    async def alone() -> Outcome:
        async with Client(*cluster.servers) as client, client.subscribe(queue, prefetch=1):
            return await asyncio.to_thread(mqtool, "receive", queue, "--exclusive", "--wait", "0.1")

    subscribe = Client.subscribe
    asked: dict[str, Any] = {}

    def noting(self: Client, *names: str, **options: Any) -> Subscription:
        asked.update(options)
        return subscribe(self, *names, **options)

    monkeypatch.setattr(Client, "subscribe", noting)
    assert asyncio.run(alone()).code != 0
    assert received(mqtool, queue, "--exclusive", "--peek", "--prefetch", "2") == [("0", 0), ("1", 0)]
    assert asyncio.run(first_of_two()).out.endswith("\tv\n")
    assert len(received(mqtool, queue, "--read-from", "mirror", "--count", "2")) == 2
    assert asked["read_from"] == "mirror"


def test_leased_records_are_settled_by_their_receipts(mqtool: Tool, queue: str) -> None:
    """Goal: a receipt that was kept is of use to whoever has it. Method: five are leased; one each is acknowledged,
    given back, given back unseen, declared dead; the fifth stays, and its lease is extended; then a second time."""
    leased = mqtool("lease", queue, "--count", "5", "--ms", "60000", "--holder", "worker-7", "--json").json_lines
    assert [(each["value"], each["queue"], each["attempts"]) for each in leased] == [
        (str(number), queue, 0) for number in range(5)
    ]
    receipts = [each["receipt"] for each in leased]
    assert mqtool("lease", queue).out == ""
    [held] = mqtool("groups", queue, "--json").json[0]["leases"]
    assert (held["holder"], held["records"]) == ("worker-7", 5)
    assert mqtool("settle", queue, receipts[0]).out == f"{receipts[0]} acknowledged\n"
    assert mqtool("settle", queue, receipts[1], "--nack").out == f"{receipts[1]} given back\n"
    assert mqtool("settle", queue, receipts[2], "--release").out.startswith(f"{receipts[2]} given back as if")
    some = mqtool("settle", queue, receipts[3], "no-receipt", "--reject", "--json")
    assert (some.code, some.json_lines) == (2, [{"receipt": receipts[3], "settled": True}])
    assert mqtool("extend", queue, receipts[4], "--ms", "90000").out.startswith(f"the lease of {receipts[4]} runs for")
    assert received(mqtool, queue) == [("1", 1), ("2", 0)]
    assert mqtool("settle", queue, receipts[0], "--ack").out == f"{receipts[0]} {NOTHING_CHANGED}\n"
    assert mqtool("settle", queue, receipts[4]).code == 0
    assert mqtool("groups", queue, "--json").json[0]["unsettled"] == 0
    over = mqtool("extend", queue, receipts[4], "--ms", "1000")
    assert (over.code, over.err.count("\n")) == (2, 1)


def test_a_lease_of_a_group_has_its_own_receipts(mqtool: Tool, queue: str) -> None:
    """Goal: --group of each of the three, and --delay-ms. Method: a group that is not there is made when asked; its
    receipt is none of the queue's own group; two are given back with a delay in one call, and do not come."""
    missing = mqtool("lease", queue, "--group", "billing")
    assert (missing.code, "--create makes it" in missing.err) == (5, True)
    of = ("--group", "billing")
    line = mqtool("lease", queue, *of, "--create").out
    receipt = line.split("\t")[0]
    assert line.rstrip("\n").endswith("\t0")
    others = [each["receipt"] for each in mqtool("lease", queue, *of, "--count", "2", "--json").json_lines]
    assert mqtool("settle", queue, receipt).code == 2
    assert mqtool("extend", queue, receipt, *of, "--ms", "1000", "--json").json["lease_ms"] == 1000
    assert mqtool("settle", queue, *others, *of, "--nack", "--delay-ms", "600000").out.count("given back") == 2
    assert mqtool("settle", queue, receipt, *of).code == 0
    [billing] = [each for each in mqtool("groups", queue, "--json").json if each["group"] == "billing"]
    assert (billing["floor"], billing["parked"], billing["ready"]) == (1, 2, 2)


def test_groups_are_received_from_and_listed_each(mqtool: Tool, queue: str) -> None:
    """Goal: what each group has before it. Method: one group acks three; both kinds of listing; then it is deleted."""
    assert len(received(mqtool, queue, "--group", "billing", "--create", "--count", "3")) == 3
    [billing] = [each for each in mqtool("groups", queue, "--json").json if each["group"] == "billing"]
    assert (billing["kind"], billing["floor"], billing["unsettled"], billing["queue"]) == ("acking", 3, 2, queue)
    shown = mqtool("groups", queue).out
    assert any(line.split()[:3] == ["billing", "3", "2"] for line in shown.splitlines())
    deleted = mqtool("group-delete", queue, "billing")
    assert deleted.out == f"acking group billing of queue {queue} deleted; it stood at 3\n"
    again = mqtool("group-delete", queue, "billing")
    assert (again.code, "no group 'billing'" in again.err) == (5, True)


def test_a_group_that_is_not_there_is_made_only_when_asked(mqtool: Tool, queue: str) -> None:
    """Goal: a slip makes no group that keeps records for nobody. Method: a name that is not there while there are none
    and while there is one, whose name is told; with --create it is made, and then needs no word; the queue's own never
    does."""
    outcome = mqtool("receive", queue, "--group", "billing", "--wait", "0.3")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (5, "", 1)
    assert f"queue {queue} has no group 'billing', and none with a name that acks; --create makes it" in outcome.err
    assert len(received(mqtool, queue, "--group", "billing", "--create", "--count", "1")) == 1
    outcome = mqtool("receive", queue, "--group", "biling", "--peek", "--vhost", "/")
    assert (outcome.code, "has no group 'biling'; it has billing; --create makes it" in outcome.err) == (5, True)
    assert len(received(mqtool, queue, "--group", "billing")) == 4
    assert [each["group"] for each in mqtool("groups", queue, "--json").json] == ["billing"]
    assert len(received(mqtool, queue)) == 5


def test_a_queue_is_purged(mqtool: Tool, queue: str) -> None:
    """Goal: nothing waits any more, and the stream is as it was. Method: purge twice, receive, consume."""
    assert received(mqtool, queue, "--count", "1") == [("0", 0)]
    assert mqtool("purge", queue, "--json").json == {"queue": queue, "group": "", "records": 4}
    assert mqtool("purge", queue).out == f"0 records purged from queue {queue}\n"
    assert received(mqtool, queue) == []
    assert len(mqtool("consume", queue, "--until-end").out.splitlines()) == 5


def test_dead_letters_are_sent_back(mqtool: Tool, queue: str) -> None:
    """Goal: what was rejected is back in its queue. Method: one queue leads to another; reject two of five, redrive one
    and then the rest; to another queue nothing is left."""
    dead = f"{queue}.dead"
    source = f"{queue}.source"
    assert mqtool("declare", dead).code == 0
    way = ["--arg", "x-dead-letter-exchange=", "--arg", f"x-dead-letter-routing-key={dead}"]
    assert mqtool("declare", source, *way).code == 0
    assert mqtool("publish", source, "--value", "v").code == 0
    assert received(mqtool, source, "--reject", "--count", "1") == [("v", 0)]
    assert received(mqtool, dead, "--peek", "--count", "1", "--wait", "20") == [("v", 0)]
    assert mqtool("redrive", dead, "--json").json == {"queue": dead, "to": "", "records": 1}
    assert received(mqtool, source, "--count", "1", "--wait", "20") == [("v", 0)]
    assert mqtool("redrive", dead, "--to", queue).out == "no record waits\n"
    assert mqtool("publish", dead, "--value", "a", "--value", "b").code == 0
    told = f"up to 2 records are looked at; each that may go leaves for queue {queue}\n"
    assert mqtool("redrive", dead, "--to", queue).out == told


def test_a_queue_of_another_virtual_host_is_another_one(mqtool: Tool, queue: str) -> None:
    """Goal: --vhost of each command. Method: the same name there, without records; what is not there is told."""
    assert mqtool("vhost-add", "mine").code == 0
    assert mqtool("declare", queue, "--vhost", "mine").code == 0
    assert received(mqtool, queue, "--vhost", "mine", "--group", "g", "--create") == []
    assert mqtool("purge", queue, "--vhost", "mine").out.startswith("0 records purged")
    assert mqtool("groups", queue, "--vhost", "mine", "--json").json[0]["unsettled"] == 0
    assert mqtool("group-delete", queue, "g", "--vhost", "mine").code == 0
    assert received(mqtool, queue, "--count", "1") == [("0", 0)]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["receive", "no-such-queue"], 5, "mqtool declare no-such-queue"),
        (["purge", "no-such-queue"], 5, "mqtool declare no-such-queue"),
        (["redrive", "no-such-queue"], 5, "mqtool declare no-such-queue"),
        (["redrive", "q", "--max", "0"], 2, "--max"),
        (["group-delete", "no-such-queue", "g"], 5, "mqtool declare no-such-queue"),
        (["receive", "q", "--nack", "--peek"], 2, "exclude each other"),
        (["receive", "q", "--count", "0"], 2, "--count"),
        (["receive", "q", "--delay-ms", "5"], 2, "--nack"),
        (["receive", "q", "--peek", "--delay-ms", "5"], 2, "--nack"),
        (["receive", "q", "--prefetch", "0"], 2, "--prefetch"),
        (["lease", "no-such-queue"], 5, "mqtool declare no-such-queue"),
        (["lease", "q", "--ms", "0"], 2, "--ms"),
        (["settle", "q", "no-receipt"], 2, "no receipt"),
        (["settle", "q", "1-1-00000000"], 2, "something else"),
        (["settle", "q", "1-1-00000000", "--ack", "--nack"], 2, "exclude each other"),
        (["settle", "q", "1-1-00000000", "--delay-ms", "5"], 2, "--delay-ms"),
        (["settle", "q"], 2, "receipts"),
        (["extend", "q", "no-receipt", "--ms", "5"], 2, "no receipt"),
        (["extend", "q", "1-1-00000000"], 2, "--ms"),
        (["declare", "alone", "--arg", "exclusive=true"], 2, "exclusive"),
        (["group-delete", "q", ""], 2, "own group"),
    ],
)
def test_a_mistake_is_one_line_with_its_exit_code(mqtool: Tool, arguments: list[str], code: int, text: str) -> None:
    """Goal: every wrong call ends at once and says what is wrong. Method: one of each kind."""
    mqtool("declare", "q")
    outcome = mqtool(*arguments)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert outcome.err.startswith("mqtool: ")
    assert text in outcome.err
