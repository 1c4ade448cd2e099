"""The sync face on real nodes: the same results as with `await`, from plain functions and from several threads."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from mirrorlog.client import Client as AwaitedClient
from mirrorlog.client.sync import Client, Delivery, Producer
from mirrorlog.client.sync.blocking import Calls
from mirrorlog.client.sync.record_buffer import Bunch
from mirrorlog.errors import (
    BadInput,
    BadRequest,
    Closed,
    ConnectionLost,
    NoSuchQueue,
    OffsetOutOfRange,
    OutcomeUnknown,
    RecordTooLarge,
    Refused,
    RequestTimeout,
)
from mirrorlog.testing import Cluster
from tests.process.clusters import eventually, fast_cluster

pytestmark = pytest.mark.process


@pytest.fixture
def client(shared_cluster: Cluster) -> Iterator[Client]:
    with Client(*shared_cluster.servers) as connected:
        yield connected


@pytest.fixture
def queue(client: Client, new_name: Callable[[], str]) -> str:
    return client.admin.declare(new_name()).name


class Unending:
    """What a delivery is that nothing ever ends."""

    def done(self) -> bool:
        return False

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.get_running_loop().create_future()


def publish(client: Client, queue: str, *sizes: int) -> None:
    """Batches of so many records; the values count from 0."""
    number = 0
    with client.producer(queue) as producer:
        for size in sizes:
            producer.send_many([b"%d" % each for each in range(number, number + size)])
            number += size


# --- Sending --------------------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_sent(client: Client, queue: str) -> None:
    """Every field and absence, by each way to send; the receipts name the places."""
    sent: list[dict[str, Any]] = [
        {"value": b"v", "key": b"k", "headers": [("a", b"1"), ("a", None)], "timestamp": 5},
        {"value": None},
        {"value": b"", "key": b"", "headers": {"ü": b""}, "timestamp": datetime(2026, 1, 2, tzinfo=UTC)},
    ]
    with client.producer(queue, confirm="all") as producer:
        receipts = [producer.send(**record) for record in sent]
        receipts += [delivery.result() for delivery in [producer.send_nowait(**record) for record in sent]]
        receipts += producer.send_many([b"x", None], keys=[None, b"y"])
    assert [receipt.queue_offset for receipt in receipts] == list(range(8))
    with client.consumer(queue, until="confirmed") as consumer:
        got = [(record.value, record.key, record.headers, record.timestamp) for record in consumer]
    expected = [
        (b"v", b"k", [("a", b"1"), ("a", None)], 5),
        (None, None, [], None),
        (b"", b"", [("ü", b"")], 1_767_312_000_000_000),
    ]
    assert got == [*expected, *expected, (b"x", None, [], None), (None, b"y", [], None)]


def test_ways_to_send_keep_one_order(client: Client, queue: str) -> None:
    """What is handed over first lands first; by mixing send_nowait, send and send_many in one thread."""
    number = 0
    with client.producer(queue) as producer:
        for _ in range(20):
            for _ in range(30):
                producer.send_nowait(b"%d" % number)
                number += 1
            producer.send_many([b"%d" % number, b"%d" % (number + 1)])
            producer.send(b"%d" % (number + 2))
            number += 3
    with client.consumer(queue, until="confirmed") as consumer:
        assert [int(record.value or b"") for record in consumer] == list(range(number))


def test_threads_share_a_producer(client: Client, queue: str) -> None:
    """Each thread's records keep their order and none is lost; by four threads, two ways to send."""
    count = 600

    def send(thread: int) -> None:
        for number in range(count):
            delivery = producer.send_nowait(b"%d %d" % (thread, number))
            if number % 100 == 0:
                delivery.result()

    with client.producer(queue, window_bytes=20_000) as producer, ThreadPoolExecutor(4) as threads:
        for sending in [threads.submit(send, thread) for thread in range(4)]:
            sending.result(60)
        producer.flush()
    with client.consumer(queue, until="confirmed") as consumer:
        got = [tuple(map(int, (record.value or b"").split())) for record in consumer]
    for thread in range(4):
        assert [number for sender, number in got if sender == thread] == list(range(count))


