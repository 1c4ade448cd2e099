"""Spans of OpenTelemetry, over real nodes: one trace from who sends over who receives to the settlement."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mirrorlog.client import Client
from mirrorlog.client.sync import Client as BlockingClient
from mirrorlog.client.tracing import context_of
from mirrorlog.errors import NotGranted, OutcomeUnknown, RecordTooLarge, Refused, Unroutable
from mirrorlog.testing import Cluster


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)  # one a process
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[Callable[[], list[ReadableSpan]]]:
    """Those that have ended since it was asked last."""

    def taken() -> list[ReadableSpan]:
        found = list(exporter.get_finished_spans())
        exporter.clear()
        return found

    taken()
    yield taken
    taken()


@pytest.fixture
async def traced(shared_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(*shared_cluster.servers, tracing=True) as connected:
        yield connected


def shape(span: ReadableSpan) -> tuple[str, SpanKind, StatusCode]:
    return span.name, span.kind, span.status.status_code


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_one_trace_leads_from_send_over_receive_to_ack(
    traced: Client, shared_cluster: Cluster, queue: str, spans: Callable[[], list[ReadableSpan]]
) -> None:
    """Goal: a record is followed through two programs. Method: one client sends under a span of its own, another one
    receives, handles and acks; each span is under the one before it, all in one trace."""
    with trace.get_tracer("shop").start_as_current_span("order") as order:
        async with traced.producer(queue) as producer:
            receipt = await producer.send(b"v", headers={"h": b"1"})
    async with Client(*shared_cluster.servers, tracing=True) as other, other.subscribe(queue) as subscription:
        delivery = await anext(subscription)
        assert [name for name, _ in delivery.headers] == ["h", "traceparent"]
        with trace.get_tracer("shop").start_as_current_span("handle", context=context_of(delivery)):
            await delivery.ack()
    send, ordered, receive, ack, handle = spans()
    assert [shape(each) for each in (send, receive, ack)] == [
        (f"send {queue}", SpanKind.PRODUCER, StatusCode.UNSET),
        (f"receive {queue}", SpanKind.CONSUMER, StatusCode.UNSET),
        (f"ack {queue}", SpanKind.CLIENT, StatusCode.UNSET),
    ]
    assert (ordered.name, parent_of(send)) == ("order", order.get_span_context().span_id)
    assert parent_of(receive) == parent_of(handle) == send.context.span_id
    assert parent_of(ack) == receive.context.span_id
    assert {span.context.trace_id for span in (send, receive, ack, handle)} == {order.get_span_context().trace_id}
    for span, operation in ((send, "send"), (receive, "receive"), (ack, "settle")):
        attributes = dict(span.attributes or {})
        assert attributes["messaging.system"] == "mirrorlog"
        assert attributes["messaging.destination.name"] == queue
        assert attributes["messaging.operation.type"] == operation
        assert attributes["messaging.message.id"] == str(receipt.queue_offset)


async def test_each_record_has_one_span_however_it_is_sent(
    traced: Client, queue: str, spans: Callable[[], list[ReadableSpan]]
) -> None:
    """Without waiting, in one batch, with a context that it has already, and published: the publisher's producers make
    none of their own."""
    async with traced.producer(queue) as producer:
        deliveries = [producer.send_nowait(b"%d" % number) for number in range(3)]
        assert spans() == []
        for each in deliveries:
            await each
        found = spans()
        assert [span.name for span in found] == [f"send {queue}"] * 3
        assert [dict(span.attributes or {})["messaging.mirrorlog.offset"] for span in found] == [0, 1, 2]
        await producer.send(b"v", headers={"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
        assert spans() == []
    async with traced.publisher("") as publisher:
        await publisher.publish(queue, b"v")
    (published,) = spans()
    assert shape(published) == (f"publish {queue}", SpanKind.PRODUCER, StatusCode.UNSET)


async def test_what_a_stream_gives_out_is_received_under_what_sent_it(
    traced: Client, queue: str, spans: Callable[[], list[ReadableSpan]]
) -> None:
    """Method: three records, one read, two in an iteration; of batches there are none."""
    async with traced.producer(queue) as producer:
        for value in (b"0", b"1", b"2"):
            await producer.send(value)
    sent = spans()
    async with traced.consumer(queue, until="confirmed") as consumer:
        (first,) = await consumer.read(1, timeout_ms=10_000)
        found = [first, *[record async for record in consumer]]
        await consumer.seek(0)
        assert [len(batch) async for batch in consumer.batches()]
    assert [record.value for record in found] == [b"0", b"1", b"2"]
    received = spans()
    assert [shape(span) for span in received] == [(f"receive {queue}", SpanKind.CONSUMER, StatusCode.UNSET)] * 3
    assert [parent_of(span) for span in received] == [span.context.span_id for span in sent]
    assert [dict(span.attributes or {})["messaging.mirrorlog.offset"] for span in received] == [0, 1, 2]


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_one_trace_leads_from_a_request_to_its_answer(
    traced: Client, queue: str, spans: Callable[[], list[ReadableSpan]], auto_ack: bool
) -> None:
    """Goal: who asks sees how he was answered. Method: the handler is another task with a span of nobody's; its reply
    is under what received the request, and what receives the reply is under that. Under a span of its own it is under
    that one."""

    async def handle() -> None:
        async with traced.subscribe(queue, auto_ack=auto_ack) as subscription:
            await (await anext(subscription)).reply(b"1")
            delivery = await anext(subscription)
            with trace.get_tracer("shop").start_as_current_span("handle", context=context_of(delivery)):
                await delivery.reply(b"2")

    handling = asyncio.create_task(handle())
    with trace.get_tracer("shop").start_as_current_span("ask") as ask:
        answer = await traced.request(queue, b"?", timeout_ms=20_000)
        await traced.request(queue, b"?", timeout_ms=20_000)
    await handling
    found = [span for span in spans() if span.context.trace_id == ask.get_span_context().trace_id]
    named = [span.name.partition(" ")[0] for span in found]
    assert sorted(named) == sorted([*["publish", "receive"] * 4, "handle", "ask"])
    by_id = {span.context.span_id: span.name for span in found}
    requests = [span for span in found if span.name == f"publish {queue}"]
    replies = [span for span in found if span.name.startswith("publish ") and span not in requests]
    assert [by_id[parent_of(span) or 0] for span in requests] == ["ask", "ask"]
    under = requests[0].name if auto_ack else f"receive {queue}"
    assert [by_id[parent_of(span) or 0] for span in replies] == [under, "handle"]
    assert dict(answer.headers)["traceparent"]


async def test_what_is_refused_or_unknown_has_its_status(
    traced: Client, queue: str, spans: Callable[[], list[ReadableSpan]]
) -> None:
    """Method: a record that is too large, a message that leads nowhere, one that is settled twice, and one whose
    producer is abandoned while it is on its way."""
    async with traced.producer(queue) as producer, traced.publisher("", mandatory=True) as publisher:
        with pytest.raises(RecordTooLarge):
            await producer.send(bytes(producer.limits.max_record_bytes + 1))
        with pytest.raises(Unroutable):
            await publisher.publish("", b"v")
        await producer.send(b"v")
        async with traced.subscribe(queue) as subscription:
            delivery = await anext(subscription)
            await delivery.ack()
            with pytest.raises(NotGranted):
                await delivery.ack()
        late = producer.send_nowait(b"late")
        await asyncio.sleep(0)
        producer.abandon()
        with pytest.raises((OutcomeUnknown, Refused)) as ended:
            await late
    failed = [span for span in spans() if span.status.status_code is StatusCode.ERROR]
    told = [(span.name.partition(" ")[0], dict(span.attributes or {})["error.type"]) for span in failed]
    assert told[:2] == [("send", RecordTooLarge.code), ("publish", Unroutable.code)]
    assert told[-1] == ("send", ended.value.code)
    assert failed[-1].status.description == ended.value.message


def test_the_blocking_client_traces_under_its_threads_span(
    shared_cluster: Cluster, new_name: Callable[[], str], spans: Callable[[], list[ReadableSpan]]
) -> None:
    with BlockingClient(*shared_cluster.servers, tracing=True) as client:
        queue = client.admin.declare(new_name()).name
        with trace.get_tracer("shop").start_as_current_span("order") as order, client.producer(queue) as producer:
            producer.send(b"1")
            producer.send_nowait(b"2").result()
            with client.publisher("") as publisher:
                publisher.publish(queue, b"3")
            with pytest.raises(RecordTooLarge):
                producer.send(bytes(2**28))
        with client.consumer(queue, until="confirmed") as consumer:
            assert len([*consumer.read(1, timeout_ms=10_000), *consumer]) == 3
        with client.subscribe(queue) as subscription:
            next(subscription).ack()
            second, third = subscription.receive(2, timeout_ms=10_000)
            second.nack(requeue=False)
            third.ack_nowait()
    found = spans()
    trace_id = order.get_span_context().trace_id
    assert [span.name.partition(" ")[0] for span in found] == [
        *("send", "send", "publish", "send", "order"),
        *("receive", "receive", "receive"),
        *("receive", "ack", "receive", "receive", "reject", "ack"),
    ]
    assert {span.context.trace_id for span in found} == {trace_id}
    assert found[3].status.status_code is StatusCode.ERROR


def test_what_the_loop_does_not_take_of_the_blocking_client_ends_its_span(
    shared_cluster: Cluster, new_name: Callable[[], str], spans: Callable[[], list[ReadableSpan]]
) -> None:
    """Method: producers that are abandoned right behind a record: it may have left by then, or not."""
    failed: list[bool] = []
    with BlockingClient(*shared_cluster.servers, tracing=True) as client:
        queue = client.admin.declare(new_name()).name
        for _ in range(20):
            producer = client.producer(queue).start()
            delivery = producer.send_nowait(b"v")
            producer.abandon()
            try:
                delivery.result(20)
                failed.append(False)
            except (Refused, OutcomeUnknown):
                failed.append(True)
    assert [span.status.status_code is StatusCode.ERROR for span in spans()] == failed


def test_without_the_package_it_is_said_what_to_install() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from mirrorlog.client.sync import Client
try:
    Client("127.0.0.1:1", tracing=True)
except BaseException as error:
    print(type(error).__name__, error.message)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.startswith("MissingDependency tracing needs opentelemetry")
    assert result.stdout.endswith("pip install 'mirrorlog[otel]'\n")
