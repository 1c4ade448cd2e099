"""Dead letters through what befalls a cluster: whole clusters of real nodes, in virtual time.

The master that dies does so between any two steps of a departure, the queue's own or that of the queue that its records
leave for: in the end every record that was rejected is there once, and the queue has settled it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pytest

from mirrorlog.broker.dead_letters import addressing as departure_addressing
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.roles import MasterRole
from mirrorlog.broker.session.dead_letter_transport import DeadLetterLinks
from mirrorlog.client import Client
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.errors import BatchTooLarge, MirrorlogError, NoSuchQueue
from sim import nodes
from sim.world import World
from tests.cluster.test_group_stories import AGAIN_S, SEEDS, Group, handing_over, tell

RECORDS: Final = 600
LOOK_S: Final = 0.0002
STEPS: Final = ("departing", "addressed", "sent", "departed")
WAY: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def numbered(count: int = RECORDS) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def insist(client: Client, queue: str, arguments: dict[str, Any]) -> None:
    while True:
        with suppress(MirrorlogError):
            await client.admin.declare(queue, arguments)
            return
        await asyncio.sleep(AGAIN_S)


def declaring(*, apart: bool, count: int = RECORDS, **arguments: Any) -> Callable[[Client], Any]:
    """Both queues, in one log or each in one of its own, and the records."""

    async def declare(client: Client) -> None:
        await insist(client, "dead", {"flush": "disk", "copies": 3} if apart else {})
        await insist(client, "q", {**WAY, **arguments})
        async with client.producer("q") as producer:
            await producer.send_many(numbered(count))

    return declare


def rejecting(count: int = RECORDS) -> Callable[[Client], Any]:
    """Somebody who rejects all that he is given, until he was given all."""

    async def reject(client: Client) -> None:
        met: set[bytes] = set()
        async with client.subscribe("q", prefetch=200) as subscription:
            while len(met) < count:
                with suppress(MirrorlogError):
                    for record in await subscription.take_within(200, timeout_ms=200):
                        record.nack_nowait(requeue=False)
                        met.add(record.value or b"")
                    await subscription.flush()

    return reject


def reading(queue: str, count: int) -> Callable[[Client], Any]:
    """The first so many records of a queue, as a stream, and those that come in a second behind them."""

    async def read(client: Client) -> list[bytes]:
        found: list[bytes] = []
        async with client.consumer(queue, start="earliest") as consumer:
            while len(found) < count:
                found += [record.value or b"" for record in await consumer.read(1000, timeout_ms=500)]
            found += [record.value or b"" for record in await consumer.read(1000, timeout_ms=1000)]
        return found

    return read


def mastered(group: Group, queue: str) -> tuple[str, HostedLog] | None:
    """Who writes the log of a queue, and that log."""
    found = []
    for name, node in group.nodes.items():
        for log in node.node.logs if node.machine.up and node.node is not None else ():
            if isinstance(log.role, MasterRole) and log.replica.queues.get(queue) is not None:
                found.append((log.replica.log.epochs.current, name, log))
    return max(found)[1:] if found else None


def held(group: Group, queue: str) -> int:
    """How many records of it its master has."""
    there = mastered(group, queue)
    if there is None:
        return 0
    replica = there[1].replica
    return replica.index.next_appended(replica.queues.find(queue).queue_id)


def step(group: Group) -> str:
    """Which one of a departure the queue's master has done last."""
    there = mastered(group, "q")
    if there is None:
        return ""
    replica = there[1].replica
    queue_id = replica.queues.find("q").queue_id
    forwardings = replica.forwardings.of(queue_id)
    if forwardings.piece is not None:
        target = forwardings.piece.targets[0]
        return "sent" if held(group, "dead") >= target.sequence + target.records else "addressed"
    if not forwardings.forwardings:
        return ""
    return "departed" if forwardings.sequences else "departing"