def test_a_full_window_makes_the_sender_wait(client: Client, queue: str) -> None:
    """No Overloaded to handle, and no more held than allowed; by ten windows' worth in one go."""
    with client.producer(queue, window_bytes=100_000) as producer:
        deliveries = [producer.send_nowait(bytes(10_000)) for _ in range(100)]
        assert [delivery.result().queue_offset for delivery in deliveries] == list(range(100))
        assert all(delivery.done() for delivery in deliveries)


def test_many_are_handed_over_without_waiting_for_them(client: Client, queue: str) -> None:
    """As one by one, in one order with what came before; by batches of a bulk between single records."""
    with client.producer(queue, batch_bytes=1_000) as producer:
        before = producer.send_nowait(b"before")
        bulk = producer.send_many_nowait([b"%d" % number for number in range(100)], keys=[b"k", None] * 50)
        behind = producer.send_nowait(b"behind")
        receipts = bulk.result()
        assert (len(bulk), bulk.done(), bulk.failures()) == (100, True, [])
        assert [receipt.queue_offset for receipt in receipts] == list(range(1, 101))
        assert (before.result().queue_offset, behind.result().queue_offset) == (0, 101)
        assert len(receipts.ranges) > 1
        assert len(producer.send_many_nowait([]).result()) == 0
    with client.consumer(queue, until="confirmed") as consumer:
        values = [record.value for record in consumer]
    assert values == [b"before", *(b"%d" % number for number in range(100)), b"behind"]


def test_a_bulk_waits_for_room_and_is_refused_in_the_call(client: Client, queue: str) -> None:
    """All of it or nothing is handed over; by windows' worths in a row, and by one wrong record in a bulk."""
    with client.producer(queue, window_bytes=100_000) as producer:
        bulks = [producer.send_many_nowait([bytes(10_000)] * 6) for _ in range(5)]
        with pytest.raises(BadInput, match="values"):
            producer.send_many_nowait([b"good", 5])
        offsets = [receipt.queue_offset for bulk in bulks for receipt in bulk.result()]
        assert offsets == list(range(30))
        assert producer.stats.sent == 30


def test_a_bulk_that_nobody_confirms_ends_and_says_which_records() -> None:
    """By a node that is stopped: waiting gives up when told so, the records end at their deadline."""
    with fast_cluster(1, min_in_sync=1) as cluster, Client(*cluster.servers) as client:
        master = cluster.master
        client.admin.declare("q")
        with client.producer("q", delivery_timeout_ms=1_000) as producer:
            producer.send(b"first")
            master.pause()
            try:
                bulk = producer.send_many_nowait([b"a", b"b"])
                with pytest.raises(RequestTimeout):
                    bulk.result(0.05)
                assert not bulk.done()
                with pytest.raises(OutcomeUnknown):
                    bulk.result()
            finally:
                master.resume()
            ((records, error),) = bulk.failures()
            assert (records, type(error)) == (range(2), OutcomeUnknown)


def test_bad_records_are_refused_in_the_call(client: Client, queue: str) -> None:
    """In the caller's thread, and nothing of them is stored; one kind of mistake at a time."""
    with client.producer(queue) as producer:
        for bad in ({"value": "\ud800"}, {"value": b"", "key": 5}, {"value": b"", "headers": 3}):
            with pytest.raises(BadInput):
                producer.send_nowait(**bad)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="time zone"):
            producer.send_nowait(b"", timestamp=datetime(2026, 1, 1))
        with pytest.raises(RecordTooLarge, match="max_record_bytes"):
            producer.send_nowait(bytes(5 * 1024 * 1024))
        with pytest.raises(RecordTooLarge, match="max_batch_bytes"):
            producer.send_nowait(b"", key=bytes(9 * 1024 * 1024))
        assert producer.send(b"good").queue_offset == 0


