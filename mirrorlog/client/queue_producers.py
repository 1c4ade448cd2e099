"""The producers of a publisher, one for each queue that it has met lately. Pure.

Whoever publishes answers meets a new queue with each, and would fill its memory, and that of nodes, with producers that
nobody needs again. So beyond a thousand those go that have nothing under way and had nothing to do for some seconds;
beyond ten thousand all that have nothing under way. One that is needed again is made anew: everything that its
predecessor sent has ended by then, so order is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

KEPT_MAX: Final = 1_000
IDLE_S: Final = 5.0
IDLE_KEPT_MAX: Final = 10_000
_LOOKED_AT: Final = 64
"""Producers, in one look: it is taken for each message."""


class Abandonable(Protocol):
    def abandon(self) -> None: ...


_P = TypeVar("_P", bound=Abandonable)


@dataclass(slots=True)
class _Kept(Generic[_P]):
    """`under_way`: messages that were handed to it and have not been heard of."""

    producer: _P
    used_at: float
    under_way: int = 0


class QueueProducers(Generic[_P]):
    """By queue; the one that was used longest ago comes first."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept[_P]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[_P]:
        return iter([kept.producer for kept in self._kept.values()])

    def get(self, queue: str) -> _P | None:
        kept = self._kept.get(queue)
        return kept.producer if kept is not None else None

    def add(self, queue: str, producer: _P, now: float) -> None:
        """A started one, in place of none."""
        self._kept[queue] = _Kept(producer, now)

    def drop(self, queue: str) -> None:
        """Its queue is gone, and what is under way ends with it."""
        kept = self._kept.pop(queue, None)
        if kept is not None:
            kept.producer.abandon()

    def sent(self, queue: str, now: float) -> None:
        """A message was handed to it."""
        kept = self._kept.pop(queue)
        kept.used_at = now
        kept.under_way += 1
        self._kept[queue] = kept

    def heard(self, queue: str, producer: _P) -> None:
        """What has become of one message that was handed to that producer."""
        kept = self._kept.get(queue)
        if kept is not None and kept.producer is producer:
            kept.under_way -= 1

    def let_idle_go(self, now: float) -> None:
        """Those beyond the limits, a few at a time."""
        beyond = len(self._kept) - KEPT_MAX
        if beyond <= 0:
            return
        for queue, kept in [item for item, _ in zip(self._kept.items(), range(_LOOKED_AT), strict=False)]:
            if beyond <= 0 or (len(self._kept) <= IDLE_KEPT_MAX and now - kept.used_at < IDLE_S):
                return
            if not kept.under_way:
                self.drop(queue)
                beyond -= 1