async def reached(group: Group, wanted: str, *, within_s: float = 30.0) -> None:
    give_up_at = group.world.now + within_s
    while step(group) != wanted:
        assert group.world.now < give_up_at, f"never {wanted}: {step(group)!r}"
        await asyncio.sleep(LOOK_S)


async def departed(group: Group, count: int = RECORDS) -> None:
    """Until the queue has settled so many, and nothing leaves it."""

    def there() -> bool:
        found = mastered(group, "q")
        if found is None:
            return False
        replica = found[1].replica
        with suppress(MirrorlogError):
            queue_id = replica.queues.find("q").queue_id
            return replica.groups.find(queue_id, "").floor >= count and queue_id not in replica.forwardings.leaving
        return False

    await group.world.until(there, within_s=60, otherwise=f"{count} records have not left")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("whose", ["q", "dead"])
@pytest.mark.parametrize("when", STEPS)
def test_a_master_killed_at_any_step_loses_no_dead_letter_and_sends_none_twice(
    when: str, whose: str, seed: int
) -> None:
    """Goal: exactly once through failovers of either side. Method: the queue and the one for its dead letters are in
    two logs; all records are rejected, and the master of one of them is killed behind each of the steps."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(declaring(apart=True))
        await group.whole()
        errand = group.send(rejecting())
        await reached(group, when)
        there = mastered(group, whose)
        assert there is not None
        group.nodes[there[0]].machine.kill()
        await departed(group)
        await group.back(errand)
        group.nodes[there[0]].start()
        assert sorted(await group.do(reading("dead", RECORDS))) == sorted(numbered())

    tell(story, f"{when} {whose} {seed}")


@pytest.mark.parametrize("seed", SEEDS)
def test_all_nodes_are_killed_and_started_in_the_middle(seed: int) -> None:
    """Goal: the log alone says what leaves. Method: one log for both; every node is killed while pieces leave."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(declaring(apart=False))
        errand = group.send(rejecting())
        await reached(group, "departed")
        for node in group.nodes.values():
            node.machine.kill()
        await group.formed()
        await departed(group)
        await group.back(errand)
        assert sorted(await group.do(reading("dead", RECORDS))) == sorted(numbered())

    tell(story, f"all {seed}")


def test_a_handover_in_the_middle_costs_nothing() -> None:
    """Goal: a master that goes tidily ends what it does at any place, and the next one goes on there."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(declaring(apart=False))
        errand = group.send(rejecting())
        await reached(group, "departed")
        former = group.master
        await group.do(handing_over(former))
        await group.master_but(former)
        await departed(group)
        await group.back(errand)
        assert sorted(await group.do(reading("dead", RECORDS))) == sorted(numbered())

    tell(story, "handover")


def test_letters_that_are_too_large_for_one_batch_go_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a target that takes smaller batches than the queue's master gets all of them all the same. Method: nodes
    that take 64 KiB, and pieces of as much, which their headers make larger; every batch that is sent is counted."""
    monkeypatch.setattr(departure_addressing, "PIECE_PART", 1)
    sent: list[bytes] = []
    refused: list[bytes] = []
    hand_over = DeadLetterLinks.hand_over

    async def noted(self: DeadLetterLinks, log_id: str, batch: bytes, **more: Any) -> None:
        try:
            await hand_over(self, log_id, batch, **more)
        except BatchTooLarge:
            refused.append(batch)
            raise
        sent.append(batch)

    monkeypatch.setattr(DeadLetterLinks, "hand_over", noted)

    async def story(hands: Hands) -> None:
        await hands.declare("dead")
        await hands.declare("q", "", "dead")
        values = [b"%05d" % number * 100 for number in range(150)]
        async with hands.client.producer("q") as producer:
            await producer.send_many(values)
        await hands.reject_all("q", 150)
        assert [each.value for each in await hands.take("dead", 150)] == values

    alone(story, "large")
    sizes = [read_header(batch).record_count for batch in sent]
    assert refused, "no piece was too large: this has shown nothing"
    assert sum(sizes) == 150