def test_wrong_options_and_names_raise_at_once(client: Client, new_name: Callable[[], str]) -> None:
    """Where they are given, not at the first record; by each of them."""
    with pytest.raises(BadRequest, match="confirm level"):
        client.producer("q", confirm="most")
    with pytest.raises(BadRequest, match="max_bytes"):
        client.consumer("q", max_bytes=0)
    with pytest.raises(NoSuchQueue):
        client.producer(new_name()).start()
    with pytest.raises(NoSuchQueue):
        client.consumer(new_name()).start()
    with pytest.raises(Closed, match="not started"):
        client.producer("q").send(b"v")
    for send_many in (client.producer("q").send_many, client.producer("q").send_many_nowait):
        with pytest.raises(Closed, match=r"use it with `with`, or call start\(\)"):
            send_many([b"v"])
    with pytest.raises(Closed, match="not started"):
        next(iter(client.consumer("q")))
    with pytest.raises(Closed, match="not started"):
        client.consumer("q").read(timeout_ms=100)
    with pytest.raises(Closed, match="not started"):
        client.consumer("q").position  # noqa: B018


def test_a_delivery_can_be_waited_for_again() -> None:
    """A time limit ends the wait and not the record; by a node that stands still for a moment."""
    with fast_cluster(1, min_in_sync=1) as cluster, Client(*cluster.servers) as client:
        master = cluster.master
        client.admin.declare("q")
        with client.producer("q") as producer:
            producer.send(b"first")
            master.pause()
            try:
                delivery = producer.send_nowait(b"second")
                with pytest.raises(RequestTimeout, match=r"no answer within 0\.1 s"):
                    delivery.result(0.1)
                assert not delivery.done()
            finally:
                master.resume()
            assert delivery.result().queue_offset == 1


def test_what_a_node_does_not_confirm_ends_at_its_deadline() -> None:
    """No call waits for ever; by a node that is gone: the result, flush and close all say so."""
    with fast_cluster(1, min_in_sync=1) as cluster, Client(*cluster.servers) as client:
        master = cluster.master
        client.admin.declare("q")
        producer = client.producer("q", delivery_timeout_ms=300).start()
        producer.send(b"first")
        master.kill()
        with pytest.raises((Refused, OutcomeUnknown)):
            producer.send(b"second")
        producer.send_nowait(b"third")
        with pytest.raises((Refused, OutcomeUnknown)):
            producer.flush()
        producer.send_nowait(b"fourth")
        with pytest.raises((Refused, OutcomeUnknown)):
            producer.close()


def test_a_producer_that_nobody_keeps_is_flushed_at_the_close(
    client: Client, queue: str, shared_cluster: Cluster
) -> None:
    """Its records are not lost in silence; by dropping it right behind the last one."""
    with Client(*shared_cluster.servers) as other:
        producer = other.producer(queue).start()
        for number in range(20_000):
            producer.send_nowait(b"%d" % number)
        del producer
        gc.collect()
    with client.consumer(queue, until="confirmed") as consumer:
        assert sum(len(batch) for batch in consumer.batches()) == 20_000


