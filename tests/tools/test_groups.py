"""`mqtool groups`: who takes from the groups that ack, on real nodes and from the master's answer."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from mirrorlog.tools.common.output import page
from mirrorlog.tools.group import consumers_view
from mirrorlog.wire.messages.groups import ConsumerInfo, GroupInfo, LeaseInfo
from tests.tools.conftest import Outcome, Tool


@pytest.mark.process
def test_who_takes_from_a_group_is_listed(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: a lease's holder, a subscription's name and all else that the master says, for programs and people. Method:
    a lease and two subscribers that have names, one of which waits."""
    mqtool("declare", "taken")
    mqtool("publish", "taken", *(part for number in range(3) for part in ("--value", str(number))))

    async def look() -> tuple[Outcome, Outcome]:
        async with Client(*cluster.servers) as client:
            await client.lease("taken", max_records=1, lease_ms=600_000, holder="worker-7")
            async with (
                client.subscribe("taken", name="billing", priority=2) as billing,
                client.subscribe("taken", name="spare"),
            ):
                await anext(billing)
                return await asyncio.to_thread(mqtool, "groups", "taken", "--json"), await asyncio.to_thread(
                    mqtool, "groups", "taken"
                )

    for_programs, for_people = asyncio.run(look())
    [own] = for_programs.json
    assert [(each["name"], each.get("priority", 0)) for each in own["consumers"]] == [("billing", 2), ("spare", 0)]
    [lease] = own["leases"]
    assert (lease["holder"], lease["records"]) == ("worker-7", 1)
    assert 0 < lease["ends_in_ms"] <= 600_000
    assert (own["queue"], own["kind"], own["subscribers"], own["leased"]) == ("taken", "acking", 2, 1)
    assert {"departing", "departing_waits", "waiting", "alone", "idle_for_another", "due_ms", "gone"} <= own.keys()
    rows = [line.split() for line in for_people.out.splitlines()]
    assert any(row[:2] == ["(own)", "billing"] and row[-1] == "ago" for row in rows)
    assert any(row[:3] == ["(own)", "worker-7", "1"] for row in rows)
    billing = own["consumers"][0]
    assert 0 < billing["since_us"] <= billing["held_since_us"]
    assert billing["connection"].startswith(f"{billing['peer']} -> ")
    assert "held_since_us" not in own["consumers"][1]
    assert 0 < lease["since_us"] <= billing["since_us"]


@pytest.mark.process
def test_what_waits_in_groups_is_told_of_all_queues_at_once(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: ready, with somebody, delayed, dead, how old, how fast: of each queue and group, in one list. Method: two
    queues; a group with a name has records in hand, one delayed and one acknowledged; one of the queue's own died."""
    mqtool("declare", "flow.dead")
    mqtool("declare", "flow", "--arg", "x-dead-letter-exchange=", "--arg", "x-dead-letter-routing-key=flow.dead")
    records = [part for number in range(5) for part in ("--value", str(number))]

    async def look() -> tuple[Outcome, Outcome, Outcome]:
        async with (
            asyncio.timeout(60),
            Client(*cluster.servers) as client,
            client.subscribe("flow.dead") as dead,
            client.subscribe("flow", prefetch=1) as own,
            client.subscribe("flow", "billing", create=True) as billing,
        ):
            await asyncio.to_thread(mqtool, "publish", "flow", *records)
            mine = [await anext(billing) for _ in range(5)]
            mine[0].ack_nowait()
            mine[1].nack_nowait(delay_ms=600_000)
            await billing.flush()
            (await anext(own)).nack_nowait(requeue=False)
            await anext(dead)
            commands = (("groups", "--json"), ("groups",), ("queues", "flow", "--json"))
            return tuple([await asyncio.to_thread(mqtool, *each) for each in commands])  # type: ignore[return-value]

    groups, shown, queues = asyncio.run(look())
    rows = {(row["queue"], row["group"]): row for row in groups.json if row.get("kind") == "acking"}
    billing = rows["flow", "billing"]
    waiting = ("ready", "unacknowledged", "delayed", "dead_lettered", "consumers")
    assert [billing[name] for name in waiting] == [0, 3, 1, 0, 1], billing
    assert billing["oldest_age_ms"] > 0
    assert billing["deliver_rate"] > billing["ack_rate"] > 0
    assert any(line.split()[:4] == ["flow", "billing", "0", "3"] for line in shown.out.splitlines())
    [queue] = queues.json
    assert (
        [queue["waiting"][name] for name in waiting] == [rows["flow", ""][name] for name in waiting] == [3, 1, 0, 1, 1]
    )
    assert queue["waiting"]["publish_rate"] > 0


@pytest.mark.process
def test_a_forced_reset_of_a_stream_group_says_that_its_reader_undoes_it(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: nobody believes that a running reader goes back. Method: one that has read and stored its position; a reset
    is refused, one by force says what will happen, and it does: the reader's next commit counts. An acking group's
    subscribers are ended, so nothing is said of them."""
    mqtool("declare", "streamed")
    mqtool("publish", "streamed", *(part for number in range(4) for part in ("--value", str(number))))

    async def story() -> tuple[Outcome, Outcome, int]:
        async with Client(*cluster.servers) as client:
            async with client.consumer("streamed", group="s") as consumer:
                await consumer.read(3, timeout_ms=10_000)
                await consumer.commit()
                arguments = ("group-reset", "streamed", "s", "--to", "earliest")
                refused = await asyncio.to_thread(mqtool, *arguments)
                forced = await asyncio.to_thread(mqtool, *arguments, "--force")
                assert (await _position(client)) == 0
                await consumer.read(1, timeout_ms=10_000)
                await consumer.commit()
            return refused, forced, await _position(client)

    refused, forced, position = asyncio.run(story())
    assert (refused.code, "active" in refused.err or "heard" in refused.err) == (6, True)
    text = " ".join(forced.out.split())
    assert "it stores its old position again: stop it, and reset once more" in text
    assert position == 4


async def _position(client: Client) -> int:
    stored = await client.admin.position("streamed", "s")
    assert stored is not None
    return stored.queue_offset


def test_names_cannot_move_a_terminal() -> None:
    """Goal: what others chose is text. Method: escape codes as holder and name; no table where nobody is."""
    group = GroupInfo(
        group="g",
        kind="acking",
        floor=0,
        leases=[LeaseInfo(lease=1, records=2, holder="\x1b[2J")],
        consumers=[ConsumerInfo(peer="10.0.0.1:5", name="a\nb", in_hand=4, alone=True)],
    )
    text = "".join(page(view) for view in consumers_view([group]))
    assert "\x1b" not in text
    assert "\\x1b[2J" in text
    assert "a\\nb" in text
    assert consumers_view([GroupInfo(group="g", kind="acking", floor=0)]) == []
