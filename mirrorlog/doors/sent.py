"""A batch that was handed over, and the ways it can take."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from mirrorlog.client import Receipt
from mirrorlog.doors.incoming import Batch


class Sent(NamedTuple):
    """`outcome`: the receipt of the batch's first record, or what it raises. `idempotent`: the client may repeat it."""

    outcome: Awaitable[Receipt]
    idempotent: bool


class Way(Protocol):
    """How batches of one stream reach the node."""

    async def send(self, batch: Batch) -> Sent:
        """Hand a batch over; the next one goes behind it. Raises MirrorlogError when nothing was sent."""