def test_a_producer_that_was_closed_is_let_go(client: Client, queue: str) -> None:
    """A client that lives long does not collect them; by closing one and abandoning the other."""
    gone = []
    for end in (Producer.close, Producer.abandon):
        producer = client.producer(queue).start()
        producer.send(b"v")
        end(producer)
        gone.append(weakref.ref(producer))
        del producer
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_waiting_for_a_record_ends_when_the_record_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline begins when the window lets it in; by a node that stands still for longer than one deadline."""
    monkeypatch.setattr("mirrorlog.client.sync.producer.MARGIN_S", 0.5)
    with fast_cluster(1, min_in_sync=1) as cluster, Client(*cluster.servers) as client:
        master = cluster.master
        client.admin.declare("q")
        with client.producer("q", delivery_timeout_ms=300, window_bytes=1_000) as producer:
            producer.send(b"first")
            master.pause()
            try:
                deliveries = [producer.send_nowait(bytes(900)) for _ in range(5)]
                for delivery in deliveries:
                    with pytest.raises((Refused, OutcomeUnknown)):
                        delivery.result()
                    assert delivery.done()
            finally:
                master.resume()


def test_a_record_that_never_ends_is_of_unknown_outcome() -> None:
    """A publish never ends as RequestTimeout; by one that nothing ends, and little patience."""
    bunch = Bunch()
    bunch.outcomes.append(Unending())  # type: ignore[arg-type]
    bunch.taken.set()
    with pytest.raises(OutcomeUnknown, match="has not ended"):
        asyncio.run(bunch.ended(0, patience_s=0.01))


def test_a_change_that_is_under_way_when_the_client_is_closed_is_of_unknown_outcome() -> None:
    """Goal: nobody is told that nothing was done of what may be. Method: the thread is closed from within the change,
    and from within a question; and before either has begun."""
    for act, error in ((Calls.change, OutcomeUnknown), (Calls.call, Closed)):
        calls = Calls(AwaitedClient("127.0.0.1:1"))
        thread = calls.thread

        async def closes(close: Callable[[], None] = thread.close) -> None:
            threading.Thread(target=close).start()
            await asyncio.Event().wait()

        with pytest.raises(error, match="closed meanwhile"):
            act(calls, closes, what="it")
        with pytest.raises(Closed, match="is closed"):
            act(calls, closes, what="it")
        assert calls.end() is thread


def test_an_error_that_is_none_of_ours_ends_its_records_and_not_the_producer(client: Client, queue: str) -> None:
    """Whatever happens on the loop, every record ends and the next ones land; by a producer that runs out of memory."""
    with client.producer(queue) as producer:
        real = producer._of.send_nowait

        def once(*arguments: Any, **options: Any) -> Any:
            producer._of.send_nowait = real  # type: ignore[method-assign]
            raise MemoryError("once")

        producer._of.send_nowait = once  # type: ignore[method-assign]
        delivery = producer.send_nowait(b"lost")
        with pytest.raises(OutcomeUnknown, match="MemoryError"):
            delivery.result(20)
        assert producer.send(b"next").queue_offset == 0
        producer.flush()


def test_an_error_is_told_once(client: Client, queue: str) -> None:
    """Who waited for a record has heard; flush tells of the others, send_many of its own; by records refused late."""
    with client.producer(queue) as producer:
        real = producer._of.send_nowait

        def refuse(*arguments: Any, **options: Any) -> Any:
            producer._of.send_nowait = real  # type: ignore[method-assign]
            raise RecordTooLarge("the limit of another node")

        producer._of.send_nowait = refuse  # type: ignore[method-assign]
        with pytest.raises(RecordTooLarge):
            producer.send(b"heard")
        assert len(producer.send_many([b"a", b"b"])) == 2
        producer.flush()
        producer._of.send_nowait = refuse  # type: ignore[method-assign]
        producer.send_nowait(b"not heard")
        assert len(producer.send_many([b"c"])) == 1
        with pytest.raises(RecordTooLarge):
            producer.flush()
        producer.flush()


def test_an_interrupt_before_the_wake_up_loses_no_record(client: Client, queue: str) -> None:
    """What was handed over is sent all the same; by a KeyboardInterrupt where the loop would be woken."""
    with client.producer(queue) as producer:
        real = producer._thread.call_soon

        def interrupted(function: Callable[[], object]) -> None:
            producer._thread.call_soon = real  # type: ignore[method-assign]
            raise KeyboardInterrupt

        producer._thread.call_soon = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            producer.send_nowait(b"v")
        with ThreadPoolExecutor(1) as thread:
            thread.submit(producer.flush).result(20)
        assert producer.send(b"next").queue_offset == 1


# --- Reading --------------------------------------------------------------------------------------------------------


def test_batches_records_and_reads_go_on_behind_one_another(client: Client, queue: str) -> None:
    """One position for all ways to read; by leaving each in the middle."""
    publish(client, queue, 3, 4, 5)
    with client.consumer(queue, until="confirmed") as consumer:
        for batch in consumer.batches():
            assert (batch.first, batch.next) == (0, 3)
            break
        for record in consumer:
            if record.queue_offset == 4:
                break
        assert consumer.position.queue_offset == 5
        assert [record.queue_offset for record in consumer.read(3, timeout_ms=10_000)] == [5, 6, 7]
        assert [record.queue_offset for record in consumer] == [8, 9, 10, 11]
        assert consumer.read(timeout_ms=10_000) == []


def test_reading_waits_for_a_record_and_ends_in_time(client: Client, queue: str) -> None:
    """Long before its longest wait when one comes, and with nothing when none does; by publishing behind a reader."""
    with client.consumer(queue, max_wait_ms=60_000) as consumer:
        assert consumer.read(timeout_ms=20) == []
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(next, iter(consumer))
            publish(client, queue, 1)
            assert waiting.result(20).value == b"0"


def test_a_read_without_patience_gets_the_record_in_the_end(client: Client, queue: str) -> None:
    """A poll loop must get on: each call begins a fetch that the next ones find; by `timeout_ms=0` again and again."""
    publish(client, queue, 3)
    with client.consumer(queue) as consumer:
        found: list[bytes | None] = []

        def poll() -> bool:
            found.extend(record.value for record in consumer.read(timeout_ms=0))
            return len(found) == 3

        eventually(poll, "three records")
    assert found == [b"0", b"1", b"2"]


def test_an_error_behind_what_was_found_waits_for_the_next_read() -> None:
    """Nothing is skipped; by killing the node when part of what is asked for is here."""
    with fast_cluster(1, min_in_sync=1) as cluster, Client(*cluster.servers, request_timeout_ms=300) as client:
        master = cluster.master
        client.admin.declare("q")
        publish(client, "q", 3)
        with client.consumer("q") as consumer:
            assert [record.value for record in consumer.read(1, timeout_ms=10_000)] == [b"0"]
            master.kill()
            assert [record.value for record in consumer.read(9, timeout_ms=30_000)] == [b"1", b"2"]
            with pytest.raises(ConnectionLost):
                consumer.read(9, timeout_ms=30_000)


def test_seek_holds_in_an_iteration_that_is_under_way(client: Client, queue: str) -> None:
    """Back and forth, within a batch and beyond it; by seeking inside the loop."""
    publish(client, queue, 4, 4)
    jumps = {1: 6, 6: 3, 4: 0}
    found = []
    with client.consumer(queue, until="confirmed") as consumer:
        for record in consumer:
            found.append(record.queue_offset)
            if (target := jumps.pop(record.queue_offset, None)) is not None:
                consumer.seek(target)
    assert found == [0, 1, 6, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("by", ["records", "batches", "reads"])
def test_threads_share_a_consumer(client: Client, queue: str, by: str) -> None:
    """Each record goes to exactly one of them; by four threads that read one consumer until it ends."""
    sizes = [1, 50, 3, 200, 7, 1, 90]
    publish(client, queue, *sizes)

    def read() -> list[int]:
        if by == "records":
            return [record.queue_offset for record in consumer]
        if by == "batches":
            return [offset for batch in consumer.batches() for offset in range(batch.first, batch.next)]
        return [record.queue_offset for _ in range(30) for record in consumer.read(10, timeout_ms=5_000)]

    with client.consumer(queue, until="confirmed") as consumer, ThreadPoolExecutor(4) as threads:
        found = [reading.result(60) for reading in [threads.submit(read) for _ in range(4)]]
    assert sorted(offset for part in found for offset in part) == list(range(sum(sizes)))
    assert all(part == sorted(part) for part in found)


def test_a_group_goes_on_where_it_committed(client: Client, queue: str) -> None:
    """By two consumers one after the other, and by admin."""
    publish(client, queue, 5)
    with client.consumer(queue, group="g") as consumer:
        consumer.read(3, timeout_ms=10_000)
        consumer.commit()
    stored = client.admin.position(queue, "g")
    assert stored is not None
    assert stored.queue_offset == 3
    with client.consumer(queue, group="g", until="confirmed") as consumer:
        assert [record.queue_offset for record in consumer] == [3, 4]
    with client.consumer(queue) as consumer, pytest.raises(BadRequest, match="without a group"):
        consumer.commit()


def test_errors_of_reading_surface(client: Client, queue: str) -> None:
    """And the consumer can be used on; by an offset where nothing is."""
    publish(client, queue, 2)
    with client.consumer(queue, start=7) as consumer:
        with pytest.raises(OffsetOutOfRange):
            next(iter(consumer))
        consumer.seek(1)
        assert [record.value for record in consumer.read(1, timeout_ms=10_000)] == [b"1"]


def test_admin_answers(client: Client, queue: str, shared_cluster: Cluster) -> None:
    """Each method once."""
    publish(client, queue, 2)
    assert queue in [each.name for each in client.admin.queues()]
    assert [each.name for each in client.admin.metadata([queue]).queues] == [queue]
    assert client.admin.status().node_id in shared_cluster.nodes
    assert client.admin.find_offset(queue, 0) == 0


def blocked_in(thread: int, function: str) -> bool:
    """Whether that thread is in a call of `function` of concurrent.futures now."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_name == function and "concurrent" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


