"""Spans of OpenTelemetry for `Client(tracing=True)`, and their context in records' headers: `traceparent` and
`tracestate`, as W3C has them. One trace leads from who sends over who receives to the settlement.

    send, publish   PRODUCER, from the call to the confirm; its context goes with the record
    receive         CONSUMER, for each record that a consumer or subscription gives out, under the record's context
    ack, nack, …    CLIENT, under the span that received it; without waiting it ends at once

A record that has a context already is sent as it is: it is somebody else's span. A program's own work on a record is
put under it by `context_of`, as the reply to a request is. Records that go, or are read, as columns, and those of a
transaction, have no spans of their own. Names are those of the semantic conventions for messaging.

The traced classes stand beside the others, so that who does not trace pays nothing, for any record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import datetime
from typing import Any, Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span, get_tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mirrorlog.client.consumer.consumer import Consumer
from mirrorlog.client.consumer.records import ConsumedRecord, GrantedRecord
from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.producer.deliveries import Delivery
from mirrorlog.client.producer.producer import Producer
from mirrorlog.client.producer.record import as_headers
from mirrorlog.client.properties import Headers, SendOptions
from mirrorlog.client.publisher.publications import Publication, Published
from mirrorlog.client.publisher.publisher import Publisher
from mirrorlog.client.subscription.delivered import Delivered
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.client.subscription.unacked import Granted
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Header
from mirrorlog.errors import MirrorlogError, Overloaded
from mirrorlog.wire.frames import How

_PARENT: Final = "traceparent"
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_RECEIVED_MAX: Final = 100_000
_SETTLED: Final = {How.ACK: "ack", How.RETURN: "nack", How.DEAD: "reject", How.RELEASE: "release"}


def context_of(record: ConsumedRecord | GrantedRecord) -> Context:
    """The context that its headers carry, for spans of a program's own: `start_as_current_span("handle",
    context=context_of(record))`. Empty where they carry none."""
    carrier = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    return _PROPAGATOR.extract(carrier, Context())


def _begun(operation: str, kind: SpanKind, where: str, *, name: str = "", context: Context | None = None) -> Span:
    return get_tracer("mirrorlog").start_span(
        f"{name or operation} {where}",
        context=context,
        kind=kind,
        attributes={
            "messaging.system": "mirrorlog",
            "messaging.destination.name": where,
            "messaging.operation.name": name or operation,
            "messaging.operation.type": operation,
        },
    )


def _end(span: Span, outcome: object) -> None:
    if isinstance(outcome, MirrorlogError):
        span.set_attribute("error.type", outcome.code)
        span.set_status(Status(StatusCode.ERROR, outcome.message))
    elif isinstance(outcome, Receipt):
        _place(span, outcome.queue_offset)
    elif isinstance(outcome, Published) and len(outcome.receipts) == 1:
        _place(span, next(iter(outcome.receipts.values())).queue_offset)
    span.end()


def _place(span: Span, queue_offset: int) -> None:
    span.set_attribute("messaging.message.id", str(queue_offset))
    span.set_attribute("messaging.mirrorlog.offset", queue_offset)


class SendSpans:
    """Spans of what was handed over and has not ended, by the context that went with it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._open: dict[bytes | None, Span] = {}

    def begin(self, headers: Headers | None, name: str = "send") -> tuple[Sequence[Header], bytes | None]:
        """The record's headers with a context, and of what span; None where they had one. Raises BadInput."""
        pairs = as_headers(headers)
        if any(header == _PARENT for header, _ in pairs):
            return pairs, None
        span = _begun("send", SpanKind.PRODUCER, self._where, name=name)
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(span))
        parent = carrier.get(_PARENT, "").encode() or None
        if parent is not None:  # else nobody has set a tracer up
            self._open[parent] = span
        return [*pairs, *((each, text.encode()) for each, text in carrier.items())], parent

    def end(self, parent: bytes | None, outcome: object) -> None:
        span = self._open.pop(parent, None)
        if span is not None:
            _end(span, outcome)

    def follow(self, headers: Headers | None, delivery: Delivery) -> Delivery:
        """End the span of a record with what becomes of it."""
        parent = next((value for name, value in as_headers(headers) if name == _PARENT), None)
        if parent in self._open:
            delivery.when_ended(lambda outcome: self.end(parent, outcome))
        return delivery


class TracedProducer(Producer):
    """As `Producer`, with spans."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.spans = SendSpans(self.queue)

    async def send(self, value: Any, *, headers: Headers | None = None, **more: Any) -> Receipt:
        pairs, parent = self.spans.begin(headers)
        try:
            return await super().send(value, headers=pairs, **more)
        except BaseException as error:
            self.spans.end(parent, error)  # what was not handed over, or is not waited for
            raise

    def send_nowait(self, value: Any, *, headers: Headers | None = None, **more: Any) -> Delivery:
        pairs, parent = self.spans.begin(headers)
        try:
            return super().send_nowait(value, headers=pairs, **more)
        except MirrorlogError as error:
            if parent is None and not isinstance(error, Overloaded):  # begun by a face, which waits for room itself
                parent = dict(pairs).get(_PARENT)
            self.spans.end(parent, error)
            raise

    def _send_alone(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers | None,
        timestamp: datetime | int | None,
        attributes: Attributes | None,
    ) -> Delivery:
        return self.spans.follow(headers, super()._send_alone(value, key, headers, timestamp, attributes))

    def _hand_over(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers | None,
        timestamp: datetime | int | None,
        attributes: Attributes | None,
    ) -> Delivery:
        return self.spans.follow(headers, super()._hand_over(value, key, headers, timestamp, attributes))


class TracedPublisher(Publisher):
    """As `Publisher`, with spans; its queues' producers send under them."""

    async def hand_over(
        self, routing_key: str, value: Any, *, headers: Headers | None = None, **more: Any
    ) -> Publication:
        spans = SendSpans(self.exchange or routing_key)
        pairs, parent = spans.begin(headers, "publish")
        try:
            publication = await super().hand_over(routing_key, value, headers=pairs, **more)
        except MirrorlogError as error:
            spans.end(parent, error)
            raise
        publication.when_ended(lambda outcome: spans.end(parent, outcome))
        return publication


def received(record: ConsumedRecord | GrantedRecord) -> Span:
    """It was given out. Also for faces that give it out themselves."""
    span = _begun("receive", SpanKind.CONSUMER, record.queue, context=context_of(record))
    _place(span, record.queue_offset)
    span.end()
    return span


class TracedConsumer(Consumer):
    """As `Consumer`, with spans of the records that it gives out one by one."""

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        async for record in super().__aiter__():
            received(record)
            yield record

    async def read(self, max_records: int | None = None, *, timeout_ms: int) -> list[ConsumedRecord]:
        found = await super().read(max_records, timeout_ms=timeout_ms)
        for each in found:
            received(each)
        return found


class TracedSubscription(Subscription):
    """As `Subscription`, with spans."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        # Of what was given out and not settled, by queue offset.
        self._received: dict[int, Context] = {}

    def received(self, delivered: GrantedRecord) -> None:
        """It was given out. For a face with records of its own, too."""
        span = received(delivered)
        if not self._message.auto_ack:
            self._received[delivered.offset] = set_span_in_context(span)
            if len(self._received) > _RECEIVED_MAX:  # what was lost with its session is never settled
                del self._received[next(iter(self._received))]

    def _all(self, found: list[Delivered]) -> list[Delivered]:
        for each in found:
            self.received(each)
        return found

    async def __anext__(self) -> Delivered:
        delivered = await super().__anext__()
        self.received(delivered)
        return delivered

    async def receive(self, max_records: int | None = None, *, timeout_ms: int) -> list[Delivered]:
        return self._all(await super().receive(max_records, timeout_ms=timeout_ms))

    async def take(self, records_max: int) -> list[Delivered]:
        return self._all(await super().take(records_max))

    async def answer(self, record: GrantedRecord, value: bytes | str | None, asked: SendOptions) -> None:
        if get_current_span().get_span_context().is_valid:  # the program's own
            return await super().answer(record, value, asked)
        token = attach(self._received.get(record.offset) or context_of(record))
        try:
            await super().answer(record, value, asked)
        finally:
            detach(token)

    def settle(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> Coroutine[Any, Any, None]:
        settled = super().settle(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)
        span = self._settling_span(first, how, multiple=multiple)
        return settled if span is None else _spanned(span, settled)

    def settle_nowait(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> None:
        span = self._settling_span(first, how, multiple=multiple)
        try:
            super().settle_nowait(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)
        except MirrorlogError as error:
            if span is not None:
                _end(span, error)
            raise
        if span is not None:
            _end(span, None)

    def _settling_span(self, first: int, how: How, *, multiple: bool) -> Span | None:
        """None for what was not given out record by record, and for what only takes longer."""
        if how not in _SETTLED:
            return None
        context = self._received.pop(first, None)
        if multiple:
            for each in [offset for offset in self._received if offset <= first]:
                del self._received[each]
        if context is None:
            return None
        span = _begun("settle", SpanKind.CLIENT, self.queue, name=_SETTLED[how], context=context)
        _place(span, first)
        return span


async def _spanned(span: Span, settled: Coroutine[Any, Any, None]) -> None:
    outcome: MirrorlogError | None = None
    try:
        await settled
    except MirrorlogError as error:
        outcome = error
        raise
    finally:
        _end(span, outcome)