def test_a_queue_that_has_forgotten_whose_letters_it_had_takes_them_under_a_new_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: dead letters that come once in a long while are taken. Method: nodes that forget a producer after a minute;
    a letter, records in the same log for longer than that, another letter."""
    limits = {**nodes.SMALL["limits"], "producer_expiry_ms": 60_000}
    monkeypatch.setattr(nodes, "SMALL", {**nodes.SMALL, "limits": limits})

    async def story(hands: Hands) -> None:
        for queue in ("dead", "clock"):
            await hands.declare(queue)
        await hands.declare("q", "", "dead")
        for value in numbered(3):
            await hands.put("q", value)
            await hands.reject("q", 1)
            assert [each.value for each in await hands.take("dead", 1)] == [value]
            for _ in range(2):
                await asyncio.sleep(35)
                await hands.put("clock", b"tick")

    alone(story, "forgotten")


def test_while_the_log_confirms_nothing_letters_wait_and_then_leave_once() -> None:
    """Goal: nothing hangs, spins or is sent twice. Method: two of three nodes are killed while pieces leave, for longer
    than any deadline; attempts are counted by what they log."""

    async def story(world: World) -> None:
        group = Group(world, min_in_sync=2)
        await group.formed()
        await group.do(declaring(apart=False))
        errand = group.send(rejecting())
        await reached(group, "departed")
        mirrors = [name for name in group.nodes if name != group.master]
        there = mastered(group, "q")
        assert there is not None
        for name in mirrors:
            group.nodes[name].machine.kill()
        await asyncio.sleep(1)
        end = there[1].replica.log.end
        await asyncio.sleep(20)
        assert there[1].replica.log.end - end < 20_000, "what is refused is tried all the time"
        for name in mirrors:
            group.nodes[name].start()
        await departed(group)
        await group.back(errand, within_s=120)
        assert sorted(await group.do(reading("dead", RECORDS))) == sorted(numbered())

    tell(story, "refuses")


# --- What dies, and where it goes -------------------------------------------------------------------------------------


class Told(NamedTuple):
    """A record as it came: of its newest death queue, reason and count."""

    value: bytes
    queue: str = ""
    reason: str = ""
    count: int = 0


def told(record: Any) -> Told:
    deaths = json.loads(dict(record.headers).get("x-death", b"[]"))
    if not deaths:
        return Told(record.value)
    assert dict(record.headers)["x-first-death-exchange"] == b""
    return Told(record.value, deaths[0]["queue"], deaths[0]["reason"], deaths[0]["count"])


class Hands:
    """What one person does, in short."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def declare(self, name: str, exchange: str | None = None, key: str | None = None, **more: Any) -> None:
        way = {} if exchange is None else {"x-dead-letter-exchange": exchange}
        way |= {} if key is None else {"x-dead-letter-routing-key": key}
        await insist(self.client, name, {**way, **{each.replace("_", "-"): more[each] for each in more}})

    async def put(self, queue: str, *values: bytes, key: bytes | None = None, **asked: Any) -> None:
        async with self.client.producer(queue) as producer:
            for value in values:
                await producer.send(value, key=key, **asked)

    async def reject(self, queue: str, count: int, *, requeue: bool = False) -> None:
        async with self.client.subscribe(queue) as subscription:
            for _ in range(count):
                await (await anext(subscription)).nack(requeue=requeue)

    async def reject_all(self, queue: str, count: int) -> None:
        """At once, so that they leave together."""
        async with self.client.subscribe(queue) as subscription:
            records = [await anext(subscription) for _ in range(count)]
            await records[-1].nack(requeue=False, multiple=True)

    async def take(self, queue: str, count: int) -> list[Told]:
        async with self.client.subscribe(queue) as subscription:
            found = [await anext(subscription) for _ in range(count)]
            for record in found:
                await record.ack()
            assert not await subscription.receive(1, timeout_ms=500), f"more than {count} in {queue}"
        return [told(record) for record in found]

    async def own(self, queue: str) -> Any:
        """The queue's own group."""
        return next(each for each in (await self.client.admin.groups(queue)).groups if not each.group)

    async def empty(self, queue: str) -> None:
        """Until nothing of it is unsettled."""
        left = await self.own(queue)
        while left.unsettled:
            await asyncio.sleep(AGAIN_S)
            left = await self.own(queue)