# --- Ends -----------------------------------------------------------------------------------------------------------


def test_closing_ends_the_thread_and_later_calls_say_so(client: Client, queue: str, shared_cluster: Cluster) -> None:
    """Nothing is left behind, and nothing hangs; by every kind of call after the close."""
    before = threading.active_count()
    other = Client(*shared_cluster.servers).connect()
    producer = other.producer(queue).start()
    consumer = other.consumer(queue).start()
    delivery = producer.send_nowait(b"v")
    other.close()
    other.close()
    assert threading.active_count() == before
    assert delivery.result().queue_offset == 0  # close flushed it
    calls: list[Callable[[], object]] = [
        other.connect,
        lambda: producer.send_nowait(b"v"),
        lambda: producer.send(b"v"),
        lambda: producer.send_many_nowait([b"v"]),
        producer.flush,
        lambda: next(iter(consumer)),
        lambda: consumer.read(timeout_ms=100),
        consumer.commit,
        lambda: consumer.seek(0),
        other.admin.queues,
    ]
    for call in calls:
        with pytest.raises((Closed, BadRequest), match=r"closed|group"):
            call()


def test_closing_wakes_a_reader_in_another_thread(shared_cluster: Cluster, client: Client, queue: str) -> None:
    """It gets ConnectionLost instead of waiting on; by closing the client under it."""
    other = Client(*shared_cluster.servers).connect()
    consumer = other.consumer(queue, max_wait_ms=60_000).start()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, iter(consumer))
        other.close()
        with pytest.raises(Closed, match="closed"):
            waiting.result(20)


