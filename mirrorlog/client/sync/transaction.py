"""Transactions without `await`."""

from __future__ import annotations

from typing import Self

from mirrorlog.client.sync.blocking import Face, at_once, changes, waits
from mirrorlog.client.transaction.transaction import Transaction


class BlockingTransaction(Face[Transaction]):
    """As `mirrorlog.client.Transaction`; use it with `with`. For one thread at a time."""

    send = at_once(Transaction.send)
    publish = at_once(Transaction.publish)
    ack = at_once(Transaction.ack)
    nack = at_once(Transaction.nack)
    commit = changes(Transaction.commit)
    rollback = waits(Transaction.rollback)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._of.over:
            return
        if error is None:
            self.commit()
        else:
            self.rollback()
