"""Leases without `await`: as `mirrorlog.client.subscription.leases`, over the loop of the client's thread."""

from __future__ import annotations

from typing import TypeVar

from mirrorlog.client.subscription import leases as awaited
from mirrorlog.client.sync.caller import Caller
from mirrorlog.client.sync.given_record import SyncGivenRecord

_T = TypeVar("_T")


class Leased(SyncGivenRecord):
    """A record under a lease; as `mirrorlog.client.Leased`."""

    __slots__ = ("_awaited", "_client")
    _awaited: awaited.Leased

    def __init__(self, client: Caller, of: awaited.Leased) -> None:
        self._client = client
        self._awaited = of

    @property
    def offset(self) -> int:
        return self._awaited.offset

    @property
    def redelivered(self) -> bool:
        return self._awaited.redelivered

    @property
    def attempts(self) -> int:
        return self._awaited.attempts

    @property
    def receipt(self) -> str:
        """Names it in `Client.settle_receipt`, in every process, whichever node is master."""
        return self._awaited.receipt

    def ack(self) -> None:
        """Done; also when the lease is over, as long as nobody else has got it: ReceiptStale."""
        self._client.change(self._awaited.ack, what="ack")

    def nack(self, requeue: bool = True, *, delay_ms: int = 0) -> None:
        """Not done: it comes again, after `delay_ms`, and that is counted. Without `requeue` it is dead."""
        self._client.change(lambda: self._awaited.nack(requeue, delay_ms=delay_ms), what="nack")

    def reject(self) -> None:
        """Dead: a dead letter, if the queue has a place for them."""
        self._client.change(self._awaited.reject, what="reject")

    def release(self, *, delay_ms: int = 0) -> None:
        """It comes again, after `delay_ms`, as if it had not been seen."""
        self._client.change(lambda: self._awaited.release(delay_ms=delay_ms), what="release")

    def extend(self, lease_ms: int) -> None:
        """All records that the same `lease()` gave out are the holder's for `lease_ms` from now on, for they are one
        lease. Raises NotGranted when it is over."""
        self._client.change(lambda: self._awaited.extend(lease_ms), what="extend")

    def __repr__(self) -> str:
        return repr(self._awaited)


__all__ = ["Leased"]
