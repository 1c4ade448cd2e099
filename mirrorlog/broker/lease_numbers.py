"""The numbers of the leases of one mastership: no other lease of the log has one of them, before or after. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirrorlog.queues.delivery import EPOCH_BITS

_LEASES_MAX: Final = (1 << EPOCH_BITS) - 1


class LeaseNumbers:
    """`epoch`: of the mastership, asked for with each."""

    def __init__(self, epoch: Callable[[], int]) -> None:
        self._epoch = epoch
        self._leases = 0

    @property
    def full(self) -> bool:
        """Whether there is none left."""
        return self._leases >= _LEASES_MAX

    @property
    def last(self) -> int:
        """The highest number that was given to a lease; below all that will be."""
        return self._epoch() << EPOCH_BITS | self._leases

    def next(self) -> int:
        self._leases += 1
        return self.last
