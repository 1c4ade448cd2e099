"""Resets of groups by the client, awaited and in step, on real nodes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from mirrorlog.client import Client
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import BadRequest, InUse, NoSuchGroup, SubscriptionCancelled
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.groups import GroupsReset, ResetGroups
from tests.client.test_subscription import publish, take

pytestmark = pytest.mark.process


def targets(found: GroupsReset) -> dict[str, int]:
    return {each.group: each.target.queue_offset for each in found.groups}


async def test_a_subscriber_is_told_that_its_group_was_reset(client: Client, queue: str) -> None:
    """Goal: nobody goes on as if nothing had happened. Method: refused while it is there, naming it; by force its
    reading ends, what it has can be settled no more, and who comes next has all of it again."""
    await publish(client, queue, 10)
    async with client.subscribe(queue) as subscription:
        found = await take(subscription, 10)
        await found[3].ack(multiple=True)
        with pytest.raises(InUse, match="1 subscribed, 6 records in hand"):
            await client.admin.reset_groups(queue, [""], to="earliest")
        done = await client.admin.reset_groups(queue, [""], to="earliest", force=True)
        assert (done.done, done.groups[0].source.queue_offset, targets(done)) == (True, 4, {"": 0})
        with pytest.raises(SubscriptionCancelled, match="reset"):
            async with asyncio.timeout(10):
                await anext(subscription)
        with pytest.raises(SubscriptionCancelled):
            await found[9].ack()
    async with client.subscribe(queue) as subscription:
        assert [each.offset for each in await take(subscription, 10)] == list(range(10))


async def test_a_shift_whose_answer_is_lost_is_made_once(
    client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: asked twice is not moved twice. Method: every question of the client goes out two times."""
    await publish(client, queue, 10)
    await client.admin.reset_groups(queue, [""], to="latest")
    ask = client.admin.__class__._ask_current

    async def twice(admin: Any, queue: str, message: ResetGroups, expect: Any) -> Any:
        await ask(admin, queue, message, expect)
        return await ask(admin, queue, message, expect)

    monkeypatch.setattr(client.admin.__class__, "_ask_current", twice)
    assert targets(await client.admin.reset_groups(queue, shift=-3)) == {"": 7}
    assert targets(await client.admin.reset_groups(queue, shift=2)) == {"": 9}


@pytest.mark.parametrize(
    "options", [{}, {"to": "begin"}, {"to": "latest", "shift": 1}, {"offsets": {"g": 1}, "shift": 1}, {"to": 1.5}]
)
async def test_what_is_no_target_is_refused(client: Client, queue: str, options: dict[str, Any]) -> None:
    """Goal: nothing is guessed. Method: none, two, and unknown ones."""
    with pytest.raises(BadRequest):
        await client.admin.reset_groups(queue, **options)


async def test_a_stream_group_stands_somewhere_from_its_first_commit_on(client: Client, queue: str) -> None:
    """Goal: a reset makes no group: of which kind would be a guess. Method: one that is read, and has committed
    nothing; it is told what makes it, and whoever wants it to begin elsewhere stores that."""
    await publish(client, queue, 10)
    async with client.consumer(queue, group="s") as consumer:
        assert len(await consumer.read(3, timeout_ms=10_000)) == 3
        with pytest.raises(NoSuchGroup, match="or the first commit one of a stream"):
            await client.admin.reset_groups(queue, ["s"], to=5, force=True)
        place = consumer.position
    await client.admin.commit_position(queue, "s", replace(place, queue_offset=5))
    async with client.consumer(queue, group="s") as consumer:
        assert [each.queue_offset for each in await consumer.read(1, timeout_ms=10_000)] == [5]


def test_resets_in_step(shared_cluster: Cluster, queue: str) -> None:
    """Goal: the synchronous face. Method: every sort of target, a dry run, both kinds of groups, deletion of both."""
    with SyncClient(*shared_cluster.servers) as client:
        with client.producer(queue) as producer:
            producer.send_many([b"x"] * 20)
        assert client.admin.reset_groups(queue, shift=1).groups == []
        client.lease(queue, "g", max_records=1, lease_ms=60_000)
        with client.consumer(queue, group="s") as consumer:
            consumer.seek(8)
            consumer.commit()
            with pytest.raises(InUse, match=r"1 records leased.*heard"):
                client.admin.reset_groups(queue, to=5)
        assert targets(client.admin.reset_groups(queue, to=5, dry_run=True)) == {"g": 5, "s": 5}
        assert targets(client.admin.reset_groups(queue, to=5, force=True)) == {"g": 5, "s": 5}
        assert targets(client.admin.reset_groups(queue, ["g"], to=datetime(2020, 1, 1, tzinfo=UTC))) == {"g": 0}
        assert targets(client.admin.reset_groups(queue, ["g"], to=datetime(2100, 1, 1, tzinfo=UTC))) == {"g": 20}
        assert targets(client.admin.reset_groups(queue, ["g"], offsets={"g": 3})) == {"g": 3}
        assert targets(client.admin.reset_groups(queue, ["g", "g"], to="latest")) == {"g": 20}
        for name in ("g", "s"):
            client.admin.delete_group(queue, name)
        assert client.admin.groups(queue).groups == []
        assert client.admin.position(queue, "s") is None
