"""What a subscription with auto-ack was sent and its program has not taken. Pure.

Such records are settled as they are sent, so they are in nobody's hands, and no prefetch would bound them: a program
that is slower than the queue would have its client's memory filled, and would lose all of that when it dies. So they
are counted here, and the client says what its program has taken (SETTLE, how extend: there is nothing to settle). The
prefetch bounds them; a turn that begins below it may go beyond it once.

Rejected: to stop at what the connection takes alone (the client reads it at once, for others on that connection wait);
to keep them in the subscriber's hand (hands are what comes back when a connection goes, and these do not).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Unread:
    """`records_max`, `bytes_max`: the prefetch; `size`: bytes that were sent for `records`."""

    records_max: int
    bytes_max: int
    records: int = 0
    size: int = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is to be sent; never while there is nothing."""
        return self.records >= self.records_max or (self.records > 0 and self.size >= self.bytes_max)

    def sent(self, records: int, size: int) -> None:
        self.records += records
        self.size += size

    def taken(self, records: int) -> None:
        """By the program, as its client says. More than was sent is all of it. Of the bytes they are counted in
        proportion."""
        records = min(records, self.records)
        if records > 0:
            self.size -= self.size * records // self.records
            self.records -= records