def alone(what: Callable[[Hands], Awaitable[None]], seed: str) -> None:
    """One person in a cluster of three."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(lambda client: what(Hands(client)), within_s=400)

    tell(story, seed)


def test_each_way_to_die_is_told_by_its_reason() -> None:
    """Rejected, come back too often, too old, too many: each leads to the same queue."""

    async def story(hands: Hands) -> None:
        await hands.declare("dead")
        await hands.declare("r", "", "dead")
        await hands.declare("l", "", "dead", x_delivery_limit=1)
        await hands.declare("e", "", "dead", x_message_ttl=50)
        await hands.declare("m", "", "dead", x_max_length=2)
        for queue in "rle":
            await hands.put(queue, queue.encode())
        await hands.put("m", *numbered(5))
        await hands.reject("r", 1)
        await hands.reject("l", 2, requeue=True)
        found = await hands.take("dead", 6)
        expected = [Told(b"r", "r", "rejected", 1), Told(b"l", "l", "delivery_limit", 1), Told(b"e", "e", "expired", 1)]
        assert sorted(found) == sorted([*expected, *(Told(b"%d" % number, "m", "maxlen", 1) for number in range(3))])
        assert await hands.take("m", 2) == [Told(b"3"), Told(b"4")]

    alone(story, "reasons")


def test_a_letter_goes_to_every_queue_that_it_is_routed_to_by_its_own_key_unless_another_is_named() -> None:
    async def story(hands: Hands) -> None:
        admin = hands.client.admin.topology
        await admin.declare_exchange("dlx", "topic")
        for queue in ("x", "y"):
            await hands.declare(queue)
        await admin.bind("dlx", "x", "a.*")
        await admin.bind("dlx", "y", "#")
        await hands.declare("own", "dlx")
        await hands.declare("named", "dlx", "a.b")
        await hands.put("own", b"1", key=b"a.c", priority=3)
        await hands.put("own", b"2", key=b"c")
        await hands.put("named", b"3", key=b"c")
        await hands.reject("own", 2)
        await hands.reject("named", 1)
        assert sorted(each.value for each in await hands.take("x", 2)) == [b"1", b"3"]
        assert sorted(each.value for each in await hands.take("y", 3)) == [b"1", b"2", b"3"]

    alone(story, "routes")


def test_letters_keep_their_priority_and_live_longer_than_their_records() -> None:
    """Records of several priorities, in turn, expire and come to a queue that tells them apart; there they stay."""

    async def story(hands: Hands) -> None:
        await hands.declare("dead", x_max_priority=9)
        await hands.declare("q", "", "dead")
        for number in range(9):
            await hands.put("q", b"%d" % number, priority=number % 3, ttl_ms=300, timestamp=1000 + number)
        await asyncio.sleep(2)
        found = await hands.take("dead", 9)
        assert [each.value for each in found] == [b"2", b"5", b"8", b"1", b"4", b"7", b"0", b"3", b"6"]
        assert {each.reason for each in found} == {"expired"}

    alone(story, "priorities")


def test_what_leads_nowhere_is_gone_and_keeps_nothing_else() -> None:
    """No such queue, no such exchange, a target that is deleted before or after; other records go on. A key that would
    name a queue of another virtual host leads nowhere."""

    async def story(hands: Hands) -> None:
        await hands.declare("dead")
        await hands.declare("gone")
        await hands.declare("a", "")
        await hands.declare("b", "nothing")
        await hands.declare("c", "", "gone")
        await hands.put("a", b"1", key=b"nobody")
        await hands.put("a", b"2", key=b"v\x1fdead")
        await hands.put("a", b"3", key=b"dead")
        await hands.put("b", b"4")
        await hands.put("c", b"5")
        await hands.client.admin.delete_queue("gone")
        for queue, count in (("a", 3), ("b", 1), ("c", 1)):
            await hands.reject(queue, count)
            await hands.empty(queue)
        assert [each.value for each in await hands.take("dead", 1)] == [b"3"]

    alone(story, "nowhere")


def test_records_do_not_go_in_circles_unless_somebody_rejects_them() -> None:
    """One that expires comes to no queue again that it was in: neither its own nor, over another, the first one. A
    rejection begins anew."""

    async def story(hands: Hands) -> None:
        await hands.declare("self", "", "self", x_message_ttl=20)
        await hands.declare("ping", "", "pong", x_message_ttl=20)
        await hands.declare("pong", "", "ping", x_message_ttl=20)
        await hands.declare("wait", "", "work", x_message_ttl=20)
        await hands.declare("work", "", "wait")
        await hands.put("self", b"1")
        await hands.put("ping", b"2")
        await hands.put("work", b"3")
        for queue in ("self", "ping", "pong"):
            await hands.empty(queue)
        for _ in range(3):
            await hands.reject("work", 1)
        assert await hands.take("work", 1) == [Told(b"3", "wait", "expired", 3)]

    alone(story, "circles")


def test_a_redrive_leads_back_to_where_each_died_and_keeps_what_leads_nowhere() -> None:
    """Two queues share one for dead letters, in which is also a record that never died. There and back, twice; then to
    a queue that is named."""

    async def story(hands: Hands) -> None:
        admin = hands.client.admin
        await hands.declare("dead")
        for queue in ("p", "q"):
            await hands.declare(queue, "", "dead")
            await hands.put(queue, *(queue.encode() + value for value in numbered(3)))
            await hands.reject(queue, 3)
            await hands.empty(queue)
        await hands.put("dead", b"stays")
        assert await admin.redrive("dead", records_max=2) == 2
        assert await hands.take("p", 2) == [Told(b"p0"), Told(b"p1")]
        assert await admin.redrive("dead") == 5
        assert await hands.take("p", 1) == [Told(b"p2")]
        await hands.reject("q", 3)
        await hands.empty("q")
        own = await hands.own("dead")
        while own.departing:
            own = await hands.own("dead")
        assert (own.ready, own.leased, own.departing) == (4, 0, 0)
        assert await admin.redrive("dead", to="p") == 4
        assert sorted(await hands.take("p", 4)) == [Told(b"q0"), Told(b"q1"), Told(b"q2"), Told(b"stays")]
        assert await admin.redrive("dead") == 0
        with pytest.raises(NoSuchQueue):
            await admin.redrive("dead", to="nobody")
        with pytest.raises(NoSuchQueue):
            await admin.redrive("nobody")

    alone(story, "redrive")


def test_a_target_without_a_master_is_waited_for_and_doctor_is_told() -> None:
    """The queue for dead letters is on one node alone, which is down: what was rejected waits, is nobody's, and is
    there once when the node is back."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()

        async def prepare(client: Client) -> None:
            hands = Hands(client)
            await insist(client, "dead", {"copies": 1})
            await hands.declare("q", "", "dead")
            await hands.put("q", *numbered(20))

        await group.do(prepare)
        there = mastered(group, "dead")
        assert there is not None
        group.nodes[there[0]].machine.kill()

        async def reject(client: Client) -> str:
            hands = Hands(client)
            await hands.reject("q", 20)
            own = await hands.own("q")
            while not own.departing_waits:
                await asyncio.sleep(AGAIN_S)
                own = await hands.own("q")
            assert (own.departing, own.leased, own.ready, own.unsettled) == (20, 0, 0, 20)
            return str(own.departing_waits)

        assert await group.do(reject, within_s=120)
        group.nodes[there[0]].start()
        await departed(group, 20)
        assert sorted(await group.do(reading("dead", 20))) == sorted(numbered(20))

    tell(story, "waits")
