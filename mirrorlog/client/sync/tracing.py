"""Spans of the blocking client: begun where a program calls, for its context is that of its thread."""

from __future__ import annotations

from typing import Any

from mirrorlog.client.sync.producer import BlockingDelivery, BlockingProducer
from mirrorlog.client.sync.subscription import BlockingDelivered, BlockingSubscription
from mirrorlog.client.tracing import TracedProducer, TracedSubscription


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
