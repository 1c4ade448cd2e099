"""Bulk: many records as columns, cut into batches by arithmetic on their sizes; a record is never cut. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mirrorlog.client.producer.columns import (
    BinaryEntries,
    HeaderLists,
    SharedHeaders,
    TimestampEntries,
    binary_entries,
    header_entries,
    timestamp_entries,
)
from mirrorlog.client.producer.record import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, Header
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Int64s
from mirrorlog.commitlog.format.drafts import BodyWriter, Draft, Join
from mirrorlog.errors import BadRequest, RecordTooLarge
from mirrorlog.wire.messages.handshake import NodeLimits


@dataclass(frozen=True, slots=True)
class Bulk:
    """Many records as columns. `ends[i]`: what the records up to i take in a batch at most, in bytes."""

    values: BinaryEntries
    keys: BinaryEntries | None
    headers: SharedHeaders | HeaderLists | None
    timestamps: TimestampEntries | None
    ends: Int64s

    @classmethod
    def of(cls, values: Any, keys: Any, headers: Any, timestamps: Any, *, also: Sequence[Header] = ()) -> Self:
        """Columns as a caller gives them; `also`: headers of every record besides. Raises BadRequest for one of a wrong
        kind or of another length."""
        value_entries = binary_entries(values, "values")
        count = len(value_entries)
        sizes = value_entries.sizes() + RECORD_OVERHEAD_BYTES
        key_entries = None if keys is None else binary_entries(keys, "keys")
        if key_entries is not None:
            _check_length("keys", len(key_entries), count)
            sizes += key_entries.sizes()
        header_lists = header_entries(headers, also) if also or headers is not None else None
        if header_lists is not None:
            if isinstance(header_lists, HeaderLists):
                _check_length("headers", len(header_lists.lists), count)
            sizes += header_lists.sizes
        stamps = None if timestamps is None else timestamp_entries(timestamps)
        if stamps is not None:
            _check_length("timestamps", len(stamps), count)
        return cls(value_entries, key_entries, header_lists, stamps, np.cumsum(sizes))

    def __len__(self) -> int:
        return len(self.values)

    def check(self, limits: NodeLimits) -> None:
        """Raises RecordTooLarge, naming the first record that the node would refuse."""
        sizes = self.values.sizes()
        if (above := sizes > limits.max_record_bytes).any():
            index = int(above.argmax())
            raise RecordTooLarge(
                f"value {index} of {int(sizes[index])} bytes is above the node's max_record_bytes "
                f"({limits.max_record_bytes})"
            )
        whole = np.diff(self.ends, prepend=0)
        if (above := whole > limits.max_batch_bytes - BATCH_OVERHEAD_BYTES).any():
            index = int(above.argmax())
            raise RecordTooLarge(
                f"record {index} of {int(whole[index])} bytes is above max_batch_bytes ({limits.max_batch_bytes})"
            )

    def size_bytes(self, start: int, end: int) -> int:
        """What the records `start` up to `end` take in a batch at most."""
        return (int(self.ends[end - 1]) if end else 0) - (int(self.ends[start - 1]) if start else 0)

    def cut(self, start: int, batch_bytes: int, *, last_bytes: int = 0) -> int:
        """Where a batch ends that begins with record `start`: as many as fit, one at least; at the end of all where
        they take no more than `last_bytes`."""
        before = int(self.ends[start - 1]) if start else 0
        if int(self.ends[-1]) - before <= last_bytes:
            return len(self)
        return max(start + 1, int(self.ends.searchsorted(before + batch_bytes, side="right")))

    def cuts(self, batch_bytes: int, *, last_bytes: int = 0) -> Iterator[int]:
        """Where its batches end, in order; none when there are no records."""
        end = 0
        while end < len(self):
            end = self.cut(end, batch_bytes, last_bytes=last_bytes)
            yield end

    def draft(self, start: int, end: int, join: Join | None = None, attributes: Attributes | None = None) -> Draft:
        """The batch of the records `start` up to `end`, their bytes copied once. `join`: None takes new memory."""
        writer = BodyWriter(end - start, attributes)
        writer.add_values(*self.values.cut(start, end))
        if self.keys is not None and self.keys.any_present(start, end):
            writer.add_keys(*self.keys.cut(start, end))
        if self.headers is not None and self.headers.any_present(start, end):
            writer.add_headers(*self.headers.cut(start, end))
        if self.timestamps is not None and self.timestamps.any_present(start, end):
            writer.add_timestamps(*self.timestamps.cut(start, end))
        return writer.draft(join)


def _check_length(what: str, found: int, count: int) -> None:
    if found != count:
        raise BadRequest(f"{what} has {found} entries for {count} values")
