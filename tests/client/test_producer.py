"""The producer on real nodes: receipts, windows, limits, and how it lives through refusals and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mirrorlog.client import Client, Producer, Receipt
from mirrorlog.errors import (
    BadInput,
    BadRequest,
    Closed,
    InSyncReplicasNotEnough,
    NoSuchQueue,
    OutcomeUnknown,
    Overloaded,
    RecordTooLarge,
    Refused,
)
from mirrorlog.testing import Cluster
from tests.process.clusters import eventually, fast_cluster, log_of, mirror_of

pytestmark = pytest.mark.process

_KIB = 1024


async def values(client: Client, queue: str) -> list[bytes | None]:
    async with client.consumer(queue, until="confirmed") as consumer:
        return [record.value async for record in consumer]


async def until(condition: Callable[[], bool], what: str) -> None:
    """While the loop goes on."""
    await asyncio.to_thread(eventually, condition, what)


async def test_a_receipt_says_where_the_record_is(client: Client, queue: str) -> None:
    """Queue offsets are dense, copies are those asked for; by two records in one batch and one after."""
    async with client.producer(queue) as producer:
        together = [producer.send_nowait(b"0"), producer.send_nowait(b"1")]
        first, second = [await delivery for delivery in together]
        third = await producer.send(b"2")
    assert [first.queue_offset, second.queue_offset, third.queue_offset] == [0, 1, 2]
    assert first.log_offset == second.log_offset < third.log_offset
    assert (first.copies, first.durability, first.duplicate, first.epoch) == (3, 0, False, 1)
    assert await values(client, queue) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("confirm", ["none", "master", "one", "majority", "all", 1, 2, 3])
async def test_every_confirm_level_is_answered(client: Client, queue: str, confirm: str | int) -> None:
    """With at least so many copies; by one record per level."""
    least = {"none": 0, "master": 1, "one": 2, "majority": 2, "all": 3}.get(str(confirm), confirm)
    async with client.producer(queue, confirm=confirm) as producer:
        assert (await producer.send(b"v")).copies >= int(least)


async def test_disk_durability_is_in_the_receipt(client: Client, queue: str) -> None:
    """Memory is the default; by asking for disk."""
    async with client.producer(queue, durability="disk") as producer:
        receipt = await producer.send(b"v")
    assert (receipt.durability, receipt.copies) == (1, 3)


async def test_many_records_keep_their_order_and_come_once(client: Client, queue: str) -> None:
    """Small batches and several in flight; by 20,000 records handed over as fast as the window takes them."""
    async with client.producer(queue, batch_bytes=2 * _KIB, window_bytes=64 * _KIB) as producer:
        deliveries = []
        for number in range(20_000):
            while True:
                try:
                    deliveries.append(producer.send_nowait(b"%d" % number))
                    break
                except Overloaded:
                    await producer.room()
        receipts = [await delivery for delivery in deliveries]
    assert [receipt.queue_offset for receipt in receipts] == list(range(20_000))
    assert await values(client, queue) == [b"%d" % number for number in range(20_000)]
    assert producer.stats.batches > 100


async def test_records_handed_over_together_leave_together(client: Client, queue: str) -> None:
    """A batch leaves when the loop turns, not per record; by 100 records without an await between."""
    async with client.producer(queue) as producer:
        for _ in range(100):
            producer.send_nowait(b"v")
        await producer.flush()
        assert producer.stats.batches == 1


async def test_a_full_window_names_its_limit(client: Client, queue: str) -> None:
    """Overload is answered, not absorbed; by handing over without ever waiting."""
    async with client.producer(queue, window_bytes=1_000) as producer:
        producer.send_nowait(b"x" * 900)
        with pytest.raises(Overloaded, match="window_bytes") as caught:
            producer.send_nowait(b"x" * 100)
        assert caught.value.details == {"limit": "window_bytes"}


@pytest.mark.parametrize("size", [300, 700, 960, 5_000])
async def test_a_sender_waits_for_room_whatever_the_size_of_its_record(client: Client, queue: str, size: int) -> None:
    """Also one that needs most of the window, or more than all of it; by small and large senders side by side."""
    async with client.producer(queue, window_bytes=1_000) as producer:
        sizes = [0, size, 0, 0, size] * 10
        await asyncio.gather(*(producer.send(b"x" * each) for each in sizes))
    assert len(await values(client, queue)) == 50


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": "\ud800"},
        {"value": b"", "key": 5},
        {"value": b"", "timestamp": 2**70},
        {"value": b"", "headers": [("\ud800", b"")]},
    ],
)
async def test_a_wrong_record_is_refused_alone(client: Client, queue: str, wrong: dict[str, Any]) -> None:
    """It neither spoils its neighbours nor holds a place in the window; by one between two good ones."""
    async with client.producer(queue) as producer:
        for _ in range(3):
            with pytest.raises(BadInput):
                producer.send_nowait(**wrong)
        good = producer.send_nowait(b"first")
        with pytest.raises(BadInput):
            producer.send_nowait(**wrong)
        await asyncio.gather(good, producer.send_nowait(b"second"))
        assert (producer.stats.sent, producer.stats.failed, producer.stats.batches) == (2, 0, 1)
    assert await values(client, queue) == [b"first", b"second"]


async def test_a_record_above_a_limit_is_refused_before_it_is_sent(client: Client, queue: str) -> None:
    """Value, key and headers; by each beyond what the node says it takes."""
    async with client.producer(queue) as producer:
        most = b"x" * (4 * 1024 * _KIB)
        with pytest.raises(RecordTooLarge, match="max_record_bytes"):
            await producer.send(most + b"x")
        with pytest.raises(RecordTooLarge, match="max_batch_bytes"):
            await producer.send(most, key=most)
        with pytest.raises(RecordTooLarge, match="max_batch_bytes"):
            await producer.send(b"", headers={"ü" * (4 * 1024 * _KIB): b""})
        assert producer.stats.batches == 0
        assert (await producer.send(most)).queue_offset == 0


async def test_a_record_above_a_limit_does_not_slip_into_an_open_batch(client: Client, queue: str) -> None:
    """There is room for it in the batch, but the node would refuse the batch; by one after a small one."""
    async with client.producer(queue, batch_bytes=8 * 1024 * _KIB) as producer:
        small = producer.send_nowait(b"small")
        with pytest.raises(RecordTooLarge, match="max_record_bytes"):
            producer.send_nowait(b"x" * (4 * 1024 * _KIB + 1))
        assert (await small).queue_offset == 0


@pytest.mark.parametrize(
    "options",
    [
        {"confirm": "most"},
        {"confirm": -1},
        {"confirm": 254},
        {"durability": "tape"},
        {"max_in_flight": 0},
        {"max_in_flight": 65},
        {"window_bytes": 0},
        {"batch_bytes": 0},
        {"linger_ms": -1},
        {"delivery_timeout_ms": 0},
        {"compression": "gzip"},
    ],
)
async def test_a_wrong_option_is_refused(client: Client, queue: str, options: dict[str, Any]) -> None:
    """By one option at a time; the message names it."""
    (name,) = options
    with pytest.raises(BadRequest, match=name):
        client.producer(queue, **options)


async def test_more_copies_than_there_are_is_bad_input(client: Client, queue: str) -> None:
    """The node says so and the producer lives on; by asking for nine."""
    async with client.producer(queue, confirm=9) as producer:
        with pytest.raises(BadRequest):
            await producer.send(b"v")


async def test_no_such_queue_is_told_at_the_start(client: Client, new_name: Callable[[], str]) -> None:
    """Before anything is handed over; by a name that was never declared."""
    with pytest.raises(NoSuchQueue, match="mqtool declare"):
        await client.producer(new_name()).start()


async def test_leaving_the_block_waits_for_every_outcome(client: Client, queue: str) -> None:
    """Nothing handed over is dropped; by leaving at once. A closed producer refuses."""
    async with client.producer(queue) as producer:
        deliveries = [producer.send_nowait(b"%d" % number) for number in range(500)]
    assert [delivery.result().queue_offset for delivery in deliveries] == list(range(500))
    with pytest.raises(Closed, match="closed"):
        producer.send_nowait(b"late")


async def test_flush_waits_for_what_was_handed_over_before_it_only(client: Client, queue: str) -> None:
    """A busy neighbour must not hold it up for ever; by another task that never stops sending."""
    async with client.producer(queue, linger_ms=0) as producer:

        async def chatter() -> None:
            while True:
                await producer.send(b"c")

        busy = [asyncio.ensure_future(chatter()) for _ in range(20)]
        await producer.send(b"v")
        async with asyncio.timeout(20):
            for _ in range(5):
                delivery = producer.send_nowait(b"mine")
                await producer.flush()
                assert delivery.done()
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def test_a_cancelled_send_leaves_the_batch_to_its_neighbours(client: Client, queue: str) -> None:
    """Who stops waiting takes nothing along; by cancelling one of two senders of a batch."""
    async with client.producer(queue) as producer:
        impatient, patient = (asyncio.ensure_future(producer.send(value)) for value in (b"0", b"1"))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).queue_offset == 1
        assert impatient.cancelled()


# --- Many at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "arrow", "numpy"])
async def test_columns_arrive_as_records(client: Client, queue: str, kind: str) -> None:
    """In order, with keys, headers and times, whatever the columns are; through a window that holds a part of them."""
    count = 5_000
    plain = [b"%07d" % number for number in range(count)]
    stamps = np.arange(count) * 1_000
    columns: dict[str, tuple[Any, Any, Any]] = {
        "list": (plain, plain[::-1], stamps.tolist()),
        "arrow": (pa.array(plain), pa.array(plain[::-1]), pa.array(stamps, pa.timestamp("us", "UTC"))),
        "numpy": (np.array(plain), np.array(plain[::-1]).view("V7"), stamps),
    }
    given, keys, timestamps = columns[kind]
    async with client.producer(queue, batch_bytes=4 * _KIB, window_bytes=32 * _KIB) as producer:
        receipts = await producer.send_many(given, keys=keys, headers={"kind": kind.encode()}, timestamps=timestamps)
        assert producer.stats.batches > 20
        assert (producer.stats.sent, producer.stats.confirmed) == (count, count)
    assert [receipt.queue_offset for receipt in receipts] == list(range(count))
    assert {receipt.copies for receipt in receipts} == {3}
    assert len(receipts.ranges) == producer.stats.batches
    async with client.consumer(queue, until="confirmed") as consumer:
        found = [(each.value, each.key, each.headers, each.timestamp) async for each in consumer]
    assert found == [
        (plain[number], plain[-1 - number], [("kind", kind.encode())], 1_000 * number) for number in range(count)
    ]


async def test_columns_keep_their_place_among_records(client: Client, queue: str) -> None:
    """What was handed over before stands before; by a record, a column and a record."""
    async with client.producer(queue) as producer:
        before = producer.send_nowait(b"0")
        bulk = producer.send_many_nowait([b"1", None, b"3"])
        after = producer.send_nowait(b"4")
        assert [receipt.queue_offset for receipt in await bulk] == [1, 2, 3]
        assert ((await before).queue_offset, (await after).queue_offset) == (0, 4)
        assert len(await producer.send_many([])) == 0
    assert await values(client, queue) == [b"0", b"1", None, b"3", b"4"]


async def test_a_column_is_taken_whole_or_not_at_all(client: Client, queue: str) -> None:
    """One larger than the window goes when the window is empty; else Overloaded comes before any record is taken."""
    async with client.producer(queue, batch_bytes=1_000, window_bytes=10_000) as producer:
        large = producer.send_many_nowait([b"x" * 100] * 1_000)
        with pytest.raises(Overloaded, match="window_bytes"):
            producer.send_many_nowait([b"y"])
        with pytest.raises(BadInput):
            producer.send_many_nowait([b"y", 5])
        assert len(await large) == 1_000
        assert producer.stats.sent == 1_000
        assert (await producer.send_many([b"z"]))[0].queue_offset == 1_000
    with pytest.raises(Closed, match="closed"):
        producer.send_many_nowait([b"late"])


async def test_columns_and_records_share_the_window(client: Client, queue: str) -> None:
    """Nobody is forgotten; by tasks of both kinds on a window that is too small for most of them."""
    async with client.producer(queue, batch_bytes=500, window_bytes=1_000) as producer:
        bulks = [producer.send_many([b"x" * (100 * number)] * 20) for number in range(5)]
        await asyncio.gather(*bulks, *(producer.send(b"y") for _ in range(50)))
    assert len(await values(client, queue)) == 150


# --- Failures that nobody hears -------------------------------------------------------------------------------------


async def test_flush_tells_the_failure_that_nobody_heard(client: Client, queue: str) -> None:
    """Once, and not what a sender was told already; by a confirm that cannot be had."""
    async with client.producer(queue, confirm=9) as producer:
        producer.send_nowait(b"nobody")
        with pytest.raises(BadRequest):
            await producer.flush()
        await producer.flush()
        told = asyncio.ensure_future(producer.send(b"told"))
        await asyncio.sleep(0)
        await producer.flush()
        with pytest.raises(BadRequest):
            await told
        bulk = producer.send_many_nowait([b"asked"])
        await until(bulk.done, "the end of the bulk")
        assert [records for records, _ in bulk.failures()] == [range(1)]
        await producer.flush()


async def test_leaving_the_block_tells_it_too(client: Client, queue: str) -> None:
    """Nothing is lost in silence; but an error of the block itself is the one to tell."""
    with pytest.raises(BadRequest):
        async with client.producer(queue, confirm=9) as producer:
            producer.send_nowait(b"nobody")
    with pytest.raises(ZeroDivisionError):
        await nobody_hears_of(client.producer(queue, confirm=9), ZeroDivisionError)


async def nobody_hears_of(producer: Producer, error: type[Exception]) -> None:
    async with producer:
        producer.send_nowait(b"nobody")
        raise error


async def test_closing_the_client_closes_every_producer_before_it_tells(shared_cluster: Cluster, queue: str) -> None:
    """One that failed does not cost the others their flush; by a failing one between two good ones."""
    client = await Client(*shared_cluster.servers).connect()
    producers = [await client.producer(queue, confirm=confirm).start() for confirm in ("all", 9, "all")]
    deliveries = [producer.send_nowait(b"v") for producer in producers]
    with pytest.raises(BadRequest):
        await client.close()
    assert all(delivery.done() for delivery in deliveries)
    assert sorted(producer.stats.confirmed for producer in producers) == [0, 1, 1]


# --- Trouble --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def trouble(copies: int, **client_options: Any) -> AsyncIterator[tuple[Any, Client]]:
    """A cluster of its own with a queue `q`, and a client."""
    with fast_cluster(copies) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers, **client_options) as client:
            await client.admin.declare("q")
            yield cluster, client


async def test_the_masters_restart_loses_doubles_and_reorders_nothing() -> None:
    """Each record is there once, in order; by kill -9 of the master with batches appended and others on their way."""
    async with trouble(2) as (cluster, client):
        sends: list[asyncio.Task[Receipt]] = []
        async with client.producer("q", batch_bytes=512, delivery_timeout_ms=60_000) as producer:

            def send(count: int) -> None:
                for _ in range(count):
                    sends.append(asyncio.ensure_future(producer.send(b"%d" % len(sends))))

            epoch = 0
            for _ in range(3):
                stored = len(sends)
                master, mirror = cluster.master, cluster.mirrors[0]
                mirror.pause()
                send(600)
                await until(lambda: log_of(master).queues[0].next > stored, "some are appended")  # noqa: B023
                assert producer.stats.confirmed == stored
                await asyncio.to_thread(master.kill)
                send(100)
                mirror.resume()
                await asyncio.to_thread(master.start)
                receipts = await asyncio.gather(*sends)
                before, epoch = epoch, receipts[-1].epoch
                assert epoch > before
        assert producer.stats.lost_attempts > 0
        assert [receipt.queue_offset for receipt in receipts] == list(range(len(sends)))
        assert await values(client, "q") == [b"%d" % number for number in range(len(sends))]


async def test_refused_while_a_mirror_is_away_then_confirmed() -> None:
    """The producer retries what was refused or timed out, and says so in its stats; by killing a needed mirror."""
    async with trouble(3) as (cluster, client), client.producer("q", delivery_timeout_ms=60_000) as producer:
        mirror = cluster.mirrors[0]
        await producer.send(b"0")
        await asyncio.to_thread(mirror.kill)
        # Else they may be appended before it sees that the link is gone, and wait for a confirm instead.
        gone = mirror.id
        await until(lambda: not mirror_of(cluster, gone).connected, "the master sees it")
        sending = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(1, 4)]
        await until(lambda: producer.stats.refused_attempts > 1, "refusals")
        assert not any(task.done() for task in sending)
        await asyncio.to_thread(mirror.start)
        receipts = await asyncio.gather(*sending)
        assert [receipt.queue_offset for receipt in receipts] == [1, 2, 3]
        assert {receipt.copies for receipt in receipts} == {3}
        assert await values(client, "q") == [b"0", b"1", b"2", b"3"]


async def test_while_nothing_may_leave_an_open_batch_goes_on_filling() -> None:
    """After an outage the backlog is full batches, not one for each linger; by a mirror that stands still."""
    async with trouble(2) as (cluster, client):
        mirror = cluster.mirrors[0]
        options = {"linger_ms": 0, "max_in_flight": 1, "delivery_timeout_ms": 60_000}
        async with client.producer("q", **options) as producer:
            mirror.pause()
            try:
                deliveries = []
                for number in range(100):
                    deliveries.append(producer.send_nowait(b"%d" % number))
                    for _ in range(3):  # turns of the loop, in which the linger ends
                        await asyncio.sleep(0)
                assert producer.stats.batches == 1
            finally:
                mirror.resume()
            receipts = [await delivery for delivery in deliveries]
        assert [receipt.queue_offset for receipt in receipts] == list(range(100))
        assert producer.stats.batches == 2


async def test_an_open_batch_that_cannot_leave_ends_at_its_deadline() -> None:
    """What goes on filling is not forgotten; by a mirror that stands still for longer than the delivery timeout."""
    async with trouble(2) as (cluster, client):
        mirror = cluster.mirrors[0]
        options = {"linger_ms": 0, "max_in_flight": 1, "delivery_timeout_ms": 500}
        async with client.producer("q", **options) as producer:
            await producer.send(b"before")
            mirror.pause()
            try:
                in_flight = producer.send_nowait(b"in flight")
                await until(lambda: producer.stats.batches == 2, "the batch leaves")
                open_one = producer.send_nowait(b"open")
                for delivery in (in_flight, open_one):
                    async with asyncio.timeout(20):
                        with pytest.raises((Refused, OutcomeUnknown)):
                            await delivery
            finally:
                mirror.resume()


async def test_at_the_deadline_a_refusal_names_its_reason_and_the_producer_goes_on() -> None:
    """Too few mirrors for all of the delivery time: nothing was stored; later records land from sequence 0 again."""
    async with trouble(2) as (cluster, client), client.producer("q", delivery_timeout_ms=700) as producer:
        mirror = cluster.mirrors[0]
        await producer.send(b"before")
        await asyncio.to_thread(mirror.kill)
        # The first one may be appended before the master has seen the end of the link.
        with pytest.raises((Refused, OutcomeUnknown)):
            await producer.send(b"while")
        with pytest.raises(InSyncReplicasNotEnough):
            await producer.send(b"refused")
        await asyncio.to_thread(mirror.start)
        await asyncio.to_thread(cluster.wait_in_sync)
        await producer.send(b"after")
        found = await values(client, "q")
        assert [value for value in found if value != b"while"] == [b"before", b"after"]
        assert found.count(b"while") <= 1


async def test_at_the_deadline_what_may_be_stored_is_unknown() -> None:
    """The mirror stands still, so the batch was appended and never confirmed; by SIGSTOP, then SIGCONT."""
    async with trouble(2) as (cluster, client), client.producer("q", delivery_timeout_ms=500) as producer:
        mirror = cluster.mirrors[0]
        await producer.send(b"before")
        mirror.pause()
        try:
            with pytest.raises(OutcomeUnknown, match="stored perhaps"):
                await producer.send(b"while")
        finally:
            mirror.resume()
        await asyncio.to_thread(cluster.wait_in_sync)
        await producer.send(b"after")
        assert await values(client, "q") == [b"before", b"while", b"after"]


async def test_without_a_node_a_record_is_refused_at_its_deadline() -> None:
    """Nothing hangs and nothing was stored; by killing the only node while the producer is idle."""
    async with trouble(1) as (cluster, client), client.producer("q", delivery_timeout_ms=500) as producer:
        master = cluster.master
        await producer.send(b"before")
        await asyncio.to_thread(master.kill)
        await until(lambda: not producer._sender.connected, "the end of the connection is seen")
        with pytest.raises(Refused, match="nothing was stored"):
            await producer.send(b"never")


async def test_a_master_that_stands_still_holds_nobody_for_ever() -> None:
    """The connection stays open and says nothing; every send ends at its deadline, and it goes on after SIGCONT."""
    async with trouble(1) as (cluster, client):
        master = cluster.master
        async with client.producer("q", delivery_timeout_ms=500) as producer:
            await producer.send(b"before")
            master.pause()
            try:
                with pytest.raises(OutcomeUnknown):
                    await producer.send(b"while")
            finally:
                master.resume()
            await producer.send(b"after")
        found = await values(client, "q")
        assert found in ([b"before", b"while", b"after"], [b"before", b"after"])


async def test_a_cancelled_block_does_not_wait_for_outcomes() -> None:
    """Ctrl-C must not take the delivery timeout; by cancelling a task inside the block while nothing is confirmed."""
    async with trouble(2) as (cluster, client):
        mirror = cluster.mirrors[0]
        started = asyncio.Event()

        async def block() -> None:
            async with client.producer("q", delivery_timeout_ms=60_000) as producer:
                await producer.send(b"before")
                mirror.pause()
                producer.send_nowait(b"while")
                started.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(block())
        try:
            await started.wait()
            task.cancel()
            async with asyncio.timeout(10):
                with pytest.raises(asyncio.CancelledError):
                    await task
        finally:
            mirror.resume()
