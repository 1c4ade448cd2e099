"""What a record that a group gave out shows of itself without `await`: as `mirrorlog.client.consumer.records`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlog.client.consumer.records import Attributed
from mirrorlog.commitlog.format.attributes import Attributes

if TYPE_CHECKING:
    from mirrorlog.client.subscription.delivered import Delivered
    from mirrorlog.client.subscription.leases import Leased
    from mirrorlog.commitlog.format.body import Header


class SyncGivenRecord(Attributed):
    """Only looks at the record behind it, so it may be used on every thread."""

    __slots__ = ()
    _awaited: Delivered | Leased

    @property
    def queue(self) -> str:
        return self._awaited.queue

    @property
    def queue_offset(self) -> int:
        return self._awaited.offset

    @property
    def value(self) -> bytes | None:
        return self._awaited.value

    @property
    def key(self) -> bytes | None:
        return self._awaited.key

    @property
    def headers(self) -> list[Header]:
        return self._awaited.headers

    @property
    def timestamp(self) -> int | None:
        """Event time, µs UTC."""
        return self._awaited.timestamp

    @property
    def append_time_us(self) -> int:  # type: ignore[override]  # only read
        """Of its batch, µs UTC."""
        return self._awaited.append_time_us

    @property
    def attributes(self) -> Attributes:  # type: ignore[override]  # only read
        """Of its batch: what its producer asked for."""
        return self._awaited.attributes