def test_closing_a_consumer_wakes_its_reader_in_another_thread(client: Client, queue: str) -> None:
    """It gets ConnectionLost instead of reading on; by closing the consumer under it."""
    consumer = client.consumer(queue, max_wait_ms=60_000).start()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, iter(consumer))
        consumer.close()
        with pytest.raises(Closed, match="closed"):
            waiting.result(20)


def test_leaving_by_an_interrupt_does_not_wait_for_confirms() -> None:
    """Whoever presses Ctrl-C wants to go; by a KeyboardInterrupt in the block while the node stands still."""
    with fast_cluster(1, min_in_sync=1) as cluster:
        master = cluster.master
        with Client(*cluster.servers) as client:
            client.admin.declare("q")
        deliveries: list[Delivery] = []

        def interrupted() -> None:
            with Client(*cluster.servers) as client, client.producer("q") as producer:
                master.pause()
                deliveries.append(producer.send_nowait(b"v"))
                raise KeyboardInterrupt

        started = time.monotonic()
        try:
            with pytest.raises(KeyboardInterrupt):
                interrupted()
            assert time.monotonic() - started < 10  # far below the delivery timeout
            with pytest.raises((Refused, OutcomeUnknown)):
                deliveries[0].result()
        finally:
            master.resume()


def test_what_was_handed_over_when_the_thread_ends_is_of_unknown_outcome() -> None:
    """A publish never ends as Closed, which says nothing of what was sent; by a node that stands still: one
    waits for a record, one for columns, both while the thread is closed and behind that."""
    with fast_cluster(1, min_in_sync=1) as cluster:
        master = cluster.master
        with Client(*cluster.servers) as other:
            other.admin.declare("q")
        client = Client(*cluster.servers).connect()
        producer = client.producer("q").start()
        producer.send(b"first")
        master.pause()
        try:
            delivery, bulk = producer.send_nowait(b"v"), producer.send_many_nowait([b"w"])
            with ThreadPoolExecutor(3, thread_name_prefix="waits") as threads:
                waiting = [threads.submit(each) for each in (delivery.result, bulk.result)]
                waiting.append(threads.submit(producer.send_many, [b"x"]))
                named = [each.ident or 0 for each in threading.enumerate() if each.name.startswith("waits")]
                while not all(blocked_in(each, "result") for each in named):
                    time.sleep(0.01)
                client._calls.thread.close()
                for each in waiting:
                    with pytest.raises(OutcomeUnknown, match="closed"):
                        each.result()
            for result in (delivery.result, bulk.result):
                with pytest.raises(OutcomeUnknown, match="closed"):
                    result()
        finally:
            master.resume()
            with suppress(Closed):
                client.close()


