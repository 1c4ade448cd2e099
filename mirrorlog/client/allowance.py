"""The allowance: what a producer may have in one queue that is not confirmed, as its node has granted it.

The other half of the node's count (`queues/credit.py`): a batch counts from when it is sent. One at level `all` counts
no more with its confirm; one below with the node's word that the confirmed offset has passed it, since its own confirm
came earlier. A batch may be sent while less than the grant is open. So a producer waits for its own queue's copies, and
no other queue's producer on the same connection with it. With nothing open it may always be sent, and is the node's to
refuse: so no word that was lost or came early can stop a producer for good.

It belongs to a connection: a node begins anew with each. A node that ceases to be the log's master says so, and what
was open counts no more. Pure.
"""

from __future__ import annotations

from collections import deque

from mirrorlog.errors import Overloaded
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, CREDIT_ENDED, Confirm, Credit


class Allowance:
    """`granted`: bytes; `batches_max`: and so many batches; 0: no limit."""

    def __init__(self, granted: int, batches_max: int, *, confirms_tell: bool) -> None:
        """`confirms_tell`: at level `all`."""
        self._granted = granted
        self._batches_max = batches_max
        self._limited = batches_max > 0
        self._confirms_tell = confirms_tell
        self._size = 0
        self._batches = 0
        self._confirmed = 0
        self._waiting: deque[tuple[int, int]] = deque()

    @property
    def limited(self) -> bool:
        """Whether the node has such a limit."""
        return self._limited

    @property
    def open(self) -> bool:
        """Whether another batch may be sent."""
        if not self._limited or not self._batches:
            return True
        return self._size < self._granted and self._batches < self._batches_max

    def why(self) -> Overloaded:
        """What holds what may not be sent."""
        return Overloaded(
            f"{self._size} bytes in {self._batches} batches of this queue are not confirmed by all of its copies, the "
            f"node grants {self._granted} bytes and {self._batches_max} batches (credit_bytes, credit_batches)",
            limit="credit_bytes" if self._size >= self._granted else "credit_batches",
        )

    @property
    def open_bytes(self) -> int:
        """Bytes that were sent and count still."""
        return self._size

    def sent(self, size: int) -> None:
        if self._limited:
            self._size += size
            self._batches += 1

    def refused(self, size: int) -> None:
        """An attempt ended without a confirm: the node does not count it, or will say so when it sees more."""
        self._release(size)

    def confirmed(self, confirm: Confirm, size: int) -> None:
        """A batch of `size` bytes was."""
        if not self._limited:
            return
        end = confirm.log_offset + size
        if self._confirms_tell or confirm.flags & CONFIRM_DUPLICATE or end <= self._confirmed:
            self._release(size)
        else:
            self._waiting.append((end, size))

    def told(self, credit: Credit) -> None:
        """The node's word."""
        self._granted, self._batches_max = credit.granted, credit.batches
        self._confirmed = max(self._confirmed, credit.confirmed)
        while self._waiting and self._waiting[0][0] <= self._confirmed:
            self._release(self._waiting.popleft()[1])
        if credit.confirmed == CREDIT_ENDED:
            self._confirmed = 0  # the same node may write the log again, and count anew

    def _release(self, size: int) -> None:
        if self._limited:
            self._size -= size
            self._batches -= 1


UNLIMITED = Allowance(0, 0, confirms_tell=True)
"""Before a node has said anything. It counts for nobody, so it may be shared."""
