"""Spans of the blocking client: begun where a program calls, for its context is that of its thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirrorlog.client.consumer.records import ConsumedRecord
from mirrorlog.client.sync.consumer import BlockingConsumer
from mirrorlog.client.sync.producer import BlockingDelivery, BlockingProducer
from mirrorlog.client.sync.subscription import BlockingDelivered, BlockingSubscription
from mirrorlog.client.tracing import TracedProducer, TracedSubscription, received


class TracedBlockingProducer(BlockingProducer):
    """As `mirrorlog.client.tracing.TracedProducer`."""

    _of: TracedProducer

    def send_nowait(self, value: Any, *, headers: Any = None, **more: Any) -> BlockingDelivery:
        pairs, parent = self._of.spans.begin(headers)
        try:
            return super().send_nowait(value, headers=pairs, **more)
        except BaseException as error:
            self._of.spans.end(parent, error)
            raise


class TracedBlockingConsumer(BlockingConsumer):
    """As `mirrorlog.client.tracing.TracedConsumer`."""

    def __iter__(self) -> Iterator[ConsumedRecord]:
        for record in super().__iter__():
            received(record)
            yield record

    def read(self, max_records: int | None = None, *, timeout_ms: int) -> list[ConsumedRecord]:
        found = super().read(max_records, timeout_ms=timeout_ms)
        for each in found:
            received(each)
        return found


class TracedBlockingSubscription(BlockingSubscription):
    """As `mirrorlog.client.tracing.TracedSubscription`."""

    _of: TracedSubscription

    def __next__(self) -> BlockingDelivered:
        delivered = super().__next__()
        self._of.received(delivered)
        return delivered

    def receive(self, max_records: int | None = None, *, timeout_ms: int) -> list[BlockingDelivered]:
        found = super().receive(max_records, timeout_ms=timeout_ms)
        for each in found:
            self._of.received(each)
        return found