def test_ctrl_c_ends_a_wait(client: Client, queue: str) -> None:
    """A reader that waits for a record is interrupted at once and can go on; by a real SIGINT to this process."""
    main = threading.get_ident()

    def interrupt() -> None:
        eventually(lambda: blocked_in(main, "result"), "the reader waits")
        os.kill(os.getpid(), signal.SIGINT)

    with client.consumer(queue, max_wait_ms=60_000) as consumer, ThreadPoolExecutor(1) as thread:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal comes while it waits
            thread.submit(interrupt)
            next(iter(consumer))
        publish(client, queue, 1)
        assert [record.value for record in consumer.read(1, timeout_ms=10_000)] == [b"0"]


def test_ctrl_c_in_a_read_loses_no_record(client: Client, queue: str) -> None:
    """The position moves when records are returned; by a SIGINT when part of what is asked for is here."""
    main = threading.get_ident()

    def interrupt() -> None:
        eventually(lambda: blocked_in(main, "result"), "the reader waits")
        os.kill(os.getpid(), signal.SIGINT)

    publish(client, queue, 3)
    with client.consumer(queue, max_wait_ms=60_000) as consumer, ThreadPoolExecutor(1) as thread:
        assert [record.value for record in consumer.read(1, timeout_ms=10_000)] == [b"0"]
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal comes while it waits
            thread.submit(interrupt)
            consumer.read(5, timeout_ms=60_000)
        assert consumer.position.queue_offset == 1
        assert [record.value for record in consumer.read(2, timeout_ms=10_000)] == [b"1", b"2"]


def test_a_forked_child_is_told(client: Client, queue: str) -> None:
    """The thread is not there in the child: calls fail at once instead of hanging; by forking."""
    with client.producer(queue) as producer:
        producer.send(b"parent")
        child = os.fork()
        if child == 0:
            told = 0
            try:
                for call in (client.admin.queues, lambda: producer.send_nowait(b"child"), producer.flush):
                    with pytest.raises(Closed, match="fork"):
                        call()
                    told += 1
                client.close()
                told += 1
            finally:
                os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert producer.send(b"parent").queue_offset == 1
