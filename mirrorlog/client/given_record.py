"""A record that a group gave out, under a subscription or a lease: what both kinds have of the record itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlog.client.attributed import Attributed

if TYPE_CHECKING:
    from mirrorlog.client.consumed import ConsumedRecord
    from mirrorlog.commitlog.attributes import Attributes
    from mirrorlog.commitlog.body import Header


class GivenRecord(Attributed):
    """`offset`: its queue offset; `timestamp`: event time, µs UTC, None when the producer gave none; `append_time_us`
    and `attributes`: of its batch, µs UTC."""

    __slots__ = ("append_time_us", "attributes", "headers", "key", "offset", "queue", "timestamp", "value")

    def __init__(self, record: ConsumedRecord) -> None:
        self.queue: str
        self.offset: int
        self.value: bytes | None
        self.key: bytes | None
        self.headers: list[Header]
        self.timestamp: int | None
        self.append_time_us: int
        self.attributes: Attributes
        (
            self.queue,
            self.offset,
            self.value,
            self.key,
            self.headers,
            self.timestamp,
            self.append_time_us,
            self.attributes,
        ) = record

    @property
    def queue_offset(self) -> int:
        """`offset`, by the name that consumed records have for it."""
        return self.offset
