"""Losses that the cluster has declared, as the two ends of a link judge by them. Pure.

What a copy knows to be confirmed is cut for one reason alone: the cluster has promoted somebody who lacks it, and has
said so (invariant 1). A loss that was declared for an epoch speaks of bytes of older epochs; a copy that holds bytes of
that epoch, or of a later one, has followed the history that came of it, and what it knows to be confirmed is that
history's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class DeclaredLoss(Protocol):
    """When `epoch` began, confirmed bytes may have been lost from log offset `start` on."""

    @property
    def epoch(self) -> int: ...
    @property
    def start(self) -> int: ...


def losses_since(losses: Iterable[DeclaredLoss], last_epoch: int) -> list[DeclaredLoss]:
    """Those that may concern a copy whose last byte is of `last_epoch`, the earliest first."""
    return sorted((loss for loss in losses if loss.epoch > last_epoch), key=lambda loss: loss.epoch)


def lost_from(losses: Sequence[DeclaredLoss]) -> int | None:
    """The lowest log offset from which on these let a copy be cut; None without any."""
    return min((loss.start for loss in losses), default=None)
