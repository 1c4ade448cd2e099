"""Leased records, settled by calls that block."""

from __future__ import annotations

from typing import Final

from mirrorlog.client.subscription.leases import ClientLeases, LeasedRecord
from mirrorlog.client.sync.blocking import Face, changes

TOLD: Final = ("redelivered", "attempts", "ready")
"""What is known of a leased record besides."""


class BlockingLeasing(Face[ClientLeases]):
    """Settles leased records."""

    settle_leased = changes(ClientLeases.settle_leased)
    extend_lease = changes(ClientLeases.extend_lease)


class BlockingLeased(LeasedRecord[None]):
    """A record under a lease; calls that settle it block until that is confirmed."""

    __slots__ = ()
